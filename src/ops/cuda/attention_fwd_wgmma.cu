/* Attention forward with warpgroup products, for sm_90a and head widths 64 and 128. One warpgroup brings tiles of 128
 * keys and values, two stages of each; the others own 64 queries each. A consumer has two products under way at a time:
 * the logits of tile j and, from the weights of tile j - 1, its columns; so that exponentials of one overlap products of
 * the other. Warpgroups take turns at issuing products, which keeps them half a tile apart.
 *
 * Blocks of heads whose keys fit in L2 together run together, the longest tiles of all of them first. Every row sees
 * the tiles of its keys in ascending order from key 0 on: its bits do not depend on how a prompt is cut into chunks. */
#include "ops/cuda/attention.h"
#include "ops/cuda/attention_wgmma.h"

#include <cstdint>

#define BN 128

template <int D, int NC> struct block {
    static constexpr int BM = 64 * NC;
    static constexpr int LOADER = NC == 2 ? 40 : 32, CONSUMER = NC == 2 ? 232 : 160; /* registers */
    hh_bf16 q[BM * D], k[2][BN * D], v[2][BN * D];
    uint64_t full_k[2], full_v[2], empty_k[2], empty_v[2];
};

/* What one block works on. */
typedef struct work {
    hh_attention_span s;
    hh_attention_head h;
    int row0, n_rows, n_tiles;
} work;

template <int BM>
static __device__ __forceinline__ work find_work(const hh_attention_args &a, int n_tiles, int section) {
    const int first = blockIdx.x / (n_tiles * section) * section;
    const int heads = a.n_heads - first < section ? a.n_heads - first : section, at = blockIdx.x - n_tiles * first;
    const int tile = n_tiles - 1 - at / heads;
    work w;
    w.s = *hh_attention_find(a, tile);
    w.h = a.head[first + at % heads];
    w.row0 = (tile - w.s.first) * BM;
    w.n_rows = w.s.n - w.row0 < BM ? w.s.n - w.row0 : BM;
    w.n_tiles = (int)((w.s.pos + w.row0 + w.n_rows + BN - 1) / BN);
    return w;
}

/* -- the loader -- */

/* Tells of the copies before the last `behind` groups. */
template <int behind> static __device__ __forceinline__ void announce(uint64_t *full) {
    hh_copy_wait<behind>();
    hh_fence_products();
    hh_barrier_arrive(full);
}

template <int D, int NC>
static __device__ __forceinline__ void load_all(block<D, NC> *b, const hh_attention_args &a, const work &w) {
    const hh_bf16 *q = (const hh_bf16 *)a.q + (w.s.lo + w.row0) * a.q_stride + (int64_t)w.h.q * D;
    const hh_bf16 *k = (const hh_bf16 *)w.s.k + (int64_t)w.h.kv * D, *v = (const hh_bf16 *)w.s.v + (int64_t)w.h.kv * D;
    const int64_t n_keys = w.s.pos + w.s.n;
    uint64_t *late = NULL, *later = NULL; /* on their way, not yet announced */
    auto bring = [&](bool keys, int j) {
        const int stage = j & 1;
        if (j > 1) hh_barrier_wait(keys ? &b->empty_k[stage] : &b->empty_v[stage], (j >> 1 & 1) ^ 1);
        const int64_t row = (int64_t)j * BN, stride = keys ? w.s.k_stride : w.s.v_stride;
        hh_load_panels<D, BN>(keys ? b->k[stage] : b->v[stage], (keys ? k : v) + row * stride, stride, n_keys - row);
        hh_copy_commit();
        if (late) announce<2>(late);
        late = later;
        later = keys ? &b->full_k[stage] : &b->full_v[stage];
    };
    hh_load_panels<D, 64 * NC>(b->q, q, a.q_stride, w.n_rows);
    bring(true, 0);
    for (int j = 0; j < w.n_tiles; j++) {
        if (j + 1 < w.n_tiles) bring(true, j + 1);
        bring(false, j);
    }
    if (late) announce<1>(late);
    announce<0>(later);
}

/* -- the consumers -- */

