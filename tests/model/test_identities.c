/* What must not change a result: how a sequence is cut, what is packed beside it, which form of the delta rule computes
 * it, whether a cache was copied, saved or filled token by token. Float build, to rounding. */
#include "support/support.h"
#include "model/shared_backend.h"

#include "base/progress.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Of the largest logit: float32 rounding through two layers. */
#define TOLERANCE 1e-5

static const char *const models[] = {"qwen3_gqa2", "hybrid_default", "hybrid_gate_everything", "hybrid_none_all"};
enum { N_MODELS = sizeof models / sizeof *models };

typedef struct subject {
    hh_model *m;
    int32_t *ids;
    int64_t n;
    hh_real *whole; /* logits of one pass */
    double *want;
} subject;

static subject subject_open(const char *name) {
    subject s;
    s.m = zoo_open(be, name, HH_LOAD_STORED);
    s.ids = zoo_ids(zoo_case("hybrid_default"), &s.n); /* 70 tokens below 97: beyond one chunk of the delta rule */
    s.whole = zoo_logits(s.m, s.ids, s.n);
    s.want = hh_alloc((size_t)(s.n * s.m->config.vocab) * sizeof *s.want);
    for (int64_t i = 0; i < s.n * s.m->config.vocab; i++) s.want[i] = (double)s.whole[i];
    return s;
}

static void subject_close(subject *s) {
    hh_free(s->ids);
    hh_free(s->whole);
    hh_free(s->want);
    hh_model_close(s->m);
}

/* Logits of tokens [lo, hi) behind what the cache holds. */
static void advance(hh_run *run, const subject *s, hh_cache *cache, int64_t lo, int64_t hi, hh_real *logits) {
    hh_error err = {0};
    const int64_t v = s->m->config.vocab;
    const hh_span span = {.hi = hi - lo, .pos = cache->length};
    const hh_batch batch = {.n_tokens = hi - lo, .n_spans = 1, .ids = s->ids + lo, .span = &span, .cache = &cache};
    hh_tensor final;
    hh_guard_begin();
    assert_ok(hh_forward(run, &batch, &final, &err));
    hh_logits(run, final, NULL, hi - lo, hh_tensor_2d(logits + lo * v, HH_DTYPE_REAL, hi - lo, v));
    hh_guard_end();
}

static void check_pieces(const char *name, int64_t piece, hh_dtype kv, double tolerance) {
    hh_error err = {0};
    subject s = subject_open(name);
    hh_run *run;
    hh_cache *cache;
    assert_ok(hh_run_new(&run, s.m, piece, 1, HH_RUN_INFERENCE, &err));
    assert_ok(hh_cache_new(&cache, s.m, s.n, kv, &err));
    hh_real *logits = hh_alloc((size_t)(s.n * s.m->config.vocab) * sizeof *logits);
    for (int64_t lo = 0; lo < s.n; lo += piece)
        advance(run, &s, cache, lo, lo + piece < s.n ? lo + piece : s.n, logits);
    assert_int_equal(cache->length, s.n);
    double d = zoo_difference(logits, s.want, s.n * s.m->config.vocab);
    if (!(d <= tolerance)) fail_msg("%s in pieces of %d: logits differ by %.3g", name, (int)piece, d);
    hh_free(logits);
    hh_cache_free(cache, be);
    hh_run_free(run);
    subject_close(&s);
}

static void test_every_piece_size_is_one_pass(void **state) {
    (void)state;
    static const int64_t pieces[] = {1, 2, 3, 63, 64, 65};
    for (int m = 0; m < N_MODELS; m++)
        for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++)
            check_pieces(models[m], pieces[p], HH_DTYPE_REAL, TOLERANCE);
}

static void test_bf16_cache_is_close(void **state) {
    (void)state;
    check_pieces("hybrid_default", 16, HH_DTYPE_BF16, 2e-2);
}

static void test_every_cut_is_one_pass(void **state) {
    (void)state;
    hh_error err = {0};
    subject s = subject_open("hybrid_gate_everything");
    hh_run *run;
    hh_cache *cache;
    assert_ok(hh_run_new(&run, s.m, s.n, 1, HH_RUN_INFERENCE, &err));
    assert_ok(hh_cache_new(&cache, s.m, s.n, HH_DTYPE_REAL, &err));
    hh_real *logits = hh_alloc((size_t)(s.n * s.m->config.vocab) * sizeof *logits);
    for (int64_t cut = 1; cut < s.n; cut += cut < 60 ? 3 : 1) {
        hh_cache_reset(cache);
        advance(run, &s, cache, 0, cut, logits);
        advance(run, &s, cache, cut, s.n, logits);
        double d = zoo_difference(logits, s.want, s.n * s.m->config.vocab);
        if (!(d <= TOLERANCE)) fail_msg("cut at %d: logits differ by %.3g", (int)cut, d);
    }
    hh_free(logits);
    hh_cache_free(cache, be);
    hh_run_free(run);
    subject_close(&s);
}

