/* Attention backward on tensor cores. Two kernels recompute the logits: one owns keys and sums dk and dv over the
 * queries of all heads of the group, one owns queries and sums dq over the keys. So every sum has one owner and one
 * order, at the price of seven products instead of five. */
#include "ops/cuda/attention.h"
#include "ops/cuda/attention_tile.h"

#include <cstdint>

static __device__ __forceinline__ void copy4(void *to, const void *from, bool valid) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(valid ? 4 : 0) : "memory");
}

/* -- dk and dv: logits are computed transposed, rows are keys -- */

/* A tile of queries of one head, as the copy unit brings it. */
template <int D, int BM> struct query_tile {
    hh_bf16 q[BM * D], g[BM * D];
    float lse[BM], delta[BM], c[BM];
};

template <int D, int BM, int THREADS>
static __device__ __forceinline__ void load_queries(query_tile<D, BM> *to, const hh_attention_args &a,
                                                    const hh_attention_span &s, hh_attention_head h, int row0) {
    const int n = s.n - row0;
    const int64_t t0 = s.lo + row0;
    hh_load_tile<D, BM, THREADS>(to->q, (const hh_bf16 *)a.q + t0 * a.q_stride + (int64_t)h.q * D, a.q_stride, n);
    hh_load_tile<D, BM, THREADS>(to->g, (const hh_bf16 *)a.do_ + t0 * a.do_stride + (int64_t)h.q * D, a.do_stride, n);
    for (int i = threadIdx.x; i < BM; i += THREADS) {
        const int64_t t = t0 + (i < n ? i : 0);
        copy4(to->lse + i, a.lse + t * a.lse_stride + h.o, i < n);
        copy4(to->delta + i, a.delta + t * a.delta_stride + h.o, i < n);
        copy4(to->c + i, a.scale + row0 + (i < n ? i : 0), i < n);
    }
}

/* From z = q.k and dp = do.v to p and c dz (B2), keys in rows; `ahead`: thread's first query less its first key. */
template <int MT, int BM>
static __device__ __forceinline__ void differentiate_t(float (&z)[MT][BM / 8][4], float (&dp)[MT][BM / 8][4],
                                                       const float *lse, const float *delta, const float *c, int ahead,
                                                       bool diagonal) {
#pragma unroll
    for (int n = 0; n < BM / 8; n++) {
        const int at = 8 * n + threadIdx.x % 4 * 2;
        const float2 l = *(const float2 *)(lse + at), d = *(const float2 *)(delta + at), f = *(const float2 *)(c + at);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float ce = e & 1 ? f.y : f.x, le = e & 1 ? l.y : l.x, de = e & 1 ? d.y : d.x;
                float p = hh_exp2(HH_LOG2E * fmaf(z[m][n][e], ce, -le));
                if (diagonal && 16 * m + 8 * (e >> 1) > ahead + 8 * n + (e & 1)) p = 0;
                z[m][n][e] = p;
                dp[m][n][e] = p * (dp[m][n][e] - de) * ce;
            }
    }
}

