/* Inside the CUDA backend: what every .cu here builds on. C++ by necessity, C in spirit.
 *
 * An op's function does three things: assert its shapes, hand its host lists to hh_cuda_list, and launch with
 * hh_cuda_launch (or a product of products.h). Nothing else reaches the stream, so that recording and error messages
 * work for all. One stream orders everything but branches, which have two; ops never wait for it. Sums are taken in a
 * fixed order: no float atomics.
 */
#ifndef HH_OPS_CUDA_CUDA_H
#define HH_OPS_CUDA_CUDA_H

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstring>

extern "C" {
#include "ops/ops.h"
#include "ops/shape.h"
}

typedef __nv_bfloat16 hh_bf16;

#define HH_CUDA_LIST_BYTES      ((size_t)16 << 20) /* host lists on their way to the card, a ring */
#define HH_CUDA_WORKSPACE_BYTES ((size_t)64 << 20) /* of cuBLASLt */

/* What happens to a launch. */
typedef enum hh_cuda_mode {
    HH_CUDA_RUN,    /* it goes to the stream */
    HH_CUDA_RECORD, /* it goes into a graph */
    HH_CUDA_REPLAY, /* it is in the graph: only its lists are made, and compared with what was recorded */
} hh_cuda_mode;

typedef struct hh_cuda_recording hh_cuda_recording; /* backend.cu */

/* Host lists: the same offsets in pinned memory and on the card. */
#define HH_CUDA_RECENT_LISTS 16
typedef struct hh_cuda_lists {
    char *host, *device;
    size_t used, size;
    struct {
        size_t at, bytes;
    } recent[HH_CUDA_RECENT_LISTS]; /* those that an op may find there again: spans are the same in every layer */
    unsigned next_recent;
} hh_cuda_lists;

typedef struct hh_cuda {
    hh_backend backend;
    hh_ops ops;
    int device, n_sms, arch; /* arch: 90 for compute capability 9.0 */
    size_t shared_bytes;     /* shared memory that one block may have */
    size_t l2_bytes;
    cudaStream_t stream; /* of the branch that ops are called in */
    cudaStream_t main, side;
    cudaEvent_t parted; /* what one of them waits for in the other */
    hh_branch branch;
    hh_arena whole_scratch; /* of which each branch has a half */
    unsigned lists_before;  /* of the ring, when the side began */
    cublasLtHandle_t lt;
    void *workspace; /* HH_CUDA_WORKSPACE_BYTES, for cuBLASLt */
    void *products;  /* products.cu: plans chosen so far */
    hh_cuda_lists ring;
    hh_cuda_lists *lists; /* the ring, or those of the recording under way */
    hh_cuda_mode mode;
    hh_cuda_recording *recordings, *current;
    uint64_t hash;  /* of the calls since the recording began */
    bool check;     /* HYDRAHEAD_CHECK=cuda: wait after every op, so that a fault names its op; see hh_cuda_poison */
    const char *op; /* last launched */
    hh_error fault; /* the first; sync reports it */
} hh_cuda;

static inline hh_cuda *hh_cuda_of(hh_backend *be) {
    return (hh_cuda *)be->impl;
}

/* A copy of a host list on the card, valid for the op that asks, in stream order. NULL stays NULL. 16-byte aligned. */
void *hh_cuda_list_bytes(hh_backend *be, const void *list, size_t bytes);
template <typename T> static inline const T *hh_cuda_list(hh_backend *be, const T *list, int64_t n) {
    return (const T *)hh_cuda_list_bytes(be, list, (size_t)n * sizeof(T));
}

/* Device scratch of one op call: n bytes, 256-byte aligned; taken back by the next op's hh_cuda_scratch_begin. Asserts
 * that it fits be->scratch: cut the work into tiles. */
void hh_cuda_scratch_begin(hh_backend *be);
void *hh_cuda_scratch(hh_backend *be, size_t bytes);
size_t hh_cuda_scratch_left(hh_backend *be);

/* With HYDRAHEAD_CHECK=cuda, `rows` times `bytes` bytes that are `apart` become NaN: scratch before an op has it, and what
 * a product of a library is to write. A number that nobody wrote shows in the result, also where compute-sanitizer's
 * initcheck, which does not see what the copy engine stores, would call a number unwritten that a library has written. */
