/* All gradients of a chunk of Gated DeltaNet on tensor cores, from its tokens, S0 and dS1; see gdn_bwd.cuh. Equations:
 * B5-B11 of ops/gdn.h.
 *
 * A block has one chunk of one head, eight warps: warp (w, c) owns rows [16 w, 16 w + 16) of every result, and of its
 * columns those whose block of 32 (in [64,D]) or of 16 (in [64,64]) is c modulo 2. What other warps need goes through
 * tiles in shared memory; there are few of them, so that two blocks fit on a multiprocessor, and they change hands:
 *
 *     V_tile   Q, then V^, then dV^, then squares: X = dA0, A0^T X, beta dN
 *     R_tile   R, then dR
 *     O_tile   dO, then Q
 *     PD       P, then D'
 *     S        64 columns of S0, 64 of dS1, 64 rows of S0
 */
#include "ops/cuda/gdn_bwd.cuh"

#define THREADS 256
#define SQUARE  HH_GDN_STRIDE(GDN_N)

template <int D> struct finish_shared {
    hh_bf16 K[GDN_N * HH_GDN_STRIDE(D)], O_tile[GDN_N * HH_GDN_STRIDE(D)], R_tile[GDN_N * HH_GDN_STRIDE(D)],
        V_tile[GDN_N * HH_GDN_STRIDE(D)];
    hh_bf16 S[D * SQUARE], A0[GDN_N * SQUARE], PD[GDN_N * SQUARE];
    float G[GDN_N], beta[GDN_N], into[GDN_N], out[GDN_N]; /* e^G, e^{G_n - G} */
    float start[2][GDN_N], end[2][GDN_N];                 /* what a token adds to dg before it, and behind it */
    float dbeta_row[2][GDN_N], dbeta_column[4][GDN_N];
    float Y_row[4][GDN_N], Y_column[4][GDN_N], Y_inside[GDN_N]; /* sums of 16 x 16 blocks' rows and columns */
    float along[THREADS / 32];                                  /* parts of <S0, dS1> */
};

/* Where this thread stands: warp (w, c), and the first row of w. */
typedef struct place {
    int w, c, r;
} place;

static __device__ __forceinline__ place here() {
    place p;
    p.w = threadIdx.x / 32 & 3;
    p.c = threadIdx.x / 128;
    p.r = 16 * p.w;
    return p;
}

/* First column, behind 32 c, of a warp's block of 16 in [64,D]. */
static __device__ __forceinline__ constexpr int block_column(int block) {
    return 64 * (block / 2) + 16 * (block % 2);
}

template <int N> static __device__ __forceinline__ void clear(float acc[N][2][4]) {
#pragma unroll
    for (int i = 0; i < N * 8; i++) ((float *)acc)[i] = 0;
}

static __device__ __forceinline__ void load_fragment(uint32_t a[4], const hh_bf16 *A, int stride, int k,
                                                     bool transposed) {
    if (transposed)
        hh_load_a_transposed(a, A + k * stride, stride);
    else
        hh_load_a(a, A + k, stride);
}

/* acc += A B over k of [from, to): 16 rows, N blocks of 16 columns. A lies row by row, or transposed (A_T); so does B
 * (B_T). A and B are where k = 0 lies for the first row and the first column. */
template <bool A_T, bool B_T, int N>
static __device__ __forceinline__ void multiply(float acc[N][2][4], const hh_bf16 *A, int a_stride, const hh_bf16 *B,
                                                int b_stride, int from, int to) {
#pragma unroll 4
    for (int k = from; k < to; k += 16) {
        uint32_t a[4], b[4];
        load_fragment(a, A, a_stride, k, A_T);
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (B_T)
                hh_load_b_transposed(b, B + block_column(n) * b_stride + k, b_stride);
            else
                hh_load_b(b, B + k * b_stride + block_column(n), b_stride);
            hh_mma_pair(acc[n], a, b);
        }
    }
}

