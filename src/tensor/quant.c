/* The block formats of GGUF, one function each. Apart from dtype.c because only these know bit layouts.
 *
 *   Q8_0  32 values, 34 bytes:    d f16, q int8[32]                           x = d q
 *   Q4_0  32 values, 18 bytes:    d f16, nibbles[16]                          x = d (q - 8)
 *   Q4_1  32 values, 20 bytes:    d f16, m f16, nibbles[16]                   x = d q + m
 *   Q5_0  32 values, 22 bytes:    d f16, fifth bits[4], nibbles[16]           x = d (q - 16)
 *   Q5_1  32 values, 24 bytes:    d f16, m f16, fifth bits[4], nibbles[16]    x = d q + m
 *   Q4_K  256 values, 144 bytes:  d f16, dmin f16, 8 pairs of 6-bit (scale, min) in 12 bytes, nibbles[128]
 *   Q5_K  256 values, 176 bytes:  the same with fifth bits[32] before the nibbles     x = d scale q - dmin min
 *   Q6_K  256 values, 210 bytes:  low nibbles[128], high bits[64], scale int8[16], d f16      x = d scale (q - 32)
 *
 * In blocks of 32 the low nibbles hold values 0..15 and the high ones 16..31. f16 and the fifth bits are little-endian.
 */
#include "tensor/quant.h"

#include "base/status.h"

#include <float.h>
#include <math.h>
#include <string.h>

static float load_half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return hh_f16_to_float(h);
}

static void store_half(uint8_t *p, float x) {
    uint16_t h = hh_f16_from_float(x);
    memcpy(p, &h, 2);
}

static void read_q8_0(const uint8_t *b, float *y) {
    float d = load_half(b);
    for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)b[2 + i] * d;
}

static void read_q4_0(const uint8_t *b, float *y) {
    float d = load_half(b);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)((b[2 + i] & 15) - 8) * d;
        y[16 + i] = (float)((b[2 + i] >> 4) - 8) * d;
    }
}

static void read_q4_1(const uint8_t *b, float *y) {
    float d = load_half(b), m = load_half(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)(b[4 + i] & 15) * d + m;
        y[16 + i] = (float)(b[4 + i] >> 4) * d + m;
    }
}

/* Value i of a block with nibbles at q and fifth bits at h. */
static int five_bits(const uint8_t *q, const uint8_t *h, int i) {
    int low = i < 16 ? q[i] & 15 : q[i - 16] >> 4;
    return low | ((h[i / 8] >> (i % 8)) & 1) << 4;
}

static void read_q5_0(const uint8_t *b, float *y) {
    float d = load_half(b);
    for (int i = 0; i < 32; i++) y[i] = (float)(five_bits(b + 6, b + 2, i) - 16) * d;
}

static void read_q5_1(const uint8_t *b, float *y) {
    float d = load_half(b), m = load_half(b + 2);
    for (int i = 0; i < 32; i++) y[i] = (float)five_bits(b + 8, b + 4, i) * d + m;
}

/* Scale and minimum of sub-block j of 8. The first four stand in the low six bits of bytes j and j+4; the others have
 * their low four bits in byte j+4 and their high two in the top bits of the first eight bytes. */
static void read_scale_min(const uint8_t *s, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* Q4_K, and Q5_K when `high` (its fifth bits) is there. Sub-blocks 2j and 2j+1 share bytes 32j..32j+31. */
static void read_k4_or_k5(const uint8_t *b, const uint8_t *high, const uint8_t *q, float *y) {
    float d = load_half(b), dmin = load_half(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        read_scale_min(b + 4, j, &scale, &min);
        float ds = d * (float)scale, dm = dmin * (float)min;
        for (int i = 0; i < 32; i++) {
            int low = (q[j / 2 * 32 + i] >> (j % 2 * 4)) & 15;
            int fifth = high ? ((high[i] >> j) & 1) << 4 : 0;
            y[j * 32 + i] = ds * (float)(low | fifth) - dm;
        }
    }
}

static void read_q4_k(const uint8_t *b, float *y) {
    read_k4_or_k5(b, NULL, b + 16, y);
}

static void read_q5_k(const uint8_t *b, float *y) {
    read_k4_or_k5(b, b + 16, b + 48, y);
}

/* Each half of 128 values: 64 bytes of nibbles, 32 bytes that hold two high bits for four rows of 32 values. */
static void read_q6_k(const uint8_t *b, float *y) {
    const uint8_t *scale = b + 192;
    float d = load_half(b + 208);
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = b + half * 64, *high = b + 128 + half * 32;
        for (int row = 0; row < 4; row++) {
            for (int i = 0; i < 32; i++) {
                int q = (low[row % 2 * 32 + i] >> (row / 2 * 4)) & 15;
                q |= ((high[i] >> (row * 2)) & 3) << 4;
                float ds = d * (float)(int8_t)scale[half * 8 + row * 2 + i / 16];
                y[half * 128 + row * 32 + i] = ds * (float)(q - 32);
            }
        }
    }
}

