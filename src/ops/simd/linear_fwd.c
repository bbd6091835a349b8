/* The linear map of many tokens, forward. A row of y is computed alike however many rows stand beside it: a prompt gives
 * the same bits in one piece or in many, alone or in a batch. That rules out a library that chooses its kernel by the
 * number of rows, so the float32 product is our own (simd/panel.h): every element is one chain of fused multiply-adds
 * over blocks of DEPTH columns of K, which begin at 0.
 *
 * Threads share the product in tiles. Weights of any stored type are widened and laid out in panels just before they are
 * multiplied, a tile's block of DEPTH at a time in the thread's own scratch. Weights stored as bf16 meet bf16 activations
 * (converted once, into the shared scratch) where the processor multiplies them faster and HH_PRECISION_F32 is not asked
 * for: by oneDNN, in blocks of HH_GEMM_ROWS tokens that are all one compiled product. Elsewhere weights that are stored
 * rounded are multiplied in pairs of 16-bit integers (linear_pairs.c), unless that gains nothing or float32 is asked for.
 */
#include "ops/gemm.h"
#include "ops/simd/linear_parts.h"
#include "ops/simd/panel.h"
#include "ops/simd/widen.h"

#include "base/parallel.h"

enum {
    DEPTH = 256,    /* columns of K at a time: whole blocks of every type, and a panel of them fits the first cache */
    TOKENS = 96,    /* rows of x that one panel meets before the next */
    TILE_ROWS = 128 /* weight rows of a tile */
};

typedef struct job {
    hh_backend *be;
    hh_tensor y, x;
    const hh_linear *w;
    bool accumulate;
    int64_t rows, tokens, n_tiles; /* of a tile; row tiles in all */
    const uint16_t *half;          /* x as bf16, dense, padded to whole blocks; NULL: no part is multiplied in bf16 */
    bool paired;                   /* some part is multiplied in pairs of integers */
#if HH_PAIRS
    hh_pair_rows pairs; /* x for these */
#endif
} job;

/* Rows lo .. lo + n of w, columns [k0, k0 + depth), as panels [depth][HH_PANEL] one behind another; zeros behind the
 * last row. */
static void pack_panels(float *to, hh_tensor w, int64_t lo, int64_t n, int64_t k0, int64_t depth, float *rows) {
    const size_t row = hh_dtype_bytes(w.dtype, w.stride), skip = hh_dtype_bytes(w.dtype, k0);
    for (int64_t p = 0; p < n; p += HH_PANEL, to += depth * HH_PANEL) {
        const float *from = rows;
        int64_t stride = depth;
        if (w.dtype == HH_DTYPE_F32 && p + HH_PANEL <= n) {
            from = hh_row(w, lo + p) + k0, stride = w.stride;
        } else {
            for (int64_t i = 0; i < HH_PANEL && p + i < n; i++)
                widen(w.dtype, rows + i * depth, (const char *)w.data + (size_t)(lo + p + i) * row + skip, depth);
            for (int64_t i = n - p; i < HH_PANEL; i++) memset(rows + i * depth, 0, sizeof(float) * (size_t)depth);
        }
        hh_transpose(to, HH_PANEL, from, stride, HH_PANEL, (int)depth);
    }
}

/* y's columns of a part's last rows, which do not fill a panel, by way of `edge` [tokens, HH_PANEL]. */
static void multiply_edge(float *y, int64_t stride, float keep, hh_factor x, const float *panel, float *edge,
                          int64_t tokens, int64_t depth, int64_t n) {
    for (int64_t t = 0; keep != 0 && t < tokens; t++)
        for (int64_t i = 0; i < HH_PANEL; i++) edge[t * HH_PANEL + i] = i < n ? y[t * stride + i] : 0;
    hh_panel_product(edge, HH_PANEL, keep, 1, x, panel, HH_PANEL, tokens, depth);
    for (int64_t t = 0; t < tokens; t++) memcpy(y + t * stride, edge + t * HH_PANEL, sizeof(float) * (size_t)n);
}

static float *floats(hh_arena *a, int64_t n) {
    return hh_arena_alloc(a, sizeof(float) * (size_t)n);
}

/* Tokens [t0, t1) against an item's rows, in float32. */
static void multiply_panels(const job *j, hh_arena *scratch, hh_linear_item it, int64_t t0, int64_t t1, bool add) {
    const int64_t n = it.hi - it.lo, K = j->w->k;
    float *panels = floats(scratch, hh_panel_round(n) * DEPTH), *rows = floats(scratch, HH_PANEL * DEPTH);
    float *edge = floats(scratch, TOKENS * HH_PANEL);
    for (int64_t k0 = 0; k0 < K; k0 += DEPTH) {
        const int64_t depth = K - k0 < DEPTH ? K - k0 : DEPTH;
        const float keep = add || k0 ? 1 : 0;
        pack_panels(panels, it.part->w, it.lo, n, k0, depth, rows);
        for (int64_t t = t0; t < t1; t += TOKENS) {
            const int64_t m = t1 - t < TOKENS ? t1 - t : TOKENS;
            const hh_factor x = hh_rows_of(hh_row(j->x, t) + k0, j->x.stride);
            for (int64_t p = 0; p < n; p += HH_PANEL) {
                float *y = hh_row(j->y, t) + it.column + p;
                const float *panel = panels + p * depth;
                if (p + HH_PANEL <= n)
                    hh_panel_product(y, j->y.stride, keep, 1, x, panel, HH_PANEL, m, depth); /* F1 */
                else
                    multiply_edge(y, j->y.stride, keep, x, panel, edge, m, depth, n - p);
            }
        }
    }
}

