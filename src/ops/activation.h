/* Gated activations, element by element over tensors of one shape [T,...]; rows may be strided.
 *
 *   F1  y = x sigmoid(z)                                  sigmoid gate; y may be x
 *   B1  dx = dy sigmoid(z);  dz = dy x sigmoid(z) (1 - sigmoid(z))                        dx or dz may be dy
 *   F2  y = gate sigmoid(gate) up                         SwiGLU; y may be gate or up
 *   B2  dup = dy gate sigmoid(gate);  dgate = dy up sigmoid(gate) (1 + gate (1 - sigmoid(gate)))
 *       dgate may be gate and dup may be up, so that a fused buffer is turned into its own gradient
 *
 * All gradients are overwritten.
 */
#ifndef HH_OPS_ACTIVATION_H
#define HH_OPS_ACTIVATION_H

#include "ops/ops.h"

#endif