void hh_blocks_to_float(hh_dtype t, const uint8_t *src, int64_t n, float *dst) {
    typedef void read_block(const uint8_t *, float *);
    static read_block *const readers[HH_DTYPE_COUNT] = {
        [HH_DTYPE_Q8_0] = read_q8_0, [HH_DTYPE_Q4_0] = read_q4_0, [HH_DTYPE_Q4_1] = read_q4_1,
        [HH_DTYPE_Q5_0] = read_q5_0, [HH_DTYPE_Q5_1] = read_q5_1, [HH_DTYPE_Q4_K] = read_q4_k,
        [HH_DTYPE_Q5_K] = read_q5_k, [HH_DTYPE_Q6_K] = read_q6_k,
    };
    HH_ASSERT(readers[t]);
    int64_t block = hh_dtype_block(t);
    size_t bytes = hh_dtype_block_bytes(t);
    HH_ASSERT(n % block == 0);
    for (int64_t i = 0; i < n; i += block, src += bytes) readers[t](src, dst + i);
}

/* x truncated into [0, top]; NaN gives 0. */
static uint8_t level(float x, int top) {
    if (!(x > 0)) return 0;
    return x < (float)top ? (uint8_t)x : (uint8_t)top;
}

static void write_nibbles(const float *x, float shift, float inverse, float offset, uint8_t *q) {
    for (int i = 0; i < 16; i++) {
        uint8_t lo = level((x[i] - shift) * inverse + offset, 15);
        uint8_t hi = level((x[16 + i] - shift) * inverse + offset, 15);
        q[i] = (uint8_t)(lo | hi << 4);
    }
}

/* A KV cache is written through this, so its loops are such that compilers make vectors of them: in lanes, without calls.
 * A value that is no number makes the whole block so: it is not lost on its way to the logits. */
static void write_q8_0(const float *x, uint8_t *b) {
    enum { LANES = 8 };
    float most[LANES] = {0}, top = 0, d;
    bool numbers = true;
    for (int i = 0; i < 32; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const float a = fabsf(x[i + j]);
            most[j] = a > most[j] ? a : most[j];
            numbers &= a <= FLT_MAX;
        }
    for (int j = 0; j < LANES; j++) top = most[j] > top ? most[j] : top;
    d = numbers ? top / 127 : NAN;
    const float inverse = d > 0 ? 1 / d : 0;
    store_half(b, d);
    for (int i = 0; i < 32; i++) {
        float q = x[i] * inverse;
        q = q > -127 ? (q < 127 ? q : 127) : -127;
        /* Half away from zero, as roundf has it: the float below a half, so that nothing smaller is rounded up. */
        b[2 + i] = (uint8_t)(int8_t)(int)(q + copysignf(0x1.fffffep-2F, q));
    }
}

/* The value of largest magnitude becomes level 0 (-8), which has no positive counterpart. */
static void write_q4_0(const float *x, uint8_t *b) {
    float top = 0, value = 0;
    for (int i = 0; i < 32; i++) {
        if (fabsf(x[i]) > top) {
            top = fabsf(x[i]);
            value = x[i];
        }
    }
    float d = value / -8;
    store_half(b, d);
    write_nibbles(x, 0, d != 0 ? 1 / d : 0, 8.5F, b + 2);
}

static void write_q4_1(const float *x, uint8_t *b) {
    float min = x[0], max = x[0];
    for (int i = 1; i < 32; i++) {
        min = fminf(min, x[i]);
        max = fmaxf(max, x[i]);
    }
    float d = (max - min) / 15;
    store_half(b, d);
    store_half(b + 2, min);
    write_nibbles(x, min, d > 0 ? 1 / d : 0, 0.5F, b + 4);
}

void hh_block_from_float(hh_dtype t, const float *src, uint8_t *dst) {
    switch (t) {
    case HH_DTYPE_Q8_0:
        write_q8_0(src, dst);
        break;
    case HH_DTYPE_Q4_0:
        write_q4_0(src, dst);
        break;
    case HH_DTYPE_Q4_1:
        write_q4_1(src, dst);
        break;
    default:
        hh_assert_failed(__FILE__, __LINE__, "a block format that is only read");
    }
}
