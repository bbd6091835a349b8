/* Everything above the op table on a backend whose memory the CPU cannot read: the same bits as on the CPU, and no
 * access from outside (which would end this program). */
#include "support/mock.h"
#include "support/whole.h"

#include "base/progress.h"
#include "convert/migrate.h"

#include "eval/loglik.h"
#include "ops/twice.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static hh_backend *cpu, *far;

static void expect_same(const char *what, numbers a, numbers b) {
    if (a.n != b.n || memcmp(a.x, b.x, (size_t)a.n * sizeof *a.x))
        fail_msg("%s differs: %g", what, numbers_error(a, b));
    hh_free(a.x);
    hh_free(b.x);
}

static void logits_and_sessions(void **unused) {
    (void)unused;
    static const char *const names[] = {"qwen3_gqa2",      "qwen2_gqa1_tied",
                                        "hybrid_default",  "hybrid_gate_everything",
                                        "hybrid_none_all", "hybrid_qwen2_bias"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        expect_same(names[i], whole_logits(far, names[i], HH_LOAD_STORED), whole_logits(cpu, names[i], HH_LOAD_STORED));
        expect_same(names[i], whole_session(far, names[i], HH_DTYPE_REAL), whole_session(cpu, names[i], HH_DTYPE_REAL));
    }
    expect_same("bf16 cache", whole_session(far, "hybrid_default", HH_DTYPE_BF16),
                whole_session(cpu, "hybrid_default", HH_DTYPE_BF16));
    expect_same("several sequences", whole_answers(far, "hybrid_default"), whole_answers(cpu, "hybrid_default"));
    assert_true(mock_recordings(far) > 10);
}

static void gradients(void **unused) {
    (void)unused;
    static const char *const names[] = {"gradient_teacher", "gradient_default", "gradient_gate_everything",
                                        "gradient_plain"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double a, b;
        expect_same(names[i], whole_gradients(far, names[i], &a), whole_gradients(cpu, names[i], &b));
        assert_true(a == b);
    }
}

static void training_and_resuming(void **unused) {
    (void)unused;
    static const hh_stage *const stages[] = {&hh_stage_pretrain, &hh_stage_align, &hh_stage_distill};
    for (int i = 0; i < 3; i++) {
        const int64_t before = mock_recordings(far);
        whole_recorded_tokens = 1000;
        numbers here = whole_training(cpu, stages[i], 5, 0, NULL);
        numbers again = whole_training(far, stages[i], 5, 3, temp_path("far.bin"));
        numbers there = whole_training(far, stages[i], 5, 0, NULL);
        assert_memory_equal(again.x, there.x, (size_t)there.n * sizeof *there.x);
        hh_free(again.x);
        expect_same(stages[i]->name, there, here);
        assert_true(mock_recordings(far) > before + 10);
        whole_recorded_tokens = 0;
    }
}

static void probing(void **unused) {
    (void)unused;
    expect_same("value pairs", whole_probe(far, true), whole_probe(cpu, true));
    expect_same("key pairs", whole_probe(far, false), whole_probe(cpu, false));
}

/* Weights of a model opened anew, from a checkpoint that it wrote itself. */
static numbers saved_weights(hh_backend *be, const char *name, const char *dir, hh_dtype dtype) {
    hh_model *m = zoo_open(be, name, HH_LOAD_STORED), *back;
    assert_ok(hh_model_save(m, dir, dtype, NULL, &err));
    hh_model_close(m);
    assert_ok(hh_model_open(&back, be, dir, HH_LOAD_STORED, &err));
    numbers out = {0};
    for (int64_t i = 0; i < back->n_params; i++) {
        hh_tensor t = *back->param[i].slot;
        numbers one = numbers_new(hh_tensor_count(t));
        hh_tensor_to_host(be, one.x, t);
        numbers_add(&out, one.x, one.n);
        hh_free(one.x);
    }
    for (int64_t l = 0; l < back->config.n_layers && !be->host_memory; l++) { /* contiguous where biases allow it */
        int parts = 0;
        for (int p = 0; p < HH_INPUT_PARTS; p++) parts += back->w.layer[l].input[p].w.data != NULL;
        assert_true(back->w.layer[l].in.n_parts < parts);
    }
    hh_model_close(back);
    return out;
}

static void saving_and_loading(void **unused) {
    (void)unused;
    static const char *const names[] = {"qwen3_d128_bias", "hybrid_gate_everything", "hybrid_norm"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int b = 0; b < 2; b++) {
            hh_dtype dtype = b ? HH_DTYPE_BF16 : HH_DTYPE_F32;
            expect_same(names[i], saved_weights(far, names[i], temp_path("far-saved"), dtype),
                        saved_weights(cpu, names[i], temp_path("near-saved"), dtype));
        }
}

static numbers gamma_of(hh_backend *be) {
    int64_t n;
    hh_model *m = zoo_open(be, "qwen3_gqa2", HH_LOAD_STORED);
    int32_t *ids = zoo_ids(zoo_case("qwen3_gqa2"), &n);
    numbers out = numbers_new(m->config.n_layers * m->config.n_heads);
    double *gamma = hh_alloc((size_t)out.n * sizeof *gamma);
    assert_ok(hh_calibrate_gamma(m, ids, n, 16, gamma, &err));
    for (int64_t i = 0; i < out.n; i++) out.x[i] = (hh_real)gamma[i];
    hh_free(gamma);
    hh_free(ids);
    hh_model_close(m);
    return out;
}

