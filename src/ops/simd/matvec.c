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

/* Bytes by which weights are asked for ahead of their use: processors do not read ahead across pages by themselves. */
#define AHEAD ((size_t)4096)

enum { MOST = 4 }; /* sums at a time: four tokens that share a row, or four rows that share a token */

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

/* out[r * n + j] = row r . token j, of up to four pairs of them. Weights `bytes` apart. */
INLINE void dot_rows(float *out, load_fn *load, hh_dtype type, const char *w, size_t bytes, int rows, hh_tensor x,
                     int64_t t, int n, int64_t k) {
    const size_t size = type == HH_DTYPE_F32 ? 4 : 2,
                 ahead = AHEAD > (size_t)rows * bytes ? AHEAD : (size_t)rows * bytes;
    hh_vf acc[MOST] = {{0}};
    const float *xs[MOST];
    for (int j = 0; j < n; j++) xs[j] = hh_row(x, t + j);
    int64_t i = 0;
    for (; i + HH_VW <= k; i += HH_VW)
        for (int r = 0; r < rows; r++) {
            hh_vf v = load(w + (size_t)r * bytes, i);
            __builtin_prefetch(w + (size_t)r * bytes + (size_t)i * size + ahead);
            for (int j = 0; j < n; j++) acc[r * n + j] = hh_vfma(v, hh_vload(xs[j] + i), acc[r * n + j]);
        }
    for (int r = 0; i < k && r < rows; r++) {
        float rest[HH_VW] = {0};
        hh_dequantise_float(type, w + (size_t)r * bytes + hh_dtype_bytes(type, i), k - i, rest);
        for (int j = 0; j < n; j++)
            acc[r * n + j] = hh_vfma(hh_vload(rest), hh_vload_n(xs[j] + i, k - i), acc[r * n + j]);
    }
    for (int i2 = 0; i2 < rows * n; i2++) out[i2] = hh_vsum(acc[i2]);
}

/* One function a type, specialised for rows and tokens: so many of one that there are up to four sums. */
#define BY_SHAPE(call)                                                                                                 \
    switch (n) {                                                                                                       \
    case 1:                                                                                                            \
        if (rows == 4)                                                                                                 \
            call(4, 1);                                                                                                \
        else                                                                                                           \
            call(1, 1);                                                                                                \
        break;                                                                                                         \
    case 2:                                                                                                            \
        call(1, 2);                                                                                                    \
        break;                                                                                                         \
    case 3:                                                                                                            \
        call(1, 3);                                                                                                    \
        break;                                                                                                         \
    default:                                                                                                           \
        call(1, 4);                                                                                                    \
    }

#define CALL_F32(rows, n)  dot_rows(out, load_f32, HH_DTYPE_F32, w, bytes, rows, x, t, n, k)
#define CALL_BF16(rows, n) dot_rows(out, load_bf16, HH_DTYPE_BF16, w, bytes, rows, x, t, n, k)
#define CALL_F16(rows, n)  dot_rows(out, load_f16, HH_DTYPE_F16, w, bytes, rows, x, t, n, k)
static void dot_f32(float *out, const char *w, size_t bytes, int rows, hh_tensor x, int64_t t, int n, int64_t k) {
    BY_SHAPE(CALL_F32)
}
static void dot_bf16(float *out, const char *w, size_t bytes, int rows, hh_tensor x, int64_t t, int n, int64_t k) {
    BY_SHAPE(CALL_BF16)
}
static void dot_f16(float *out, const char *w, size_t bytes, int rows, hh_tensor x, int64_t t, int n, int64_t k) {
    BY_SHAPE(CALL_F16)
}

typedef bytes32 bytes_fn(const uint8_t *block, int j);
typedef floats2 pair_fn(const uint8_t *block);
typedef scales256 scales_fn(const uint8_t *block);

