/* Attention in float32 arithmetic for any head width up to HH_MAX_HEAD_DIM and any type of cache: the kernels that
 * verify the others, and serve what those do not take. A block owns one query (or, for dk and dv, one key) of one head
 * and goes over the other side in tiles of its threads: first every thread computes a logit, then every thread sums
 * its columns. */
#include "ops/cuda/attention.h"

#define THREADS 128
#define COLUMNS (HH_MAX_HEAD_DIM / THREADS) /* of a thread */

/* Over the block, in fixed order; the same in every thread. */
static __device__ float block_max(float v, float *shared) {
    v = hh_warp_max(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared[0];
    for (int i = 1; i < THREADS / 32; i++) v = fmaxf(v, shared[i]);
    return v;
}
static __device__ float block_sum(float v, float *shared) {
    v = hh_warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared[0];
    for (int i = 1; i < THREADS / 32; i++) v += shared[i];
    return v;
}

template <typename T> static __device__ void load_row(float *to, const T *from, int D) {
    for (int d = threadIdx.x; d < D; d += THREADS) to[d] = hh_load(from + d);
}

template <typename T> static __global__ void plain_fwd(const hh_attention_args a) {
    __shared__ float q[HH_MAX_HEAD_DIM], p[THREADS], shared[THREADS / 32];
    const hh_attention_span s = *hh_attention_find(a, blockIdx.x);
    const hh_attention_head h = a.head[blockIdx.y];
    const int D = a.head_dim, tid = threadIdx.x;
    const int64_t i = (int64_t)blockIdx.x - s.first, t = s.lo + i, n_keys = s.pos + i + 1, column = (int64_t)h.kv * D;
    const float c = hh_attention_scale_at(a, s.pos + i);
    load_row(q, (const T *)a.q + t * a.q_stride + (int64_t)h.q * D, D);
    __syncthreads();
    float o[COLUMNS] = {0}, top = -INFINITY, sum = 0;
    for (int64_t j0 = 0; j0 < n_keys; j0 += THREADS) {
        const int64_t j = j0 + tid;
        float z = 0;
        if (j < n_keys)
            for (int d = 0; d < D; d++) z += q[d] * hh_attention_load(s.k, a.kv_dtype, j * s.k_stride + column + d);
        z = j < n_keys ? c * z : -INFINITY; /* F2 */
        const float higher = fmaxf(top, block_max(z, shared)), shrink = expf(top - higher);
        top = higher;
        p[tid] = expf(z - top);
        sum = sum * shrink + p[tid];
        __syncthreads();
        const int n = (int)(n_keys - j0 < THREADS ? n_keys - j0 : THREADS);
        for (int k = 0; k < COLUMNS && tid + k * THREADS < D; k++) {
            float part = 0;
            for (int e = 0; e < n; e++)
                part += p[e] * hh_attention_load(s.v, a.kv_dtype, (j0 + e) * s.v_stride + column + tid + k * THREADS);
            o[k] = o[k] * shrink + part;
        }
        __syncthreads();
    }
    sum = block_sum(sum, shared);
    for (int k = 0; k < COLUMNS && tid + k * THREADS < D; k++) /* F4 */
        hh_store((T *)a.o + t * a.o_stride + (int64_t)h.o * D + tid + k * THREADS, o[k] / sum);
    if (a.lse && !tid) a.lse[t * a.lse_stride + h.o] = top + logf(sum); /* F3 */
}

/* p_tj and dz_tj of B2, for one query and one key. */
template <typename T>
static __device__ __forceinline__ float2 pair_of(const float *q, const float *g, const T *k, const T *v, int D, float c,
                                                 float lse, float delta) {
    float z = 0, dp = 0;
    for (int d = 0; d < D; d++) {
        z += q[d] * hh_load(k + d);
        dp += g[d] * hh_load(v + d);
    }
    const float p = expf(c * z - lse);
    return make_float2(p, p * (dp - delta));
}

/* B3: a block a query and head. */
template <typename T> static __global__ void plain_dq(const hh_attention_args a) {
    __shared__ float q[HH_MAX_HEAD_DIM], g[HH_MAX_HEAD_DIM], dz[THREADS];
    const hh_attention_span s = *hh_attention_find(a, blockIdx.x);
    const hh_attention_head h = a.head[blockIdx.y];
    const int D = a.head_dim, tid = threadIdx.x;
    const int64_t i = (int64_t)blockIdx.x - s.first, t = s.lo + i, column = (int64_t)h.kv * D;
    const T *k = (const T *)s.k + column, *v = (const T *)s.v + column;
    const float c = hh_attention_scale_at(a, i), lse = a.lse[t * a.lse_stride + h.o];
    const float delta = a.delta[t * a.delta_stride + h.o];
    load_row(q, (const T *)a.q + t * a.q_stride + (int64_t)h.q * D, D);
    load_row(g, (const T *)a.do_ + t * a.do_stride + (int64_t)h.q * D, D);
    float dq[COLUMNS] = {0};
    for (int64_t j0 = 0; j0 <= i; j0 += THREADS) {
        __syncthreads();
        if (j0 + tid <= i)
            dz[tid] = pair_of(q, g, k + (j0 + tid) * s.k_stride, v + (j0 + tid) * s.v_stride, D, c, lse, delta).y;
        __syncthreads();
        const int n = (int)(i + 1 - j0 < THREADS ? i + 1 - j0 : THREADS);
        for (int m = 0; m < COLUMNS && tid + m * THREADS < D; m++)
            for (int e = 0; e < n; e++) dq[m] += dz[e] * hh_load(k + (j0 + e) * s.k_stride + tid + m * THREADS);
    }
    for (int m = 0; m < COLUMNS && tid + m * THREADS < D; m++)
        hh_store((T *)a.dq + t * a.dq_stride + (int64_t)h.o * D + tid + m * THREADS, c * dq[m]);
}

/* B4: a block a key and KV head, over the group's heads one after another. */
template <typename T> static __global__ void plain_dkv(const hh_attention_args a) {
    __shared__ float k[HH_MAX_HEAD_DIM], v[HH_MAX_HEAD_DIM], dz[THREADS], p[THREADS];
    const hh_attention_span s = *hh_attention_find(a, blockIdx.x);
    const hh_attention_group group = a.group[blockIdx.y];
    const int D = a.head_dim, tid = threadIdx.x;
    const int64_t j = (int64_t)blockIdx.x - s.first;
    load_row(k, (const T *)s.k + j * s.k_stride + (int64_t)group.kv * D, D);
    load_row(v, (const T *)s.v + j * s.v_stride + (int64_t)group.kv * D, D);
    float dk[COLUMNS] = {0}, dv[COLUMNS] = {0};
    for (int r = 0; r < group.n; r++) {
        const hh_attention_head h = a.head[group.first + r];
        const T *q = (const T *)a.q + s.lo * a.q_stride + (int64_t)h.q * D;
        const T *g = (const T *)a.do_ + s.lo * a.do_stride + (int64_t)h.q * D;
        for (int64_t i0 = j; i0 < s.n; i0 += THREADS) {
            const int64_t i = i0 + tid;
            __syncthreads();
            if (i < s.n) {
                const float c = hh_attention_scale_at(a, i);
                const float2 pair =
                    pair_of(k, v, q + i * a.q_stride, g + i * a.do_stride, D, c, a.lse[(s.lo + i) * a.lse_stride + h.o],
                            a.delta[(s.lo + i) * a.delta_stride + h.o]);
                p[tid] = pair.x;
                dz[tid] = c * pair.y;
            }
            __syncthreads();
            const int n = (int)(s.n - i0 < THREADS ? s.n - i0 : THREADS);
            for (int m = 0; m < COLUMNS && tid + m * THREADS < D; m++)
                for (int e = 0; e < n; e++) {
                    dk[m] += dz[e] * hh_load(q + (i0 + e) * a.q_stride + tid + m * THREADS);
                    dv[m] += p[e] * hh_load(g + (i0 + e) * a.do_stride + tid + m * THREADS);
                }
        }
    }
    for (int m = 0; m < COLUMNS && tid + m * THREADS < D; m++) {
        const int64_t at = (int64_t)group.dkv * D + tid + m * THREADS;
        hh_store((T *)a.dk + (s.lo + j) * a.dk_stride + at, dk[m]);
        hh_store((T *)a.dv + (s.lo + j) * a.dv_stride + at, dv[m]);
    }
}

/* A warp a row and head. */
template <typename T>
static __global__ void delta_rows(float *delta, const T *do_, int64_t do_stride, const T *o, int64_t o_stride,
                                  int64_t n, int n_heads, int D) {
    const int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (at >= n) return;
    const int64_t t = at / n_heads, column = at % n_heads * D;
    float sum = 0;
    for (int d = threadIdx.x % 32; d < D; d += 32)
        sum += hh_load(do_ + t * do_stride + column + d) * hh_load(o + t * o_stride + column + d);
    sum = hh_warp_sum(sum);
    if (threadIdx.x % 32 == 0) delta[at] = sum;
}

void hh_attention_plain_fwd(hh_backend *be, hh_attention_args *a, hh_dtype type, hh_attention_span *span) {
    const dim3 grid((unsigned)hh_attention_cut(span, a->n_spans, 1), (unsigned)a->n_heads);
    a->span = hh_cuda_list(be, span, a->n_spans);
    HH_CUDA_BY_TYPE(type, T, hh_cuda_launch(be, "attention_fwd", plain_fwd<T>, grid, THREADS, 0, *a));
}

void hh_attention_plain_bwd(hh_backend *be, hh_attention_args *a, hh_dtype type, hh_attention_span *span) {
    const unsigned rows = (unsigned)hh_attention_cut(span, a->n_spans, 1);
    a->span = hh_cuda_list(be, span, a->n_spans);
    const dim3 by_head(rows, (unsigned)a->n_heads), by_group(rows, (unsigned)a->n_groups);
    HH_CUDA_BY_TYPE(type, T, {
        hh_cuda_launch(be, "attention_bwd", plain_dq<T>, by_head, THREADS, 0, *a);
        hh_cuda_launch(be, "attention_bwd", plain_dkv<T>, by_group, THREADS, 0, *a);
    });
}

void hh_attention_delta(hh_backend *be, float *delta, hh_tensor do_, hh_tensor o) {
    const int64_t n = o.dim[0] * o.dim[1];
    const dim3 grid((unsigned)hh_ceil_div(n, 8));
    HH_CUDA_BY_TYPE(o.dtype, T,
                    hh_cuda_launch(be, "attention_bwd", delta_rows<T>, grid, 256, 0, delta, (const T *)do_.data,
                                   do_.stride, (const T *)o.data, o.stride, n, (int)o.dim[1], (int)o.dim[2]));
}
