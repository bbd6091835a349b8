/* The measures on nano: equal to transformers' numbers, whatever the batching; an evaluation that was stopped goes on.
 */
#include "base/progress.h"
#include "data/corpus.h"
#include "eval/generate.h"
#include "eval/loglik.h"
#include "eval/perplexity.h"
#include "eval/ruler.h"
#include "eval/score_choice.h"
#include "format/json.h"
#include "ops/ops.h"
#include "support/support.h"
#include "support/zoo.h"

#include <math.h>
#include <string.h>

static hh_error err;
static hh_backend *be;
static hh_subject *nano;
static json_t *golden;

static int open_all(void **state) {
    static const char *name = "nano";
    (void)state;
    hh_words names = {&name, 1};
    hh_progress_silence(true);
    return hh_cpu_open(&be, 1, HH_PRECISION_F32, NULL, &err) != HH_OK ||
           hh_subjects_open(&nano, be, &names, NULL, &err) != HH_OK ||
           hh_json_read(&golden, "tests/eval/golden/golden.json", 1 << 20, &err) != HH_OK;
}

static int close_all(void **state) {
    (void)state;
    hh_subjects_close(nano, 1);
    hh_backend_close(be);
    json_decref(golden);
    return 0;
}

static void check_file(const char *name, int64_t batch) {
    char *path = hh_sprintf("tests/eval/golden/%s.jsonl", name);
    const json_t *expected = json_object_get(golden, name);
    hh_choice_set set;
    hh_choice_result r;
    assert_ok(hh_choice_read(&set, path, 0, &err));
    assert_ok(hh_eval_choice(&r, nano, &set, &(hh_choice_options){.batch = batch}, &err));
    assert_int_equal(r.n, json_array_size(expected));
    double right = 0;
    for (int64_t i = 0; i < r.n; i++) {
        int64_t best = 0;
        for (int64_t j = 0; j < set.item[i].n; j++) {
            assert_near(r.loglik[i][j], json_real_value(json_array_get(json_array_get(expected, (size_t)i), (size_t)j)),
                        2e-3);
            if (r.loglik[i][j] > r.loglik[i][best]) best = j;
        }
        right += best == set.item[i].gold;
    }
    if (set.kind != HH_CHOICE_CONTINUATION) assert_near(r.acc.value, right / (double)r.n, 1e-12);
    hh_choice_result_release(&r);
    hh_choice_release(&set);
    hh_free(path);
}

static void log_likelihoods_are_those_of_transformers(void **state) {
    (void)state;
    static const int64_t batches[] = {1, 40, 2048}; /* tokens of a forward; raised to the longest sequence */
    for (int i = 0; i < 3; i++) {
        check_file("multiple", batches[i]);
        check_file("contexts", batches[i]);
        check_file("lastword", batches[i]);
    }
}

static void a_last_word_is_right_when_each_token_is_the_likeliest(void **state) {
    (void)state;
    hh_choice_set set;
    hh_choice_result r;
    assert_ok(hh_choice_read(&set, "tests/eval/golden/lastword.jsonl", 0, &err));
    assert_ok(hh_eval_choice(&r, nano, &set, &(hh_choice_options){0}, &err));
    double mean = 0;
    for (int i = 0; i < 3; i++) mean += r.loglik[i][0] / 3;
    assert_near(r.acc.value, 1.0 / 3, 1e-9); /* "a long time" */
    assert_near(r.perplexity.value, exp(-mean), 1e-6 * exp(-mean));
    hh_choice_result_release(&r);
    hh_choice_release(&set);
}

