/* The linear map of many tokens in pairs of 16-bit integers (pairs.h): tokens are rounded once a call, weights when a tile is
 * laid out. Those of Q8_0, Q4_0 and Q5_0 are integers already and stay what they are; all others go by way of float. */
#include "ops/simd/linear_parts.h"
#include "ops/simd/pairs.h"
#include "ops/simd/widen.h"

#include "base/parallel.h"

#if HH_PAIRS

enum {
    DEPTH = 512, /* columns of K at a time: a panel of them takes half of the first cache */
    TOKENS = 96  /* rows of x that one panel meets before the next */
};

typedef struct round_job {
    hh_tensor x;
    int16_t *q;
    float *scale;
    int64_t ld;
} round_job;

static void round_row(void *context, int64_t t, int thread) {
    const round_job *j = context;
    (void)thread;
    const int64_t K = hh_tensor_row_count(j->x), whole = K / HH_PAIR_GROUP, rest = K % HH_PAIR_GROUP;
    const float *x = hh_row(j->x, t);
    int16_t *q = j->q + t * j->ld;
    float *scale = j->scale + t * j->ld / HH_PAIR_GROUP;
    hh_pairs_round(q, scale, 1, x, whole);
    if (!rest) return;
    float last[HH_PAIR_GROUP] = {0};
    memcpy(last, x + whole * HH_PAIR_GROUP, sizeof(float) * (size_t)rest);
    hh_pairs_round(q + whole * HH_PAIR_GROUP, scale + whole, 1, last, 1);
}

int64_t HH_SIMD_NAME(linear_pair_bytes)(int64_t k) {
    const int64_t ld = hh_pair_round(k);
    return ld * (int64_t)sizeof(int16_t) + ld / HH_PAIR_GROUP * (int64_t)sizeof(float);
}

hh_pair_rows HH_SIMD_NAME(linear_pair_rows)(hh_backend *be, hh_tensor x) {
    const int64_t T = x.dim[0], ld = hh_pair_round(hh_tensor_row_count(x));
    round_job j = {x, hh_arena_alloc(&be->scratch, (size_t)(T * ld) * sizeof *j.q),
                   hh_arena_alloc(&be->scratch, (size_t)(T * ld / HH_PAIR_GROUP) * sizeof *j.scale), ld};
    hh_parallel_for(T * ld < 65536 ? 1 : be->n_threads, T, round_row, &j);
    return hh_pair_rows_of(j.q, j.scale, ld);
}

/* Blocks of 32 integers that are stored as such: q to 16 bits, d as it is. */
#define COPY(type)                                                                                                     \
    static void copy_##type(int16_t *q, float *scale, const uint8_t *from, int64_t groups, size_t bytes) {             \
        for (int64_t g = 0; g < groups; g++, from += bytes, q += HH_PAIR_GROUP) {                                      \
            const bytes32 v = bytes_##type(from, 0);                                                                   \
            scale[g * HH_PANEL] = _mm_cvtss_f32(pair_##type(from));                                                    \
            _mm256_storeu_si256((void *)q, _mm256_cvtepi8_epi16(v.lo));                                                \
            _mm256_storeu_si256((void *)(q + 16), _mm256_cvtepi8_epi16(v.hi));                                         \
        }                                                                                                              \
    }
COPY(q8_0)
COPY(q4_0)
COPY(q5_0)

/* Columns [k0, k0 + depth) of a row to integers; zeros up to a whole group. */
static void round_weights(int16_t *q, float *scale, hh_tensor w, int64_t row, int64_t k0, int64_t depth,
                          float *buffer) {
    const uint8_t *from =
        (const uint8_t *)w.data + (size_t)row * hh_dtype_bytes(w.dtype, w.stride) + hh_dtype_bytes(w.dtype, k0);
    const int64_t padded = hh_pair_round(depth), groups = padded / HH_PAIR_GROUP;
    const size_t block = hh_dtype_block_bytes(w.dtype);
    switch (w.dtype) {
    case HH_DTYPE_Q8_0:
        copy_q8_0(q, scale, from, groups, block);
        return;
    case HH_DTYPE_Q4_0:
        copy_q4_0(q, scale, from, groups, block);
        return;
    case HH_DTYPE_Q5_0:
        copy_q5_0(q, scale, from, groups, block);
        return;
    default:
        widen(w.dtype, buffer, from, depth);
        for (int64_t i = depth; i < padded; i++) buffer[i] = 0;
        hh_pairs_round(q, scale, HH_PANEL, buffer, groups);
    }
}

