/* The backend that a device's name asks for: "cpu", "cuda", "cuda:N". */
#ifndef HH_OPS_DEVICE_H
#define HH_OPS_DEVICE_H

#include "ops/ops.h"

/* `name` NULL: HYDRAHEAD_DEVICE's, or the CPU. dtype NULL, "auto" or "f32". HYDRAHEAD_ISA, _CHECK and _TRACE
 * are respected. HH_EINVAL for other words. */
hh_code hh_device_open(hh_backend **out, const char *name, const char *dtype, int n_threads, hh_error *err);

#endif
