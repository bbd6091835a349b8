/* Reductions for those who look at activations: probing, calibration, the search for values that are not finite.
 *
 *   F1  head_dot: out_h = sum_t a_th . (b_th - c_th)             a, b, c [T,H,D]; c may be HH_NONE (0); out [H] hh_real
 *   F2  find_nonfinite: the first value of x, row by row, that is not finite, as row * (numbers of a row) + column; -1: none
 *
 * F1 is summed in double on the CPU, in float32 over a fixed tree on a GPU. F2's result is the host's: it waits.
 */
#ifndef HH_OPS_REDUCE_H
#define HH_OPS_REDUCE_H

#include "ops/ops.h"

#endif