/* Neighbours of a group may share everything, something or nothing; one may be the beginning of another. */
static void check_groups(const hh_model *m, hh_dtype kv) {
    static const int32_t a[] = {4, 50, 60, 70, 80, 90, 7}, b[] = {4, 50, 60, 71, 81}, c[] = {41, 51},
                         d[] = {4, 50, 60, 70, 80};
    const hh_scored alone[] = {
        {a, 7, 1, 0, 0, 0}, {b, 5, 3, 1, 0, 0}, {c, 2, 1, 2, 0, 0}, {d, 5, 4, 3, 0, 0}, {a, 7, 6, 4, 0, 0}};
    hh_scored one[5], grouped[5];
    hh_loglik *l;
    memcpy(one, alone, sizeof one);
    memcpy(grouped, alone, sizeof grouped);
    grouped[0].group = grouped[1].group = grouped[2].group = 0; /* nothing in common with c */
    grouped[3].group = grouped[4].group = 1;                    /* d is the beginning of a */
    assert_ok(hh_loglik_new(&l, m, 6, 3, 1, kv, &err));
    assert_ok(hh_loglik_score(l, one, 5, &err));
    assert_ok(hh_loglik_score(l, grouped, 5, &err));
    for (int i = 0; i < 5; i++) {
        assert_true(isfinite(one[i].loglik) && one[i].loglik < 0);
        assert_near(grouped[i].loglik, one[i].loglik, 1e-4);
        assert_int_equal(grouped[i].greedy, one[i].greedy);
    }
    hh_loglik_free(l);
}

static void groups_change_no_log_likelihood(void **state) {
    (void)state;
    static const char *const hybrids[] = {"hybrid_default", "hybrid_gate_everything", "hybrid_none_all"};
    check_groups(nano->model, HH_DTYPE_F32);
    check_groups(nano->model, HH_DTYPE_BF16);
    check_groups(nano->model, HH_DTYPE_Q8_0);
    for (int i = 0; i < 3; i++) { /* recurrent states and convolution tails go along with the copies */
        hh_model *m = zoo_open(be, hybrids[i], HH_LOAD_STORED);
        check_groups(m, HH_DTYPE_F32);
        check_groups(m, HH_DTYPE_Q8_0); /* of which a sequence by itself has one too */
        hh_model_close(m);
    }
}

/* What 8 bits cost is measured, not assumed: the texts are read through such a cache. */
static void caches_of_8_bits_cost_little(void **state) {
    (void)state;
    hh_subject small = {.name = "nano, 8 bits", .model = nano->model, .tokenizer = nano->tokenizer, .kv = "q8_0"};
    hh_subject bad = {.name = "nano, 2 bits", .model = nano->model, .tokenizer = nano->tokenizer, .kv = "q2"};
    hh_perplexity p, q;
    char *text;
    size_t len;
    assert_ok(hh_text_shipped(true, &text, &len, &err));
    assert_ok(hh_eval_perplexity(&p, nano, text, 20000, 200, 4, &err));
    assert_ok(hh_eval_perplexity(&q, &small, text, 20000, 200, 4, &err));
    assert_int_equal(q.n_tokens, p.n_tokens);
    assert_true(fabs(q.nll - p.nll) > 1e-7);
    assert_near(q.nll, p.nll, 0.005);
    assert_true(hh_subject_key(&small) != hh_subject_key(nano));
    hh_subject usual = *nano; /* what is kept of results stands under the type, not under the word for it */
    usual.kv = "auto";
    assert_true(hh_subject_key(&usual) == hh_subject_key(nano));
    const hh_needle_task task = HH_NIAH_BOOK;
    const int64_t length = 256;
    const hh_ruler_options o = {.task = &task, .length = &length, .n_tasks = 1, .n_lengths = 1, .n_samples = 4};
    hh_ruler_result r;
    assert_ok(hh_eval_ruler(&r, &small, 1, &o, &err));
    assert_true(r.cell[0].accuracy > 0.7);
    hh_ruler_result_release(&r);
    assert_refused(hh_eval_perplexity(&q, &bad, text, 20000, 200, 4, &err), HH_EINVAL, "q2", "nano, 2 bits");
    hh_free(text);
}

