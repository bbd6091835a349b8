/* Attention backward with warpgroup products, for sm_90a and head widths 64 and 128: the two kernels of
 * attention_bwd.cu, each with one warpgroup that brings tiles, two stages of them, and two that own 64 rows each. All
 * four (three) products of a tile take their first operand from registers or from rows that stay in shared memory; no
 * weights go through memory. A tile's last products are still under way when the next tile's first begin. */
#include "ops/cuda/attention.h"
#include "ops/cuda/attention_wgmma.h"

#include <cstdint>

#define NC       2 /* consumers */
#define OWN      (64 * NC)
#define LOADER   24
#define CONSUMER 240

/* REFILL: over what has been read before; reports of racecheck tell one from the other by this name alone. */
template <bool REFILL> static __device__ __forceinline__ void copy4(void *to, const void *from, bool valid) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(valid ? 4 : 0) : "memory");
}

[[maybe_unused]] static __device__ __forceinline__ void init_barriers(uint64_t *full, uint64_t *empty) {
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++) {
            hh_barrier_init(&full[i], 128);
            hh_barrier_init(&empty[i], 4 * NC);
        }
    __syncthreads();
}

template <int N> static __device__ __forceinline__ void round_rows(unsigned (&p)[N / 2][4], const float (&z)[N][4]) {
#pragma unroll
    for (int k = 0; k < N / 2; k++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            p[k][2 * half] = hh_pack(z[2 * k + half][0], z[2 * k + half][1]);
            p[k][2 * half + 1] = hh_pack(z[2 * k + half][2], z[2 * k + half][3]);
        }
}

template <int D>
static __device__ __forceinline__ void store_rows(hh_bf16 *to, int64_t stride, const float (&c)[D / 8][4], int row,
                                                  int n_rows) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (row + 8 * i >= n_rows) continue;
        hh_bf16 *at = to + (int64_t)(row + 8 * i) * stride + threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++) hh_store2(at + 8 * n, c[n][2 * i], c[n][2 * i + 1]);
    }
}

/* -- dk and dv: a block owns OWN keys of one KV head -- */

template <int BM> struct key_rows { float lse[BM], delta[BM], c[BM]; };

/* Both stages of a block are filled, and read, behind its barriers alone. full: each of the loader's threads arrives when
 * its copies of a tile have landed. empty: one lane of each warp of the consumers arrives for the whole warp, which has
 * waited for its products; what its lanes have read of `row` is done before by the __syncwarp in front. The PTX model
 * hands such an order on, from barrier to barrier. compute-sanitizer's racecheck (CUDA 13.0) takes an arrival for what
 * the arriving lane itself has done, and nothing else: it reports each refill of `row`, copy4<true>, beside the other
 * lanes' reads in own_keys, and tools/sanitize_cuda.sh counts these two, and no others, apart. Arrivals by all lanes would
 * silence it, for 256 instead of 8 of them a tile. */
template <int D, int BM> struct key_block {
    hh_bf16 k[OWN * D], v[OWN * D];
    struct {
        hh_bf16 q[BM * D], g[BM * D];
    } stage[2];
    key_rows<BM> row[2];
    uint64_t full[2], empty[2];
};

/* Tiles of queries of a block: those that see its keys, of one head of the group after another. */
typedef struct key_work {
    hh_attention_span s;
    hh_attention_group group;
    int key0, first, per_head, n_tiles;
} key_work;

template <int BM> static __device__ __forceinline__ key_work find_keys(const hh_attention_args &a) {
    key_work w;
    const int tile = blockIdx.x / a.n_groups;
    w.s = *hh_attention_find(a, tile);
    w.group = a.group[blockIdx.x % a.n_groups];
    w.key0 = (tile - w.s.first) * OWN;
    w.first = w.key0 / BM;
    w.per_head = (w.s.n + BM - 1) / BM - w.first;
    w.n_tiles = w.per_head * w.group.n;
    return w;
}

/* What belongs to rows row0.. of the queries, a row a thread. */
template <bool REFILL, int BM>
static __device__ __forceinline__ void load_rows(key_rows<BM> *to, const hh_attention_args &a, const key_work &w,
                                                 const hh_attention_head &h, int row0) {
    const int r = threadIdx.x, valid = row0 + r < w.s.n, at = valid ? r : 0;
    const int64_t t = w.s.lo + row0 + at;
    if (r >= BM) return;
    copy4<REFILL>(&to->lse[r], a.lse + t * a.lse_stride + h.o, valid);
    copy4<REFILL>(&to->delta[r], a.delta + t * a.delta_stride + h.o, valid);
    copy4<REFILL>(&to->c[r], a.scale + row0 + at, valid);
}

