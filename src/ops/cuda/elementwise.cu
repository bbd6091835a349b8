/* Copies, fills and sums on the GPU; what they do is said in ops/elementwise.h. Conversions from and to the block formats of
 * GGUF are in quant.cuh. */
#include "ops/cuda/quant.cuh"
#include "ops/cuda/rows.h"

/* Runs the body with T standing for a float type's element. */
#define BY_FLOAT(dtype, T, ...)                                                                                        \
    do {                                                                                                               \
        if ((dtype) == HH_DTYPE_F16) {                                                                                 \
            typedef __half T;                                                                                          \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            HH_CUDA_BY_TYPE(dtype, T, __VA_ARGS__);                                                                    \
        }                                                                                                              \
    } while (0)

/* -- between float types -- */

template <typename Y, typename X, int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    convert(hh_view<Y> y, hh_view<const X> x, int64_t rows, int64_t n) {
    const hh_place at = hh_place_of<V>(rows, n);
    float a[V];
    hh_load_pack(a, x.p + at.row * x.stride + at.column, at.n);
    hh_store_pack(y.p + at.row * y.stride + at.column, a, at.n);
}

/* -- whole words: rows of one type, moved as they are; row i comes from rows[i] where a list is given -- */

template <typename W>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    move_rows(hh_view<W> y, hh_view<const W> x, const int32_t *list, int64_t rows, int64_t n) {
    const hh_place at = hh_place_of<1>(rows, n);
    if (!at.n) return;
    const int64_t from = list ? list[at.row] : at.row;
    y.p[at.row * y.stride + at.column] = x.p[from * x.stride + at.column];
}

/* Sizes in bytes; `rows` of `bytes` bytes. */
static void launch_move(hh_backend *be, const char *op, void *y, size_t y_stride, const void *x, size_t x_stride,
                        const int32_t *list, int64_t rows, size_t bytes) {
    const size_t all =
        (size_t)(uintptr_t)y | (size_t)(uintptr_t)x | bytes | (rows > 1 || list ? y_stride | x_stride : 0);
#define MOVE(W)                                                                                                        \
    hh_cuda_launch(be, op, move_rows<W>, hh_loop_grid(rows, (int64_t)(bytes / sizeof(W)), 1), HH_CUDA_BLOCK, 0,        \
                   hh_view<W>{(W *)y, (int64_t)(y_stride / sizeof(W))},                                                \
                   hh_view<const W>{(const W *)x, (int64_t)(x_stride / sizeof(W))}, list, rows,                        \
                   (int64_t)(bytes / sizeof(W)))
    if (all % 16 == 0) {
        MOVE(uint4);
    } else if (all % 4 == 0) {
        MOVE(uint32_t);
    } else if (all % 2 == 0) {
        MOVE(uint16_t);
    } else {
        MOVE(uint8_t);
    }
#undef MOVE
}

/* -- block formats -- */

template <typename Y>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    dequantise(hh_view<Y> y, const uint8_t *x, size_t x_row, hh_dtype type, int block, int block_bytes, int64_t rows,
               int64_t n, bool packed) {
    const hh_place at = hh_place_of<8>(rows, n);
    if (!at.n) return;
    float a[8];
    hh_decode8(a, type, x + at.row * x_row + at.column / block * block_bytes, (int)(at.column % block));
    Y *out = y.p + at.row * y.stride + at.column;
    if (packed) {
        hh_store_pack(out, a, 8);
    } else {
        for (int i = 0; i < 8; i++) hh_store(out + i, a[i]);
    }
}

/* A warp makes one block of Q8_0. */
template <typename X>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    quantise_q8_0(uint8_t *y, size_t y_row, hh_view<const X> x, int64_t rows, int64_t n) {
    const int64_t i = hh_team_index(32), blocks = n / 32;
    if (i >= rows * blocks) return;
    const int64_t row = i / blocks, block = i - row * blocks;
    const int lane = threadIdx.x % 32;
    hh_encode_q8_0(y + row * y_row + block * 34, hh_load(x.p + row * x.stride + block * 32 + lane), lane);
}