static void perplexity_is_that_of_transformers(void **state) {
    (void)state;
    const json_t *g = json_object_get(golden, "perplexity");
    char *text;
    size_t len;
    hh_perplexity p;
    assert_ok(hh_text_shipped(true, &text, &len, &err));
    size_t bytes = (size_t)json_integer_value(json_object_get(g, "bytes"));
    assert_ok(hh_eval_perplexity(&p, nano, text, bytes, json_integer_value(json_object_get(g, "length")), 0, &err));
    assert_int_equal(p.n_tokens, json_integer_value(json_object_get(g, "tokens"))); /* the last window is shorter */
    double expected = json_real_value(json_object_get(g, "value"));
    assert_near(p.perplexity, expected, 1e-4 * expected);
    assert_ok(hh_eval_perplexity(&p, nano, text, bytes, 100, 2, &err));
    assert_int_equal(p.n_tokens, 2 * 99);
    assert_refused(hh_eval_perplexity(&p, nano, "a", 1, 0, 0, &err), HH_EINVAL, "1 tokens");
    assert_refused(hh_eval_perplexity(&p, nano, text, bytes, 1, 0, &err), HH_EINVAL, "window of 1");
    hh_free(text);
}

static void a_score_is_the_share_of_values_found(void **state) {
    (void)state;
    hh_needle_sample s = {.answer = {"1234567", "abCD-ef", "99", "7654321"}, .n_answers = 4};
    assert_near(hh_ruler_score(&s, "They are 1234567, ABcd-EF and 7654321."), 0.75, 1e-12);
    assert_near(hh_ruler_score(&s, ""), 0, 1e-12);
    assert_near(hh_ruler_score(&s, "123456 7"), 0, 1e-12);
}

static hh_ruler_options book_options(const char *partial) {
    static const hh_needle_task task[] = {HH_NIAH_BOOK, HH_NIAH_MULTIKEY_3};
    static const int64_t length[] = {256};
    return (hh_ruler_options){
        .task = task, .length = length, .n_tasks = 2, .n_lengths = 1, .n_samples = 3, .seed = 42, .partial = partial};
}

static void nano_finds_needles_in_books_and_says_what_does_not_fit(void **state) {
    (void)state;
    hh_ruler_options o = book_options(NULL);
    hh_ruler_result r;
    assert_ok(hh_eval_ruler(&r, nano, 1, &o, &err));
    const hh_ruler_cell *book = hh_ruler_cell_at(&r, 0, 0, 0), *uuids = hh_ruler_cell_at(&r, 0, 1, 0);
    assert_near(book->accuracy, 1, 1e-12);
    assert_int_equal(book->n_truncated, 0);
    assert_int_equal(uuids->n, 0);
    assert_non_null(strstr(uuids->why, "niah_multikey_3 does not fit in 256 tokens"));
    json_t *json = hh_ruler_json(&r);
    assert_near(json_real_value(json_object_get(
                    json_object_get(json_object_get(json_object_get(json, "models"), "nano"), "niah_book"), "256")),
                1, 1e-12);
    assert_int_equal(json_array_size(json_object_get(json, "skipped")), 1);
    json_decref(json);
    hh_buf page = {0};
    hh_ruler_page(&r, "needles", &page);
    assert_non_null(strstr(page.data, "depth of the needle"));
    hh_buf_release(&page);
    hh_ruler_result_release(&r);
    o.task++;
    o.n_tasks = 1;
    assert_refused(hh_eval_ruler(&r, nano, 1, &o, &err), HH_EUNSUPPORTED, "no task fits", "niah_multikey_3");
}

static void a_stopped_evaluation_goes_on(void **state) {
    (void)state;
    hh_ruler_result whole, again;
    hh_ruler_options o = book_options(temp_path("needles.partial"));
    o.n_tasks = 1;
    assert_ok(hh_eval_ruler(&whole, nano, 1, &o, &err));
    hh_buf lines = read_whole(o.partial);
    char *third = lines.data; /* keep two lines, and half of the third as a crash would leave it */
    for (int i = 0; i < 2; i++) third = strchr(third, '\n') + 1;
    o.partial = temp_file("cut.partial", lines.data, (size_t)(third - lines.data) + 20);
    assert_ok(hh_eval_ruler(&again, nano, 1, &o, &err));
    assert_int_equal(again.n_resumed, 2);
    for (int i = 0; i < 3; i++) {
        const hh_ruler_sample *a = &again.cell->sample[i], *b = &whole.cell->sample[i];
        assert_true(a->score == b->score && a->depth == b->depth && a->n_prompt == b->n_prompt && a->n_new == b->n_new);
    }
    hh_ruler_result_release(&again);
    assert_ok(hh_eval_ruler(&again, nano, 1, &o, &err));
    assert_int_equal(again.n_resumed, 3);
    hh_ruler_result_release(&again);
    o.seed++; /* other samples: nothing of the file is theirs */
    assert_ok(hh_eval_ruler(&again, nano, 1, &o, &err));
    assert_int_equal(again.n_resumed, 0);
    hh_ruler_result_release(&again);
    hh_ruler_result_release(&whole);
    hh_buf_release(&lines);
    o.partial = temp_text("bad.partial", "{\"key\": 3}\n");
    assert_refused(hh_eval_ruler(&again, nano, 1, &o, &err), HH_EFORMAT, "bad.partial", "line 1");
}

