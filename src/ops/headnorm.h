/* Scale-normalised fusion: every head's output is brought to unit RMS by itself and given a learnt scale of its own.
 *
 *   F1  r = 1 / sqrt(mean o^2 + eps)                            over D of o [T,H,D]; kept in rstd [T,H]
 *   F2  y = gamma_h weight_th o r                               gamma [H] or HH_NONE (1); weight [T,H] or HH_NONE (1)
 *   B1  o^ = o r;  s = sum_D dy o^
 *   B2  do = gamma_h weight_th r (dy - o^ s / D)                overwritten
 *   B3  dgamma_h += sum_t weight_th s                           or HH_NONE
 *   B4  dweight_th = gamma_h s                                  overwritten; or HH_NONE
 *
 * y may be o (the backward is given o as it was); do_ may be dy.
 *
 * Head weights of fusion "gate":
 *   F3  weight_h = H exp(z_h) / sum_j exp(z_j)                  [T,H]
 *   B5  dz_h = weight_h (dweight_h - (1/H) sum_j dweight_j weight_j)    dz may be dweight
 */
#ifndef HH_OPS_HEADNORM_H
#define HH_OPS_HEADNORM_H

#include "ops/ops.h"

#endif
