/* A session: any way of feeding tokens gives the same logits; what does not fit is refused before anything happens;
 * sampling. */
#include "support/support.h"
#include "support/zoo.h"

#include "session/session.h"

#include <math.h>
#include <string.h>

static hh_backend *be;
static hh_model *m;
static int32_t *ids;
static int64_t n_ids;

static hh_session *open_session(int64_t context, int64_t chunk) {
    hh_error err = {0};
    hh_session *s;
    assert_ok(hh_session_new(&s, m, &(hh_session_options){.context = context, .chunk = chunk, .kv_dtype = HH_DTYPE_F32},
                             &err));
    return s;
}

static void test_chunks_and_single_tokens_agree(void **state) {
    (void)state;
    hh_error err = {0};
    hh_session *whole = open_session(100, 0);
    assert_ok(hh_session_eval(whole, ids, n_ids, &err));
    double *want = hh_alloc((size_t)m->config.vocab * sizeof *want);
    for (int64_t i = 0; i < m->config.vocab; i++) want[i] = (double)hh_session_logits(whole)[i];
    static const int64_t chunks[] = {1, 7, 64, 1000};
    for (int c = 0; c < 4; c++) {
        hh_session *s = open_session(100, chunks[c]);
        assert_ok(hh_session_eval(s, ids, 20, &err));
        assert_ok(hh_session_eval(s, ids + 20, n_ids - 20, &err));
        assert_int_equal(hh_session_position(s), n_ids);
        assert_near(zoo_difference(hh_session_logits(s), want, m->config.vocab), 0, 1e-5);
        hh_session_reset(s);
        assert_int_equal(hh_session_position(s), 0);
        for (int64_t i = 0; i < n_ids; i++) assert_ok(hh_session_eval(s, ids + i, 1, &err));
        assert_near(zoo_difference(hh_session_logits(s), want, m->config.vocab), 0, 1e-5);
        hh_session_free(s);
    }
    hh_free(want);
    hh_session_free(whole);
}

/* The next token's logits behind a prompt taken in chunks, in one call or cut at `cut`. */
static void take_prompt(hh_real *out, const hh_model *model, const int32_t *prompt, int64_t n, int64_t chunk,
                        int64_t cut, hh_dtype kv) {
    hh_error err = {0};
    hh_session *s;
    const hh_session_options options = {.context = n + 1, .chunk = chunk, .kv_dtype = kv};
    assert_ok(hh_session_new(&s, model, &options, &err));
    if (cut) assert_ok(hh_session_eval(s, prompt, cut, &err));
    assert_ok(hh_session_eval(s, prompt + cut, n - cut, &err));
    memcpy(out, hh_session_logits(s), (size_t)model->config.vocab * sizeof *out);
    hh_session_free(s);
}

static void check_cuts(const hh_model *model, int64_t n, hh_dtype kv) {
    static const int64_t chunks[] = {64, 128, 256, 512};
    int32_t prompt[600];
    for (int64_t i = 0; i < n; i++) prompt[i] = (int32_t)((i * i * 31 + i * 7 + 3) % model->config.vocab);
    const size_t bytes = (size_t)model->config.vocab * sizeof(hh_real);
    hh_real *whole = hh_alloc(bytes), *again = hh_alloc(bytes);
    take_prompt(whole, model, prompt, n, n, 0, kv);
    for (int c = 0; c < 4; c++) {
        take_prompt(again, model, prompt, n, chunks[c], 0, kv);
        assert_memory_equal(again, whole, bytes);
        for (int64_t cut = 64; cut < n; cut += 192) {
            take_prompt(again, model, prompt, n, chunks[c], cut, kv);
            assert_memory_equal(again, whole, bytes);
        }
        take_prompt(again, model, prompt, n, chunks[c], (n - 1) / 64 * 64, kv);
        assert_memory_equal(again, whole, bytes);
    }
    hh_free(whole);
    hh_free(again);
}

/* Cold, cached or in any chunks: the same bits where the cuts are at multiples of 64, on the fast kernels, with the
 * processor's own precision and with float32; whatever stands behind the last multiple of 64. */