template <int D, int MT, int WARPS, int BM>
static __global__ void __launch_bounds__(32 * WARPS) tiles_dkv(const hh_attention_args a) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int BN = 16 * MT * WARPS, THREADS = 32 * WARPS;
    hh_bf16 *K = (hh_bf16 *)shared, *V = K + BN * D;
    query_tile<D, BM> *Q = (query_tile<D, BM> *)(V + BN * D);
    const hh_attention_span s = *hh_attention_find(a, blockIdx.x);
    const hh_attention_group group = a.group[blockIdx.y];
    const int key0 = ((int)blockIdx.x - s.first) * BN, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_key = key0 + warp * 16 * MT, first = key0 / BM, per_head = (s.n + BM - 1) / BM - first;
    const int n_tiles = per_head * group.n;
    hh_load_tile<D, BN, THREADS>(K, (const hh_bf16 *)s.k + key0 * s.k_stride + (int64_t)group.kv * D, s.k_stride,
                                 s.n - key0);
    hh_load_tile<D, BN, THREADS>(V, (const hh_bf16 *)s.v + key0 * s.v_stride + (int64_t)group.kv * D, s.v_stride,
                                 s.n - key0);
    if (n_tiles) load_queries<D, BM, THREADS>(Q, a, s, a.head[group.first], first * BM);
    hh_copy_commit();

    float dk[MT][D / 8][4] = {}, dv[MT][D / 8][4] = {};
    for (int i = 0; i < n_tiles; i++) {
        hh_copy_wait<0>();
        __syncthreads();
        if (i + 1 < n_tiles) {
            load_queries<D, BM, THREADS>(Q + ((i + 1) & 1), a, s, a.head[group.first + (i + 1) / per_head],
                                         (first + (i + 1) % per_head) * BM);
            hh_copy_commit();
        }
        const query_tile<D, BM> *now = Q + (i & 1);
        const int row0 = (first + i % per_head) * BM;
        if (warp_key > row0 + BM - 1) continue; /* no query of the tile sees the warp's keys */
        float z[MT][BM / 8][4] = {}, dp[MT][BM / 8][4] = {};
        hh_product_t<D, MT, BM>(z, K, warp_key - key0, now->q);
        hh_product_t<D, MT, BM>(dp, V, warp_key - key0, now->g);
        differentiate_t<MT, BM>(z, dp, now->lse, now->delta, now->c, row0 + lane % 4 * 2 - warp_key - lane / 4,
                                warp_key + 16 * MT - 1 > row0);
        hh_product<D, MT, BM>(dv, z, now->g);
        hh_product<D, MT, BM>(dk, dp, now->q);
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int key = warp_key + 16 * m + 8 * i + lane / 4;
            if (key >= s.n) continue;
            const int64_t t = s.lo + key, column = (int64_t)group.dkv * D + lane % 4 * 2;
            hh_bf16 *to_k = (hh_bf16 *)a.dk + t * a.dk_stride + column;
            hh_bf16 *to_v = (hh_bf16 *)a.dv + t * a.dv_stride + column;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                hh_store2(to_k + 8 * n, dk[m][n][2 * i], dk[m][n][2 * i + 1]);
                hh_store2(to_v + 8 * n, dv[m][n][2 * i], dv[m][n][2 * i + 1]);
            }
        }
}

/* -- dq: rows are queries -- */

template <int D, int MT, int WARPS, int BN>
static __global__ void __launch_bounds__(32 * WARPS) tiles_dq(const hh_attention_args a) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int BM = 16 * MT * WARPS, THREADS = 32 * WARPS;
    hh_bf16 *Q = (hh_bf16 *)shared, *G = Q + BM * D, *K = G + BM * D, *V = K + 2 * BN * D;
    const int tile = gridDim.x - 1 - blockIdx.x;
    const hh_attention_span s = *hh_attention_find(a, tile);
    const hh_attention_head h = a.head[blockIdx.y];
    const int row0 = (tile - s.first) * BM, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int n_rows = s.n - row0, n_tiles = (row0 + (n_rows < BM ? n_rows : BM) + BN - 1) / BN;
    const int warp_row = row0 + warp * 16 * MT;
    const hh_bf16 *k = (const hh_bf16 *)s.k + (int64_t)h.kv * D, *v = (const hh_bf16 *)s.v + (int64_t)h.kv * D;
    const int64_t t0 = s.lo + row0;
    hh_load_tile<D, BM, THREADS>(Q, (const hh_bf16 *)a.q + t0 * a.q_stride + (int64_t)h.q * D, a.q_stride, n_rows);
    hh_load_tile<D, BM, THREADS>(G, (const hh_bf16 *)a.do_ + t0 * a.do_stride + (int64_t)h.q * D, a.do_stride, n_rows);
    hh_load_tile<D, BN, THREADS>(K, k, s.k_stride, s.n);
    hh_load_tile<D, BN, THREADS>(V, v, s.v_stride, s.n);
    hh_copy_commit();

    float dq[MT][D / 8][4] = {}, lse[MT][2], delta[MT][2], c[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = warp_row + 16 * m + 8 * i + lane / 4;
            const int64_t t = s.lo + (row < s.n ? row : s.n - 1);
            lse[m][i] = HH_LOG2E * a.lse[t * a.lse_stride + h.o];
            delta[m][i] = a.delta[t * a.delta_stride + h.o];
            c[m][i] = row < s.n ? a.scale[row] : 0;
        }
    for (int j = 0; j < n_tiles; j++) {
        hh_copy_wait<0>();
        __syncthreads();
        if (j + 1 < n_tiles) {
            const int64_t key = (int64_t)(j + 1) * BN;
            const int to = ((j + 1) & 1) * BN * D;
            hh_load_tile<D, BN, THREADS>(K + to, k + key * s.k_stride, s.k_stride, s.n - key);
            hh_load_tile<D, BN, THREADS>(V + to, v + key * s.v_stride, s.v_stride, s.n - key);
            hh_copy_commit();
        }
        const int key0 = j * BN, at = (j & 1) * BN * D;
        if (key0 > warp_row + 16 * MT - 1) continue;
        float z[MT][BN / 8][4] = {}, dp[MT][BN / 8][4] = {};
        hh_product_t<D, MT, BN>(z, Q, warp_row - row0, K + at);
        hh_product_t<D, MT, BN>(dp, G, warp_row - row0, V + at);
        const bool diagonal = key0 + BN - 1 > warp_row;
        const int ahead = warp_row + lane / 4 - key0 - lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < BN / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int i = e >> 1;
                    float p = hh_exp2(fmaf(z[m][n][e], HH_LOG2E * c[m][i], -lse[m][i]));
                    if (diagonal && 8 * n + (e & 1) > ahead + 16 * m + 8 * i) p = 0;
                    z[m][n][e] = p * (dp[m][n][e] - delta[m][i]) * c[m][i];
                }
        hh_product<D, MT, BN>(dq, z, K + at);
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = warp_row + 16 * m + 8 * i + lane / 4;
            if (row >= s.n) continue;
            hh_bf16 *to = (hh_bf16 *)a.dq + (s.lo + row) * a.dq_stride + (int64_t)h.o * D + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < D / 8; n++) hh_store2(to + 8 * n, dq[m][n][2 * i], dq[m][n][2 * i + 1]);
        }
}

