/* The linear map on the card; equations in ops/linear.h. Parts whose weights have the activations' type are multiplied
 * where they lie. Others (float32 master weights under bf16 activations) are converted into scratch first, neighbours
 * as one matrix, in blocks of rows when scratch is too small for all. */
#include "ops/cuda/products.h"

#include <cstdint>

extern "C" {
#include "ops/linear.h"
}

static hh_tensor matrix_of(hh_tensor t) {
    int64_t cols = hh_tensor_row_count(t);
    t.rank = 2;
    t.dim[1] = cols;
    t.dim[2] = t.dim[3] = 1;
    return t;
}

static void check(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w) {
    HH_ASSERT(x.dtype == be->activation);
    HH_ASSERT(x.dim[0] == y.dim[0]);
    HH_ASSERT(hh_tensor_row_count(x) == w->k && hh_tensor_row_count(y) == w->n);
    HH_ASSERT(w->n_parts >= 0 && w->n_parts <= HH_MAX_PARTS);
    int64_t n = 0;
    for (int p = 0; p < w->n_parts; p++) {
        const hh_part *part = &w->part[p];
        HH_ASSERT(part->w.dim[1] == w->k);
        HH_ASSERT(!part->w.data || part->w.dtype == HH_DTYPE_BF16 || part->w.dtype == HH_DTYPE_F32);
        HH_ASSERT(!part->bias.data || (part->bias.dtype == HH_DTYPE_F32 && part->bias.dim[0] == part->w.dim[0]));
        n += part->w.dim[0];
    }
    HH_ASSERT(n == w->n);
}

/* -- conversion of weights -- */

/* A thread converts four neighbours of a row at a time; bound by memory. `wide`: both sides allow 8- and 16-byte
 * accesses. */
template <typename To, typename From>
static __global__ void convert_rows_kernel(To *to, int64_t to_stride, const From *from, int64_t from_stride,
                                           int64_t rows, int64_t cols, bool wide) {
    int64_t quads = (cols + 3) / 4, n = rows * quads;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / quads, col = i % quads * 4;
        const From *f = from + row * from_stride + col;
        To *t = to + row * to_stride + col;
        if (wide && col + 4 <= cols) {
            struct alignas(4 * sizeof(From)) four_from {
                From v[4];
            } a = *(const four_from *)f;
            struct alignas(4 * sizeof(To)) four_to {
                To v[4];
            } b;
#pragma unroll
            for (int j = 0; j < 4; j++) hh_store(&b.v[j], hh_load(&a.v[j]));
            *(four_to *)t = b;
        } else {
            for (int j = 0; j < 4 && col + j < cols; j++) hh_store(t + j, hh_load(f + j));
        }
    }
}

static bool allows_fours(hh_tensor t) {
    size_t bytes = 4 * hh_dtype_bytes(t.dtype, 1);
    return (uintptr_t)t.data % bytes == 0 && t.stride % 4 == 0;
}

static void convert_rows(hh_backend *be, hh_tensor to, hh_tensor from) {
    bool wide = allows_fours(to) && allows_fours(from);
    int64_t threads = from.dim[0] * hh_ceil_div(from.dim[1], 4);
    int64_t most = (int64_t)hh_cuda_of(be)->n_sms * 32, blocks = hh_ceil_div(threads, 256);
    dim3 grid((unsigned)(blocks < most ? blocks : most));
    if (to.dtype == HH_DTYPE_BF16)
        hh_cuda_launch(be, "conversion of weights", convert_rows_kernel<hh_bf16, float>, grid, dim3(256), 0,
                       (hh_bf16 *)to.data, to.stride, (const float *)from.data, from.stride, from.dim[0], from.dim[1],
                       wide);
    else
        hh_cuda_launch(be, "conversion of weights", convert_rows_kernel<float, hh_bf16>, grid, dim3(256), 0,
                       (float *)to.data, to.stride, (const hh_bf16 *)from.data, from.stride, from.dim[0], from.dim[1],
                       wide);
}

/* Dense rows a product likes: a whole number of 16 bytes. */
static int64_t padded(int64_t cols) {
    return (cols + 7) / 8 * 8;
}

static hh_tensor place_converted(hh_backend *be, hh_dtype dtype, int64_t rows, int64_t cols) {
    hh_tensor t = hh_tensor_2d(NULL, dtype, rows, cols);
    t.stride = padded(cols);
    t.data = hh_cuda_scratch(be, hh_dtype_bytes(dtype, rows * t.stride));
    return t;
}

/* -- blocks: the map's rows as matrices of one type -- */

/* Where a walk over a map's rows stands. */
typedef struct walk {
    const hh_linear *w;
    hh_dtype dtype;
    int part;
    int64_t row, column; /* of the part; of y */
    hh_tensor room;      /* for converted rows, used again for every block */
} walk;

