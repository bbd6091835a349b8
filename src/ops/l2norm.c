/* The reference of the l2 norm; see l2norm.h. */
#include "ops/l2norm.h"
#include "ops/shape.h"

#include <tgmath.h>

void hh_l2norm_fwd_reference(hh_backend *be, hh_tensor y, hh_tensor r, hh_tensor x, double scale) {
    (void)be;
    const int64_t n = hh_last_dim(x);
    HH_ASSERT(hh_is_real_like(y, x) && hh_is_real_per_group(r, x));
    for (int64_t t = 0; t < x.dim[0]; t++)
        for (int64_t h = 0; h < hh_groups(x); h++) {
            const hh_real *in = hh_row(x, t) + h * n;
            hh_real *out = hh_row(y, t) + h * n;
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += (double)in[i] * (double)in[i];
            const hh_real inverse = (hh_real)(1 / sqrt(sum + HH_L2NORM_EPS)); /* F1 */
            hh_row(r, t)[h] = inverse;
            for (int64_t i = 0; i < n; i++) out[i] = (hh_real)scale * in[i] * inverse; /* F2 */
        }
}

void hh_l2norm_bwd_reference(hh_backend *be, hh_tensor dx, hh_tensor dy, hh_tensor y, hh_tensor r, double scale) {
    (void)be;
    const int64_t n = hh_last_dim(y);
    HH_ASSERT(hh_is_real_like(dx, y) && hh_is_real_like(dy, y) && hh_is_real_per_group(r, y));
    const hh_real unscale = 1 / (hh_real)scale;
    for (int64_t t = 0; t < y.dim[0]; t++)
        for (int64_t h = 0; h < hh_groups(y); h++) {
            const hh_real *unit = hh_row(y, t) + h * n, *grad = hh_row(dy, t) + h * n;
            hh_real *out = hh_row(dx, t) + h * n;
            double dot = 0;
            for (int64_t i = 0; i < n; i++) dot += (double)(unit[i] * unscale) * (double)grad[i];
            const hh_real along = (hh_real)dot, factor = (hh_real)scale * hh_row(r, t)[h];
            for (int64_t i = 0; i < n; i++) out[i] = factor * (grad[i] - unit[i] * unscale * along); /* B1 */
        }
}
