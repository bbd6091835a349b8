/* Products of 16-bit integers in pairs: twice as many multiply-adds an instruction as float32 has.
 *
 * Both operands are rounded in groups of 32 along the summed dimension to integers of at most HH_PAIR_TOP and one float
 * scale: |error| <= 2^-14 of the group's largest value, 16 to 32 times less than bf16's of a value of that size. A group's
 * sum of 32 products is exact in 32 bits (32 * 8191^2 < 2^31); groups are added up in float, in their order, one chain an
 * element of C: tiles may be cut anywhere without changing a bit, as in panel.h, whose panels of HH_PANEL columns these
 * are.
 *
 * HH_PAIRS is 0 where the processor gains nothing: then the functions are not there. AVX-512 gains by VNNI alone, whose
 * instruction multiplies pairs and adds.
 */
#ifndef HH_OPS_SIMD_PAIRS_H
#define HH_OPS_SIMD_PAIRS_H

#include "ops/simd/groups.h"
#include "ops/simd/panel.h"

#if defined(__AVX512VNNI__) || (defined(__AVX2__) && !defined(__AVX512F__))
#define HH_PAIRS 1

#define HH_PAIR_GROUP 32
#define HH_PAIR_TOP   8191

static inline int64_t hh_pair_round(int64_t n) {
    return (n + HH_PAIR_GROUP - 1) / HH_PAIR_GROUP * HH_PAIR_GROUP;
}

/* x [groups * 32] = scale q. What is not finite gives a scale that is not. */
static inline void hh_pairs_round(int16_t *q, float *scale, int64_t scale_stride, const float *x, int64_t groups) {
    for (int64_t g = 0; g < groups; g++, x += HH_PAIR_GROUP, q += HH_PAIR_GROUP) {
        const float top = hh_group_top(x), inverse = top >= 1e-30f ? HH_PAIR_TOP / top : 0;
        scale[g * scale_stride] = top * (1.0f / HH_PAIR_TOP);
        for (int i = 0; i < HH_PAIR_GROUP; i += 16) {
#if HH_VW == 16
            const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse));
            _mm256_storeu_si256((void *)(q + i), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(v)));
#else
            const __m256 by = _mm256_set1_ps(inverse);
            const __m256i lo = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), by));
            const __m256i hi = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), by));
            _mm256_storeu_si256((void *)(q + i), _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8));
#endif
        }
    }
}

/* Rows of integers: pair l of row i stands at q + i * row + l * pair, the scale of its group g at scale + i * scale_row + g. */
typedef struct hh_pair_rows {
    const int16_t *q;
    const float *scale;
    int64_t row, pair, scale_row;
} hh_pair_rows;

/* [rows, ld] with scale [rows, ld / 32]. */
static inline hh_pair_rows hh_pair_rows_of(const int16_t *q, const float *scale, int64_t ld) {
    return (hh_pair_rows){q, scale, ld, 2, ld / HH_PAIR_GROUP};
}
/* From a row and a group on. */
static inline hh_pair_rows hh_pair_rows_from(hh_pair_rows a, int64_t row, int64_t group) {
    a.q += row * a.row + group * (HH_PAIR_GROUP / 2) * a.pair;
    a.scale += row * a.scale_row + group;
    return a;
}

/* acc += the sums of a's pairs times b's. The empty statement keeps the sums in registers: left alone, gcc multiplies first and
 * adds up from memory. */
static inline __attribute__((always_inline)) hh_vi hh_pair_dot(hh_vi acc, hh_vi a, hh_vi b) {
#if HH_VW == 16
    acc = (hh_vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
    __asm__ volatile("" : "+v"(acc));
#else
    acc += (hh_vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
    __asm__ volatile("" : "+x"(acc));
#endif
    return acc;
}

static inline __attribute__((always_inline)) void pair_block(const int rows, float *C, int64_t ldc, bool add,
                                                             hh_pair_rows a, const int16_t *B, const float *scale,
                                                             int64_t groups) {
    hh_vf sum[HH_PANEL_ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        sum[i][0] = add ? hh_vload(C + i * ldc) : (hh_vf){0};
        sum[i][1] = add ? hh_vload(C + i * ldc + HH_VW) : (hh_vf){0};
    }
    for (int64_t g = 0; g < groups; g++) {
        hh_vi acc[HH_PANEL_ROWS][2];
        const int16_t *p = a.q + g * (HH_PAIR_GROUP / 2) * a.pair;
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = (hh_vi){0};
#pragma GCC unroll 1
        for (int l = 0; l < HH_PAIR_GROUP / 2; l++, p += a.pair, B += 2 * HH_PANEL) {
            hh_vi b0, b1;
            memcpy(&b0, B, sizeof b0);
            memcpy(&b1, B + 2 * HH_VW, sizeof b1);
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++) {
                int32_t pair;
                memcpy(&pair, p + i * a.row, sizeof pair);
                acc[i][0] = hh_pair_dot(acc[i][0], hh_vset_int(pair), b0);
                acc[i][1] = hh_pair_dot(acc[i][1], hh_vset_int(pair), b1);
            }
        }
        const hh_vf s0 = hh_vload(scale + g * HH_PANEL), s1 = hh_vload(scale + g * HH_PANEL + HH_VW);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const hh_vf s = hh_vset(a.scale[i * a.scale_row + g]);
            sum[i][0] = hh_vfma(hh_int_to_float(acc[i][0]), s * s0, sum[i][0]);
            sum[i][1] = hh_vfma(hh_int_to_float(acc[i][1]), s * s1, sum[i][1]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        hh_vstore(C + i * ldc, sum[i][0]);
        hh_vstore(C + i * ldc + HH_VW, sum[i][1]);
    }
}

/* C [m, HH_PANEL] = A B^T, or += when `add`: A [m, groups * 32]; B laid out by pairs of columns, [groups * 16][HH_PANEL][2], with scale
 * [groups][HH_PANEL]. */
static __attribute__((noinline, unused)) void hh_pair_product(float *C, int64_t ldc, bool add, hh_pair_rows a,
                                                              const int16_t *B, const float *scale, int64_t m,
                                                              int64_t groups) {
    int64_t i = 0;
    for (; i + HH_PANEL_ROWS <= m; i += HH_PANEL_ROWS)
        pair_block(HH_PANEL_ROWS, C + i * ldc, ldc, add, hh_pair_rows_from(a, i, 0), B, scale, groups);
    C += i * ldc;
    a = hh_pair_rows_from(a, i, 0);
#define HH_BLOCK(n) pair_block(n, C, ldc, add, a, B, scale, groups)
    HH_PANEL_REST(m - i, HH_BLOCK)
#undef HH_BLOCK
}

#else
#define HH_PAIRS 0
#endif

#endif
