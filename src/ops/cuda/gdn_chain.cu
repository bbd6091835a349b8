/* Gated DeltaNet's chunks one after another for few heads and spans, where the time is the latency of the chain
 * K S -> R -> Bm R -> K^T V^ -> S. Blocks of sixteen columns, so that all multiprocessors have one; each has four warps on
 * the chain, four (or twice four, by turns) that compute the output behind it, and one that sends for inputs. Blocks of a
 * head form clusters whose members each fetch a part of what was prepared for all of them: alone they would ask the L2
 * cache for more than it can give. The copies are of whole lines: rows of 256 bytes to padded places took 2.4 times as
 * long. */
#include "ops/cuda/cluster.cuh"
#include "ops/cuda/gdn_fwd.cuh"

#define CLUSTER 4
#define STAGES  3
#define BEHIND  2 /* chunks whose v is on its way */

/* Fours of warps that compute the output, a chunk in turn each: 1 or 2. */
#ifndef HH_GDN_OUTPUTS
#define HH_GDN_OUTPUTS 1
#endif
#define THREADS (32 * (4 + 4 * HH_GDN_OUTPUTS + 1))

template <int D> struct chain_shared {
    hh_gdn_prepared<D> stage[STAGES];
    uint4 S[2][D / 16][32], V[2][4][32]; /* fragments of S^T and V^^T, of this chunk and the one before */
    uint4 R[4][32], decayed[4][32];
    hh_bf16 v[4][BEHIND + 1][16 * HH_GDN_STRIDE(16)]; /* of every warp of the chain */
    hh_bf16 turn[4 * HH_GDN_OUTPUTS][16 * HH_GDN_STRIDE(16)];
    uint64_t full[STAGES], empty[STAGES];
};

/* What all warps of a block know. */
typedef struct chain_place {
    int64_t s, h, column; /* span, head, first column */
    int64_t lo, end;      /* tokens */
    int64_t n_before, n_chunks;
} chain_place;

/* Barriers of a block beside 0: the chain's own; V^ and S of an even or odd chunk are there; they have been read.
 *
 * What orders the fragments of chunk c, whose chain passes CHAIN three times:
 *     R, decayed  put before the second CHAIN, before the third; taken behind it; put again two CHAINs later, in c + 1
 *     S, V        put before the first CHAIN, before the third; taken by the output behind THERE, at which the chain
 *                 arrives behind the third; put again, in c + 2, behind READ, at which every warp of the output arrives
 *                 when it has taken its last. The chain takes S between the first and the second.
 * By PTX, what a warp did before it arrived is done for all others when the barrier completes, be the arrival bar.sync or
 * bar.arrive. compute-sanitizer's racecheck (CUDA 13.0) reports as if bar.arrive were none, and an access open until its
 * own warp has passed a bar.sync: V's put beside its take when the chain arrived at THERE before the third CHAIN, S's
 * never. So the chain arrives behind it. Between the output's takes and READ no bar.sync stands: put beside take<true>
 * may be reported, and tools/sanitize_cuda.sh counts it apart. */
enum { CHAIN = 1, THERE = 2, READ = 4 };

/* A fragment to and from shared memory, in registers' order. */
static __device__ __forceinline__ void put(uint4 *to, const uint32_t a[4]) {
    to[threadIdx.x & 31] = make_uint4(a[0], a[1], a[2], a[3]);
}
/* OUTPUT: by the output's warps; reports of racecheck tell who takes by this name alone. */
template <bool OUTPUT> static __device__ __forceinline__ void take(uint32_t a[4], const uint4 *from) {
    uint4 v = from[threadIdx.x & 31];
    a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
}

/* This warp has read its last of a stage: every block of the cluster may send to it again. Lane r arrives at block r, for
 * the reads of all lanes, which __syncwarp puts before; `empty` there is complete when eight warps of every block have
 * arrived, the chain's and those that have the chunk's output, and behind it the lane that fetches refills its share in
 * every block. racecheck takes an arrival for what the arriving lane itself has done, and nothing else: it reports each
 * refill of block r's share, hh_bulk_copy_all<true>, beside the reads of all lanes but r, and no first fill.
 * tools/sanitize_cuda.sh counts these reports apart. */
static __device__ __forceinline__ void release(uint64_t *empty) {
    __syncwarp();
    if ((threadIdx.x & 31) < CLUSTER) hh_mbarrier_arrive_at(empty, threadIdx.x & 31);
}

