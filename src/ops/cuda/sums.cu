/* Sums over everything on the GPU, in a fixed order: the second pass of sums over tokens, the mean squared error and the
 * sum of squares; and AdamW, the pass over all parameters. Equations in ops/loss.h and ops/optimizer.h. */
#include "ops/cuda/rows.h"

extern "C" {
#include "ops/optimizer.h"
}

#define MOST_BLOCKS 1024 /* whose partial sums one block adds up */

/* -- sums over tokens: 32 columns a block, 32 lines of partial sums -- */

static __global__ void __launch_bounds__(1024)
    add_columns(float *out, const float *partial, int64_t n_partials, int64_t n) {
    __shared__ float sums[32][33];
    const int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    if (c < n)
        for (int64_t p = threadIdx.y; p < n_partials; p += 32) sum += partial[p * n + c];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = hh_warp_sum(sums[threadIdx.x][threadIdx.y]); /* of column threadIdx.y */
    const int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && column < n) out[column] += sum;
}

void hh_cuda_add_columns(hh_backend *be, const char *op, float *out, const float *partial, int64_t n_partials,
                         int64_t n) {
    hh_cuda_launch(be, op, add_columns, dim3((unsigned)hh_ceil_div(n, 32)), dim3(32, 32), 0, out, partial, n_partials,
                   n);
}

/* -- sums of one number, in double -- */

static __device__ __forceinline__ double block_sum(double v) {
    __shared__ double part[HH_CUDA_BLOCK / 32];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    double sum = 0;
    for (int i = 0; i < HH_CUDA_BLOCK / 32; i++) sum += part[i];
    return sum;
}

/* partial[blocks] += to *sum (double), or scale times them to *loss (float). */
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    finish_sum(double *sum, float *loss, double scale, const double *partial, int n) {
    double v = 0;
    for (int i = threadIdx.x; i < n; i += HH_CUDA_BLOCK) v += partial[i];
    v = block_sum(v);
    if (threadIdx.x) return;
    if (sum) *sum = v;
    if (loss) *loss = (float)((double)*loss + scale * v);
}