/* Online softmax of a tile of logits, in place; returns what earlier sums shrink by. */
[[maybe_unused]] static __device__ __forceinline__ void soften(float (&z)[BN / 8][4], float (&top)[2], float (&sum)[2],
                                                               const float (&c)[2], float (&shrink)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float t = top[i];
#pragma unroll
        for (int n = 0; n < BN / 8; n++) t = fmaxf(t, fmaxf(z[n][2 * i], z[n][2 * i + 1]));
        t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 1));
        t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 2));
        shrink[i] = hh_exp2((top[i] - t) * c[i]);
        top[i] = t;
        const float less = t * c[i];
        float part = 0;
#pragma unroll
        for (int n = 0; n < BN / 8; n++) {
            z[n][2 * i] = hh_exp2(fmaf(z[n][2 * i], c[i], -less));
            z[n][2 * i + 1] = hh_exp2(fmaf(z[n][2 * i + 1], c[i], -less));
            part += z[n][2 * i] + z[n][2 * i + 1];
        }
        sum[i] = sum[i] * shrink[i] + part;
    }
}

/* Logits of keys behind the row's position: `ahead` is the first row's position less the tile's first key. */
[[maybe_unused]] static __device__ __forceinline__ void mask(float (&z)[BN / 8][4], int ahead) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < BN / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * n + column + (e & 1) > ahead + 8 * (e >> 1)) z[n][e] = -INFINITY;
}

[[maybe_unused]] static __device__ __forceinline__ void round_weights(unsigned (&p)[BN / 16][4],
                                                                      const float (&z)[BN / 8][4]) {
#pragma unroll
    for (int k = 0; k < BN / 16; k++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            p[k][2 * half] = hh_pack(z[2 * k + half][0], z[2 * k + half][1]);
            p[k][2 * half + 1] = hh_pack(z[2 * k + half][2], z[2 * k + half][3]);
        }
}

template <int D, int NC>
static __device__ __forceinline__ void attend(block<D, NC> *b, const hh_attention_args &a, const work &w, int group) {
    constexpr int BM = 64 * NC;
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int row = 64 * group + 16 * warp + lane / 4; /* of the tile, the thread's first */
    const int64_t position = w.s.pos + w.row0 + row, group_position = w.s.pos + w.row0 + 64 * group;
    const hh_bf16 *q = b->q + 64 * group * 64;
    float o[D / 8][4] = {}, z[BN / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, shrink[2], c[2];
    unsigned p[BN / 16][4];
    for (int i = 0; i < 2; i++) c[i] = HH_LOG2E * hh_attention_scale_at(a, position + 8 * i);

    hh_barrier_wait(&b->full_k[0], 0);
    hh_wg_hold(z);
    hh_wg_fence();
    hh_wg_product_t<D, BM, BN, BN>(z, q, b->k[0]);
    hh_wg_commit();
    hh_wg_wait<0>();
    hh_wg_hold(z);
    if (lane == 0) hh_barrier_arrive(&b->empty_k[0]);
    if (BN > group_position + 1) mask(z, (int)position);
    soften(z, top, sum, c, shrink);
    round_weights(p, z);
    if (group == NC - 1 && w.n_tiles > 1) hh_turn_pass(1);
    for (int j = 1; j < w.n_tiles; j++) {
        hh_barrier_wait(&b->full_k[j & 1], j >> 1 & 1);
        hh_turn_wait(1 + group);
        hh_wg_hold(z);
        hh_wg_hold(o);
        hh_wg_fence();
        hh_wg_product_t<D, BM, BN, BN>(z, q, b->k[j & 1]);
        hh_wg_commit();
        hh_barrier_wait(&b->full_v[(j - 1) & 1], (j - 1) >> 1 & 1);
        hh_wg_product<D, BN, BN>(o, p, b->v[(j - 1) & 1]);
        hh_wg_commit();
        if (group < NC - 1 || j + 1 < w.n_tiles) hh_turn_pass(1 + (group + 1) % NC);
        hh_wg_wait<1>();
        hh_wg_hold(z);
        if (lane == 0) hh_barrier_arrive(&b->empty_k[j & 1]);
        const int64_t key0 = (int64_t)j * BN;
        if (key0 + BN > group_position + 1) mask(z, (int)(position - key0));
        soften(z, top, sum, c, shrink);
        hh_wg_wait<0>();
        hh_wg_hold(o);
        if (lane == 0) hh_barrier_arrive(&b->empty_v[(j - 1) & 1]);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[n][e] *= shrink[e >> 1];
        round_weights(p, z);
    }
    const int last = w.n_tiles - 1;
    hh_barrier_wait(&b->full_v[last & 1], last >> 1 & 1);
    hh_wg_hold(o);
    hh_wg_fence();
    hh_wg_product<D, BN, BN>(o, p, b->v[last & 1]);
    hh_wg_commit();
    hh_wg_wait<0>();
    hh_wg_hold(o);

#pragma unroll
    for (int i = 0; i < 2; i++) {
        float all = sum[i];
        all += __shfl_xor_sync(0xffffffffu, all, 1);
        all += __shfl_xor_sync(0xffffffffu, all, 2);
        if (row + 8 * i >= w.n_rows) continue;
        const float share = 1 / all;
        const int64_t t = w.s.lo + w.row0 + row + 8 * i;
        hh_bf16 *to = (hh_bf16 *)a.o + t * a.o_stride + (int64_t)w.h.o * D + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++) hh_store2(to + 8 * n, o[n][2 * i] * share, o[n][2 * i + 1] * share);
        if (a.lse && lane % 4 == 0) a.lse[t * a.lse_stride + w.h.o] = HH_LN2 * top[i] * c[i] + logf(all);
    }
}