/* acc[e] = rows of w of X Y^T, columns of block 2 e + c, where that is not above the diagonal, else zeros. */
template <int D>
static __device__ __forceinline__ void lower_product(float acc[2][2][4], const hh_bf16 *X, const hh_bf16 *Y, place p) {
    clear<2>(acc);
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (2 * e + p.c <= p.w)
            multiply<false, true, 1>(acc + e, X + p.r * HH_GDN_STRIDE(D), HH_GDN_STRIDE(D),
                                     Y + 16 * (2 * e + p.c) * HH_GDN_STRIDE(D), HH_GDN_STRIDE(D), 0, D);
}

/* Row and column of element x (0..15) of a warp's part of a square: acc[x / 8][x / 4 % 2][x % 4]. */
static __device__ __forceinline__ int square_row(place p, int x) {
    return hh_gdn_row(p.w, x & 3);
}
static __device__ __forceinline__ int square_column(place p, int x) {
    return hh_gdn_column(x / 8 * 2 + p.c, x / 4 % 2, x & 3);
}

/* A warp's part of a lower square to a tile. */
static __device__ __forceinline__ void store_square(hh_bf16 *tile, const float acc[2][2][4], place p) {
#pragma unroll
    for (int x = 0; x < 16; x += 2) {
        if (x / 8 * 2 + p.c > p.w) break;
        const float *c = (const float *)acc + x;
        *(uint32_t *)(tile + square_row(p, x) * SQUARE + square_column(p, x)) = hh_pack_bf16(c[0], c[1]);
    }
}

/* Row and column of the pair x of N blocks of [64,D]: acc[x / 4][x / 2 % 2][x % 2 * 2]. */
static __device__ __forceinline__ int wide_row(place p, int x) {
    return hh_gdn_row(p.w, x % 2 * 2);
}
static __device__ __forceinline__ int wide_column(place p, int x) {
    return 32 * p.c + block_column(x / 4) + hh_gdn_column(0, x / 2 % 2, 0);
}
template <int N> static __device__ __forceinline__ float *wide_pair(float acc[N][2][4], int x) {
    return acc[x / 4][x / 2 % 2] + x % 2 * 2;
}

/* N blocks of [64,D] to a tile, or to rows of a tensor, of which there are n. `tile` and `rows` are where column 0 of
 * the first block's 64 lies. */
template <int D, int N> static __device__ __forceinline__ void store_tile(hh_bf16 *tile, float acc[N][2][4], place p) {
#pragma unroll
    for (int x = 0; x < N * 4; x++) {
        const float *c = wide_pair<N>(acc, x);
        *(uint32_t *)(tile + wide_row(p, x) * HH_GDN_STRIDE(D) + wide_column(p, x)) = hh_pack_bf16(c[0], c[1]);
    }
}
template <int N>
static __device__ __forceinline__ void store_rows(hh_bf16 *rows, int64_t stride, float acc[N][2][4], int n, place p) {
#pragma unroll
    for (int x = 0; x < N * 4; x++) {
        const float *c = wide_pair<N>(acc, x);
        const int i = wide_row(p, x);
        if (i < n) *(uint32_t *)(rows + i * stride + wide_column(p, x)) = hh_pack_bf16(c[0], c[1]);
    }
}

/* Element (row, column) of dS1 in the scratch; 8 columns of a row lie together. */
template <int D> static __device__ __forceinline__ const hh_bf16 *dS_at(const hh_bf16 *dS1, int row, int column) {
    constexpr int STRIDE = HH_GDN_STRIDE(GDN_BWD_COLUMNS);
    return dS1 + (column / GDN_BWD_COLUMNS * D + row) * STRIDE + column % GDN_BWD_COLUMNS;
}

