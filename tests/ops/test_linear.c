/* The fast linear map against the reference: every stored type, odd sizes, strides, few tokens and many. */
#include "ops/gemm.h"
#include "ops/ops.h"
#include "support/gradcheck.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>

static const hh_dtype types[] = {HH_DTYPE_F32,  HH_DTYPE_BF16, HH_DTYPE_F16,  HH_DTYPE_Q8_0,
                                 HH_DTYPE_Q4_0, HH_DTYPE_Q4_1, HH_DTYPE_Q5_0, HH_DTYPE_Q5_1,
                                 HH_DTYPE_Q4_K, HH_DTYPE_Q5_K, HH_DTYPE_Q6_K};
enum { N_TYPES = sizeof types / sizeof types[0] };

static const char *const isas[] = FAST_ISAS;

/* Three parts with other types in the first and last, biases on two. */
static hh_linear make_map(hh_dtype t, int64_t k, int64_t rows) {
    const int64_t n[] = {3, rows, 7};
    const hh_dtype type[] = {HH_DTYPE_F32, t, HH_DTYPE_BF16};
    hh_linear w = {.n_parts = 3, .n = rows + 10, .k = k};
    for (int i = 0; i < 3; i++) {
        w.part[i].w = guarded_2d(type[i], n[i], k, 0);
        fill_quantised(w.part[i].w, 31 + (uint64_t)i, 0.5);
        if (i == 2) continue;
        w.part[i].bias = guarded_1d(HH_DTYPE_REAL, n[i]);
        fill_normal(w.part[i].bias, 40 + (uint64_t)i, 0.5);
    }
    return w;
}

typedef struct pair {
    hh_backend *fast, *reference;
} pair;

/* What the products may be off by, of the largest number. Tokens being decoded meet quantised weights in 16-bit integers, others
 * meet weights that are not float32 in integers of 14 bits; a processor that is faster at it multiplies bf16 weights by bf16
 * activations. Nothing of that where float32 is asked for. */
static double tolerance_of(const pair *be, const hh_linear *w, bool forward) {
    if (be->fast->precision == HH_PRECISION_F32) return 1e-5;
    if (forward && be->fast->decoding) return hh_dtype_is_quantised(w->part[1].w.dtype) ? 4e-5 : 1e-5;
    return hh_gemm_has_bf16() ? 4e-3 : forward ? 2e-4 : 1e-5;
}

static void compare_forward(const pair *be, const hh_linear *w, int64_t T, bool accumulate, const char *what) {
    hh_tensor x = guarded_2d(HH_DTYPE_REAL, T, w->k, 5), y = guarded_2d(HH_DTYPE_REAL, T, w->n, 3);
    hh_tensor expected = guarded_2d(HH_DTYPE_REAL, T, w->n, 0);
    fill_normal(x, 7, 1);
    if (accumulate) fill_normal(y, 8, 1), fill_normal(expected, 8, 1);
    be->reference->ops->linear_fwd(be->reference, expected, x, w, accumulate);
    be->fast->ops->linear_fwd(be->fast, y, x, w, accumulate);
    check_close(y, expected, tolerance_of(be, w, true), what);
}

static void compare_input(const pair *be, const hh_linear *w, int64_t T, bool accumulate, const char *what) {
    hh_tensor dy = guarded_2d(HH_DTYPE_REAL, T, w->n, 2), dx = guarded_2d(HH_DTYPE_REAL, T, w->k, 9);
    hh_tensor expected = guarded_2d(HH_DTYPE_REAL, T, w->k, 0);
    fill_normal(dy, 7, 1);
    if (accumulate) fill_normal(dx, 8, 1), fill_normal(expected, 8, 1);
    be->reference->ops->linear_bwd_input(be->reference, expected, dy, w, accumulate);
    be->fast->ops->linear_bwd_input(be->fast, dx, dy, w, accumulate);
    check_close(dx, expected, tolerance_of(be, w, false), what);
}

static void for_every_isa(void (*body)(const pair *be, const char *isa)) {
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        pair be = {open_backend(isas[i], 2), open_backend("reference", 2)};
        if (be.fast) body(&be, isas[i]);
        hh_backend_close(be.fast);
        hh_backend_close(be.reference);
    }
}