static void copy_from_blocks(hh_backend *be, hh_tensor y, hh_tensor x) {
    const hh_tensor both[] = {y, x};
    HH_ASSERT(hh_is_like(x, y) || (hh_tensor_is_dense(x) && hh_tensor_is_dense(y)));
    hh_loop l = {y.dim[0], hh_tensor_row_count(y), true};
    if (hh_tensor_is_dense(both[0]) && hh_tensor_is_dense(both[1])) {
        l.n *= l.rows;
        l.rows = l.n ? 1 : 0;
    }
    const int block = (int)hh_dtype_block(x.dtype), bytes = (int)hh_dtype_block_bytes(x.dtype);
    HH_ASSERT(l.n % block == 0);
    const size_t x_row = l.rows > 1 ? hh_dtype_bytes(x.dtype, x.stride) : 0;
    const bool packed = l.rows == 1 ? (uintptr_t)y.data % 16 == 0 : hh_is_packed(y);
    BY_FLOAT(y.dtype, Y,
             hh_cuda_launch(be, "copy", dequantise<Y>, hh_loop_grid(l.rows, l.n, 8), HH_CUDA_BLOCK, 0, hh_view_of<Y>(y),
                            (const uint8_t *)x.data, x_row, x.dtype, block, bytes, l.rows, l.n, packed));
}

static void copy_to_blocks(hh_backend *be, hh_tensor y, hh_tensor x) {
    HH_ASSERT(y.dtype == HH_DTYPE_Q8_0 && hh_is_like(x, y));
    const int64_t rows = y.dim[0], n = hh_tensor_row_count(y);
    HH_ASSERT(n % 32 == 0);
    const dim3 grid((unsigned)hh_ceil_div(rows * (n / 32), HH_CUDA_BLOCK / 32));
    BY_FLOAT(x.dtype, X,
             hh_cuda_launch(be, "copy", quantise_q8_0<X>, grid, HH_CUDA_BLOCK, 0, (uint8_t *)y.data,
                            hh_dtype_bytes(y.dtype, y.stride), hh_view_of<const X>(x), rows, n));
}

/* Both dense tensors as one row, so that their shapes may differ. */
static void flatten(hh_tensor *y, hh_tensor *x) {
    HH_ASSERT(hh_tensor_count(*y) == hh_tensor_count(*x));
    if (!hh_tensor_is_dense(*y) || !hh_tensor_is_dense(*x)) return;
    const int64_t n = hh_tensor_count(*y);
    *y = hh_tensor_2d(y->data, y->dtype, n ? 1 : 0, n);
    *x = hh_tensor_2d(x->data, x->dtype, n ? 1 : 0, n);
}

extern "C" void hh_copy_cuda(hh_backend *be, hh_tensor y, hh_tensor x) {
    flatten(&y, &x);
    if (y.dtype == x.dtype) {
        HH_ASSERT(hh_is_like(x, y));
        launch_move(be, "copy", y.data, hh_dtype_bytes(y.dtype, y.stride), x.data, hh_dtype_bytes(x.dtype, x.stride),
                    NULL, y.dim[0], hh_dtype_bytes(y.dtype, hh_tensor_row_count(y)));
        return;
    }
    if (hh_dtype_is_quantised(x.dtype)) {
        copy_from_blocks(be, y, x);
        return;
    }
    if (hh_dtype_is_quantised(y.dtype)) {
        copy_to_blocks(be, y, x);
        return;
    }
    const hh_tensor both[] = {y, x};
    const hh_loop l = hh_loop_over(both, 2);
    BY_FLOAT(y.dtype, Y,
             BY_FLOAT(x.dtype, X,
                      HH_CUDA_BY_PACK(l.packed, V, 8,
                                      hh_cuda_launch(be, "copy", convert<Y, X, V>, hh_loop_grid(l.rows, l.n, V),
                                                     HH_CUDA_BLOCK, 0, hh_view_of<Y>(y), hh_view_of<const X>(x), l.rows,
                                                     l.n))));
}

/* -- fill, axpy -- */

template <typename T, int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK) fill(hh_view<T> y, float value, int64_t rows, int64_t n) {
    const hh_place at = hh_place_of<V>(rows, n);
    float a[V];
#pragma unroll
    for (int i = 0; i < V; i++) a[i] = value;
    hh_store_pack(y.p + at.row * y.stride + at.column, a, at.n);
}

extern "C" void hh_fill_cuda(hh_backend *be, hh_tensor y, double value) {
    const hh_loop l = hh_loop_over(&y, 1);
    BY_FLOAT(y.dtype, T,
             HH_CUDA_BY_PACK(l.packed, V, 8,
                             hh_cuda_launch(be, "fill", fill<T, V>, hh_loop_grid(l.rows, l.n, V), HH_CUDA_BLOCK, 0,
                                            hh_view_of<T>(y), (float)value, l.rows, l.n)));
}

