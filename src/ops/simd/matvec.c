/* y = W x for few tokens, the product of decoding: bound by reading W once, so weights are multiplied as they are
 * stored.
 *
 * Quantised weights are multiplied in integers: x is rounded, in groups of 32, to 16 bits (|error| <= 2^-16 of the
 * group's largest value, which is float's own grade beside 4 to 8 bits of weight), q to 16 bits by sign extension, and
 * products of pairs are summed in 32 bits: |q x| < 2^22 and four of them are added. That is 7 instructions for 32
 * weights with AVX2, where converting to float takes 13, and costs one rounding where int8 activations cost one of
 * 2^-8. Under HH_PRECISION_F32 rows are widened to float instead.
 */
#include "ops/simd/linear_parts.h"
#include "ops/simd/widen.h"

#include "base/parallel.h"

#define INLINE static inline __attribute__((always_inline))

enum { MOST = 4 }; /* tokens that share one pass over a row */

/* Tokens in groups of 32: x = scale q; sum is that of scale q over the group. */
typedef struct rounded {
    const int16_t *q;   /* [T, K] */
    const float *scale; /* [T, K/32] */
    const float *sum;   /* [T, K/32] */
    const float *pair;  /* [T, K/32, 2]: scale, sum */
} rounded;

typedef struct job {
    hh_backend *be;
    hh_tensor y, x;
    const hh_linear *w;
    bool accumulate;
    rounded r;
    int64_t step; /* rows of an item */
} job;

/* The float types: `load` widens HH_VW weights at p + i elements. */
typedef hh_vf load_fn(const void *p, int64_t i);

INLINE hh_vf load_f32(const void *p, int64_t i) {
    return hh_vload((const float *)p + i);
}
INLINE hh_vf load_bf16(const void *p, int64_t i) {
    return hh_vload_bf16((const uint16_t *)p + i);
}
INLINE hh_vf load_f16(const void *p, int64_t i) {
    return hh_vload_f16((const uint16_t *)p + i);
}

INLINE void dot_row(float *out, load_fn *load, const void *w, hh_dtype type, hh_tensor x, int64_t t, int n, int64_t k) {
    hh_vf acc[MOST][4] = {{{0}}};
    const float *xs[MOST];
    const int unroll = n == 1 ? 4 : 2;
    for (int j = 0; j < n; j++) xs[j] = hh_row(x, t + j);
    int64_t i = 0;
    for (; i + unroll * HH_VW <= k; i += unroll * HH_VW)
        for (int u = 0; u < unroll; u++) {
            hh_vf v = load(w, i + u * HH_VW);
            for (int j = 0; j < n; j++) acc[j][u] = hh_vfma(v, hh_vload(xs[j] + i + u * HH_VW), acc[j][u]);
        }
    for (; i < k; i += HH_VW) {
        int64_t m = k - i < HH_VW ? k - i : HH_VW;
        float rest[HH_VW] = {0};
        hh_dequantise_float(type, (const char *)w + hh_dtype_bytes(type, i), m, rest);
        for (int j = 0; j < n; j++)
            acc[j][0] = hh_vfma(hh_vload(rest), m < HH_VW ? hh_vload_n(xs[j] + i, m) : hh_vload(xs[j] + i), acc[j][0]);
    }
    for (int j = 0; j < n; j++) out[j] = hh_vsum((acc[j][0] + acc[j][1]) + (acc[j][2] + acc[j][3]));
}

