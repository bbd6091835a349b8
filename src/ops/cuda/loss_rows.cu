/* Rows of logits on the card: softmax of a row or two, losses, gradient.
 *
 * Gradients of bf16 rows, the training step's case, are made by a cluster of blocks a row that reads logits once and
 * keeps them in shared memory. The plain kernels, a block a row, take all others. */
#include "ops/cuda/loss_rows.h"

#include "ops/cuda/cluster.cuh"

#include <cfloat>
#include <cooperative_groups.h>

namespace cg = cooperative_groups;

enum { ROW_THREADS = 512, ROW_WARPS = ROW_THREADS / 32, WIDE = 8 };

struct eight {
    float v[WIDE];
};

static __device__ __forceinline__ eight load_eight(const float *p) {
    float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
static __device__ __forceinline__ eight load_eight(const hh_bf16 *p) {
    uint4 u = *(const uint4 *)p;
    uint32_t w[4] = {u.x, u.y, u.z, u.w};
    eight e;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        e.v[2 * i] = __uint_as_float(w[i] << 16);
        e.v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
    return e;
}
static __device__ __forceinline__ void store_eight(float *p, const eight &e) {
    ((float4 *)p)[0] = make_float4(e.v[0], e.v[1], e.v[2], e.v[3]);
    ((float4 *)p)[1] = make_float4(e.v[4], e.v[5], e.v[6], e.v[7]);
}
static __device__ __forceinline__ void store_eight(hh_bf16 *p, const eight &e) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __nv_bfloat162 b = __floats2bfloat162_rn(e.v[2 * i], e.v[2 * i + 1]);
        w[i] = *(uint32_t *)&b;
    }
    *(uint4 *)p = make_uint4(w[0], w[1], w[2], w[3]);
}

/* Eight logits from v on; beyond V they are the smallest number, whose exponential is 0. */
template <typename Z> static __device__ __forceinline__ eight load_logits(const Z *z, int64_t v, int64_t V) {
    if (v + WIDE <= V) return load_eight(z + v);
    eight e;
    for (int i = 0; i < WIDE; i++) e.v[i] = v + i < V ? hh_load(z + v + i) : -FLT_MAX;
    return e;
}

template <typename Z> static __device__ __forceinline__ void store_logits(Z *z, int64_t v, int64_t V, const eight &e) {
    if (v + WIDE <= V) {
        store_eight(z + v, e);
        return;
    }
    for (int i = 0; i < WIDE && v + i < V; i++) hh_store(z + v + i, e.v[i]);
}

/* The largest number so far and the sum of exponentials below it. */
struct soft {
    float top, sum;
};

static __device__ __forceinline__ void add_logits(soft *s, const eight &e) {
    float top = s->top;
#pragma unroll
    for (int i = 0; i < WIDE; i++) top = fmaxf(top, e.v[i]);
    if (top > s->top) {
        s->sum *= __expf(s->top - top);
        s->top = top;
    }
#pragma unroll
    for (int i = 0; i < WIDE; i++) s->sum += __expf(e.v[i] - top);
}

static __device__ __forceinline__ soft merge(soft a, soft b) {
    float top = fmaxf(a.top, b.top);
    return {top, a.sum * __expf(a.top - top) + b.sum * __expf(b.top - top)};
}

static __device__ __forceinline__ soft merge_warp(soft s) {
    for (int o = 16; o; o >>= 1)
        s = merge(s, {__shfl_xor_sync(0xffffffffu, s.top, o), __shfl_xor_sync(0xffffffffu, s.sum, o)});
    return s;
}

/* log sum exp of the row, the same in all threads. `all` has room for every warp. */
static __device__ __forceinline__ float merge_block(soft s, soft *all) {
    s = merge_warp(s);
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = s;
    __syncthreads();
    s = all[0];
    for (int i = 1; i < ROW_WARPS; i++) s = merge(s, all[i]);
    return s.top + logf(s.sum);
}

static __device__ __forceinline__ int64_t token_of(const hh_loss_row_job &j) {
    return j.token ? j.token[blockIdx.x] : j.first + blockIdx.x;
}

/* The first index of the largest logit. */
struct best {
    float value;
    int at;
};

static __device__ __forceinline__ best better(best a, best b) {
    return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}

static __device__ __forceinline__ int best_of_block(best b, best *all) {
    for (int o = 16; o; o >>= 1)
        b = better(b, {__shfl_xor_sync(0xffffffffu, b.value, o), __shfl_xor_sync(0xffffffffu, b.at, o)});
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = b;
    __syncthreads();
    b = all[0];
    for (int i = 1; i < ROW_WARPS; i++) b = better(b, all[i]);
    return b.at;
}

/* A block owns a row of z: F1, and with `gradient` B1 over it. Bound by memory: a row is read twice, the second time
 * from the L2 cache. */