/* 64 columns of S0 or dS1, or 64 rows of S0, to S. */
template <int D> static __device__ __forceinline__ void copy_dS_columns(hh_bf16 *S, const hh_bf16 *dS1, int first) {
    for (int i = threadIdx.x; i < D * 8; i += THREADS)
        hh_copy_async(S + i / 8 * SQUARE + i % 8 * 8, dS_at<D>(dS1, i / 8, first + i % 8 * 8), true);
    hh_copy_commit();
}
template <int D> static __device__ __forceinline__ void copy_columns(hh_bf16 *S, const hh_bf16 *state, int first) {
    for (int i = threadIdx.x; i < D * 8; i += THREADS)
        hh_copy_async(S + i / 8 * SQUARE + i % 8 * 8, state + i / 8 * D + first + i % 8 * 8, true);
    hh_copy_commit();
}
template <int D> static __device__ __forceinline__ void copy_rows(hh_bf16 *S, const hh_bf16 *state, int first) {
    constexpr int PIECES = D / 8;
    for (int i = threadIdx.x; i < GDN_N * PIECES; i += THREADS) {
        const int row = i / PIECES, at = i % PIECES * 8;
        hh_copy_async(S + row * HH_GDN_STRIDE(D) + at, state + (first + row) * D + at, true);
    }
    hh_copy_commit();
}
/* Waits for all copies, of all threads. */
static __device__ __forceinline__ void arrive() {
    hh_copy_wait<0>();
    __syncthreads();
}

/* A fragment of A0 at rows from r and columns from k becomes one of Bm (F6). */
static __device__ __forceinline__ void gate_fragment(uint32_t a[4], const float *G, const float *beta, int r, int k) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int i = r + (threadIdx.x & 31) / 4 + 8 * (e & 1), j = k + 2 * (threadIdx.x & 3) + 8 * (e >> 1);
        a[e] = hh_pack_bf16(i >= j ? hh_low_bf16(a[e]) * hh_gdn_decay(G, i, j) * beta[j] : 0,
                            i >= j + 1 ? hh_high_bf16(a[e]) * hh_gdn_decay(G, i, j + 1) * beta[j + 1] : 0);
    }
}
/* The same of A0^T and Bm^T. */
static __device__ __forceinline__ void gate_fragment_transposed(uint32_t a[4], const float *G, const float *beta, int r,
                                                                int k) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int j = r + (threadIdx.x & 31) / 4 + 8 * (e & 1), i = k + 2 * (threadIdx.x & 3) + 8 * (e >> 1);
        a[e] = hh_pack_bf16(i >= j ? hh_low_bf16(a[e]) * hh_gdn_decay(G, i, j) * beta[j] : 0,
                            i + 1 >= j ? hh_high_bf16(a[e]) * hh_gdn_decay(G, i + 1, j) * beta[j] : 0);
    }
}

/* acc = Bm B, or Bm^T B, for a tile B. */
template <int D, bool TRANSPOSED>
static __device__ __forceinline__ void multiply_Bm(float acc[D / 32][2][4], const finish_shared<D> &s, const hh_bf16 *B,
                                                   place p) {
    clear<D / 32>(acc);
    for (int k = TRANSPOSED ? p.r : 0; k < (TRANSPOSED ? GDN_N : p.r + 16); k += 16) {
        uint32_t a[4], b[4];
        if (TRANSPOSED) {
            hh_load_a_transposed(a, s.A0 + k * SQUARE + p.r, SQUARE);
            gate_fragment_transposed(a, s.G, s.beta, p.r, k);
        } else {
            hh_load_a(a, s.A0 + p.r * SQUARE + k, SQUARE);
            gate_fragment(a, s.G, s.beta, p.r, k);
        }
#pragma unroll
        for (int n = 0; n < D / 32; n++) {
            hh_load_b(b, B + k * HH_GDN_STRIDE(D) + 32 * p.c + block_column(n), HH_GDN_STRIDE(D));
            hh_mma_pair(acc[n], a, b);
        }
    }
}

/* P in the registers of its owners and in PD. */
template <int D> static __device__ __forceinline__ void make_P(float P[2][2][4], finish_shared<D> &s, place p) {
    lower_product<D>(P, s.V_tile, s.K, p);
#pragma unroll
    for (int x = 0; x < 16; x++) {
        const int i = square_row(p, x), j = square_column(p, x);
        float *c = (float *)P + x;
        *c = i >= j ? *c * hh_gdn_decay(s.G, i, j) : 0;
    }
    store_square(s.PD, P, p);
}

