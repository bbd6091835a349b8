/* Copies by the copy engine and what waits for them: mbarriers in shared memory, bulk copies that may go to every block
 * of a cluster at once, barriers of a cluster. Compute capability 9.0 and later; on earlier ones a kernel that uses this
 * must not be launched.
 *
 * An mbarrier completes a phase when `count` arrivals have come and all bytes announced have been written; a waiter names
 * the parity of the phase it waits for, which is 0 for the first.
 */
#ifndef HH_OPS_CUDA_CLUSTER_CUH
#define HH_OPS_CUDA_CLUSTER_CUH

#include "ops/cuda/mma.cuh"

/* HH_CLUSTER(n): a kernel's blocks come in clusters of n. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define HH_CLUSTER(n)
#define HH_CLUSTER_ASM(...)
#else
#define HH_CLUSTER(n)       __cluster_dims__(n, 1, 1)
#define HH_CLUSTER_ASM(...) asm volatile(__VA_ARGS__)
#endif

static __device__ __forceinline__ void hh_mbarrier_init(uint64_t *b, int count) {
    HH_CLUSTER_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(hh_shared_address(b)), "r"(count) : "memory");
}
/* After the last init, by the thread that did them: other blocks of the cluster and the copy engine see them. */
static __device__ __forceinline__ void hh_mbarrier_publish() {
    HH_CLUSTER_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* Arrives, and announces that `bytes` will be written. */
static __device__ __forceinline__ void hh_mbarrier_expect(uint64_t *b, int bytes) {
    HH_CLUSTER_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(hh_shared_address(b)), "r"(bytes)
                   : "memory");
}
/* Arrives at the same barrier of block `rank` of the cluster, behind this thread's reads of shared memory, which are done
 * in order. Writes would need .release.cluster, which is a fence of the whole GPU before each arrival (sm_90). */
static __device__ __forceinline__ void hh_mbarrier_arrive_at(uint64_t *b, int rank) {
    HH_CLUSTER_ASM("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                   "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(hh_shared_address(b)),
                   "r"(rank)
                   : "memory");
}
static __device__ __forceinline__ void hh_mbarrier_wait(uint64_t *b, int parity) {
    HH_CLUSTER_ASM("{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; "
                   "@!done bra again;}" ::"r"(hh_shared_address(b)),
                   "r"(parity)
                   : "memory");
}

/* `bytes` (a multiple of 16, both addresses too) to the same place of every block of the cluster whose bit is set in
 * `blocks`; their barriers at the place of `b` count the bytes. REFILL: over what has been read before; reports of
 * racecheck tell one from the other by this name alone. */
template <bool REFILL>
static __device__ __forceinline__ void hh_bulk_copy_all(void *shared, const void *global, int bytes, uint64_t *b,
                                                        int blocks) {
    HH_CLUSTER_ASM(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
        "[%3], %4;" ::"r"(hh_shared_address(shared)),
        "l"(global), "r"(bytes), "r"(hh_shared_address(b)), "h"((short)blocks)
        : "memory");
}
/* To this block alone. */
static __device__ __forceinline__ void hh_bulk_copy(void *shared, const void *global, int bytes, uint64_t *b) {
    HH_CLUSTER_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       hh_shared_address(shared)),
                   "l"(global), "r"(bytes), "r"(hh_shared_address(b))
                   : "memory");
}

/* Back to global memory. What threads have written to shared memory is seen by the copy after each has called
 * hh_bulk_publish and a barrier; one thread then stores, and waits for its stores before the place is written again. */
static __device__ __forceinline__ void hh_bulk_publish() {
    HH_CLUSTER_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}
static __device__ __forceinline__ void hh_bulk_store(void *global, const void *shared, int bytes) {
    HH_CLUSTER_ASM("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
                   "r"(hh_shared_address(shared)), "r"(bytes)
                   : "memory");
    HH_CLUSTER_ASM("cp.async.bulk.commit_group;" ::: "memory");
}
/* Until shared memory has been read by all of this thread's stores but the last N. */
template <int N> static __device__ __forceinline__ void hh_bulk_store_wait() {
    HH_CLUSTER_ASM("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ int hh_cluster_rank() {
    int r = 0;
    HH_CLUSTER_ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
/* All threads of all blocks of the cluster. */
static __device__ __forceinline__ void hh_cluster_sync() {
    HH_CLUSTER_ASM("barrier.cluster.arrive.release.aligned;" ::: "memory");
    HH_CLUSTER_ASM("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

#endif
