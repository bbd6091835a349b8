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

typedef group unpack_fn(const uint8_t *block, int j);

/* acc += d * (q . x) over a group, in lanes. */
INLINE hh_vf add_group(hh_vf acc, group g, const int16_t *x, float scale) {
#if HH_VW == 16
    __m512i p = _mm512_madd_epi16(_mm512_cvtepi8_epi16(g.q), _mm512_loadu_si512(x));
    __m512 d = _mm512_insertf32x8(_mm512_set1_ps(g.d[0] * scale), _mm256_set1_ps(g.d[1] * scale), 1);
    return hh_vfma((hh_vf)_mm512_cvtepi32_ps(p), (hh_vf)d, acc);
#else
    __m256i lo = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(g.q));
    __m256i hi = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(g.q, 1));
    lo = _mm256_madd_epi16(lo, _mm256_loadu_si256((const void *)x));
    hi = _mm256_madd_epi16(hi, _mm256_loadu_si256((const void *)(x + 16)));
    hh_vf d0 = hh_vset(g.d[0] * scale);
    acc = hh_vfma((hh_vf)_mm256_cvtepi32_ps(lo), d0, acc);
    return hh_vfma((hh_vf)_mm256_cvtepi32_ps(hi), hh_vset(g.d[1] * scale), acc);
#endif
}

/* The same where both halves have one scale. */
INLINE hh_vf add_even_group(hh_vf acc, group g, const int16_t *x, float scale) {
#if HH_VW == 16
    __m512i p = _mm512_madd_epi16(_mm512_cvtepi8_epi16(g.q), _mm512_loadu_si512(x));
    return hh_vfma((hh_vf)_mm512_cvtepi32_ps(p), hh_vset(g.d[0] * scale), acc);
#else
    __m256i lo = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(g.q));
    __m256i hi = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(g.q, 1));
    lo = _mm256_madd_epi16(lo, _mm256_loadu_si256((const void *)x));
    hi = _mm256_madd_epi16(hi, _mm256_loadu_si256((const void *)(x + 16)));
    return hh_vfma((hh_vf)_mm256_cvtepi32_ps(_mm256_add_epi32(lo, hi)), hh_vset(g.d[0] * scale), acc);
#endif
}

INLINE void dot_groups(float *out, unpack_fn *unpack, size_t bytes, int groups, bool has_min, bool even,
                       const uint8_t *w, const rounded *r, int64_t t, int n, int64_t k) {
    hh_vf acc[MOST][2] = {{{0}}};
    float least[MOST] = {0};
    int64_t n_groups = k / 32;
    int64_t b = 0;
    /* Blocks of one group go in pairs, so that a token's sum is not one chain of additions. */
    for (; b + (groups > 1 ? groups : 2) <= n_groups; b += groups > 1 ? groups : 2)
#pragma GCC unroll 8
        for (int j = 0; j < (groups > 1 ? groups : 2); j++) {
            group g = groups > 1 ? unpack(w, j) : unpack(w + (size_t)j * bytes, 0);
            for (int i = 0; i < n; i++) {
                int64_t at = (t + i) * n_groups + b + j;
                acc[i][j & 1] = even ? add_even_group(acc[i][j & 1], g, r->q + at * 32, r->scale[at])
                                     : add_group(acc[i][j & 1], g, r->q + at * 32, r->scale[at]);
                if (has_min) least[i] += g.m * r->sum[at];
            }
            if (j + 1 == (groups > 1 ? groups : 2)) w += groups > 1 ? bytes : 2 * bytes;
        }
    for (; b < n_groups; b++, w += bytes) {
        group g = unpack(w, 0);
        for (int i = 0; i < n; i++) {
            int64_t at = (t + i) * n_groups + b;
            acc[i][0] = add_group(acc[i][0], g, r->q + at * 32, r->scale[at]);
            if (has_min) least[i] += g.m * r->sum[at];
        }
    }
    for (int i = 0; i < n; i++) out[i] = hh_vsum(acc[i][0] + acc[i][1]) + least[i];
}

#define DOT_GROUPS(type, TYPE, groups, has_min)                                                                        \
    static void dot_##type(float *out, const uint8_t *w, const rounded *r, int64_t t, int n, int64_t k) {              \
        const size_t bytes = hh_dtype_block_bytes(HH_DTYPE_##TYPE);                                                    \
        const bool even = HH_DTYPE_##TYPE != HH_DTYPE_Q6_K;                                                            \
        switch (n) {                                                                                                   \
        case 1:                                                                                                        \
            dot_groups(out, unpack_##type, bytes, groups, has_min, even, w, r, t, 1, k);                               \
            break;                                                                                                     \
        case 2:                                                                                                        \
            dot_groups(out, unpack_##type, bytes, groups, has_min, even, w, r, t, 2, k);                               \
            break;                                                                                                     \
        case 3:                                                                                                        \
            dot_groups(out, unpack_##type, bytes, groups, has_min, even, w, r, t, 3, k);                               \
            break;                                                                                                     \
        default:                                                                                                       \
            dot_groups(out, unpack_##type, bytes, groups, has_min, even, w, r, t, 4, k);                               \
        }                                                                                                              \
    }
HH_GROUP_TYPES(DOT_GROUPS)

/* One token to 16-bit groups. */
static void round_token(const float *x, int64_t k, int16_t *q, float *scale, float *sum) {
    for (int64_t b = 0; b < k / 32; b++, x += 32, q += 32) {
        hh_vf top = {0};
        for (int i = 0; i < 32; i += HH_VW) {
            hh_vf v = hh_vload(x + i);
            top = hh_vmax(top, hh_vmax(v, -v));
        }
        float most = hh_vmax_of(top), inverse = most > 0 ? 32767.0f / most : 0;
        hh_vi total = {0};
        for (int i = 0; i < 32; i += 8) {
            __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse)));
            __m128i p = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
            _mm_storeu_si128((void *)(q + i), p);
        }
        for (int i = 0; i < 32; i += HH_VW) {
            hh_vi v;
            for (int l = 0; l < HH_VW; l++) v[l] = q[i + l];
            total += v;
        }
        int32_t s = 0;
        for (int l = 0; l < HH_VW; l++) s += total[l];
        scale[b] = most / 32767.0f;
        sum[b] = scale[b] * (float)s;
    }
}

static rounded round_tokens(hh_arena *scratch, hh_tensor x, int64_t k) {
    int64_t T = x.dim[0];
    int16_t *q = hh_arena_alloc(scratch, (size_t)(T * k) * sizeof *q);
    float *scale = hh_arena_alloc(scratch, (size_t)(T * (k / 32)) * sizeof *scale);
    float *sum = hh_arena_alloc(scratch, (size_t)(T * (k / 32)) * sizeof *sum);
    for (int64_t t = 0; t < T; t++) round_token(hh_row(x, t), k, q + t * k, scale + t * (k / 32), sum + t * (k / 32));
    return (rounded){q, scale, sum};
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
#define CASE(type, TYPE, groups, has_min)                                                                              \
    case HH_DTYPE_##TYPE:                                                                                              \
        if (!j->r.q) break;                                                                                            \
        dot_##type(out, row, &j->r, t, n, k);                                                                          \
        return;
        HH_GROUP_TYPES(CASE)
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
