/* Block formats of GGUF inside kernels; layouts and results are those of tensor/quant.c, bit for bit. */
#ifndef HH_OPS_CUDA_QUANT_CUH
#define HH_OPS_CUDA_QUANT_CUH

#include "ops/cuda/cuda.h"

#include <cuda_fp16.h>

static __device__ __forceinline__ float hh_block_half(const uint8_t *p) {
    return __half2float(*(const __half *)p); /* blocks begin at even addresses */
}

/* d q + m without contraction, as the CPU has it. */
static __device__ __forceinline__ float hh_scaled(float d, int q, float m) {
    return __fadd_rn(__fmul_rn((float)q, d), m);
}

/* The low or high nibble of value `at` of a block of 32. */
static __device__ __forceinline__ int hh_nibble(const uint8_t *q, int at) {
    return at < 16 ? q[at] & 15 : q[at - 16] >> 4;
}
static __device__ __forceinline__ int hh_five_bits(const uint8_t *q, const uint8_t *high, int at) {
    return hh_nibble(q, at) | ((high[at / 8] >> (at % 8)) & 1) << 4;
}

static __device__ __forceinline__ void hh_decode8_k4_or_k5(float (&x)[8], const uint8_t *b, const uint8_t *high,
                                                           const uint8_t *q, int at) {
    const uint8_t *s = b + 4;
    const int j = at / 32, first = at % 32;
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    const float ds = hh_block_half(b) * (float)scale, dm = hh_block_half(b + 2) * (float)min;
    for (int i = 0; i < 8; i++) {
        const int low = (q[j / 2 * 32 + first + i] >> (j % 2 * 4)) & 15;
        const int fifth = high ? ((high[first + i] >> j) & 1) << 4 : 0;
        x[i] = hh_scaled(ds, low | fifth, -dm);
    }
}

static __device__ __forceinline__ void hh_decode8_q6_k(float (&x)[8], const uint8_t *b, int at) {
    const int half = at / 128, row = at % 128 / 32, first = at % 32;
    const uint8_t *low = b + half * 64 + row % 2 * 32, *high = b + 128 + half * 32;
    const int8_t scale = (int8_t)b[192 + half * 8 + row * 2 + first / 16];
    const float ds = hh_block_half(b + 208) * (float)scale;
    for (int i = 0; i < 8; i++) {
        const int q = ((low[first + i] >> (row / 2 * 4)) & 15) | ((high[first + i] >> (row * 2)) & 3) << 4;
        x[i] = ds * (float)(q - 32);
    }
}

/* Values at .. at + 7 of a block; `at` is a multiple of 8. */
static __device__ __forceinline__ void hh_decode8(float (&x)[8], hh_dtype type, const uint8_t *b, int at) {
    if (type == HH_DTYPE_Q4_K) {
        hh_decode8_k4_or_k5(x, b, nullptr, b + 16, at);
    } else if (type == HH_DTYPE_Q5_K) {
        hh_decode8_k4_or_k5(x, b, b + 16, b + 48, at);
    } else if (type == HH_DTYPE_Q6_K) {
        hh_decode8_q6_k(x, b, at);
    } else {
        const float d = hh_block_half(b);
        const float m = type == HH_DTYPE_Q4_1 || type == HH_DTYPE_Q5_1 ? hh_block_half(b + 2) : 0.0f;
        for (int i = 0; i < 8; i++) {
            const int v = at + i;
            if (type == HH_DTYPE_Q8_0) x[i] = (float)(int8_t)b[2 + v] * d;
            if (type == HH_DTYPE_Q4_0) x[i] = (float)(hh_nibble(b + 2, v) - 8) * d;
            if (type == HH_DTYPE_Q4_1) x[i] = hh_scaled(d, hh_nibble(b + 4, v), m);
            if (type == HH_DTYPE_Q5_0) x[i] = (float)(hh_five_bits(b + 6, b + 2, v) - 16) * d;
            if (type == HH_DTYPE_Q5_1) x[i] = hh_scaled(d, hh_five_bits(b + 8, b + 4, v), m);
        }
    }
}

/* A block of Q8_0 from the 32 values that the lanes of a warp hold. Blocks begin at even addresses. */
static __device__ __forceinline__ void hh_encode_q8_0(uint8_t *b, float x, int lane) {
    const float d = hh_warp_max(fabsf(x)) / 127.0f, inverse = d > 0.0f ? 1.0f / d : 0.0f;
    const float q = fminf(fmaxf(roundf(x * inverse), -127.0f), 127.0f);
    if (lane == 0) *(__half *)b = __float2half_rn(d);
    b[2 + lane] = (uint8_t)(int8_t)q;
}

#endif
