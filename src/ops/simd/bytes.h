/* What an instruction set must know so that GGUF's blocks can be taken apart (groups.h) and multiplied (matvec.c): 32
 * bytes, pairs and eights of floats, and the product of 32 signed bytes with 32 rounded activations.
 *
 * Activations are rounded to integers of at most HH_ROUND_TOP in groups of 32 (round_group); how a group lies in its 64
 * bytes is known to this file alone: as 16-bit integers, or, where processors multiply bytes (dotprod), x = 256 h + l
 * with l and h of 16 values each as signed bytes.
 */
#ifndef HH_OPS_SIMD_BYTES_H
#define HH_OPS_SIMD_BYTES_H

#include "ops/simd/simd.h"

#define GROUP_INLINE static inline __attribute__((always_inline))

/* bytes32: a group, values 0..15 and 16..31. row32: the same before it is split. floats2: in the low lanes. */
#if defined(__AVX2__)

typedef struct bytes32 {
    __m128i lo, hi;
} bytes32;
typedef __m256i row32;
typedef __m128 floats2;
typedef __m256 floats8;

GROUP_INLINE bytes32 split(row32 q) {
    return (bytes32){_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1)};
}
GROUP_INLINE bytes32 load_bytes(const uint8_t *p) {
    return (bytes32){_mm_loadu_si128((const void *)p), _mm_loadu_si128((const void *)(p + 16))};
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
GROUP_INLINE bytes32 subtract(bytes32 a, int8_t n) {
    return (bytes32){_mm_sub_epi8(a.lo, _mm_set1_epi8(n)), _mm_sub_epi8(a.hi, _mm_set1_epi8(n))};
}

/* 32 bytes at p, shifted right (left where `right` is negative), and of that the bits of mask. No bit of the mask may
 * come from another byte. */
GROUP_INLINE row32 load_row(const uint8_t *p, int right, uint8_t mask) {
    __m256i b = _mm256_loadu_si256((const void *)p);
    b = right < 0 ? _mm256_slli_epi16(b, -right) : _mm256_srli_epi16(b, right);
    return _mm256_and_si256(b, _mm256_set1_epi8((char)mask));
}
GROUP_INLINE row32 join_rows(row32 a, row32 b) {
    return _mm256_or_si256(a, b);
}

GROUP_INLINE floats2 load_one_half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm_cvtph_ps(_mm_cvtsi32_si128(h));
}
GROUP_INLINE floats2 load_two_halves(const uint8_t *p) {
    int32_t h;
    memcpy(&h, p, 4);
    return _mm_cvtph_ps(_mm_cvtsi32_si128(h));
}
GROUP_INLINE floats2 load_two(const float *p) {
    return _mm_castsi128_ps(_mm_loadl_epi64((const void *)p));
}

GROUP_INLINE floats8 zero_eight(void) {
    return _mm256_setzero_ps();
}
/* d times eight bytes. */
GROUP_INLINE floats8 scale_unsigned(uint64_t bytes, float d) {
    __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
    return _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(wide));
}
GROUP_INLINE floats8 scale_signed(uint64_t bytes, float d) {
    __m256i wide = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)bytes));
    return _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(wide));
}
GROUP_INLINE void store_eight(float *to, floats8 a) {
    _mm256_storeu_ps(to, a);
}
/* Each twice. */
GROUP_INLINE void store_doubled(float *to, floats8 a) {
    __m256 lo = _mm256_unpacklo_ps(a, a), hi = _mm256_unpackhi_ps(a, a);
    _mm256_storeu_ps(to, _mm256_permute2f128_ps(lo, hi, 0x20));
    _mm256_storeu_ps(to + 8, _mm256_permute2f128_ps(lo, hi, 0x31));
}
/* acc + the products of eight at x and at y. */
GROUP_INLINE floats8 add_products(floats8 acc, const float *x, const float *y) {
    return _mm256_fmadd_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(y), acc);
}
GROUP_INLINE float sum_eight(floats8 a) {
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return h[0] + h[1];
}

#define HH_ROUND_TOP 32767.0f
GROUP_INLINE void lay_out_group(int16_t *q) {
    (void)q;
}

/* acc += d0 (q . x) of the first half + d1 (q . x) of the second, in lanes. `even`: d0 and d1 are one number. */
GROUP_INLINE hh_vf add_group(hh_vf acc, bytes32 q, const int16_t *x, float d0, float d1, bool even) {
#if HH_VW == 16
    __m512i p = _mm512_madd_epi16(_mm512_cvtepi8_epi16(_mm256_set_m128i(q.hi, q.lo)), _mm512_loadu_si512(x));
    __m512 d = _mm512_set1_ps(d0);
    if (!even) d = _mm512_insertf32x8(d, _mm256_set1_ps(d1), 1);
    return hh_vfma((hh_vf)_mm512_cvtepi32_ps(p), (hh_vf)d, acc);
#else
    __m256i lo = _mm256_madd_epi16(_mm256_cvtepi8_epi16(q.lo), _mm256_loadu_si256((const void *)x));
    __m256i hi = _mm256_madd_epi16(_mm256_cvtepi8_epi16(q.hi), _mm256_loadu_si256((const void *)(x + 16)));
    if (even) return hh_vfma((hh_vf)_mm256_cvtepi32_ps(_mm256_add_epi32(lo, hi)), hh_vset(d0), acc);
    acc = hh_vfma((hh_vf)_mm256_cvtepi32_ps(lo), hh_vset(d0), acc);
    return hh_vfma((hh_vf)_mm256_cvtepi32_ps(hi), hh_vset(d1), acc);
#endif
}

