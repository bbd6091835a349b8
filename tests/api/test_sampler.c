/* Choosing tokens: the same seed draws the same, options do what they say, and a grammar's text is always what it asks
 * for. */
#include "api/contexts.h"

#include <jansson.h>
#include <math.h>

static hh_engine *nano;
static int64_t vocab;
static float *logits; /* [vocab] */

static hh_sampler *new_sampler(hh_sampler_options o) {
    hh_sampler *s;
    assert_ok(hh_sampler_new(&s, nano, &o, &err));
    return s;
}

/* What is drawn first, of n draws of samplers with seeds 0, 1, ...: how often each of the ids 0 to 3. */
static void count_draws(hh_sampler_options o, int n, int counts[4]) {
    memset(counts, 0, 4 * sizeof *counts);
    for (int i = 0; i < n; i++) {
        o.seed = (uint64_t)i;
        hh_sampler *s = new_sampler(o);
        const int32_t id = hh_sampler_draw(s, logits);
        assert_in_range(id, 0, 3);
        counts[id]++;
        hh_sampler_free(s);
    }
}

/* Probabilities 1/2, 1/4, 1/8, 1/8 for the ids 0 to 3. */
static void set_logits(void) {
    for (int64_t i = 0; i < vocab; i++) logits[i] = -1e4F;
    for (int i = 0; i < 4; i++) logits[i] = -(float)(i < 3 ? i : 2) * (float)log(2);
}

static void test_greedy_takes_the_likeliest_and_of_equals_the_lower(void **state) {
    (void)state;
    set_logits();
    logits[40] = logits[30] = 5;
    hh_sampler *s = new_sampler((hh_sampler_options){0});
    for (int i = 0; i < 3; i++) assert_int_equal(hh_sampler_draw(s, logits), 30);
    hh_sampler_free(s);
}

static void test_draws_follow_the_distribution(void **state) {
    (void)state;
    int n[4];
    set_logits();
    count_draws((hh_sampler_options){.temperature = 1}, 400, n);
    assert_true(n[0] > 150 && n[0] < 250 && n[1] > 60 && n[1] < 140 && n[2] > 20 && n[3] > 20);
    count_draws((hh_sampler_options){.temperature = 1, .top_k = 2}, 50, n);
    assert_true(n[0] && n[1] && !n[2] && !n[3]);
    count_draws((hh_sampler_options){.temperature = 1, .top_p = 0.6}, 50, n);
    assert_true(n[0] && n[1] && !n[2] && !n[3]);
    count_draws((hh_sampler_options){.temperature = 1, .min_p = 0.6}, 20, n);
    assert_int_equal(n[0], 20);
    count_draws((hh_sampler_options){.temperature = 0.01}, 20, n);
    assert_int_equal(n[0], 20);
}

static void test_the_same_seed_draws_the_same(void **state) {
    (void)state;
    for (int64_t i = 0; i < vocab; i++) logits[i] = (float)((i * 7919) % 101) / 30;
    hh_sampler *a = new_sampler((hh_sampler_options){.temperature = 1, .seed = 11});
    hh_sampler *b = new_sampler((hh_sampler_options){.temperature = 1, .seed = 11});
    hh_sampler *c = new_sampler((hh_sampler_options){.temperature = 1, .seed = 12});
    int differ = 0;
    for (int i = 0; i < 50; i++) {
        const int32_t id = hh_sampler_draw(a, logits);
        assert_int_equal(hh_sampler_draw(b, logits), id);
        differ += hh_sampler_draw(c, logits) != id;
    }
    assert_true(differ > 25);
    hh_sampler_free(a);
    hh_sampler_free(b);
    hh_sampler_free(c);
}

static void test_biases_and_penalties(void **state) {
    (void)state;
    const hh_logit_bias bias[] = {{0, -INFINITY}, {2, 1}};
    const int32_t prompt[] = {0, 1};
    set_logits();
    hh_sampler *s = new_sampler((hh_sampler_options){.bias = bias, .n_bias = 2});
    assert_int_equal(hh_sampler_draw(s, logits), 2);
    hh_sampler_free(s);

    s = new_sampler((hh_sampler_options){.frequency_penalty = 1}); /* once drawn, 0 is worth -1 and 1 is -0.7 */
    hh_sampler_see(s, prompt, 2);                                  /* a prompt does not count */
    static const int32_t want[] = {0, 1, 0};
    for (int i = 0; i < 3; i++) assert_int_equal(hh_sampler_draw(s, logits), want[i]);
    hh_sampler_free(s);

    s = new_sampler((hh_sampler_options){.repetition_penalty = 4});
    logits[0] = 1, logits[1] = 0.5F, logits[2] = 0.3F;
    hh_sampler_see(s, prompt, 2);
    assert_int_equal(hh_sampler_draw(s, logits), 2);
    hh_sampler_free(s);

    s = new_sampler((hh_sampler_options){0});
    for (int64_t i = 0; i < vocab; i++) logits[i] = -INFINITY;
    assert_int_equal(hh_sampler_draw(s, logits), -1);
    hh_sampler_free(s);
}

