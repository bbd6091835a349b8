/* The fast linear map, backward. Threads share a product in tiles, each of which is one single-threaded matrix product by
 * oneDNN: measured as fast as one product on all threads (150 to 175 GFLOP/s either way at 512 tokens on 2 cores), and
 * stored weights can be widened to float into the thread's own scratch, so that a tile is multiplied while it is in its
 * cache. Weights stored as bf16 meet bf16 gradients as in the forward (linear_fwd.c).
 */
#include "ops/simd/linear_parts.h"
#include "ops/simd/widen.h"

#include "base/parallel.h"

typedef struct job {
    hh_backend *be;
    hh_tensor y, x; /* dx, dy in the backward */
    const hh_linear *w;
    bool accumulate;
    int64_t rows, tokens, columns; /* of a tile: weight rows, tokens, columns of K */
    int64_t n_tiles;               /* of rows, or of columns in the backward of the input */
    const uint16_t *half;          /* x as bf16, dense; NULL: no part is multiplied in bf16 */
} job;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static bool is_half(const job *j, hh_tensor w) {
    return j->half && w.dtype == HH_DTYPE_BF16;
}

typedef struct half_job {
    hh_tensor x;
    uint16_t *to;
} half_job;

static void convert_row(void *context, int64_t t, int thread) {
    const half_job *j = context;
    (void)thread;
    int64_t n = hh_tensor_row_count(j->x), i = 0;
    const float *x = hh_row(j->x, t);
    uint16_t *to = j->to + t * n;
    for (; i + HH_VW <= n; i += HH_VW) hh_vstore_bf16(to + i, hh_vload(x + i));
    for (; i < n; i++) to[i] = hh_bf16_from_float(x[i]);
}

const uint16_t *HH_SIMD_NAME(linear_half)(hh_backend *be, hh_tensor x, int64_t rows) {
    const int64_t T = x.dim[0], k = hh_tensor_row_count(x), padded = (T + rows - 1) / rows * rows;
    const size_t bytes = (size_t)(padded * k) * sizeof(uint16_t);
    if (bytes + HH_ARENA_ALIGN > be->scratch.size - be->scratch.used) return NULL;
    half_job j = {x, hh_arena_alloc(&be->scratch, bytes)};
    hh_parallel_for(be->n_threads, T, convert_row, &j);
    memset(j.to + T * k, 0, (size_t)((padded - T) * k) * sizeof(uint16_t));
    return j.to;
}

static const uint16_t *half_row(hh_tensor w, int64_t r) {
    return (const uint16_t *)w.data + r * w.stride;
}

/* Columns [lo, hi) of rows [a, b) of w as float: where they are (*stride set), or widened into `to`. */
static const float *take_weights(hh_tensor w, int64_t a, int64_t b, int64_t lo, int64_t hi, float *to,
                                 int64_t *stride) {
    if (w.dtype == HH_DTYPE_F32) {
        *stride = w.stride;
        return hh_row(w, a) + lo;
    }
    *stride = hi - lo;
    size_t row = hh_dtype_bytes(w.dtype, w.stride), skip = hh_dtype_bytes(w.dtype, lo);
    for (int64_t r = a; r < b; r++)
        widen(w.dtype, to + (r - a) * (hi - lo), (const char *)w.data + (size_t)r * row + skip, hi - lo);
    return to;
}

