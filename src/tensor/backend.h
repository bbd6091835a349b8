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

/* Copies `bytes` between host and device, or within one; on the CPU all are memcpy. */
typedef void hh_backend_copy_fn(hh_backend *be, void *dst, const void *src, size_t bytes);
/* Reserves memory where the backend computes. */
typedef hh_code hh_backend_arena_fn(hh_backend *be, hh_arena *out, const char *name, size_t bytes, hh_error *err);
typedef void hh_backend_arena_release_fn(hh_backend *be, hh_arena *a);
/* Waits for all work; reports an asynchronous failure with op and layer. */
typedef hh_code hh_backend_sync_fn(hh_backend *be, hh_error *err);
typedef void hh_backend_close_fn(hh_backend *be);

struct hh_backend {
    const char *name; /* "cpu", "cuda" */
    const char *isa;  /* the CPU's chosen kernels: "reference", "avx2", "avx512", "neon" */
    const hh_ops *ops;
    bool host_memory; /* tensors can be read by the CPU directly */
    int n_threads;
    hh_precision precision;
    hh_arena scratch;         /* shared scratch of one op call */
    hh_arena *thread_scratch; /* [n_threads] */
    void *impl;               /* the backend's own */
    hh_backend_copy_fn *to_device, *to_host;
    hh_backend_arena_fn *arena_init;
    hh_backend_arena_release_fn *arena_release;
    hh_backend_sync_fn *sync;
    hh_backend_close_fn *close;
};

#define HH_SCRATCH_BYTES        ((size_t)96 << 20) /* shared */
#define HH_THREAD_SCRATCH_BYTES ((size_t)4 << 20)  /* a thread */

/* Opens the CPU backend in ops/ (hh_cpu_open in ops/cpu.h); any backend is closed with this. NULL is accepted. */
void hh_backend_close(hh_backend *be);

#endif
