/* Vectors of float for the fast CPU kernels: one source for every instruction set.
 *
 * Every .c file of this folder is compiled once for each ISA (HH_ISA is its name, the compiler has its flags), never in
 * the double build. Functions that leave a file are named HH_SIMD_NAME(op), which is hh_<op>_<isa>; all others are
 * static. HH_VW floats make a vector: 16 (AVX-512), 8 (AVX2) or 4 (NEON). Arithmetic on hh_vf and hh_vi is written with the
 * operators of C (GCC and clang vector extensions); only what they lack is here. Comparisons give hh_vi masks of 0 /
 * -1.
 *
 * A loop over n floats: full vectors up to n - n % HH_VW, then hh_vload_n / hh_vstore_n for the rest.
 */
#ifndef HH_OPS_SIMD_SIMD_H
#define HH_OPS_SIMD_SIMD_H

#include "ops/ops.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define HH_SIMD_PASTE_(op, isa) hh_##op##_##isa
#define HH_SIMD_PASTE(op, isa)  HH_SIMD_PASTE_(op, isa)
#define HH_SIMD_NAME(op)        HH_SIMD_PASTE(op, HH_ISA)

#define HH_SIMD(name) hh_##name##_fn HH_SIMD_NAME(name);
#include "ops/simd/table.def"
#undef HH_SIMD
void HH_SIMD_NAME(override)(hh_ops *ops);

#if defined(__AVX512F__)
#define HH_VW 16
#elif defined(__AVX2__)
#define HH_VW 8
#else
#define HH_VW 4
#endif

typedef float hh_vf __attribute__((vector_size(HH_VW * 4)));
typedef int32_t hh_vi __attribute__((vector_size(HH_VW * 4)));
typedef uint32_t hh_vu __attribute__((vector_size(HH_VW * 4)));
typedef uint16_t hh_vu16 __attribute__((vector_size(HH_VW * 2)));
/* The same in memory at any address. */
typedef float hh_vf_any __attribute__((vector_size(HH_VW * 4), aligned(4), may_alias));
typedef uint16_t hh_vu16_any __attribute__((vector_size(HH_VW * 2), aligned(2), may_alias));

static inline hh_vf hh_vset(float a) {
    return a - (hh_vf){0};
}
static inline hh_vi hh_vset_int(int32_t a) {
    return a + (hh_vi){0};
}
static inline hh_vf hh_vload(const float *p) {
    return *(const hh_vf_any *)p;
}
static inline void hh_vstore(float *p, hh_vf a) {
    *(hh_vf_any *)p = a;
}

/* 0, 1, 2, ... */
static inline hh_vi hh_viota(void) {
#if HH_VW == 16
    return (hh_vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif HH_VW == 8
    return (hh_vi){0, 1, 2, 3, 4, 5, 6, 7};
#else
    return (hh_vi){0, 1, 2, 3};
#endif
}

/* The first n < HH_VW floats at p, zeros behind them; nothing beyond them is touched. */
static inline hh_vf hh_vload_n(const float *p, int64_t n) {
#if defined(__AVX512F__)
    return (hh_vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif defined(__AVX2__)
    return (hh_vf)_mm256_maskload_ps(p, (__m256i)(hh_viota() < hh_vset_int((int32_t)n)));
#else
    float a[HH_VW] = {0};
    for (int64_t i = 0; i < n; i++) a[i] = p[i];
    return hh_vload(a);
#endif
}

static inline void hh_vstore_n(float *p, hh_vf a, int64_t n) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)a);
#elif defined(__AVX2__)
    _mm256_maskstore_ps(p, (__m256i)(hh_viota() < hh_vset_int((int32_t)n)), (__m256)a);
#else
    for (int64_t i = 0; i < n; i++) p[i] = a[i];
#endif
}