/* A panel of integers by pairs, [depth / 2][HH_PANEL][2], with scale [groups][HH_PANEL]; zeros behind the last of n rows. `rows`
 * [HH_PANEL, depth] and `buffer` [depth] are work memory. */
static void pack_panel(int16_t *to, float *scale, hh_tensor w, int64_t lo, int64_t n, int64_t k0, int64_t depth,
                       int16_t *rows, float *buffer) {
    const int64_t ld = hh_pair_round(depth);
    for (int64_t i = 0; i < HH_PANEL; i++) {
        if (i < n) {
            round_weights(rows + i * ld, scale + i, w, lo + i, k0, depth, buffer);
        } else {
            memset(rows + i * ld, 0, sizeof *rows * (size_t)ld);
            for (int64_t g = 0; g < ld / HH_PAIR_GROUP; g++) scale[g * HH_PANEL + i] = 0;
        }
    }
    /* pairs are moved like floats, whole vectors at a time */
    hh_transpose((float *)(void *)to, HH_PANEL, (const float *)(const void *)rows, ld / 2, HH_PANEL, (int)(ld / 2));
}

/* y's columns of a part's last rows, which do not fill a panel, by way of `edge` [tokens, HH_PANEL]. */
static void multiply_edge(float *y, int64_t stride, bool add, hh_pair_rows x, const int16_t *panel, const float *scale,
                          float *edge, int64_t tokens, int64_t groups, int64_t n) {
    for (int64_t t = 0; add && t < tokens; t++)
        for (int64_t i = 0; i < HH_PANEL; i++) edge[t * HH_PANEL + i] = i < n ? y[t * stride + i] : 0;
    hh_pair_product(edge, HH_PANEL, add, x, panel, scale, tokens, groups);
    for (int64_t t = 0; t < tokens; t++) memcpy(y + t * stride, edge + t * HH_PANEL, sizeof(float) * (size_t)n);
}

void HH_SIMD_NAME(linear_pair_tile)(hh_arena *scratch, hh_tensor y, hh_pair_rows x, int64_t K, hh_linear_item it,
                                    int64_t t0, int64_t t1, bool add) {
    const int64_t n = it.hi - it.lo, panels = hh_panel_round(n) / HH_PANEL, groups_of_panel = DEPTH / HH_PAIR_GROUP;
    int16_t *packed = hh_arena_alloc(scratch, sizeof *packed * (size_t)(panels * HH_PANEL * DEPTH));
    int16_t *rows = hh_arena_alloc(scratch, sizeof *rows * HH_PANEL * DEPTH);
    float *scale = hh_arena_alloc(scratch, sizeof *scale * (size_t)(panels * HH_PANEL * groups_of_panel));
    float *buffer = hh_arena_alloc(scratch, sizeof *buffer * DEPTH);
    float *edge = hh_arena_alloc(scratch, sizeof *edge * TOKENS * HH_PANEL);
    for (int64_t k0 = 0; k0 < K; k0 += DEPTH) {
        const int64_t depth = K - k0 < DEPTH ? K - k0 : DEPTH, groups = hh_pair_round(depth) / HH_PAIR_GROUP;
        for (int64_t p = 0; p < panels; p++) {
            const int64_t left = n - p * HH_PANEL;
            pack_panel(packed + p * HH_PANEL * DEPTH, scale + p * HH_PANEL * groups_of_panel, it.part->w,
                       it.lo + p * HH_PANEL, left < HH_PANEL ? left : HH_PANEL, k0, depth, rows, buffer);
        }
        for (int64_t t = t0; t < t1; t += TOKENS) {
            const int64_t m = t1 - t < TOKENS ? t1 - t : TOKENS;
            const hh_pair_rows from = hh_pair_rows_from(x, t, k0 / HH_PAIR_GROUP);
            for (int64_t p = 0; p < panels; p++) {
                const int64_t left = n - p * HH_PANEL;
                float *to = hh_row(y, t) + it.column + p * HH_PANEL;
                const int16_t *panel = packed + p * HH_PANEL * DEPTH;
                const float *scales = scale + p * HH_PANEL * groups_of_panel;
                if (left >= HH_PANEL)
                    hh_pair_product(to, y.stride, add || k0, from, panel, scales, m, groups); /* F1 */
                else
                    multiply_edge(to, y.stride, add || k0, from, panel, scales, edge, m, groups, left);
            }
        }
    }
}

#else
/* No file is empty. */
typedef int hh_no_pairs;
#endif
