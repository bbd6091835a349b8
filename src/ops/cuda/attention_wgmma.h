/* Warpgroup products (wgmma, sm_90a) and what goes with them: tiles in shared memory in 128-byte swizzled panels,
 * transaction barriers, register budgets.
 *
 * A tile of R rows and D columns is D / 64 panels of [R][64] bf16, each row 128 bytes whose 16-byte pieces are permuted
 * by the row's number modulo 8; a panel starts on a 1024-byte boundary. A product's operand is named by its first row:
 * with depth along the columns ("K-major": X Y^T), or with depth along the rows (the second operand of P Y).
 * Sums lie as those of mma.sync: warp w of the group has rows 16 w.., see attention_tile.h. */
#ifndef HH_OPS_CUDA_ATTENTION_WGMMA_H
#define HH_OPS_CUDA_ATTENTION_WGMMA_H

#include "ops/cuda/attention_tile.h"

/* The swizzled panel at p as an operand. `far`: bytes to the next 64 columns where depth runs along the rows. */
static __device__ __forceinline__ uint64_t hh_operand(const hh_bf16 *p, unsigned far) {
    const uint64_t at = (unsigned)__cvta_generic_to_shared(p);
    return (at & 0x3ffff) >> 4 | (uint64_t)(far >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

static __device__ __forceinline__ void hh_wg_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void hh_wg_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int n> static __device__ __forceinline__ void hh_wg_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
/* Keeps the compiler from moving uses of sums across a wait. */
template <int N> static __device__ __forceinline__ void hh_wg_hold(float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(c[n][e])::"memory");
}

#define HH_C4(c, n)  "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define HH_C16(c, n) HH_C4(c, n), HH_C4(c, n + 1), HH_C4(c, n + 2), HH_C4(c, n + 3)
#define HH_C32(c, n) HH_C16(c, n), HH_C16(c, n + 4)
#define HH_C64(c, n) HH_C32(c, n), HH_C32(c, n + 8)
#define HH_LIST32                                                                                                      \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HH_LIST64                                                                                                      \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                                 \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                                 \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* c (+)= X Y^T: 64 rows of X, N of Y, depth 16, both K-major in shared memory; `add` 0 starts from zero. */
static __device__ __forceinline__ void hh_wg_mma_t(float (&c)[8][4], uint64_t x, uint64_t y, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" HH_LIST32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : HH_C32(c, 0)
                 : "l"(x), "l"(y), "r"(add)
                 : "memory");
}
static __device__ __forceinline__ void hh_wg_mma_t(float (&c)[16][4], uint64_t x, uint64_t y, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" HH_LIST64 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : HH_C64(c, 0)
                 : "l"(x), "l"(y), "r"(add)
                 : "memory");
}
/* c += P Y: P 64 x 16 in registers, Y's 16 rows the depth, N columns. */
static __device__ __forceinline__ void hh_wg_mma(float (&c)[8][4], const unsigned *p, uint64_t y) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" HH_LIST32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : HH_C32(c, 0)
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(y)
                 : "memory");
}
static __device__ __forceinline__ void hh_wg_mma(float (&c)[16][4], const unsigned *p, uint64_t y) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" HH_LIST64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : HH_C64(c, 0)
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(y)
                 : "memory");
}

/* c = X Y^T over depth D. x: the group's 64 rows in a tile of XR rows; y: N rows of a tile of YR. */
template <int D, int XR, int YR, int N>
static __device__ __forceinline__ void hh_wg_product_t(float (&c)[N / 8][4], const hh_bf16 *x, const hh_bf16 *y) {
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        hh_wg_mma_t(c, hh_operand(x + k / 4 * XR * 64 + k % 4 * 16, 16),
                    hh_operand(y + k / 4 * YR * 64 + k % 4 * 16, 16), k > 0);
}
/* c += P Y: P 64 x N in registers, Y N rows of a tile of YR, D columns. */
template <int D, int YR, int N>
static __device__ __forceinline__ void hh_wg_product(float (&c)[D / 8][4], const unsigned (&p)[N / 16][4],
                                                     const hh_bf16 *y) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) hh_wg_mma(c, p[k], hh_operand(y + k * 16 * 64, YR * 128));
}

/* -- barriers in shared memory -- */

static __device__ __forceinline__ void hh_barrier_init(uint64_t *b, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(b)), "r"(count));
}
static __device__ __forceinline__ void hh_barrier_arrive(uint64_t *b) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"((unsigned)__cvta_generic_to_shared(b))
                 : "memory");
}
/* Until the phase of this parity is over. */
static __device__ __forceinline__ void hh_barrier_wait(uint64_t *b, int parity) {
    asm volatile("{\n.reg .pred p;\nAGAIN:\n"
                 "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"((unsigned)__cvta_generic_to_shared(b)),
                 "r"(parity)
                 : "memory");
}
/* What this thread wrote to shared memory becomes visible to warpgroup products. */
static __device__ __forceinline__ void hh_fence_products(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Groups of warps in turn: `sync` waits for its own and one other group's arrival. */
static __device__ __forceinline__ void hh_turn_wait(int id) {
    asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory");
}
static __device__ __forceinline__ void hh_turn_pass(int id) {
    asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory");
}

template <int n> static __device__ __forceinline__ void hh_take_registers(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n> static __device__ __forceinline__ void hh_leave_registers(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

/* One warpgroup brings rows [0, n) of `from`, zeros up to ROWS, into panels. */
template <int D, int ROWS>
static __device__ __forceinline__ void hh_load_panels(hh_bf16 *to, const hh_bf16 *from, int64_t stride, int64_t n) {
    constexpr int PIECES = D / 8, STEP = 128 / PIECES; /* rows a pass; a multiple of 8 */
    const int tid = threadIdx.x % 128, c = tid % PIECES, r0 = tid / PIECES;
    hh_bf16 *at = to + c / 8 * ROWS * 64 + hh_piece<64>(r0, c % 8);
    const hh_bf16 *row = from + r0 * stride + 8 * c;
#pragma unroll 4
    for (int i = 0; i < ROWS / STEP; i++) {
        const bool valid = r0 + i * STEP < n;
        hh_copy16(at, valid ? row : from, valid);
        at += STEP * 64;
        row += STEP * stride;
    }
}

#endif
