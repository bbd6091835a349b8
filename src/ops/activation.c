/* The references of the gated activations; see activation.h. */
#include "ops/activation.h"
#include "ops/scalar.h"
#include "ops/shape.h"

void hh_sigmoid_gate_fwd_reference(hh_backend *be, hh_tensor y, hh_tensor x, hh_tensor z) {
    (void)be;
    HH_ASSERT(hh_is_real_like(y, x) && hh_is_real_like(z, x));
    const int64_t n = hh_tensor_row_count(x);
    for (int64_t t = 0; t < x.dim[0]; t++)
        for (int64_t i = 0; i < n; i++) hh_row(y, t)[i] = hh_row(x, t)[i] * hh_sigmoid(hh_row(z, t)[i]); /* F1 */
}

void hh_sigmoid_gate_bwd_reference(hh_backend *be, hh_tensor dx, hh_tensor dz, hh_tensor dy, hh_tensor x, hh_tensor z) {
    (void)be;
    HH_ASSERT(hh_is_real_like(dx, x) && hh_is_real_like(dz, x) && hh_is_real_like(dy, x) && hh_is_real_like(z, x));
    const int64_t n = hh_tensor_row_count(x);
    for (int64_t t = 0; t < x.dim[0]; t++)
        for (int64_t i = 0; i < n; i++) {
            const hh_real d = hh_row(dy, t)[i], in = hh_row(x, t)[i], s = hh_sigmoid(hh_row(z, t)[i]);
            hh_row(dx, t)[i] = d * s; /* B1 */
            hh_row(dz, t)[i] = d * in * s * (1 - s);
        }
}

void hh_swiglu_fwd_reference(hh_backend *be, hh_tensor y, hh_tensor gate, hh_tensor up) {
    (void)be;
    HH_ASSERT(hh_is_real_like(y, gate) && hh_is_real_like(up, gate));
    const int64_t n = hh_tensor_row_count(gate);
    for (int64_t t = 0; t < gate.dim[0]; t++)
        for (int64_t i = 0; i < n; i++) {
            const hh_real x = hh_row(gate, t)[i];
            hh_row(y, t)[i] = x * hh_sigmoid(x) * hh_row(up, t)[i]; /* F2 */
        }
}

void hh_swiglu_bwd_reference(hh_backend *be, hh_tensor dgate, hh_tensor dup, hh_tensor dy, hh_tensor gate,
                             hh_tensor up) {
    (void)be;
    HH_ASSERT(hh_is_real_like(dgate, gate) && hh_is_real_like(dup, gate));
    HH_ASSERT(hh_is_real_like(dy, gate) && hh_is_real_like(up, gate));
    const int64_t n = hh_tensor_row_count(gate);
    for (int64_t t = 0; t < gate.dim[0]; t++)
        for (int64_t i = 0; i < n; i++) {
            const hh_real x = hh_row(gate, t)[i], u = hh_row(up, t)[i], d = hh_row(dy, t)[i], s = hh_sigmoid(x);
            hh_row(dup, t)[i] = d * x * s; /* B2 */
            hh_row(dgate, t)[i] = d * u * s * (1 + x * (1 - s));
        }
}
