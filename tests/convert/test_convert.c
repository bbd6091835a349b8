/* Migration: what is copied, what is new and how it starts, calibration, the checkpoint it becomes, refusals. */
#include "base/progress.h"
#include "convert/migrate.h"
#include "model/forward.h"
#include "support/gradcheck.h"
#include "support/small.h"
#include "support/support.h"

#include <math.h>
#include <string.h>

enum { L = 3, H = 6, G = 3, D = 8, C = 32, V = 50, T = 40 };

static hh_error err;
static hh_backend *be;

static hh_model *make_teacher(hh_family family) {
    const hh_config c = small_config(family, (small_shape){L, H, G, D, C, V});
    hh_model *m;
    assert_ok(hh_model_create(&m, be, &c, &err));
    fill_normal(m->flat, 3, 0.15);
    return m;
}

/* Layer 0: heads 1 and 4; layer 1: none; layer 2: all. */
static hh_plan make_plan(void) {
    hh_plan p;
    hh_plan_init(&p, L, H);
    p.rule[1] = p.rule[4] = HH_KEEP_GIVEN;
    memset(p.rule + 2 * H, HH_KEEP_GIVEN, H);
    return p;
}

static hh_model *migrate(const hh_model *teacher, hh_hybrid_options o, const double *gamma) {
    hh_plan p = make_plan();
    hh_model *m;
    assert_ok(hh_migrate(&m, teacher, &p, &o, gamma, &err));
    hh_plan_release(&p);
    return m;
}

static const hh_real *numbers(const hh_model *m, const char *name) {
    const hh_param *p = hh_param_find(m->param, m->n_params, name);
    if (!p) fail_msg("there is no %s", name);
    return p->slot->data;
}

static void expect_rows(const hh_model *hybrid, const char *to, int64_t at, const hh_model *teacher, const char *from,
                        int64_t source, int64_t row) {
    if (memcmp(numbers(hybrid, to) + at * D * row, numbers(teacher, from) + source * D * row,
               (size_t)(D * row) * sizeof(hh_real)))
        fail_msg("block %d of %s is not block %d of %s", (int)at, to, (int)source, from);
}

#define LAYER(l) "model.layers." #l "."
#define MIXER(l) LAYER(l) "self_attn."

static void test_projections_are_the_teachers(void **state) {
    (void)state;
    hh_model *teacher = make_teacher(HH_QWEN3), *m = migrate(teacher, hh_hybrid_defaults(), NULL);
    static const int64_t linear[] = {0, 2, 3, 5};
    expect_rows(m, MIXER(0) "fa.q_proj.weight", 0, teacher, MIXER(0) "q_proj.weight", 1, C);
    expect_rows(m, MIXER(0) "fa.q_proj.weight", 1, teacher, MIXER(0) "q_proj.weight", 4, C);
    expect_rows(m, MIXER(0) "fa.k_proj.weight", 0, teacher, MIXER(0) "k_proj.weight", 0, C);
    expect_rows(m, MIXER(0) "fa.v_proj.weight", 1, teacher, MIXER(0) "v_proj.weight", 2, C);
    for (int i = 0; i < 4; i++) { /* key and value once for each query head */
        expect_rows(m, MIXER(0) "gdn.q_proj.weight", i, teacher, MIXER(0) "q_proj.weight", linear[i], C);
        expect_rows(m, MIXER(0) "gdn.k_proj.weight", i, teacher, MIXER(0) "k_proj.weight", linear[i] / 2, C);
        expect_rows(m, MIXER(0) "gdn.v_proj.weight", i, teacher, MIXER(0) "v_proj.weight", linear[i] / 2, C);
    }
    expect_rows(m, MIXER(1) "gdn.k_norm.weight", 0, teacher, MIXER(1) "k_norm.weight", 0, 1);
    expect_rows(m, MIXER(2) "fa.q_norm.weight", 0, teacher, MIXER(2) "q_norm.weight", 0, 1);
    expect_rows(m, LAYER(1) "mlp.down_proj.weight", 0, teacher, LAYER(1) "mlp.down_proj.weight", 0, 40);
    assert_null(hh_param_find(m->param, m->n_params, MIXER(1) "fa.q_proj.weight"));
    assert_null(hh_param_find(m->param, m->n_params, MIXER(2) "gdn.q_proj.weight"));
    hh_model_close(m);
    hh_model_close(teacher);
}

static void test_biases_are_the_teachers(void **state) {
    (void)state;
    hh_model *teacher = make_teacher(HH_QWEN2), *m = migrate(teacher, hh_hybrid_defaults(), NULL);
    expect_rows(m, MIXER(0) "fa.q_proj.bias", 1, teacher, MIXER(0) "q_proj.bias", 4, 1);
    expect_rows(m, MIXER(0) "gdn.v_proj.bias", 3, teacher, MIXER(0) "v_proj.bias", 2, 1);
    hh_model_close(m);
    hh_model_close(teacher);
}