static walk begin_walk(hh_backend *be, const hh_linear *w, hh_dtype dtype) {
    walk s;
    memset(&s, 0, sizeof s);
    s.w = w;
    s.dtype = dtype;
    int64_t rows = 0, run = 0; /* the longest run of parts to be converted */
    for (int p = 0; p < w->n_parts; p++) {
        run = w->part[p].w.dtype == dtype ? 0 : run + w->part[p].w.dim[0];
        if (run > rows) rows = run;
    }
    if (!rows) return s;
    /* The rest is for biases. */
    int64_t fit = (int64_t)(hh_cuda_scratch_left(be) / 4 * 3 / hh_dtype_bytes(dtype, padded(w->k)));
    HH_ASSERT(fit > 0);
    s.room = place_converted(be, dtype, rows < fit ? rows : fit, w->k);
    return s;
}

/* The next block and the column of y that belongs to its first row. */
static bool next_block(hh_backend *be, walk *s, hh_tensor *block, int64_t *column) {
    while (s->part < s->w->n_parts && s->row == s->w->part[s->part].w.dim[0]) s->part++, s->row = 0;
    if (s->part == s->w->n_parts) return false;
    *column = s->column;
    hh_tensor w = s->w->part[s->part].w;
    if (w.dtype == s->dtype) {
        *block = w;
        s->part++;
        s->column += w.dim[0];
        return true;
    }
    int64_t filled = 0;
    while (s->part < s->w->n_parts && filled < s->room.dim[0]) {
        w = s->w->part[s->part].w;
        if (w.dtype == s->dtype) break;
        int64_t n = w.dim[0] - s->row, fit = s->room.dim[0] - filled;
        if (n > fit) n = fit;
        if (n) convert_rows(be, hh_tensor_rows(s->room, filled, filled + n), hh_tensor_rows(w, s->row, s->row + n));
        filled += n;
        s->row += n;
        if (s->row == w.dim[0]) s->part++, s->row = 0;
    }
    s->column += filled;
    *block = hh_tensor_rows(s->room, 0, filled);
    return true;
}

hh_linear hh_cuda_linear_as(hh_backend *be, const hh_linear *w, hh_dtype dtype, size_t room) {
    int64_t rows = 0;
    hh_linear out = *w;
    for (int p = 0; p < w->n_parts; p++) rows += w->part[p].w.dtype == dtype ? 0 : w->part[p].w.dim[0];
    if (!rows || hh_dtype_bytes(dtype, rows * padded(w->k)) > room) return out;
    hh_tensor all = place_converted(be, dtype, rows, w->k);
    for (int64_t p = 0, at = 0; p < w->n_parts; p++) {
        hh_tensor from = w->part[p].w;
        if (from.dtype == dtype) continue;
        out.part[p].w = hh_tensor_rows(all, at, at + from.dim[0]);
        if (from.dim[0]) convert_rows(be, out.part[p].w, from);
        at += from.dim[0];
    }
    return out;
}

/* -- biases -- */

/* A thread owns one element; bias NULL stands for zeros. */
template <typename T> static __global__ void pack_bias_kernel(T *out, const float *bias, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) hh_store(out + i, bias ? bias[i] : 0);
}

/* The biases of columns [lo, hi) in y's type, in scratch; NULL when none has one. */
static void *pack_bias(hh_backend *be, const hh_linear *w, int64_t lo, int64_t hi, hh_dtype dtype) {
    bool any = false;
    int64_t column = 0;
    for (int p = 0; p < w->n_parts; column += w->part[p++].w.dim[0])
        any = any || (w->part[p].bias.data && column < hi && column + w->part[p].w.dim[0] > lo);
    if (!any) return NULL;
    char *out = (char *)hh_cuda_scratch(be, hh_dtype_bytes(dtype, hi - lo));
    column = 0;
    for (int p = 0; p < w->n_parts; column += w->part[p++].w.dim[0]) {
        int64_t from = column > lo ? column : lo, end = column + w->part[p].w.dim[0], to = end < hi ? end : hi;
        if (from >= to) continue;
        const float *bias = (const float *)w->part[p].bias.data;
        if (bias) bias += from - column;
        char *at = out + hh_dtype_bytes(dtype, from - lo);
        dim3 grid((unsigned)hh_ceil_div(to - from, 256));
        HH_CUDA_BY_TYPE(
            dtype, T,
            hh_cuda_launch(be, "packing of biases", pack_bias_kernel<T>, grid, dim3(256), 0, (T *)at, bias, to - from));
    }
    return out;
}

enum { SUM_COLS = 32, SUM_ROWS = 8 };

/* Partial column sums: a block owns 32 columns and `step` rows. Bound by memory. */
template <typename T>
static __global__ void column_sums_kernel(float *partial, const T *y, int64_t stride, int64_t rows, int64_t cols,
                                          int64_t step) {
    __shared__ float sums[SUM_ROWS][SUM_COLS];
    int64_t col = (int64_t)blockIdx.x * SUM_COLS + threadIdx.x, lo = blockIdx.y * step;
    int64_t hi = lo + step < rows ? lo + step : rows;
    float s = 0;
    if (col < cols)
        for (int64_t i = lo + threadIdx.y; i < hi; i += SUM_ROWS) s += hh_load(y + i * stride + col);
    sums[threadIdx.y][threadIdx.x] = s;
    __syncthreads();
    if (threadIdx.y || col >= cols) return;
    for (int i = 1; i < SUM_ROWS; i++) s += sums[i][threadIdx.x];
    partial[blockIdx.y * cols + col] = s;
}