template <int D, int BM>
static __device__ __forceinline__ void load_queries(key_block<D, BM> *b, const hh_attention_args &a,
                                                    const key_work &w) {
    const hh_attention_span &s = w.s;
    const int64_t n = s.n - w.key0, k0 = w.key0;
    hh_load_panels<D, OWN>(b->k, (const hh_bf16 *)s.k + k0 * s.k_stride + (int64_t)w.group.kv * D, s.k_stride, n);
    hh_load_panels<D, OWN>(b->v, (const hh_bf16 *)s.v + k0 * s.v_stride + (int64_t)w.group.kv * D, s.v_stride, n);
    for (int i = 0; i < w.n_tiles; i++) {
        const int stage = i & 1, row0 = (w.first + i % w.per_head) * BM, rows = s.n - row0;
        const hh_attention_head h = a.head[w.group.first + i / w.per_head];
        const int64_t t0 = s.lo + row0;
        if (i > 1) { /* with the wait: joined into predicated copies, the two would be reported by one name */
            hh_barrier_wait(&b->empty[stage], (i >> 1 & 1) ^ 1);
            load_rows<true>(&b->row[stage], a, w, h, row0);
        } else {
            load_rows<false>(&b->row[stage], a, w, h, row0);
        }
        hh_load_panels<D, BM>(b->stage[stage].q, (const hh_bf16 *)a.q + t0 * a.q_stride + (int64_t)h.q * D, a.q_stride,
                              rows);
        hh_load_panels<D, BM>(b->stage[stage].g, (const hh_bf16 *)a.do_ + t0 * a.do_stride + (int64_t)h.q * D,
                              a.do_stride, rows);
        hh_copy_commit();
        if (i > 0) {
            hh_copy_wait<1>();
            hh_fence_products();
            hh_barrier_arrive(&b->full[stage ^ 1]);
        }
    }
    hh_copy_wait<0>();
    hh_fence_products();
    if (w.n_tiles) hh_barrier_arrive(&b->full[(w.n_tiles - 1) & 1]);
}

template <int D, int BM>
static __device__ __forceinline__ void own_keys(key_block<D, BM> *b, const hh_attention_args &a, const key_work &w,
                                                int group) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, own = 64 * group;
    const int key = w.key0 + own + 16 * warp + lane / 4; /* the thread's first */
    float dk[D / 8][4] = {}, dv[D / 8][4] = {}, z[BM / 8][4] = {}, dp[BM / 8][4] = {};
    unsigned p[BM / 16][4], ds[BM / 16][4];
    for (int i = 0; i < w.n_tiles; i++) {
        const int stage = i & 1, row0 = (w.first + i % w.per_head) * BM;
        const hh_bf16 *q = b->stage[stage].q, *g = b->stage[stage].g;
        hh_barrier_wait(&b->full[stage], i >> 1 & 1);
        hh_wg_hold(z);
        hh_wg_hold(dp);
        hh_wg_fence();
        hh_wg_product_t<D, OWN, BM, BM>(z, b->k + own * 64, q);
        hh_wg_commit();
        hh_wg_product_t<D, OWN, BM, BM>(dp, b->v + own * 64, g);
        hh_wg_commit();
        hh_wg_wait<1>(); /* the logits */
        hh_wg_hold(z);
        const int ahead = row0 + lane % 4 * 2 - key;
        const bool diagonal = w.key0 + own + 63 > row0;
#pragma unroll
        for (int n = 0; n < BM / 8; n++) {
            const int at = 8 * n + lane % 4 * 2;
            const float2 c = *(const float2 *)&b->row[stage].c[at], l = *(const float2 *)&b->row[stage].lse[at];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float x = hh_exp2(HH_LOG2E * fmaf(z[n][e], e & 1 ? c.y : c.x, -(e & 1 ? l.y : l.x)));
                if (diagonal && 8 * (e >> 1) > ahead + 8 * n + (e & 1)) x = 0;
                z[n][e] = x;
            }
        }
        round_rows(p, z);
        hh_wg_wait<0>();
        hh_wg_hold(dp);
        hh_wg_fence();
        hh_wg_product<D, BM, BM>(dv, p, g);
        hh_wg_commit();
