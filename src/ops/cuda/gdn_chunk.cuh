/* One chunk of Gated DeltaNet on one block of HH_GDN_THREADS threads: its tiles in shared memory, the sums of its gates,
 * its products K K^T and Q K^T below the diagonal and the inverse A0, for forward and backward. Equations: ops/gdn.h.
 *
 * A chunk always has 64 rows here: those behind its end are zeros (beta and g too), which leaves every result as it is.
 * Tiles of bf16 have rows HH_GDN_STRIDE(columns) apart, so that ldmatrix meets no bank twice; the square matrices in
 * float32 have rows HH_GDN_SQUARE apart. Warp w of the four owns rows [16 w, 16 w + 16).
 */
#ifndef HH_OPS_CUDA_GDN_CHUNK_CUH
#define HH_OPS_CUDA_GDN_CHUNK_CUH

#include "ops/cuda/mma.cuh"

extern "C" {
#include "ops/gdn.h"
}

#define HH_GDN_THREADS         128
#define HH_GDN_STRIDE(columns) ((columns) + 8)
#define HH_GDN_SQUARE          68
#define HH_GDN_LOG2E           1.4426950408889634f

/* [64, COLUMNS] of bf16 from rows `stride` elements apart, all threads of the block together; rows from n on are zeros.
 * Sixteen bytes at a time: hh_gdn_is_aligned says where that may be. The caller commits and waits. */
template <int COLUMNS>
static __device__ __forceinline__ void hh_gdn_copy_tile(hh_bf16 *tile, const hh_bf16 *rows, int64_t stride, int n) {
    constexpr int PIECES = COLUMNS / 8;
    for (int i = threadIdx.x; i < HH_GDN_CHUNK * PIECES; i += blockDim.x) {
        int row = i / PIECES, column = i % PIECES * 8;
        bool valid = row < n;
        hh_copy_async(tile + row * HH_GDN_STRIDE(COLUMNS) + column, rows + (valid ? row : 0) * stride + column, valid);
    }
}

/* May rows of this tensor be read 16 bytes at a time? */
static inline bool hh_gdn_is_aligned(hh_tensor t) {
    return (uintptr_t)t.data % 16 == 0 && t.stride * hh_dtype_bytes(t.dtype, 1) % 16 == 0;
}

/* G [64], the inclusive sums of g in units of ln 2, so that e^G is exp2(G); by the first warp. */
static __device__ __forceinline__ void hh_gdn_sum_gates(float *G, const float *g, int64_t stride, int n) {
    if (threadIdx.x >= 32) return;
    int lane = threadIdx.x;
    float first = 2 * lane < n ? g[2 * lane * stride] : 0, second = 2 * lane + 1 < n ? g[(2 * lane + 1) * stride] : 0;
    float sum = first + second;
    for (int o = 1; o < 32; o *= 2) {
        float before = __shfl_up_sync(0xffffffffu, sum, o);
        if (lane >= o) sum += before;
    }
    float before = __shfl_up_sync(0xffffffffu, sum, 1);
    if (!lane) before = 0;
    G[2 * lane] = (before + first) * HH_GDN_LOG2E;
    G[2 * lane + 1] = sum * HH_GDN_LOG2E;
}

/* E_ij of F4 from those sums, for i >= j; 1 otherwise, so that nobody need branch. */
static __device__ __forceinline__ float hh_gdn_decay(const float *G, int i, int j) {
    return hh_exp2(fminf(G[i] - G[j], 0));
}

/* Row and column of element e (0..3) of half `half` of the accumulators acc[block] that warp w has of a 64 x 64. */
static __device__ __forceinline__ int hh_gdn_row(int w, int e) {
    return 16 * w + (threadIdx.x & 31) / 4 + 8 * (e >> 1);
}
static __device__ __forceinline__ int hh_gdn_column(int block, int half, int e) {
    return 16 * block + 8 * half + 2 * (threadIdx.x & 3) + (e & 1);
}

