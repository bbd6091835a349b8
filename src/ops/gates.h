/* The gates of Gated DeltaNet: how much of the state is kept and how strongly a token writes. All [T,h]; A_log, dt_bias
 * [h].
 *
 *   F1  g = -exp(A_log) softplus(a + dt_bias)                   log-decay, <= 0
 *   F2  beta = beta_scale sigmoid(b)
 *   B1  da = -exp(A_log) sigmoid(a + dt_bias) dg                overwritten
 *   B2  dA_log += sum_t g dg
 *   B3  ddt_bias += sum_t da
 *   B4  db = dbeta beta_scale sigmoid(b) (1 - sigmoid(b))       overwritten
 *
 * softplus(x) = max(x, 0) + log1p(exp(-|x|)): exact in both tails.
 */
#ifndef HH_OPS_GATES_H
#define HH_OPS_GATES_H

#include "ops/ops.h"

#endif
