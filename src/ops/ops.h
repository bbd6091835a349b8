/* The op table: every operation the model is made of, forward and backward.
 *
 * One op = one header <op>.h with its equations and arguments, one <op>.c with the reference in hh_real, and where it
 * is hot a fast kernel in simd/ (compiled once for each instruction set) and later a .cu. ops.def lists the table's
 * slots; backends fill it. Conventions, for all ops:
 *
 * - Activations are tensors of the backend's type (be->activation; HH_DTYPE_REAL on the CPU), rows are tokens, rows
 *   may be strided. Always HH_DTYPE_REAL are statistics (rstd, lse, r), tables (cos, sin), gates behind their
 *   functions (g, beta, weight) and their gradients, GDN states and convolution tails, losses, small parameters
 *   (norms, biases, gamma, A_log, dt_bias, conv) and all gradients of weights. Matrices may be of any stored type
 *   where said so. Outputs never overlap inputs unless the op says "in place".
 * - Spans, ids, targets, row lists and other plain C arrays are host memory, also on a GPU.
 * - A gradient `da` of an input is ADDED to what da holds when `accumulate` is said in the op's name or comment, and
 *   overwritten otherwise. Weight gradients (dw, dbias, dgamma, ...) are always accumulated.
 * - An absent optional tensor has data NULL (HH_NONE).
 * - Shapes are asserted: a wrong one is a bug of the caller. Ops cannot fail; they allocate nothing but scratch.
 * - Sums are taken in a fixed order: a run repeats bit for bit with the same number of threads.
 */
#ifndef HH_OPS_OPS_H
#define HH_OPS_OPS_H

#include "tensor/backend.h"
#include "tensor/comm.h"

#define HH_NONE ((hh_tensor){0})

/* Rows [lo, hi) of the token dimension are one sequence (or a piece of one); row lo stands at position `pos`. */
typedef struct hh_span {
    int64_t lo, hi;
    int64_t pos;
} hh_span;

/* Keys and values of one span, from position 0 to at least pos + (hi - lo): [n, G, D], of type HH_DTYPE_REAL, F32, BF16
 * or Q8_0 (a cache), or views of the projections themselves when pos is 0 (training). */
typedef struct hh_kv {
    hh_tensor k, v;
} hh_kv;

/* A weight matrix [N, K] in row blocks, each of any stored type; part p gives output columns [sum of earlier N, ...).
 * Blocks that lie one behind another in memory are merged at load, so that trained and device weights are one product.
 */
typedef struct hh_part {
    hh_tensor w;    /* [n, K] */
    hh_tensor bias; /* [n] hh_real or HH_NONE */
} hh_part;

#define HH_MAX_PARTS 16
typedef struct hh_linear {
    int n_parts;
    int64_t n, k; /* all rows, columns */
    hh_part part[HH_MAX_PARTS];
} hh_linear;

/* What a mixer reads of the input projection, and how it is made; see mixer_inputs.h. */
typedef struct hh_mixer_path {
    hh_tensor x, y;        /* [T,h,D] of the projection, [T,h,D] for the mixer; the same where nothing convolves */
    hh_tensor conv, taps;  /* convolution: its output [T,h,D] (may be y), w [hD,4], or HH_NONE */
    const hh_tensor *tail; /* its tails, a span each, or NULL */
    hh_tensor norm, rstd;  /* RMSNorm: w [D] or HH_NONE, rstd [T,h] or HH_NONE */
    bool rotate;           /* rotary embedding */
    hh_tensor r;           /* l2 norm: r [T,h] or HH_NONE */
    double scale;          /* of the l2 norm */
} hh_mixer_path;

typedef struct hh_mixer_inputs {
    int n_paths;
    hh_mixer_path path[3];
    hh_tensor cos, sin;                      /* [T, D/2], where a path rotates */
    double eps;                              /* of the RMSNorm */
    hh_tensor g, beta, a, b, A_log, dt_bias; /* GDN's gates, or g HH_NONE */
    double beta_scale;
} hh_mixer_inputs;

typedef enum hh_gdn_mode { HH_GDN_CHUNKED, HH_GDN_RECURRENT } hh_gdn_mode;

#define HH_GDN_CHUNK 64 /* tokens in a chunk; K of docs/METHOD.md */

#define HH_BARE(...) __VA_ARGS__ /* HH_BARE (a, b): a, b */

#define HH_OP(name, arguments, names) typedef void hh_##name##_fn(hh_backend *be, HH_BARE arguments);
#include "ops/ops.def"
#undef HH_OP

struct hh_ops {
#define HH_OP(name, arguments, names) hh_##name##_fn *name;
#include "ops/ops.def"
#undef HH_OP
};

/* The reference implementations, complete: <name>_reference for every slot. */
#define HH_OP(name, arguments, names) hh_##name##_fn hh_##name##_reference;
#include "ops/ops.def"
#undef HH_OP

extern const hh_ops hh_ops_reference;

/* Opens the CPU backend: n_threads <= 0 takes all processors; isa NULL chooses the best this processor has, else
 * "reference", "avx2", "avx512". HH_EUNSUPPORTED when this processor or build lacks it. */
hh_code hh_cpu_open(hh_backend **out, int n_threads, hh_precision precision, const char *isa, hh_error *err);

/* Opens the CUDA backend on GPU number `device`: activations in bf16, or in float32 with HH_PRECISION_F32.
 * HH_EUNSUPPORTED with what is missing (build, driver, GPU, architecture). */
hh_code hh_cuda_open(hh_backend **out, int device, hh_precision precision, hh_error *err);
/* Makes a group of processes one of their GPUs: tensors that it moves are on `be`, a CUDA backend, then. All ranks call
 * and fail together; the group is closed before the backend. HH_EUNSUPPORTED when the build has no NCCL. */
hh_code hh_cuda_comm(hh_comm *c, hh_backend *be, hh_error *err);

#endif
