/* The table of reference implementations: the oracle of every faster one, and the only table of the double build. */
#include "ops/ops.h"

const hh_ops hh_ops_reference = {
#define HH_OP(name, arguments, names) .name = hh_##name##_reference,
#include "ops/ops.def"
#undef HH_OP
};