static void compare_types(const pair *be, const char *isa) {
    static const int64_t tokens[] = {1, 2, 3, 4, 5, 7, 70};
    for (int i = 0; i < N_TYPES; i++)
        for (size_t j = 0; j < sizeof tokens / sizeof tokens[0]; j++) {
            char what[80];
            snprintf(what, sizeof what, "%s, %s, %d tokens", isa, hh_dtype_name(types[i]), (int)tokens[j]);
            int64_t k = hh_dtype_block(types[i]) == 256 ? 768 : (hh_dtype_block(types[i]) == 32 ? 352 : 331);
            hh_linear w = make_map(types[i], k, 45);
            compare_forward(be, &w, tokens[j], j % 2, what);
            compare_input(be, &w, tokens[j], j % 2, what);
            be->fast->decoding = true;
            compare_forward(be, &w, tokens[j], j % 2, what);
            be->fast->decoding = false;
            be->fast->precision = HH_PRECISION_F32;
            compare_forward(be, &w, tokens[j], j % 2, what);
            compare_input(be, &w, tokens[j], j % 2, what);
            be->fast->precision = HH_PRECISION_AUTO;
            guarded_release();
        }
}

static void types_agree_with_the_reference(void **state) {
    (void)state;
    for_every_isa(compare_types);
}

static void compare_sizes(const pair *be, const char *isa) {
    static const int64_t k[] = {1, 3, 8, 17, 64};
    for (size_t i = 0; i < sizeof k / sizeof k[0]; i++)
        for (int64_t T = 0; T <= 12; T += 3) {
            hh_linear w = make_map(HH_DTYPE_F16, k[i], 300);
            compare_forward(be, &w, T, false, isa);
            compare_input(be, &w, T, true, isa);
            guarded_release();
        }
}

static void odd_sizes_agree_with_the_reference(void **state) {
    (void)state;
    for_every_isa(compare_sizes);
}

static void compare_weights(const pair *be, const char *isa) {
    for (int64_t T = 0; T <= 90; T += 18) {
        hh_linear w = make_map(HH_DTYPE_F32, 37, 530), dw = w, expected = w;
        for (int i = 0; i < 3; i++) {
            int64_t n = w.part[i].w.dim[0];
            dw.part[i] =
                (hh_part){guarded_2d(HH_DTYPE_REAL, n, 37, 0), i == 1 ? HH_NONE : guarded_1d(HH_DTYPE_REAL, n)};
            fill_normal(dw.part[i].w, 50, 1);
            if (i != 1) fill_normal(dw.part[i].bias, 60, 1);
            expected.part[i].w = guarded_copy(dw.part[i].w);
            expected.part[i].bias = i == 1 ? HH_NONE : guarded_copy(dw.part[i].bias);
        }
        hh_tensor dy = guarded_2d(HH_DTYPE_REAL, T, w.n, 4), x = guarded_2d(HH_DTYPE_REAL, T, 37, 1);
        fill_normal(dy, 7, 1);
        fill_normal(x, 8, 1);
        be->reference->ops->linear_bwd_weight(be->reference, &expected, dy, x);
        be->fast->ops->linear_bwd_weight(be->fast, &dw, dy, x);
        for (int i = 0; i < 3; i++) {
            check_close(dw.part[i].w, expected.part[i].w, 1e-5, isa);
            if (i != 1) check_close(dw.part[i].bias, expected.part[i].bias, 1e-5, isa);
        }
        guarded_release();
    }
}

static void weight_gradients_agree_with_the_reference(void **state) {
    (void)state;
    for_every_isa(compare_weights);
}

static void expect_rows(hh_backend *be, const hh_linear *w, hh_tensor x, hh_tensor all, int64_t lo, int64_t hi) {
    hh_tensor y = guarded_2d(HH_DTYPE_REAL, hi - lo, w->n, 1);
    be->ops->linear_fwd(be, y, hh_tensor_rows(x, lo, hi), w, false);
    for (int64_t t = lo; t < hi; t++)
        assert_memory_equal(hh_row(y, t - lo), hh_row(all, t), (size_t)w->n * sizeof(hh_real));
}