#pragma unroll
        for (int n = 0; n < BM / 8; n++) {
            const int at = 8 * n + lane % 4 * 2;
            const float2 c = *(const float2 *)&b->row[stage].c[at], d = *(const float2 *)&b->row[stage].delta[at];
#pragma unroll
            for (int e = 0; e < 4; e++) dp[n][e] = z[n][e] * (dp[n][e] - (e & 1 ? d.y : d.x)) * (e & 1 ? c.y : c.x);
        }
        round_rows(ds, dp);
        hh_wg_fence();
        hh_wg_product<D, BM, BM>(dk, ds, q);
        hh_wg_commit();
        hh_wg_wait<0>();
        hh_wg_hold(dk);
        hh_wg_hold(dv);
        __syncwarp(); /* all lanes have read `row` */
        if (lane == 0) hh_barrier_arrive(&b->empty[stage]);
    }
    const int64_t column = (int64_t)w.group.dkv * D;
    store_rows<D>((hh_bf16 *)a.dk + w.s.lo * a.dk_stride + column, a.dk_stride, dk, key, w.s.n);
    store_rows<D>((hh_bf16 *)a.dv + w.s.lo * a.dv_stride + column, a.dv_stride, dv, key, w.s.n);
}

template <int D, int BM>
static __global__ void __launch_bounds__(128 * (NC + 1), 1) wgmma_dkv(const hh_attention_args a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char raw[];
    key_block<D, BM> *b = (key_block<D, BM> *)(((uintptr_t)raw + 1023) / 1024 * 1024);
    init_barriers(b->full, b->empty);
    const key_work w = find_keys<BM>(a);
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0) - 1;
    if (group < 0) {
        hh_leave_registers<LOADER>();
        load_queries<D, BM>(b, a, w);
    } else {
        hh_take_registers<CONSUMER>();
        own_keys<D, BM>(b, a, w, group);
    }
#endif
}

/* -- dq: a block owns OWN queries of one head -- */

template <int D, int BN> struct query_block {
    hh_bf16 q[OWN * D], g[OWN * D];
    struct {
        hh_bf16 k[BN * D], v[BN * D];
    } stage[2];
    uint64_t full[2], empty[2];
};

typedef struct query_work {
    hh_attention_span s;
    hh_attention_head h;
    int row0, n_tiles;
} query_work;

template <int BN> static __device__ __forceinline__ query_work find_queries(const hh_attention_args &a) {
    query_work w;
    const int tile = (gridDim.x - 1 - blockIdx.x) / a.n_heads;
    w.s = *hh_attention_find(a, tile);
    w.h = a.head[blockIdx.x % a.n_heads];
    w.row0 = (tile - w.s.first) * OWN;
    const int end = w.s.n - w.row0 < OWN ? w.s.n : w.row0 + OWN;
    w.n_tiles = (end + BN - 1) / BN;
    return w;
}

template <int D, int BN>
static __device__ __forceinline__ void load_keys(query_block<D, BN> *b, const hh_attention_args &a,
                                                 const query_work &w) {
    const hh_attention_span &s = w.s;
    const int64_t t0 = s.lo + w.row0, rows = s.n - w.row0;
    const hh_bf16 *k = (const hh_bf16 *)s.k + (int64_t)w.h.kv * D, *v = (const hh_bf16 *)s.v + (int64_t)w.h.kv * D;
    hh_load_panels<D, OWN>(b->q, (const hh_bf16 *)a.q + t0 * a.q_stride + (int64_t)w.h.q * D, a.q_stride, rows);
    hh_load_panels<D, OWN>(b->g, (const hh_bf16 *)a.do_ + t0 * a.do_stride + (int64_t)w.h.q * D, a.do_stride, rows);
    for (int j = 0; j < w.n_tiles; j++) {
        const int stage = j & 1;
        const int64_t key = (int64_t)j * BN;
        if (j > 1) hh_barrier_wait(&b->empty[stage], (j >> 1 & 1) ^ 1);
        hh_load_panels<D, BN>(b->stage[stage].k, k + key * s.k_stride, s.k_stride, s.n - key);
        hh_load_panels<D, BN>(b->stage[stage].v, v + key * s.v_stride, s.v_stride, s.n - key);
        hh_copy_commit();
        if (j > 0) {
            hh_copy_wait<1>();
            hh_fence_products();
            hh_barrier_arrive(&b->full[stage ^ 1]);
        }
    }
    hh_copy_wait<0>();
    hh_fence_products();
    hh_barrier_arrive(&b->full[(w.n_tiles - 1) & 1]);
}

