/* The CPU, with what a GPU keeps in bf16 rounded to it behind every operation: activations, and weights of products when a model is
 * opened by whole.h. How far it is from the CPU itself says what bf16 leaves of a whole model's result; a GPU may be about as far.
 * Header only. */
#ifndef HH_TESTS_SUPPORT_ROUNDED_H
#define HH_TESTS_SUPPORT_ROUNDED_H

#include "base/rng.h"
#include "model/model.h"
#include "ops/each.h"

#include <math.h>
#include <string.h>

/* Rows of a few numbers are statistics, gates and tables, which stay float32; so do the arrays between these addresses. */
enum { ROUNDED_LEAST = 17, ROUNDED_MOST_KEPT = 8 };
static struct rounded {
    const hh_ops *inner;
    const char *lo[ROUNDED_MOST_KEPT], *hi[ROUNDED_MOST_KEPT];
    int n_kept;
} rounded;

static void rounded_row(hh_real *x, int64_t n) {
    uint16_t half[256];
    for (int64_t some; n > 0; x += some, n -= some) {
        some = n < 256 ? n : 256;
        hh_quantise(HH_DTYPE_BF16, x, some, half);
        hh_dequantise(HH_DTYPE_BF16, half, some, x);
    }
}

static void rounded_tensor(hh_tensor t) {
    if (!t.data || t.dtype != HH_DTYPE_REAL || t.rank < 2 || hh_tensor_row_count(t) < ROUNDED_LEAST) return;
    for (int i = 0; i < rounded.n_kept; i++)
        if ((const char *)t.data >= rounded.lo[i] && (const char *)t.data < rounded.hi[i]) return;
    for (int64_t r = 0; r < t.dim[0]; r++) rounded_row((hh_real *)t.data + r * t.stride, hh_tensor_row_count(t));
}

/* Products of bf16 operands inside Gated DeltaNet leave half a percent of a result's size (bench_gdn, bench_gdn_bwd). */
#define ROUNDED_GDN 0.005
static void rounded_gdn(hh_tensor t) {
    static uint64_t calls;
    hh_rng rng = hh_rng_stream(1, calls++);
    double sum = 0;
    if (!t.data) return;
    const int64_t row = hh_tensor_row_count(t), n = hh_tensor_count(t);
    for (int64_t i = 0; i < n; i++) sum += pow((double)((hh_real *)t.data)[i / row * t.stride + i % row], 2);
    for (int64_t i = 0; i < n; i++)
        ((hh_real *)t.data)[i / row * t.stride + i % row] +=
            (hh_real)(ROUNDED_GDN * sqrt(sum / (double)n) * hh_rng_normal(&rng));
}

static void rounded_inputs(const hh_mixer_inputs *in) {
    for (int i = 0; in && i < in->n_paths; i++) {
        rounded_tensor(in->path[i].y);
        rounded_tensor(in->path[i].conv);
    }
}

#define ROUNDED_NOT(type, name)                                                                                        \
    static void name(type x) {                                                                                         \
        (void)x;                                                                                                       \
    }
ROUNDED_NOT(const void *, rounded_pointer)
ROUNDED_NOT(double, rounded_number)
ROUNDED_NOT(int64_t, rounded_count)

#define ROUNDED_ONE(x)                                                                                                 \
    _Generic((x),                                                                                                      \
        hh_tensor: rounded_tensor,                                                                                     \
        const hh_mixer_inputs *: rounded_inputs,                                                                       \
        bool: rounded_number,                                                                                          \
        double: rounded_number,                                                                                        \
        int64_t: rounded_count,                                                                                       \
        hh_gdn_mode: rounded_number,                                                                                   \
        default: rounded_pointer)(x)

#define HH_OP(name, arguments, names)                                                                                  \
    static void rounded_##name(hh_backend *be, HH_BARE arguments) {                                                    \
        rounded.inner->name(be, HH_BARE names);                                                                        \
        (void)(EACH(ROUNDED_ONE, HH_BARE names));                                                                      \
    }
#include "ops/ops.def"
#undef HH_OP

static void rounded_gdn_out(hh_backend *be, hh_tensor o, hh_tensor saved, hh_tensor q, hh_tensor k, hh_tensor v,
                            hh_tensor g, hh_tensor beta, const hh_tensor *state, const hh_span *span, int64_t n_spans,
                            hh_gdn_mode mode) {
    rounded_gdn_fwd(be, o, saved, q, k, v, g, beta, state, span, n_spans, mode);
    rounded_gdn(o);
}

static void rounded_gdn_in(hh_backend *be, hh_tensor dq, hh_tensor dk, hh_tensor dv, hh_tensor dg, hh_tensor dbeta,
                           hh_tensor do_, hh_tensor saved, hh_tensor q, hh_tensor k, hh_tensor v, hh_tensor g,
                           hh_tensor beta, const hh_tensor *dstate, const hh_span *span, int64_t n_spans,
                           hh_gdn_mode mode) {
    const hh_tensor results[] = {dq, dk, dv, dg, dbeta};
    rounded_gdn_bwd(be, dq, dk, dv, dg, dbeta, do_, saved, q, k, v, g, beta, dstate, span, n_spans, mode);
    for (int i = 0; i < 5; i++) rounded_gdn(results[i]);
}

static hh_ops rounded_ops = {
#define HH_OP(name, arguments, names) .name = rounded_##name,
#include "ops/ops.def"
#undef HH_OP
};

/* From here on `be`, a CPU, rounds; rounded_end makes it itself again. */
static inline void rounded_begin(hh_backend *be) {
    rounded = (struct rounded){.inner = be->ops};
    rounded_ops.gdn_fwd = rounded_gdn_out;
    rounded_ops.gdn_bwd = rounded_gdn_in;
    be->ops = &rounded_ops;
}

static inline void rounded_end(hh_backend *be) {
    be->ops = rounded.inner;
}

/* Weights, gradients: float32 as they are. Does nothing when nobody rounds. */
static inline void rounded_keep(const hh_backend *be, hh_tensor flat) {
    if (be->ops != &rounded_ops) return;
    HH_ASSERT(rounded.n_kept < ROUNDED_MOST_KEPT);
    rounded.lo[rounded.n_kept] = flat.data;
    rounded.hi[rounded.n_kept++] = (const char *)flat.data + hh_tensor_bytes(flat);
}

/* A model just opened with HH_LOAD_REAL. Does nothing when nobody rounds. */
static inline void rounded_model(const hh_model *m) {
    if (m->be->ops != &rounded_ops) return;
    rounded.n_kept = 0;
    rounded_keep(m->be, m->flat);
    for (int64_t i = 0; i < m->n_params; i++) {
        const hh_tensor t = *m->param[i].slot;
        for (int64_t r = 0; m->param[i].product && r < t.dim[0]; r++)
            rounded_row((hh_real *)t.data + r * t.stride, hh_tensor_row_count(t));
    }
}

#endif
