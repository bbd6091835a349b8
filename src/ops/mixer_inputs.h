/* What stands between the input projection and a mixer, for all its tensors at once: apart they are up to ten small ops, each
 * of which waits for the one before.
 *
 * Every path goes through these steps, in this order, those that its arguments ask for (equations in the steps' headers):
 *
 *   F1  c = conv(x)           with `taps`: c is left in `conv`, unless that is y's memory; tails are read and renewed
 *   F2  n = RMSNorm(c) norm   with `norm`, over D; rstd is kept where there is one
 *   F3  p = rope(n)           with `rotate`
 *   F4  y = scale p r         with `r`, the l2 norm over D
 *   F5  g, beta               of a, b, A_log, dt_bias, with `g`
 *
 * y may be x where there are no taps. All paths have one D. Rows outside all spans are left undefined. Its backward is that
 * of the steps, one by one: what they need is kept.
 */
#ifndef HH_OPS_MIXER_INPUTS_H
#define HH_OPS_MIXER_INPUTS_H

#include "ops/ops.h"

/* Step by step with the backend's own ops. */
void hh_mixer_inputs_by_steps(hh_backend *be, const hh_mixer_inputs *in, const hh_span *span, int64_t n_spans);

#endif