template <typename Z>
static __global__ void __launch_bounds__(ROW_THREADS) ce_head_rows_kernel(Z *logits, hh_loss_row_job j) {
    __shared__ soft sums[ROW_WARPS];
    __shared__ best bests[ROW_WARPS];
    Z *z = logits + blockIdx.x * j.stride;
    int64_t t = token_of(j);
    int target = j.target ? j.target[t] : -1;
    float z_target = target >= 0 ? hh_load(z + target) : 0;
    soft s = {-FLT_MAX, 0};
    best b = {-INFINITY, 0x7fffffff};
    for (int64_t v = threadIdx.x * WIDE; v < j.V; v += ROW_THREADS * WIDE) {
        eight e = load_logits(z, v, j.V);
        if (j.argmax)
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                if (e.v[i] > b.value && v + i < j.V) b = {e.v[i], (int)v + i};
        if (j.nll || j.gradient) add_logits(&s, e);
    }
    if (j.argmax) {
        int at = best_of_block(b, bests);
        if (!threadIdx.x) j.argmax[t] = at < j.V ? at : 0;
    }
    if (!j.nll && !j.gradient) return;
    float lse = merge_block(s, sums);
    if (!threadIdx.x && j.nll) j.nll[t] = target >= 0 ? lse - z_target : 0;
    if (!j.gradient) return;
    for (int64_t v = threadIdx.x * WIDE; v < j.V; v += ROW_THREADS * WIDE) {
        eight e = load_logits(z, v, j.V);
#pragma unroll
        for (int i = 0; i < WIDE; i++) e.v[i] = j.scale * (__expf(e.v[i] - lse) - (v + i == target ? 1.0f : 0.0f));
        store_logits(z, v, j.V, e);
    }
}

/* A block owns a row of z and of zt: F1, F2, and with `gradient` B2 over z. Bound by memory and, nearly as much, by
 * exponentials. */
template <typename Z>
static __global__ void __launch_bounds__(ROW_THREADS)
    kl_head_rows_kernel(Z *logits, const Z *teacher, hh_loss_row_job j) {
    __shared__ soft sums[2][ROW_WARPS];
    __shared__ float partial[ROW_WARPS];
    Z *z = logits + blockIdx.x * j.stride;
    const Z *zt = teacher + blockIdx.x * j.stride;
    int64_t t = token_of(j);
    int target = j.target ? j.target[t] : -1;
    float weight = j.weight ? j.weight[t] : 1, z_target = target >= 0 ? hh_load(z + target) : 0;
    float kl_scale = j.scale * weight, ce_scale = target >= 0 ? j.ce_scale : 0, both = kl_scale + ce_scale;
    soft s = {-FLT_MAX, 0}, st = {-FLT_MAX, 0};
    for (int64_t v = threadIdx.x * WIDE; v < j.V; v += ROW_THREADS * WIDE) {
        add_logits(&s, load_logits((const Z *)z, v, j.V));
        add_logits(&st, load_logits(zt, v, j.V));
    }
    float lse = merge_block(s, sums[0]), lse_t = merge_block(st, sums[1]), kl = 0;
    if (!threadIdx.x && j.nll) j.nll[t] = target >= 0 ? lse - z_target : 0;
    for (int64_t v = threadIdx.x * WIDE; v < j.V; v += ROW_THREADS * WIDE) {
        eight e = load_logits((const Z *)z, v, j.V), et = load_logits(zt, v, j.V);
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            if (v + i >= j.V) break;
            float log_p = e.v[i] - lse, log_pt = et.v[i] - lse_t, pt = __expf(log_pt);
            kl += pt * (log_pt - log_p);
            e.v[i] = both * __expf(log_p) - kl_scale * pt - (v + i == target ? ce_scale : 0.0f);
        }
        if (j.gradient) store_logits(z, v, j.V, e);
    }
    kl = hh_warp_sum(kl);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = kl;
    __syncthreads();
    if (threadIdx.x || !j.kl) return;
    kl = partial[0];
    for (int i = 1; i < ROW_WARPS; i++) kl += partial[i];
    j.kl[t] = weight * kl;
}

/* -- a cluster of blocks a row -- */

enum { CLUSTER_THREADS = 256, AHEAD = 3 };

/* Of a part of a row: its softmax and the teacher's, and sum exp(zt - top_t) (zt - z). */
struct pair {
    float top, sum, top_t, sum_t, cross;
};

static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define LOG2_E 1.4426950408889634f

