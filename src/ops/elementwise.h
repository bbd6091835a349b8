/* Copies, fills and sums: what moves numbers between tensors of one shape.
 *
 *   copy              y = x, converted: from any stored type to hh_real, F32, F64, F16, BF16 or Q8_0; strides respected
 *   fill              y = value
 *   axpy              y += alpha x
 *   gather_rows       y_i = x[rows_i]          y and x of one type
 *   scatter_add_rows  y[rows_i] += x_i         in the order of i; hh_real
 *
 * y, and x of axpy and scatter, are hh_real unless said otherwise. Shapes may differ in rank, not in rows and row
 * lengths.
 */
#ifndef HH_OPS_ELEMENTWISE_H
#define HH_OPS_ELEMENTWISE_H

#include "ops/ops.h"

#endif