/* dx's columns [lo, hi) for some tokens: a sum over all rows of W, tile by tile. */
static void input_tile(void *context, int64_t item, int thread) {
    const job *j = context; /* y is dx, x is dy */
    hh_arena *scratch = &j->be->thread_scratch[thread];
    size_t mark = scratch->used;
    int64_t lo = item % j->n_tiles * j->columns, hi = smaller(lo + j->columns, j->w->k);
    int64_t t0 = item / j->n_tiles * j->tokens, t1 = smaller(t0 + j->tokens, j->x.dim[0]), column = 0, stride;
    float *to = hh_arena_alloc(scratch, (size_t)(j->rows * (hi - lo)) * sizeof(float));
    bool add = j->accumulate;
    for (int p = 0; p < j->w->n_parts; p++) {
        hh_tensor w = j->w->part[p].w;
        int64_t step = w.dtype == HH_DTYPE_F32 || is_half(j, w) ? w.dim[0] : j->rows;
        for (int64_t a = 0; a < w.dim[0]; a += step) {
            int64_t b = smaller(a + step, w.dim[0]);
            if (is_half(j, w)) {
                hh_gemm_bf16(false, false, t1 - t0, hi - lo, b - a, j->half + t0 * j->w->n + column + a, j->w->n,
                             half_row(w, a) + lo, w.stride, hh_row(j->y, t0) + lo, j->y.stride, add);
                add = true;
                continue;
            }
            const float *rows = take_weights(w, a, b, lo, hi, to, &stride);
            hh_gemm_f32(false, false, t1 - t0, hi - lo, b - a, hh_row(j->x, t0) + column + a, j->x.stride, rows, stride,
                        hh_row(j->y, t0) + lo, j->y.stride, add);
            add = true;
        }
        column += w.dim[0];
    }
    hh_arena_reset(scratch, mark);
}

void HH_SIMD_NAME(linear_bwd_input)(hh_backend *be, hh_tensor dx, hh_tensor dy, const hh_linear *w, bool accumulate) {
    hh_linear_check(dy, dx, w);
    job j = {
        .be = be, .y = dx, .x = dy, .w = w, .accumulate = accumulate, .columns = 256}; /* whole blocks of any type */
    j.rows = 256;
    int64_t across = j.columns;
    j.tokens = hh_linear_tile_tokens(be, dx.dim[0], w->k, &across);
    bool plain = true;
    for (int p = 0; p < w->n_parts; p++) plain = plain && !hh_dtype_is_quantised(w->part[p].w.dtype);
    if (plain) j.columns = across;
    j.n_tiles = (w->k + j.columns - 1) / j.columns;
    size_t mark = be->scratch.used;
    j.half = hh_linear_wants_half(be, w) ? HH_SIMD_NAME(linear_half)(be, dy, 1) : NULL;
    hh_parallel_for(be->n_threads, j.n_tiles * ((dx.dim[0] + j.tokens - 1) / j.tokens), input_tile, &j);
    hh_arena_reset(&be->scratch, mark);
}

static void weight_tile(void *context, int64_t item, int thread) {
    const job *j = context; /* y is dy */
    (void)thread;
    hh_linear_item it = hh_linear_item_at(j->w, j->rows, item % j->n_tiles);
    int64_t lo = item / j->n_tiles * j->columns, hi = smaller(lo + j->columns, j->w->k), n = it.hi - it.lo;
    if (it.part->w.data)
        hh_gemm_f32(true, false, n, hi - lo, j->x.dim[0], hh_row(j->y, 0) + it.column, j->y.stride,
                    hh_row(j->x, 0) + lo, j->x.stride, hh_row(it.part->w, it.lo) + lo, it.part->w.stride, true);
    float *dbias = it.part->bias.data;
    if (!dbias || lo > 0) return;
    for (int64_t t = 0; t < j->x.dim[0]; t++) {
        const float *dy = hh_row(j->y, t) + it.column;
        for (int64_t i = 0; i < n; i++) dbias[it.lo + i] += dy[i];
    }
}

void HH_SIMD_NAME(linear_bwd_weight)(hh_backend *be, const hh_linear *dw, hh_tensor dy, hh_tensor x) {
    hh_linear_check(dy, x, dw);
    if (x.dim[0] == 0) return;
    for (int p = 0; p < dw->n_parts; p++) HH_ASSERT(!dw->part[p].w.data || dw->part[p].w.dtype == HH_DTYPE_F32);
    job j = {.be = be, .y = dy, .x = x, .w = dw, .rows = 256, .columns = 512};
    int64_t want = be->n_threads == 1 ? 1 : 4 * be->n_threads;
    while (((dw->n + j.rows - 1) / j.rows) * ((dw->k + j.columns - 1) / j.columns) < want && j.rows + j.columns > 128)
        if (j.columns > j.rows)
            j.columns /= 2;
        else
            j.rows /= 2;
    j.n_tiles = hh_linear_item_count(dw, j.rows);
    hh_parallel_for(be->n_threads, j.n_tiles * ((dw->k + j.columns - 1) / j.columns), weight_tile, &j);
}
