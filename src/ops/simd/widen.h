/* Rows of weights of any stored type to float: what a product does to a tile before it multiplies. */
#ifndef HH_OPS_SIMD_WIDEN_H
#define HH_OPS_SIMD_WIDEN_H

#include "ops/simd/groups.h"

#if HH_GROUPS

GROUP_INLINE void store_group(float *to, group g) {
    __m128i half[2] = {_mm256_castsi256_si128(g.q), _mm256_extracti128_si256(g.q, 1)};
    for (int h = 0; h < 2; h++) {
        hh_vf d = hh_vset(g.d[h]), m = hh_vset(g.m);
#if HH_VW == 16
        hh_vstore(to + 16 * h, hh_vfma((hh_vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(half[h])), d, m));
#else
        hh_vf lo = (hh_vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(half[h]));
        hh_vf hi = (hh_vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(half[h], 8)));
        hh_vstore(to + 16 * h, hh_vfma(lo, d, m));
        hh_vstore(to + 16 * h + 8, hh_vfma(hi, d, m));
#endif
    }
}

#define WIDEN(type, TYPE, groups, has_min)                                                                             \
    static inline void widen_##type(float *to, const uint8_t *from, int64_t n) {                                       \
        const size_t bytes = hh_dtype_block_bytes(HH_DTYPE_##TYPE);                                                    \
        for (int64_t i = 0; i < n; i += 32 * (groups), from += bytes)                                                  \
            for (int j = 0; j < (groups); j++) store_group(to + i + 32 * j, unpack_##type(from, j));                   \
    }
HH_GROUP_TYPES(WIDEN)
#undef WIDEN
#endif

static inline void widen_bf16(float *to, const uint16_t *from, int64_t n) {
    int64_t i = 0;
    for (; i + HH_VW <= n; i += HH_VW) hh_vstore(to + i, hh_vload_bf16(from + i));
    for (; i < n; i++) to[i] = hh_bf16_to_float(from[i]);
}

static inline void widen_f16(float *to, const uint16_t *from, int64_t n) {
    int64_t i = 0;
    for (; i + HH_VW <= n; i += HH_VW) hh_vstore(to + i, hh_vload_f16(from + i));
    for (; i < n; i++) to[i] = hh_f16_to_float(from[i]);
}

/* n values (whole blocks) to float. */
static inline void widen(hh_dtype t, float *to, const void *from, int64_t n) {
    switch (t) {
#if HH_GROUPS
#define CASE(type, TYPE, groups, has_min)                                                                              \
    case HH_DTYPE_##TYPE:                                                                                              \
        widen_##type(to, from, n);                                                                                     \
        return;
        HH_GROUP_TYPES(CASE)
#undef CASE
#endif
    case HH_DTYPE_BF16:
        widen_bf16(to, from, n);
        return;
    case HH_DTYPE_F16:
        widen_f16(to, from, n);
        return;
    default:
        hh_dequantise_float(t, from, n, to);
    }
}

#endif