/* The warp that fetches: its block's share of what was prepared, for the whole cluster. */
template <int D>
static __device__ __forceinline__ void fetch(chain_shared<D> &sh, const hh_gdn_io &io, const chain_place &p,
                                             const hh_gdn_prepared<D> *from) {
    constexpr int BYTES = (int)sizeof(hh_gdn_prepared<D>), SHARE = BYTES / CLUSTER;
    static_assert(SHARE % 128 == 0, "whole lines");
    const int rank = hh_cluster_rank();
    if (threadIdx.x & 31) return;
    const hh_gdn_prepared<D> *y = from + p.n_before * io.n_heads + blockIdx.y;
    for (int chunk = 0, at = 0, round = 0; chunk < (int)p.n_chunks; chunk++, y += io.n_heads) {
        if (round) hh_mbarrier_wait(&sh.empty[at], (round - 1) & 1);
        hh_mbarrier_expect(&sh.full[at], BYTES);
        char *to = (char *)&sh.stage[at] + rank * SHARE;
        const char *share = (const char *)y + rank * SHARE;
        if (round)
            hh_bulk_copy_all<true>(to, share, SHARE, &sh.full[at], (1 << CLUSTER) - 1);
        else
            hh_bulk_copy_all<false>(to, share, SHARE, &sh.full[at], (1 << CLUSTER) - 1);
        if (++at == STAGES) at = 0, round++;
    }
}

/* Which stage a warp is at, and the parity that says it is full; the parts of addresses that stay the same. Counted, not
 * divided: these loops are as long as their instructions. */
template <int D> struct chain_walk {
    uint32_t stage, end; /* addresses in shared memory */
    int at, parity;
    uint32_t rows[4]; /* of sixteen rows [16 w, 16 w + 16) of a tile, by sixteen columns of 64 */
};

template <int D> static __device__ __forceinline__ chain_walk<D> start_walk(const chain_shared<D> &sh, int w) {
    const uint32_t lane = threadIdx.x & 31;
    chain_walk<D> x;
    x.stage = hh_shared_address(&sh.stage[0]), x.end = x.stage + (uint32_t)sizeof sh.stage;
    x.at = x.parity = 0;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        x.rows[k] = (16 * w + (lane & 7) + (lane >> 4) * 8) * 128 + (((2 * k + ((lane >> 3) & 1)) ^ (lane & 7)) << 4);
    return x;
}

template <int D> static __device__ __forceinline__ void step_walk(chain_walk<D> *x) {
    x->stage += (uint32_t)sizeof(hh_gdn_prepared<D>);
    if (++x->at == STAGES) x->at = 0, x->parity ^= 1, x->stage -= STAGES * (uint32_t)sizeof(hh_gdn_prepared<D>);
}

/* Sixteen rows of a tile of D columns, as operands; `tile` counts from the stage's start. */
template <int D>
static __device__ __forceinline__ void load_rows(uint32_t b[D / 16][4], const chain_walk<D> &x, uint32_t tile) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) hh_ldmatrix_at(b[k], x.stage + x.rows[k % 4] + (tile + k / 4 * 8192));
}

/* Where tiles stand in a stage, in bytes. */
template <int D> struct chain_tile {
    static constexpr uint32_t K = 0, Q = HH_GDN_CHUNK * D * 2, Bm = 2 * Q, P = Bm + HH_GDN_CHUNK * HH_GDN_CHUNK * 2;
};

/* The four warps of the chain: warp w has D / 4 rows of the state in float32 and sixteen tokens of every chunk. What a
 * product needs of shared memory is loaded before the barrier in front of it. */