static void test_cuts_at_multiples_of_64_give_the_same_bits(void **state) {
    (void)state;
    hh_error err = {0};
    static const char *const models[] = {"models/nano", "hybrid_default", "hybrid_gate_everything"};
    for (int p = 0; p < 2; p++) {
        hh_backend *fast;
        assert_ok(hh_cpu_open(&fast, 2, p ? HH_PRECISION_F32 : HH_PRECISION_AUTO, NULL, &err));
        for (int i = 0; i < 3; i++) {
            hh_model *model;
            const char *path = i ? zoo_directory(zoo_case(models[i])) : models[i];
            assert_ok(hh_model_open(&model, fast, path, HH_LOAD_STORED, &err));
            hh_dtype usual;
            assert_ok(hh_cache_type(&usual, NULL, fast, &model->config, &err));
            assert_int_equal(usual, p ? HH_DTYPE_F32 : HH_DTYPE_BF16);
            check_cuts(model, 577, usual); /* one token is left */
            check_cuts(model, 200, p ? HH_DTYPE_BF16 : HH_DTYPE_F32);
            check_cuts(model, 130, HH_DTYPE_Q8_0);
            hh_model_close(model);
        }
        hh_backend_close(fast);
    }
}

static void test_what_does_not_fit_is_refused(void **state) {
    (void)state;
    hh_error err = {0};
    hh_session *s = open_session(30, 0);
    assert_ok(hh_session_eval(s, ids, 10, &err));
    assert_refused(hh_session_eval(s, ids, 21, &err), HH_EINVAL, "21", "30");
    assert_int_equal(hh_session_position(s), 10);
    const int32_t bad[] = {3, 97, 4}, negative = -1;
    assert_refused(hh_session_eval(s, bad, 3, &err), HH_EINVAL, "97");
    assert_refused(hh_session_eval(s, &negative, 1, &err), HH_EINVAL, "-1");
    assert_int_equal(hh_session_position(s), 10);
    assert_ok(hh_session_eval(s, ids, 20, &err));
    hh_session_free(s);
    assert_refused(hh_session_new(&s, m, &(hh_session_options){.context = 0, .kv_dtype = HH_DTYPE_F32}, &err),
                   HH_EINVAL, "0");
}

static void test_a_value_that_is_not_finite_fails_one_request(void **state) {
    (void)state;
    hh_error err = {0};
    hh_session *s = open_session(30, 0);
    assert_ok(hh_session_eval(s, ids, 9, &err));
    double *want = hh_alloc((size_t)m->config.vocab * sizeof *want);
    for (int64_t i = 0; i < m->config.vocab; i++) want[i] = (double)hh_session_logits(s)[i];
    hh_real *w = hh_row(m->w.embedding, ids[4]), kept = *w;
    *w = (hh_real)INFINITY;
    hh_session_reset(s);
    assert_refused(hh_session_eval(s, ids, 9, &err), HH_ENONFINITE, "position 4", "layer 0");
    assert_int_equal(hh_session_position(s), 0);
    *w = kept;
    err = (hh_error){0};
    assert_ok(hh_session_eval(s, ids, 9, &err));
    assert_near(zoo_difference(hh_session_logits(s), want, m->config.vocab), 0, 1e-6);
    hh_free(want);
    hh_session_free(s);
}

typedef struct heard {
    int32_t id[64];
    int64_t n, stop_after;
} heard;

static bool hear(void *context, int32_t id) {
    heard *h = context;
    h->id[h->n++] = id;
    return h->n != h->stop_after;
}