#define DOT_FLOAT(type, TYPE)                                                                                          \
    static void dot_##type(float *out, const void *w, hh_tensor x, int64_t t, int n, int64_t k) {                      \
        switch (n) {                                                                                                   \
        case 1:                                                                                                        \
            dot_row(out, load_##type, w, HH_DTYPE_##TYPE, x, t, 1, k);                                                 \
            break;                                                                                                     \
        case 2:                                                                                                        \
            dot_row(out, load_##type, w, HH_DTYPE_##TYPE, x, t, 2, k);                                                 \
            break;                                                                                                     \
        case 3:                                                                                                        \
            dot_row(out, load_##type, w, HH_DTYPE_##TYPE, x, t, 3, k);                                                 \
            break;                                                                                                     \
        default:                                                                                                       \
            dot_row(out, load_##type, w, HH_DTYPE_##TYPE, x, t, 4, k);                                                 \
        }                                                                                                              \
    }
DOT_FLOAT(f32, F32)
DOT_FLOAT(bf16, BF16)
DOT_FLOAT(f16, F16)

#if HH_GROUPS

typedef bytes32 bytes_fn(const uint8_t *block, int j);
typedef __m128 pair_fn(const uint8_t *block);
typedef scales256 scales_fn(const uint8_t *block);

/* acc += d0 (q . x) of the first half + d1 (q . x) of the second, in lanes. `even`: d0 and d1 are one number. */
INLINE hh_vf add_group(hh_vf acc, bytes32 q, const int16_t *x, float d0, float d1, bool even) {
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

/* A row in blocks of 32. d and m meet the token's scale and sum in one product of pairs. Alone a token has two sums, so
 * that additions do not wait for one another. */
INLINE void dot_blocks_32(float *out, bytes_fn *bytes_of, pair_fn *pair_of, size_t bytes, bool has_min,
                          const uint8_t *w, const rounded *r, int64_t t, int n, int64_t k) {
    hh_vf acc[MOST] = {{0}}, other = {0};
    __m128 least[MOST];
    const int64_t blocks = k / 32;
    const int16_t *x = r->q + t * k;
    const float *xp = r->pair + 2 * t * blocks;
    for (int i = 0; i < n; i++) least[i] = _mm_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, w += bytes, x += 32, xp += 2) {
        __m128 pair = pair_of(w);
        bytes32 q = bytes_of(w, 0);
        for (int i = 0; i < n; i++) {
            __m128 p = _mm_mul_ps(pair, _mm_castsi128_ps(_mm_loadl_epi64((const void *)(xp + 2 * i * blocks))));
            acc[i] = add_group(acc[i], q, x + i * k, _mm_cvtss_f32(p), 0, true);
            if (has_min) least[i] = _mm_add_ps(least[i], p);
        }
        if (n == 1) {
            hh_vf swap = acc[0];
            acc[0] = other;
            other = swap;
        }
    }
    acc[0] += other;
    for (int i = 0; i < n; i++) out[i] = hh_vsum(acc[i]) + (has_min ? least[i][1] : 0);
}

/* A row in blocks of 256. */
INLINE void dot_blocks_256(float *out, bytes_fn *bytes_of, scales_fn *scales_of, size_t bytes, bool has_min, bool even,
                           const uint8_t *w, const rounded *r, int64_t t, int n, int64_t k) {
    hh_vf acc[MOST] = {{0}};
    __m256 least[MOST];
    for (int i = 0; i < n; i++) least[i] = _mm256_setzero_ps();
    for (int64_t b = 0; b < k / 32; b += 8, w += bytes) {
        scales256 s = scales_of(w);
        if (has_min)
            for (int i = 0; i < n; i++)
                least[i] =
                    _mm256_fmadd_ps(_mm256_loadu_ps(s.m), _mm256_loadu_ps(r->sum + (t + i) * (k / 32) + b), least[i]);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            bytes32 q = bytes_of(w, j);
            for (int i = 0; i < n; i++) {
                int64_t at = (t + i) * (k / 32) + b + j;
                float scale = r->scale[at];
                acc[i] = add_group(acc[i], q, r->q + at * 32, s.d[2 * j] * scale, s.d[2 * j + 1] * scale, even);
            }
        }
    }
    for (int i = 0; i < n; i++) {
        __m128 h = _mm_add_ps(_mm256_castps256_ps128(least[i]), _mm256_extractf128_ps(least[i], 1));
        h = _mm_add_ps(h, _mm_movehl_ps(h, h));
        out[i] = hh_vsum(acc[i]) + h[0] + h[1];
    }
}

/* One function a type, specialised for the number of tokens. */
#define DOT(type, call)                                                                                                \
    static void dot_##type(float *out, const uint8_t *w, const rounded *r, int64_t t, int n, int64_t k) {              \
        switch (n) {                                                                                                   \
        case 1:                                                                                                        \
            call(1);                                                                                                   \
            break;                                                                                                     \
        case 2:                                                                                                        \
            call(2);                                                                                                   \
            break;                                                                                                     \
        case 3:                                                                                                        \
            call(3);                                                                                                   \
            break;                                                                                                     \
        default:                                                                                                       \
            call(4);                                                                                                   \
        }                                                                                                              \
    }
#define DOT_Q8_0(n) dot_blocks_32(out, bytes_q8_0, pair_q8_0, 34, false, w, r, t, n, k)
#define DOT_Q4_0(n) dot_blocks_32(out, bytes_q4_0, pair_q4_0, 18, false, w, r, t, n, k)
#define DOT_Q4_1(n) dot_blocks_32(out, bytes_q4_1, pair_q4_1, 20, true, w, r, t, n, k)
#define DOT_Q5_0(n) dot_blocks_32(out, bytes_q5_0, pair_q5_0, 22, false, w, r, t, n, k)
#define DOT_Q5_1(n) dot_blocks_32(out, bytes_q5_1, pair_q5_1, 24, true, w, r, t, n, k)
#define DOT_Q4_K(n) dot_blocks_256(out, bytes_q4_k, scales_q4_k, 144, true, true, w, r, t, n, k)
#define DOT_Q5_K(n) dot_blocks_256(out, bytes_q5_k, scales_q5_k, 176, true, true, w, r, t, n, k)
#define DOT_Q6_K(n) dot_blocks_256(out, bytes_q6_k, scales_q6_k, 210, false, false, w, r, t, n, k)
DOT(q8_0, DOT_Q8_0)
DOT(q4_0, DOT_Q4_0)
DOT(q4_1, DOT_Q4_1)
DOT(q5_0, DOT_Q5_0)
DOT(q5_1, DOT_Q5_1)
DOT(q4_k, DOT_Q4_K)
DOT(q5_k, DOT_Q5_K)
DOT(q6_k, DOT_Q6_K)

/* One token to 16-bit groups. */
static void round_token(const float *x, int64_t k, int16_t *q, float *scale, float *sum, float *pair) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int64_t b = 0; b < k / 32; b++, x += 32, q += 32) {
        __m256 top = _mm256_setzero_ps();
        for (int i = 0; i < 32; i += 8) top = _mm256_max_ps(top, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)));
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
        m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        float most = m[0] > m[1] ? m[0] : m[1], inverse = most > 0 ? 32767.0f / most : 0;
        __m256i total = _mm256_setzero_si256();
        for (int i = 0; i < 32; i += 8) {
            __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse)));
            total = _mm256_add_epi32(total, v);
            _mm_storeu_si128((void *)(q + i),
                             _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
        }
        __m128i h = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
        h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
        int32_t whole = _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
        scale[b] = pair[2 * b] = most / 32767.0f;
        sum[b] = pair[2 * b + 1] = scale[b] * (float)whole;
    }
}