static void test_recurrent_form_is_chunked_form(void **state) {
    (void)state;
    hh_error err = {0};
    for (int i = 1; i < N_MODELS; i++) {
        subject s = subject_open(models[i]);
        hh_run *run;
        assert_ok(hh_run_new(&run, s.m, s.n, 1, HH_RUN_INFERENCE, &err));
        hh_run_set_gdn_mode(run, HH_GDN_RECURRENT);
        const hh_span span = {.hi = s.n};
        const hh_batch batch = {.n_tokens = s.n, .n_spans = 1, .ids = s.ids, .span = &span};
        hh_tensor final;
        assert_ok(hh_forward(run, &batch, &final, &err));
        hh_logits(run, final, NULL, s.n, hh_tensor_2d(s.whole, HH_DTYPE_REAL, s.n, s.m->config.vocab));
        assert_near(zoo_difference(s.whole, s.want, s.n * s.m->config.vocab), 0, TOLERANCE);
        hh_run_free(run);
        subject_close(&s);
    }
}

static void test_packed_sequences_do_not_leak(void **state) {
    (void)state;
    hh_error err = {0};
    for (int i = 0; i < N_MODELS; i++) {
        subject s = subject_open(models[i]);
        const int64_t v = s.m->config.vocab, n = s.n;
        /* other tokens, nothing, one token, the sequence, and what follows */
        const hh_span span[] = {{0, 9, 0}, {9, 9, 0}, {9, 10, 0}, {10, 10 + n, 0}, {10 + n, 13 + n, 0}};
        int32_t *ids = hh_alloc((size_t)(n + 13) * sizeof *ids);
        for (int64_t k = 0; k < n + 13; k++) ids[k] = (int32_t)(k * 31 % v);
        memcpy(ids + 10, s.ids, (size_t)n * sizeof *ids);
        hh_run *run;
        assert_ok(hh_run_new(&run, s.m, n + 13, 5, HH_RUN_INFERENCE, &err));
        const hh_batch batch = {.n_tokens = n + 13, .n_spans = 5, .ids = ids, .span = span};
        hh_tensor final;
        assert_ok(hh_forward(run, &batch, &final, &err));
        hh_logits(run, hh_tensor_rows(final, 10, 10 + n), NULL, n, hh_tensor_2d(s.whole, HH_DTYPE_REAL, n, v));
        assert_near(zoo_difference(s.whole, s.want, n * v), 0, TOLERANCE);
        hh_free(ids);
        hh_run_free(run);
        subject_close(&s);
    }
}

/* Several sequences, each with a cache of its own, one token each: a decoding batch. */
static void test_decoding_together_is_decoding_alone(void **state) {
    (void)state;
    hh_error err = {0};
    subject s = subject_open("hybrid_gate_everything");
    const int64_t v = s.m->config.vocab;
    hh_run *run;
    hh_cache *cache[3];
    hh_real *logits = hh_alloc((size_t)(s.n * v) * sizeof *logits);
    assert_ok(hh_run_new(&run, s.m, s.n, 3, HH_RUN_INFERENCE, &err));
    static const int64_t held[] = {5, 40, 66};
    for (int i = 0; i < 3; i++) {
        assert_ok(hh_cache_new(&cache[i], s.m, s.n, HH_DTYPE_REAL, &err));
        advance(run, &s, cache[i], 0, held[i], logits);
    }
    const hh_span span[] = {{0, 1, 5}, {1, 2, 40}, {2, 3, 66}};
    const int32_t ids[] = {s.ids[5], s.ids[40], s.ids[66]};
    const hh_batch batch = {.n_tokens = 3, .n_spans = 3, .ids = ids, .span = span, .cache = cache};
    hh_tensor final;
    assert_ok(hh_forward(run, &batch, &final, &err));
    hh_logits(run, final, NULL, 3, hh_tensor_2d(logits, HH_DTYPE_REAL, 3, v));
    for (int i = 0; i < 3; i++) assert_near(zoo_difference(logits + i * v, s.want + held[i] * v, v), 0, TOLERANCE);
    for (int i = 0; i < 3; i++) hh_cache_free(cache[i], be);
    hh_free(logits);
    hh_run_free(run);
    subject_close(&s);
}

static void test_a_copied_cache_continues_the_same(void **state) {
    (void)state;
    hh_error err = {0};
    for (int i = 0; i < N_MODELS; i++) {
        subject s = subject_open(models[i]);
        const int64_t v = s.m->config.vocab;
        hh_run *run;
        hh_cache *a, *b;
        hh_real *la = hh_alloc((size_t)(s.n * v) * sizeof *la), *lb = hh_alloc((size_t)(s.n * v) * sizeof *lb);
        assert_ok(hh_run_new(&run, s.m, s.n, 1, HH_RUN_INFERENCE, &err));
        assert_ok(hh_cache_new(&a, s.m, s.n, HH_DTYPE_REAL, &err));
        assert_ok(hh_cache_new(&b, s.m, s.n + 5, HH_DTYPE_REAL, &err));
        advance(run, &s, b, 3, 9, lb); /* what the copy replaces */
        advance(run, &s, a, 0, 30, la);
        hh_cache_copy(b, a);
        advance(run, &s, a, 30, s.n, la);
        advance(run, &s, b, 30, s.n, lb);
        assert_memory_equal(la + 30 * v, lb + 30 * v, (size_t)((s.n - 30) * v) * sizeof *la);
        hh_free(la);
        hh_free(lb);
        hh_cache_free(a, be);
        hh_cache_free(b, be);
        hh_run_free(run);
        subject_close(&s);
    }
}