/* Rows in blocks of 32 (block_bytes each). d and m meet the token's scale and sum in one product of pairs. */
INLINE void dot_blocks_32(float *out, bytes_fn *bytes_of, pair_fn *pair_of, size_t block_bytes, bool has_min,
                          const uint8_t *w, size_t bytes, int rows, const rounded *x, int64_t t, int n, int64_t k) {
    hh_vf acc[MOST] = {{0}};
    floats2 least[MOST];
    const int64_t blocks = k / 32;
    const int16_t *q = x->q + t * k;
    const float *pair = x->pair + 2 * t * blocks;
    const size_t ahead = AHEAD > (size_t)rows * bytes ? AHEAD : (size_t)rows * bytes;
    for (int i = 0; i < rows * n; i++) least[i] = (floats2){0};
    for (int64_t b = 0; b < blocks; b++, w += block_bytes, q += 32, pair += 2)
        for (int r = 0; r < rows; r++) {
            const uint8_t *block = w + (size_t)r * bytes;
            __builtin_prefetch(block + ahead);
            const floats2 dm = pair_of(block);
            const bytes32 v = bytes_of(block, 0);
            for (int j = 0; j < n; j++) {
                const floats2 p = dm * load_two(pair + 2 * j * blocks);
                acc[r * n + j] = add_group(acc[r * n + j], v, q + j * k, p[0], 0, true);
                if (has_min) least[r * n + j] += p;
            }
        }
    for (int i = 0; i < rows * n; i++) out[i] = hh_vsum(acc[i]) + (has_min ? least[i][1] : 0);
}

/* Rows in blocks of 256. */
INLINE void dot_blocks_256(float *out, bytes_fn *bytes_of, scales_fn *scales_of, size_t block_bytes, bool has_min,
                           bool even, const uint8_t *w, size_t bytes, int rows, const rounded *x, int64_t t, int n,
                           int64_t k) {
    hh_vf acc[MOST] = {{0}};
    floats8 least[MOST];
    const int64_t groups = k / 32;
    const size_t ahead = AHEAD > (size_t)rows * bytes ? AHEAD : (size_t)rows * bytes;
    for (int i = 0; i < rows * n; i++) least[i] = zero_eight();
    for (int64_t b = 0; b < groups; b += 8, w += block_bytes)
        for (int r = 0; r < rows; r++) {
            const uint8_t *block = w + (size_t)r * bytes;
            for (size_t i = 0; i < block_bytes; i += 64) __builtin_prefetch(block + i + ahead);
            const scales256 s = scales_of(block);
            for (int j = 0; j < n && has_min; j++)
                least[r * n + j] = add_products(least[r * n + j], s.m, x->sum + (t + j) * groups + b);
#pragma GCC unroll 8
            for (int g = 0; g < 8; g++) {
                const bytes32 v = bytes_of(block, g);
                for (int j = 0; j < n; j++) {
                    const int64_t at = (t + j) * groups + b + g;
                    const float scale = x->scale[at];
                    acc[r * n + j] =
                        add_group(acc[r * n + j], v, x->q + at * 32, s.d[2 * g] * scale, s.d[2 * g + 1] * scale, even);
                }
            }
        }
    for (int i = 0; i < rows * n; i++) out[i] = hh_vsum(acc[i]) + sum_eight(least[i]);
}

#define CALL_Q8_0(rows, n) dot_blocks_32(out, bytes_q8_0, pair_q8_0, 34, false, w, bytes, rows, x, t, n, k)
#define CALL_Q4_0(rows, n) dot_blocks_32(out, bytes_q4_0, pair_q4_0, 18, false, w, bytes, rows, x, t, n, k)
#define CALL_Q4_1(rows, n) dot_blocks_32(out, bytes_q4_1, pair_q4_1, 20, true, w, bytes, rows, x, t, n, k)
#define CALL_Q5_0(rows, n) dot_blocks_32(out, bytes_q5_0, pair_q5_0, 22, false, w, bytes, rows, x, t, n, k)
#define CALL_Q5_1(rows, n) dot_blocks_32(out, bytes_q5_1, pair_q5_1, 24, true, w, bytes, rows, x, t, n, k)
#define DOT(type, call)                                                                                                \
    static void dot_##type(float *out, const uint8_t *w, size_t bytes, int rows, const rounded *x, int64_t t, int n,   \
                           int64_t k) {                                                                                \
        BY_SHAPE(call)                                                                                                 \
    }
