/* Reductions that observers ask for; see ops/reduce.h. */
#include "ops/cuda/cuda.h"

#include <climits>

#define DOT_THREADS 256
#define DOT_PARTS   16 /* blocks a head, each with every 16th token */

/* A block owns head blockIdx.x, tokens blockIdx.y, + DOT_PARTS, ...; threads of it every 256th number of those rows.
 * Bound by memory. Sums are in a fixed order: within a thread, over the warp, over warps. */
template <typename T>
static __global__ void head_dot_kernel(float *part, const T *a, const T *b, const T *c, int64_t n_tokens,
                                       int64_t a_stride, int64_t b_stride, int64_t c_stride, int width) {
    __shared__ float warps[DOT_THREADS / 32];
    const int64_t column = (int64_t)blockIdx.x * width, rows = (n_tokens - blockIdx.y + DOT_PARTS - 1) / DOT_PARTS;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < rows * width; i += DOT_THREADS) {
        const int64_t t = blockIdx.y + i / width * DOT_PARTS, d = column + i % width;
        const float y = hh_load(b + t * b_stride + d) - (c ? hh_load(c + t * c_stride + d) : 0);
        sum = fmaf(hh_load(a + t * a_stride + d), y, sum);
    }
    sum = hh_warp_sum(sum);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < DOT_THREADS / 32; i++) sum += warps[i];
    part[blockIdx.x * DOT_PARTS + blockIdx.y] = sum;
}

static __global__ void head_dot_sum_kernel(float *out, const float *part, int n_heads) {
    const int h = blockIdx.x * blockDim.x + threadIdx.x;
    if (h >= n_heads) return;
    float sum = 0;
    for (int i = 0; i < DOT_PARTS; i++) sum += part[h * DOT_PARTS + i];
    out[h] = sum;
}

template <typename T>
static void head_dot(hh_backend *be, float *out, float *part, hh_tensor a, hh_tensor b, hh_tensor c) {
    const dim3 grid((unsigned)a.dim[1], DOT_PARTS);
    hh_cuda_launch(be, "head_dot", head_dot_kernel<T>, grid, dim3(DOT_THREADS), 0, part, (const T *)a.data,
                   (const T *)b.data, (const T *)c.data, a.dim[0], a.stride, b.stride, c.stride, (int)a.dim[2]);
    hh_cuda_launch(be, "head_dot", head_dot_sum_kernel, dim3((unsigned)hh_ceil_div(a.dim[1], 128)), dim3(128), 0, out,
                   (const float *)part, (int)a.dim[1]);
}

extern "C" void hh_head_dot_cuda(hh_backend *be, hh_tensor out, hh_tensor a, hh_tensor b, hh_tensor c) {
    HH_ASSERT(a.rank == 3 && b.dtype == a.dtype && (hh_is_absent(c) || c.dtype == a.dtype));
    for (int i = 0; i < 3; i++) HH_ASSERT(b.dim[i] == a.dim[i] && (hh_is_absent(c) || c.dim[i] == a.dim[i]));
    HH_ASSERT(hh_is_real_vector(out, a.dim[1]));
    hh_cuda_scratch_begin(be);
    float *part = (float *)hh_cuda_scratch(be, (size_t)a.dim[1] * DOT_PARTS * sizeof *part);
    HH_CUDA_BY_TYPE(a.dtype, T, head_dot<T>(be, (float *)out.data, part, a, b, c));
}

/* at[0] becomes the smallest index whose value is not finite. Whole numbers: the order of the atomics does not matter. */
template <typename T>
static __global__ void find_nonfinite_kernel(unsigned long long *at, const T *x, int64_t n, int64_t row,
                                             int64_t stride) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        if (!isfinite(hh_load(x + i / row * stride + i % row))) {
            atomicMin(at, (unsigned long long)i);
            return;
        }
}

static __global__ void set_none_kernel(unsigned long long *at) {
    *at = ULLONG_MAX;
}

template <typename T> static void find_nonfinite(hh_backend *be, unsigned long long *at, hh_tensor x) {
    const int64_t n = hh_tensor_count(x), blocks = hh_ceil_div(n, 1024);
    hh_cuda_launch(be, "find_nonfinite", set_none_kernel, dim3(1), dim3(1), 0, at);
    hh_cuda_launch(be, "find_nonfinite", find_nonfinite_kernel<T>, dim3((unsigned)(blocks < 1024 ? blocks : 1024)),
                   dim3(256), 0, at, (const T *)x.data, n, hh_tensor_row_count(x), x.stride);
}

extern "C" void hh_find_nonfinite_cuda(hh_backend *be, int64_t *at, hh_tensor x) {
    hh_cuda_scratch_begin(be);
    unsigned long long *found = (unsigned long long *)hh_cuda_scratch(be, sizeof *found);
    HH_CUDA_BY_TYPE(x.dtype, T, find_nonfinite<T>(be, found, x));
    *at = -1; /* ULLONG_MAX; also when the GPU has failed */
    be->to_host(be, at, found, sizeof *at);
}
