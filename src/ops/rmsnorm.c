/* The reference of RMSNorm; see rmsnorm.h. */
#include "ops/rmsnorm.h"
#include "ops/shape.h"

#include <tgmath.h>

void hh_rmsnorm_fwd_reference(hh_backend *be, hh_tensor y, hh_tensor rstd, hh_tensor x, hh_tensor w, double eps) {
    (void)be;
    const int64_t n = hh_last_dim(x), groups = hh_groups(x);
    HH_ASSERT(hh_is_real_like(y, x) && (hh_is_absent(w) || hh_is_real_vector(w, n)));
    HH_ASSERT(hh_is_absent(rstd) || hh_is_real_per_group(rstd, x));
    const hh_real *weight = w.data;
    for (int64_t t = 0; t < x.dim[0]; t++)
        for (int64_t h = 0; h < groups; h++) {
            const hh_real *in = hh_row(x, t) + h * n;
            hh_real *out = hh_row(y, t) + h * n;
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += (double)in[i] * (double)in[i];
            const hh_real r = (hh_real)(1 / sqrt(sum / (double)n + eps)); /* F1 */
            if (rstd.data) hh_row(rstd, t)[h] = r;
            for (int64_t i = 0; i < n; i++) out[i] = in[i] * r * (weight ? weight[i] : 1); /* F2 */
        }
}

void hh_rmsnorm_bwd_reference(hh_backend *be, hh_tensor dx, hh_tensor dw, hh_tensor dy, hh_tensor x, hh_tensor w,
                              hh_tensor rstd, bool accumulate) {
    (void)be;
    const int64_t n = hh_last_dim(x), groups = hh_groups(x);
    HH_ASSERT(hh_is_real_like(dx, x) && hh_is_real_like(dy, x) && hh_is_real_per_group(rstd, x));
    HH_ASSERT(hh_is_absent(w) || hh_is_real_vector(w, n));
    HH_ASSERT(hh_is_absent(dw) || hh_is_real_vector(dw, n));
    const hh_real *weight = w.data;
    hh_real *dweight = dw.data;
    for (int64_t t = 0; t < x.dim[0]; t++)
        for (int64_t h = 0; h < groups; h++) {
            const hh_real *in = hh_row(x, t) + h * n, *grad = hh_row(dy, t) + h * n;
            hh_real *out = hh_row(dx, t) + h * n;
            const hh_real r = hh_row(rstd, t)[h];
            double sum = 0;
            for (int64_t i = 0; i < n; i++)
                sum += (double)grad[i] * (double)(weight ? weight[i] : 1) * (double)(in[i] * r);
            const hh_real mean = (hh_real)(sum / (double)n);
            for (int64_t i = 0; i < n; i++) {
                const hh_real g = grad[i], unit = in[i] * r;                        /* B1 */
                const hh_real d = r * (g * (weight ? weight[i] : 1) - unit * mean); /* B2 */
                out[i] = accumulate ? out[i] + d : d;
                if (dweight) dweight[i] += g * unit; /* B3 */
            }
        }
}

void hh_add_rmsnorm_fwd_reference(hh_backend *be, hh_tensor y, hh_tensor rstd, hh_tensor x, hh_tensor d, hh_tensor w,
                                  double eps) {
    be->ops->axpy(be, x, 1, d); /* F3 */
    be->ops->rmsnorm_fwd(be, y, rstd, x, w, eps);
}