/* a * b + c, rounded once where the processor can. */
static inline hh_vf hh_vfma(hh_vf a, hh_vf b, hh_vf c) {
#if defined(__AVX512F__)
    return (hh_vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (hh_vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return (hh_vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#endif
}

/* Where mask is all ones a, elsewhere b. */
static inline hh_vf hh_vselect(hh_vi mask, hh_vf a, hh_vf b) {
    return (hh_vf)(((hh_vi)a & mask) | ((hh_vi)b & ~mask));
}

/* max and min take b where a is NaN or b is (as x86 does). */
static inline hh_vf hh_vmax(hh_vf a, hh_vf b) {
#if defined(__AVX512F__)
    return (hh_vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (hh_vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return hh_vselect(a > b, a, b);
#endif
}
static inline hh_vf hh_vmin(hh_vf a, hh_vf b) {
#if defined(__AVX512F__)
    return (hh_vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (hh_vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return hh_vselect(a < b, a, b);
#endif
}

static inline hh_vf hh_vsqrt(hh_vf a) {
#if defined(__AVX512F__)
    return (hh_vf)_mm512_sqrt_ps((__m512)a);
#elif defined(__AVX2__)
    return (hh_vf)_mm256_sqrt_ps((__m256)a);
#else
    return (hh_vf)vsqrtq_f32((float32x4_t)a);
#endif
}

/* To the nearest integer, ties to even; what does not fit gives any. And back. */
static inline hh_vi hh_vround(hh_vf a) {
#if defined(__AVX512F__)
    return (hh_vi)_mm512_cvtps_epi32((__m512)a);
#elif defined(__AVX2__)
    return (hh_vi)_mm256_cvtps_epi32((__m256)a);
#else
    return (hh_vi)vcvtnq_s32_f32((float32x4_t)a);
#endif
}
static inline hh_vf hh_int_to_float(hh_vi a) {
    return __builtin_convertvector(a, hh_vf);
}
/* Integers that fit 16 bits. */
static inline void hh_vstore_i16(int16_t *p, hh_vi a) {
    *(hh_vu16_any *)p = __builtin_convertvector((hh_vu)a, hh_vu16);
}

/* Sum and maximum of the elements, always in the same order. */
static inline float hh_vsum(hh_vf a) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256((__m512)a), _mm512_extractf32x8_ps((__m512)a, 1));
#else
    __m256 h = (__m256)a;
#endif
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
#else
    return vaddvq_f32((float32x4_t)a);
#endif
}
static inline float hh_vmax_of(hh_vf a) {
    float m = a[0];
    for (int i = 1; i < HH_VW; i++) m = a[i] > m ? a[i] : m;
    return m;
}

/* Whether any element of a mask is set. */
static inline bool hh_vany(hh_vi mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
    return vmaxvq_u32((uint32x4_t)mask) != 0;
#endif
}

/* HH_VW numbers of bf16 or f16 at any address, widened exactly. */
static inline hh_vf hh_vload_bf16(const uint16_t *p) {
#if defined(__AVX512F__)
    return (hh_vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16);
#elif defined(__AVX2__)
    return (hh_vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16);
#else
    return (hh_vf)vshll_n_u16(vld1_u16(p), 16);
#endif
}
static inline hh_vf hh_vload_f16(const uint16_t *p) {
#if defined(__AVX512F__)
    return (hh_vf)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
#elif defined(__AVX2__)
    return (hh_vf)_mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
#else
    return (hh_vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#endif
}
static inline float hh_half_to_float(uint16_t h) {
#if defined(__AVX2__)
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
#else
    return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(h)))[0];
#endif
}
/* To bf16, rounded to nearest even; a NaN stays one. */
static inline void hh_vstore_bf16(uint16_t *p, hh_vf a) {
    hh_vu u = (hh_vu)a;
    hh_vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    hh_vu nan = (hh_vu)(a != a);
    *(hh_vu16_any *)p = __builtin_convertvector((rounded & ~nan) | (((u >> 16) | 0x40u) & nan), hh_vu16);
}
/* HH_VW signed bytes to float. */
static inline hh_vf hh_vload_i8(const int8_t *p) {
#if defined(__AVX512F__)
    return (hh_vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
#elif defined(__AVX2__)
    return (hh_vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
#else
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return (hh_vf)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
#endif
}

/* e^a to within 2 units in the last place; subnormal results, 0, infinity and NaN as exp gives them. */
static inline hh_vf hh_vexp(hh_vf a) {
    const hh_vf magic = hh_vset(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    hh_vf x = hh_vmin(hh_vset(89.0f), hh_vmax(hh_vset(-104.0f), a)); /* the order of operands lets NaN through */
    hh_vf shifted = hh_vfma(x, hh_vset(1.44269504f), magic);
    hh_vf n = shifted - magic;
    hh_vf r = hh_vfma(n, hh_vset(-0.693359375f), x); /* ln 2 in two parts */
    r = hh_vfma(n, hh_vset(2.12194440e-4f), r);
    hh_vf p = hh_vset(1.9875691500e-4f);
    p = hh_vfma(p, r, hh_vset(1.3981999507e-3f));
    p = hh_vfma(p, r, hh_vset(8.3334519073e-3f));
    p = hh_vfma(p, r, hh_vset(4.1665795894e-2f));
    p = hh_vfma(p, r, hh_vset(1.6666665459e-1f));
    p = hh_vfma(p, r, hh_vset(5.0000001201e-1f));
    p = hh_vfma(p, r * r, r + 1.0f);
    hh_vi k = (hh_vi)shifted - (hh_vi)magic, half = k >> 1; /* 2^k in two steps, so that k = 128 and subnormals work */
    return p * (hh_vf)((half + 127) << 23) * (hh_vf)((k - half + 127) << 23);
}

static inline hh_vf hh_vsigmoid(hh_vf a) {
    return 1.0f / (1.0f + hh_vexp(-a));
}

/* sum of x[i] * y[i]. */
static inline float hh_vdot(const float *x, const float *y, int64_t n) {
    hh_vf s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + 4 * HH_VW <= n; i += 4 * HH_VW) {
        s0 = hh_vfma(hh_vload(x + i), hh_vload(y + i), s0);
        s1 = hh_vfma(hh_vload(x + i + HH_VW), hh_vload(y + i + HH_VW), s1);
        s2 = hh_vfma(hh_vload(x + i + 2 * HH_VW), hh_vload(y + i + 2 * HH_VW), s2);
        s3 = hh_vfma(hh_vload(x + i + 3 * HH_VW), hh_vload(y + i + 3 * HH_VW), s3);
    }
    for (; i + HH_VW <= n; i += HH_VW) s0 = hh_vfma(hh_vload(x + i), hh_vload(y + i), s0);
    if (i < n) s1 = hh_vfma(hh_vload_n(x + i, n - i), hh_vload_n(y + i, n - i), s1);
    return hh_vsum((s0 + s1) + (s2 + s3));
}

#endif
