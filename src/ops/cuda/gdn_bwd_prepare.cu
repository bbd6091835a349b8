/* What a chunk of Gated DeltaNet does to dS, from its tokens alone, on tensor cores; see gdn_bwd.cuh. Two kernels: the
 * inverse A0, whose substitutions want many small blocks, and the products. */
#include "ops/cuda/cluster.cuh"
#include "ops/cuda/gdn_bwd_tile.cuh"

#define COLUMNS GDN_BWD_COLUMNS

/* -- A0 -- */

template <int D> struct invert_shared {
    hh_bf16 K[GDN_N * HH_GDN_STRIDE(D)];
    float A0[GDN_N * HH_GDN_SQUARE], work[GDN_N / 2 * HH_GDN_SQUARE];
    float beta[GDN_N];
};

/* A0 to its place in the scratch, and A0 beta to where Q'^T dO will be. */
template <int D> static __global__ void __launch_bounds__(HH_GDN_THREADS) invert(gdn_bwd x) {
    extern __shared__ __align__(128) char shared[];
    invert_shared<D> &s = *(invert_shared<D> *)shared;
    const int64_t h = blockIdx.y, ci = x.first + blockIdx.x;
    const gdn_bwd_chunk c = x.chunk[ci];
    const int w = threadIdx.x / 32;
    hh_gdn_copy_tile<D>(s.K, gdn_row<hh_bf16>(x.k, c.t, h, D), x.k.stride, c.n);
    hh_copy_commit();
    for (int i = threadIdx.x; i < GDN_N; i += HH_GDN_THREADS)
        s.beta[i] = i < c.n ? *gdn_row<float>(x.beta, c.t + i, h, 1) : 0;
    hh_copy_wait<0>();
    __syncthreads();
    float acc[4][2][4];
    hh_gdn_lower_product<D>(acc, s.K, s.K, w);
    hh_gdn_store_N(s.A0, acc, s.beta, w);
    __syncthreads();
    hh_gdn_invert(s.A0, s.work);
    char *scratch = gdn_bwd_scratch_of(x, ci, h);
    hh_bf16 *A0 = (hh_bf16 *)scratch, *A0_beta = (hh_bf16 *)(scratch + gdn_bwd_at_dS(D));
    for (int e = threadIdx.x; e < GDN_N * GDN_N / 2; e += HH_GDN_THREADS) {
        const int i = e / 32, j = e % 32 * 2;
        const float low = s.A0[i * HH_GDN_SQUARE + j], high = s.A0[i * HH_GDN_SQUARE + j + 1];
        *(uint32_t *)(A0 + i * SQUARE + j) = hh_pack_bf16(low, high);
        *(uint32_t *)(A0_beta + i * SQUARE + j) = hh_pack_bf16(low * s.beta[j], high * s.beta[j + 1]);
    }
}

/* -- the factors -- */

/* What goes out takes the place of what has been read. */
template <int D> struct factor_shared {
    hh_bf16 Q[GDN_N * HH_GDN_STRIDE(D)], dO[GDN_N * HH_GDN_STRIDE(D)];
    union {
        struct {
            hh_bf16 K[GDN_N * HH_GDN_STRIDE(D)], Z[GDN_N * HH_GDN_STRIDE(D)];
        };
        hh_bf16 QO[D / COLUMNS * D * HH_GDN_STRIDE(COLUMNS)]; /* Q'^T dO */
    };
    union {
        struct {
            hh_bf16 A0_beta[GDN_N * SQUARE], QK[GDN_N * SQUARE];
        };
        struct {
            hh_bf16 ZK[D * HH_GDN_STRIDE(D)]; /* Z^T K */
            float last[4];                    /* e^{G_n} */
        };
    };
    float G[GDN_N];
};

/* out [D,D] = X^T Y for tiles [64,D]; a warp makes 16 rows, of all columns or of half of them. SLICE columns of `out` lie
 * together, in rows of HH_GDN_STRIDE(SLICE). All copies out of shared memory have been waited for by thread 0 when `out`
 * is written. */
template <int D, int SLICE>
static __device__ __forceinline__ void make_outer(hh_bf16 *out, const hh_bf16 *X, const hh_bf16 *Y, place p) {
    constexpr int STRIDE = HH_GDN_STRIDE(D), ROWS = D / 16, N = D / 16 * ROWS / 8;
    const int warp = p.w + 4 * p.c, row = 16 * (warp % ROWS), column = 16 * N * (warp / ROWS);
    const uint32_t A = hh_shared_address(X) + p.columns_D + 2 * row, B = hh_shared_address(Y) + p.rows_D + 2 * column;
    float acc[N][2][4];
    clear<N>(acc);
#pragma unroll
    for (int k = 0; k < GDN_N; k += 16) {
        uint32_t a[4], b[4];
        hh_ldmatrix_trans_at(a, A + 2 * k * STRIDE);
#pragma unroll
        for (int n = 0; n < N; n++) {
            hh_ldmatrix_trans_at(b, B + 2 * k * STRIDE + 32 * n);
            hh_mma_pair(acc[n], a, b);
        }
    }
    if (threadIdx.x == 0) hh_bulk_store_wait<0>();
    __syncthreads();
#pragma unroll
    for (int x = 0; x < N * 4; x++) {
        const int i = row + hh_gdn_row(0, x % 2 * 2), j = column + hh_gdn_column(x / 4, x / 2 % 2, 0);
        const float *c = acc[x / 4][x / 2 % 2] + x % 2 * 2;
        *(uint32_t *)(out + j / SLICE * (D * HH_GDN_STRIDE(SLICE)) + i * HH_GDN_STRIDE(SLICE) + j % SLICE) =
            hh_pack_bf16(c[0], c[1]);
    }
    hh_bulk_publish();
    __syncthreads();
}

