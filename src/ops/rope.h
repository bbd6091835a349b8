/* Rotary position embedding in the rotate-half convention: pair i of a head is (x_i, x_{i + D/2}).
 *
 *   F1  angle_ti = (position of row t) inv_freq_i;  cos = factor cos(angle), sin = factor sin(angle)    [T, D/2]
 *   F2  (u, v) <- (u cos - v sin, v cos + u sin)    in place on x [T,h,D]
 *   B1  the same with -sin (`inverse`): the transpose of F2, factor included
 *
 * A row's position is its span's `pos` plus its distance from the span's start; angles are taken in double, so that
 * positions beyond 2^24 stay exact. Rows outside all spans are not written.
 */
#ifndef HH_OPS_ROPE_H
#define HH_OPS_ROPE_H

#include "ops/ops.h"

#endif