[[maybe_unused]] static __device__ __forceinline__ pair merge(pair a, pair b) {
    float top = fmaxf(a.top, b.top), top_t = fmaxf(a.top_t, b.top_t);
    float fa = exp2_fast((a.top_t - top_t) * LOG2_E), fb = exp2_fast((b.top_t - top_t) * LOG2_E);
    return {top, a.sum * exp2_fast((a.top - top) * LOG2_E) + b.sum * exp2_fast((b.top - top) * LOG2_E), top_t,
            a.sum_t * fa + b.sum_t * fb, a.cross * fa + b.cross * fb};
}

[[maybe_unused]] static __device__ __forceinline__ pair shuffle(pair p, int o) {
    return {__shfl_xor_sync(0xffffffffu, p.top, o), __shfl_xor_sync(0xffffffffu, p.sum, o),
            __shfl_xor_sync(0xffffffffu, p.top_t, o), __shfl_xor_sync(0xffffffffu, p.sum_t, o),
            __shfl_xor_sync(0xffffffffu, p.cross, o)};
}

[[maybe_unused]] static __device__ __forceinline__ float top_of(const eight &e) {
    float t = e.v[0];
#pragma unroll
    for (int i = 1; i < WIDE; i++) t = fmaxf(t, e.v[i]);
    return t;
}

template <bool TEACHER> static __device__ __forceinline__ void add_pairs(pair *p, const eight &z, const eight &zt) {
    float top = fmaxf(p->top, top_of(z));
    p->sum *= exp2_fast((p->top - top) * LOG2_E);
    p->top = top;
#pragma unroll
    for (int i = 0; i < WIDE; i++) p->sum += exp2_fast(fmaf(z.v[i], LOG2_E, -top * LOG2_E));
    if (!TEACHER) return;
    top = fmaxf(p->top_t, top_of(zt));
    float f = exp2_fast((p->top_t - top) * LOG2_E);
    p->sum_t *= f;
    p->cross *= f;
    p->top_t = top;
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        float e = exp2_fast(fmaf(zt.v[i], LOG2_E, -top * LOG2_E));
        p->sum_t += e;
        p->cross = fmaf(e, zt.v[i] - z.v[i], p->cross);
    }
}

/* Eight bf16 of which the first n are logits; the others become the smallest number. */
[[maybe_unused]] static __device__ __forceinline__ uint4 cut(uint4 u, int64_t n) {
    if (n >= WIDE) return u;
    uint32_t w[4] = {u.x, u.y, u.z, u.w};
    for (int i = 0; i < 4; i++) {
        if (2 * i >= n)
            w[i] = 0xff7fff7fu;
        else if (2 * i + 1 >= n)
            w[i] = (w[i] & 0xffffu) | 0xff7f0000u;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* A cluster of CL blocks owns a row of z, and of zt; a block a slice of it, which stays in shared memory (2 bytes an
 * element and row) between the sums and the gradient. Every thread reads again only what it has put there itself.
 * Bound by memory. */
template <int CL, bool TEACHER>
static __global__ void HH_CLUSTER(CL) __launch_bounds__(CLUSTER_THREADS, 3)
    head_gradient_rows_kernel(hh_bf16 *logits, const hh_bf16 *teacher, hh_loss_row_job j, int slice) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ uint4 kept[];
    __shared__ pair of_warp[CLUSTER_THREADS / 32], of_block[CL];
    cg::cluster_group cluster = cg::this_cluster();
    cluster.barrier_arrive(); /* waited for before another block's memory is written: it has begun then */
    int rank = (int)(blockIdx.x % CL), warp = threadIdx.x / 32;
    int64_t row = blockIdx.x / CL, t = j.token ? j.token[row] : j.first + row, lo = (int64_t)rank * slice;
    hh_bf16 *z = logits + row * j.stride;
    int target = j.target ? j.target[t] : -1;
    float weight = TEACHER && j.weight ? j.weight[t] : 1, z_target = target >= 0 ? hh_load(z + target) : 0;
    int64_t n = j.V - lo < slice ? j.V - lo : slice;
    int vectors = n > 0 ? (int)((n + WIDE - 1) / WIDE) : 0;
    uint4 *from = (uint4 *)(z + lo), *kept_t = kept + slice / WIDE;
    const uint4 *from_t = TEACHER ? (const uint4 *)(teacher + row * j.stride + lo) : NULL;
    pair p = {-FLT_MAX, 0, -FLT_MAX, 0, 0};
    for (int i = threadIdx.x; i < vectors; i += AHEAD * CLUSTER_THREADS) {
        uint4 a[AHEAD], b[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int at = i + u * CLUSTER_THREADS;
            if (at < vectors) a[u] = from[at];
            if (TEACHER && at < vectors) b[u] = __ldcs(from_t + at);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int at = i + u * CLUSTER_THREADS;
            if (at >= vectors) break;
            a[u] = cut(a[u], n - (int64_t)at * WIDE);
            kept[at] = a[u];
            eight e = load_eight((const hh_bf16 *)&a[u]), et = e;
            if (TEACHER) {
                b[u] = cut(b[u], n - (int64_t)at * WIDE);
                kept_t[at] = b[u];
                et = load_eight((const hh_bf16 *)&b[u]);
            }
            add_pairs<TEACHER>(&p, e, et);
        }
    }
    for (int o = 16; o; o >>= 1) p = merge(p, shuffle(p, o));
    if (threadIdx.x % 32 == 0) of_warp[warp] = p;
    cluster.barrier_wait();
    __syncthreads();
    if (threadIdx.x < CL) {
        p = of_warp[0];
        for (int i = 1; i < CLUSTER_THREADS / 32; i++) p = merge(p, of_warp[i]);
        *cluster.map_shared_rank(&of_block[rank], threadIdx.x) = p;
    }
    cluster.sync();
    p = of_block[0];
    for (int i = 1; i < CL; i++) p = merge(p, of_block[i]);
    float lse = p.top + logf(p.sum), lse_t = TEACHER ? p.top_t + logf(p.sum_t) : 0;
    if (!rank && !threadIdx.x) {
        if (j.nll) j.nll[t] = target >= 0 ? lse - z_target : 0;
        if (TEACHER && j.kl) j.kl[t] = weight * (p.cross / p.sum_t - lse_t + lse);
    }
    float kl_scale = TEACHER ? j.scale * weight : 0, ce_scale = target >= 0 ? (TEACHER ? j.ce_scale : j.scale) : 0;
    float both = kl_scale + ce_scale, low = lse * LOG2_E, low_t = lse_t * LOG2_E;
    int aim = target - (int)lo;
    for (int i = threadIdx.x; i < vectors; i += CLUSTER_THREADS) {
        eight e = load_eight((const hh_bf16 *)&kept[i]), et = e;
        if (TEACHER) et = load_eight((const hh_bf16 *)&kept_t[i]);
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            e.v[k] = both * exp2_fast(fmaf(e.v[k], LOG2_E, -low));
            if (TEACHER) e.v[k] = fmaf(-kl_scale, exp2_fast(fmaf(et.v[k], LOG2_E, -low_t)), e.v[k]);
        }
        if (target >= 0 && aim / WIDE == i && aim >= 0)
#pragma unroll
            for (int k = 0; k < WIDE; k++) e.v[k] -= aim % WIDE == k ? ce_scale : 0;
        store_eight((hh_bf16 *)(from + i), e);
    }
#endif
}