template <int D, int BN>
static __device__ __forceinline__ void own_queries(query_block<D, BN> *b, const hh_attention_args &a,
                                                   const query_work &w, int group) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, own = 64 * group;
    const int row = w.row0 + own + 16 * warp + lane / 4; /* the thread's first */
    float dq[D / 8][4] = {}, z[BN / 8][4] = {}, dp[BN / 8][4] = {}, lse[2], delta[2], c[2];
    unsigned ds[BN / 16][4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = row + 8 * i < w.s.n ? row + 8 * i : w.s.n - 1;
        lse[i] = HH_LOG2E * a.lse[(w.s.lo + at) * a.lse_stride + w.h.o];
        delta[i] = a.delta[(w.s.lo + at) * a.delta_stride + w.h.o];
        c[i] = row + 8 * i < w.s.n ? a.scale[at] : 0;
    }
    for (int j = 0; j < w.n_tiles; j++) {
        const int stage = j & 1;
        hh_barrier_wait(&b->full[stage], j >> 1 & 1);
        hh_wg_hold(z);
        hh_wg_hold(dp);
        hh_wg_fence();
        hh_wg_product_t<D, OWN, BN, BN>(z, b->q + own * 64, b->stage[stage].k);
        hh_wg_commit();
        hh_wg_product_t<D, OWN, BN, BN>(dp, b->g + own * 64, b->stage[stage].v);
        hh_wg_commit();
        hh_wg_wait<1>(); /* the logits */
        hh_wg_hold(z);
        const bool diagonal = j * BN + BN - 1 > w.row0 + own;
        const int ahead = row - j * BN - lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < BN / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float x = hh_exp2(fmaf(z[n][e], HH_LOG2E * c[e >> 1], -lse[e >> 1]));
                if (diagonal && 8 * n + (e & 1) > ahead + 8 * (e >> 1)) x = 0;
                z[n][e] = x;
            }
        hh_wg_wait<0>();
        hh_wg_hold(dp);
#pragma unroll
        for (int n = 0; n < BN / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) z[n][e] *= (dp[n][e] - delta[e >> 1]) * c[e >> 1];
        round_rows(ds, z);
        hh_wg_fence();
        hh_wg_product<D, BN, BN>(dq, ds, b->stage[stage].k);
        hh_wg_commit();
        hh_wg_wait<0>();
        hh_wg_hold(dq);
        if (lane == 0) hh_barrier_arrive(&b->empty[stage]);
    }
    store_rows<D>((hh_bf16 *)a.dq + w.s.lo * a.dq_stride + (int64_t)w.h.o * D, a.dq_stride, dq, row, w.s.n);
}

template <int D, int BN>
static __global__ void __launch_bounds__(128 * (NC + 1), 1) wgmma_dq(const hh_attention_args a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char raw[];
    query_block<D, BN> *b = (query_block<D, BN> *)(((uintptr_t)raw + 1023) / 1024 * 1024);
    init_barriers(b->full, b->empty);
    const query_work w = find_queries<BN>(a);
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0) - 1;
    if (group < 0) {
        hh_leave_registers<LOADER>();
        load_keys<D, BN>(b, a, w);
    } else {
        hh_take_registers<CONSUMER>();
        own_queries<D, BN>(b, a, w, group);
    }
#endif
}

template <int D, int BM, int BN> static void launch(hh_backend *be, hh_attention_args *a, hh_attention_span *span) {
    const int64_t n_tiles = hh_attention_cut(span, a->n_spans, OWN);
    HH_ASSERT(n_tiles * (a->n_heads + a->n_groups) < INT32_MAX);
    a->span = hh_cuda_list(be, span, a->n_spans);
    hh_cuda_launch(be, "attention_bwd", wgmma_dkv<D, BM>, dim3((unsigned)(n_tiles * a->n_groups)), 128 * (NC + 1),
                   sizeof(key_block<D, BM>) + 1024, *a);
    hh_cuda_launch(be, "attention_bwd", wgmma_dq<D, BN>, dim3((unsigned)(n_tiles * a->n_heads)), 128 * (NC + 1),
                   sizeof(query_block<D, BN>) + 1024, *a);
}

void hh_attention_wgmma_bwd(hh_backend *be, hh_attention_args *a, hh_attention_span *span) {
    hh_attention_fill_scales(be, a, span);
    if (a->head_dim == 64)
        launch<64, 64, 128>(be, a, span);
    else
        launch<128, 64, 128>(be, a, span);
}