static void answers_are_generated_and_scored(void **state) {
    (void)state;
    hh_prompts p;
    json_t *out;
    assert_ok(hh_prompts_read(
        &p,
        temp_text("prompts.jsonl",
                  "{\"prompt\": \"They had been walking for a long\", \"answers\": [\"Time\", \"zebra\"]}\n"
                  "{\"prompt\": \"He opened the\"}\n"),
        0, &err));
    assert_ok(hh_eval_generate(&out, nano, &p, 5, &err));
    assert_int_equal(json_array_size(json_object_get(out, "outputs")), 2);
    assert_near(json_real_value(json_object_get(out, "score")), 0.5, 1e-12); /* of the one prompt that has answers */
    assert_int_equal(json_integer_value(json_object_get(out, "truncated")), 2);
    json_decref(out);
    hh_prompts_release(&p);
    assert_refused(hh_prompts_read(&p, temp_text("bad.jsonl", "{\"prompt\": \"a\", \"answers\": \"b\"}"), 0, &err),
                   HH_EFORMAT, "bad.jsonl, line 1", "answers");
}

static void the_verb_writes_what_scripts_read(void **state) {
    (void)state;
    hh_buf out = {0}, errors = {0};
    int code = run_line("hydrahead eval ruler nano -t 1 --tasks niah_book --lengths 256 --samples 2 --json "
                        "$TMP/needles.json && ls $TMP/needles.html && ! ls "
                        "$TMP/needles.json.partial 2>/dev/null",
                        60, &out, &errors);
    if (code) fail_msg("exit %d: %s", code, errors.data);
    json_t *json;
    assert_ok(hh_json_read(&json, temp_path("needles.json"), 1 << 20, &err));
    assert_near(json_real_value(json_object_get(
                    json_object_get(json_object_get(json_object_get(json, "models"), "nano"), "niah_book"), "256")),
                1, 1e-9);
    json_decref(json);
    assert_int_equal(run_line("hydrahead eval choice nano -t 1 -f tests/eval/golden/multiple.jsonl -f "
                              "tests/eval/golden/lastword.jsonl --json $TMP/c.json",
                              60, NULL, NULL),
                     0);
    assert_ok(hh_json_read(&json, temp_path("c.json"), 1 << 20, &err));
    const json_t *of_nano = json_object_get(json_object_get(json, "models"), "nano");
    assert_true(json_is_real(json_object_get(json_object_get(of_nano, "multiple"), "acc_norm")));
    assert_true(json_is_real(json_object_get(json_object_get(of_nano, "lastword"), "perplexity")));
    json_decref(json);
    assert_int_equal(run_line("hydrahead eval ruler nano --tasks niah_nothing", 20, NULL, &errors), 2);
    assert_non_null(strstr(errors.data, "niah_single_1"));
    assert_int_equal(run_line("hydrahead eval guess nano", 20, NULL, NULL), 2);
    assert_int_equal(run_line("hydrahead eval choice nano", 20, NULL, NULL), 2);
    assert_int_equal(run_line("hydrahead eval choice nano --file nowhere.jsonl", 20, NULL, NULL), 1);
    hh_buf_release(&out);
    hh_buf_release(&errors);
}