static __global__ void fill_scales(float *scale, int n, const hh_attention_args a) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) scale[i] = hh_attention_scale_at(a, i);
}

/* MK, WK, BM: of dk and dv; MQ, WQ, BN: of dq. */
template <int D, int MK, int WK, int BM, int MQ, int WQ, int BN>
static void launch_bwd(hh_backend *be, hh_attention_args *a, hh_attention_span *span) {
    const size_t key_bytes = (size_t)2 * 16 * MK * WK * D * sizeof(hh_bf16) + 2 * sizeof(query_tile<D, BM>);
    const size_t query_bytes = (size_t)(2 * 16 * MQ * WQ + 4 * BN) * D * sizeof(hh_bf16);
    dim3 grid((unsigned)hh_attention_cut(span, a->n_spans, 16 * MK * WK), (unsigned)a->n_groups);
    a->span = hh_cuda_list(be, span, a->n_spans);
    hh_cuda_launch(be, "attention_bwd", tiles_dkv<D, MK, WK, BM>, grid, 32 * WK, key_bytes, *a);
    grid = dim3((unsigned)hh_attention_cut(span, a->n_spans, 16 * MQ * WQ), (unsigned)a->n_heads);
    a->span = hh_cuda_list(be, span, a->n_spans);
    hh_cuda_launch(be, "attention_bwd", tiles_dq<D, MQ, WQ, BN>, grid, 32 * WQ, query_bytes, *a);
}

void hh_attention_fill_scales(hh_backend *be, hh_attention_args *a, const hh_attention_span *span) {
    int64_t n = 0;
    for (int i = 0; i < a->n_spans; i++) n = span[i].n > n ? span[i].n : n;
    float *scale = (float *)hh_cuda_scratch(be, (size_t)n * sizeof *scale);
    hh_cuda_launch(be, "attention_bwd", fill_scales, dim3((unsigned)hh_ceil_div(n, 256)), 256, 0, scale, (int)n, *a);
    a->scale = scale;
}

void hh_attention_tiles_bwd(hh_backend *be, hh_attention_args *a, hh_attention_span *span) {
    hh_attention_fill_scales(be, a, span);
    switch (a->head_dim) {
    case 32:
        return launch_bwd<32, 2, 4, 64, 2, 4, 64>(be, a, span);
    case 64:
        return launch_bwd<64, 2, 4, 32, 2, 4, 64>(be, a, span);
    case 96:
        return launch_bwd<96, 1, 8, 64, 2, 4, 32>(be, a, span);
    default: /* cards of 99 KB a block take smaller tiles */
        if (hh_cuda_of(be)->shared_bytes < 132 << 10) return launch_bwd<128, 1, 8, 32, 2, 4, 32>(be, a, span);
        return launch_bwd<128, 1, 8, 64, 2, 4, 32>(be, a, span);
    }
}
