/* The optimizer's arithmetic on flat arrays: AdamW and the sum of squares that clipping needs.
 *
 * All tensors dense hh_real of one size. `step` counts from 1.
 *
 *   F1  out += sum_i x_i^2                            in double, in a fixed order
 *   F2  g = grad_scale * grad
 *       m = beta1 m + (1 - beta1) g                   v = beta2 v + (1 - beta2) g^2
 *       p = p (1 - lr weight_decay) - lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
 */
#ifndef HH_OPS_OPTIMIZER_H
#define HH_OPS_OPTIMIZER_H

#include "ops/ops.h"

/* F2's constants of one step. */
typedef struct hh_adamw_step {
    hh_real beta1, one_minus_beta1, beta2, one_minus_beta2;
    hh_real decay;        /* 1 - lr weight_decay */
    hh_real rate;         /* lr / (1 - beta1^step) */
    hh_real inverse_root; /* 1 / sqrt(1 - beta2^step) */
    hh_real eps, grad_scale;
} hh_adamw_step;

hh_adamw_step hh_adamw_constants(double lr, double beta1, double beta2, double eps, double weight_decay,
                                 double grad_scale, int64_t step);

/* Runs F1 or F2 over pieces of `n` numbers with these inner loops; what the reference and the fast kernels share. */
typedef double hh_sum_squares_piece(const hh_real *x, int64_t n);
typedef void hh_adamw_piece(const hh_adamw_step *s, hh_real *p, hh_real *m, hh_real *v, const hh_real *grad, int64_t n);
void hh_sum_squares_by(hh_backend *be, double *out, hh_tensor x, hh_sum_squares_piece *piece);
void hh_adamw_by(hh_backend *be, hh_tensor p, hh_tensor m, hh_tensor v, hh_tensor grad, const hh_adamw_step *s,
                 hh_adamw_piece *piece);

#endif
