/* Unit length for the queries and keys of Gated DeltaNet, over D of x [T,h,D].
 *
 *   F1  r = 1 / sqrt(sum x^2 + 1e-6)                            kept in r [T,h]
 *   F2  y = scale x r
 *   B1  x^ = y / scale;  dx = scale r (dy - x^ (x^ . dy))       finite at x = 0, where r = 1000
 *
 * y may be x and dx may be dy.
 */
#ifndef HH_OPS_L2NORM_H
#define HH_OPS_L2NORM_H

#include "ops/ops.h"

#define HH_L2NORM_EPS 1e-6

#endif
