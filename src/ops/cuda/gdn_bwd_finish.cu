/* All gradients of a chunk of Gated DeltaNet on tensor cores, from its tokens, S0 and dS1; see gdn_bwd.cuh. Equations:
 * B5-B11 of ops/gdn.h.
 *
 * What other warps need goes through tiles in shared memory; there are few of them, so that two blocks fit on a multiprocessor, and they change hands:
 *
 *     V_tile   Q, then V^, then dV^, then squares: X = dA0, A0^T X, beta dN
 *     R_tile   V, then R, then dR, then dK on its way out
 *     O_tile   dO, then Q
 *     PD       P, then D'
 *     S        64 columns of S0, 64 of dS1, 64 rows of S0
 */
#include "ops/cuda/gdn_bwd_tile.cuh"

template <int D> struct finish_shared {
    hh_bf16 K[GDN_N * HH_GDN_STRIDE(D)], O_tile[GDN_N * HH_GDN_STRIDE(D)], R_tile[GDN_N * HH_GDN_STRIDE(D)],
        V_tile[GDN_N * HH_GDN_STRIDE(D)];
    hh_bf16 S[D * SQUARE], A0[GDN_N * SQUARE], PD[GDN_N * SQUARE];
    float G[GDN_N], beta[GDN_N], into[GDN_N], out[GDN_N]; /* e^G, e^{G_n - G} */
    float start[2][GDN_N], end[2][GDN_N];                 /* what a token adds to dg before it, and behind it */
    float dbeta_row[2][GDN_N], dbeta_column[4][GDN_N];
    float Y_row[4][GDN_N], Y_column[4][GDN_N], Y_inside[GDN_N]; /* sums of 16 x 16 blocks' rows and columns */
    float along[TILE_THREADS / 32];                             /* parts of <S0, dS1> */
    float row_decay[4][GDN_N], column_decay[GDN_N]; /* E_ij of i behind j's block b: row_decay[b][i] column_decay[j] */
};

/* E_ij, without a branch. */
static __device__ __forceinline__ float lower_decay(const float *G, int i, int j) {
    const float E = exp2f(fminf(G[i] - G[j], 0));
    return i >= j ? E : 0;
}

/* acc[e] = acc[e] E for a warp's part of a square; zeros above the diagonal. */
template <int D>
static __device__ __forceinline__ void gate_square(float acc[2][2][4], const finish_shared<D> &s, place p) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int block = 2 * e + p.c, i = hh_gdn_row(p.w, 0), j = hh_gdn_column(block, 0, 0);
        float(*c)[4] = acc[e];
        if (block < p.w) {
            const float row[2] = {s.row_decay[block][i], s.row_decay[block][i + 8]};
#pragma unroll
            for (int x = 0; x < 8; x++)
                c[x >> 2][x & 3] *= row[x >> 1 & 1] * s.column_decay[j + (x >> 2) * 8 + (x & 1)];
        } else {
#pragma unroll
            for (int x = 0; x < 8; x++)
                c[x >> 2][x & 3] *= lower_decay(s.G, i + (x >> 1 & 1) * 8, j + (x >> 2) * 8 + (x & 1));
        }
    }
}

/* Element (row, column) of dS1 in the scratch; 8 columns of a row lie together. */
template <int D> static __device__ __forceinline__ const hh_bf16 *dS_at(const hh_bf16 *dS1, int row, int column) {
    constexpr int STRIDE = HH_GDN_STRIDE(GDN_BWD_COLUMNS);
    return dS1 + (column / GDN_BWD_COLUMNS * D + row) * STRIDE + column % GDN_BWD_COLUMNS;
}