DOT(q8_0, CALL_Q8_0)
DOT(q4_0, CALL_Q4_0)
DOT(q4_1, CALL_Q4_1)
DOT(q5_0, CALL_Q5_0)
DOT(q5_1, CALL_Q5_1)
#define CALL_Q4_K(rows, n) dot_blocks_256(out, bytes_q4_k, scales_q4_k, 144, true, true, w, bytes, rows, x, t, n, k)
#define CALL_Q5_K(rows, n) dot_blocks_256(out, bytes_q5_k, scales_q5_k, 176, true, true, w, bytes, rows, x, t, n, k)
#define CALL_Q6_K(rows, n) dot_blocks_256(out, bytes_q6_k, scales_q6_k, 210, false, false, w, bytes, rows, x, t, n, k)
DOT(q4_k, CALL_Q4_K)
DOT(q5_k, CALL_Q5_K)
DOT(q6_k, CALL_Q6_K)

/* One token to groups. */
static void round_token(const float *x, int64_t k, int16_t *q, float *scale, float *sum, float *pair) {
    for (int64_t b = 0; b < k / 32; b++) {
        round_group(q + 32 * b, &scale[b], &sum[b], x + 32 * b);
        pair[2 * b] = scale[b], pair[2 * b + 1] = sum[b];
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

/* out[r * n + j]: rows from `w` on, tokens from t on. */
static void dot_any(float *out, const job *j, hh_dtype type, const char *w, size_t bytes, int rows, int64_t t, int n,
                    float *buffer) {
    int64_t k = j->w->k;
    switch (type) {
    case HH_DTYPE_F32:
        dot_f32(out, w, bytes, rows, j->x, t, n, k);
        return;
    case HH_DTYPE_BF16:
        dot_bf16(out, w, bytes, rows, j->x, t, n, k);
        return;
    case HH_DTYPE_F16:
        dot_f16(out, w, bytes, rows, j->x, t, n, k);
        return;
#define CASE(type, TYPE, has_min)                                                                                      \
    case HH_DTYPE_##TYPE:                                                                                              \
        if (!j->r.q) break;                                                                                            \
        dot_##type(out, (const uint8_t *)w, bytes, rows, &j->r, t, n, k);                                              \
        return;
        HH_GROUP_TYPES_32(CASE)
        HH_GROUP_TYPES_256(CASE)
#undef CASE
    default:
        break;
    }
    for (int r = 0; r < rows; r++) {
        widen(type, buffer, w + (size_t)r * bytes, k);
        dot_f32(out + r * n, (const char *)buffer, 0, 1, j->x, t, n, k);
    }
}

static void multiply_rows(void *context, int64_t item, int thread) {
    const job *j = context;
    hh_arena *scratch = &j->be->thread_scratch[thread];
    size_t mark = scratch->used;
    float *buffer = hh_arena_alloc(scratch, (size_t)j->w->k * sizeof *buffer);
    const hh_linear_item it = hh_linear_item_at(j->w, j->step, item);
    const hh_tensor w = it.part->w;
    const float *bias = it.part->bias.data;
    const size_t bytes = hh_dtype_bytes(w.dtype, w.stride);
    const int64_t T = j->x.dim[0];
    for (int64_t r = it.lo; r < it.hi;) {
        const int rows = T == 1 && it.hi - r >= MOST ? MOST : 1;
        for (int64_t t = 0; t < T; t += MOST) {
            float out[MOST];
            const int n = T - t < MOST ? (int)(T - t) : MOST;
            dot_any(out, j, w.dtype, (const char *)w.data + (size_t)r * bytes, bytes, rows, t, n, buffer);
            for (int i = 0; i < rows * n; i++) { /* either one row or one token */
                const int64_t row = r + i / n;
                float *y = hh_row(j->y, t + i % n) + it.column + (row - it.lo);
                *y = (j->accumulate ? *y : 0) + out[i] + (bias ? bias[row] : 0);
            }
        }
        r += rows;
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
    if (be->precision != HH_PRECISION_F32 && has_quantised(w)) j.r = round_tokens(&be->scratch, x, w->k);
    int n_threads = w->n * w->k < 32768 ? 1 : be->n_threads;
    hh_parallel_for(n_threads, hh_linear_item_count(w, j.step), multiply_rows, &j);
    hh_arena_reset(&be->scratch, mark);
}
