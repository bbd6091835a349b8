/* The reference of the head norm and of head weights; see headnorm.h. */
#include "ops/headnorm.h"
#include "ops/shape.h"

#include <tgmath.h>

static hh_real scale_of(hh_tensor gamma, hh_tensor weight, int64_t t, int64_t h) {
    const hh_real g = gamma.data ? ((const hh_real *)gamma.data)[h] : 1;
    return weight.data ? g * hh_row(weight, t)[h] : g;
}

void hh_headnorm_fwd_reference(hh_backend *be, hh_tensor y, hh_tensor rstd, hh_tensor o, hh_tensor gamma,
                               hh_tensor weight, double eps) {
    (void)be;
    const int64_t T = o.dim[0], H = o.dim[1], D = o.dim[2];
    HH_ASSERT(hh_is_real_heads(o, T, H, D) && hh_is_real_like(y, o) && hh_is_real_matrix(rstd, T, H));
    HH_ASSERT(hh_is_absent(gamma) || hh_is_real_vector(gamma, H));
    HH_ASSERT(hh_is_absent(weight) || hh_is_real_matrix(weight, T, H));
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < H; h++) {
            const hh_real *in = hh_row(o, t) + h * D;
            hh_real *out = hh_row(y, t) + h * D;
            double sum = 0;
            for (int64_t i = 0; i < D; i++) sum += (double)in[i] * (double)in[i];
            const hh_real r = (hh_real)(1 / sqrt(sum / (double)D + eps)); /* F1 */
            hh_row(rstd, t)[h] = r;
            const hh_real factor = scale_of(gamma, weight, t, h) * r;
            for (int64_t i = 0; i < D; i++) out[i] = factor * in[i]; /* F2 */
        }
}

void hh_headnorm_bwd_reference(hh_backend *be, hh_tensor do_, hh_tensor dgamma, hh_tensor dweight, hh_tensor dy,
                               hh_tensor o, hh_tensor gamma, hh_tensor weight, hh_tensor rstd) {
    (void)be;
    const int64_t T = o.dim[0], H = o.dim[1], D = o.dim[2];
    HH_ASSERT(hh_is_real_heads(o, T, H, D) && hh_is_real_like(do_, o) && hh_is_real_like(dy, o));
    HH_ASSERT(hh_is_real_matrix(rstd, T, H) && (hh_is_absent(gamma) || hh_is_real_vector(gamma, H)));
    HH_ASSERT(hh_is_absent(dgamma) || hh_is_real_vector(dgamma, H));
    HH_ASSERT(hh_is_absent(weight) || hh_is_real_matrix(weight, T, H));
    HH_ASSERT(hh_is_absent(dweight) || hh_is_real_matrix(dweight, T, H));
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < H; h++) {
            const hh_real *in = hh_row(o, t) + h * D, *grad = hh_row(dy, t) + h * D, r = hh_row(rstd, t)[h];
            hh_real *out = hh_row(do_, t) + h * D;
            double sum = 0;
            for (int64_t i = 0; i < D; i++) sum += (double)grad[i] * (double)(in[i] * r); /* B1 */
            const hh_real along = (hh_real)sum, mean = (hh_real)(sum / (double)D);
            const hh_real factor = scale_of(gamma, weight, t, h) * r;
            for (int64_t i = 0; i < D; i++) out[i] = factor * (grad[i] - in[i] * r * mean);          /* B2 */
            if (dgamma.data) ((hh_real *)dgamma.data)[h] += scale_of(HH_NONE, weight, t, h) * along; /* B3 */
            if (dweight.data) hh_row(dweight, t)[h] = scale_of(gamma, HH_NONE, t, h) * along;        /* B4 */
        }
}

void hh_head_weight_fwd_reference(hh_backend *be, hh_tensor weight, hh_tensor z) {
    (void)be;
    const int64_t T = z.dim[0], H = z.dim[1];
    HH_ASSERT(hh_is_real_matrix(z, T, H) && hh_is_real_like(weight, z));
    for (int64_t t = 0; t < T; t++) {
        const hh_real *in = hh_row(z, t);
        hh_real *out = hh_row(weight, t), top = in[0], sum = 0;
        for (int64_t h = 1; h < H; h++) top = in[h] > top ? in[h] : top;
        for (int64_t h = 0; h < H; h++) sum += out[h] = exp(in[h] - top);
        for (int64_t h = 0; h < H; h++) out[h] *= (hh_real)H / sum; /* F3 */
    }
}

void hh_head_weight_bwd_reference(hh_backend *be, hh_tensor dz, hh_tensor dweight, hh_tensor weight) {
    (void)be;
    const int64_t T = weight.dim[0], H = weight.dim[1];
    HH_ASSERT(hh_is_real_matrix(weight, T, H) && hh_is_real_like(dz, weight) && hh_is_real_like(dweight, weight));
    for (int64_t t = 0; t < T; t++) {
        const hh_real *w = hh_row(weight, t), *grad = hh_row(dweight, t);
        hh_real *out = hh_row(dz, t), mean = 0;
        for (int64_t h = 0; h < H; h++) mean += grad[h] * w[h] / (hh_real)H;
        for (int64_t h = 0; h < H; h++) out[h] = w[h] * (grad[h] - mean); /* B5 */
    }
}