template <int D>
static __device__ __forceinline__ void run_chain(chain_shared<D> &sh, const hh_gdn_io &io, const chain_place &p,
                                                 int w) {
    constexpr int OWN = D / 64; /* sixteens of rows */
    typedef chain_tile<D> tile;
    const uint32_t lane = threadIdx.x & 31;
    float *state = hh_gdn_state(io, p.s, blockIdx.y), S[OWN][2][4];
    uint32_t columns[OWN]; /* this warp's rows of the state as columns of K */
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const uint32_t own = OWN * w + i;
        hh_gdn_load_state(S[i], io.state ? state : NULL, D, 16 * own, p.column);
        columns[i] = own / 4 * 8192 + (lane & 15) * 128 + ((((2 * own) & 7) + (lane >> 4)) ^ (lane & 7)) * 16;
    }
    chain_walk<D> walk = start_walk<D>(sh, w);
    const hh_bf16 *v_next = (const hh_bf16 *)io.v + (p.lo + 16 * w) * io.v_stride + p.h * D + p.column;
    int64_t v_left = p.end - p.lo - 16 * w;
    int v_slot = 0, v_put = 0;
    auto load_v = [&]() {
        hh_gdn_copy_v(sh.v[w][v_put], v_left > 0 ? v_next : (const hh_bf16 *)io.v + p.h * D + p.column, io.v_stride,
                      v_left);
        hh_copy_commit();
        v_next += HH_GDN_CHUNK * io.v_stride, v_left -= HH_GDN_CHUNK;
        v_put = v_put == BEHIND ? 0 : v_put + 1;
    };
    for (int i = 0; i < BEHIND; i++) load_v();
    const int n_chunks = (int)p.n_chunks;
    for (int chunk = 0; chunk < n_chunks; chunk++, step_walk<D>(&walk)) {
        const int odd = chunk & 1;
        const hh_gdn_prepared<D> &x = sh.stage[walk.at];
        uint32_t a[4], S_in[D / 16][4], K[D / 16][4], Bm[4][4], v[4], KT[4][OWN][4];
        float acc[2][4];
        if (chunk >= 2) hh_barrier(READ + odd, 256);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            hh_pack_fragment(a, S[i]);
            put(sh.S[odd][OWN * w + i], a);
        }
        hh_mbarrier_wait(&sh.full[walk.at], walk.parity);
        load_rows<D>(K, walk, tile::K);
        hh_copy_wait<BEHIND - 1>();
        __syncwarp();
        hh_load_a_transposed(v, sh.v[w][v_slot], HH_GDN_STRIDE(16));
        v_slot = v_slot == BEHIND ? 0 : v_slot + 1;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j <= w) hh_ldmatrix_at(Bm[j], walk.stage + walk.rows[j] + tile::Bm);
        hh_barrier(CHAIN, 128);
#pragma unroll
        for (int k = 0; k < D / 16; k++) take<false>(S_in[k], sh.S[odd][k]);
        hh_gdn_times_state<D>(acc, S_in, K);
        hh_gdn_pack_R(a, acc, v, x.into + 16 * w);
        put(sh.R[w], a);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < OWN; i++)
                hh_ldmatrix_trans_at(KT[j][i], walk.stage + columns[i] + (tile::K + j * 2048));
        hh_barrier(CHAIN, 128);
#pragma unroll
        for (int i = 0; i < 8; i++) acc[i / 4][i % 4] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j <= w) {
                take<false>(a, sh.R[j]);
                hh_mma_pair(acc, a, Bm[j]); /* F6 */
            }
        hh_pack_fragment(a, acc);
        put(sh.V[odd][w], a);
        hh_gdn_scale_tokens(acc, x.out + 16 * w);
        hh_pack_fragment(a, acc);
        put(sh.decayed[w], a);
        const float last = x.into[HH_GDN_CHUNK - 1];
        hh_barrier(CHAIN, 128);
        hh_barrier_arrive(THERE + odd, 256);
        release(&sh.empty[walk.at]);
#pragma unroll
        for (int i = 0; i < OWN * 8; i++) S[i / 8][i / 4 % 2][i % 4] *= last;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            take<false>(a, sh.decayed[j]);
#pragma unroll
            for (int i = 0; i < OWN; i++) hh_mma_pair(S[i], a, KT[j][i]); /* F8 */
        }
        load_v();
    }
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (state) hh_gdn_store_state(state, S[i], D, 16 * (OWN * w + i), p.column);
}

/* Four warps of the output, sixteen tokens each; they also store the states at chunks' starts. They have every
 * HH_GDN_OUTPUTS-th chunk from `first` on. */
