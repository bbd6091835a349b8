/* Element types: their names and sizes, half-precision conversions, and conversion of whole rows. */
#include "tensor/dtype.h"

#include "base/status.h"
#include "tensor/quant.h"

#include <string.h>

static const struct {
    const char *name;
    int64_t block;
    size_t bytes;
} types[HH_DTYPE_COUNT] = {
    [HH_DTYPE_F32] = {"f32", 1, 4},       [HH_DTYPE_F64] = {"f64", 1, 8},       [HH_DTYPE_F16] = {"f16", 1, 2},
    [HH_DTYPE_BF16] = {"bf16", 1, 2},     [HH_DTYPE_I32] = {"i32", 1, 4},       [HH_DTYPE_I64] = {"i64", 1, 8},
    [HH_DTYPE_Q8_0] = {"q8_0", 32, 34},   [HH_DTYPE_Q4_0] = {"q4_0", 32, 18},   [HH_DTYPE_Q4_1] = {"q4_1", 32, 20},
    [HH_DTYPE_Q5_0] = {"q5_0", 32, 22},   [HH_DTYPE_Q5_1] = {"q5_1", 32, 24},   [HH_DTYPE_Q4_K] = {"q4_k", 256, 144},
    [HH_DTYPE_Q5_K] = {"q5_k", 256, 176}, [HH_DTYPE_Q6_K] = {"q6_k", 256, 210},
};

static void check_type(hh_dtype t) {
    HH_ASSERT((unsigned)t < HH_DTYPE_COUNT);
}

const char *hh_dtype_name(hh_dtype t) {
    check_type(t);
    return types[t].name;
}

int64_t hh_dtype_block(hh_dtype t) {
    check_type(t);
    return types[t].block;
}

size_t hh_dtype_block_bytes(hh_dtype t) {
    check_type(t);
    return types[t].bytes;
}

bool hh_dtype_is_quantised(hh_dtype t) {
    return hh_dtype_block(t) > 1;
}

bool hh_dtype_is_float(hh_dtype t) {
    return t == HH_DTYPE_F32 || t == HH_DTYPE_F64 || t == HH_DTYPE_F16 || t == HH_DTYPE_BF16;
}

size_t hh_dtype_bytes(hh_dtype t, int64_t n) {
    check_type(t);
    HH_ASSERT(n >= 0 && n % types[t].block == 0);
    return (size_t)(n / types[t].block) * types[t].bytes;
}

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline float widen_bf16(uint16_t x) {
    return float_of((uint32_t)x << 16);
}

float hh_bf16_to_float(uint16_t x) {
    return widen_bf16(x);
}

/* Without a branch, for the sake of vectors. */
static inline uint16_t narrow_bf16(float x) {
    const uint32_t u = bits_of(x), rounded = (u + 0x7fffU + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffffU) > 0x7f800000U ? u >> 16 | 0x40
                                                      : rounded); /* a NaN must not round to infinity */
}

uint16_t hh_bf16_from_float(float x) {
    return narrow_bf16(x);
}

static inline float widen_f16(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, mantissa = x & 0x3ff;
    if (exponent == 31) return float_of(sign | 0x7f800000U | mantissa << 13);
    if (exponent == 0) return float_of(sign | bits_of((float)mantissa * 0x1p-24F));
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

float hh_f16_to_float(uint16_t x) {
    return widen_f16(x);
}

uint16_t hh_f16_from_float(float x) {
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffffU;
    if (a > 0x7f800000U) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000U) return (uint16_t)(sign | 0x7c00); /* 65520 and more */
    /* Below 2^-14 the result is subnormal: a multiple of 2^-24, the spacing of floats in [0.5, 1). */
    if (a < 0x38800000U) return (uint16_t)(sign | (bits_of(float_of(a) + 0.5F) - 0x3f000000U));
    return (uint16_t)(sign | (a - 0x38000000U + 0xfffU + (a >> 13 & 1)) >> 13);
}

/* One loop a stored type, over sources of any alignment. */
#define CONVERT(type, expression)                                                                                      \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        type v;                                                                                                        \
        memcpy(&v, from + (size_t)i * sizeof v, sizeof v);                                                             \
        dst[i] = expression;                                                                                           \
    }

void hh_dequantise_float(hh_dtype t, const void *src, int64_t n, float *dst) {
    const unsigned char *from = src;
    HH_ASSERT(n >= 0);
    switch (t) {
    case HH_DTYPE_F32:
        if (n) memcpy(dst, src, (size_t)n * sizeof *dst);
        break;
    case HH_DTYPE_F64:
        CONVERT(double, (float)v) break;
    case HH_DTYPE_F16:
        CONVERT(uint16_t, widen_f16(v)) break;
    case HH_DTYPE_BF16:
        CONVERT(uint16_t, widen_bf16(v)) break;
    case HH_DTYPE_I32:
        CONVERT(int32_t, (float)v) break;
    case HH_DTYPE_I64:
        CONVERT(int64_t, (float)v) break;
    default:
        hh_blocks_to_float(t, src, n, dst);
    }
}

#ifdef HH_REAL_DOUBLE

void hh_dequantise(hh_dtype t, const void *src, int64_t n, hh_real *dst) {
    const unsigned char *from = src;
    HH_ASSERT(n >= 0);
    if (t == HH_DTYPE_F64) {
        if (n) memcpy(dst, src, (size_t)n * sizeof *dst);
    } else if (t == HH_DTYPE_I32) {
        CONVERT(int32_t, v)
    } else if (t == HH_DTYPE_I64) {
        CONVERT(int64_t, (double)v)
    } else {
        float block[256];
        size_t bytes = hh_dtype_block_bytes(t);
        int64_t size = hh_dtype_block(t), step = 256;
        for (int64_t at = 0; at < n; at += step) {
            int64_t m = n - at < step ? n - at : step;
            hh_dequantise_float(t, from + (size_t)(at / size) * bytes, m, block);
            for (int64_t i = 0; i < m; i++) dst[at + i] = block[i];
        }
    }
}

#else

void hh_dequantise(hh_dtype t, const void *src, int64_t n, hh_real *dst) {
    hh_dequantise_float(t, src, n, dst);
}

#endif

static void quantise_blocks(hh_dtype t, const hh_real *src, int64_t n, unsigned char *to) {
    HH_ASSERT(hh_dtype_block(t) == 32 && n % 32 == 0);
    for (int64_t at = 0; at < n; at += 32, to += hh_dtype_block_bytes(t)) {
        float block[32];
        for (int i = 0; i < 32; i++) block[i] = (float)src[at + i];
        hh_block_from_float(t, block, to);
    }
}

#define STORE(type, expression)                                                                                        \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        type v = expression;                                                                                           \
        memcpy(to + (size_t)i * sizeof v, &v, sizeof v);                                                               \
    }

void hh_quantise(hh_dtype t, const hh_real *src, int64_t n, void *dst) {
    unsigned char *to = dst;
    HH_ASSERT(n >= 0);
    switch (t) {
    case HH_DTYPE_F32:
        STORE(float, (float)src[i]) break;
    case HH_DTYPE_F64:
        STORE(double, (double)src[i]) break;
    case HH_DTYPE_F16:
        STORE(uint16_t, hh_f16_from_float((float)src[i])) break;
    case HH_DTYPE_BF16: /* what caches and activations are stored as */
        _Pragma("omp simd") STORE(uint16_t, narrow_bf16((float)src[i])) break;
    default:
        quantise_blocks(t, src, n, to);
    }
}