static void test_generation_stops(void **state) {
    (void)state;
    hh_error err = {0};
    hh_session *s = open_session(40, 0);
    const hh_sampling greedy = {.top_p = 1};
    heard all = {0}, h = {0};
    int64_t made;
    assert_refused(hh_session_generate(s, 4, NULL, 0, &greedy, NULL, hear, &h, &made, &err), HH_EINVAL,
                   "at least one token");
    assert_ok(hh_session_eval(s, ids, 10, &err));
    assert_ok(hh_session_generate(s, 12, NULL, 0, &greedy, NULL, hear, &all, &made, &err));
    assert_int_equal(made, 12);
    /* at an end token, which is not handed on */
    int64_t first = 0;
    while (all.id[first] != all.id[5]) first++;
    const int32_t end[] = {96, all.id[5]};
    hh_session_reset(s);
    assert_ok(hh_session_eval(s, ids, 10, &err));
    assert_ok(hh_session_generate(s, 12, end, 2, &greedy, NULL, hear, &h, &made, &err));
    assert_int_equal(made, first + 1);
    assert_int_equal(h.n, first);
    assert_memory_equal(h.id, all.id, (size_t)h.n * sizeof *h.id);
    /* when the listener has heard enough, and at the end of the context */
    h = (heard){.stop_after = 3};
    hh_session_reset(s);
    assert_ok(hh_session_eval(s, ids, 10, &err));
    assert_ok(hh_session_generate(s, 12, NULL, 0, &greedy, NULL, hear, &h, &made, &err));
    assert_int_equal(made, 3);
    h = (heard){0};
    hh_session_reset(s);
    assert_ok(hh_session_eval(s, ids, 38, &err));
    assert_ok(hh_session_generate(s, 12, NULL, 0, &greedy, NULL, hear, &h, &made, &err));
    assert_int_equal(made, 3);
    hh_session_free(s);
}

/* Shares of `draws` draws. */
static void shares(const hh_real *logits, int64_t vocab, hh_sampling s, double *share) {
    enum { DRAWS = 20000 };
    hh_rng rng = hh_rng_seeded(5);
    for (int64_t i = 0; i < vocab; i++) share[i] = 0;
    for (int i = 0; i < DRAWS; i++) share[hh_sample(logits, vocab, &s, &rng)] += 1.0 / DRAWS;
}

static void test_sampling_follows_the_distribution(void **state) {
    (void)state;
    static const double p[] = {.05, .4, .2, .3, .05};
    hh_real logits[5];
    double share[5];
    for (int i = 0; i < 5; i++) logits[i] = (hh_real)log(p[i]) + 3;
    shares(logits, 5, (hh_sampling){.temperature = 1, .top_p = 1}, share);
    for (int i = 0; i < 5; i++) assert_near(share[i], p[i], .015);
    shares(logits, 5, (hh_sampling){.temperature = .5, .top_p = 1}, share); /* squares */
    for (int i = 0; i < 5; i++) assert_near(share[i], p[i] * p[i] / .295, .015);
    shares(logits, 5, (hh_sampling){.temperature = 1, .top_p = 1, .top_k = 2}, share);
    assert_near(share[1], 4. / 7, .015);
    assert_near(share[3], 3. / 7, .015);
    shares(logits, 5, (hh_sampling){.temperature = 1, .top_p = .75}, share); /* .4 + .3 < .75 <= .4 + .3 + .2 */
    assert_near(share[1], 4. / 9, .015);
    assert_near(share[2], 2. / 9, .015);
    assert_near(share[3], 3. / 9, .015);
    shares(logits, 5, (hh_sampling){.temperature = 1, .top_p = .5, .top_k = 3}, share); /* of the three: .444, .333 */
    assert_near(share[1], 4. / 7, .015);
    assert_near(share[3], 3. / 7, .015);
    shares(logits, 5, (hh_sampling){.temperature = 1, .top_p = 1, .min_p = .6}, share);
    assert_near(share[1], 4. / 7, .015);
    assert_near(share[3], 3. / 7, .015);
    shares(logits, 5, (hh_sampling){.temperature = 1, .top_p = 0}, share);
    assert_near(share[1], 1, 1e-9);
    shares(logits, 5, (hh_sampling){.temperature = 0, .top_p = 1}, share);
    assert_near(share[1], 1, 1e-9);
}

static int open_all(void **state) {
    (void)state;
    be = zoo_backend();
    m = zoo_open(be, "hybrid_default", HH_LOAD_REAL);
    ids = zoo_ids(zoo_case("hybrid_default"), &n_ids);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    hh_free(ids);
    hh_model_close(m);
    hh_backend_close(be);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_and_single_tokens_agree),
        cmocka_unit_test(test_cuts_at_multiples_of_64_give_the_same_bits),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_a_value_that_is_not_finite_fails_one_request),
        cmocka_unit_test(test_generation_stops),
        cmocka_unit_test(test_sampling_follows_the_distribution),
    };
    return cmocka_run_group_tests_name("session", tests, open_all, close_all);
}
