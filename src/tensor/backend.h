/* A backend is where tensors live and where ops run: memory, copies, sync, and the op table (ops/ops.h).
 *
 * Model code calls be->ops->name(be, ...) and never asks which backend it has. The CPU backend is always there and is
 * the oracle of every other.
 *
 * Scratch is what an op needs inside one call. It is reserved when the backend opens, in two kinds: one shared block,
 * and one block a thread. Ops cut their work into tiles that fit, so scratch does not grow with the context.
 */
#ifndef HH_TENSOR_BACKEND_H
#define HH_TENSOR_BACKEND_H

#include "base/memory.h"
#include "tensor/tensor.h"

typedef struct hh_ops hh_ops; /* ops/ops.h */
typedef struct hh_backend hh_backend;

/* How matrix products are computed on the CPU. */
typedef enum hh_precision {
    HH_PRECISION_AUTO, /* bf16 operands with float32 accumulation where the processor is faster at it, else float32 */
    HH_PRECISION_F32,  /* float32 operands always (--dtype f32) */
} hh_precision;

/* Copies `bytes` between host and device; on the CPU both are memcpy. The host's side may be reused, or read, on return. */
typedef void hh_backend_copy_fn(hh_backend *be, void *dst, const void *src, size_t bytes);
/* Reserves memory where the backend computes; or the host's, from and to which copies are fast. */
typedef hh_code hh_backend_arena_fn(hh_backend *be, hh_arena *out, const char *name, size_t bytes, hh_error *err);
typedef void hh_backend_arena_release_fn(hh_backend *be, hh_arena *a);
/* Waits for all work; reports an asynchronous failure with op and layer. */
typedef hh_code hh_backend_sync_fn(hh_backend *be, hh_error *err);
/* Recording: a sequence of op calls that comes again with the same shapes and pointers (a decode step) may be launched
 * as one. The calls between begin and end must have no effect on the host; what changes from time to time (positions,
 * ids, lengths) reaches ops in host lists alone, which are read anew every time.
 *
 *     do {
 *         hh_backend_record_begin(be, owner, key);
 *         ... op calls ...
 *     } while (hh_backend_record_end(be));
 *
 * The loop runs again when the calls were not those recorded under (owner, key). Backends that cannot record run the
 * calls as they come. Recordings of an owner are dropped before it is freed. */
typedef void hh_backend_record_begin_fn(hh_backend *be, const void *owner, uint64_t key);
typedef bool hh_backend_record_end_fn(hh_backend *be);
typedef void hh_backend_record_drop_fn(hh_backend *be, const void *owner);
/* Branches: ops called in HH_BRANCH_SIDE may run beside those called in HH_BRANCH_MAIN behind it, on a backend that can;
 * HH_BRANCH_NONE joins them. Neither writes what the other reads or writes, and neither takes matrix products.
 *
 *     hh_backend_branch(be, HH_BRANCH_SIDE);
 *     ... op calls ...
 *     hh_backend_branch(be, HH_BRANCH_MAIN);
 *     ... op calls ...
 *     hh_backend_branch(be, HH_BRANCH_NONE); */
typedef enum hh_branch { HH_BRANCH_NONE, HH_BRANCH_SIDE, HH_BRANCH_MAIN } hh_branch;
typedef void hh_backend_branch_fn(hh_backend *be, hh_branch b);
/* Bytes that arenas may still have, and all that there are. */
typedef void hh_backend_memory_fn(hh_backend *be, size_t *free_bytes, size_t *all);
typedef void hh_backend_close_fn(hh_backend *be);

struct hh_backend {
    const char *name; /* "cpu", "cuda" */
    const char *isa;  /* the CPU's chosen kernels: "reference", "avx2", "avx512", "neon" */
    const hh_ops *ops;
    bool host_memory;      /* tensors can be read by the CPU directly */
    hh_dtype activation;   /* of activations: HH_DTYPE_REAL on the CPU; BF16, or F32 for verification, on a GPU */
    int64_t layer;         /* that the model computes, -1 outside layers: for messages */
    int64_t pass_tokens;   /* of one forward that keep it busy: what chunks and batches are by default */
    int64_t decode_tokens; /* sequences that a step of decoding takes for little more than one costs */
    int n_threads;
    hh_precision precision;
    bool decoding;   /* set around an op call: every row is the next token of a sequence, and kernels for few tokens may
                      round otherwise. Else a row's result does not depend on how many rows the call has. */
    size_t reserved; /* bytes that opening took for scratch and the like where tensors are; 0: not said */
    hh_arena scratch;         /* shared scratch of one op call */
    hh_arena *thread_scratch; /* [n_threads] */
    void *impl;               /* the backend's own */
    hh_backend_copy_fn *to_device, *to_host;
    hh_backend_arena_fn *arena_init, *host_arena_init;
    hh_backend_arena_release_fn *arena_release, *host_arena_release;
    hh_backend_sync_fn *sync;
    hh_backend_memory_fn *memory;             /* NULL: not known */
    hh_backend_record_begin_fn *record_begin; /* NULL: this backend does not record */
    hh_backend_record_end_fn *record_end;
    hh_backend_record_drop_fn *record_drop;
    hh_backend_branch_fn *branch; /* NULL: ops run one behind another */
    hh_backend_close_fn *close;
};

#define HH_SCRATCH_BYTES        ((size_t)96 << 20) /* shared */
#define HH_THREAD_SCRATCH_BYTES ((size_t)4 << 20)  /* a thread */
#define HH_CUDA_SCRATCH_BYTES   ((size_t)1 << 30)  /* on a GPU */

/* Opens the CPU backend in ops/ (hh_cpu_open in ops/cpu.h); any backend is closed with this. NULL is accepted. */
void hh_backend_close(hh_backend *be);

void hh_backend_record_begin(hh_backend *be, const void *owner, uint64_t key);
bool hh_backend_record_end(hh_backend *be);
void hh_backend_record_drop(hh_backend *be, const void *owner);
void hh_backend_branch(hh_backend *be, hh_branch b);

#endif
