/* cache_append: new keys and values to where attention reads them; see ops/cache_append.h. */
#include "ops/cuda/cuda.h"

#include <cuda_fp16.h>

/* Where the rows of one span go. */
struct cache_target {
    void *k, *v;
    int64_t k_stride, v_stride; /* numbers between positions */
    int64_t lo, hi, pos;
};

/* The span of token t: the last one that begins there or before. */
static __device__ cache_target target_of(const cache_target *target, int n_spans, int64_t t) {
    int lo = 0, hi = n_spans - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (target[mid].lo <= t)
            lo = mid;
        else
            hi = mid - 1;
    }
    return target[lo];
}

/* A block owns one token's row of k (blockIdx.y 0) or v (1). Bound by memory. */
template <typename To, typename From>
static __global__ void cache_append_kernel(const cache_target *target, int n_spans, const From *k, const From *v,
                                           int64_t k_stride, int64_t v_stride, int n) {
    const int64_t t = blockIdx.x;
    const cache_target s = target_of(target, n_spans, t);
    if (t < s.lo || t >= s.hi) return;
    const int64_t at = s.pos + t - s.lo;
    const From *from = blockIdx.y ? v + t * v_stride : k + t * k_stride;
    To *to = blockIdx.y ? (To *)s.v + at * s.v_stride : (To *)s.k + at * s.k_stride;
    for (int i = threadIdx.x; i < n; i += blockDim.x) hh_store(to + i, hh_load(from + i));
}

/* The same into blocks of 32 numbers with one scale (Q8_0: half d, int8 q[32]; rows are whole blocks). A warp owns a
 * block of numbers; rounding is the CPU's: half away from zero, by the unrounded scale. */
template <typename From>
static __global__ void cache_append_q8_kernel(const cache_target *target, int n_spans, const From *k, const From *v,
                                              int64_t k_stride, int64_t v_stride, int n) {
    const int64_t t = blockIdx.x;
    const cache_target s = target_of(target, n_spans, t);
    if (t < s.lo || t >= s.hi) return;
    const int64_t at = s.pos + t - s.lo;
    const From *from = blockIdx.y ? v + t * v_stride : k + t * k_stride;
    char *to = blockIdx.y ? (char *)s.v + at * s.v_stride / 32 * 34 : (char *)s.k + at * s.k_stride / 32 * 34;
    for (int b = threadIdx.x / 32; b < n / 32; b += blockDim.x / 32) {
        const int lane = threadIdx.x & 31;
        const float x = hh_load(from + 32 * b + lane), d = hh_warp_max(fabsf(x)) / 127.0f;
        const float q = d != 0 ? x * (1.0f / d) : 0;
        if (lane == 0) *(__half *)(to + 34 * b) = __float2half_rn(d);
        to[34 * b + 2 + lane] = (char)(int)roundf(q);
    }
}

template <typename From>
static void append(hh_backend *be, const cache_target *target, int64_t n_spans, hh_tensor k, hh_tensor v, hh_dtype to) {
    const dim3 grid((unsigned)k.dim[0], 2), block(128);
    const int n = (int)hh_tensor_row_count(k), spans = (int)n_spans;
    const From *from_k = (const From *)k.data, *from_v = (const From *)v.data;
    if (to == HH_DTYPE_Q8_0) {
        hh_cuda_launch(be, "cache_append", cache_append_q8_kernel<From>, grid, block, 0, target, spans, from_k, from_v,
                       k.stride, v.stride, n);
    } else if (to == HH_DTYPE_F32) {
        hh_cuda_launch(be, "cache_append", cache_append_kernel<float, From>, grid, block, 0, target, spans, from_k,
                       from_v, k.stride, v.stride, n);
    } else {
        HH_ASSERT(to == HH_DTYPE_BF16);
        hh_cuda_launch(be, "cache_append", cache_append_kernel<hh_bf16, From>, grid, block, 0, target, spans, from_k,
                       from_v, k.stride, v.stride, n);
    }
}

#define SPANS_A_LAUNCH 256

extern "C" void hh_cache_append_cuda(hh_backend *be, const hh_kv *kv, hh_tensor k, hh_tensor v, const hh_span *span,
                                     int64_t n_spans) {
    HH_ASSERT(k.rank == 3 && v.rank == 3 && k.dtype == v.dtype && hh_are_spans(span, n_spans, k.dim[0]));
    for (int64_t first = 0; first < n_spans; first += SPANS_A_LAUNCH) {
        cache_target target[SPANS_A_LAUNCH];
        int64_t n = n_spans - first < SPANS_A_LAUNCH ? n_spans - first : SPANS_A_LAUNCH;
        memset(target, 0, sizeof target);
        for (int64_t i = 0; i < n; i++) {
            const hh_span s = span[first + i];
            const hh_kv to = kv[first + i];
            HH_ASSERT(to.k.dtype == kv[0].k.dtype && to.v.dtype == kv[0].k.dtype);
            HH_ASSERT(s.lo == s.hi || (s.pos + s.hi - s.lo <= to.k.dim[0] && s.pos + s.hi - s.lo <= to.v.dim[0]));
            target[i] = {to.k.data, to.v.data, to.k.stride, to.v.stride, s.lo, s.hi, s.pos};
        }
        const cache_target *list = hh_cuda_list(be, target, n);
        HH_CUDA_BY_TYPE(k.dtype, T, append<T>(be, list, n, k, v, kv[0].k.dtype));
    }
}
