/* Attention forward on tensor cores: a block owns a tile of queries of one head and goes over the keys in tiles that
 * the copy unit brings while the last one is computed. Logits live in registers alone (online softmax). The longest
 * rows start first, and the blocks of one head run together, so that its keys stay in L2. */
#include "ops/cuda/attention.h"
#include "ops/cuda/attention_tile.h"

#include <cstdint>

/* Rows of a thread: half `i` (0, 1) of the 16-row tile m. */
#define FOR_ROWS(m, i) _Pragma("unroll") for (int m = 0; m < MT; m++) _Pragma("unroll") for (int i = 0; i < 2; i++)

/* Online softmax of one tile of logits s: on return s holds exp2 of scaled logits less the top; o and sum shrunk. */
template <int D, int MT, int BN>
static __device__ __forceinline__ void soften(float (&s)[MT][BN / 8][4], float (&o)[MT][D / 8][4], float (&top)[MT][2],
                                              float (&sum)[MT][2], const float (&c)[MT][2]) {
    FOR_ROWS(m, i) {
        float t = s[m][0][2 * i];
#pragma unroll
        for (int n = 0; n < BN / 8; n++) t = fmaxf(t, fmaxf(s[m][n][2 * i], s[m][n][2 * i + 1]));
        t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 1));
        t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 2));
        if (__any_sync(0xffffffffu, t > top[m][i])) {
            const float higher = fmaxf(t, top[m][i]), shrink = hh_exp2((top[m][i] - higher) * c[m][i]);
            top[m][i] = higher;
            sum[m][i] *= shrink;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                o[m][n][2 * i] *= shrink;
                o[m][n][2 * i + 1] *= shrink;
            }
        }
        const float less = top[m][i] * c[m][i];
        float part = 0;
#pragma unroll
        for (int n = 0; n < BN / 8; n++)
#pragma unroll
            for (int e = 2 * i; e < 2 * i + 2; e++) part += s[m][n][e] = hh_exp2(fmaf(s[m][n][e], c[m][i], -less));
        sum[m][i] += part;
    }
}

template <int D, int MT, int WARPS, int BN> static constexpr size_t fwd_bytes(void) {
    return (size_t)(16 * MT * WARPS + 4 * BN) * D * sizeof(hh_bf16);
}

template <int D, int MT, int WARPS, int BN>
static __global__ void __launch_bounds__(32 * WARPS) tiles_fwd(const hh_attention_args a) {
    extern __shared__ __align__(128) hh_bf16 shared[];
    constexpr int BM = 16 * MT * WARPS;
    hh_bf16 *Q = shared, *K = Q + BM * D, *V = K + 2 * BN * D;
    const int tile = gridDim.x - 1 - blockIdx.x;
    const hh_attention_span s = *hh_attention_find(a, tile);
    const hh_attention_head h = a.head[blockIdx.y];
    const int row0 = (tile - s.first) * BM, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t n_rows = s.n - row0, all_keys = s.pos + s.n;
    const int64_t n_keys = s.pos + row0 + (n_rows < BM ? n_rows : BM), n_tiles = (n_keys + BN - 1) / BN;
    const hh_bf16 *k = (const hh_bf16 *)s.k + (int64_t)h.kv * D, *v = (const hh_bf16 *)s.v + (int64_t)h.kv * D;
    hh_load_tile<D, BM, 32 * WARPS>(Q, (const hh_bf16 *)a.q + (s.lo + row0) * a.q_stride + (int64_t)h.q * D, a.q_stride,
                                    n_rows);
    hh_load_tile<D, BN, 32 * WARPS>(K, k, s.k_stride, all_keys);
    hh_load_tile<D, BN, 32 * WARPS>(V, v, s.v_stride, all_keys);
    hh_copy_commit();

    const int warp_row = warp * 16 * MT;
    const int64_t first_position = s.pos + row0 + warp_row; /* of the warp's first row */
    float o[MT][D / 8][4] = {}, top[MT][2], sum[MT][2], c[MT][2];
    FOR_ROWS(m, i) {
        top[m][i] = -INFINITY;
        sum[m][i] = 0;
        c[m][i] = HH_LOG2E * hh_attention_scale_at(a, first_position + 16 * m + 8 * i + lane / 4);
    }
    for (int64_t j = 0; j < n_tiles; j++) {
        hh_copy_wait<0>();
        __syncthreads();
        if (j + 1 < n_tiles) {
            const int64_t key = (j + 1) * BN;
            const int to = (int)((j + 1) & 1) * BN * D;
            hh_load_tile<D, BN, 32 * WARPS>(K + to, k + key * s.k_stride, s.k_stride, all_keys - key);
            hh_load_tile<D, BN, 32 * WARPS>(V + to, v + key * s.v_stride, s.v_stride, all_keys - key);
            hh_copy_commit();
        }
        const int64_t key0 = j * BN;
        if (key0 >= first_position + 16 * MT) continue; /* all behind the warp's rows */
        const int at = (int)(j & 1) * BN * D;
        float z[MT][BN / 8][4] = {};
        hh_product_t<D, MT, BN>(z, Q, warp_row, K + at);
        if (key0 + BN > first_position + 1) {
            const int ahead = (int)(first_position - key0) + lane / 4; /* the last key that the first row may see */
            FOR_ROWS(m, i) {
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (8 * n + lane % 4 * 2 + e > ahead + 16 * m + 8 * i) z[m][n][2 * i + e] = -INFINITY;
            }
        }
        soften<D, MT, BN>(z, o, top, sum, c);
        hh_product<D, MT, BN>(o, z, V + at);
    }

    FOR_ROWS(m, i) {
        const int row = warp_row + 16 * m + 8 * i + lane / 4;
        float all = sum[m][i];
        all += __shfl_xor_sync(0xffffffffu, all, 1);
        all += __shfl_xor_sync(0xffffffffu, all, 2);
        if (row >= n_rows) continue;
        const float share = 1 / all;
        const int64_t t = s.lo + row0 + row;
        hh_bf16 *to = (hh_bf16 *)a.o + t * a.o_stride + (int64_t)h.o * D + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++) hh_store2(to + 8 * n, o[m][n][2 * i] * share, o[m][n][2 * i + 1] * share);
        if (a.lse && lane % 4 == 0) a.lse[t * a.lse_stride + h.o] = HH_LN2 * top[m][i] * c[m][i] + logf(all);
    }
}

template <int D, int MT, int WARPS, int BN>
static void launch_fwd(hh_backend *be, hh_attention_args *a, hh_attention_span *span) {
    const dim3 grid((unsigned)hh_attention_cut(span, a->n_spans, 16 * MT * WARPS), (unsigned)a->n_heads);
    a->span = hh_cuda_list(be, span, a->n_spans);
    hh_cuda_launch(be, "attention_fwd", tiles_fwd<D, MT, WARPS, BN>, grid, 32 * WARPS, fwd_bytes<D, MT, WARPS, BN>(),
                   *a);
}

bool hh_attention_tiles_take(int64_t head_dim) {
    return head_dim == 32 || head_dim == 64 || head_dim == 96 || head_dim == 128;
}

void hh_attention_tiles_fwd(hh_backend *be, hh_attention_args *a, hh_attention_span *span) {
    switch (a->head_dim) {
    case 32:
        return launch_fwd<32, 2, 4, 64>(be, a, span);
    case 64:
        return launch_fwd<64, 2, 4, 64>(be, a, span);
    case 96:
        return launch_fwd<96, 2, 4, 64>(be, a, span);
    default:
        return launch_fwd<128, 2, 4, 64>(be, a, span);
    }
}