/* R to its tile, and <S0, dS1>. */
template <int D>
static __device__ __forceinline__ void make_R(finish_shared<D> &s, const hh_bf16 *v, int64_t stride, int n,
                                              const hh_bf16 *S0, const hh_bf16 *dS1, place p) {
    float along = 0;
#pragma unroll 1
    for (int half = 0; half < D; half += 64) {
        float acc[2][2][4];
        clear<2>(acc);
        if (half) {
            copy_columns<D>(s.S, S0, half);
            arrive();
        }
        uint32_t value[8];
#pragma unroll
        for (int x = 0; x < 8; x++) {
            const int i = wide_row(p, x);
            value[x] = i < n ? *(const uint32_t *)(v + i * stride + half + wide_column(p, x)) : 0;
        }
        for (int e = threadIdx.x; e < D * 8; e += THREADS) {
            const uint4 a = *(const uint4 *)(s.S + e / 8 * SQUARE + e % 8 * 8);
            const uint4 b = *(const uint4 *)dS_at<D>(dS1, e / 8, half + e % 8 * 8);
            along += hh_low_bf16(a.x) * hh_low_bf16(b.x) + hh_high_bf16(a.x) * hh_high_bf16(b.x) +
                     hh_low_bf16(a.y) * hh_low_bf16(b.y) + hh_high_bf16(a.y) * hh_high_bf16(b.y) +
                     hh_low_bf16(a.z) * hh_low_bf16(b.z) + hh_high_bf16(a.z) * hh_high_bf16(b.z) +
                     hh_low_bf16(a.w) * hh_low_bf16(b.w) + hh_high_bf16(a.w) * hh_high_bf16(b.w);
        }
        multiply<false, false, 2>(acc, s.K + p.r * HH_GDN_STRIDE(D), HH_GDN_STRIDE(D), s.S + 32 * p.c, SQUARE, 0, D);
#pragma unroll
        for (int x = 0; x < 8; x++) {
            float *c = wide_pair<2>(acc, x);
            const float into = s.into[wide_row(p, x)];
            c[0] = hh_low_bf16(value[x]) - into * c[0];
            c[1] = hh_high_bf16(value[x]) - into * c[1];
        }
        store_tile<D, 2>(s.R_tile + half, acc, p);
        __syncthreads();
    }
    along = hh_warp_sum(along);
    if (threadIdx.x % 32 == 0) s.along[threadIdx.x / 32] = along;
}

/* D' to PD, and Y's part of it in the place of P. */
template <int D> static __device__ __forceinline__ void make_Dp(float PY[2][2][4], finish_shared<D> &s, place p) {
    float acc[2][2][4];
    lower_product<D>(acc, s.O_tile, s.V_tile, p);
#pragma unroll
    for (int x = 0; x < 16; x++) {
        const int i = square_row(p, x), j = square_column(p, x);
        float *c = (float *)acc + x, *y = (float *)PY + x;
        *y = i > j ? *c * *y : 0;
        *c = i >= j ? *c * hh_gdn_decay(s.G, i, j) : 0;
    }
    store_square(s.PD, acc, p);
}

/* dV^ in the place of V^ (U = P^T dO), and dK = e^{G_n - G} (V^ dS1^T), whose products with k go into `end`. The first
 * 64 columns of dS1 are on their way; the first rows of S0 are when it ends. */