/* y = bias, or y += bias, ahead of a product that adds. */
static void set_bias(hh_tensor y, int64_t t0, int64_t t1, int64_t column, const float *bias, int64_t n, bool add) {
    for (int64_t t = t0; t < t1; t++) {
        float *to = hh_row(y, t) + column;
        for (int64_t i = 0; i < n; i++) to[i] = (add ? to[i] : 0) + bias[i];
    }
}

static void forward_tile(void *context, int64_t item, int thread) {
    const job *j = context;
    hh_arena *scratch = &j->be->thread_scratch[thread];
    const size_t mark = scratch->used;
    const hh_linear_item it = hh_linear_item_at(j->w, j->rows, item % j->n_tiles);
    const hh_tensor w = it.part->w;
    const int64_t t0 = item / j->n_tiles * j->tokens, n = it.hi - it.lo, T = j->x.dim[0];
    const int64_t t1 = t0 + j->tokens < T ? t0 + j->tokens : T;
    const float *bias = it.part->bias.data;
    if (bias) set_bias(j->y, t0, t1, it.column, bias + it.lo, n, j->accumulate);
    const bool add = bias || j->accumulate;
    if (j->half && w.dtype == HH_DTYPE_BF16)
        hh_gemm_bf16_rows(t1 - t0, n, j->w->k, j->half + t0 * j->w->k, (const uint16_t *)w.data + it.lo * w.stride,
                          w.stride, hh_row(j->y, t0) + it.column, j->y.stride, add, floats(scratch, HH_GEMM_ROWS * n));
#if HH_PAIRS
    else if (j->paired && hh_linear_is_paired(j->be, w.dtype))
        HH_SIMD_NAME(linear_pair_tile)(scratch, j->y, j->pairs, j->w->k, it, t0, t1, add);
#endif
    else
        multiply_panels(j, scratch, it, t0, t1, add);
    hh_arena_reset(scratch, mark);
}

static bool wants_pairs(const hh_backend *be, const hh_linear *w) {
    bool wanted = false;
    for (int p = 0; p < w->n_parts; p++) wanted = wanted || hh_linear_is_paired(be, w->part[p].w.dtype);
    return wanted;
}

/* Tokens of a call whose copies in bf16 and in pairs fit the shared scratch; all of them when there are none. */
static int64_t tokens_that_fit(const hh_backend *be, const hh_linear *w, int64_t T, bool half, bool paired) {
    int64_t a_token = half ? w->k * (int64_t)sizeof(uint16_t) : 0;
#if HH_PAIRS
    if (paired) a_token += HH_SIMD_NAME(linear_pair_bytes)(w->k);
#else
    (void)paired;
#endif
    if (!a_token) return T;
    const int64_t bytes = (int64_t)(be->scratch.size - be->scratch.used) - 3 * HH_ARENA_ALIGN;
    const int64_t most = bytes / a_token / HH_GEMM_ROWS * HH_GEMM_ROWS;
    HH_ASSERT(most > 0);
    return T < most ? T : most;
}

static void multiply(job *j, bool half) {
    hh_backend *be = j->be;
    const int64_t T = j->x.dim[0];
    const size_t mark = be->scratch.used;
    j->rows = TILE_ROWS;
    j->tokens =
        hh_linear_tile_tokens(be, T, j->w->n, half ? NULL : &j->rows); /* bf16: the shape is part of the result */
    j->n_tiles = hh_linear_item_count(j->w, j->rows);
    j->half = half ? HH_SIMD_NAME(linear_half)(be, j->x, HH_GEMM_ROWS) : NULL;
#if HH_PAIRS
    if (j->paired) j->pairs = HH_SIMD_NAME(linear_pair_rows)(be, j->x);
#endif
    hh_parallel_for(be->n_threads, j->n_tiles * ((T + j->tokens - 1) / j->tokens), forward_tile, j);
    hh_arena_reset(&be->scratch, mark);
}

void HH_SIMD_NAME(linear_fwd)(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w, bool accumulate) {
    hh_linear_check(y, x, w);
    const bool half = !be->decoding && hh_linear_wants_half(be, w), paired = !be->decoding && wants_pairs(be, w);
    const int64_t T = x.dim[0], step = be->decoding ? HH_FEW_TOKENS : tokens_that_fit(be, w, T, half, paired);
    for (int64_t t = 0; t < T; t += step) {
        const int64_t end = t + step < T ? t + step : T;
        if (be->decoding) {
            HH_SIMD_NAME(linear_few)(be, hh_tensor_rows(y, t, end), hh_tensor_rows(x, t, end), w, accumulate);
            continue;
        }
        job j = {.be = be,
                 .y = hh_tensor_rows(y, t, end),
                 .x = hh_tensor_rows(x, t, end),
                 .w = w,
                 .accumulate = accumulate,
                 .paired = paired};
        multiply(&j, half);
    }
}
