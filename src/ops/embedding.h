/* The embedding: rows of a table by token id.
 *
 * W [V,C] of any stored type, ids int32[T] in [0, V), y and dy [T,C] hh_real, dW [V,C] hh_real.
 *
 *   F1  y_t = W[ids_t]
 *   B1  dW[ids_t] += dy_t          in the order of t, whatever the number of threads
 */
#ifndef HH_OPS_EMBEDDING_H
#define HH_OPS_EMBEDDING_H

#include "ops/ops.h"

#endif