static rounded round_tokens(hh_arena *scratch, hh_tensor x, int64_t k) {
    int64_t T = x.dim[0];
    int16_t *q = hh_arena_alloc(scratch, (size_t)(T * k) * sizeof *q);
    float *scale = hh_arena_alloc(scratch, (size_t)(T * (k / 32)) * sizeof *scale);
    float *sum = hh_arena_alloc(scratch, (size_t)(T * (k / 32)) * sizeof *sum);
    float *pair = hh_arena_alloc(scratch, (size_t)(2 * T * (k / 32)) * sizeof *pair);
    for (int64_t t = 0; t < T; t++)
        round_token(hh_row(x, t), k, q + t * k, scale + t * (k / 32), sum + t * (k / 32), pair + 2 * t * (k / 32));
    return (rounded){q, scale, sum, pair};
}
#endif

static void dot_any(float *out, const job *j, hh_dtype type, const void *row, int64_t t, int n, float *buffer) {
    int64_t k = j->w->k;
    switch (type) {
    case HH_DTYPE_F32:
        dot_f32(out, row, j->x, t, n, k);
        return;
    case HH_DTYPE_BF16:
        dot_bf16(out, row, j->x, t, n, k);
        return;
    case HH_DTYPE_F16:
        dot_f16(out, row, j->x, t, n, k);
        return;
#if HH_GROUPS
#define CASE(type, TYPE, has_min)                                                                                      \
    case HH_DTYPE_##TYPE:                                                                                              \
        if (!j->r.q) break;                                                                                            \
        dot_##type(out, row, &j->r, t, n, k);                                                                          \
        return;
        HH_GROUP_TYPES_32(CASE)
        HH_GROUP_TYPES_256(CASE)
#undef CASE
#endif
    default:
        break;
    }
    if (t == 0) widen(type, buffer, row, k);
    dot_f32(out, buffer, j->x, t, n, k);
}