/* to[0..15] = d q + m. */
GROUP_INLINE void store_half(float *to, __m128i q, hh_vf d, hh_vf m) {
#if HH_VW == 16
    hh_vstore(to, hh_vfma((hh_vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)), d, m));
#else
    hh_vf lo = (hh_vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
    hh_vf hi = (hh_vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(q, 8)));
    hh_vstore(to, hh_vfma(lo, d, m));
    hh_vstore(to + 8, hh_vfma(hi, d, m));
#endif
}

#elif defined(__ARM_NEON)

typedef struct bytes32 {
    int8x16_t lo, hi;
} bytes32;
typedef bytes32 row32;
typedef float32x2_t floats2;
typedef struct floats8 {
    float32x4_t lo, hi;
} floats8;

GROUP_INLINE bytes32 split(row32 q) {
    return q;
}
GROUP_INLINE bytes32 load_bytes(const uint8_t *p) {
    return (bytes32){vreinterpretq_s8_u8(vld1q_u8(p)), vreinterpretq_s8_u8(vld1q_u8(p + 16))};
}
static inline float hh_group_top(const float *x) {
    uint32x4_t top = vdupq_n_u32(0);
    for (int i = 0; i < 32; i += 4)
        top = vmaxq_u32(top, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), vdupq_n_u32(0x7fffffff)));
    const uint32_t bits = vmaxvq_u32(top);
    float most;
    memcpy(&most, &bits, sizeof most);
    return most;
}
GROUP_INLINE bytes32 load_nibbles(const uint8_t *p) {
    const uint8x16_t b = vld1q_u8(p);
    return (bytes32){vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8(15))), vreinterpretq_s8_u8(vshrq_n_u8(b, 4))};
}
GROUP_INLINE bytes32 load_fifth_bits(const uint8_t *p) {
    const uint8x16_t one = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u)), sixteen = vdupq_n_u8(16);
    const uint8x16_t lo = vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1]));
    const uint8x16_t hi = vcombine_u8(vdup_n_u8(p[2]), vdup_n_u8(p[3]));
    return (bytes32){vreinterpretq_s8_u8(vandq_u8(vtstq_u8(lo, one), sixteen)),
                     vreinterpretq_s8_u8(vandq_u8(vtstq_u8(hi, one), sixteen))};
}
GROUP_INLINE bytes32 join_bits(bytes32 a, bytes32 b) {
    return (bytes32){vorrq_s8(a.lo, b.lo), vorrq_s8(a.hi, b.hi)};
}
GROUP_INLINE bytes32 subtract(bytes32 a, int8_t n) {
    return (bytes32){vsubq_s8(a.lo, vdupq_n_s8(n)), vsubq_s8(a.hi, vdupq_n_s8(n))};
}
GROUP_INLINE row32 load_row(const uint8_t *p, int right, uint8_t mask) {
    const int8x16_t by = vdupq_n_s8((int8_t)-right); /* a negative count shifts right */
    const uint8x16_t lo = vshlq_u8(vld1q_u8(p), by), hi = vshlq_u8(vld1q_u8(p + 16), by), of = vdupq_n_u8(mask);
    return (bytes32){vreinterpretq_s8_u8(vandq_u8(lo, of)), vreinterpretq_s8_u8(vandq_u8(hi, of))};
}
#define join_rows join_bits

GROUP_INLINE floats2 load_two_halves(const uint8_t *p) {
    uint32_t h;
    memcpy(&h, p, 4);
    return vget_low_f32(vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(h))));
}
GROUP_INLINE floats2 load_one_half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return vget_low_f32(vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(h))));
}
GROUP_INLINE floats2 load_two(const float *p) {
    return vld1_f32(p);
}

GROUP_INLINE floats8 zero_eight(void) {
    return (floats8){vdupq_n_f32(0), vdupq_n_f32(0)};
}
GROUP_INLINE floats8 scale_unsigned(uint64_t bytes, float d) {
    const uint16x8_t wide = vmovl_u8(vcreate_u8(bytes));
    return (floats8){vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), d),
                     vmulq_n_f32(vcvtq_f32_u32(vmovl_high_u16(wide)), d)};
}
GROUP_INLINE floats8 scale_signed(uint64_t bytes, float d) {
    const int16x8_t wide = vmovl_s8(vcreate_s8(bytes));
    return (floats8){vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), d),
                     vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(wide)), d)};
}
GROUP_INLINE void store_eight(float *to, floats8 a) {
    vst1q_f32(to, a.lo);
    vst1q_f32(to + 4, a.hi);
}
GROUP_INLINE void store_doubled(float *to, floats8 a) {
    const float32x4x2_t lo = {{a.lo, a.lo}}, hi = {{a.hi, a.hi}};
    vst2q_f32(to, lo);
    vst2q_f32(to + 8, hi);
}
GROUP_INLINE floats8 add_products(floats8 acc, const float *x, const float *y) {
    return (floats8){vfmaq_f32(acc.lo, vld1q_f32(x), vld1q_f32(y)),
                     vfmaq_f32(acc.hi, vld1q_f32(x + 4), vld1q_f32(y + 4))};
}
GROUP_INLINE float sum_eight(floats8 a) {
    return vaddvq_f32(vaddq_f32(a.lo, a.hi));
}