template <int D>
static __device__ __forceinline__ void run_output(chain_shared<D> &sh, const hh_gdn_io &io, const chain_place &p, int w,
                                                  int first) {
    constexpr int OWN = D / 64, EVERY = HH_GDN_OUTPUTS;
    typedef chain_tile<D> tile;
    chain_walk<D> walk = start_walk<D>(sh, w);
    hh_bf16 *o = (hh_bf16 *)io.o + (p.lo + first * HH_GDN_CHUNK + 16 * w) * io.o_stride + p.h * D + p.column;
    hh_bf16 *saved = (hh_bf16 *)io.saved + (p.n_before + first) * io.saved_stride + p.h * D * D + p.column;
    hh_bf16 *corner = sh.turn[4 * first + w];
    int64_t left = p.end - p.lo - first * HH_GDN_CHUNK - 16 * w;
    const int n_chunks = (int)p.n_chunks;
    for (int i = 0; i < first; i++) step_walk<D>(&walk);
    for (int chunk = first; chunk < n_chunks; chunk += EVERY) {
        const int odd = chunk & 1;
        const hh_gdn_prepared<D> &x = sh.stage[walk.at];
        uint32_t a[4], S_in[D / 16][4], b[D / 16][4], P[4][4];
        float acc[2][4];
        hh_mbarrier_wait(&sh.full[walk.at], walk.parity);
        load_rows<D>(b, walk, tile::Q);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j <= w) hh_ldmatrix_at(P[j], walk.stage + walk.rows[j] + tile::P);
        hh_barrier(THERE + odd, 256);
#pragma unroll
        for (int k = 0; k < D / 16; k++) take<true>(S_in[k], sh.S[odd][k]);
        hh_gdn_times_state<D>(acc, S_in, b);
        hh_gdn_scale_tokens(acc, x.into + 16 * w);
        release(&sh.empty[walk.at]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j <= w) {
                take<true>(a, sh.V[odd][j]);
                hh_mma_pair(acc, a, P[j]); /* F7 */
            }
        uint32_t own[OWN][4];
#pragma unroll
        for (int i = 0; i < OWN; i++) take<true>(own[i], sh.S[odd][OWN * w + i]);
        if (chunk + 2 < n_chunks) hh_barrier_arrive(READ + odd, 256);
        hh_pack_fragment(a, acc);
        hh_gdn_store_rows(o, io.o_stride, left, corner, a);
        o += EVERY * HH_GDN_CHUNK * io.o_stride, left -= EVERY * HH_GDN_CHUNK;
#pragma unroll
        for (int i = 0; i < EVERY; i++) step_walk<D>(&walk);
        if (!io.saved) continue;
#pragma unroll
        for (int i = 0; i < OWN; i++) hh_gdn_store_rows(saved + 16 * (OWN * w + i) * D, D, 16, corner, own[i]);
        saved += EVERY * io.saved_stride;
    }
}

/* A block has sixteen columns of one head's state in one span. Shared memory: 120 KB for D = 64, 175 KB for D = 128. */
template <int D>
static __global__ void HH_CLUSTER(CLUSTER) __launch_bounds__(THREADS, 1)
    gdn_fwd_chain_kernel(hh_gdn_io io, const hh_gdn_prepared<D> *from) {
    extern __shared__ __align__(128) unsigned char shared[];
    chain_shared<D> &sh = *(chain_shared<D> *)shared;
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0); /* known to be uniform */
    chain_place p;
    p.s = blockIdx.x / (D / 16), p.column = blockIdx.x % (D / 16) * 16, p.h = io.first_head + blockIdx.y;
    const hh_span span = io.span[p.s];
    p.lo = span.lo, p.end = hh_gdn_chunks_end(span);
    p.n_chunks = (p.end - span.lo + HH_GDN_CHUNK - 1) / HH_GDN_CHUNK;
    if (p.n_chunks <= 0) return; /* the whole cluster */
    p.n_before = hh_gdn_chunks_before(io, p.s);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            hh_mbarrier_init(&sh.full[i], 1);
            hh_mbarrier_init(&sh.empty[i], 8 * CLUSTER);
        }
        hh_mbarrier_publish();
    }
    __syncwarp();
    hh_cluster_sync();
    if (warp < 4)
        run_chain<D>(sh, io, p, warp);
    else if (warp < 4 + 4 * HH_GDN_OUTPUTS)
        run_output<D>(sh, io, p, warp & 3, HH_GDN_OUTPUTS == 1 ? 0 : warp / 4 - 1);
    else
        fetch<D>(sh, io, p, from);
    __syncwarp();
    hh_cluster_sync(); /* nobody leaves while others may still arrive here */
}

template <int D> static void launch(hh_backend *be, const hh_gdn_io *io, const void *from) {
    const dim3 grid((unsigned)(io->n_spans * (D / 16)), (unsigned)io->n_heads);
    hh_cuda_launch(be, "gdn_fwd", gdn_fwd_chain_kernel<D>, grid, dim3(THREADS), sizeof(chain_shared<D>), *io,
                   (const hh_gdn_prepared<D> *)from);
}

void hh_gdn_chain(hh_backend *be, const hh_gdn_io *io, const void *from) {
    io->D == 64 ? launch<64>(be, io, from) : launch<128>(be, io, from);
}
