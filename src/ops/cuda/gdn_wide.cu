/* Gated DeltaNet's chunks one after another for many heads and spans: one warp has sixteen columns of the state and all
 * that comes of them in registers, and warps share no more than their inputs. gdn_chain.cu is for few. */
#include "ops/cuda/gdn_fwd.cuh"

#define GROUPS  4 /* warps of a block, on neighbouring columns of one head */
#define COLUMNS (16 * GROUPS)
#define STAGES  2

/* A chunk's inputs in shared memory: 45 KB for D = 64, 61 KB for D = 128. */
template <int D> struct wide_stage {
    hh_gdn_prepared<D> y;
    hh_bf16 V[GROUPS][4][16 * HH_GDN_STRIDE(16)]; /* of every warp, by sixteen tokens */
};

template <int D> struct wide_shared { wide_stage<D> stage[STAGES]; };

/* v: the first token's, at this warp's columns. */
template <int D>
static __device__ __forceinline__ void load_stage(wide_stage<D> *x, const hh_gdn_prepared<D> *y, const hh_bf16 *v,
                                                  int64_t stride, int64_t n) {
    for (int i = threadIdx.x; i < (int)sizeof *y / 16; i += 32 * GROUPS)
        hh_copy_async((uint4 *)&x->y + i, (const uint4 *)y + i, true);
#pragma unroll
    for (int i = 0; i < 4; i++)
        hh_gdn_copy_v(x->V[threadIdx.x >> 5][i], v + (16 * i < n ? 16 * i : 0) * stride, stride, n - 16 * i);
}

/* V^^T of F6 of all tokens, as it is and times e^{G_n - G}. */
template <int D>
static __device__ __forceinline__ void correct(uint32_t Vh[4][4], uint32_t decayed[4][4], const wide_stage<D> &x,
                                               const uint32_t S[D / 16][4], int group) {
    uint32_t R[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float KS[2][4];
        uint32_t v[4], b[D / 16][4];
        hh_gdn_load_rows<D>(b, x.y.K, 16 * i);
        hh_gdn_times_state<D>(KS, S, b);
        hh_load_a_transposed(v, x.V[group][i], HH_GDN_STRIDE(16));
        hh_gdn_pack_R(R[i], KS, v, x.y.into + 16 * i);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float acc[2][4] = {};
#pragma unroll
        for (int j = 0; j <= i; j++) {
            uint32_t b[4];
            hh_gdn_load_b_transposed(b, x.y.Bm, 16 * i, 16 * j);
            hh_mma_pair(acc, R[j], b);
        }
        hh_pack_fragment(Vh[i], acc);
        hh_gdn_scale_tokens(acc, x.y.out + 16 * i);
        hh_pack_fragment(decayed[i], acc);
    }
}

/* Four fragments as 64 rows of sixteen columns to rows `stride` apart, n of them, through this warp's v, which has been
 * read. */
static __device__ __forceinline__ void store_four(hh_bf16 *to, int64_t stride, int64_t n,
                                                  hh_bf16 turn[4][16 * HH_GDN_STRIDE(16)], const uint32_t a[4][4]) {
    const int row = (threadIdx.x & 31) / 2, column = threadIdx.x % 2 * 8;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) hh_store_transposed(turn[i], HH_GDN_STRIDE(16), a[i]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (16 * i + row < n)
            *(uint4 *)(to + (16 * i + row) * stride + column) =
                *(const uint4 *)(turn[i] + row * HH_GDN_STRIDE(16) + column);
}

/* O^T of F7 of all tokens. */
template <int D>
static __device__ __forceinline__ void output(uint32_t o[4][4], const wide_stage<D> &x, const uint32_t S[D / 16][4],
                                              const uint32_t Vh[4][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float acc[2][4];
        uint32_t b[D / 16][4], p[4];
        hh_gdn_load_rows<D>(b, x.y.Q, 16 * i);
        hh_gdn_times_state<D>(acc, S, b);
        hh_gdn_scale_tokens(acc, x.y.into + 16 * i);
#pragma unroll
        for (int j = 0; j <= i; j++) {
            hh_gdn_load_b_transposed(p, x.y.P, 16 * i, 16 * j);
            hh_mma_pair(acc, Vh[j], p);
        }
        hh_pack_fragment(o[i], acc);
    }
}

