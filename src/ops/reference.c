/* The table of reference implementations: the oracle of every faster one, and the only table of the double build. */
#include "ops/ops.h"

/* Weak until every op has landed: a slot whose reference is not written yet is NULL. */
#define HH_OP(name, ...) hh_##name##_fn hh_##name##_reference __attribute__((weak));
#include "ops/ops.def"
#undef HH_OP

const hh_ops hh_ops_reference = {
#define HH_OP(name, ...) .name = hh_##name##_reference,
#include "ops/ops.def"
#undef HH_OP
};
