/* Whole models on the GPU against the CPU: logits, decoding, gradients, training, probing; float32 to rounding, bf16 to
 * what bf16 leaves. */
#include "support/whole.h"

#include "base/progress.h"
#include "cuda/card.h"
#include "model/run.h"
#include "ops/twice.h"

#include <stdio.h>

static hh_backend *cpu, *gpu;

static const char *const models[] = {
    "qwen3_gqa2",          "qwen3_gqa8",     "qwen3_gqa3_d64",         "qwen3_d128_bias",
    "llama_gqa3_d64_tied", "hybrid_default", "hybrid_gate_everything", "hybrid_none_all",
    "hybrid_norm",         "hybrid_plain",   "hybrid_llama",           "hybrid_qwen2_bias"};
enum { N_MODELS = sizeof models / sizeof *models };

/* Quick: two kinds of hybrids and a model without, mostly without a second run for its bits. */
static bool is_taken(int i) {
    return !quick() || i == 3 || i == 6 || i == 11;
}

static bool exact(void) {
    return gpu->activation == HH_DTYPE_F32;
}

/* What bf16 may leave: four times what it leaves of the CPU when that rounds like a GPU. Takes both. */
static double allowed_by(const char *what, const char *name, numbers rounds, numbers exactly) {
    const double noise = numbers_error(rounds, exactly);
    print_message("%-14s %-24s rounded on the CPU: %.2g\n", what, name, noise);
    hh_free(rounds.x);
    hh_free(exactly.x);
    return 4 * noise + 0.01;
}

/* Takes both. */
static void expect_close(const char *what, const char *name, numbers a, numbers b, double f32, double bf16) {
    double e = numbers_error(a, b), allowed = exact() ? f32 : bf16;
    print_message("%-14s %-24s %s: %.2g\n", what, name, exact() ? "f32 " : "bf16", e);
    hh_free(a.x);
    hh_free(b.x);
    if (!(e <= allowed)) fail_msg("%s of %s: %.3g away, %.3g allowed", what, name, e, allowed);
}

static void expect_equal(const char *what, const char *name, numbers a, numbers b) {
    if (a.n != b.n || memcmp(a.x, b.x, (size_t)a.n * sizeof *a.x))
        fail_msg("%s of %s is %.3g away from the first time", what, name, numbers_error(a, b));
    hh_free(a.x);
    hh_free(b.x);
}

static void logits(void **unused) {
    (void)unused;
    if (!gpu) skip();
    for (int i = 0; i < N_MODELS; i++) {
        if (!is_taken(i)) continue;
        expect_close("logits", models[i], whole_logits(gpu, models[i], HH_LOAD_STORED),
                     whole_logits(cpu, models[i], HH_LOAD_STORED), 1e-4, 3e-2);
        if (quick()) continue;
        expect_equal("logits", models[i], whole_logits(gpu, models[i], HH_LOAD_STORED),
                     whole_logits(gpu, models[i], HH_LOAD_STORED));
    }
}

static void recording(bool on) {
    static hh_backend_record_begin_fn *begin;
    static hh_backend_record_end_fn *end;
    if (!on) begin = gpu->record_begin, end = gpu->record_end;
    gpu->record_begin = on ? begin : NULL;
    gpu->record_end = on ? end : NULL;
}

/* Prefill in chunks and decoding; the second time nearly every step is a replay, of recordings that did not exist the
 * first time. */
static void sessions(void **unused) {
    (void)unused;
    if (!gpu) skip();
    for (int i = 1; i < N_MODELS; i += 2) {
        if (!is_taken(i)) continue;
        expect_close("decoding", models[i], whole_session(gpu, models[i], gpu->activation),
                     whole_session(cpu, models[i], HH_DTYPE_REAL), 1e-4, 3e-2);
        if (quick()) continue;
        recording(false);
        numbers plain = whole_session(gpu, models[i], gpu->activation);
        recording(true);
        expect_equal("decoding without recordings", models[i], whole_session(gpu, models[i], gpu->activation), plain);
    }
}

/* In float32 the same tokens as on the CPU; in bf16 the same ones every time. */
static void several_sequences(void **unused) {
    (void)unused;
    if (!gpu) skip();
    for (int i = 0; i < N_MODELS; i += 3)
        if (is_taken(i))
            expect_equal("tokens", models[i], whole_answers(gpu, models[i]),
                         whole_answers(exact() ? cpu : gpu, models[i]));
}

/* Parameters whose gradients are further apart, each by its own size, than the whole. */
static void print_parameters(const char *name, numbers here, numbers there) {
    hh_model *m = zoo_open(cpu, name, HH_LOAD_REAL);
    const double whole = numbers_error(here, there);
    for (int64_t i = 0; i < m->n_params; i++) {
        const hh_tensor t = *m->param[i].slot;
        const int64_t at = (const hh_real *)t.data - (const hh_real *)m->flat.data, n = hh_tensor_count(t);
        const double e = numbers_error((numbers){here.x + at, n}, (numbers){there.x + at, n});
        if (e > whole) print_message("    %-52s %.2g\n", m->param[i].name, e);
    }
    hh_model_close(m);
}

