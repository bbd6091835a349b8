/* What the files of the fast linear map share: linear.c (many tokens) and matvec.c (few). */
#ifndef HH_OPS_SIMD_LINEAR_PARTS_H
#define HH_OPS_SIMD_LINEAR_PARTS_H

#include "ops/linear.h"
#include "ops/simd/simd.h"

/* Up to this many tokens weights are read once and multiplied as they are stored; beyond it they are widened a tile at
 * a time and multiplied by a matrix product. */
#define HH_FEW_TOKENS 6

/* F1 for few tokens. */
void HH_SIMD_NAME(linear_few)(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w, bool accumulate);

#endif
