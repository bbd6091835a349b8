/* Products of small float matrices for the attention and gated-delta kernels: C = keep C + scale A B, everything in
 * cache.
 *
 * A has strides for both indices, so that A^T is the same call; B and C have dense rows. A call works on one panel of
 * HH_PANEL columns (two vectors), HH_PANEL_ROWS rows at a time in registers. Every element of C is one chain of fused
 * multiply-adds in the order of k, whatever the number of rows and columns around it: tiles may be cut anywhere without
 * changing a bit.
 */
#ifndef HH_OPS_SIMD_PANEL_H
#define HH_OPS_SIMD_PANEL_H

#include "ops/simd/simd.h"

#define HH_PANEL (2 * HH_VW)
#if HH_VW == 8
#define HH_PANEL_ROWS 6
#else
#define HH_PANEL_ROWS 12 /* there are 32 registers */
#endif

static inline int64_t hh_panel_round(int64_t n) {
    return (n + HH_PANEL - 1) / HH_PANEL * HH_PANEL;
}

/* A row length for whole panels that is an odd number of cache lines, so that rows do not compete for the same sets. */
static inline int64_t hh_panel_ld(int64_t n) {
    const int64_t cols = hh_panel_round(n);
    return cols % 32 ? cols : cols + 16;
}

typedef struct hh_factor {
    const float *at;
    int64_t row, col; /* strides */
} hh_factor;

static inline hh_factor hh_rows_of(const float *at, int64_t stride) {
    return (hh_factor){at, stride, 1};
}
/* A^T of a matrix with dense rows. */
static inline hh_factor hh_columns_of(const float *at, int64_t stride) {
    return (hh_factor){at, 1, stride};
}
/* From row i and column l on. */
static inline hh_factor hh_factor_from(hh_factor a, int64_t i, int64_t l) {
    return (hh_factor){a.at + i * a.row + l * a.col, a.row, a.col};
}

/* block(n) for the n rows that are left behind whole blocks of HH_PANEL_ROWS, with n known to the compiler. */
#define HH_PANEL_CASE(n, block)                                                                                        \
    case n:                                                                                                            \
        block(n);                                                                                                      \
        break;
#define HH_PANEL_CASES_5(block)                                                                                        \
    HH_PANEL_CASE(1, block)                                                                                            \
    HH_PANEL_CASE(2, block)                                                                                            \
    HH_PANEL_CASE(3, block)                                                                                            \
    HH_PANEL_CASE(4, block)                                                                                            \
    HH_PANEL_CASE(5, block)
#if HH_PANEL_ROWS > 6
#define HH_PANEL_CASES(block)                                                                                          \
    HH_PANEL_CASES_5(block)                                                                                            \
    HH_PANEL_CASE(6, block)                                                                                            \
    HH_PANEL_CASE(7, block)                                                                                            \
    HH_PANEL_CASE(8, block)                                                                                            \
    HH_PANEL_CASE(9, block)                                                                                            \
    HH_PANEL_CASE(10, block)                                                                                           \
    HH_PANEL_CASE(11, block)
#else
#define HH_PANEL_CASES HH_PANEL_CASES_5
#endif
#define HH_PANEL_REST(left, block)                                                                                     \
    switch (left) {                                                                                                    \
        HH_PANEL_CASES(block)                                                                                          \
    default:                                                                                                           \
        break;                                                                                                         \
    }

static inline __attribute__((always_inline)) void panel_block(const int rows, float *C, int64_t ldc, float keep,
                                                              float scale, hh_factor a, const float *B, int64_t ldb,
                                                              int64_t k) {
    hh_vf acc[HH_PANEL_ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = (hh_vf){0};
    for (int64_t l = 0; l < k; l++) {
        const hh_vf b0 = hh_vload(B + l * ldb), b1 = hh_vload(B + l * ldb + HH_VW);
        const float *p = a.at + l * a.col;
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const hh_vf x = hh_vset(p[i * a.row]);
            acc[i][0] = hh_vfma(x, b0, acc[i][0]);
            acc[i][1] = hh_vfma(x, b1, acc[i][1]);
        }
    }
    const hh_vf s = hh_vset(scale), old = hh_vset(keep);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        float *c = C + i * ldc;
        acc[i][0] *= s, acc[i][1] *= s;
        if (keep != 0) {
            acc[i][0] = hh_vfma(old, hh_vload(c), acc[i][0]);
            acc[i][1] = hh_vfma(old, hh_vload(c + HH_VW), acc[i][1]);
        }
        hh_vstore(c, acc[i][0]);
        hh_vstore(c + HH_VW, acc[i][1]);
    }
}