static void multiply_rows(void *context, int64_t item, int thread) {
    const job *j = context;
    hh_arena *scratch = &j->be->thread_scratch[thread];
    size_t mark = scratch->used;
    float *buffer = hh_arena_alloc(scratch, (size_t)j->w->k * sizeof *buffer);
    hh_linear_item it = hh_linear_item_at(j->w, j->step, item);
    hh_tensor w = it.part->w;
    const float *bias = it.part->bias.data;
    size_t row = hh_dtype_bytes(w.dtype, w.stride);
    for (int64_t r = it.lo; r < it.hi; r++) {
        for (int64_t t = 0; t < j->x.dim[0]; t += MOST) {
            float out[MOST];
            int n = j->x.dim[0] - t < MOST ? (int)(j->x.dim[0] - t) : MOST;
            dot_any(out, j, w.dtype, (const char *)w.data + (size_t)r * row, t, n, buffer);
            for (int i = 0; i < n; i++) {
                float *y = hh_row(j->y, t + i) + it.column + (r - it.lo);
                *y = (j->accumulate ? *y : 0) + out[i] + (bias ? bias[r] : 0);
            }
        }
    }
    hh_arena_reset(scratch, mark);
}

static bool has_quantised(const hh_linear *w) {
    for (int p = 0; p < w->n_parts; p++)
        if (hh_dtype_is_quantised(w->part[p].w.dtype)) return true;
    return false;
}

/* Items of some microseconds, several a thread; a small matrix is not shared at all. */
static int64_t choose_step(const hh_backend *be, const hh_linear *w) {
    int64_t weights = w->n * w->k / (8 * be->n_threads);
    if (weights < 16384) weights = 16384;
    if (weights > 262144) weights = 262144;
    return (weights + w->k - 1) / w->k;
}

void HH_SIMD_NAME(linear_few)(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w, bool accumulate) {
    size_t mark = be->scratch.used;
    job j = {.be = be, .y = y, .x = x, .w = w, .accumulate = accumulate, .step = choose_step(be, w)};
#if HH_GROUPS
    if (be->precision != HH_PRECISION_F32 && has_quantised(w)) j.r = round_tokens(&be->scratch, x, w->k);
#else
    (void)has_quantised;
#endif
    int n_threads = w->n * w->k < 32768 ? 1 : be->n_threads;
    hh_parallel_for(n_threads, hh_linear_item_count(w, j.step), multiply_rows, &j);
    hh_arena_reset(&be->scratch, mark);
}
