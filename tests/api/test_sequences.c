/* Sequences: whatever of a prompt is reused, and whoever steps beside it, the logits are the same bits. */
#include "api/contexts.h"
#include "ops/gemm.h"

#include <math.h>
#include <pthread.h>

enum { N = 420 };

static int32_t ids[N];

static void test_any_chunks_give_the_same_bits(void **state) {
    (void)state;
    static const int64_t chunks[] = {1, 64, 100, 192, 4096};
    fill_ids(ids, 0, 0, N);
    for (int m = 0; m < N_MODELS; m++) {
        float *cold = read_cold(all_models[m], ids, N);
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            hh_engine *e = open_engine(all_models[m], (hh_engine_options){.chunk = chunks[c]});
            hh_sequence *s = new_sequence(e, N);
            int64_t left = N, passes = 0;
            assert_ok(hh_sequence_begin(s, ids, N, &err));
            assert_null(hh_sequence_logits(s));
            for (; left; passes++) assert_ok(hh_sequence_advance(s, &left, &err));
            if (chunks[c] <= 64) assert_int_equal(passes, (N + 63) / 64);
            assert_memory_equal(hh_sequence_logits(s), cold, logits_bytes(e));
            hh_sequence_free(s);
            hh_engine_close(e);
        }
        hh_free(cold);
    }
}

/* n greedy tokens behind the prompt, appended. */
static void generate(hh_engine *e, hh_sequence *s, int32_t *out, int64_t n) {
    const int64_t vocab = hh_engine_get_info(e).vocab;
    for (int64_t i = 0; i < n; i++) {
        const float *logits = hh_sequence_logits(s);
        int32_t best = 0;
        for (int32_t v = 1; v < vocab; v++)
            if (logits[v] > logits[best]) best = v;
        out[i] = best;
        assert_ok(hh_sequences_step(&s, &best, 1, NULL, &err));
    }
}

static void test_a_later_turn_reads_only_what_is_new(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        const char *name = all_models[m];
        hh_engine *e = open_engine(name, (hh_engine_options){0});
        hh_sequence *s = new_sequence(e, N), *branch = new_sequence(e, N);
        const bool hybrid = is_hybrid(name);
        fill_ids(ids, 0, 0, N);
        check_prompt(name, e, s, ids, 300, 0);
        generate(e, s, ids + 300, 10); /* an answer, and the next turn behind it */
        check_prompt(name, e, s, ids, 400, 256);
        generate(e, s, ids + 400, 5);
        check_prompt(name, e, s, ids, 400, 400);      /* regenerate: its logits were kept */
        check_prompt(name, e, branch, ids, 400, 400); /* another answer to the same, beside it */
        fill_ids(ids, 1, 350, N);
        check_prompt(name, e, branch, ids, 380, hybrid ? 256 : 320); /* a branch off token 350 */
        fill_ids(ids, 2, 300, N);
        check_prompt(name, e, s, ids, 330, 256); /* an edit of the last turn */
        fill_ids(ids, 3, 100, N);
        check_prompt(name, e, s, ids, 200, hybrid ? 0 : 64); /* an edit of an early one */
        check_prompt(name, e, s, ids, 192, hybrid ? 0 : 128);
        check_prompt(name, e, s, ids, 220, 192);
        const hh_engine_stats stats = hh_engine_get_stats(e);
        assert_true(stats.snapshots > 0 && stats.snapshot_bytes > 0 && stats.tokens_reused > 0);
        hh_sequence_free(branch);
        hh_sequence_free(s);
        hh_engine_close(e);
    }
}

static void test_without_snapshots_a_sequence_has_itself(void **state) {
    (void)state;
    fill_ids(ids, 0, 0, N);
    for (int m = 0; m < 2; m++) {
        const char *name = all_models[m];
        hh_engine *e = open_engine(name, (hh_engine_options){.cache_bytes = SIZE_MAX});
        hh_sequence *s = new_sequence(e, N);
        check_prompt(name, e, s, ids, 256, 0);
        check_prompt(name, e, s, ids, 256, 256);
        check_prompt(name, e, s, ids, 300, 256);
        int32_t more[3];
        generate(e, s, more, 3);
        check_prompt(name, e, s, ids, 310, is_hybrid(name) ? 0 : 256);
        hh_sequence_free(s);
        hh_engine_close(e);
    }
}

/* -- steps -- */

enum { MOST = 40, STEPS = 3 };

