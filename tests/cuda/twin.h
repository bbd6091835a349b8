/* One op, two backends: the same inputs on the CPU (reference kernels, float32) and on the GPU, and the distance of what
 * comes out. Header only, for the tests of this folder. */
#ifndef HH_TESTS_CUDA_TWIN_H
#define HH_TESTS_CUDA_TWIN_H

#include "base/rng.h"
#include "cuda/card.h"
#include "ops/ops.h"
#include "support/gradcheck.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TWIN_BYTES ((size_t)(quick() ? 256 : 2048) << 20)

typedef struct twin {
    hh_backend *cpu, *gpu;
    hh_arena host, device, staging; /* staging: host memory of one tensor in the GPU's type */
    hh_rng rng;
} twin;

/* The same tensor twice. On the CPU it is float32; on the GPU of the type asked for, whose rounding the CPU's has too. */
typedef struct both {
    hh_tensor cpu, gpu;
} both;

static twin tw;

/* Quick: at most `most`. Under compute-sanitizer every case is to reach its kernels, not to be large. */
static inline int64_t at_most(int64_t n, int64_t most) {
    return quick() && n > most ? most : n;
}

/* Opens both; false with a word on stderr when this machine has no GPU that can be used. */
static inline bool twin_open(hh_precision precision) {
    hh_error err = {0};
    if (hh_cuda_open(&tw.gpu, 0, precision, &err) != HH_OK) {
        fprintf(stderr, "skipped: %s\n", err.text);
        return false;
    }
    if (hh_cpu_open(&tw.cpu, quick() ? 1 : 0, HH_PRECISION_F32, "reference", &err) != HH_OK ||
        hh_arena_init(&tw.host, "host", TWIN_BYTES, &err) != HH_OK ||
        hh_arena_init(&tw.staging, "staging", TWIN_BYTES, &err) != HH_OK ||
        tw.gpu->arena_init(tw.gpu, &tw.device, "device", TWIN_BYTES, &err) != HH_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    tw.rng = hh_rng_seeded(1);
    return true;
}

static inline void twin_close(void) {
    if (!tw.gpu) return;
    hh_arena_release(&tw.host);
    hh_arena_release(&tw.staging);
    tw.gpu->arena_release(tw.gpu, &tw.device);
    hh_backend_close(tw.gpu);
    hh_backend_close(tw.cpu);
    memset(&tw, 0, sizeof tw);
}

/* All tensors of the last test are gone. */
static inline void twin_reset(void) {
    hh_arena_reset(&tw.host, 0);
    hh_arena_reset(&tw.device, 0);
}

/* A dense one as a single row. */
static inline both twin_flat(both b) {
    if (b.cpu.dim[0] < 2 || !hh_tensor_is_dense(b.cpu)) return b;
    const int64_t n = hh_tensor_count(b.cpu);
    return (both){hh_tensor_2d(b.cpu.data, b.cpu.dtype, 1, n), hh_tensor_2d(b.gpu.data, b.gpu.dtype, 1, n)};
}

/* Bytes from row to row, and of all rows, on the GPU. */
static inline size_t twin_apart(both b) {
    return hh_dtype_bytes(b.gpu.dtype, b.gpu.stride);
}
static inline size_t twin_all(both b) {
    return (size_t)b.gpu.dim[0] * twin_apart(b);
}

/* The CPU's values to the GPU, rounded to its type on both sides; what lies between the rows becomes NaN there. In one
 * copy: a sanitizer makes each of them dear. */
static inline void twin_upload(both b) {
    b = twin_flat(b);
    const int64_t row = hh_tensor_row_count(b.cpu);
    hh_arena_reset(&tw.staging, 0);
    char *raw = hh_arena_alloc(&tw.staging, twin_all(b));
    memset(raw, 0xff, twin_all(b));
    for (int64_t i = 0; i < b.cpu.dim[0]; i++) {
        hh_quantise(b.gpu.dtype, hh_row(b.cpu, i), row, raw + (size_t)i * twin_apart(b));
        hh_dequantise(b.gpu.dtype, raw + (size_t)i * twin_apart(b), row, hh_row(b.cpu, i));
    }
    tw.gpu->to_device(tw.gpu, b.gpu.data, raw, twin_all(b));
}

/* All that the GPU has of a tensor, in staging memory. */
static inline char *twin_download(both b) {
    hh_arena_reset(&tw.staging, 0);
    char *raw = hh_arena_alloc(&tw.staging, twin_all(b));
    tw.gpu->to_host(tw.gpu, raw, b.gpu.data, twin_all(b));
    return raw;
}

/* A tensor of `rank` dimensions whose rows are `pad` elements further apart than dense; values normal times `scale`
 * plus `shift`. What lies between the rows is NaN on the GPU. */
static inline both twin_tensor(hh_dtype gpu_dtype, int rank, int64_t d0, int64_t d1, int64_t d2, int64_t pad,
                               double scale, double shift) {
    both b;
    b.cpu = rank == 1   ? hh_tensor_1d(NULL, HH_DTYPE_REAL, d0)
            : rank == 2 ? hh_tensor_2d(NULL, HH_DTYPE_REAL, d0, d1)
                        : hh_tensor_3d(NULL, HH_DTYPE_REAL, d0, d1, d2);
    b.cpu.stride += pad;
    b.gpu = b.cpu;
    b.gpu.dtype = gpu_dtype;
    size_t n = (size_t)(d0 * b.cpu.stride);
    b.cpu.data = hh_arena_alloc(&tw.host, n * sizeof(hh_real));
    b.gpu.data = hh_arena_alloc(&tw.device, hh_dtype_bytes(gpu_dtype, (int64_t)n));
    for (int64_t i = 0; i < d0; i++)
        for (int64_t j = 0; j < hh_tensor_row_count(b.cpu); j++)
            hh_row(b.cpu, i)[j] = (hh_real)(shift + scale * hh_rng_normal(&tw.rng));
    twin_upload(b);
    return b;
}

/* An activation (the GPU's type), and a tensor that is float32 on both. */
static inline both twin_act(int rank, int64_t d0, int64_t d1, int64_t d2, int64_t pad) {
    return twin_tensor(tw.gpu->activation, rank, d0, d1, d2, pad, 1, 0);
}
static inline both twin_real(int rank, int64_t d0, int64_t d1, int64_t d2, double scale, double shift) {
    return twin_tensor(HH_DTYPE_F32, rank, d0, d1, d2, 0, scale, shift);
}

/* ||gpu - cpu|| / ||cpu||, infinite when anything on the GPU is not a number or memory between rows was written. */
static inline double twin_error(both b) {
    hh_error err = {0};
    if (tw.gpu->sync(tw.gpu, &err) != HH_OK) {
        fprintf(stderr, "%s\n", err.text);
        return INFINITY;
    }
    b = twin_flat(b);
    const int64_t row = hh_tensor_row_count(b.cpu);
    char *raw = twin_download(b);
    hh_real *x = hh_arena_alloc(&tw.staging, (size_t)row * sizeof *x);
    double difference = 0, size = 0;
    for (int64_t i = 0; i < b.cpu.dim[0]; i++, raw += twin_apart(b)) {
        for (size_t k = hh_dtype_bytes(b.gpu.dtype, row); k < twin_apart(b); k++)
            if ((unsigned char)raw[k] != 0xff) return INFINITY;
        hh_dequantise(b.gpu.dtype, raw, row, x);
        for (int64_t j = 0; j < row; j++) {
            double d = (double)x[j] - (double)hh_row(b.cpu, i)[j];
            difference += d * d;
            size += (double)hh_row(b.cpu, i)[j] * (double)hh_row(b.cpu, i)[j];
        }
    }
    double e = size > 0 ? sqrt(difference / size) : sqrt(difference);
    return isfinite(e) ? e : INFINITY;
}

/* How far results may be apart: float32 rounding, or that of bf16 inputs and outputs. */
static inline double twin_tolerance(void) {
    return tw.gpu->activation == HH_DTYPE_BF16 ? 1e-2 : 2e-5;
}

#define assert_twins(b)                                                                                                \
    do {                                                                                                               \
        double twin_e = twin_error(b);                                                                                 \
        if (!(twin_e <= twin_tolerance()))                                                                             \
            fail_msg("%s: the GPU is %.3g away from the CPU, %.3g allowed", #b, twin_e, twin_tolerance());             \
    } while (0)

#endif
