/* Copies, fills, sums, rows by index, and the embedding. */
#include "ops/ops.h"
#include "support/gradcheck.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static hh_backend *be;

static int open_group(void **state) {
    (void)state;
    be = open_backend(NULL, 2);
    return 0;
}

static int close_group(void **state) {
    (void)state;
    hh_backend_close(be);
    return 0;
}

/* Out to another type and back is what the type's own rounding does, whatever the strides. */
static void copies_convert(void **state) {
    (void)state;
    static const hh_dtype types[] = {HH_DTYPE_F32, HH_DTYPE_F64, HH_DTYPE_F16, HH_DTYPE_BF16, HH_DTYPE_Q8_0};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        int64_t gap = hh_dtype_is_quantised(types[i]) ? 32 : 5, cols = 96;
        hh_tensor x = guarded_2d(HH_DTYPE_REAL, 30, cols, 7), y = guarded_2d(types[i], 30, cols, gap);
        hh_tensor back = guarded_2d(HH_DTYPE_REAL, 30, cols, 0);
        fill_normal(x, 3, 1);
        be->ops->copy(be, y, x);
        be->ops->copy(be, back, y);
        char stored[96 * 8];
        hh_real expected[96];
        for (int64_t r = 0; r < 30; r++) {
            hh_quantise(types[i], hh_row(x, r), cols, stored);
            hh_dequantise(types[i], stored, cols, expected);
            assert_memory_equal(expected, hh_row(back, r), sizeof expected);
        }
        guarded_release();
    }
}

static void copies_between_stored_types(void **state) {
    (void)state;
    hh_tensor x = guarded_2d(HH_DTYPE_BF16, 3, 20000, 0), y = guarded_2d(HH_DTYPE_F16, 3, 20000, 1);
    fill_quantised(x, 1, 0.25);
    be->ops->copy(be, y, x);
    for (int64_t r = 0; r < 3; r++)
        for (int64_t c = 0; c < 20000; c++) {
            float from = hh_bf16_to_float(((uint16_t *)x.data)[r * x.stride + c]);
            assert_int_equal(((uint16_t *)y.data)[r * y.stride + c], hh_f16_from_float(from));
        }
    guarded_release();
}

static void fill_and_axpy_respect_strides(void **state) {
    (void)state;
    hh_tensor y = guarded_3d(HH_DTYPE_REAL, 50, 40, 33, 3), x = guarded_2d(HH_DTYPE_REAL, 50, 40 * 33, 1);
    fill_normal(x, 2, 1);
    be->ops->fill(be, y, 0.5);
    be->ops->axpy(be, y, 2.0, x);
    for (int64_t i = 0; i < 50 * 40 * 33; i++)
        assert_true(*tensor_at(y, i) == (hh_real)0.5 + (hh_real)2 * *tensor_at(x, i));
    hh_tensor vector = guarded_1d(HH_DTYPE_REAL, 100001), nothing = guarded_2d(HH_DTYPE_REAL, 0, 5, 0);
    be->ops->fill(be, vector, 3);
    be->ops->axpy(be, vector, -1, vector);
    for (int64_t i = 0; i < 100001; i++) assert_true(*tensor_at(vector, i) == 0);
    be->ops->fill(be, nothing, 1);
    guarded_release();
}

static void rows_are_gathered_and_scattered(void **state) {
    (void)state;
    static const int32_t rows[] = {4, 0, 4, 2, 4};
    hh_tensor x = guarded_2d(HH_DTYPE_REAL, 6, 150, 2), y = guarded_2d(HH_DTYPE_REAL, 5, 150, 1);
    hh_tensor sum = guarded_2d(HH_DTYPE_REAL, 6, 150, 4);
    fill_normal(x, 1, 1);
    fill_value(sum, 1);
    be->ops->gather_rows(be, y, x, rows);
    be->ops->scatter_add_rows(be, sum, y, rows);
    for (int64_t c = 0; c < 150; c++) {
        for (int i = 0; i < 5; i++) assert_true(hh_row(y, i)[c] == hh_row(x, rows[i])[c]);
        hh_real v = hh_row(x, 4)[c];
        assert_true(hh_row(sum, 4)[c] == 1 + v + v + v);
        assert_true(hh_row(sum, 1)[c] == 1 && hh_row(sum, 0)[c] == 1 + hh_row(x, 0)[c]);
    }
    guarded_release();
}

static void embedding_reads_and_adds_rows(void **state) {
    (void)state;
    static const hh_dtype types[] = {HH_DTYPE_F32, HH_DTYPE_BF16, HH_DTYPE_Q8_0, HH_DTYPE_Q6_K};
    enum { T = 300, C = 256 };
    int32_t ids[T];
    for (int t = 0; t < T; t++) ids[t] = t * t % 11;
    hh_tensor y = guarded_2d(HH_DTYPE_REAL, T, C, 1), dw = guarded_2d(HH_DTYPE_REAL, 11, C, 0);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        hh_tensor w = guarded_2d(types[i], 11, C, 0);
        fill_quantised(w, 5, 1);
        be->ops->embedding_fwd(be, y, w, ids);
        hh_real row[C];
        for (int t = 0; t < T; t++) {
            hh_dequantise(types[i], (char *)w.data + (size_t)ids[t] * hh_dtype_bytes(types[i], C), C, row);
            assert_memory_equal(row, hh_row(y, t), sizeof row);
        }
    }
    fill_value(dw, 0);
    be->ops->embedding_bwd(be, dw, y, ids);
    hh_tensor expected = guarded_copy(dw);
    fill_value(expected, 0);
    for (int t = 0; t < T; t++)
        for (int c = 0; c < C; c++) hh_row(expected, ids[t])[c] += hh_row(y, t)[c];
    check_close(dw, expected, 0, "dW");
    guarded_release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_convert),
        cmocka_unit_test(copies_between_stored_types),
        cmocka_unit_test(fill_and_axpy_respect_strides),
        cmocka_unit_test(rows_are_gathered_and_scattered),
        cmocka_unit_test(embedding_reads_and_adds_rows),
    };
    return cmocka_run_group_tests_name("elementwise ops and embedding", tests, open_group, close_group);
}
