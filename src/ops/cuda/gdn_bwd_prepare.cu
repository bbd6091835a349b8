/* What a chunk of Gated DeltaNet does to dS, from its tokens alone, on tensor cores; see gdn_bwd.cuh. */
#include "ops/cuda/cluster.cuh"
#include "ops/cuda/gdn_bwd.cuh"

#define SQUARE_STRIDE HH_GDN_STRIDE(GDN_N)
#define COLUMNS       GDN_BWD_COLUMNS

template <int D> struct prepare_shared {
    hh_bf16 Q[GDN_N * HH_GDN_STRIDE(D)], dO[GDN_N * HH_GDN_STRIDE(D)];
    hh_bf16 K[GDN_N * HH_GDN_STRIDE(D)], Z[GDN_N * HH_GDN_STRIDE(D)]; /* from K on: Q'^T dO on its way out */
    float A0[GDN_N * HH_GDN_SQUARE], work[GDN_N / 2 * HH_GDN_SQUARE]; /* from A0 on: Z^T K on its way out */
    hh_bf16 A0_beta[GDN_N * SQUARE_STRIDE];
    float G[GDN_N], beta[GDN_N];
};

/* Rows [16 w, 16 w + 16) of a 64 x D: accumulators of 16 columns each. */
template <int D> static __device__ __forceinline__ void clear(float acc[D / 16][2][4]) {
#pragma unroll
    for (int i = 0; i < D / 2; i++) ((float *)acc)[i] = 0;
}

/* A0 for finish, and A0 beta, both in bf16. */
template <int D> static __device__ __forceinline__ void store_A0(hh_bf16 *out, prepare_shared<D> &s) {
    for (int e = threadIdx.x; e < GDN_N * GDN_N / 2; e += HH_GDN_THREADS) {
        const int i = e / 32, j = e % 32 * 2;
        const float low = s.A0[i * HH_GDN_SQUARE + j], high = s.A0[i * HH_GDN_SQUARE + j + 1];
        *(uint32_t *)(out + i * SQUARE_STRIDE + j) = hh_pack_bf16(low, high);
        *(uint32_t *)(s.A0_beta + i * SQUARE_STRIDE + j) = hh_pack_bf16(low * s.beta[j], high * s.beta[j + 1]);
    }
}

/* Z, rows of warp w. */
template <int D> static __device__ __forceinline__ void make_Z(prepare_shared<D> &s, int w) {
    constexpr int STRIDE = HH_GDN_STRIDE(D);
    float acc[D / 16][2][4];
    clear<D>(acc);
    for (int k = 0; k <= 16 * w; k += 16) {
        uint32_t a[4], b[4];
        hh_load_a(a, s.A0_beta + 16 * w * SQUARE_STRIDE + k, SQUARE_STRIDE);
#pragma unroll
        for (int block = 0; block < D / 16; block++) {
            hh_load_b(b, s.K + k * STRIDE + 16 * block, STRIDE);
            hh_mma_pair(acc[block], a, b);
        }
    }
#pragma unroll
    for (int x = 0; x < D / 4; x++) { /* pairs */
        const int i = hh_gdn_row(w, (x & 1) * 2), j = hh_gdn_column(x >> 2, (x >> 1) & 1, 0);
        const float *c = acc[x >> 2][(x >> 1) & 1] + (x & 1) * 2;
        *(uint32_t *)(s.Z + i * STRIDE + j) = hh_pack_bf16(c[0], c[1]);
    }
}

/* Q' in the place of Q, rows of warp w. qk: fragments of lower(Q K^T). */
template <int D> static __device__ __forceinline__ void make_Q(prepare_shared<D> &s, const uint32_t qk[4][4], int w) {
    constexpr int STRIDE = HH_GDN_STRIDE(D);
    float acc[D / 16][2][4];
    clear<D>(acc);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (k > w) break;
        uint32_t b[4];
#pragma unroll
        for (int block = 0; block < D / 16; block++) {
            hh_load_b(b, s.Z + 16 * k * STRIDE + 16 * block, STRIDE);
            hh_mma_pair(acc[block], qk[k], b);
        }
    }
#pragma unroll
    for (int x = 0; x < D / 4; x++) {
        const int i = hh_gdn_row(w, (x & 1) * 2), j = hh_gdn_column(x >> 2, (x >> 1) & 1, 0);
        const float *c = acc[x >> 2][(x >> 1) & 1] + (x & 1) * 2, into = exp2f(s.G[i]);
        uint32_t *q = (uint32_t *)(s.Q + i * STRIDE + j);
        *q = hh_pack_bf16(into * (hh_low_bf16(*q) - c[0]), into * (hh_high_bf16(*q) - c[1]));
    }
}

/* out [D,D] = X^T Y for tiles [64,D]; warp w makes rows [w D/4, (w + 1) D/4), 64 columns at a time. SLICE columns of
 * `out` lie together, in rows of HH_GDN_STRIDE(SLICE). All copies out of shared memory have been waited for by thread 0
 * when `out` is written. */
