/* Tiles in shared memory and products of warps (mma.sync m16n8k16, bf16 operands, float32 sums; sm_80 and later), for
 * attention.
 *
 * A tile is [rows][D] bf16 in 16-byte pieces, permuted within a row so that the eight rows an ldmatrix reads lie in
 * eight different bank groups. Fragments of one product, lane = 4 g + m:
 *   A 16 x 16   a[0] row g, columns 2m..; a[1] row g+8; a[2] row g, columns 2m+8..; a[3] row g+8, columns 2m+8..
 *   B 16 x 8    b[0] rows 2m.., column g; b[1] rows 2m+8.., column g
 *   C 16 x 8    c[0], c[1] row g, columns 2m, 2m+1; c[2], c[3] row g+8
 * so that sums C, rounded, are the A of the next product.
 */
#ifndef HH_OPS_CUDA_ATTENTION_TILE_H
#define HH_OPS_CUDA_ATTENTION_TILE_H

#include "ops/cuda/cuda.h"

#define HH_LOG2E 1.4426950408889634f
#define HH_LN2   0.6931471805599453f

static __device__ __forceinline__ float hh_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ unsigned hh_pack(float lo, float hi) {
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

/* 16 bytes on their way to shared memory; zeros when not `valid`. */
static __device__ __forceinline__ void hh_copy16(void *to, const void *from, bool valid) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void hh_copy_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until at most `n` of the committed groups are under way. */
template <int n> static __device__ __forceinline__ void hh_copy_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

/* Where piece c (of 8 elements) of row r lies, in elements. */
template <int D> static __device__ __forceinline__ int hh_piece(int r, int c) {
    return r * D + 8 * (D % 64 == 0 ? c ^ (r & 7) : c ^ ((r >> 1) & 3));
}

/* Rows [0, n) of `from`, zeros up to ROWS. */
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void hh_load_tile(hh_bf16 *to, const hh_bf16 *from, int64_t stride, int64_t n) {
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
        const int r = i / (D / 8), c = i % (D / 8);
        hh_copy16(to + hh_piece<D>(r, c), from + (r < n ? r : 0) * stride + 8 * c, r < n);
    }
}

static __device__ __forceinline__ void hh_ldmatrix(unsigned *r, const hh_bf16 *p) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void hh_ldmatrix_t(unsigned *r, const hh_bf16 *p) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* A: rows row.., columns 16 k.. of a tile. */
template <int D>
static __device__ __forceinline__ void hh_fragment_a(unsigned *a, const hh_bf16 *tile, int row, int k) {
    const int lane = threadIdx.x % 32;
    hh_ldmatrix(a, tile + hh_piece<D>(row + lane % 16, 2 * k + lane / 16));
}
/* Two B for X Y^T: rows row.. +15 of Y are 2 x 8 columns, its columns 16 k.. the depth. b[0..1], b[2..3]. */
template <int D>
static __device__ __forceinline__ void hh_fragment_bt(unsigned *b, const hh_bf16 *tile, int row, int k) {
    const int lane = threadIdx.x % 32;
    hh_ldmatrix(b, tile + hh_piece<D>(row + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
}
/* Two B for X Y: rows row.. +15 of Y are the depth, its columns 16 n.. 2 x 8 columns. */
template <int D>
static __device__ __forceinline__ void hh_fragment_b(unsigned *b, const hh_bf16 *tile, int row, int n) {
    const int lane = threadIdx.x % 32;
    hh_ldmatrix_t(b, tile + hh_piece<D>(row + lane % 16, 2 * n + lane / 16));
}

static __device__ __forceinline__ void hh_mma(float *c, const unsigned *a, const unsigned *b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* C += X Y^T over the whole depth D: X's rows x0.. (16 MT of them), Y's rows [0, N), both tiles in shared memory. */
template <int D, int MT, int N>
static __device__ __forceinline__ void hh_product_t(float (&c)[MT][N / 8][4], const hh_bf16 *x, int x0,
                                                    const hh_bf16 *y) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        unsigned a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) hh_fragment_a<D>(a[m], x, x0 + 16 * m, k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            unsigned b[4];
            hh_fragment_bt<D>(b, y, 16 * n, k);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                hh_mma(c[m][2 * n], a[m], b);
                hh_mma(c[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

/* O += P Y: P [16 MT, N] are sums in registers, rounded here; Y's rows [0, N) a tile of D columns. */
template <int D, int MT, int N>
static __device__ __forceinline__ void hh_product(float (&o)[MT][D / 8][4], const float (&p)[MT][N / 8][4],
                                                  const hh_bf16 *y) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        unsigned a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            const float *lo = p[m][2 * k], *hi = p[m][2 * k + 1];
            a[m][0] = hh_pack(lo[0], lo[1]);
            a[m][1] = hh_pack(lo[2], lo[3]);
            a[m][2] = hh_pack(hi[0], hi[1]);
            a[m][3] = hh_pack(hi[2], hi[3]);
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            unsigned b[4];
            hh_fragment_b<D>(b, y, 16 * k, n);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                hh_mma(o[m][2 * n], a[m], b);
                hh_mma(o[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

/* Two neighbouring results; one store where the address allows it. */
static __device__ __forceinline__ void hh_store2(hh_bf16 *p, float x, float y) {
    if ((uintptr_t)p % 4 == 0) {
        *(unsigned *)p = hh_pack(x, y);
    } else {
        p[0] = __float2bfloat16_rn(x);
        p[1] = __float2bfloat16_rn(y);
    }
}

#endif
