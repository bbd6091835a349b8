/* The linear map: every projection of the model, forward and backward.
 *
 * x [T,K], y [T,N] hh_real, rows may be strided. W [N,K] in parts (row blocks) of any stored type; part p's rows give
 * y's columns [sum of the earlier parts' rows, ...). Quantised weights stand for their dequantised values.
 *
 *   F1  y_tn = sum_k x_tk W_nk + bias_n            (+ y_tn before, when `accumulate`)
 *   B1  dx_tk = sum_n dy_tn W_nk                   (+ dx_tk before, when `accumulate`)
 *   B2  dW_nk += sum_t dy_tn x_tk                  dw's parts are hh_real; a part without data is skipped
 *   B3  dbias_n += sum_t dy_tn                     where dw has a bias
 */
#ifndef HH_OPS_LINEAR_H
#define HH_OPS_LINEAR_H

#include "ops/ops.h"

/* Asserts that x [T,K] and y [T,N] are hh_real and fit w and each other. */
void hh_linear_check(hh_tensor y, hh_tensor x, const hh_linear *w);

/* Some rows of one part: the unit in which threads share a map. */
typedef struct hh_linear_item {
    const hh_part *part;
    int64_t lo, hi; /* rows of the part */
    int64_t column; /* of y that belongs to row lo */
} hh_linear_item;

/* How many items of at most `step` rows there are, and the i-th of them. */
int64_t hh_linear_item_count(const hh_linear *w, int64_t step);
hh_linear_item hh_linear_item_at(const hh_linear *w, int64_t step, int64_t i);

#endif