template <int CL, bool TEACHER>
static void launch_cluster(hh_backend *be, hh_tensor z, hh_tensor zt, const hh_loss_row_job *job, int slice) {
    hh_cuda_launch(be, TEACHER ? "kl_head" : "ce_head", head_gradient_rows_kernel<CL, TEACHER>,
                   dim3((unsigned)z.dim[0] * CL), dim3(CLUSTER_THREADS), (size_t)slice * 2 * (TEACHER ? 2 : 1),
                   (hh_bf16 *)z.data, (const hh_bf16 *)zt.data, *job, slice);
}

/* False when the kernel is not for such rows. */
static bool run_clusters(hh_backend *be, hh_tensor z, hh_tensor zt, const hh_loss_row_job *job) {
    bool teacher = zt.data != NULL;
    if (!job->gradient || job->argmax || z.dtype != HH_DTYPE_BF16 || hh_cuda_of(be)->arch < 90) return false;
    int64_t most = 80 << 10, row_bytes = job->stride * (teacher ? 4 : 2);
    int cl = row_bytes <= 4 * most ? 4 : 8;
    if (row_bytes > 8 * most) return false;
    int slice = (int)(hh_ceil_div(job->stride / WIDE, cl) * WIDE);
    if (cl == 4 && teacher)
        launch_cluster<4, true>(be, z, zt, job, slice);
    else if (cl == 4)
        launch_cluster<4, false>(be, z, zt, job, slice);
    else if (teacher)
        launch_cluster<8, true>(be, z, zt, job, slice);
    else
        launch_cluster<8, false>(be, z, zt, job, slice);
    return true;
}

void hh_cuda_loss_rows(hh_backend *be, hh_tensor z, hh_tensor zt, const hh_loss_row_job *job) {
    if (run_clusters(be, z, zt, job)) return;
    dim3 grid((unsigned)z.dim[0]), block(ROW_THREADS);
    if (zt.data)
        HH_CUDA_BY_TYPE(z.dtype, Z,
                        hh_cuda_launch(be, "kl_head", kl_head_rows_kernel<Z>, grid, block, 0, (Z *)z.data,
                                       (const Z *)zt.data, *job));
    else
        HH_CUDA_BY_TYPE(z.dtype, Z,
                        hh_cuda_launch(be, "ce_head", ce_head_rows_kernel<Z>, grid, block, 0, (Z *)z.data, *job));
}