/* acc[b] = rows [16 w, 16 w + 16) of X Y^T, columns [16 b, 16 b + 16), for b <= w; the others are zeros. X, Y: tiles
 * [64, D]. */
template <int D>
static __device__ __forceinline__ void hh_gdn_lower_product(float acc[4][2][4], const hh_bf16 *X, const hh_bf16 *Y,
                                                            int w) {
    constexpr int STRIDE = HH_GDN_STRIDE(D);
#pragma unroll
    for (int i = 0; i < 32; i++) ((float *)acc)[i] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t a[4], b[4];
        hh_load_a(a, X + 16 * w * STRIDE + k, STRIDE);
#pragma unroll
        for (int block = 0; block < 4; block++) {
            if (block > w) break;
            hh_load_b_transposed(b, Y + 16 * block * STRIDE + k, STRIDE);
            hh_mma_pair(acc[block], a, b);
        }
    }
}

/* N [64,64] of F5 from the products K K^T of this warp; zeros on and above the diagonal. */
static __device__ __forceinline__ void hh_gdn_store_N(float *N, const float acc[4][2][4], const float *beta, int w) {
#pragma unroll
    for (int x = 0; x < 32; x++) {
        int i = hh_gdn_row(w, x & 3), j = hh_gdn_column(x >> 3, (x >> 2) & 1, x & 3);
        const float kk = beta[i] * acc[x >> 3][(x >> 2) & 1][x & 3];
        N[i * HH_GDN_SQUARE + j] = i > j ? kk : 0;
    }
}

/* The inverse of a diagonal block of I + N, 16 x 16, by substitution: lane j has column j. One warp. */
static __device__ __forceinline__ void hh_gdn_invert_diagonal(float *block) {
    int j = threadIdx.x & 15;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float row[16];
#pragma unroll
        for (int m = 0; m < i; m += 4) *(float4 *)(row + m) = *(const float4 *)(block + i * HH_GDN_SQUARE + m);
        x[i] = i == j;
#pragma unroll
        for (int m = 0; m < i; m++) x[i] -= row[m] * x[m];
    }
    __syncwarp();
    if ((threadIdx.x & 31) < 16)
#pragma unroll
        for (int i = 0; i < 16; i++) block[i * HH_GDN_SQUARE + j] = x[i];
}

/* c [row, COLUMNS of c] = sign * sum over m < SIZE of a[row, m] b[m, columns]; c's columns belong to this thread. */
template <int SIZE, int COLUMNS>
static __device__ __forceinline__ void hh_gdn_row_product(float c[COLUMNS], const float *a_row, const float *b) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) c[i] = 0;
#pragma unroll 8
    for (int m = 0; m < SIZE; m++) {
        float a = a_row[m];
#pragma unroll
        for (int i = 0; i < COLUMNS; i += 4) {
            float4 v = *(const float4 *)(b + m * HH_GDN_SQUARE + i);
            c[i] += a * v.x, c[i + 1] += a * v.y, c[i + 2] += a * v.z, c[i + 3] += a * v.w;
        }
    }
}

/* Two inverses along the diagonal, SIZE wide, become one of twice the width: the block below is -A22 (N21 A11). `corner`
 * is A11's first element; this thread has COLUMNS elements of row `row` from `column` on. `work` [SIZE, SIZE] is in
 * rows of HH_GDN_SQUARE. All threads of the block come here. */
template <int SIZE, int COLUMNS>
static __device__ __forceinline__ void hh_gdn_merge(float *corner, float *work, int row, int column) {
    float c[COLUMNS], *below = corner + SIZE * HH_GDN_SQUARE;
    hh_gdn_row_product<SIZE, COLUMNS>(c, below + row * HH_GDN_SQUARE, corner + column);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) work[row * HH_GDN_SQUARE + column + i] = c[i];
    __syncthreads();
    hh_gdn_row_product<SIZE, COLUMNS>(c, below + row * HH_GDN_SQUARE + SIZE, work + column);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) below[row * HH_GDN_SQUARE + column + i] = -c[i];
    __syncthreads();
}