/* A block has COLUMNS columns of one head's state in one span, a warp sixteen of them. Bound by tensor cores. */
template <int D>
static __global__ void __launch_bounds__(32 * GROUPS)
    gdn_fwd_wide_kernel(hh_gdn_io io, const hh_gdn_prepared<D> *from) {
    extern __shared__ __align__(128) unsigned char shared[];
    wide_shared<D> &sh = *(wide_shared<D> *)shared;
    const int group = threadIdx.x >> 5;
    const int64_t s = blockIdx.x / (D / COLUMNS), column = blockIdx.x % (D / COLUMNS) * COLUMNS;
    const int64_t h = io.first_head + blockIdx.y, own = column + 16 * group; /* this warp's first column */
    const hh_span span = io.span[s];
    const int64_t end = hh_gdn_chunks_end(span), n_before = hh_gdn_chunks_before(io, s);
    const int64_t n_chunks = (end - span.lo + HH_GDN_CHUNK - 1) / HH_GDN_CHUNK;
    if (n_chunks <= 0) return;
    auto load = [&](int64_t chunk) {
        int64_t t = span.lo + chunk * HH_GDN_CHUNK;
        if (chunk < n_chunks)
            load_stage<D>(&sh.stage[chunk % STAGES], from + (n_before + chunk) * io.n_heads + blockIdx.y,
                          (const hh_bf16 *)io.v + t * io.v_stride + h * D + own, io.v_stride, end - t);
        hh_copy_commit();
    };
    for (int i = 0; i < STAGES - 1; i++) load(i);

    float *state = hh_gdn_state(io, s, blockIdx.y);
    float S[D / 16][2][4];
#pragma unroll
    for (int i = 0; i < D / 16; i++) hh_gdn_load_state(S[i], io.state ? state : NULL, D, 16 * i, own);
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        const int64_t t = span.lo + chunk * HH_GDN_CHUNK;
        wide_stage<D> &x = sh.stage[chunk % STAGES];
        uint32_t S_in[D / 16][4], Vh[4][4], decayed[4][4], o[4][4];
#pragma unroll
        for (int i = 0; i < D / 16; i++) hh_pack_fragment(S_in[i], S[i]);
        hh_copy_wait<STAGES - 2>();
        __syncthreads();
        load(chunk + STAGES - 1);
        correct<D>(Vh, decayed, x, S_in, group);
        const float last = x.y.into[HH_GDN_CHUNK - 1];
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
#pragma unroll
            for (int e = 0; e < 8; e++) S[i][e / 4][e % 4] *= last;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t b[4];
                hh_gdn_load_b(b, x.y.K, 16 * j, 16 * i);
                hh_mma_pair(S[i], decayed[j], b); /* F8 */
            }
        }
        output<D>(o, x, S_in, Vh);
        store_four((hh_bf16 *)io.o + t * io.o_stride + h * D + own, io.o_stride, end - t, x.V[group], o);
        if (!io.saved) continue;
        hh_bf16 *saved = (hh_bf16 *)io.saved + (n_before + chunk) * io.saved_stride + h * D * D + own;
#pragma unroll
        for (int i = 0; i < D / 16; i += 4) store_four(saved + 16 * i * D, D, 64, x.V[group], S_in + i);
    }
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        if (state) hh_gdn_store_state(state, S[i], D, 16 * i, own);
}

template <int D> static void launch(hh_backend *be, const hh_gdn_io *io, const void *from) {
    const dim3 grid((unsigned)(io->n_spans * (D / COLUMNS)), (unsigned)io->n_heads);
    hh_cuda_launch(be, "gdn_fwd", gdn_fwd_wide_kernel<D>, grid, dim3(32 * GROUPS), sizeof(wide_shared<D>), *io,
                   (const hh_gdn_prepared<D> *)from);
}

void hh_gdn_wide(hh_backend *be, const hh_gdn_io *io, const void *from) {
    io->D == 64 ? launch<64>(be, io, from) : launch<128>(be, io, from);
}