template <int D>
static __device__ __forceinline__ void make_dVh(float dK[D / 32][2][4], const float U[D / 32][2][4],
                                                finish_shared<D> &s, const hh_bf16 *S0, const hh_bf16 *dS1, place p) {
    constexpr int STRIDE = HH_GDN_STRIDE(D);
    clear<D / 32>(dK);
#pragma unroll
    for (int half = 0; half < D / 64; half++) {
        float acc[2][2][4];
        clear<2>(acc);
        arrive();
        multiply<false, false, 2>(acc, s.K + p.r * STRIDE, STRIDE, s.S + 32 * p.c, SQUARE, 0, D);
        multiply<false, true, D / 32>(dK, s.V_tile + p.r * STRIDE + 64 * half, STRIDE, s.S + 32 * p.c * SQUARE, SQUARE,
                                      0, 64);
        __syncthreads();
#pragma unroll
        for (int e = 0; e < 16; e++) {
            float *c = (float *)acc + e;
            *c = ((const float *)U)[half * 16 + e] + s.out[hh_gdn_row(p.w, e & 3)] * *c;
        }
        store_tile<D, 2>(s.V_tile + 64 * half, acc, p);
        if (half + 1 < D / 64)
            copy_dS_columns<D>(s.S, dS1, 64 * (half + 1));
        else
            copy_rows<D>(s.S, S0, 0);
    }
    float dot[2] = {0, 0};
#pragma unroll
    for (int x = 0; x < D / 8; x++) {
        float *c = wide_pair<D / 32>(dK, x);
        const uint32_t k = *(const uint32_t *)(s.K + wide_row(p, x) * STRIDE + wide_column(p, x));
        const float out = s.out[wide_row(p, x)];
        c[0] *= out, c[1] *= out;
        dot[x % 2] += c[0] * hh_low_bf16(k) + c[1] * hh_high_bf16(k);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        dot[e] += __shfl_xor_sync(0xffffffffu, dot[e], 1);
        dot[e] += __shfl_xor_sync(0xffffffffu, dot[e], 2);
        if (threadIdx.x % 4 == 0) s.end[p.c][hh_gdn_row(p.w, 2 * e)] = dot[e];
    }
}

/* Sums over the rows, or the columns, of a block of 16 x 16. */
static __device__ __forceinline__ float sum_rows(float v) {
    for (int o = 4; o < 32; o *= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
static __device__ __forceinline__ float sum_columns(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/* What a block of Y on the diagonal adds to dg (B11): for every m of its columns, the sum of Y_ij with i >= m > j. */
static __device__ __forceinline__ void sum_inside(float *inside, const float Y[2][4]) {
    const int lane = threadIdx.x % 32;
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float *a = Y[0] + 2 * e, *b = Y[1] + 2 * e;
        float first = a[0] + a[1], second = b[0] + b[1];
        float before_first = 0, before_second = 0;
#pragma unroll
        for (int o = 1; o < 4; o++) { /* of the lanes of this row */
            const float f = __shfl_sync(0xffffffffu, first, (lane & ~3) + ((lane + o) & 3));
            const float g = __shfl_sync(0xffffffffu, second, (lane & ~3) + ((lane + o) & 3));
            if ((lane & 3) + o > 3) before_first += f, before_second += g;
        }
        before_second += sum_columns(first);
        const float run[4] = {before_first, before_first + a[0], before_second, before_second + b[0]};
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const int i = lane / 4 + 8 * e, m = hh_gdn_column(0, x >> 1, x & 1);
            if (i >= m) sum[x] += run[x];
        }
    }
#pragma unroll
    for (int x = 0; x < 4; x++) {
        const float total = sum_rows(sum[x]);
        if (lane < 4) inside[hh_gdn_column(0, x >> 1, x & 1)] = total;
    }
}

/* dB, and from it X = dA0 in registers, and the sums of Y and of dbeta's columns. */
template <int D>
static __device__ __forceinline__ void make_dB(float X[2][2][4], float Y[2][2][4], finish_shared<D> &s, place p) {
    lower_product<D>(X, s.V_tile, s.R_tile, p);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int block = 2 * e + p.c;
        if (block > p.w) break;
        float column[4] = {0, 0, 0, 0};
#pragma unroll
        for (int x = 0; x < 8; x++) {
            const int i = hh_gdn_row(p.w, x & 3), j = hh_gdn_column(block, x >> 2, x & 3);
            float *c = (float *)X[e] + x, *y = (float *)Y[e] + x;
            const float dBE = i >= j ? *c * hh_gdn_decay(s.G, i, j) : 0;
            const float of_A0 = dBE * __bfloat162float(s.A0[i * SQUARE + j]);
            *c = dBE * s.beta[j];
            if (i > j) *y += of_A0 * s.beta[j];
            column[(x >> 2) * 2 + (x & 1)] += of_A0;
        }
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const int j = hh_gdn_column(block, x >> 1, x & 1);
            const float total = sum_rows(column[x]);
            if (threadIdx.x % 32 < 4) s.dbeta_column[p.w][j] = total;
        }
        if (block == p.w) {
            sum_inside(s.Y_inside + 16 * block, Y[e]);
            continue;
        }
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const float total = sum_rows(Y[e][x >> 1][x & 1] + Y[e][x >> 1][2 + (x & 1)]);
            if (threadIdx.x % 32 < 4) s.Y_column[p.w][hh_gdn_column(block, x >> 1, x & 1)] = total;
        }
