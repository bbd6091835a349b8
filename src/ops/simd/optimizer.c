/* Fast inner loops of the optimizer; the loops over threads are those of ops/optimizer.c. */
#include "ops/optimizer.h"
#include "ops/simd/simd.h"

/* Squares of float are exact in double; four sums of doubles stand in vectors of half the length. */
static double sum_squares_piece(const float *x, int64_t n) {
    double s[HH_VW] = {0};
    int64_t i = 0;
    for (; i + HH_VW <= n; i += HH_VW)
        for (int l = 0; l < HH_VW; l++) s[l] += (double)x[i + l] * (double)x[i + l];
    for (; i < n; i++) s[0] += (double)x[i] * (double)x[i];
    double sum = 0;
    for (int l = 0; l < HH_VW; l++) sum += s[l];
    return sum;
}

void HH_SIMD_NAME(sum_squares)(hh_backend *be, double *out, hh_tensor x) {
    hh_sum_squares_by(be, out, x, sum_squares_piece);
}

/* F2 for one vector. */
static inline void step_vector(const hh_adamw_step *s, hh_vf *p, hh_vf *m, hh_vf *v, hh_vf grad) {
    hh_vf g = s->grad_scale * grad;
    *m = hh_vfma(hh_vset(s->beta1), *m, s->one_minus_beta1 * g);
    *v = hh_vfma(hh_vset(s->beta2), *v, s->one_minus_beta2 * g * g);
    hh_vf root = hh_vfma(hh_vsqrt(*v), hh_vset(s->inverse_root), hh_vset(s->eps));
    *p = *p * s->decay - s->rate * *m / root;
}

static void adamw_piece(const hh_adamw_step *s, float *p, float *m, float *v, const float *grad, int64_t n) {
    const hh_adamw_step c = *s;
    int64_t i = 0;
    for (; i + HH_VW <= n; i += HH_VW) {
        hh_vf a = hh_vload(p + i), b = hh_vload(m + i), d = hh_vload(v + i);
        step_vector(&c, &a, &b, &d, hh_vload(grad + i));
        hh_vstore(p + i, a);
        hh_vstore(m + i, b);
        hh_vstore(v + i, d);
    }
    if (i == n) return;
    hh_vf a = hh_vload_n(p + i, n - i), b = hh_vload_n(m + i, n - i), d = hh_vload_n(v + i, n - i);
    step_vector(&c, &a, &b, &d, hh_vload_n(grad + i, n - i));
    hh_vstore_n(p + i, a, n - i);
    hh_vstore_n(m + i, b, n - i);
    hh_vstore_n(v + i, d, n - i);
}

void HH_SIMD_NAME(adamw)(hh_backend *be, hh_tensor p, hh_tensor m, hh_tensor v, hh_tensor grad, double lr, double beta1,
                         double beta2, double eps, double weight_decay, double grad_scale, int64_t step) {
    hh_adamw_step s = hh_adamw_constants(lr, beta1, beta2, eps, weight_decay, grad_scale, step);
    hh_adamw_by(be, p, m, v, grad, &s, adamw_piece);
}