static void test_what_makes_no_sense_is_refused(void **state) {
    (void)state;
    hh_sampler *s;
    const hh_logit_bias far = {1 << 30, 1}, nan = {0, NAN};
    assert_refused(hh_sampler_new(&s, nano, &(hh_sampler_options){.temperature = -1}, &err), HH_EINVAL, "temperature");
    assert_refused(hh_sampler_new(&s, nano, &(hh_sampler_options){.temperature = NAN}, &err), HH_EINVAL, "nan");
    assert_refused(hh_sampler_new(&s, nano, &(hh_sampler_options){.top_p = 1.5}, &err), HH_EINVAL, "top_p");
    assert_refused(hh_sampler_new(&s, nano, &(hh_sampler_options){.top_k = -3}, &err), HH_EINVAL, "-3");
    assert_refused(hh_sampler_new(&s, nano, &(hh_sampler_options){.bias = &far, .n_bias = 1}, &err), HH_EINVAL,
                   "1073741824");
    assert_refused(hh_sampler_new(&s, nano, &(hh_sampler_options){.bias = &nan, .n_bias = 1}, &err), HH_EINVAL, "nan");
    assert_refused(hh_sampler_new(&s, nano, &(hh_sampler_options){.json_schema = "{"}, &err), HH_EFORMAT, "JSON");
    assert_refused(hh_sampler_new(&s, nano,
                                  &(hh_sampler_options){.json_schema = "{\"type\":\"string\",\"pattern\":\"a+\"}"},
                                  &err),
                   HH_EUNSUPPORTED, "pattern");
    assert_null(s);
}

/* -- grammars -- */

static bool is_end(int32_t id) {
    int64_t n;
    const int32_t *end = hh_engine_end_tokens(nano, &n);
    for (int64_t i = 0; i < n; i++)
        if (end[i] == id) return true;
    return false;
}

/* What the model writes under a schema, at most `most` tokens; *ended: by an end token. The caller frees. */
static char *write_text(const char *schema, double temperature, uint64_t seed, int most, bool *ended) {
    static const char prompt[] = "Tom has a red ball. He said";
    hh_sequence *s = new_sequence(nano, 600);
    hh_sampler *sampler =
        new_sampler((hh_sampler_options){.temperature = temperature, .seed = seed, .json_schema = schema});
    int32_t *ids, made[600];
    int64_t n, k = 0;
    size_t len;
    char *text;
    assert_ok(hh_engine_tokenize(nano, prompt, strlen(prompt), false, &ids, &n, &err));
    assert_ok(hh_sequence_prompt(s, ids, n, &err));
    for (*ended = false; k < most;) {
        made[k] = hh_sampler_draw(sampler, hh_sequence_logits(s));
        assert_true(made[k] >= 0);
        if ((*ended = is_end(made[k]))) break;
        assert_ok(hh_sequences_step(&s, &made[k++], 1, NULL, &err));
    }
    assert_ok(hh_engine_detokenize(nano, made, k, true, &text, &len, &err));
    hh_memory_free(ids);
    hh_sampler_free(sampler);
    hh_sequence_free(s);
    return text;
}

static void test_a_schemas_text_is_always_valid(void **state) {
    (void)state;
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"kind\":{\"enum\":"
        "[\"ball\",\"dog\"]},\"red\":{\"type\":\"boolean\"},\"all\":{\"type\":\"array\",\"items\":{\"type\":\"null\"},"
        "\"minItems\":1,\"maxItems\":3}},\"required\":[\"name\",\"kind\",\"red\",\"all\"],"
        "\"additionalProperties\":false}";
    for (uint64_t seed = 0; seed < 6; seed++) {
        bool ended;
        json_error_t why;
        char *text = write_text(schema, seed ? 1.5 : 0, seed, 500, &ended);
        assert_true(ended);
        json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &why);
        if (!o) fail_msg("'%s': %s", text, why.text);
        assert_true(json_is_string(json_object_get(o, "name")) && json_is_boolean(json_object_get(o, "red")));
        const char *kind = json_string_value(json_object_get(o, "kind"));
        assert_true(kind && (!strcmp(kind, "ball") || !strcmp(kind, "dog")));
        assert_in_range(json_array_size(json_object_get(o, "all")), 1, 3);
        json_decref(o);
        hh_memory_free(text);
    }
}

/* Any object: what has ended is JSON; what has not can still become some. */
static void test_any_object_is_valid_when_it_ends(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        bool ended;
        json_error_t why;
        char *text = write_text("", seed ? 1 : 0, seed, 60, &ended);
        json_t *o = json_loads(text, 0, &why);
        if (ended && !json_is_object(o)) fail_msg("'%s': %s", text, why.text);
        if (!ended && json_error_code(&why) != json_error_premature_end_of_input && !o)
            assert_non_null(strchr(text, '{')); /* cut inside of a token of JSON */
        json_decref(o);
        hh_memory_free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_takes_the_likeliest_and_of_equals_the_lower),
        cmocka_unit_test(test_draws_follow_the_distribution),
        cmocka_unit_test(test_the_same_seed_draws_the_same),
        cmocka_unit_test(test_biases_and_penalties),
        cmocka_unit_test(test_what_makes_no_sense_is_refused),
        cmocka_unit_test(test_a_schemas_text_is_always_valid),
        cmocka_unit_test(test_any_object_is_valid_when_it_ends),
    };
    nano = open_engine("nano", (hh_engine_options){0});
    vocab = hh_engine_get_info(nano).vocab;
    logits = hh_alloc((size_t)vocab * sizeof *logits);
    const int failed = cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
    hh_free(logits);
    hh_engine_close(nano);
    return failed;
}