/* C [m, HH_PANEL] = keep C + scale A [m,k] B [k, HH_PANEL]; C is not read when keep is 0. */
static __attribute__((noinline, unused)) void hh_panel_product(float *C, int64_t ldc, float keep, float scale,
                                                               hh_factor a, const float *B, int64_t ldb, int64_t m,
                                                               int64_t k) {
    int64_t i = 0;
    for (; i + HH_PANEL_ROWS <= m; i += HH_PANEL_ROWS)
        panel_block(HH_PANEL_ROWS, C + i * ldc, ldc, keep, scale, hh_factor_from(a, i, 0), B, ldb, k);
    C += i * ldc;
    a = hh_factor_from(a, i, 0);
#define HH_BLOCK(n) panel_block(n, C, ldc, keep, scale, a, B, ldb, k)
    HH_PANEL_REST(m - i, HH_BLOCK)
#undef HH_BLOCK
}

/* y = x^T of HH_SQUARE rows and columns. */
#if defined(__AVX2__)
#define HH_SQUARE 8
static inline void transpose_square(float *y, int64_t ldy, const float *x, int64_t ldx) {
    __m256 r[8], t[8];
    for (int l = 0; l < 8; l++) r[l] = _mm256_loadu_ps(x + l * ldx);
    for (int l = 0; l < 8; l += 2) {
        t[l] = _mm256_unpacklo_ps(r[l], r[l + 1]);
        t[l + 1] = _mm256_unpackhi_ps(r[l], r[l + 1]);
    }
    for (int l = 0; l < 8; l += 4) {
        r[l] = _mm256_shuffle_ps(t[l], t[l + 2], 0x44);
        r[l + 1] = _mm256_shuffle_ps(t[l], t[l + 2], 0xee);
        r[l + 2] = _mm256_shuffle_ps(t[l + 1], t[l + 3], 0x44);
        r[l + 3] = _mm256_shuffle_ps(t[l + 1], t[l + 3], 0xee);
    }
    for (int l = 0; l < 4; l++) {
        _mm256_storeu_ps(y + l * ldy, _mm256_permute2f128_ps(r[l], r[l + 4], 0x20));
        _mm256_storeu_ps(y + (l + 4) * ldy, _mm256_permute2f128_ps(r[l], r[l + 4], 0x31));
    }
}
#else
#define HH_SQUARE 4
static inline void transpose_square(float *y, int64_t ldy, const float *x, int64_t ldx) {
    const float32x4x2_t a = vtrnq_f32(vld1q_f32(x), vld1q_f32(x + ldx));
    const float32x4x2_t b = vtrnq_f32(vld1q_f32(x + 2 * ldx), vld1q_f32(x + 3 * ldx));
    for (int l = 0; l < 2; l++) {
        const float64x2_t u = vreinterpretq_f64_f32(a.val[l]), v = vreinterpretq_f64_f32(b.val[l]);
        vst1q_f32(y + l * ldy, vreinterpretq_f32_f64(vtrn1q_f64(u, v)));
        vst1q_f32(y + (l + 2) * ldy, vreinterpretq_f32_f64(vtrn2q_f64(u, v)));
    }
}
#endif

/* y [cols, rows] = x [rows, cols]^T, with row strides; both may be of any size. */
static inline void hh_transpose(float *y, int64_t ldy, const float *x, int64_t ldx, int rows, int cols) {
    const int whole = rows - rows % HH_SQUARE;
    for (int i = 0; i < whole; i += HH_SQUARE) {
        int j = 0;
        for (; j + HH_SQUARE <= cols; j += HH_SQUARE) transpose_square(y + j * ldy + i, ldy, x + i * ldx + j, ldx);
        for (; j < cols; j++)
            for (int l = i; l < i + HH_SQUARE; l++) y[j * ldy + l] = x[l * ldx + j];
    }
    for (int i = whole; i < rows; i++)
        for (int j = 0; j < cols; j++) y[j * ldy + i] = x[i * ldx + j];
}

#endif
