/* The reference of the gates; see gates.h. */
#include "ops/gates.h"
#include "ops/scalar.h"
#include "ops/shape.h"

void hh_gdn_gates_fwd_reference(hh_backend *be, hh_tensor g, hh_tensor beta, hh_tensor a, hh_tensor b, hh_tensor A_log,
                                hh_tensor dt_bias, double beta_scale) {
    (void)be;
    const int64_t T = a.dim[0], heads = a.dim[1];
    HH_ASSERT(hh_is_real_matrix(a, T, heads) && hh_is_real_like(b, a) && hh_is_real_like(g, a) &&
              hh_is_real_like(beta, a));
    HH_ASSERT(hh_is_real_vector(A_log, heads) && hh_is_real_vector(dt_bias, heads));
    const hh_real *log_rate = A_log.data, *bias = dt_bias.data;
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < heads; h++) {
            hh_row(g, t)[h] = -exp(log_rate[h]) * hh_softplus(hh_row(a, t)[h] + bias[h]); /* F1 */
            hh_row(beta, t)[h] = (hh_real)beta_scale * hh_sigmoid(hh_row(b, t)[h]);       /* F2 */
        }
}

void hh_gdn_gates_bwd_reference(hh_backend *be, hh_tensor da, hh_tensor db, hh_tensor dA_log, hh_tensor ddt_bias,
                                hh_tensor dg, hh_tensor dbeta, hh_tensor a, hh_tensor b, hh_tensor A_log,
                                hh_tensor dt_bias, double beta_scale) {
    (void)be;
    const int64_t T = a.dim[0], heads = a.dim[1];
    HH_ASSERT(hh_is_real_matrix(a, T, heads) && hh_is_real_like(b, a) && hh_is_real_like(da, a) &&
              hh_is_real_like(db, a));
    HH_ASSERT(hh_is_real_like(dg, a) && hh_is_real_like(dbeta, a));
    HH_ASSERT(hh_is_real_vector(A_log, heads) && hh_is_real_vector(dt_bias, heads));
    HH_ASSERT(hh_is_real_vector(dA_log, heads) && hh_is_real_vector(ddt_bias, heads));
    const hh_real *log_rate = A_log.data, *bias = dt_bias.data;
    hh_real *dlog_rate = dA_log.data, *dbias = ddt_bias.data;
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < heads; h++) {
            const hh_real rate = -exp(log_rate[h]), x = hh_row(a, t)[h] + bias[h];
            const hh_real grad = hh_row(dg, t)[h], strength = hh_sigmoid(hh_row(b, t)[h]);
            const hh_real d = rate * hh_sigmoid(x) * grad;                                            /* B1 */
            dlog_rate[h] += rate * hh_softplus(x) * grad;                                             /* B2 */
            dbias[h] += d;                                                                            /* B3 */
            hh_row(db, t)[h] = hh_row(dbeta, t)[h] * (hh_real)beta_scale * strength * (1 - strength); /* B4 */
            hh_row(da, t)[h] = d;
        }
}
