/* Causal depthwise convolution of width 4 over x [T,N] with w [N,4]; tap 3 is the present token.
 *
 *   F1  y_tc = sum_{j<4} w_cj x_{t-3+j, c}            x before a span is its tail[s] [3,N], oldest first
 *   F2  tail <- the last three inputs of (tail, span)
 *   B1  dx_tc = sum_{j<4} w_cj dy_{t+3-j, c}          inside the span; overwritten
 *   B2  dw_cj += sum_t dy_tc x_{t-3+j, c}             zeros before a span: training starts at position 0
 *
 * `tail` may be NULL: zeros before every span, nothing kept. y may not be x. Rows outside all spans are not written.
 */
#ifndef HH_OPS_CONV_H
#define HH_OPS_CONV_H

#include "ops/ops.h"

#define HH_CONV_WIDTH 4

#endif
