/* Groups of 32 weights out of GGUF's blocks: the bit layouts, shared by the products and by dequantisation.
 *
 * A group is 32 signed bytes q and says x_i = d q_i + m, with one d for the first 16 values and one for the last 16
 * (they differ in Q6_K alone; the compiler sees where they are the same). unpack_<type>(block, j) takes group j of a
 * block; j is a constant wherever speed matters. Layouts: tensor/quant.c. For x86 only; elsewhere HH_GROUPS is 0 and
 * quantised rows are widened by tensor/.
 */
#ifndef HH_OPS_SIMD_GROUPS_H
#define HH_OPS_SIMD_GROUPS_H

#include "ops/simd/simd.h"

#if defined(__AVX2__)
#define HH_GROUPS 1

typedef struct group {
    __m256i q;
    float d[2], m;
} group;

#define GROUP_INLINE static inline __attribute__((always_inline))

GROUP_INLINE float load_half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return hh_half_to_float(h);
}

/* 16 bytes of nibbles: the low ones, then the high ones. */
GROUP_INLINE __m256i load_nibbles(const uint8_t *p) {
    __m128i b = _mm_loadu_si128((const void *)p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(b, 4), b), _mm256_set1_epi8(15));
}

/* 32 bits to 32 bytes of 0 or 16. */
GROUP_INLINE __m256i load_fifth_bits(const uint8_t *p) {
    uint32_t bits;
    memcpy(&bits, p, 4);
    const __m256i spread =
        _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i one = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i b = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread);
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(b, one), one);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

GROUP_INLINE group unpack_q8_0(const uint8_t *b, int j) {
    (void)j;
    float d = load_half(b);
    return (group){.q = _mm256_loadu_si256((const void *)(b + 2)), .d = {d, d}};
}

GROUP_INLINE group unpack_q4_0(const uint8_t *b, int j) {
    (void)j;
    float d = load_half(b);
    return (group){.q = _mm256_sub_epi8(load_nibbles(b + 2), _mm256_set1_epi8(8)), .d = {d, d}};
}

GROUP_INLINE group unpack_q4_1(const uint8_t *b, int j) {
    (void)j;
    float d = load_half(b);
    return (group){.q = load_nibbles(b + 4), .d = {d, d}, .m = load_half(b + 2)};
}

GROUP_INLINE group unpack_q5_0(const uint8_t *b, int j) {
    (void)j;
    float d = load_half(b);
    __m256i q = _mm256_or_si256(load_nibbles(b + 6), load_fifth_bits(b + 2));
    return (group){.q = _mm256_sub_epi8(q, _mm256_set1_epi8(16)), .d = {d, d}};
}

GROUP_INLINE group unpack_q5_1(const uint8_t *b, int j) {
    (void)j;
    float d = load_half(b);
    __m256i q = _mm256_or_si256(load_nibbles(b + 8), load_fifth_bits(b + 4));
    return (group){.q = q, .d = {d, d}, .m = load_half(b + 2)};
}

/* Scale and minimum of sub-block j, see tensor/quant.c. */
GROUP_INLINE void load_scale_min(const uint8_t *s, int j, float *scale, float *min) {
    if (j < 4) {
        *scale = (float)(s[j] & 63);
        *min = (float)(s[j + 4] & 63);
    } else {
        *scale = (float)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *min = (float)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
}

/* Nibbles of row j: of bytes 32 (j/2) ..., low for even j. */
GROUP_INLINE __m256i load_nibble_row(const uint8_t *q, int j) {
    __m256i b = _mm256_loadu_si256((const void *)(q + j / 2 * 32));
    return _mm256_and_si256(j % 2 ? _mm256_srli_epi16(b, 4) : b, _mm256_set1_epi8(15));
}

GROUP_INLINE group unpack_q4_k(const uint8_t *b, int j) {
    float scale, min;
    load_scale_min(b + 4, j, &scale, &min);
    float d = load_half(b) * scale;
    return (group){.q = load_nibble_row(b + 16, j), .d = {d, d}, .m = -load_half(b + 2) * min};
}

GROUP_INLINE group unpack_q5_k(const uint8_t *b, int j) {
    float scale, min;
    load_scale_min(b + 4, j, &scale, &min);
    float d = load_half(b) * scale;
    __m256i bit = _mm256_set1_epi8((char)(1 << j));
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_loadu_si256((const void *)(b + 16)), bit), bit);
    __m256i q = _mm256_or_si256(load_nibble_row(b + 48, j), _mm256_and_si256(set, _mm256_set1_epi8(16)));
    return (group){.q = q, .d = {d, d}, .m = -load_half(b + 2) * min};
}

GROUP_INLINE group unpack_q6_k(const uint8_t *b, int j) {
    int half = j / 4, row = j % 4;
    __m256i low = _mm256_loadu_si256((const void *)(b + half * 64 + row % 2 * 32));
    low = _mm256_and_si256(row / 2 ? _mm256_srli_epi16(low, 4) : low, _mm256_set1_epi8(15));
    __m256i high = _mm256_loadu_si256((const void *)(b + 128 + half * 32));
    high = _mm256_and_si256(_mm256_srli_epi16(high, row * 2), _mm256_set1_epi8(3));
    __m256i q = _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
    const int8_t *scale = (const int8_t *)(b + 192) + half * 8 + row * 2;
    float d = load_half(b + 208);
    return (group){.q = _mm256_sub_epi8(q, _mm256_set1_epi8(32)), .d = {d * (float)scale[0], d * (float)scale[1]}};
}

/* X(type, TYPE, groups of a block, whether m can differ from 0) */
#define HH_GROUP_TYPES(X)                                                                                              \
    X(q8_0, Q8_0, 1, 0)                                                                                                \
    X(q4_0, Q4_0, 1, 0)                                                                                                \
    X(q4_1, Q4_1, 1, 1)                                                                                                \
    X(q5_0, Q5_0, 1, 0)                                                                                                \
    X(q5_1, Q5_1, 1, 1)                                                                                                \
    X(q4_k, Q4_K, 8, 1)                                                                                                \
    X(q5_k, Q5_K, 8, 1)                                                                                                \
    X(q6_k, Q6_K, 8, 0)

#else
#define HH_GROUPS 0
#endif

#endif
