/* Rows of weights of any stored type to float: what a product does to a tile before it multiplies. */
#ifndef HH_OPS_SIMD_WIDEN_H
#define HH_OPS_SIMD_WIDEN_H

#include "ops/simd/groups.h"

#define WIDEN_32(type, TYPE, has_min)                                                                                  \
    static inline void widen_##type(float *to, const uint8_t *from, int64_t n) {                                       \
        const size_t bytes = hh_dtype_block_bytes(HH_DTYPE_##TYPE);                                                    \
        for (int64_t i = 0; i < n; i += 32, from += bytes) {                                                           \
            floats2 pair = pair_##type(from);                                                                          \
            bytes32 q = bytes_##type(from, 0);                                                                         \
            hh_vf d = hh_vset(pair[0]), m = hh_vset((has_min) ? pair[1] : 0.0f);                                       \
            store_half(to + i, q.lo, d, m);                                                                            \
            store_half(to + i + 16, q.hi, d, m);                                                                       \
        }                                                                                                              \
    }
HH_GROUP_TYPES_32(WIDEN_32)

#define WIDEN_256(type, TYPE, has_min)                                                                                 \
    static inline void widen_##type(float *to, const uint8_t *from, int64_t n) {                                       \
        const size_t bytes = hh_dtype_block_bytes(HH_DTYPE_##TYPE);                                                    \
        for (int64_t i = 0; i < n; i += 256, from += bytes) {                                                          \
            scales256 s = scales_##type(from);                                                                         \
            _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {                                                      \
                bytes32 q = bytes_##type(from, j);                                                                     \
                store_half(to + i + 32 * j, q.lo, hh_vset(s.d[2 * j]), hh_vset(s.m[j]));                               \
                store_half(to + i + 32 * j + 16, q.hi, hh_vset(s.d[2 * j + 1]), hh_vset(s.m[j]));                      \
            }                                                                                                          \
        }                                                                                                              \
    }
HH_GROUP_TYPES_256(WIDEN_256)

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
#define CASE(type, TYPE, has_min)                                                                                      \
    case HH_DTYPE_##TYPE:                                                                                              \
        widen_##type(to, from, n);                                                                                     \
        return;
        HH_GROUP_TYPES_32(CASE)
        HH_GROUP_TYPES_256(CASE)
#undef CASE
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
