/* Losses and the optimizer: fast kernels against the reference, and what callers may rely on. */
#include "ops/ops.h"
#include "support/gradcheck.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static const char *const isas[] = FAST_ISAS;

static hh_linear make_head(int64_t V, int64_t C, hh_dtype t, uint64_t seed) {
    hh_linear w = {.n_parts = 1, .n = V, .k = C};
    w.part[0].w = guarded_2d(t, V, C, 0);
    fill_quantised(w.part[0].w, seed, 0.5);
    return w;
}

static hh_linear make_gradient(const hh_linear *w) {
    hh_linear dw = {.n_parts = 1, .n = w->n, .k = w->k};
    dw.part[0].w = guarded_2d(HH_DTYPE_REAL, w->n, w->k, 0);
    fill_value(dw.part[0].w, 0.5);
    return dw;
}

typedef struct outputs {
    hh_tensor nll, kl, dx;
    hh_linear dw;
    int32_t argmax[700];
} outputs;

static outputs make_outputs(const hh_linear *w, int64_t T) {
    outputs o = {.nll = guarded_1d(HH_DTYPE_REAL, T), .kl = guarded_1d(HH_DTYPE_REAL, T)};
    o.dx = guarded_2d(HH_DTYPE_REAL, T, w->k, 3);
    o.dw = make_gradient(w);
    return o;
}

/* Rows are left out alone, in runs, at the start and at the end, and there are more than a tile's. */
static void compare_heads(hh_backend *fast, hh_backend *reference, int64_t T, int64_t V, const char *isa) {
    hh_linear w = make_head(V, 24, HH_DTYPE_F32, 3), wt = make_head(V, 32, HH_DTYPE_Q8_0, 4);
    hh_tensor x = guarded_2d(HH_DTYPE_REAL, T, 24, 1), xt = guarded_2d(HH_DTYPE_REAL, T, 32, 0);
    fill_normal(x, 5, 1);
    fill_normal(xt, 6, 1);
    int32_t target[700];
    float weight[700];
    for (int64_t t = 0; t < T; t++) {
        target[t] = t % 7 < 3 || t > T - 3 ? -1 : (int32_t)(t * 31 % V);
        weight[t] = t % 5 ? 0.0f : 1.5f;
    }
    outputs a = make_outputs(&w, T), b = make_outputs(&w, T);
    fast->ops->ce_head(fast, a.nll, a.argmax, a.dx, &a.dw, x, &w, target, 0.25);
    reference->ops->ce_head(reference, b.nll, b.argmax, b.dx, &b.dw, x, &w, target, 0.25);
    check_close(a.nll, b.nll, 1e-5, isa);
    check_close(a.dx, b.dx, 1e-5, isa);
    check_close(a.dw.part[0].w, b.dw.part[0].w, 1e-5, isa);
    for (int64_t t = 0; t < T; t++) assert_int_equal(a.argmax[t], b.argmax[t]);

    fast->ops->kl_head(fast, a.kl, a.nll, a.dx, &a.dw, x, &w, xt, &wt, target, weight, 0.25, 0.5);
    reference->ops->kl_head(reference, b.kl, b.nll, b.dx, &b.dw, x, &w, xt, &wt, target, weight, 0.25, 0.5);
    check_close(a.kl, b.kl, 2e-4, isa);
    check_close(a.nll, b.nll, 1e-5, isa);
    check_close(a.dx, b.dx, 2e-4, isa);
    check_close(a.dw.part[0].w, b.dw.part[0].w, 2e-4, isa);
    guarded_release();
}

static void heads_agree_with_the_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        hh_backend *fast = open_backend(isas[i], 2), *reference = open_backend("reference", 2);
        if (fast) {
            compare_heads(fast, reference, 5, 11, isas[i]);
            compare_heads(fast, reference, 40, 1003, isas[i]);
            compare_heads(fast, reference, 700, 64, isas[i]);
        }
        hh_backend_close(fast);
        hh_backend_close(reference);
    }
}

/* Logits are a column each: W is the identity. */
static void equal_logits_take_the_lowest_id(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        hh_backend *be = open_backend(which ? "reference" : NULL, 1);
        enum { V = 70 };
        hh_linear w = {.n_parts = 1, .n = V, .k = V, .part[0].w = guarded_2d(HH_DTYPE_REAL, V, V, 0)};
        for (int i = 0; i < V; i++)
            for (int j = 0; j < V; j++) hh_row(w.part[0].w, i)[j] = i == j;
        hh_tensor x = guarded_2d(HH_DTYPE_REAL, 1, V, 0);
        int32_t argmax;
        for (int first = 0; first < V; first++) {
            fill_value(x, -3);
            for (int j = first; j < V; j += 5) hh_row(x, 0)[j] = 2;
            be->ops->ce_head(be, HH_NONE, &argmax, HH_NONE, NULL, x, &w, NULL, 0);
            assert_int_equal(argmax, first);
        }
        guarded_release();
        hh_backend_close(be);
    }
}

