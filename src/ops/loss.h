/* Losses. The language-model head is part of them, so that the logits of a batch are never stored: tokens that take
 * part are gathered into tiles, a tile's logits z = x W^T stand in scratch, become their own gradient, and are
 * multiplied back.
 *
 * x [T,C], W [V,C], target int32[T]; p = softmax(z), pt the teacher's, from xt and wt. s is `scale`, w_t the row
 * weight.
 *
 *   F1  nll_t = log sum_v exp z_tv - z_t,target              argmax_t = the first v with the largest z_tv
 *   F2  kl_t = w_t sum_v pt_tv (log pt_tv - log p_tv)
 *   B1  ce_head: dz_tv = s (p_tv - [v = target_t])
 *   B2  kl_head: dz_tv = s (w_t (p_tv - pt_tv) + ce_weight (p_tv - [v = target_t]))
 *   B3  dx = dz W (overwritten);  dW += dz^T x
 *   F4  loss += s sum (y - target)^2                         B4  dy = 2 s (y - target)
 *
 * ce_head leaves out rows whose target is -1, kl_head those that also have weight 0: their nll, kl and dx are 0, their
 * argmax is -1. ce_head without targets computes argmax alone, of all rows. The row weight does not touch nll.
 */
#ifndef HH_OPS_LOSS_H
#define HH_OPS_LOSS_H

#include "ops/ops.h"

/* What is done with a row of V logits; here the reference and the fast kernels differ. */
typedef struct hh_loss_rows {
    /* F1; with `scale` not 0 z becomes B1. target -1: nll is 0. */
    void (*ce)(hh_real *z, int64_t V, int32_t target, hh_real scale, hh_real *nll, int32_t *argmax);
    /* F1 and F2 (without w_t); z becomes kl_scale (p - pt) + ce_scale (p - [target]) when one of them is not 0. */
    void (*kl)(hh_real *z, const hh_real *zt, int64_t V, int32_t target, hh_real kl_scale, hh_real ce_scale,
               hh_real *kl, hh_real *nll);
} hh_loss_rows;

/* The two heads with these row kernels. */
void hh_ce_head_by(hh_backend *be, hh_tensor nll, int32_t *argmax, hh_tensor dx, const hh_linear *dw, hh_tensor x,
                   const hh_linear *w, const int32_t *target, double scale, const hh_loss_rows *rows);
void hh_kl_head_by(hh_backend *be, hh_tensor kl, hh_tensor nll, hh_tensor dx, const hh_linear *dw, hh_tensor x,
                   const hh_linear *w, hh_tensor xt, const hh_linear *wt, const int32_t *target,
                   const float *row_weight, double scale, double ce_weight, const hh_loss_rows *rows);

#endif