/* A0 = (I + N)^-1 in the place of N [64,64] (strictly lower, zeros elsewhere), in float32: the four diagonal blocks by
 * substitution, then merged to 32 and to 64. `work` holds 32 rows of HH_GDN_SQUARE. By all HH_GDN_THREADS threads, after
 * a barrier; ends with one. */
static __device__ __forceinline__ void hh_gdn_invert(float *N, float *work) {
    int t = threadIdx.x, pair = t / 64, in_pair = t % 64;
    hh_gdn_invert_diagonal(N + (t / 32) * 16 * (HH_GDN_SQUARE + 1));
    __syncthreads();
    hh_gdn_merge<16, 4>(N + pair * 32 * (HH_GDN_SQUARE + 1), work + pair * 16 * HH_GDN_SQUARE, in_pair / 4,
                        in_pair % 4 * 4);
    hh_gdn_merge<32, 8>(N, work, t / 4, t % 4 * 8);
}

/* Tiles without padding: rows of 64 elements whose eights are exchanged by the row, so that ldmatrix meets no bank twice
 * there either and a tile is one copy from global memory. A tile [64, D] is D / 64 of them side by side. */
static __device__ __forceinline__ int hh_gdn_swizzled(int row, int column) {
    return column / 64 * (64 * HH_GDN_CHUNK) + row * 64 + ((column % 64 / 8) ^ (row & 7)) * 8 + column % 8;
}

/* Operands of two products side by side from such a tile: B [k,n] at (k, n) of the tile, or B^T [n,k] at (n, k). */
static __device__ __forceinline__ void hh_gdn_load_b(uint32_t b[4], const hh_bf16 *tile, int k, int n) {
    int lane = threadIdx.x & 31;
    hh_ldmatrix_trans(b, tile + hh_gdn_swizzled(k + (lane & 15), n + (lane >> 4) * 8));
}
static __device__ __forceinline__ void hh_gdn_load_b_transposed(uint32_t b[4], const hh_bf16 *tile, int n, int k) {
    int lane = threadIdx.x & 31;
    hh_ldmatrix(b, tile + hh_gdn_swizzled(n + (lane & 7) + (lane >> 4) * 8, k + ((lane >> 3) & 1) * 8));
}

/* Bm of F6 from A0, which is zero above its diagonal, and the gates, to such a tile in bf16; blocks of sixteen above the diagonal are left out. */
static __device__ __forceinline__ void hh_gdn_store_Bm(hh_bf16 *Bm, const float *A0, const float *G,
                                                       const float *beta) {
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c <= r; c++) {
            int i = 16 * r + threadIdx.x / 8, j = 16 * c + threadIdx.x % 8 * 2;
            float2 a = *(const float2 *)(A0 + i * HH_GDN_SQUARE + j), strength = *(const float2 *)(beta + j);
            float low = a.x * hh_gdn_decay(G, i, j) * strength.x, high = a.y * hh_gdn_decay(G, i, j + 1) * strength.y;
            *(uint32_t *)(Bm + hh_gdn_swizzled(i, j)) = hh_pack_bf16(low, high);
        }
}

/* P of F7 from the products Q K^T of warp w, likewise. */
static __device__ __forceinline__ void hh_gdn_store_P(hh_bf16 *P, const float acc[4][2][4], const float *G, int w) {
#pragma unroll
    for (int x = 0; x < 16; x++) { /* pairs of elements */
        if (x / 4 > w) break;
        int i = hh_gdn_row(w, (x & 1) * 2), j = hh_gdn_column(x >> 2, (x >> 1) & 1, 0);
        const float *c = acc[x >> 2][(x >> 1) & 1] + (x & 1) * 2;
        float low = c[0] * hh_gdn_decay(G, i, j), high = c[1] * hh_gdn_decay(G, i, j + 1);
        low = i >= j ? low : 0, high = i > j ? high : 0;
        *(uint32_t *)(P + hh_gdn_swizzled(i, j)) = hh_pack_bf16(low, high);
    }
}

#endif
