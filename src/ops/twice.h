/* HYDRAHEAD_CHECK=cpu: every op runs twice, on its backend and by the CPU, and the first that differs is named.
 *
 * The table of wrappers is made from ops.def. Before a call every tensor that it is given is copied to the host, as
 * hh_real; afterwards the CPU does the same to the copies, and all tensors are compared, also those that should not have
 * changed. Memory that is reserved on a device starts as NaN, so that a result which only the CPU has written is found.
 * Slow, and nothing is recorded. */
#ifndef HH_OPS_TWICE_H
#define HH_OPS_TWICE_H

#include "ops/ops.h"

/* From here on, and until it is closed, `be` is checked: against the CPU's best float32 kernels, or its reference where
 * `be` is the CPU itself. hh_backend's sync then reports the first difference: HH_EUNSUPPORTED with op, layer, argument
 * and how far apart. */
hh_code hh_check_twice(hh_backend *be, hh_error *err);

#endif