template <typename Y, typename X, int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    axpy(hh_view<Y> y, float alpha, hh_view<const X> x, int64_t rows, int64_t n) {
    const hh_place at = hh_place_of<V>(rows, n);
    float a[V], b[V];
    hh_load_pack(a, x.p + at.row * x.stride + at.column, at.n);
    hh_load_pack(b, (const Y *)(y.p + at.row * y.stride + at.column), at.n);
#pragma unroll
    for (int i = 0; i < V; i++) b[i] += alpha * a[i];
    hh_store_pack(y.p + at.row * y.stride + at.column, b, at.n);
}

extern "C" void hh_axpy_cuda(hh_backend *be, hh_tensor y, double alpha, hh_tensor x) {
    flatten(&y, &x);
    const hh_tensor both[] = {y, x};
    const hh_loop l = hh_loop_over(both, 2);
    HH_CUDA_BY_TYPE(
        y.dtype, Y,
        HH_CUDA_BY_TYPE(
            x.dtype, X,
            HH_CUDA_BY_PACK(l.packed, V, 8,
                            hh_cuda_launch(be, "axpy", axpy<Y, X, V>, hh_loop_grid(l.rows, l.n, V), HH_CUDA_BLOCK, 0,
                                           hh_view_of<Y>(y), (float)alpha, hh_view_of<const X>(x), l.rows, l.n))));
}

/* -- rows by a list -- */

extern "C" void hh_gather_rows_cuda(hh_backend *be, hh_tensor y, hh_tensor x, const int32_t *rows) {
    HH_ASSERT(y.dtype == x.dtype && hh_tensor_row_count(y) == hh_tensor_row_count(x));
    for (int64_t i = 0; i < y.dim[0]; i++) HH_ASSERT(rows[i] >= 0 && rows[i] < x.dim[0]);
    launch_move(be, "gather_rows", y.data, hh_dtype_bytes(y.dtype, y.stride), x.data, hh_dtype_bytes(x.dtype, x.stride),
                hh_cuda_list(be, rows, y.dim[0]), y.dim[0], hh_dtype_bytes(y.dtype, hh_tensor_row_count(y)));
}

/* A thread has 8 numbers of a token. */
template <typename Y, typename X, int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    embed(hh_view<Y> y, hh_view<const X> w, const int32_t *ids, int64_t rows, int64_t n) {
    const hh_place at = hh_place_of<V>(rows, n);
    if (!at.n) return;
    float a[V];
    hh_load_pack(a, w.p + ids[at.row] * w.stride + at.column, at.n);
    hh_store_pack(y.p + at.row * y.stride + at.column, a, at.n);
}

template <typename Y>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    embed_blocks(hh_view<Y> y, const uint8_t *w, size_t w_row, hh_dtype type, int block, int block_bytes,
                 const int32_t *ids, int64_t rows, int64_t n) {
    const hh_place at = hh_place_of<8>(rows, n);
    if (!at.n) return;
    float a[8];
    hh_decode8(a, type, w + ids[at.row] * w_row + at.column / block * block_bytes, (int)(at.column % block));
    for (int i = 0; i < 8; i++) hh_store(y.p + at.row * y.stride + at.column + i, a[i]);
}

extern "C" void hh_embedding_fwd_cuda(hh_backend *be, hh_tensor y, hh_tensor w, const int32_t *ids) {
    const int64_t rows = y.dim[0], n = w.dim[1];
    HH_ASSERT(hh_is_act(be, y) && hh_tensor_row_count(y) == n);
    for (int64_t t = 0; t < rows; t++) HH_ASSERT(ids[t] >= 0 && ids[t] < w.dim[0]);
    const int32_t *list = hh_cuda_list(be, ids, rows);
    if (hh_dtype_is_quantised(w.dtype)) {
        const int block = (int)hh_dtype_block(w.dtype), bytes = (int)hh_dtype_block_bytes(w.dtype);
        HH_CUDA_BY_TYPE(be->activation, Y,
                        hh_cuda_launch(be, "embedding_fwd", embed_blocks<Y>, hh_loop_grid(rows, n, 8), HH_CUDA_BLOCK, 0,
                                       hh_view_of<Y>(y), (const uint8_t *)w.data, hh_dtype_bytes(w.dtype, w.stride),
                                       w.dtype, block, bytes, list, rows, n));
        return;
    }
    const bool packed = hh_is_packed(y) && hh_is_packed(w);
    HH_CUDA_BY_TYPE(be->activation, Y,
                    BY_FLOAT(w.dtype, X,
                             HH_CUDA_BY_PACK(packed, V, 8,
                                             hh_cuda_launch(be, "embedding_fwd", embed<Y, X, V>,
                                                            hh_loop_grid(rows, n, V), HH_CUDA_BLOCK, 0,
                                                            hh_view_of<Y>(y), hh_view_of<const X>(w), list, rows, n))));
}
