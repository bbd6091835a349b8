/* Products of tiles in shared memory as eight warps share them: warp (w, c) owns rows [16 w, 16 w + 16) of every result, and
 * of its columns those whose block of 32 (in [64,D]) or of 16 (in squares [64,64]) is c modulo 2. Tiles are bf16 in rows of
 * HH_GDN_STRIDE(their width). Addresses are 32-bit, and what is one for a warp is known to be, which saves a third of all
 * instructions. */
#ifndef HH_OPS_CUDA_GDN_BWD_TILE_CUH
#define HH_OPS_CUDA_GDN_BWD_TILE_CUH

#include "ops/cuda/gdn_bwd.cuh"

#define TILE_THREADS 256
#define SQUARE       HH_GDN_STRIDE(GDN_N)

/* Where this thread stands: warp (w, c), the first row of w, and this lane's place in 16 x 16 of a tile, in bytes: its
 * rows or its columns first (hh_lane_rows_first), in tiles [64,D] or squares. */
typedef struct place {
    int w, c, r;
    uint32_t rows_D, columns_D, rows_N, columns_N;
} place;

template <int D> static __device__ __forceinline__ place here() {
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); /* known to be one for the warp */
    place p;
    p.w = warp & 3;
    p.c = warp >> 2;
    p.r = 16 * p.w;
    p.rows_D = 2 * (uint32_t)hh_lane_rows_first(HH_GDN_STRIDE(D));
    p.columns_D = 2 * (uint32_t)hh_lane_columns_first(HH_GDN_STRIDE(D));
    p.rows_N = 2 * (uint32_t)hh_lane_rows_first(SQUARE);
    p.columns_N = 2 * (uint32_t)hh_lane_columns_first(SQUARE);
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

/* A step of 16 of acc += A B: N blocks of 16 columns, those of [64,D], or (IN_SQUARE) those of a square, 32 apart. B lies
 * row by row, or transposed (B_T), in rows of B_STRIDE elements; at: k, first column, this lane. */
template <bool B_T, int B_STRIDE, bool IN_SQUARE, int N>
static __device__ __forceinline__ void multiply_step(float acc[N][2][4], const uint32_t a[4], uint32_t at) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int column = IN_SQUARE ? 32 * n : block_column(n);
        uint32_t b[4];
        if (B_T)
            hh_ldmatrix_at(b, at + 2 * column * B_STRIDE);
        else
            hh_ldmatrix_trans_at(b, at + 2 * column);
        hh_mma_pair(acc[n], a, b);
    }
}

/* acc += A B over k of [from, to). A (A_T: transposed) and B are where k = 0 lies for the warp's first row and column and
 * this lane. */
template <bool A_T, int A_STRIDE, bool B_T, int B_STRIDE, bool IN_SQUARE, int N>
static __device__ __forceinline__ void multiply_between(float acc[N][2][4], uint32_t A, uint32_t B, int from, int to) {
#pragma unroll 1
    for (int k = from; k < to; k += 16) {
        uint32_t a[4];
        if (A_T)
            hh_ldmatrix_trans_at(a, A + 2 * k * A_STRIDE);
        else
            hh_ldmatrix_at(a, A + 2 * k);
        multiply_step<B_T, B_STRIDE, IN_SQUARE, N>(acc, a, B + (B_T ? 2 * k : 2 * k * B_STRIDE));
    }
}
/* The same over all k of [0, K), A row by row. */
template <int K, int A_STRIDE, bool B_T, int B_STRIDE, bool IN_SQUARE, int N>
static __device__ __forceinline__ void multiply_all(float acc[N][2][4], uint32_t A, uint32_t B) {
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        uint32_t a[4];
        hh_ldmatrix_at(a, A + 2 * k);
        multiply_step<B_T, B_STRIDE, IN_SQUARE, N>(acc, a, B + (B_T ? 2 * k : 2 * k * B_STRIDE));
    }
}

/* The warp's rows of a tile [64,D] as A; a tile's columns as B. */
template <int D> static __device__ __forceinline__ uint32_t tile_a(const hh_bf16 *tile, place p) {
    return hh_shared_address(tile) + p.rows_D + 2 * p.r * HH_GDN_STRIDE(D);
}
template <int D> static __device__ __forceinline__ uint32_t tile_b(const hh_bf16 *tile, place p) {
    return hh_shared_address(tile) + p.rows_D + 64 * p.c;
}
/* The warp's rows of a square, or of its transpose, as A. */
static __device__ __forceinline__ uint32_t square_a(const hh_bf16 *square, place p) {
    return hh_shared_address(square) + p.rows_N + 2 * p.r * SQUARE;
}
static __device__ __forceinline__ uint32_t square_a_T(const hh_bf16 *square, place p) {
    return hh_shared_address(square) + p.columns_N + 2 * p.r;
}

/* acc = rows of w of X Y^T, columns of blocks c and c + 2. What lies above the diagonal is for the caller to mask. */
template <int D>
static __device__ __forceinline__ void square_product(float acc[2][2][4], const hh_bf16 *X, const hh_bf16 *Y, place p) {
    constexpr int STRIDE = HH_GDN_STRIDE(D);
    clear<2>(acc);
    multiply_all<D, STRIDE, true, STRIDE, true, 2>(acc, tile_a<D>(X, p),
                                                   hh_shared_address(Y) + p.columns_D + 32 * p.c * STRIDE);
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

/* ROWS rows of WIDTH elements to a tile, piece by piece: thread t has piece t of a row, and every so many rows one. */
template <int ROWS, int WIDTH>
static __device__ __forceinline__ void copy_tile(hh_bf16 *tile, const hh_bf16 *rows, int64_t stride, int n) {
    constexpr int PIECES = WIDTH / 8, STEP = TILE_THREADS / PIECES;
    const int row = threadIdx.x / PIECES, column = threadIdx.x % PIECES * 8;
    const hh_bf16 *from = rows + row * stride + column;
    tile += row * HH_GDN_STRIDE(WIDTH) + column;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) {
        const bool valid = row + i < n;
        hh_copy_async(tile + i * HH_GDN_STRIDE(WIDTH), valid ? from : rows, valid);
        from += STEP * stride;
    }
}
/* The first n rows of a tile [64,D] to a tensor's. */
template <int D>
static __device__ __forceinline__ void copy_out(hh_bf16 *rows, int64_t stride, const hh_bf16 *tile, int n) {
    constexpr int PIECES = D / 8, STEP = TILE_THREADS / PIECES;
    const int row = threadIdx.x / PIECES, column = threadIdx.x % PIECES * 8;
    hh_bf16 *to = rows + row * stride + column;
#pragma unroll
    for (int i = 0; i < GDN_N; i += STEP, to += STEP * stride)
        if (row + i < n) *(uint4 *)to = *(const uint4 *)(tile + (row + i) * HH_GDN_STRIDE(D) + column);
}
/* Waits for all copies, of all threads. */
static __device__ __forceinline__ void arrive() {
    hh_copy_wait<0>();
    __syncthreads();
}

#endif