/* lower(Q K^T) and Z to their tiles, then Q' in the place of Q. */
template <int D> static __device__ __forceinline__ void make_Z_and_Q(factor_shared<D> &s, place p) {
    constexpr int STRIDE = HH_GDN_STRIDE(D);
    float square[2][2][4], wide[D / 32][2][4];
    square_product<D>(square, s.Q, s.K, p);
#pragma unroll
    for (int x = 0; x < 16; x++)
        if (square_row(p, x) < square_column(p, x)) ((float *)square)[x] = 0;
    store_square(s.QK, square, p);
    clear<D / 32>(wide);
    multiply_between<false, SQUARE, false, STRIDE, false, D / 32>(wide, square_a(s.A0_beta, p), tile_b<D>(s.K, p), 0,
                                                                  p.r + 16);
    store_tile<D, D / 32>(s.Z, wide, p);
    __syncthreads();
    clear<D / 32>(wide);
    multiply_between<false, SQUARE, false, STRIDE, false, D / 32>(wide, square_a(s.QK, p), tile_b<D>(s.Z, p), 0,
                                                                  p.r + 16);
#pragma unroll
    for (int x = 0; x < D / 8; x++) {
        const int i = wide_row(p, x);
        const float *c = wide_pair<D / 32>(wide, x), into = exp2f(s.G[i]);
        uint32_t *q = (uint32_t *)(s.Q + i * STRIDE + wide_column(p, x));
        *q = hh_pack_bf16(into * (hh_low_bf16(*q) - c[0]), into * (hh_high_bf16(*q) - c[1]));
    }
}

template <int D> static __global__ void __launch_bounds__(TILE_THREADS, 2) factor(gdn_bwd x) {
    extern __shared__ __align__(128) char shared[];
    factor_shared<D> &s = *(factor_shared<D> *)shared;
    const int64_t h = blockIdx.y, ci = x.first + blockIdx.x;
    const gdn_bwd_chunk c = x.chunk[ci];
    const place p = here<D>();
    char *scratch = gdn_bwd_scratch_of(x, ci, h);
    const hh_bf16 *A0_beta = (const hh_bf16 *)(scratch + gdn_bwd_at_dS(D));
    copy_tile<GDN_N, D>(s.K, gdn_row<hh_bf16>(x.k, c.t, h, D), x.k.stride, c.n);
    copy_tile<GDN_N, D>(s.Q, gdn_row<hh_bf16>(x.q, c.t, h, D), x.q.stride, c.n);
    copy_tile<GDN_N, GDN_N>(s.A0_beta, A0_beta, SQUARE, GDN_N);
    hh_copy_commit();
    copy_tile<GDN_N, D>(s.dO, gdn_row<hh_bf16>(x.do_, c.t, h, D), x.do_.stride, c.n);
    hh_copy_commit();
    hh_gdn_sum_gates(s.G, gdn_row<float>(x.g, c.t, h, 1), x.g.stride, c.n);
    hh_copy_wait<1>();
    __syncthreads();
    make_Z_and_Q<D>(s, p);
    hh_copy_wait<0>(); /* dO: there for all behind the next barriers */
    make_outer<D, D>(s.ZK, s.Z, s.K, p);
    if (threadIdx.x == 0) {
        s.last[0] = exp2f(s.G[GDN_N - 1]);
        hh_bulk_publish();
        hh_bulk_store(scratch + gdn_bwd_at_ZK(), s.ZK, sizeof s.ZK + sizeof s.last);
    }
    make_outer<D, COLUMNS>(s.QO, s.Q, s.dO, p);
    if (threadIdx.x == 0) {
        hh_bulk_store(scratch + gdn_bwd_at_dS(D), s.QO, sizeof s.QO);
        hh_bulk_store_wait<0>();
    }
}

template <int D> static void launch(hh_backend *be, const gdn_bwd *x) {
    const dim3 grid((unsigned)(x->last - x->first), (unsigned)x->heads);
    hh_cuda_launch(be, "gdn_bwd", invert<D>, grid, dim3(HH_GDN_THREADS), sizeof(invert_shared<D>), *x);
    hh_cuda_launch(be, "gdn_bwd", factor<D>, grid, dim3(TILE_THREADS), sizeof(factor_shared<D>), *x);
}

void gdn_bwd_prepare(hh_backend *be, const gdn_bwd *x) {
    if (x->D == 64)
        launch<64>(be, x);
    else
        launch<128>(be, x);
}