#pragma unroll
        for (int x = 0; x < 2; x++) {
            const float total =
                sum_columns(Y[e][0][2 * x] + Y[e][0][2 * x + 1] + (Y[e][1][2 * x] + Y[e][1][2 * x + 1]));
            if (threadIdx.x % 4 == 0) s.Y_row[block][hh_gdn_row(p.w, 2 * x)] = total;
        }
    }
}

/* beta dN in the place of X, and the sums of dbeta's rows. */
template <int D> static __device__ __forceinline__ void make_dN(finish_shared<D> &s, place p) {
    hh_bf16 *square = s.V_tile;
    float acc[2][2][4], KK[2][2][4];
    clear<2>(acc);
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (2 * e + p.c <= p.w)
            multiply<true, false, 1>(acc + e, s.A0 + p.r, SQUARE, square + 16 * (2 * e + p.c), SQUARE, p.r, GDN_N);
    __syncthreads();
    store_square(square, acc, p);
    __syncthreads();
    clear<2>(acc);
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (2 * e + p.c <= p.w)
            multiply<false, true, 1>(acc + e, square + p.r * SQUARE, SQUARE, s.A0 + 16 * (2 * e + p.c) * SQUARE, SQUARE,
                                     0, 16 * (2 * e + p.c) + 16);
    lower_product<D>(KK, s.K, s.K, p);
    float row[2] = {0, 0};
#pragma unroll
    for (int x = 0; x < 16; x++) {
        const int i = square_row(p, x), j = square_column(p, x);
        float *c = (float *)acc + x;
        *c = i > j ? -*c : 0;
        row[x >> 1 & 1] += *c * ((float *)KK)[x];
        *c *= s.beta[i];
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float total = sum_columns(row[e]);
        if (threadIdx.x % 4 == 0) s.dbeta_row[p.c][hh_gdn_row(p.w, 2 * e)] = total;
    }
    __syncthreads();
    store_square(square, acc, p);
}

/* dQ, and what S0 adds to dK and to dg. The first rows of S0 are on their way. */
template <int D>
static __device__ __forceinline__ void make_dQ(float dK[D / 32][2][4], finish_shared<D> &s, const gdn_bwd &x,
                                               gdn_bwd_chunk c, int64_t h, const hh_bf16 *S0, place p) {
    constexpr int STRIDE = HH_GDN_STRIDE(D);
    const hh_bf16 *q = gdn_row<hh_bf16>(x.q, c.t, h, D);
    float dot[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < D / 64; half++) {
        float of_O[2][2][4], of_R[2][2][4];
        uint32_t query[8];
        clear<2>(of_O);
        clear<2>(of_R);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const int i = wide_row(p, e);
            query[e] = i < c.n ? *(const uint32_t *)(q + i * x.q.stride + 64 * half + wide_column(p, e)) : 0;
        }
        arrive();
        multiply<false, true, 2>(of_O, s.O_tile + p.r * STRIDE, STRIDE, s.S + 32 * p.c * STRIDE, STRIDE, 0, D);
        multiply<false, true, 2>(of_R, s.R_tile + p.r * STRIDE, STRIDE, s.S + 32 * p.c * STRIDE, STRIDE, 0, D);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const int i = wide_row(p, e);
            const uint32_t k = *(const uint32_t *)(s.K + i * STRIDE + 64 * half + wide_column(p, e));
            const float into = s.into[i];
            float *o = wide_pair<2>(of_O, e), *r = wide_pair<2>(of_R, e), *d = wide_pair<2>(dK + 2 * half, e);
            o[0] *= into, o[1] *= into, r[0] *= into, r[1] *= into;
            dot[e % 2] += o[0] * hh_low_bf16(query[e]) + o[1] * hh_high_bf16(query[e]) - r[0] * hh_low_bf16(k) -
                          r[1] * hh_high_bf16(k);
            d[0] -= r[0], d[1] -= r[1];
        }
        multiply<false, false, 2>(of_O, s.PD + p.r * SQUARE, SQUARE, s.K + 64 * half + 32 * p.c, STRIDE, 0, p.r + 16);
        store_rows<2>(gdn_row<hh_bf16>(x.dq, c.t, h, D) + 64 * half, x.dq.stride, of_O, c.n, p);
        __syncthreads();
        if (half + 1 < D / 64) copy_rows<D>(s.S, S0, 64 * (half + 1));
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float total = sum_columns(dot[e]);
        if (threadIdx.x % 4 == 0) s.start[p.c][hh_gdn_row(p.w, 2 * e)] = total;
    }
}