/* 64 columns of S0 or dS1, or 64 rows of S0, to S. */
template <int D> static __device__ __forceinline__ void copy_columns(hh_bf16 *S, const hh_bf16 *S0, int first) {
    copy_tile<D, 64>(S, S0 + first, D, D);
    hh_copy_commit();
}
template <int D> static __device__ __forceinline__ void copy_dS_columns(hh_bf16 *S, const hh_bf16 *dS1, int first) {
    const int row = threadIdx.x / 8, column = threadIdx.x % 8 * 8;
    const hh_bf16 *from = dS_at<D>(dS1, row, first + column);
#pragma unroll
    for (int i = 0; i < D; i += TILE_THREADS / 8)
        hh_copy_async(S + (row + i) * SQUARE + column, from + i * HH_GDN_STRIDE(GDN_BWD_COLUMNS), true);
    hh_copy_commit();
}
template <int D> static __device__ __forceinline__ void copy_rows(hh_bf16 *S, const hh_bf16 *S0, int first) {
    copy_tile<GDN_N, D>(S, S0 + first * D, D, GDN_N);
    hh_copy_commit();
}
/* A fragment of A0, block (row, column), becomes one of Bm (F6), or of its transpose. */
template <int D, bool TRANSPOSED>
static __device__ __forceinline__ void gate_fragment(uint32_t a[4], const finish_shared<D> &s, int row, int column) {
    const int m = (threadIdx.x & 31) / 4, k = 2 * (threadIdx.x & 3);
    const int i = 16 * row + (TRANSPOSED ? k : m), j = 16 * column + (TRANSPOSED ? m : k);
    float value[8];
#pragma unroll
    for (int e = 0; e < 4; e++) value[2 * e] = hh_low_bf16(a[e]), value[2 * e + 1] = hh_high_bf16(a[e]);
#pragma unroll
    for (int x = 0; x < 8; x++) { /* of a[x / 2]: 8 more in m by bit 1, in k by bit 2, 1 more in k by bit 0 */
        const int dm = (x >> 1 & 1) * 8, dk = (x >> 2) * 8 + (x & 1);
        value[x] *= s.beta[j + (TRANSPOSED ? dm : dk)];
    }
    if (row > column) {
#pragma unroll
        for (int x = 0; x < 8; x++) {
            const int dm = (x >> 1 & 1) * 8, dk = (x >> 2) * 8 + (x & 1);
            value[x] *= s.row_decay[column][i + (TRANSPOSED ? dk : dm)] * s.column_decay[j + (TRANSPOSED ? dm : dk)];
        }
    } else {
#pragma unroll
        for (int x = 0; x < 8; x++) {
            const int dm = (x >> 1 & 1) * 8, dk = (x >> 2) * 8 + (x & 1);
            value[x] *= lower_decay(s.G, i + (TRANSPOSED ? dk : dm), j + (TRANSPOSED ? dm : dk));
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) a[e] = hh_pack_bf16(value[2 * e], value[2 * e + 1]);
}

/* acc = Bm B, or Bm^T B, for a tile B. */
template <int D, bool TRANSPOSED>
static __device__ __forceinline__ void multiply_Bm(float acc[D / 32][2][4], const finish_shared<D> &s, const hh_bf16 *B,
                                                   place p) {
    constexpr int STRIDE = HH_GDN_STRIDE(D);
    clear<D / 32>(acc);
#pragma unroll 1
    for (int k = TRANSPOSED ? p.w : 0; k < (TRANSPOSED ? 4 : p.w + 1); k++) {
        uint32_t a[4];
        if (TRANSPOSED)
            hh_ldmatrix_trans_at(a, square_a_T(s.A0, p) + 32 * k * SQUARE);
        else
            hh_ldmatrix_at(a, square_a(s.A0, p) + 32 * k);
        gate_fragment<D, TRANSPOSED>(a, s, TRANSPOSED ? k : p.w, TRANSPOSED ? p.w : k);
        multiply_step<false, STRIDE, false, D / 32>(acc, a, tile_b<D>(B, p) + 32 * k * STRIDE);
    }
}

/* P in the registers of its owners and in PD. */
template <int D> static __device__ __forceinline__ void make_P(float P[2][2][4], finish_shared<D> &s, place p) {
    square_product<D>(P, s.V_tile, s.K, p);
    gate_square<D>(P, s, p);
    store_square(s.PD, P, p);
}

/* R in the place of V, and <S0, dS1>. */
template <int D>
static __device__ __forceinline__ void make_R(finish_shared<D> &s, const hh_bf16 *S0, const hh_bf16 *dS1, place p) {
    constexpr int STRIDE = HH_GDN_STRIDE(D);
    float along = 0;
#pragma unroll 1
    for (int half = 0; half < D; half += 64) {
        float acc[2][2][4];
        clear<2>(acc);
        if (half) {
            copy_columns<D>(s.S, S0, half);
            arrive();
        }
        const int row = threadIdx.x / 8, piece = threadIdx.x % 8 * 8;
        const hh_bf16 *S = s.S + row * SQUARE + piece, *dS = dS_at<D>(dS1, row, half + piece);
#pragma unroll
        for (int i = 0; i < D; i += TILE_THREADS / 8) {
            const uint4 a = *(const uint4 *)(S + i * SQUARE);
            const uint4 b = *(const uint4 *)(dS + i * HH_GDN_STRIDE(GDN_BWD_COLUMNS));
            along += hh_low_bf16(a.x) * hh_low_bf16(b.x) + hh_high_bf16(a.x) * hh_high_bf16(b.x) +
                     hh_low_bf16(a.y) * hh_low_bf16(b.y) + hh_high_bf16(a.y) * hh_high_bf16(b.y) +
                     hh_low_bf16(a.z) * hh_low_bf16(b.z) + hh_high_bf16(a.z) * hh_high_bf16(b.z) +
                     hh_low_bf16(a.w) * hh_low_bf16(b.w) + hh_high_bf16(a.w) * hh_high_bf16(b.w);
        }
        multiply_all<D, HH_GDN_STRIDE(D), false, SQUARE, false, 2>(acc, tile_a<D>(s.K, p),
                                                                   hh_shared_address(s.S) + p.rows_N + 64 * p.c);
#pragma unroll
        for (int x = 0; x < 8; x++) {
            float *c = wide_pair<2>(acc, x);
            const uint32_t v = *(const uint32_t *)(s.R_tile + wide_row(p, x) * STRIDE + half + wide_column(p, x));
            const float into = s.into[wide_row(p, x)];
            c[0] = hh_low_bf16(v) - into * c[0];
            c[1] = hh_high_bf16(v) - into * c[1];
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
    square_product<D>(acc, s.O_tile, s.V_tile, p);
#pragma unroll
    for (int x = 0; x < 16; x++) {
        float *y = (float *)PY + x;
        *y = square_row(p, x) > square_column(p, x) ? ((float *)acc)[x] * *y : 0;
    }
    gate_square<D>(acc, s, p);
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
        multiply_all<D, STRIDE, false, SQUARE, false, 2>(acc, tile_a<D>(s.K, p),
                                                         hh_shared_address(s.S) + p.rows_N + 64 * p.c);
        multiply_all<64, STRIDE, true, SQUARE, false, D / 32>(dK, tile_a<D>(s.V_tile, p) + 128 * half,
                                                              hh_shared_address(s.S) + p.columns_N + 64 * p.c * SQUARE);
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

/* Eight sums over the rows of a block at once: lane l ends with the total of v[l / 4]. */
static __device__ __forceinline__ float sum_rows_of_eight(const float v[8]) {
    const int lane = threadIdx.x % 32;
    float half[4], quarter[2];
#pragma unroll
    for (int x = 0; x < 4; x++) {
        const float mine = lane & 16 ? v[x + 4] : v[x], other = lane & 16 ? v[x] : v[x + 4];
        half[x] = mine + __shfl_xor_sync(0xffffffffu, other, 16);
    }
#pragma unroll
    for (int x = 0; x < 2; x++) {
        const float mine = lane & 8 ? half[x + 2] : half[x], other = lane & 8 ? half[x] : half[x + 2];
        quarter[x] = mine + __shfl_xor_sync(0xffffffffu, other, 8);
    }
    const float mine = lane & 4 ? quarter[1] : quarter[0], other = lane & 4 ? quarter[0] : quarter[1];
    return mine + __shfl_xor_sync(0xffffffffu, other, 4);
}

/* dB, and from it X = dA0 in registers, and the sums of Y and of dbeta's columns. */
template <int D>
static __device__ __forceinline__ void make_dB(float X[2][2][4], float Y[2][2][4], finish_shared<D> &s, place p) {
    square_product<D>(X, s.V_tile, s.R_tile, p);
    gate_square<D>(X, s, p);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int block = 2 * e + p.c;
        if (block > p.w) break;
        float column[8] = {0, 0, 0, 0, 0, 0, 0, 0}; /* four of dbeta, four of Y */
#pragma unroll
        for (int x = 0; x < 8; x += 2) {
            const int i = hh_gdn_row(p.w, x & 3), j = hh_gdn_column(block, x >> 2, 0);
            const uint32_t A0 = *(const uint32_t *)(s.A0 + i * SQUARE + j);
            float *c = (float *)X[e] + x, *y = (float *)Y[e] + x;
            const float of_A0[2] = {c[0] * hh_low_bf16(A0), c[1] * hh_high_bf16(A0)};
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float beta = s.beta[j + k];
                c[k] *= beta;
                if (i > j + k) y[k] += of_A0[k] * beta;
                column[(x >> 2) * 2 + k] += of_A0[k];
                column[4 + (x >> 2) * 2 + k] += y[k];
            }
        }
        const float total = sum_rows_of_eight(column);
        const int which = threadIdx.x % 32 / 4, j = hh_gdn_column(block, (which >> 1) & 1, which & 1);
        if (which < 4)
            s.dbeta_column[p.w][j] = total;
        else
            s.Y_column[p.w][j] = total;
        if (block == p.w) {
            sum_inside(s.Y_inside + 16 * block, Y[e]);
            continue;
        }
#pragma unroll
        for (int x = 0; x < 2; x++) {
            const float row = sum_columns(Y[e][0][2 * x] + Y[e][0][2 * x + 1] + (Y[e][1][2 * x] + Y[e][1][2 * x + 1]));
            if (threadIdx.x % 4 == 0) s.Y_row[block][hh_gdn_row(p.w, 2 * x)] = row;
        }
    }
}

/* beta dN in the place of X, and the sums of dbeta's rows. */
template <int D> static __device__ __forceinline__ void make_dN(finish_shared<D> &s, place p) {
    hh_bf16 *square = s.V_tile;
    float acc[2][2][4], KK[2][2][4];
    clear<2>(acc);
    multiply_between<true, SQUARE, false, SQUARE, true, 2>(acc, square_a_T(s.A0, p),
                                                           hh_shared_address(square) + p.rows_N + 32 * p.c, p.r, GDN_N);
    __syncthreads();
    store_square(square, acc, p);
    __syncthreads();
    clear<2>(acc);
    multiply_between<false, SQUARE, true, SQUARE, true, 2>(
        acc, square_a(square, p), hh_shared_address(s.A0) + p.columns_N + 32 * p.c * SQUARE, 0, p.r + 16);
    square_product<D>(KK, s.K, s.K, p);
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
        const uint32_t S = hh_shared_address(s.S) + p.columns_D + 64 * p.c * STRIDE;
        multiply_all<D, STRIDE, true, STRIDE, false, 2>(of_O, tile_a<D>(s.O_tile, p), S);
        multiply_all<D, STRIDE, true, STRIDE, false, 2>(of_R, tile_a<D>(s.R_tile, p), S);
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
        multiply_between<false, SQUARE, false, STRIDE, false, 2>(of_O, square_a(s.PD, p),
                                                                 tile_b<D>(s.K, p) + 128 * half, 0, p.r + 16);
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
    for (int i = 0; i < TILE_THREADS / 32; i++) along += s.along[i];
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
    copy_tile<GDN_N, D>(s.K, gdn_row<hh_bf16>(x.k, c.t, h, D), x.k.stride, c.n);
    copy_tile<GDN_N, D>(s.V_tile, gdn_row<hh_bf16>(x.q, c.t, h, D), x.q.stride, c.n);
    copy_tile<GDN_N, D>(s.O_tile, gdn_row<hh_bf16>(x.do_, c.t, h, D), x.do_.stride, c.n);
    copy_tile<GDN_N, D>(s.R_tile, gdn_row<hh_bf16>(x.v, c.t, h, D), x.v.stride, c.n);
    copy_tile<GDN_N, GDN_N>(s.A0, A0, SQUARE, GDN_N);
    copy_columns<D>(s.S, S0, 0);
    hh_gdn_sum_gates(s.G, gdn_row<float>(x.g, c.t, h, 1), x.g.stride, c.n);
    for (int i = threadIdx.x; i < GDN_N; i += TILE_THREADS)
        s.beta[i] = i < c.n ? *gdn_row<float>(x.beta, c.t + i, h, 1) : 0;
    __syncthreads();
    const int i = threadIdx.x % GDN_N, b = threadIdx.x / GDN_N;
    if (i / 16 > b) s.row_decay[b][i] = hh_gdn_decay(s.G, i, 16 * b + 15);
    if (i / 16 == b) s.column_decay[i] = hh_gdn_decay(s.G, 16 * b + 15, i);
    if (b == 0) s.into[i] = exp2f(s.G[i]);
    if (b == 1) s.out[i] = hh_gdn_decay(s.G, GDN_N - 1, i);
    arrive();
}

template <int D> static __global__ void __launch_bounds__(TILE_THREADS, 2) finish(gdn_bwd x) {
    extern __shared__ __align__(128) char shared[];
    finish_shared<D> &s = *(finish_shared<D> *)shared;
    constexpr int STRIDE = HH_GDN_STRIDE(D);
    const int64_t h = blockIdx.y, ci = x.first + blockIdx.x;
    const gdn_bwd_chunk c = x.chunk[ci];
    const char *scratch = gdn_bwd_scratch_of(x, ci, h);
    const hh_bf16 *S0 = gdn_row<hh_bf16>(x.saved, ci, h, D * D), *dS1 = (const hh_bf16 *)(scratch + gdn_bwd_at_dS(D));
    const place p = here<D>();
    float PY[2][2][4], X[2][2][4], U[D / 32][2][4], wide[D / 32][2][4];
    begin<D>(s, x, c, h, (const hh_bf16 *)scratch, S0);
    make_P<D>(PY, s, p);
    __syncthreads();
    clear<D / 32>(U);
    multiply_between<true, SQUARE, false, STRIDE, false, D / 32>(U, square_a_T(s.PD, p), tile_b<D>(s.O_tile, p), p.r,
                                                                 GDN_N);
    make_R<D>(s, S0, dS1, p);
    copy_dS_columns<D>(s.S, dS1, 0);
    multiply_Bm<D, false>(wide, s, s.R_tile, p); /* V^ */
    store_tile<D, D / 32>(s.V_tile, wide, p);
    __syncthreads();
    make_Dp<D>(PY, s, p);
    make_dVh<D>(wide, U, s, S0, dS1, p); /* wide: dK from here on */
    __syncthreads();
    make_dB<D>(X, PY, s, p);
    multiply_Bm<D, true>(U, s, s.V_tile, p); /* dR */
    __syncthreads();
    store_tile<D, D / 32>(s.R_tile, U, p);
    store_square(s.V_tile, X, p);
    __syncthreads();
    copy_out<D>(gdn_row<hh_bf16>(x.dv, c.t, h, D), x.dv.stride, s.R_tile, c.n);
    make_dN<D>(s, p);
    make_dQ<D>(wide, s, x, c, h, S0, p);
    copy_tile<GDN_N, D>(s.O_tile, gdn_row<hh_bf16>(x.q, c.t, h, D), x.q.stride, c.n);
    hh_copy_commit();
    multiply_between<false, SQUARE, false, STRIDE, false, D / 32>(wide, square_a(s.V_tile, p), tile_b<D>(s.K, p), 0,
                                                                  p.r + 16);
    multiply_between<true, SQUARE, false, STRIDE, false, D / 32>(wide, square_a_T(s.V_tile, p), tile_b<D>(s.K, p), p.r,
                                                                 GDN_N);
    arrive();
    multiply_between<true, SQUARE, false, STRIDE, false, D / 32>(wide, square_a_T(s.PD, p), tile_b<D>(s.O_tile, p), p.r,
                                                                 GDN_N);
    store_tile<D, D / 32>(s.R_tile, wide, p);
    gate_grad<D>(s, x, c, h);
    __syncthreads();
    copy_out<D>(gdn_row<hh_bf16>(x.dk, c.t, h, D), x.dk.stride, s.R_tile, c.n);
}

template <int D> static void launch_finish(hh_backend *be, const gdn_bwd *x) {
    hh_cuda_launch(be, "gdn_bwd", finish<D>, dim3((unsigned)(x->last - x->first), (unsigned)x->heads),
                   dim3(TILE_THREADS), sizeof(finish_shared<D>), *x);
}

void gdn_bwd_finish(hh_backend *be, const gdn_bwd *x) {
    if (x->D == 64)
        launch_finish<64>(be, x);
    else
        launch_finish<128>(be, x);
}