/* Large and small logits: the loss is finite and right to float's last digits. */
static void far_logits_are_exact(void **state) {
    (void)state;
    hh_backend *be = open_backend(NULL, 1);
    hh_linear w = {.n_parts = 1, .n = 2, .k = 1, .part[0].w = guarded_2d(HH_DTYPE_REAL, 2, 1, 0)};
    hh_row(w.part[0].w, 0)[0] = 1;
    hh_row(w.part[0].w, 1)[0] = -1;
    hh_tensor x = guarded_2d(HH_DTYPE_REAL, 1, 1, 0), nll = guarded_1d(HH_DTYPE_REAL, 1);
    const double logit[] = {0, 1, 40, 500};
    for (int i = 0; i < 4; i++)
        for (int32_t target = 0; target < 2; target++) {
            fill_value(x, logit[i]);
            be->ops->ce_head(be, nll, NULL, HH_NONE, NULL, x, &w, &target, 0);
            double expected = log1p(exp(-2 * logit[i])) + (target ? 2 * logit[i] : 0);
            assert_true(fabs((double)*tensor_at(nll, 0) - expected) <= 2e-7 * (1 + expected + logit[i]));
        }
    guarded_release();
    hh_backend_close(be);
}

/* All 151936 logits of many tokens do not stand in memory at once, whatever the scratch holds besides. */
static void large_vocabularies_fit_the_scratch(void **state) {
    (void)state;
    hh_backend *be = open_backend(NULL, 2);
    enum { T = 70, V = 151936, C = 8 };
    hh_linear w = make_head(V, C, HH_DTYPE_BF16, 1);
    hh_tensor x = guarded_2d(HH_DTYPE_REAL, T, C, 0), kl = guarded_1d(HH_DTYPE_REAL, T),
              dx = guarded_2d(HH_DTYPE_REAL, T, C, 0);
    fill_normal(x, 2, 1);
    be->ops->kl_head(be, kl, HH_NONE, dx, NULL, x, &w, x, &w, NULL, NULL, 1, 0);
    for (int64_t t = 0; t < T; t++) assert_true(fabs((double)*tensor_at(kl, t)) < 1e-5);
    for (int64_t i = 0; i < T * C; i++) assert_true(fabs((double)*tensor_at(dx, i)) < 1e-5);
    assert_true(be->scratch.used == 0);
    guarded_release();
    hh_backend_close(be);
}

static void adamw_agrees_with_its_formula(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        hh_backend *be = open_backend(which ? "reference" : NULL, 2);
        enum { N = 40003 };
        hh_tensor t[4], was[4];
        for (int i = 0; i < 4; i++) {
            t[i] = guarded_1d(HH_DTYPE_REAL, N);
            fill_normal(t[i], 10 + (uint64_t)i, 1);
            if (i == 2)
                for (int64_t k = 0; k < N; k++) *tensor_at(t[i], k) *= *tensor_at(t[i], k);
            was[i] = guarded_copy(t[i]);
        }
        double squares = 1, expected = 1;
        be->ops->sum_squares(be, &squares, t[0]);
        be->ops->adamw(be, t[0], t[1], t[2], t[3], 1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, 3);
        for (int64_t k = 0; k < N; k++) {
            double p = (double)*tensor_at(was[0], k), g = 0.5 * (double)*tensor_at(was[3], k);
            double m = 0.9 * (double)*tensor_at(was[1], k) + 0.1 * g,
                   v = 0.95 * (double)*tensor_at(was[2], k) + 0.05 * g * g;
            expected += p * p;
            p = p * (1 - 1e-3) - 1e-2 * (m / (1 - pow(0.9, 3))) / (sqrt(v / (1 - pow(0.95, 3))) + 1e-8);
            *tensor_at(was[0], k) = (hh_real)p;
            *tensor_at(was[1], k) = (hh_real)m;
            *tensor_at(was[2], k) = (hh_real)v;
        }
        for (int i = 0; i < 3; i++) check_close(t[i], was[i], 1e-6, be->isa);
        assert_true(fabs(squares - expected) < 1e-9 * expected);
        guarded_release();
        hh_backend_close(be);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_agree_with_the_reference), cmocka_unit_test(equal_logits_take_the_lowest_id),
        cmocka_unit_test(far_logits_are_exact),           cmocka_unit_test(large_vocabularies_fit_the_scratch),
        cmocka_unit_test(adamw_agrees_with_its_formula),
    };
    return cmocka_run_group_tests_name("losses and optimizer", tests, NULL, NULL);
}
