/* The fast linear map. Threads share a product in tiles, each of which is one single-threaded matrix product by oneDNN:
 * measured as fast as one product on all threads (150 to 175 GFLOP/s either way at 512 tokens on 2 cores), and stored
 * weights can be widened to float into the thread's own scratch, so that a tile is multiplied while it is in its cache.
 *
 * Weights stored as bf16 meet bf16 activations (converted once, into the shared scratch) where the processor multiplies them
 * faster and HH_PRECISION_F32 is not asked for. Weights of other types are multiplied in float32.
 */
#include "ops/gemm.h"
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

/* Weight rows whose floats fill at most half of a thread's scratch. */
static int64_t rows_that_fit(int64_t rows, int64_t k) {
    int64_t most = (int64_t)(HH_THREAD_SCRATCH_BYTES / 2 / sizeof(float)) / k;
    HH_ASSERT(most > 0);
    return smaller(rows, most);
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

/* x in bf16 if some part wants it and it fits the scratch, else NULL. */
static const uint16_t *convert_half(hh_backend *be, hh_tensor x, const hh_linear *w) {
    bool wanted = false;
    for (int p = 0; p < w->n_parts; p++) wanted = wanted || w->part[p].w.dtype == HH_DTYPE_BF16;
    size_t bytes = (size_t)hh_tensor_count(x) * sizeof(uint16_t);
    if (!wanted || be->precision == HH_PRECISION_F32 || !hh_gemm_has_bf16()) return NULL;
    if (bytes + HH_ARENA_ALIGN > be->scratch.size - be->scratch.used) return NULL;
    half_job j = {x, hh_arena_alloc(&be->scratch, bytes)};
    hh_parallel_for(be->n_threads, x.dim[0], convert_row, &j);
    return j.to;
}

static const uint16_t *half_row(hh_tensor w, int64_t r) {
    return (const uint16_t *)w.data + r * w.stride;
}

/* Halves the tile of tokens, then that of rows, until every thread has several tiles. */
static void choose_tiles(job *j, int64_t n, int64_t *across) {
    j->tokens = 512;
    int64_t T = j->x.dim[0], want = j->be->n_threads == 1 ? 1 : 4 * j->be->n_threads;
    while (j->tokens > 64 && ((T + j->tokens - 1) / j->tokens) * ((n + *across - 1) / *across) < want)
        if (j->tokens > 128 && T > j->tokens / 2)
            j->tokens /= 2;
        else if (*across > 32 && n > 32)
            *across /= 2;
        else
            break;
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
    size_t mark = scratch->used;
    hh_linear_item it = hh_linear_item_at(j->w, j->rows, item % j->n_tiles);
    int64_t t0 = item / j->n_tiles * j->tokens, t1 = smaller(t0 + j->tokens, j->x.dim[0]), n = it.hi - it.lo, stride;
    const float *bias = it.part->bias.data;
    if (bias) set_bias(j->y, t0, t1, it.column, bias + it.lo, n, j->accumulate);
    if (is_half(j, it.part->w)) {
        hh_gemm_bf16(false, true, t1 - t0, n, j->w->k, j->half + t0 * j->w->k, j->w->k, half_row(it.part->w, it.lo),
                     it.part->w.stride, hh_row(j->y, t0) + it.column, j->y.stride, bias || j->accumulate);
        return;
    }
    float *to = hh_arena_alloc(scratch, (size_t)(n * j->w->k) * sizeof(float));
    const float *w = take_weights(it.part->w, it.lo, it.hi, 0, j->w->k, to, &stride);
    hh_gemm_f32(false, true, t1 - t0, n, j->w->k, hh_row(j->x, t0), j->x.stride, w, stride,
                hh_row(j->y, t0) + it.column, j->y.stride, bias || j->accumulate);
    hh_arena_reset(scratch, mark);
}

void HH_SIMD_NAME(linear_fwd)(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w, bool accumulate) {
    hh_linear_check(y, x, w);
    if (x.dim[0] <= HH_FEW_TOKENS) {
        HH_SIMD_NAME(linear_few)(be, y, x, w, accumulate);
        return;
    }
    job j = {.be = be, .y = y, .x = x, .w = w, .accumulate = accumulate, .rows = rows_that_fit(128, w->k)};
    choose_tiles(&j, w->n, &j.rows);
    j.n_tiles = hh_linear_item_count(w, j.rows);
    size_t mark = be->scratch.used;
    j.half = convert_half(be, x, w);
    hh_parallel_for(be->n_threads, j.n_tiles * ((x.dim[0] + j.tokens - 1) / j.tokens), forward_tile, &j);
    hh_arena_reset(&be->scratch, mark);
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
    choose_tiles(&j, w->k, &across);
    bool plain = true;
    for (int p = 0; p < w->n_parts; p++) plain = plain && !hh_dtype_is_quantised(w->part[p].w.dtype);
    if (plain) j.columns = across;
    j.n_tiles = (w->k + j.columns - 1) / j.columns;
    size_t mark = be->scratch.used;
    j.half = convert_half(be, dy, w);
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