/* dbeta and dg from the sums (B9, B11): warp b for the tokens of row block b, as running sums over all 64 tokens, two a
 * lane. Nothing is subtracted. */
template <int D>
static __device__ __forceinline__ void gate_grad(const finish_shared<D> &s, const gdn_bwd &x, gdn_bwd_chunk c,
                                                 int64_t h) {
    const int block = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (block > 3) return;
    float from[2], before[2]; /* what token i adds to dg of tokens up to i, and of those behind it */
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = 2 * lane + e;
        from[e] = s.start[0][i] + s.start[1][i];
        before[e] = s.end[0][i] + s.end[1][i];
        for (int j = 0; j < block && i >= 16 * block; j++) from[e] += s.Y_row[j][i];
        for (int j = block + 1; j < 4 && i / 16 == block; j++) before[e] += s.Y_column[j][i];
    }
    float after = from[0] + from[1], until = before[0] + before[1];
    for (int o = 1; o < 32; o *= 2) {
        const float a = __shfl_down_sync(0xffffffffu, after, o), u = __shfl_up_sync(0xffffffffu, until, o);
        if (lane + o < 32) after += a;
        if (lane >= o) until += u;
    }
    after = __shfl_down_sync(0xffffffffu, after, 1), until = __shfl_up_sync(0xffffffffu, until, 1);
    if (lane == 31) after = 0;
    if (lane == 0) until = 0;
    float along = 0;
    for (int i = 0; i < THREADS / 32; i++) along += s.along[i];
    along *= s.into[GDN_N - 1];
    const float dg[2] = {after + from[1] + from[0] + until, after + from[1] + (until + before[0])};
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int m = 2 * lane + e;
        if (m / 16 != block || m >= c.n) continue;
        float dbeta = s.dbeta_row[0][m] + s.dbeta_row[1][m];
        for (int w = block; w < 4; w++) dbeta += s.dbeta_column[w][m];
        *gdn_row<float>(x.dg, c.t + m, h, 1) = dg[e] + s.Y_inside[m] + along;
        *gdn_row<float>(x.dbeta, c.t + m, h, 1) = dbeta;
    }
}

/* Gates, and the copies that everything begins with. */
template <int D>
static __device__ __forceinline__ void begin(finish_shared<D> &s, const gdn_bwd &x, gdn_bwd_chunk c, int64_t h,
                                             const hh_bf16 *A0, const hh_bf16 *S0) {
    hh_gdn_copy_tile<D>(s.K, gdn_row<hh_bf16>(x.k, c.t, h, D), x.k.stride, c.n);
    hh_gdn_copy_tile<D>(s.V_tile, gdn_row<hh_bf16>(x.q, c.t, h, D), x.q.stride, c.n);
    hh_gdn_copy_tile<D>(s.O_tile, gdn_row<hh_bf16>(x.do_, c.t, h, D), x.do_.stride, c.n);
    for (int i = threadIdx.x; i < GDN_N * SQUARE / 8; i += THREADS) hh_copy_async(s.A0 + i * 8, A0 + i * 8, true);
    copy_columns<D>(s.S, S0, 0);
    hh_gdn_sum_gates(s.G, gdn_row<float>(x.g, c.t, h, 1), x.g.stride, c.n);
    for (int i = threadIdx.x; i < GDN_N; i += THREADS) s.beta[i] = i < c.n ? *gdn_row<float>(x.beta, c.t + i, h, 1) : 0;
    __syncthreads();
    for (int i = threadIdx.x; i < GDN_N; i += THREADS) {
        s.into[i] = exp2f(s.G[i]);
        s.out[i] = exp2f(s.G[GDN_N - 1] - s.G[i]);
    }
    arrive();
}