static void test_a_full_cache_is_refused(void **state) {
    (void)state;
    hh_error err = {0};
    subject s = subject_open("hybrid_default");
    hh_run *run;
    hh_cache *cache;
    hh_tensor final;
    assert_ok(hh_run_new(&run, s.m, s.n, 1, HH_RUN_INFERENCE, &err));
    assert_ok(hh_cache_new(&cache, s.m, 20, HH_DTYPE_REAL, &err));
    const hh_span span = {.hi = 21};
    const hh_batch batch = {.n_tokens = 21, .n_spans = 1, .ids = s.ids, .span = &span, .cache = &cache};
    assert_refused(hh_forward(run, &batch, &final, &err), HH_ENOMEM, "20", "21");
    assert_int_equal(cache->length, 0);
    hh_cache_free(cache, be);
    hh_run_free(run);
    subject_close(&s);
}

static int blocks_seen;

static void interrupt_after_a_block(void *context, hh_point point, int64_t layer, hh_tensor t) {
    (void)context, (void)layer, (void)t;
    if (point != HH_POINT_BLOCK_OUTPUT) return;
    if (blocks_seen++ == 0) raise(SIGINT);
}

static void test_an_interrupt_ends_a_forward_between_layers(void **state) {
    (void)state;
    hh_error err = {0};
    subject s = subject_open("hybrid_default");
    hh_run *run;
    assert_ok(hh_run_new(&run, s.m, s.n, 1, HH_RUN_TRAINING, &err));
    const hh_span span = {.hi = s.n};
    const hh_batch batch = {.n_tokens = s.n, .n_spans = 1, .ids = s.ids, .span = &span};
    hh_tensor final;
    hh_interrupt_install();
    hh_run_set_tap(run, (hh_tap){interrupt_after_a_block, NULL});
    assert_refused(hh_forward(run, &batch, &final, &err), HH_ECANCELLED, "layer 1");
    hh_run_set_tap(run, (hh_tap){0});
    assert_int_equal(blocks_seen, 1);
    hh_interrupt_reset();
    err = (hh_error){0};
    assert_ok(hh_forward(run, &batch, &final, &err));
    blocks_seen = 0;
    hh_backward(run, &batch, final, NULL, &(hh_backward_options){.tap = {interrupt_after_a_block, NULL}});
    assert_int_equal(blocks_seen, 1);
    hh_interrupt_reset();
    hh_run_free(run);
    subject_close(&s);
}

/* Saved and opened again: the same logits, and heads at their original places. */
static void test_saving_changes_nothing(void **state) {
    (void)state;
    hh_error err = {0};
    static const char *const saved[] = {"qwen3_gqa2",  "llama_biases", "llama_llama3",     "hybrid_gate_everything",
                                        "hybrid_norm", "hybrid_plain", "hybrid_qwen2_bias"};
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++) {
        char as[64];
        snprintf(as, sizeof as, "saved_%s", saved[i]);
        const char *dir = temp_path(as);
        hh_model *m = zoo_open(be, saved[i], HH_LOAD_REAL), *again;
        int64_t n;
        int32_t *ids = zoo_ids(zoo_case(saved[i]), &n);
        assert_ok(hh_model_save(m, dir, HH_DTYPE_F32, NULL, &err));
        assert_ok(hh_model_open(&again, be, dir, HH_LOAD_REAL, &err));
        assert_int_equal(m->n_params, again->n_params);
        assert_memory_equal(m->flat.data, again->flat.data, (size_t)m->flat.dim[0] * sizeof(hh_real));
        hh_real *a = zoo_logits(m, ids, n), *b = zoo_logits(again, ids, n);
        assert_memory_equal(a, b, (size_t)(n * m->config.vocab) * sizeof *a);
        hh_free(a);
        hh_free(b);
        hh_free(ids);
        hh_model_close(m);
        hh_model_close(again);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_piece_size_is_one_pass),
        cmocka_unit_test(test_bf16_cache_is_close),
        cmocka_unit_test(test_every_cut_is_one_pass),
        cmocka_unit_test(test_recurrent_form_is_chunked_form),
        cmocka_unit_test(test_packed_sequences_do_not_leak),
        cmocka_unit_test(test_decoding_together_is_decoding_alone),
        cmocka_unit_test(test_a_copied_cache_continues_the_same),
        cmocka_unit_test(test_a_full_cache_is_refused),
        cmocka_unit_test(test_an_interrupt_ends_a_forward_between_layers),
        cmocka_unit_test(test_saving_changes_nothing),
    };
    return cmocka_run_group_tests_name("model: identities", tests, open_backend, close_backend);
}
