/* The table of reference implementations: the oracle of every faster one, and the only table of the double build. */
#include "ops/ops.h"

/* Weak until they are written: those slots are NULL meanwhile. */
#define WEAK(name) extern hh_##name##_fn hh_##name##_reference __attribute__((weak))
WEAK(rmsnorm_fwd);
WEAK(rmsnorm_bwd);
WEAK(rope_table);
WEAK(rope);
WEAK(l2norm_fwd);
WEAK(l2norm_bwd);
WEAK(attention_fwd);
WEAK(attention_bwd);
WEAK(gdn_gates_fwd);
WEAK(gdn_gates_bwd);
WEAK(gdn_fwd);
WEAK(gdn_bwd);
WEAK(conv_fwd);
WEAK(conv_bwd);
WEAK(headnorm_fwd);
WEAK(headnorm_bwd);
WEAK(head_weight_fwd);
WEAK(head_weight_bwd);
WEAK(sigmoid_gate_fwd);
WEAK(sigmoid_gate_bwd);
WEAK(swiglu_fwd);
WEAK(swiglu_bwd);

const hh_ops hh_ops_reference = {
#define HH_OP(name, ...) .name = hh_##name##_reference,
#include "ops/ops.def"
#undef HH_OP
};