static void gradients(void **unused) {
    (void)unused;
    if (!gpu) skip();
    for (int i = 2; i < N_MODELS; i++) {
        if (!is_taken(i)) continue;
        double a, b;
        numbers here = whole_gradients(gpu, models[i], &a), there = whole_gradients(cpu, models[i], &b);
        print_message("loss           %-24s %.6f, %.6f on the CPU\n", models[i], a, b);
        rounded_begin(cpu);
        numbers rounds = whole_gradients(cpu, models[i], &b);
        rounded_end(cpu);
        const double allowed = allowed_by("gradients", models[i], rounds, numbers_copy(there));
        if (!exact() && numbers_error(here, there) > allowed / 2) print_parameters(models[i], here, there);
        expect_close("gradients", models[i], here, there, 1e-4, allowed);
        if (quick()) continue;
        expect_equal("gradients", models[i], whole_gradients(gpu, models[i], &a), whole_gradients(gpu, models[i], &b));
        assert_true(a == b);
    }
}

/* Losses of the first steps stay beside the CPU's; a run that was cut and continued is the same bits, and so is one whose
 * micro-batches are launched op by op. */
static void training(void **unused) {
    (void)unused;
    if (!gpu || (quick() && exact())) skip();
    static const hh_stage *const stages[] = {&hh_stage_pretrain, &hh_stage_align, &hh_stage_distill};
    const int64_t n_steps = quick() ? 3 : 8; /* three: the last is a replay */
    tiny_head_dim = 32;
    for (int i = quick() ? 2 : 0; i < 3; i++) { /* quick: distillation */
        numbers there = whole_training(cpu, stages[i], n_steps, 0, NULL);
        whole_recorded_tokens = 1000;
        numbers here = whole_training(gpu, stages[i], n_steps, 0, NULL);
        numbers again = whole_training(gpu, stages[i], n_steps, quick() ? 1 : 3, temp_path("gpu.bin"));
        for (int s = 0; s < n_steps; s++)
            print_message("%s step %d: loss %.6f, %.6f on the CPU\n", stages[i]->name, s, (double)here.x[s],
                          (double)there.x[s]);
        expect_equal("training", stages[i]->name, again, numbers_copy(here));
        if (!quick()) {
            recording(false);
            numbers plain = whole_training(gpu, stages[i], n_steps, 0, NULL);
            recording(true);
            expect_equal("training without recordings", stages[i]->name, plain, numbers_copy(here));
        }
        whole_recorded_tokens = 0;
        here.n = there.n = n_steps;
        expect_close("losses", stages[i]->name, here, there, 1e-4, 3e-2);
    }
    tiny_head_dim = 8;
}

static void probing(void **unused) {
    (void)unused;
    if (!gpu) skip();
    random_head_dim = 32;
    for (int value = quick(); value < 2; value++) {
        const char *name = value ? "value pairs" : "key pairs";
        numbers there = whole_probe(cpu, value);
        rounded_begin(cpu);
        numbers rounds = whole_probe(cpu, value);
        rounded_end(cpu);
        const double allowed = allowed_by("probe", name, rounds, numbers_copy(there));
        expect_close("probe", name, whole_probe(gpu, value), there, 1e-3, allowed);
    }
    random_head_dim = 8;
}

/* -- HYDRAHEAD_CHECK -- */

/* Opens what HYDRAHEAD_CHECK=cpu opens: the GPU with every operation computed twice. */
static hh_backend *open_twice(const hh_ops *other) {
    hh_backend *be;
    assert_ok(hh_cuda_open(&be, 0, gpu->precision, &err));
    if (other) be->ops = other;
    assert_ok(hh_check_twice(be, &err));
    return be;
}

/* Nothing of a whole model is further from the CPU than rounding: no operation is named. (Quick: the other tests have the
 * same operations.) */
static void operations_one_by_one(void **unused) {
    (void)unused;
    if (!gpu || quick()) skip();
    double loss;
    hh_backend *be = open_twice(NULL);
    static const char *const some[] = {"qwen3_d128_bias", "hybrid_gate_everything", "hybrid_qwen2_bias"};
    for (int i = 0; i < 3; i++) {
        print_message("twice: %s\n", some[i]);
        hh_free(whole_logits(be, some[i], HH_LOAD_STORED).x);
        hh_free(whole_session(be, some[i], be->activation).x);
        hh_free(whole_gradients(be, some[i], &loss).x);
    }
    tiny_head_dim = random_head_dim = 32;
    static const hh_stage *const stages[] = {&hh_stage_pretrain, &hh_stage_align, &hh_stage_distill};
    for (int i = 0; i < 3; i++) {
        print_message("twice: %s\n", stages[i]->name);
        hh_free(whole_training(be, stages[i], 2, 0, NULL).x);
    }
    print_message("twice: probing\n");
    hh_free(whole_probe(be, true).x);
    tiny_head_dim = random_head_dim = 8;
    assert_ok(be->sync(be, &err));
    hh_backend_close(be);
}

