/* Groups of 32 weights out of GGUF's blocks: the bit layouts, shared by the products and by dequantisation.
 *
 * A group is 32 signed bytes q and says x_i = d q_i + m. bytes_<type>(block, j) takes the bytes of group j of a block;
 * j is a constant wherever speed matters. Blocks of one group have pair_<type>: d and m in the low lanes of a vector.
 * Blocks of eight have scales_<type>: d of every 16 values and m of every 32. Layouts: tensor/quant.c. For x86 only;
 * elsewhere HH_GROUPS is 0 and quantised rows are widened by tensor/.
 */
#ifndef HH_OPS_SIMD_GROUPS_H
#define HH_OPS_SIMD_GROUPS_H

#include "ops/simd/simd.h"

#if defined(__AVX2__)
#define HH_GROUPS 1

typedef struct bytes32 {
    __m128i lo, hi; /* values 0..15, 16..31 */
} bytes32;

#define GROUP_INLINE static inline __attribute__((always_inline))

GROUP_INLINE bytes32 split(__m256i q) {
    return (bytes32){_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1)};
}

/* The largest of 32 magnitudes, compared as integers: NaN above infinity above all others. */
static inline float hh_group_top(const float *x) {
#if HH_VW == 16
    const __m512i low = _mm512_set1_epi32(0x7fffffff);
    const __m512i top = _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(x), low),
                                         _mm512_and_si512(_mm512_loadu_si512(x + 16), low));
    const int32_t bits = _mm512_reduce_max_epi32(top);
#else
    const __m256i low = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_and_si256(_mm256_loadu_si256((const void *)x), low);
    for (int i = 8; i < 32; i += 8)
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_loadu_si256((const void *)(x + i)), low));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    const int32_t bits = _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
#endif
    float most;
    memcpy(&most, &bits, sizeof most);
    return most;
}

/* 16 bytes of nibbles: the low ones, then the high ones. */
GROUP_INLINE bytes32 load_nibbles(const uint8_t *p) {
    __m128i b = _mm_loadu_si128((const void *)p), low = _mm_set1_epi8(15);
    return (bytes32){_mm_and_si128(b, low), _mm_and_si128(_mm_srli_epi16(b, 4), low)};
}

/* 32 bits to 32 bytes of 0 or 16. */
GROUP_INLINE bytes32 load_fifth_bits(const uint8_t *p) {
    uint32_t bits;
    memcpy(&bits, p, 4);
    const __m256i spread =
        _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i one = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i b = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread);
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(b, one), one);
    return split(_mm256_and_si256(set, _mm256_set1_epi8(16)));
}

GROUP_INLINE bytes32 join_bits(bytes32 a, bytes32 b) {
    return (bytes32){_mm_or_si128(a.lo, b.lo), _mm_or_si128(a.hi, b.hi)};
}

GROUP_INLINE bytes32 subtract(bytes32 a, char n) {
    return (bytes32){_mm_sub_epi8(a.lo, _mm_set1_epi8(n)), _mm_sub_epi8(a.hi, _mm_set1_epi8(n))};
}

GROUP_INLINE __m128 load_one_half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm_cvtph_ps(_mm_cvtsi32_si128(h));
}

GROUP_INLINE __m128 load_two_halves(const uint8_t *p) {
    int32_t h;
    memcpy(&h, p, 4);
    return _mm_cvtph_ps(_mm_cvtsi32_si128(h));
}

GROUP_INLINE bytes32 bytes_q8_0(const uint8_t *b, int j) {
    (void)j;
    return (bytes32){_mm_loadu_si128((const void *)(b + 2)), _mm_loadu_si128((const void *)(b + 18))};
}
GROUP_INLINE bytes32 bytes_q4_0(const uint8_t *b, int j) {
    (void)j;
    return subtract(load_nibbles(b + 2), 8);
}
GROUP_INLINE bytes32 bytes_q4_1(const uint8_t *b, int j) {
    (void)j;
    return load_nibbles(b + 4);
}
GROUP_INLINE bytes32 bytes_q5_0(const uint8_t *b, int j) {
    (void)j;
    return subtract(join_bits(load_nibbles(b + 6), load_fifth_bits(b + 2)), 16);
}
GROUP_INLINE bytes32 bytes_q5_1(const uint8_t *b, int j) {
    (void)j;
    return join_bits(load_nibbles(b + 8), load_fifth_bits(b + 4));
}
#define pair_q8_0 load_one_half
#define pair_q4_0 load_one_half
#define pair_q4_1 load_two_halves
#define pair_q5_0 load_one_half
#define pair_q5_1 load_two_halves