template <int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK) sum_squares(double *partial, const float *x, int64_t n) {
    double sum = 0;
    const int64_t step = (int64_t)gridDim.x * HH_CUDA_BLOCK * V;
#pragma unroll 4
    for (int64_t i = ((int64_t)blockIdx.x * HH_CUDA_BLOCK + threadIdx.x) * V; i < n; i += step) {
        float a[V];
        hh_load_pack(a, x + i, n - i < V ? (int)(n - i) : V);
#pragma unroll
        for (int k = 0; k < V; k++) sum += (double)a[k] * (double)a[k];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

static int64_t blocks_for(int64_t items) {
    const int64_t b = hh_ceil_div(items, HH_CUDA_BLOCK);
    return b < MOST_BLOCKS ? b : MOST_BLOCKS;
}

extern "C" void hh_sum_squares_cuda(hh_backend *be, double *out, hh_tensor x) {
    const int64_t n = hh_tensor_count(x);
    HH_ASSERT(hh_is_f32(x) && hh_tensor_is_dense(x));
    if (!n) return;
    const bool packed = (uintptr_t)x.data % 16 == 0;
    const int64_t blocks = blocks_for(hh_ceil_div(n, packed ? 4 : 1));
    hh_cuda_scratch_begin(be);
    double *sum = (double *)hh_cuda_scratch(be, (size_t)(blocks + 1) * sizeof(double)), value = 0;
    HH_CUDA_BY_PACK(packed, V, 4,
                    hh_cuda_launch(be, "sum_squares", sum_squares<V>, dim3((unsigned)blocks), HH_CUDA_BLOCK, 0, sum + 1,
                                   (const float *)x.data, n));
    hh_cuda_launch(be, "sum_squares", finish_sum, 1, HH_CUDA_BLOCK, 0, sum, (float *)NULL, 0.0,
                   (const double *)(sum + 1), (int)blocks);
    be->to_host(be, &value, sum, sizeof value);
    *out += value;
}

/* F4 and B4 */
template <typename T, int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    squared_error(double *partial, hh_view<T> dy, hh_view<const T> y, hh_view<const T> target, float twice,
                  int64_t rows, int64_t n) {
    const int64_t packs = (n + V - 1) / V, step = (int64_t)gridDim.x * HH_CUDA_BLOCK;
    double sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * HH_CUDA_BLOCK + threadIdx.x; i < rows * packs; i += step) {
        const int64_t row = rows > 1 ? (uint32_t)i / (uint32_t)packs : 0, c = (i - row * packs) * V;
        const int m = n - c < V ? (int)(n - c) : V;
        float a[V], b[V];
        hh_load_pack(a, y.p + row * y.stride + c, m);
        hh_load_pack(b, target.p + row * target.stride + c, m);
#pragma unroll
        for (int k = 0; k < V; k++) {
            a[k] -= b[k];
            sum += (double)a[k] * (double)a[k];
            a[k] *= twice;
        }
        if (dy.p) hh_store_pack(dy.p + row * dy.stride + c, a, m);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" void hh_mse_cuda(hh_backend *be, hh_tensor loss, hh_tensor dy, hh_tensor y, hh_tensor target, double scale) {
    const hh_tensor all[] = {y, target, dy};
    for (int i = 0; i < 3; i++) HH_ASSERT((i == 2 && hh_is_absent(dy)) || hh_is_act(be, all[i]));
    HH_ASSERT(hh_is_f32_vector(loss, 1));
    const hh_loop l = hh_loop_over(all, hh_is_absent(dy) ? 2 : 3);
    hh_loop_grid(l.rows, l.n, l.packed ? 8 : 1); /* asserts that it can be counted */
    if (!l.rows || !l.n) return;
    const int64_t blocks = blocks_for(l.rows * hh_ceil_div(l.n, l.packed ? 8 : 1));
    hh_cuda_scratch_begin(be);
    double *partial = (double *)hh_cuda_scratch(be, (size_t)blocks * sizeof(double));
    HH_CUDA_BY_TYPE(be->activation, T,
                    HH_CUDA_BY_PACK(l.packed, V, 8,
                                    hh_cuda_launch(be, "mse", squared_error<T, V>, dim3((unsigned)blocks),
                                                   HH_CUDA_BLOCK, 0, partial, hh_view_of<T>(dy), hh_view_of<const T>(y),
                                                   hh_view_of<const T>(target), (float)(2 * scale), l.rows, l.n)));
    hh_cuda_launch(be, "mse", finish_sum, 1, HH_CUDA_BLOCK, 0, (double *)NULL, (float *)loss.data, scale,
                   (const double *)partial, (int)blocks);
}

/* -- AdamW -- */

template <int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    adamw(float *p, float *m, float *v, const float *grad, hh_adamw_step c, int64_t n) {
    const hh_place at = hh_place_of<V>(1, n);
    float a[V], b[V], d[V], g[V];
    hh_load_pack(g, grad + at.column, at.n);
    hh_load_pack(a, (const float *)p + at.column, at.n);
    hh_load_pack(b, (const float *)m + at.column, at.n);
    hh_load_pack(d, (const float *)v + at.column, at.n);
#pragma unroll
    for (int i = 0; i < V; i++) { /* F2 */
        const float s = c.grad_scale * g[i];
        b[i] = c.beta1 * b[i] + c.one_minus_beta1 * s;
        d[i] = c.beta2 * d[i] + c.one_minus_beta2 * s * s;
        a[i] = a[i] * c.decay - c.rate * b[i] / (sqrtf(d[i]) * c.inverse_root + c.eps);
    }
    hh_store_pack(p + at.column, a, at.n);
    hh_store_pack(m + at.column, b, at.n);
    hh_store_pack(v + at.column, d, at.n);
}

extern "C" void hh_adamw_cuda(hh_backend *be, hh_tensor p, hh_tensor m, hh_tensor v, hh_tensor grad, double lr,
                              double beta1, double beta2, double eps, double weight_decay, double grad_scale,
                              int64_t step) {
    const hh_tensor all[] = {p, m, v, grad};
    const int64_t n = hh_tensor_count(p);
    bool packed = true;
    for (int i = 0; i < 4; i++) {
        HH_ASSERT(hh_is_f32(all[i]) && hh_tensor_is_dense(all[i]) && hh_tensor_count(all[i]) == n);
        packed = packed && (uintptr_t)all[i].data % 16 == 0;
    }
    const hh_adamw_step c = hh_adamw_constants(lr, beta1, beta2, eps, weight_decay, grad_scale, step);
    HH_CUDA_BY_PACK(packed, V, 4,
                    hh_cuda_launch(be, "adamw", adamw<V>, hh_loop_grid(n ? 1 : 0, n, V), HH_CUDA_BLOCK, 0,
                                   (float *)p.data, (float *)m.data, (float *)v.data, (const float *)grad.data, c, n));
}
