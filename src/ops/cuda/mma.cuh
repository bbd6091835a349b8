/* Tensor cores and copies into shared memory, one instruction a function: bf16 operands, float32 accumulators, shapes
 * m16n8k16. Runs on compute capability 8.0 and later.
 *
 * A fragment of 16 x 16 (an A operand) is four registers, a pair of bf16 each; lane l holds, with r = l / 4 and
 * c = 2 (l mod 4): (r, c), (r + 8, c), (r, c + 8), (r + 8, c + 8) and the element to the right. An accumulator of
 * 16 x 8 is (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1). So two accumulators side by side, packed, are an A fragment:
 * a product's result goes into the next product without leaving registers.
 */
#ifndef HH_OPS_CUDA_MMA_CUH
#define HH_OPS_CUDA_MMA_CUH

#include "ops/cuda/cuda.h"

#include <cstdint>

static __device__ __forceinline__ uint32_t hh_shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Two floats as a pair of bf16, the first in the lower half. */
static __device__ __forceinline__ uint32_t hh_pack_bf16(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
static __device__ __forceinline__ float hh_low_bf16(uint32_t pair) {
    return __uint_as_float(pair << 16);
}
static __device__ __forceinline__ float hh_high_bf16(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

/* 2^x to 2 in 2^23, by the instruction alone: results below 2^-126 are 0. */
static __device__ __forceinline__ float hh_exp2(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* c += a b; a: four registers; b: (k, n) = (c, r) and (c + 8, r) with the lane's r and c of above. */
static __device__ __forceinline__ void hh_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* The same for 16 columns: b holds two operands, c two accumulators. */
static __device__ __forceinline__ void hh_mma_pair(float c[2][4], const uint32_t a[4], const uint32_t b[4]) {
    hh_mma(c[0], a, b[0], b[1]);
    hh_mma(c[1], a, b[2], b[3]);
}

/* Two accumulators side by side as an A fragment. */
static __device__ __forceinline__ void hh_pack_fragment(uint32_t a[4], const float c[2][4]) {
    a[0] = hh_pack_bf16(c[0][0], c[0][1]);
    a[1] = hh_pack_bf16(c[0][2], c[0][3]);
    a[2] = hh_pack_bf16(c[1][0], c[1][1]);
    a[3] = hh_pack_bf16(c[1][2], c[1][3]);
}

/* From an address in shared memory (hh_shared_address), for loops that count in bytes. */
static __device__ __forceinline__ void hh_ldmatrix_at(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void hh_ldmatrix_trans_at(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void hh_ldmatrix(uint32_t r[4], const hh_bf16 *at) {
    hh_ldmatrix_at(r, hh_shared_address(at));
}
static __device__ __forceinline__ void hh_ldmatrix_trans(uint32_t r[4], const hh_bf16 *at) {
    hh_ldmatrix_trans_at(r, hh_shared_address(at));
}

/* Where this lane's row of a 16 x 16 tile at `tile` lies, in the two orders that ldmatrix needs. Rows are `stride`
 * elements apart, 16-byte aligned; a stride of 8 modulo 64 elements meets no bank twice. */
static __device__ __forceinline__ int64_t hh_lane_rows_first(int stride) {
    int lane = threadIdx.x & 31;
    return (lane & 15) * stride + (lane >> 4) * 8;
}
static __device__ __forceinline__ int64_t hh_lane_columns_first(int stride) {
    int lane = threadIdx.x & 31;
    return ((lane & 7) + (lane >> 4) * 8) * stride + ((lane >> 3) & 1) * 8;
}

/* A fragment of A [m,k] that lies row by row, or of one that lies as A^T [k,m]. */
static __device__ __forceinline__ void hh_load_a(uint32_t a[4], const hh_bf16 *tile, int stride) {
    hh_ldmatrix(a, tile + hh_lane_rows_first(stride));
}
static __device__ __forceinline__ void hh_load_a_transposed(uint32_t a[4], const hh_bf16 *tile, int stride) {
    hh_ldmatrix_trans(a, tile + hh_lane_columns_first(stride));
}
/* Operands of two products side by side, B [k,n] of 16 x 16, that lies row by row, or as B^T [n,k]. */
static __device__ __forceinline__ void hh_load_b(uint32_t b[4], const hh_bf16 *tile, int stride) {
    hh_ldmatrix_trans(b, tile + hh_lane_rows_first(stride));
}
static __device__ __forceinline__ void hh_load_b_transposed(uint32_t b[4], const hh_bf16 *tile, int stride) {
    hh_ldmatrix(b, tile + hh_lane_columns_first(stride));
}

/* An A fragment [m,k] to a tile that holds it as [k,m]: the inverse of hh_load_a_transposed. */
static __device__ __forceinline__ void hh_store_transposed(hh_bf16 *tile, int stride, const uint32_t a[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                     hh_shared_address(tile + hh_lane_columns_first(stride))),
                 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
                 : "memory");
#else
    int lane = threadIdx.x & 31, m = lane / 4, k = 2 * (lane % 4);
    for (int i = 0; i < 4; i++) {
        hh_bf16 *at = tile + (k + (i >> 1) * 8) * stride + m + (i & 1) * 8;
        at[0] = __ushort_as_bfloat16((unsigned short)(a[i] & 0xffff));
        at[stride] = __ushort_as_bfloat16((unsigned short)(a[i] >> 16));
    }
#endif
}

/* 16 bytes from global into shared memory, behind the thread's back; zeros when not `valid` (then nothing is read). */
static __device__ __forceinline__ void hh_copy_async(void *shared, const void *global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(hh_shared_address(shared)), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void hh_copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until no more than N groups of this thread's copies are under way. */
template <int N> static __device__ __forceinline__ void hh_copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* A barrier among `threads` of the block, numbered 1 to 15. */
static __device__ __forceinline__ void hh_barrier(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
/* Arrives there without waiting. */
static __device__ __forceinline__ void hh_barrier_arrive(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

#endif