/* Logits of sequence i after STEPS steps in a batch of n. */
static void step_batch(hh_engine *e, int64_t n, float *out) {
    hh_sequence *s[MOST];
    int32_t next[MOST];
    hh_code codes[MOST];
    for (int64_t i = 0; i < n; i++) {
        fill_ids(ids, (int)i, 0, 20 + 3 * i);
        s[i] = new_sequence(e, 200);
        assert_ok(hh_sequence_prompt(s[i], ids, 20 + 3 * i, &err));
    }
    for (int64_t t = 0; t < STEPS; t++) {
        for (int64_t i = 0; i < n; i++) next[i] = token_of((int)i, 500 + t);
        assert_ok(hh_sequences_step(s, next, n, codes, &err));
        for (int64_t i = 0; i < n; i++) assert_int_equal(codes[i], HH_OK);
    }
    for (int64_t i = 0; i < n; i++) {
        memcpy((char *)out + (size_t)i * logits_bytes(e), hh_sequence_logits(s[i]), logits_bytes(e));
        assert_int_equal(hh_sequence_length(s[i]), 20 + 3 * i + STEPS);
        hh_sequence_free(s[i]);
    }
}

/* Sequence i of a batch of 1 is not sequence i of a larger one: each is stepped alone, with others first in line. */
static void step_alone(hh_engine *e, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) {
        hh_sequence *s = new_sequence(e, 200);
        fill_ids(ids, (int)i, 0, 20 + 3 * i);
        assert_ok(hh_sequence_prompt(s, ids, 20 + 3 * i, &err));
        for (int64_t t = 0; t < STEPS; t++) {
            const int32_t next = token_of((int)i, 500 + t);
            assert_ok(hh_sequences_step(&s, &next, 1, NULL, &err));
        }
        memcpy((char *)out + (size_t)i * logits_bytes(e), hh_sequence_logits(s), logits_bytes(e));
        hh_sequence_free(s);
    }
}

static void check_independence(hh_engine *e, int64_t most) {
    static const int64_t sizes[] = {2, 5, 8, MOST};
    float *alone = hh_alloc((size_t)most * logits_bytes(e)), *batch = hh_alloc((size_t)most * logits_bytes(e));
    step_alone(e, most, alone);
    for (int i = 0; i < 4 && sizes[i] <= most; i++) {
        step_batch(e, sizes[i], batch);
        assert_memory_equal(batch, alone, (size_t)sizes[i] * logits_bytes(e));
    }
    hh_free(alone);
    hh_free(batch);
}

static void test_a_step_does_not_depend_on_the_others(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++)
        for (int f32 = 0; f32 < 2; f32++) {
            hh_engine *e = open_engine(all_models[m], (hh_engine_options){.dtype = f32 ? "f32" : NULL});
            check_independence(e, m ? MOST : 8);
            hh_engine_close(e);
        }
}

static void test_a_quantised_models_step_does_not_either(void **state) {
    (void)state;
    static const char path[] = "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!have(path)) {
        print_message("models/smollm2 is not there; `make models` fetches it\n");
        skip();
    }
    hh_engine *e;
    assert_ok(hh_engine_open(&e, path, NULL, &err));
    check_independence(e, 5);
    hh_engine_close(e);
}

static void test_one_that_cannot_step_leaves_the_others_alone(void **state) {
    (void)state;
    hh_engine *e = open_engine("hybrid_default", (hh_engine_options){0}), *other;
    hh_sequence *s[6];
    fill_ids(ids, 0, 0, N);
    for (int i = 0; i < 5; i++) {
        s[i] = new_sequence(e, i == 1 ? 30 : 100);
        assert_ok(hh_sequence_prompt(s[i], ids, 30, &err));
    }
    assert_ok(hh_sequence_begin(s[3], ids, 90, &err)); /* and not advanced */
    s[5] = s[0];
    hh_code codes[6];
    const int32_t next[6] = {5, 5, 100000, 5, 5, 5};
    assert_refused(hh_sequences_step(s, next, 6, codes, &err), HH_EINVAL, "30");
    static const hh_code want[] = {HH_OK, HH_EINVAL, HH_EINVAL, HH_EINVAL, HH_OK, HH_EINVAL};
    for (int i = 0; i < 6; i++) assert_int_equal(codes[i], want[i]);
    assert_int_equal(hh_sequence_length(s[0]), 31);
    assert_int_equal(hh_sequence_length(s[1]), 30);
    assert_int_equal(hh_sequence_length(s[4]), 31);
    assert_memory_equal(hh_sequence_logits(s[0]), hh_sequence_logits(s[4]), logits_bytes(e));
    other = open_engine("nano", (hh_engine_options){0});
    hh_sequence *stranger = new_sequence(other, 10), *mixed[] = {s[0], stranger};
    assert_refused(hh_sequences_step(mixed, next, 2, codes, &err), HH_EINVAL, "another model");
    assert_int_equal(codes[0], HH_OK);
    hh_sequence_free(stranger);
    hh_engine_close(other);
    for (int i = 0; i < 5; i++) hh_sequence_free(s[i]);
    hh_engine_close(e);
}

