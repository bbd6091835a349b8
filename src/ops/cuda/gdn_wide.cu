/* Gated DeltaNet's chunks one after another for many heads and spans: one warp has sixteen columns of the state and all
 * that comes of them in registers, and warps share no more than their inputs. gdn_chain.cu is for few. */
#include "ops/cuda/gdn_fwd.cuh"

#define GROUPS  4 /* warps of a block, on neighbouring columns of one head */
#define COLUMNS (16 * GROUPS)
#define STAGES  2
#define SQUARE  HH_GDN_STRIDE(HH_GDN_CHUNK)

/* A chunk's inputs in shared memory: 46 KB for D = 64, 63 KB for D = 128. */
template <int D> struct wide_stage {
    hh_bf16 K[HH_GDN_CHUNK * HH_GDN_STRIDE(D)], Q[HH_GDN_CHUNK * HH_GDN_STRIDE(D)];
    hh_bf16 V[HH_GDN_CHUNK * HH_GDN_STRIDE(COLUMNS)];
    hh_gdn_prepared y;
};

template <int D> struct wide_shared {
    wide_stage<D> stage[STAGES];
    hh_bf16 turn[GROUPS][16 * HH_GDN_STRIDE(16)];
};

template <int D>
static __device__ __forceinline__ void load_stage(wide_stage<D> *x, const hh_gdn_io &io, const hh_gdn_prepared *y,
                                                  int64_t t, int n, int64_t h, int64_t column) {
    hh_gdn_copy_tile<D>(x->K, (const hh_bf16 *)io.k + t * io.k_stride + h * D, io.k_stride, n);
    hh_gdn_copy_tile<COLUMNS>(x->V, (const hh_bf16 *)io.v + t * io.v_stride + h * D + column, io.v_stride, n);
    for (int i = threadIdx.x; i < (int)sizeof *y / 16; i += 32 * GROUPS)
        hh_copy_async((uint4 *)&x->y + i, (const uint4 *)y + i, true);
    hh_gdn_copy_tile<D>(x->Q, (const hh_bf16 *)io.q + t * io.q_stride + h * D, io.q_stride, n);
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
        hh_gdn_load_rows<D>(b, x.K + 16 * i * HH_GDN_STRIDE(D));
        hh_gdn_times_state<D>(KS, S, b);
        hh_load_a_transposed(v, x.V + 16 * i * HH_GDN_STRIDE(COLUMNS) + 16 * group, HH_GDN_STRIDE(COLUMNS));
        hh_gdn_pack_R(R[i], KS, v, x.y.into + 16 * i);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float acc[2][4] = {};
#pragma unroll
        for (int j = 0; j <= i; j++) {
            uint32_t b[4];
            hh_load_b_transposed(b, x.y.Bm + 16 * i * SQUARE + 16 * j, SQUARE);
            hh_mma_pair(acc, R[j], b);
        }
        hh_pack_fragment(Vh[i], acc);
        hh_gdn_scale_tokens(acc, x.y.out + 16 * i);
        hh_pack_fragment(decayed[i], acc);
    }
}

/* O^T of F7, sixteen tokens at a time, n of all; to o's first row and column. */
template <int D>
static __device__ __forceinline__ void store_output(hh_bf16 *o, int64_t stride, int64_t n, hh_bf16 *turn,
                                                    const wide_stage<D> &x, const uint32_t S[D / 16][4],
                                                    const uint32_t Vh[4][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float acc[2][4];
        uint32_t a[4], b[D / 16][4], p[4];
        hh_gdn_load_rows<D>(b, x.Q + 16 * i * HH_GDN_STRIDE(D));
        hh_gdn_times_state<D>(acc, S, b);
        hh_gdn_scale_tokens(acc, x.y.into + 16 * i);
#pragma unroll
        for (int j = 0; j <= i; j++) {
            hh_load_b_transposed(p, x.y.P + 16 * i * SQUARE + 16 * j, SQUARE);
            hh_mma_pair(acc, Vh[j], p);
        }
        hh_pack_fragment(a, acc);
        hh_gdn_store_rows(o + 16 * i * stride, stride, n - 16 * i, turn, a);
    }
}

/* A block has COLUMNS columns of one head's state in one span, a warp sixteen of them. Bound by tensor cores. */
template <int D>
static __global__ void __launch_bounds__(32 * GROUPS) gdn_fwd_wide_kernel(hh_gdn_io io, const hh_gdn_prepared *from) {
    extern __shared__ __align__(16) unsigned char shared[];
    wide_shared<D> &sh = *(wide_shared<D> *)shared;
    const int group = threadIdx.x >> 5;
    const int64_t s = blockIdx.x / (D / COLUMNS), column = blockIdx.x % (D / COLUMNS) * COLUMNS;
    const int64_t h = io.first_head + blockIdx.y, own = column + 16 * group; /* this warp's first column */
    const hh_span span = io.span[s];
    const int64_t end = hh_gdn_chunks_end(span), n_before = hh_gdn_chunks_before(io, s);
    const int64_t n_chunks = (end - span.lo + HH_GDN_CHUNK - 1) / HH_GDN_CHUNK;
    if (n_chunks <= 0) return;
    auto load = [&](int64_t chunk) {
        int64_t t = span.lo + chunk * HH_GDN_CHUNK, left = end - t;
        if (chunk < n_chunks)
            load_stage<D>(&sh.stage[chunk % STAGES], io, from + (n_before + chunk) * io.n_heads + blockIdx.y, t,
                          left < HH_GDN_CHUNK ? (int)left : HH_GDN_CHUNK, h, column);
        hh_copy_commit();
    };
    for (int i = 0; i < STAGES - 1; i++) load(i);

    float *state = hh_gdn_state(io, s, blockIdx.y);
    float S[D / 16][2][4];
#pragma unroll
    for (int i = 0; i < D / 16; i++) hh_gdn_load_state(S[i], io.state ? state : NULL, D, 16 * i, own);
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        const int64_t t = span.lo + chunk * HH_GDN_CHUNK;
        const wide_stage<D> &x = sh.stage[chunk % STAGES];
        uint32_t S_in[D / 16][4], Vh[4][4], decayed[4][4];
        hh_bf16 *saved = (hh_bf16 *)io.saved + (n_before + chunk) * io.saved_stride + h * D * D + own;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            hh_pack_fragment(S_in[i], S[i]);
            if (io.saved) hh_gdn_store_rows(saved + 16 * i * D, D, 16, sh.turn[group], S_in[i]);
        }
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
                hh_load_b(b, x.K + 16 * j * HH_GDN_STRIDE(D) + 16 * i, HH_GDN_STRIDE(D));
                hh_mma_pair(S[i], decayed[j], b); /* F8 */
            }
        }
        store_output<D>((hh_bf16 *)io.o + t * io.o_stride + h * D + own, io.o_stride, end - t, sh.turn[group], x, S_in,
                        Vh);
    }
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        if (state) hh_gdn_store_state(state, S[i], D, 16 * i, own);
}

void hh_gdn_wide(hh_backend *be, const hh_gdn_io *io, const hh_gdn_prepared *from) {
    const dim3 grid((unsigned)(io->n_spans * (io->D / COLUMNS)), (unsigned)io->n_heads), block(32 * GROUPS);
    if (io->D == 64)
        hh_cuda_launch(be, "gdn_fwd", gdn_fwd_wide_kernel<64>, grid, block, sizeof(wide_shared<64>), *io, from);
    else
        hh_cuda_launch(be, "gdn_fwd", gdn_fwd_wide_kernel<128>, grid, block, sizeof(wide_shared<128>), *io, from);
}