static void test_new_parts_start_as_promised(void **state) {
    (void)state;
    hh_model *teacher = make_teacher(HH_QWEN3);
    hh_hybrid_options o = hh_hybrid_defaults();
    o.gate_bias = 3;
    o.gdn_gate = o.gdn_conv = true;
    hh_model *m = migrate(teacher, o, NULL);
    for (int i = 0; i < 2 * D; i++) {
        assert_true(numbers(m, MIXER(0) "fa.gate_proj.bias")[i] == 3 &&
                    numbers(m, MIXER(0) "gdn.gate_proj.bias")[i] == 3);
        for (int c = 0; c < C; c++) assert_true(numbers(m, MIXER(0) "fa.gate_proj.weight")[i * C + c] == 0);
        for (int c = 0; c < 4; c++) assert_true(numbers(m, MIXER(0) "gdn.k_conv.weight")[i * 4 + c] == (c == 3));
    }
    for (int i = 0; i < H; i++) {
        double A = exp((double)numbers(m, MIXER(1) "gdn.A_log")[i]),
               dt = log1p(exp((double)numbers(m, MIXER(1) "gdn.dt_bias")[i]));
        assert_true(A >= 0.999 && A <= 16.001 && dt > 0.99e-3 && dt < 0.101);
    }
    double square = 0;
    for (int i = 0; i < H * C; i++) square += pow((double)numbers(m, MIXER(1) "gdn.a_proj.weight")[i], 2) / (H * C);
    assert_true(fabs(sqrt(square) - 0.02) < 0.006);
    hh_model *same = migrate(teacher, o, NULL);
    assert_memory_equal(same->flat.data, m->flat.data, hh_tensor_bytes(m->flat));
    o.seed = 1;
    hh_model *other = migrate(teacher, o, NULL);
    assert_memory_not_equal(other->flat.data, m->flat.data, hh_tensor_bytes(m->flat));
    hh_model_close(same);
    hh_model_close(other);
    hh_model_close(m);
    hh_model_close(teacher);
}

static void make_ids(int32_t ids[T]) {
    for (int i = 0; i < T; i++) ids[i] = (i * i * 7 + i) % V;
}

static void run_model(const hh_model *m, hh_tensor out) {
    int32_t ids[T];
    make_ids(ids);
    hh_run *r;
    hh_span span = {0, T, 0};
    hh_batch b = {.n_tokens = T, .n_spans = 1, .ids = ids, .span = &span};
    hh_tensor final;
    assert_ok(hh_run_new(&r, m, T, 1, HH_RUN_INFERENCE, &err));
    assert_ok(hh_forward(r, &b, &final, &err));
    hh_logits(r, final, NULL, T, out);
    hh_run_free(r);
}

static void expect_same_function(const hh_model *a, const hh_model *b, double tolerance, const char *what) {
    hh_tensor x = guarded_2d(HH_DTYPE_REAL, T, V, 0), y = guarded_2d(HH_DTYPE_REAL, T, V, 0);
    run_model(a, x);
    run_model(b, y);
    check_close(x, y, tolerance, what);
    guarded_release();
}

/* In memory heads stand in another order; on disk they are back, and the file gives the same model. */
static void test_the_checkpoint_is_the_model(void **state) {
    (void)state;
    hh_model *teacher = make_teacher(HH_QWEN3), *m, *again;
    double gamma[L * H];
    for (int i = 0; i < L * H; i++) gamma[i] = 0.5 + 0.01 * i;
    m = migrate(teacher, hh_hybrid_defaults(), gamma);
    char *dir = hh_strdup(temp_path("hybrid"));
    assert_ok(hh_model_save(m, dir, HH_DTYPE_F32, NULL, &err));
    assert_ok(hh_model_open(&again, be, dir, HH_LOAD_STORED, &err));
    expect_same_function(m, again, 1e-7, "the saved hybrid");
    hh_store *store;
    assert_ok(hh_store_open(&store, dir, &err));
    hh_tensor o = hh_store_find(store, MIXER(0) "o_proj.weight")->t,
              scale = hh_store_find(store, MIXER(0) "head_scale")->t;
    const hh_real *wanted = numbers(teacher, MIXER(0) "o_proj.weight");
    for (int i = 0; i < C * H * D; i++) assert_true((hh_real)((const float *)o.data)[i] == wanted[i]);
    for (int h = 0; h < H; h++) assert_true(fabs((double)((const float *)scale.data)[h] - gamma[h]) < 1e-6);
    hh_store_close(store);
    hh_model_close(again);
    hh_model_close(m);
    hh_model_close(teacher);
    hh_free(dir);
}

static void test_optional_parts_change_nothing_at_their_start(void **state) {
    (void)state;
    hh_model *teacher = make_teacher(HH_QWEN3);
    hh_hybrid_options o = hh_hybrid_defaults();
    o.fusion = HH_FUSION_NORM;
    hh_model *plain = migrate(teacher, o, NULL);
    o.fusion = HH_FUSION_SCALE; /* gamma 1 */
    hh_model *scale = migrate(teacher, o, NULL);
    o.fusion = HH_FUSION_GATE;
    o.gdn_conv = true;
    hh_model *full = migrate(teacher, o, NULL);
    expect_same_function(scale, plain, 1e-6, "scales of 1");
    expect_same_function(full, plain, 1e-6, "equal head gates and identity convolutions");
    hh_model_close(plain);
    hh_model_close(scale);
    hh_model_close(full);
    hh_model_close(teacher);
}

