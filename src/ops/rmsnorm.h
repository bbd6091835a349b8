/* RMSNorm over the last dimension C of x [T,C], or D of every head of x [T,h,D].
 *
 *   F1  r = 1 / sqrt(mean x^2 + eps)          one a group: rstd [T] or [T,h]; HH_NONE: not kept, no backward may follow
 *   F2  y = x r w                             w [C or D], or HH_NONE (1)
 *   F3  add_rmsnorm_fwd: x <- x + d, then F1 and F2
 *   B1  x^ = x r
 *   B2  dx = r (dy w - x^ mean(dy w x^))      overwritten, or added to when `accumulate`
 *   B3  dw += sum over groups of dy x^        dw may be HH_NONE
 *
 * y may be x; the backward is given x as it was. dx may be dy (when it does not accumulate). Means are taken in double.
 */
#ifndef HH_OPS_RMSNORM_H
#define HH_OPS_RMSNORM_H

#include "ops/ops.h"

#endif