/* The same bits of a row whatever its call holds besides, on any number of threads; also of a token being decoded. */
static void rows_do_not_know_their_neighbours(void **state) {
    (void)state;
    static const hh_dtype type[] = {HH_DTYPE_F32, HH_DTYPE_BF16, HH_DTYPE_Q8_0, HH_DTYPE_Q4_1, HH_DTYPE_Q4_K};
    static const int64_t cut[] = {0, 1, 3, 64, 65, 128, 192, 320, 576, 577, 600};
    const size_t n_cuts = quick() ? 5 : sizeof cut / sizeof cut[0];
    const int64_t T = cut[n_cuts - 1];
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++)
        for (int run = 0; run < 4; run++)
            for (size_t k = 0; k < sizeof type / sizeof type[0]; k++) {
                hh_backend *be = open_backend(isas[i], run % 2 ? 3 : 1);
                if (!be) continue;
                be->decoding = run >= 2;
                hh_linear w = make_map(type[k], 768, 147);
                hh_tensor x = guarded_2d(HH_DTYPE_REAL, T, w.k, 0), y = guarded_2d(HH_DTYPE_REAL, T, w.n, 0);
                fill_normal(x, 1, 1);
                be->ops->linear_fwd(be, y, x, &w, false);
                for (size_t c = 1; c < n_cuts; c++) {
                    expect_rows(be, &w, x, y, cut[c - 1], cut[c]);
                    expect_rows(be, &w, x, y, 0, cut[c]);
                }
                guarded_release();
                hh_backend_close(be);
            }
}

/* A number that is not finite makes its own row so, wherever it stands and however numbers are rounded, and no other. */
static void what_is_not_finite_stays_visible(void **state) {
    (void)state;
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++)
        for (int t = 0; t < N_TYPES; t++)
            for (int run = 0; run < 12; run++) {
                hh_backend *be = open_backend(isas[i], 2);
                if (!be) continue;
                be->decoding = run % 2;
                hh_linear w = {.n_parts = 1, .n = 20, .k = 512};
                w.part[0].w = guarded_2d(types[t], w.n, w.k, 0);
                fill_quantised(w.part[0].w, 3, 0.5);
                hh_tensor x = guarded_2d(HH_DTYPE_REAL, 3, w.k, 0), y = guarded_2d(HH_DTYPE_REAL, 3, w.n, 0);
                fill_normal(x, 4, 1);
                hh_row(x, 1)[run < 6 ? 40 : 69] = (hh_real)bad[run / 2 % 3];
                be->ops->linear_fwd(be, y, x, &w, false);
                for (int64_t r = 0; r < 3; r++)
                    for (int64_t n = 0; n < w.n; n++) assert_int_equal(isfinite(hh_row(y, r)[n]) != 0, r != 1);
                guarded_release();
                hh_backend_close(be);
            }
}

/* The same numbers bit for bit, run after run. */
static void runs_repeat(void **state) {
    (void)state;
    hh_backend *be = open_backend(NULL, 2);
    hh_linear w = make_map(HH_DTYPE_Q8_0, 320, 700);
    hh_tensor x = guarded_2d(HH_DTYPE_REAL, 96, w.k, 0), dy = guarded_2d(HH_DTYPE_REAL, 96, w.n, 0);
    hh_tensor y[2], dx[2];
    fill_normal(x, 1, 1);
    fill_normal(dy, 2, 1);
    for (int i = 0; i < 2; i++) {
        y[i] = guarded_2d(HH_DTYPE_REAL, 96, w.n, 0);
        dx[i] = guarded_2d(HH_DTYPE_REAL, 96, w.k, 0);
        be->ops->linear_fwd(be, y[i], x, &w, false);
        be->ops->linear_bwd_input(be, dx[i], dy, &w, false);
    }
    check_close(y[0], y[1], 0, "y");
    check_close(dx[0], dx[1], 0, "dx");
    guarded_release();
    hh_backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_agree_with_the_reference),
        cmocka_unit_test(odd_sizes_agree_with_the_reference),
        cmocka_unit_test(weight_gradients_agree_with_the_reference),
        cmocka_unit_test(rows_do_not_know_their_neighbours),
        cmocka_unit_test(what_is_not_finite_stays_visible),
        cmocka_unit_test(runs_repeat),
    };
    return cmocka_run_group_tests_name("linear map", tests, NULL, NULL);
}