/* Nibbles of row j: of bytes 32 (j/2) ..., low for even j. */
GROUP_INLINE __m256i load_nibble_row(const uint8_t *q, int j) {
    __m256i b = _mm256_loadu_si256((const void *)(q + j / 2 * 32));
    return _mm256_and_si256(j % 2 ? _mm256_srli_epi16(b, 4) : b, _mm256_set1_epi8(15));
}

GROUP_INLINE bytes32 bytes_q4_k(const uint8_t *b, int j) {
    return split(load_nibble_row(b + 16, j));
}
GROUP_INLINE bytes32 bytes_q5_k(const uint8_t *b, int j) {
    __m256i bit = _mm256_set1_epi8((char)(1 << j));
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_loadu_si256((const void *)(b + 16)), bit), bit);
    return split(_mm256_or_si256(load_nibble_row(b + 48, j), _mm256_and_si256(set, _mm256_set1_epi8(16))));
}
GROUP_INLINE bytes32 bytes_q6_k(const uint8_t *b, int j) {
    int half = j / 4, row = j % 4;
    __m256i low = _mm256_loadu_si256((const void *)(b + half * 64 + row % 2 * 32));
    low = _mm256_and_si256(row / 2 ? _mm256_srli_epi16(low, 4) : low, _mm256_set1_epi8(15));
    __m256i high = _mm256_loadu_si256((const void *)(b + 128 + half * 32));
    high = _mm256_and_si256(_mm256_srli_epi16(high, row * 2), _mm256_set1_epi8(3));
    return subtract(split(_mm256_or_si256(low, _mm256_slli_epi16(high, 4))), 32);
}

/* Of a block of 256: d of values 16 i ... in d[i], m of values 32 i ... in m[i]. */
typedef struct scales256 {
    float d[16], m[8];
} scales256;

/* Eight 6-bit scales and minima, see tensor/quant.c, each in its own byte. */
GROUP_INLINE void load_six_bits(const uint8_t *b, uint64_t *scale, uint64_t *min) {
    uint32_t s[3];
    memcpy(s, b, 12);
    const uint32_t low = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x03030303;
    *scale = (uint64_t)(((s[2] & four) | ((s[0] >> 6 & two) << 4))) << 32 | (s[0] & low);
    *min = (uint64_t)(((s[2] >> 4 & four) | ((s[1] >> 6 & two) << 4))) << 32 | (s[1] & low);
}

GROUP_INLINE scales256 scales_q4_k(const uint8_t *b) {
    scales256 s;
    uint64_t scale, min;
    load_six_bits(b + 4, &scale, &min);
    __m128 dm = load_two_halves(b);
    __m256 d = _mm256_broadcastss_ps(dm), m = _mm256_broadcastss_ps(_mm_movehdup_ps(dm));
    d = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)scale))));
    m = _mm256_mul_ps(m, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)min))));
    __m256 lo = _mm256_unpacklo_ps(d, d), hi = _mm256_unpackhi_ps(d, d);
    _mm256_storeu_ps(s.d, _mm256_permute2f128_ps(lo, hi, 0x20));
    _mm256_storeu_ps(s.d + 8, _mm256_permute2f128_ps(lo, hi, 0x31));
    _mm256_storeu_ps(s.m, _mm256_sub_ps(_mm256_setzero_ps(), m));
    return s;
}
#define scales_q5_k scales_q4_k
GROUP_INLINE scales256 scales_q6_k(const uint8_t *b) {
    scales256 s = {{0}, {0}};
    __m256 d = _mm256_broadcastss_ps(load_one_half(b + 208));
    for (int i = 0; i < 16; i += 8) {
        __m256i scale = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(b + 192 + i)));
        _mm256_storeu_ps(s.d + i, _mm256_mul_ps(d, _mm256_cvtepi32_ps(scale)));
    }
    return s;
}

/* X(type, TYPE, whether m can differ from 0) */
#define HH_GROUP_TYPES_32(X)                                                                                           \
    X(q8_0, Q8_0, 0)                                                                                                   \
    X(q4_0, Q4_0, 0)                                                                                                   \
    X(q4_1, Q4_1, 1)                                                                                                   \
    X(q5_0, Q5_0, 0)                                                                                                   \
    X(q5_1, Q5_1, 1)
#define HH_GROUP_TYPES_256(X)                                                                                          \
    X(q4_k, Q4_K, 1)                                                                                                   \
    X(q5_k, Q5_K, 1)                                                                                                   \
    X(q6_k, Q6_K, 0)

#else
#define HH_GROUPS 0
#endif

#endif
