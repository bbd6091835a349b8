/* Gated activations in vectors; equations and tags in ops/activation.h. */
#include "ops/activation.h"
#include "ops/simd/rows.h"

typedef struct gated {
    hh_tensor y, dx, dz, dy, x, z;
    int64_t n;
} gated;

#define COST 4 /* an exponential against a copy */

static void gate_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const gated *c = context;
    (void)partial;
    for (int64_t t = lo; t < hi; t++) {
        const float *x = hh_row(c->x, t), *z = hh_row(c->z, t);
        float *y = hh_row(c->y, t);
        for (int64_t i = 0; i < c->n; i += HH_VW)
            hh_vstore_upto(y + i, hh_vload_upto(x + i, c->n - i) * hh_vsigmoid(hh_vload_upto(z + i, c->n - i)),
                           c->n - i); /* F1 */
    }
}

void HH_SIMD_NAME(sigmoid_gate_fwd)(hh_backend *be, hh_tensor y, hh_tensor x, hh_tensor z) {
    HH_ASSERT(hh_is_real_like(y, x) && hh_is_real_like(z, x));
    const gated c = {.y = y, .x = x, .z = z, .n = hh_tensor_row_count(x)};
    hh_over_rows(be, x.dim[0], c.n * COST, gate_rows, &c);
}

static void gate_bwd_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const gated *c = context;
    (void)partial;
    for (int64_t t = lo; t < hi; t++)
        for (int64_t i = 0; i < c->n; i += HH_VW) {
            const int64_t left = c->n - i;
            const hh_vf d = hh_vload_upto(hh_row(c->dy, t) + i, left), x = hh_vload_upto(hh_row(c->x, t) + i, left);
            const hh_vf s = hh_vsigmoid(hh_vload_upto(hh_row(c->z, t) + i, left));
            hh_vstore_upto(hh_row(c->dx, t) + i, d * s, left); /* B1 */
            hh_vstore_upto(hh_row(c->dz, t) + i, d * x * s * (1.0f - s), left);
        }
}

void HH_SIMD_NAME(sigmoid_gate_bwd)(hh_backend *be, hh_tensor dx, hh_tensor dz, hh_tensor dy, hh_tensor x,
                                    hh_tensor z) {
    HH_ASSERT(hh_is_real_like(dx, x) && hh_is_real_like(dz, x) && hh_is_real_like(dy, x) && hh_is_real_like(z, x));
    const gated c = {.dx = dx, .dz = dz, .dy = dy, .x = x, .z = z, .n = hh_tensor_row_count(x)};
    hh_over_rows(be, x.dim[0], c.n * COST, gate_bwd_rows, &c);
}

/* x is the gate, z the up projection. */
static void swiglu_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const gated *c = context;
    (void)partial;
    for (int64_t t = lo; t < hi; t++) {
        const float *gate = hh_row(c->x, t), *up = hh_row(c->z, t);
        float *y = hh_row(c->y, t);
        for (int64_t i = 0; i < c->n; i += HH_VW) {
            const hh_vf x = hh_vload_upto(gate + i, c->n - i);
            hh_vstore_upto(y + i, x * hh_vsigmoid(x) * hh_vload_upto(up + i, c->n - i), c->n - i); /* F2 */
        }
    }
}

void HH_SIMD_NAME(swiglu_fwd)(hh_backend *be, hh_tensor y, hh_tensor gate, hh_tensor up) {
    HH_ASSERT(hh_is_real_like(y, gate) && hh_is_real_like(up, gate));
    const gated c = {.y = y, .x = gate, .z = up, .n = hh_tensor_row_count(gate)};
    hh_over_rows(be, gate.dim[0], c.n * COST, swiglu_rows, &c);
}

static void swiglu_bwd_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const gated *c = context;
    (void)partial;
    for (int64_t t = lo; t < hi; t++)
        for (int64_t i = 0; i < c->n; i += HH_VW) {
            const int64_t left = c->n - i;
            const hh_vf d = hh_vload_upto(hh_row(c->dy, t) + i, left), x = hh_vload_upto(hh_row(c->x, t) + i, left);
            const hh_vf up = hh_vload_upto(hh_row(c->z, t) + i, left), s = hh_vsigmoid(x);
            hh_vstore_upto(hh_row(c->dz, t) + i, d * x * s, left); /* B2 */
            hh_vstore_upto(hh_row(c->dx, t) + i, d * up * s * (1.0f + x * (1.0f - s)), left);
        }
}

void HH_SIMD_NAME(swiglu_bwd)(hh_backend *be, hh_tensor dgate, hh_tensor dup, hh_tensor dy, hh_tensor gate,
                              hh_tensor up) {
    HH_ASSERT(hh_is_real_like(dgate, gate) && hh_is_real_like(dup, gate));
    HH_ASSERT(hh_is_real_like(dy, gate) && hh_is_real_like(up, gate));
    const gated c = {.dx = dgate, .dz = dup, .dy = dy, .x = gate, .z = up, .n = hh_tensor_row_count(gate)};
    hh_over_rows(be, gate.dim[0], c.n * COST, swiglu_bwd_rows, &c);
}