static const hh_ops *right_ops;

static void wrong_swiglu(hh_backend *be, hh_tensor y, hh_tensor gate, hh_tensor up) {
    right_ops->swiglu_fwd(be, y, gate, up);
    right_ops->fill(be, hh_tensor_rows(y, 1, 2), 77);
}

static void a_wrong_operation_is_named(void **unused) {
    (void)unused;
    if (!gpu) skip();
    right_ops = gpu->ops;
    hh_ops wrong = *gpu->ops;
    wrong.swiglu_fwd = wrong_swiglu;
    hh_backend *be = open_twice(&wrong);
    hh_model *m = zoo_open(be, "qwen3_gqa8", HH_LOAD_STORED);
    const int32_t ids[] = {1, 2, 3};
    hh_session *s;
    assert_ok(hh_session_new(&s, m, &(hh_session_options){.context = 8, .kv_dtype = be->activation}, &err));
    assert_refused(hh_session_eval(s, ids, 3, &err), HH_EUNSUPPORTED, "swiglu_fwd", "layer 0", "'y'", "of row 1");
    hh_session_free(s);
    hh_model_close(m);
    hh_backend_close(be);
    err = (hh_error){0};
}

/* As with HYDRAHEAD_CHECK=nan: a weight that is none is found where it first shows, forward and in a step of training. */
static void a_nonfinite_value_is_found(void **unused) {
    (void)unused;
    if (!gpu) skip();
    const float none = NAN;
    const int32_t ids[] = {1, 2, 3, 4};
    const hh_span span = {0, 4, 0};
    const hh_batch b = {.n_tokens = 4, .n_spans = 1, .ids = ids, .span = &span};
    for (int mode = HH_RUN_INFERENCE; mode <= HH_RUN_TRAINING; mode++) {
        hh_model *m = zoo_open(gpu, "hybrid_default", HH_LOAD_REAL);
        hh_run *r;
        hh_tensor final;
        assert_ok(hh_run_new(&r, m, 4, 1, (hh_run_mode)mode, &err));
        r->check_nan = true;
        assert_ok(hh_forward(r, &b, &final, &err));
        gpu->to_device(gpu, m->w.layer[1].norm2.data, &none, sizeof none);
        assert_refused(hh_forward(r, &b, &final, &err), HH_ENONFINITE, "MLP", "layer 1", "token 0");
        err = (hh_error){0};
        hh_run_free(r);
        hh_model_close(m);
    }
}

/* The shipped model, in its stored type. */
static void nano(void **unused) {
    (void)unused;
    if (!gpu) skip();
    hh_model *m;
    numbers out[2];
    int32_t ids[200];
    const int64_t n = quick() ? 40 : 200;
    for (int i = 0; i < n; i++) ids[i] = (i * 37 + 11) % 1000;
    for (int i = 0; i < 2; i++) {
        assert_ok(hh_model_open(&m, i ? cpu : gpu, "models/nano", HH_LOAD_STORED, &err));
        out[i] = (numbers){zoo_logits(m, ids, n), n * m->config.vocab};
        hh_model_close(m);
    }
    expect_close("logits", "nano", out[0], out[1], 1e-4, 3e-2);
}

static int open_both(hh_precision precision) {
    if (hh_cpu_open(&cpu, quick() ? 1 : 0, HH_PRECISION_F32, NULL, &err) != HH_OK) return -1;
    if (hh_cuda_open(&gpu, 0, precision, &err) != HH_OK) fprintf(stderr, "skipped: %s\n", err.text);
    return 0;
}

static int open_f32(void **unused) {
    (void)unused;
    return open_both(HH_PRECISION_F32);
}

static int open_bf16(void **unused) {
    (void)unused;
    return open_both(HH_PRECISION_AUTO);
}

static int close_both(void **unused) {
    (void)unused;
    hh_backend_close(gpu);
    hh_backend_close(cpu);
    gpu = NULL;
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nano),
        cmocka_unit_test(logits),
        cmocka_unit_test(sessions),
        cmocka_unit_test(several_sequences),
        cmocka_unit_test(gradients),
        cmocka_unit_test(training),
        cmocka_unit_test(probing),
        cmocka_unit_test(operations_one_by_one),
        cmocka_unit_test(a_wrong_operation_is_named),
        cmocka_unit_test(a_nonfinite_value_is_found),
    };
    setvbuf(stdout, NULL, _IOLBF, 0); /* what came out before a crash is worth knowing */
    hh_progress_silence(true);
    return cmocka_run_group_tests_name("cuda models, f32", tests, open_f32, close_both) +
           cmocka_run_group_tests_name("cuda models, bf16", tests, open_bf16, close_both);
}