template <int D> static __global__ void __launch_bounds__(THREADS, 2) finish(gdn_bwd x) {
    extern __shared__ __align__(128) char shared[];
    finish_shared<D> &s = *(finish_shared<D> *)shared;
    constexpr int STRIDE = HH_GDN_STRIDE(D);
    const int64_t h = blockIdx.y, ci = x.first + blockIdx.x;
    const gdn_bwd_chunk c = x.chunk[ci];
    const char *scratch = gdn_bwd_scratch_of(x, ci, h);
    const hh_bf16 *S0 = gdn_row<hh_bf16>(x.saved, ci, h, D * D), *dS1 = (const hh_bf16 *)(scratch + gdn_bwd_at_dS(D));
    const place p = here();
    float PY[2][2][4], X[2][2][4], U[D / 32][2][4], wide[D / 32][2][4];
    begin<D>(s, x, c, h, (const hh_bf16 *)scratch, S0);
    make_P<D>(PY, s, p);
    __syncthreads();
    clear<D / 32>(U);
    multiply<true, false, D / 32>(U, s.PD + p.r, SQUARE, s.O_tile + 32 * p.c, STRIDE, p.r, GDN_N);
    make_R<D>(s, gdn_row<hh_bf16>(x.v, c.t, h, D), x.v.stride, c.n, S0, dS1, p);
    copy_dS_columns<D>(s.S, dS1, 0);
    multiply_Bm<D, false>(wide, s, s.R_tile, p); /* V^ */
    store_tile<D, D / 32>(s.V_tile, wide, p);
    __syncthreads();
    make_Dp<D>(PY, s, p);
    make_dVh<D>(wide, U, s, S0, dS1, p); /* wide: dK from here on */
    __syncthreads();
    make_dB<D>(X, PY, s, p);
    multiply_Bm<D, true>(U, s, s.V_tile, p); /* dR */
    store_rows<D / 32>(gdn_row<hh_bf16>(x.dv, c.t, h, D), x.dv.stride, U, c.n, p);
    __syncthreads();
    store_tile<D, D / 32>(s.R_tile, U, p);
    store_square(s.V_tile, X, p);
    __syncthreads();
    make_dN<D>(s, p);
    make_dQ<D>(wide, s, x, c, h, S0, p);
    hh_gdn_copy_tile<D>(s.O_tile, gdn_row<hh_bf16>(x.q, c.t, h, D), x.q.stride, c.n);
    hh_copy_commit();
    multiply<false, false, D / 32>(wide, s.V_tile + p.r * SQUARE, SQUARE, s.K + 32 * p.c, STRIDE, 0, p.r + 16);
    multiply<true, false, D / 32>(wide, s.V_tile + p.r, SQUARE, s.K + 32 * p.c, STRIDE, p.r, GDN_N);
    arrive();
    multiply<true, false, D / 32>(wide, s.PD + p.r, SQUARE, s.O_tile + 32 * p.c, STRIDE, p.r, GDN_N);
    store_rows<D / 32>(gdn_row<hh_bf16>(x.dk, c.t, h, D), x.dk.stride, wide, c.n, p);
    gate_grad<D>(s, x, c, h);
}

template <int D> static void launch_finish(hh_backend *be, const gdn_bwd *x) {
    hh_cuda_launch(be, "gdn_bwd", finish<D>, dim3((unsigned)(x->last - x->first), (unsigned)x->heads), dim3(THREADS),
                   sizeof(finish_shared<D>), *x);
}

void gdn_bwd_finish(hh_backend *be, const gdn_bwd *x) {
    if (x->D == 64)
        launch_finish<64>(be, x);
    else
        launch_finish<128>(be, x);
}