static __global__ void add_partial_sums_kernel(float *sum, const float *partial, int64_t n, int64_t cols) {
    int64_t col = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float s = 0;
    for (int64_t i = 0; i < n; i++) s += partial[i * cols + col];
    sum[col] += s;
}

/* B3 */
static void add_column_sums(hh_backend *be, float *sum, hh_tensor y) {
    int64_t rows = y.dim[0], cols = y.dim[1], step = hh_ceil_div(rows, 128);
    if (step < 64) step = 64;
    int64_t n = hh_ceil_div(rows, step);
    float *partial = (float *)hh_cuda_scratch(be, (size_t)(n * cols) * sizeof(float));
    dim3 grid((unsigned)hh_ceil_div(cols, SUM_COLS), (unsigned)n);
    HH_CUDA_BY_TYPE(y.dtype, T,
                    hh_cuda_launch(be, "linear_bwd_weight", column_sums_kernel<T>, grid, dim3(SUM_COLS, SUM_ROWS), 0,
                                   partial, (const T *)y.data, y.stride, rows, cols, step));
    hh_cuda_launch(be, "linear_bwd_weight", add_partial_sums_kernel, dim3((unsigned)hh_ceil_div(cols, 256)), dim3(256),
                   0, sum, (const float *)partial, n, cols);
}

/* -- the op -- */

void hh_cuda_linear_fwd(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w, bool accumulate) {
    check(be, y, x, w);
    HH_ASSERT(y.dtype == x.dtype || y.dtype == HH_DTYPE_F32);
    if (!x.dim[0]) return;
    y = matrix_of(y);
    x = matrix_of(x);
    if (hh_cuda_matvec(be, y, x, w, accumulate)) return;
    size_t mark = be->scratch.used;
    walk s = begin_walk(be, w, x.dtype);
    hh_tensor block;
    for (int64_t column; next_block(be, &s, &block, &column);) {
        size_t mark_bias = be->scratch.used;
        int64_t end = column + block.dim[0];
        const void *bias = pack_bias(be, w, column, end, y.dtype);
        hh_cuda_product(be, "linear_fwd", hh_tensor_columns(y, column, end), x, false, block, true, bias, accumulate);
        hh_arena_reset(&be->scratch, mark_bias);
    }
    hh_arena_reset(&be->scratch, mark);
}

void hh_cuda_linear_bwd_input(hh_backend *be, hh_tensor dx, hh_tensor dy, const hh_linear *w, bool accumulate) {
    check(be, dy, dx, w);
    HH_ASSERT(dy.dtype == dx.dtype);
    if (!dx.dim[0]) return;
    dx = matrix_of(dx);
    dy = matrix_of(dy);
    size_t mark = be->scratch.used;
    walk s = begin_walk(be, w, dx.dtype);
    hh_tensor block;
    bool add = accumulate;
    for (int64_t column; next_block(be, &s, &block, &column); add = true)
        hh_cuda_product(be, "linear_bwd_input", dx, hh_tensor_columns(dy, column, column + block.dim[0]), false, block,
                        false, NULL, add);
    if (!add) be->ops->fill(be, dx, 0);
    hh_arena_reset(&be->scratch, mark);
}

void hh_cuda_linear_bwd_weight(hh_backend *be, const hh_linear *dw, hh_tensor dy, hh_tensor x) {
    check(be, dy, x, dw);
    HH_ASSERT(dy.dtype == x.dtype);
    if (!x.dim[0]) return;
    dy = matrix_of(dy);
    x = matrix_of(x);
    for (int64_t p = 0, column = 0; p < dw->n_parts; column += dw->part[p++].w.dim[0]) {
        const hh_part *part = &dw->part[p];
        hh_tensor dy_part = hh_tensor_columns(dy, column, column + part->w.dim[0]);
        size_t mark = be->scratch.used;
        HH_ASSERT(!part->w.data || part->w.dtype == HH_DTYPE_F32);
        if (part->w.data) hh_cuda_product(be, "linear_bwd_weight", part->w, dy_part, true, x, false, NULL, true);
        if (part->bias.data) add_column_sums(be, (float *)part->bias.data, dy_part);
        hh_arena_reset(&be->scratch, mark);
    }
}

extern "C" void hh_linear_fwd_cuda(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w, bool accumulate) {
    hh_cuda_scratch_begin(be);
    hh_cuda_linear_fwd(be, y, x, w, accumulate);
}

extern "C" void hh_linear_bwd_input_cuda(hh_backend *be, hh_tensor dx, hh_tensor dy, const hh_linear *w,
                                         bool accumulate) {
    hh_cuda_scratch_begin(be);
    hh_cuda_linear_bwd_input(be, dx, dy, w, accumulate);
}

extern "C" void hh_linear_bwd_weight_cuda(hh_backend *be, const hh_linear *dw, hh_tensor dy, hh_tensor x) {
    hh_cuda_scratch_begin(be);
    hh_cuda_linear_bwd_weight(be, dw, dy, x);
}