template <int D, int NC>
static __global__ void __launch_bounds__(128 * (NC + 1), 1)
    wgmma_fwd(const hh_attention_args a, int n_tiles, int section) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char raw[];
    block<D, NC> *b = (block<D, NC> *)(((uintptr_t)raw + 1023) / 1024 * 1024);
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++) {
            hh_barrier_init(&b->full_k[i], 128);
            hh_barrier_init(&b->full_v[i], 128);
            hh_barrier_init(&b->empty_k[i], 4 * NC);
            hh_barrier_init(&b->empty_v[i], 4 * NC);
        }
    const work w = find_work<64 * NC>(a, n_tiles, section);
    __syncthreads();
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0) - 1; /* known to be the same in a warp */
    if (group < 0) {
        hh_leave_registers<block<D, NC>::LOADER>();
        load_all<D, NC>(b, a, w);
    } else {
        hh_take_registers<block<D, NC>::CONSUMER>();
        attend<D, NC>(b, a, w, group);
    }
#endif
}

template <int D, int NC> static void launch(hh_backend *be, hh_attention_args *a, hh_attention_span *span) {
    const int64_t n_tiles = hh_attention_cut(span, a->n_spans, 64 * NC);
    a->span = hh_cuda_list(be, span, a->n_spans);
    int64_t keys = 1;
    for (int i = 0; i < a->n_spans; i++) keys += span[i].pos + span[i].n;
    const int64_t fit = (int64_t)hh_cuda_of(be)->l2_bytes / 2 / (keys * 2 * D * (int64_t)sizeof(hh_bf16));
    const int64_t section = fit < 1 ? 1 : fit < a->n_heads ? fit : a->n_heads;
    HH_ASSERT(n_tiles * a->n_heads < INT32_MAX);
    hh_cuda_launch(be, "attention_fwd", wgmma_fwd<D, NC>, dim3((unsigned)(n_tiles * a->n_heads)), 128 * (NC + 1),
                   sizeof(block<D, NC>) + 1024, *a, (int)n_tiles, (int)section);
}

bool hh_attention_wgmma_takes(hh_backend *be, int64_t head_dim) {
#ifdef HH_CUDA_HAVE_90A
    return hh_cuda_of(be)->arch == 90 && (head_dim == 64 || head_dim == 128);
#else
    (void)be, (void)head_dim;
    return false;
#endif
}

void hh_attention_wgmma_fwd(hh_backend *be, hh_attention_args *a, hh_attention_span *span) {
    if (a->head_dim == 64)
        launch<64, 3>(be, a, span);
    else
        launch<128, 2>(be, a, span);
}