static void a_summary_gathers_runs(void **state) {
    (void)state;
    hh_buf errors = {0};
    const char *lines[] = {
        "hydrahead eval ruler teacher=nano -t 1 --tasks niah_book --lengths 256 --samples 2 --summary $TMP/s.json",
        "hydrahead eval ruler teacher=nano -t 1 --tasks niah_book --lengths 192 --samples 2 --summary $TMP/s.json",
        "hydrahead eval choice teacher=nano other=nano -t 1 -f tests/eval/golden/multiple.jsonl --summary $TMP/s.json",
        ("hydrahead eval perplexity teacher=nano -t 1 --file models/nano/text_valid.txt.gz --length 128 --limit 2 "
         "--summary $TMP/s.json")};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (run_line(lines[i], 60, NULL, &errors)) fail_msg("%s", errors.data);
    json_t *json;
    assert_ok(hh_json_read(&json, temp_path("s.json"), 1 << 20, &err));
    const json_t *models = json_object_get(json, "models"), *teacher = json_object_get(models, "teacher");
    const json_t *found = json_object_get(json_object_get(teacher, "ruler"), "niah_book");
    assert_true(json_is_number(json_object_get(found, "192")) && json_is_number(json_object_get(found, "256")));
    assert_true(json_is_real(json_object_get(json_object_get(teacher, "choice"), "multiple")));
    assert_true(json_real_value(json_object_get(teacher, "perplexity")) > 1);
    assert_int_equal(json_integer_value(json_object_get(teacher, "tokens")), 0);
    assert_non_null(json_object_get(json_object_get(models, "other"), "choice"));
    json_decref(json);
    temp_text("not.json", "[1, 2]");
    assert_int_equal(run_line("hydrahead eval perplexity nano -t 1 --file models/nano/text_valid.txt.gz --length 64 "
                              "--limit 1 --summary $TMP/not.json",
                              60, NULL, &errors),
                     1);
    assert_non_null(strstr(errors.data, "not.json"));
    hh_buf_release(&errors);
}

static void positions_can_be_stretched(void **state) {
    (void)state;
    const char *name = "nano";
    hh_words names = {&name, 1};
    hh_subject *s;
    assert_ok(hh_subjects_open(&s, be, &names, "yarn:4", &err));
    assert_int_equal(s->model->config.max_position, 4 * nano->model->config.max_position);
    assert_near(s->model->inv_freq[0], nano->model->inv_freq[0], 1e-12); /* fast dimensions stay */
    int64_t last = nano->model->config.head_dim / 2 - 1;
    assert_near(s->model->inv_freq[last], nano->model->inv_freq[last] / 4, 1e-12); /* slow ones are stretched */
    assert_near(s->model->rope_factor, 0.1 * log(4) + 1, 1e-12);
    assert_refused(hh_model_stretch(s->model, "yarn:2", &err), HH_EINVAL, "scaled already");
    assert_refused(hh_model_stretch(nano->model, "yarn:0.5", &err), HH_EINVAL, "yarn:0.5");
    assert_refused(hh_model_stretch(nano->model, "ntk:4", &err), HH_EINVAL, "ntk:4");
    hh_subjects_close(s, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_likelihoods_are_those_of_transformers),
        cmocka_unit_test(a_last_word_is_right_when_each_token_is_the_likeliest),
        cmocka_unit_test(groups_change_no_log_likelihood),
        cmocka_unit_test(caches_of_8_bits_cost_little),
        cmocka_unit_test(perplexity_is_that_of_transformers),
        cmocka_unit_test(a_score_is_the_share_of_values_found),
        cmocka_unit_test(nano_finds_needles_in_books_and_says_what_does_not_fit),
        cmocka_unit_test(a_stopped_evaluation_goes_on),
        cmocka_unit_test(answers_are_generated_and_scored),
        cmocka_unit_test(the_verb_writes_what_scripts_read),
        cmocka_unit_test(a_summary_gathers_runs),
        cmocka_unit_test(positions_can_be_stretched),
    };
    return cmocka_run_group_tests_name("eval", tests, open_all, close_all);
}