#if defined(__ARM_FEATURE_DOTPROD)

#define HH_ROUND_TOP 32639.0f /* 127 * 256 + 127 */
GROUP_INLINE void lay_out_group(int16_t *q) {
    for (int i = 0; i < 32; i += 16) {
        const int16x8_t a = vld1q_s16(q + i), b = vld1q_s16(q + i + 8), half = vdupq_n_s16(128);
        const int8x16_t low = vuzp1q_s8(vreinterpretq_s8_s16(a), vreinterpretq_s8_s16(b));
        const int8x16_t high =
            vuzp2q_s8(vreinterpretq_s8_s16(vaddq_s16(a, half)), vreinterpretq_s8_s16(vaddq_s16(b, half)));
        vst1q_s8((int8_t *)(q + i), low);
        vst1q_s8((int8_t *)(q + i + 8), high);
    }
}
/* acc and the products of 16 bytes with 16 activations: |.| <= 2^23 a lane. */
typedef struct low_high {
    int32x4_t low, high;
} low_high;
GROUP_INLINE low_high dot_half(low_high acc, int8x16_t q, const int16_t *x) {
    return (low_high){vdotq_s32(acc.low, q, vld1q_s8((const int8_t *)x)),
                      vdotq_s32(acc.high, q, vld1q_s8((const int8_t *)(x + 8)))};
}
GROUP_INLINE hh_vf finish_dot(low_high a) {
    return (hh_vf)vcvtq_f32_s32(vmlaq_n_s32(a.low, a.high, 256));
}
#define NO_PRODUCTS  ((low_high){vdupq_n_s32(0), vdupq_n_s32(0)})

#else

#define HH_ROUND_TOP 32767.0f
GROUP_INLINE void lay_out_group(int16_t *q) {
    (void)q;
}
GROUP_INLINE int32x4_t dot_half(int32x4_t acc, int8x16_t q, const int16_t *x) {
    const int16x8_t a = vmovl_s8(vget_low_s8(q)), b = vmovl_high_s8(q), u = vld1q_s16(x), v = vld1q_s16(x + 8);
    acc = vmlal_s16(acc, vget_low_s16(a), vget_low_s16(u));
    acc = vmlal_high_s16(acc, a, u);
    acc = vmlal_s16(acc, vget_low_s16(b), vget_low_s16(v));
    return vmlal_high_s16(acc, b, v);
}
GROUP_INLINE hh_vf finish_dot(int32x4_t a) {
    return (hh_vf)vcvtq_f32_s32(a);
}
#define NO_PRODUCTS  vdupq_n_s32(0)

#endif

GROUP_INLINE hh_vf add_group(hh_vf acc, bytes32 q, const int16_t *x, float d0, float d1, bool even) {
    if (even) return hh_vfma(finish_dot(dot_half(dot_half(NO_PRODUCTS, q.lo, x), q.hi, x + 16)), hh_vset(d0), acc);
    acc = hh_vfma(finish_dot(dot_half(NO_PRODUCTS, q.lo, x)), hh_vset(d0), acc);
    return hh_vfma(finish_dot(dot_half(NO_PRODUCTS, q.hi, x + 16)), hh_vset(d1), acc);
}

GROUP_INLINE void store_half(float *to, int8x16_t q, hh_vf d, hh_vf m) {
    const int16x8_t half[2] = {vmovl_s8(vget_low_s8(q)), vmovl_high_s8(q)};
    for (int i = 0; i < 2; i++, to += 8) {
        hh_vstore(to, hh_vfma((hh_vf)vcvtq_f32_s32(vmovl_s16(vget_low_s16(half[i]))), d, m));
        hh_vstore(to + 4, hh_vfma((hh_vf)vcvtq_f32_s32(vmovl_high_s16(half[i])), d, m));
    }
}

#endif

/* 32 numbers to a group: x = scale q. *sum is that of scale q. What is not finite gives a scale that is not. */
GROUP_INLINE void round_group(int16_t *q, float *scale, float *sum, const float *x) {
    const float most = hh_group_top(x), inverse = most >= 1e-30f ? HH_ROUND_TOP / most : 0;
    hh_vf total = {0};
    for (int i = 0; i < 32; i += HH_VW) {
        const hh_vi v = hh_vround(hh_vload(x + i) * inverse);
        hh_vstore_i16(q + i, v);
        total += hh_int_to_float(v);
    }
    lay_out_group(q);
    *scale = most / HH_ROUND_TOP;
    *sum = *scale * hh_vsum(total);
}

#endif