static void calibration(void **unused) {
    (void)unused;
    expect_same("gamma", gamma_of(far), gamma_of(cpu));
}

static numbers scores_of(hh_backend *be) {
    int64_t n;
    hh_loglik *l;
    hh_model *m = zoo_open(be, "hybrid_default", HH_LOAD_STORED);
    int32_t *ids = zoo_ids(zoo_case("hybrid_default"), &n), other[40];
    for (int i = 0; i < 40; i++) other[i] = i < 30 ? ids[i] : (ids[i] + 1) % 97;
    hh_scored s[] = {{.ids = ids, .n = n, .first = 1},
                     {.ids = ids, .n = 40, .first = 30, .group = 1},
                     {.ids = other, .n = 40, .first = 30, .group = 1}};
    assert_ok(hh_loglik_new(&l, m, n, 2, 128, be->activation, &err));
    assert_ok(hh_loglik_score(l, s, 3, &err));
    numbers out = numbers_new(3);
    for (int i = 0; i < 3; i++) out.x[i] = (hh_real)s[i].loglik;
    hh_loglik_free(l);
    hh_free(ids);
    hh_model_close(m);
    return out;
}

static void evaluation(void **unused) {
    (void)unused;
    expect_same("log-likelihoods", scores_of(far), scores_of(cpu));
}

static void wrong_swiglu(hh_backend *be, hh_tensor y, hh_tensor gate, hh_tensor up) {
    hh_swiglu_fwd_reference(be, y, gate, up);
    ((hh_real *)y.data)[3] += 1;
}

/* With every operation computed twice a whole model passes, and one that is wrong is named with its place. */
static void an_operation_that_is_wrong_is_named(void **unused) {
    (void)unused;
    hh_backend *be;
    assert_ok(mock_open(&be, 2, HH_PRECISION_F32, NULL, &err));
    assert_ok(hh_check_twice(be, &err));
    double nll;
    expect_same("logits", whole_logits(be, "hybrid_gate_everything", HH_LOAD_STORED),
                whole_logits(cpu, "hybrid_gate_everything", HH_LOAD_STORED));
    expect_same("decoding", whole_session(be, "hybrid_default", HH_DTYPE_BF16),
                whole_session(cpu, "hybrid_default", HH_DTYPE_BF16));
    expect_same("gradients", whole_gradients(be, "gradient_gate_everything", &nll),
                whole_gradients(cpu, "gradient_gate_everything", &nll));
    hh_backend_close(be);

    assert_ok(hh_cpu_open(&be, 1, HH_PRECISION_F32, NULL, &err));
    hh_ops wrong = *be->ops;
    wrong.swiglu_fwd = wrong_swiglu;
    be->ops = &wrong;
    assert_ok(hh_check_twice(be, &err));
    hh_model *m = zoo_open(be, "qwen3_gqa2", HH_LOAD_STORED);
    const int32_t ids[] = {1, 2, 3};
    hh_session *s;
    assert_ok(hh_session_new(&s, m, &(hh_session_options){.context = 8, .kv_dtype = HH_DTYPE_REAL}, &err));
    assert_refused(hh_session_eval(s, ids, 3, &err), HH_EUNSUPPORTED, "swiglu_fwd", "layer 0", "'y'",
                   "number 3 of row 0");
    hh_session_free(s);
    hh_model_close(m);
    hh_backend_close(be);
    err = (hh_error){0};
}

/* Reading what is out of reach does end a program: the other tests would have noticed. */
static void read_from_outside(void) {
    hh_arena a;
    if (far->arena_init(far, &a, "test", 100, &err) != HH_OK) return;
    signal(SIGSEGV, SIG_DFL);
    volatile char x = *(volatile char *)a.base;
    (void)x;
}

static void a_forgotten_access_is_noticed(void **unused) {
    (void)unused;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        read_from_outside();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

static int open_both(void **unused) {
    (void)unused;
    return hh_cpu_open(&cpu, 2, HH_PRECISION_F32, NULL, &err) == HH_OK &&
                   mock_open(&far, 2, HH_PRECISION_F32, NULL, &err) == HH_OK
               ? 0
               : -1;
}

static int close_both(void **unused) {
    (void)unused;
    hh_backend_close(cpu);
    hh_backend_close(far);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_forgotten_access_is_noticed),
        cmocka_unit_test(logits_and_sessions),
        cmocka_unit_test(gradients),
        cmocka_unit_test(training_and_resuming),
        cmocka_unit_test(probing),
        cmocka_unit_test(saving_and_loading),
        cmocka_unit_test(calibration),
        cmocka_unit_test(evaluation),
        cmocka_unit_test(an_operation_that_is_wrong_is_named),
    };
    hh_progress_silence(true);
    return cmocka_run_group_tests_name("memory out of reach", tests, open_both, close_both);
}