static void test_all_heads_without_fusion_stay_the_teacher(void **state) {
    (void)state;
    hh_model *teacher = make_teacher(HH_QWEN3), *m, *again;
    hh_hybrid_options o = hh_hybrid_defaults();
    o.fusion = HH_FUSION_NONE;
    hh_plan p;
    hh_plan_init(&p, L, H);
    memset(p.rule, HH_KEEP_GIVEN, L * H);
    assert_ok(hh_migrate(&m, teacher, &p, &o, NULL, &err));
    expect_same_function(m, teacher, 0, "a plan of all heads");
    char *dir = hh_strdup(temp_path("dense"));
    assert_ok(hh_model_save(m, dir, HH_DTYPE_F32, NULL, &err));
    assert_ok(hh_model_open(&again, be, dir, HH_LOAD_STORED, &err));
    expect_same_function(again, teacher, 1e-6, "its checkpoint");
    hh_plan_release(&p);
    hh_model_close(again);
    hh_model_close(m);
    hh_model_close(teacher);
    hh_free(dir);
}

typedef struct squares {
    double sum[L * H];
} squares;

static void add_squares(void *context, hh_point point, int64_t layer, hh_tensor t) {
    squares *s = context;
    for (int64_t i = 0; point == HH_POINT_HEAD_OUTPUT && i < T * H * D; i++)
        s->sum[layer * H + i / D % H] += pow((double)*tensor_at(t, i), 2) / (T * D);
}

static void test_gamma_is_the_root_mean_square_of_the_teachers_heads(void **state) {
    (void)state;
    hh_model *teacher = make_teacher(HH_QWEN3);
    int32_t ids[T];
    make_ids(ids);
    squares s = {0};
    hh_run *r;
    hh_span span[2] = {{0, 30, 0}, {30, T, 0}}; /* sequences of 30 tokens, the last one shorter */
    hh_batch b = {.n_tokens = T, .n_spans = 2, .ids = ids, .span = span};
    hh_tensor final;
    assert_ok(hh_run_new(&r, teacher, T, 2, HH_RUN_INFERENCE, &err));
    hh_run_set_tap(r, (hh_tap){add_squares, &s});
    assert_ok(hh_forward(r, &b, &final, &err));
    hh_run_free(r);
    double gamma[L * H];
    assert_ok(hh_calibrate_gamma(teacher, ids, T, 30, gamma, &err));
    for (int i = 0; i < L * H; i++) assert_true(fabs(gamma[i] - sqrt(s.sum[i])) < 1e-6 * gamma[i]);
    assert_refused(hh_calibrate_gamma(teacher, ids, 0, 30, gamma, &err), HH_EINVAL, "calibration text is empty");
    hh_model_close(teacher);
}

static void refuse(const hh_model *teacher, hh_hybrid_options o, hh_code code, const char *word) {
    hh_plan p = make_plan();
    hh_model *m;
    assert_refused(hh_migrate(&m, teacher, &p, &o, NULL, &err), code, word);
    assert_null(m);
    hh_plan_release(&p);
}

static void test_refusals(void **state) {
    (void)state;
    hh_model *teacher = make_teacher(HH_QWEN3), *m = migrate(teacher, hh_hybrid_defaults(), NULL);
    hh_hybrid_options o = hh_hybrid_defaults();
    refuse(m, o, HH_EUNSUPPORTED, "hybrid already");
    o.log_scale_base = 1;
    refuse(teacher, o, HH_EINVAL, "log-scale's base is 1");
    o = hh_hybrid_defaults();
    o.beta_scale = 0;
    refuse(teacher, o, HH_EINVAL, "beta_scale is 0");
    o.beta_scale = 2.5;
    refuse(teacher, o, HH_EINVAL, "2.5");
    hh_plan p;
    hh_plan_init(&p, L, H + 1);
    hh_model *none;
    o = hh_hybrid_defaults();
    assert_refused(hh_migrate(&none, teacher, &p, &o, NULL, &err), HH_EINVAL, "7 heads", "6");
    hh_plan_release(&p);
    hh_model_close(m);
    hh_model_close(teacher);
}

static int open_be(void **state) {
    (void)state;
    hh_progress_silence(true);
    return hh_cpu_open(&be, 1, HH_PRECISION_F32, "reference", &err) == HH_OK ? 0 : -1;
}

static int close_be(void **state) {
    (void)state;
    hh_backend_close(be);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_projections_are_the_teachers),
        cmocka_unit_test(test_biases_are_the_teachers),
        cmocka_unit_test(test_new_parts_start_as_promised),
        cmocka_unit_test(test_the_checkpoint_is_the_model),
        cmocka_unit_test(test_optional_parts_change_nothing_at_their_start),
        cmocka_unit_test(test_all_heads_without_fusion_stay_the_teacher),
        cmocka_unit_test(test_gamma_is_the_root_mean_square_of_the_teachers_heads),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("convert/convert", tests, open_be, close_be);
}