void hh_cuda_poison(hh_backend *be, void *at, size_t apart, size_t bytes, size_t rows);

#define HH_CUDA_MIX_START 14695981039346656037ull
/* A hash that takes words of 8 bytes, for what a replay compares at every launch. */
static inline uint64_t hh_cuda_mix(uint64_t h, const void *bytes, size_t n) {
    const char *p = (const char *)bytes;
    for (uint64_t word; n >= sizeof word; p += sizeof word, n -= sizeof word) {
        memcpy(&word, p, sizeof word);
        h = (h ^ word) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 29;
    }
    uint64_t rest = n; /* how many bytes are left, and these */
    for (size_t i = 0; i < n; i++) rest = rest << 8 | (unsigned char)p[i];
    h = (h ^ rest) * 0x9E3779B97F4A7C15ull;
    return h ^ h >> 29;
}

/* Before a launch that is not hh_cuda_launch (a library's): false in a replay, where it must be left out. `bytes` are
 * what identifies the call. */
bool hh_cuda_begin(hh_backend *be, const char *op, const void *bytes, size_t n);
/* After it: remembers the first failure with op and layer. */
void hh_cuda_end(hh_backend *be, cudaError_t code);
/* For libraries: a failure in words. */
void hh_cuda_fault(hh_backend *be, const char *what, const char *why);

/* For tests: told the name of every kernel of ours that is launched or recorded; the compute capability, 80 or 86, that
 * GPUs are taken for when they are opened. */
extern "C" void (*hh_cuda_on_launch)(const char *kernel);
extern "C" int hh_cuda_taken_for;
void hh_cuda_tell_launch(const void *kernel);

/* Launches kernel<<<grid, block, shared>>>(arguments) on the stream. Arguments are plain values; structures among them
 * are cleared before they are filled, for their bytes are compared in a replay. Where `shared` and a kernel's
 * static shared memory may pass 48 KB together, the limit is raised here. An empty grid launches nothing. */
template <typename... P, typename... A>
static inline void hh_cuda_launch(hh_backend *be, const char *op, void (*kernel)(P...), dim3 grid, dim3 block,
                                  size_t shared, A... arguments) {
    if (!grid.x || !grid.y || !grid.z) return;
    const hh_cuda *c = hh_cuda_of(be);
    struct key {
        const void *kernel;
        uint64_t shape[4];
        uint64_t arguments;
    } k = {(const void *)kernel,
           {((uint64_t)grid.x << 32) | grid.y, ((uint64_t)grid.z << 32) | block.x, ((uint64_t)block.y << 32) | block.z,
            shared},
           HH_CUDA_MIX_START};
    if (c->mode != HH_CUDA_RUN) ((k.arguments = hh_cuda_mix(k.arguments, &arguments, sizeof arguments)), ...);
    if (!hh_cuda_begin(be, op, &k, sizeof k)) return;
    if (shared > 32 << 10) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (hh_cuda_on_launch) hh_cuda_tell_launch((const void *)kernel);
    kernel<<<grid, block, shared, c->stream>>>((P)arguments...);
    hh_cuda_end(be, cudaGetLastError());
}

static inline int64_t hh_ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Loads and stores of activations as float, whatever their type. */
static __device__ __forceinline__ float hh_load(const float *p) {
    return *p;
}
static __device__ __forceinline__ float hh_load(const hh_bf16 *p) {
    return __bfloat162float(*p);
}
static __device__ __forceinline__ void hh_store(float *p, float v) {
    *p = v;
}
static __device__ __forceinline__ void hh_store(hh_bf16 *p, float v) {
    *p = __float2bfloat16_rn(v);
}

/* Sum over a warp, the same bits in every lane. */
static __device__ __forceinline__ float hh_warp_sum(float v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
static __device__ __forceinline__ float hh_warp_max(float v) {
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

/* Runs `body` with `T` standing for the element type of activations. */
#define HH_CUDA_BY_TYPE(dtype, T, ...)                                                                                 \
    do {                                                                                                               \
        if ((dtype) == HH_DTYPE_BF16) {                                                                                \
            typedef hh_bf16 T;                                                                                         \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            HH_ASSERT((dtype) == HH_DTYPE_F32);                                                                        \
            typedef float T;                                                                                           \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

#endif