template <int D, int SLICE>
static __device__ __forceinline__ void store_outer(hh_bf16 *out, const hh_bf16 *X, const hh_bf16 *Y, int w) {
    constexpr int STRIDE = HH_GDN_STRIDE(D), BLOCKS = D / 64;
#pragma unroll 1
    for (int column = 0; column < D; column += 64) {
        float acc[BLOCKS][4][2][4];
#pragma unroll
        for (int i = 0; i < BLOCKS * 32; i++) ((float *)acc)[i] = 0;
#pragma unroll
        for (int k = 0; k < GDN_N; k += 16) {
            uint32_t a[BLOCKS][4], b[4];
#pragma unroll
            for (int m = 0; m < BLOCKS; m++) hh_load_a_transposed(a[m], X + k * STRIDE + w * (D / 4) + 16 * m, STRIDE);
#pragma unroll
            for (int block = 0; block < 4; block++) {
                hh_load_b(b, Y + k * STRIDE + column + 16 * block, STRIDE);
#pragma unroll
                for (int m = 0; m < BLOCKS; m++) hh_mma_pair(acc[m][block], a[m], b);
            }
        }
        if (column == 0) {
            if (threadIdx.x == 0) hh_bulk_store_wait();
            __syncthreads();
        }
#pragma unroll
        for (int x = 0; x < BLOCKS * 16; x++) {
            const int m = x / 16, block = x / 4 % 4, half = x / 2 % 2, low = x % 2;
            const int i = w * (D / 4) + 16 * m + hh_gdn_row(0, low * 2), j = column + hh_gdn_column(block, half, 0);
            const float *c = acc[m][block][half] + low * 2;
            *(uint32_t *)(out + j / SLICE * D * HH_GDN_STRIDE(SLICE) + i * HH_GDN_STRIDE(SLICE) + j % SLICE) =
                hh_pack_bf16(c[0], c[1]);
        }
    }
    hh_bulk_publish();
    __syncthreads();
}

template <int D> static __global__ void __launch_bounds__(HH_GDN_THREADS, 2) prepare(gdn_bwd x) {
    extern __shared__ __align__(128) char shared[];
    prepare_shared<D> &s = *(prepare_shared<D> *)shared;
    const int64_t h = blockIdx.y, ci = x.first + blockIdx.x;
    const gdn_bwd_chunk c = x.chunk[ci];
    const int w = threadIdx.x / 32;
    char *scratch = gdn_bwd_scratch_of(x, ci, h);
    hh_gdn_copy_tile<D>(s.K, gdn_row<hh_bf16>(x.k, c.t, h, D), x.k.stride, c.n);
    hh_gdn_copy_tile<D>(s.Q, gdn_row<hh_bf16>(x.q, c.t, h, D), x.q.stride, c.n);
    hh_copy_commit();
    hh_gdn_copy_tile<D>(s.dO, gdn_row<hh_bf16>(x.do_, c.t, h, D), x.do_.stride, c.n);
    hh_copy_commit();
    hh_gdn_sum_gates(s.G, gdn_row<float>(x.g, c.t, h, 1), x.g.stride, c.n);
    for (int i = threadIdx.x; i < GDN_N; i += HH_GDN_THREADS)
        s.beta[i] = i < c.n ? *gdn_row<float>(x.beta, c.t + i, h, 1) : 0;
    hh_copy_wait<1>();
    __syncthreads();

    float acc[4][2][4];
    uint32_t qk[4][4];
    hh_gdn_lower_product<D>(acc, s.K, s.K, w);
    hh_gdn_store_N(s.A0, acc, s.beta, w);
    hh_gdn_lower_product<D>(acc, s.Q, s.K, w);
#pragma unroll
    for (int e = 0; e < 32; e++)
        if (hh_gdn_row(w, e & 3) < hh_gdn_column(e >> 3, (e >> 2) & 1, e & 3)) ((float *)acc)[e] = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) hh_pack_fragment(qk[k], acc[k]);
    __syncthreads();
    hh_gdn_invert(s.A0, s.work);
    store_A0<D>((hh_bf16 *)scratch, s);
    __syncthreads();
    make_Z<D>(s, w);
    hh_copy_wait<0>();
    __syncthreads();
    make_Q<D>(s, qk, w);
    constexpr int ZK = D * HH_GDN_STRIDE(D);
    static_assert(ZK * 2 + 16 <= sizeof s.A0 + sizeof s.work + sizeof s.A0_beta, "Z^T K fits where A0 was");
    static_assert(D / COLUMNS * D * HH_GDN_STRIDE(COLUMNS) * 2 <= sizeof s.K + sizeof s.Z + sizeof s.A0, "and Q'^T dO");
    hh_bf16 *out = (hh_bf16 *)s.A0;
    if (threadIdx.x == 0) *(float *)(out + ZK) = exp2f(s.G[GDN_N - 1]);
    store_outer<D, D>(out, s.Z, s.K, w);
    if (threadIdx.x == 0) hh_bulk_store(scratch + gdn_bwd_at_ZK(), out, ZK * 2 + 16);
    out = s.K;
    store_outer<D, COLUMNS>(out, s.Q, s.dO, w);
    if (threadIdx.x == 0) {
        hh_bulk_store(scratch + gdn_bwd_at_dS(D), out, D / COLUMNS * D * HH_GDN_STRIDE(COLUMNS) * 2);
        hh_bulk_store_wait();
    }
}

template <int D> static void launch_prepare(hh_backend *be, const gdn_bwd *x) {
    hh_cuda_launch(be, "gdn_bwd", prepare<D>, dim3((unsigned)(x->last - x->first), (unsigned)x->heads),
                   dim3(HH_GDN_THREADS), sizeof(prepare_shared<D>), *x);
}

void gdn_bwd_prepare(hh_backend *be, const gdn_bwd *x) {
    if (x->D == 64)
        launch_prepare<64>(be, x);
    else
        launch_prepare<128>(be, x);
}