/* -- scoring -- */

static void test_scores_are_the_logits_of_every_prefix(void **state) {
    (void)state;
    enum { TOKENS = 140, TOP = 3 };
    /* Logits of many tokens come of bf16 products where these are faster, those of a last token of what decodes. */
    const double near = hh_gemm_has_bf16() ? 2e-2 : 1e-3;
    fill_ids(ids, 0, 0, N);
    for (int m = 0; m < 2; m++) {
        hh_engine *e = open_engine(all_models[m], (hh_engine_options){.chunk = 64});
        hh_sequence *s = new_sequence(e, N), *each = new_sequence(e, N);
        float *scores, *top;
        int32_t *top_ids;
        assert_ok(hh_sequence_score(s, ids, TOKENS, TOP, &scores, &top_ids, &top, &err));
        for (int64_t n = 1; n < TOKENS; n += 23) {
            assert_ok(hh_sequence_prompt(each, ids, n, &err));
            assert_near((double)scores[n - 1], hh_sequence_log_probability(each, ids[n]), near);
            for (int t = 0; t < TOP; t++) {
                const int64_t at = (n - 1) * TOP + t;
                assert_near((double)top[at], hh_sequence_log_probability(each, top_ids[at]), near);
                if (t) assert_true(top[at] <= top[at - 1]);
            }
        }
        assert_ok(hh_sequence_prompt(each, ids, TOKENS, &err)); /* the last logits are those of the prompt */
        assert_memory_equal(hh_sequence_logits(s), hh_sequence_logits(each), logits_bytes(e));
        hh_memory_free(scores);
        hh_memory_free(top_ids);
        hh_memory_free(top);
        assert_ok(hh_sequence_score(s, ids, 1, 0, &scores, NULL, NULL, &err));
        hh_memory_free(scores);
        hh_sequence_free(s);
        hh_sequence_free(each);
        hh_engine_close(e);
    }
}

/* -- stopping -- */

static void *cancel(void *s) {
    hh_sequence_cancel(s);
    return NULL;
}

/* Another thread cancels once 128 tokens are read. */
static bool cancel_at_128(void *s, int64_t done, int64_t n) {
    pthread_t thread;
    assert_int_equal(n, 400);
    if (done != 128) return true;
    assert_int_equal(pthread_create(&thread, NULL, cancel, s), 0);
    pthread_join(thread, NULL);
    return true;
}

static bool stop_at_64(void *context, int64_t done, int64_t n) {
    (void)context, (void)n;
    return done < 64;
}

static void test_a_prompt_can_be_stopped(void **state) {
    (void)state;
    hh_engine *e = open_engine("hybrid_default", (hh_engine_options){.chunk = 64});
    hh_sequence *s = new_sequence(e, N);
    fill_ids(ids, 0, 0, N);
    hh_sequence_on_progress(s, cancel_at_128, s);
    assert_refused(hh_sequence_prompt(s, ids, 400, &err), HH_ECANCELLED, "128", "400");
    assert_int_equal(hh_sequence_length(s), 128);
    assert_null(hh_sequence_logits(s));
    hh_sequence_on_progress(s, NULL, NULL);
    check_prompt("hybrid_default", e, s, ids, 400, 128); /* goes on from there */
    fill_ids(ids, 1, 0, N);
    hh_sequence_on_progress(s, stop_at_64, NULL);
    assert_refused(hh_sequence_prompt(s, ids, 400, &err), HH_ECANCELLED, "64");
    hh_sequence_on_progress(s, NULL, NULL);
    check_prompt("hybrid_default", e, s, ids, 100, 64);
    hh_sequence_cancel(s); /* a step is told, once */
    const int32_t next = 1;
    assert_refused(hh_sequences_step(&s, &next, 1, NULL, &err), HH_ECANCELLED, "100");
    assert_ok(hh_sequences_step(&s, &next, 1, NULL, &err));
    hh_sequence_cancel(s); /* of what is over, a new prompt knows nothing */
    assert_ok(hh_sequence_prompt(s, ids, 20, &err));
    hh_sequence_free(s);
    hh_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_chunks_give_the_same_bits),
        cmocka_unit_test(test_a_later_turn_reads_only_what_is_new),
        cmocka_unit_test(test_without_snapshots_a_sequence_has_itself),
        cmocka_unit_test(test_a_step_does_not_depend_on_the_others),
        cmocka_unit_test(test_a_quantised_models_step_does_not_either),
        cmocka_unit_test(test_one_that_cannot_step_leaves_the_others_alone),
        cmocka_unit_test(test_scores_are_the_logits_of_every_prefix),
        cmocka_unit_test(test_a_prompt_can_be_stopped),
    };
    return cmocka_run_group_tests_name("sequences", tests, NULL, NULL);
}
