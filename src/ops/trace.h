/* HYDRAHEAD_TRACE=FILE: every op call with its shapes and its time, as a Chrome trace (chrome://tracing, Perfetto).
 *
 * The table of wrappers is made from ops.def. An op that calls others (the losses) holds their events. On a GPU each op is
 * waited for, and nothing is recorded. */
#ifndef HH_OPS_TRACE_H
#define HH_OPS_TRACE_H

#include "ops/ops.h"

/* From here on, and until it is closed, calls of `be` are written to `path`, which is valid JSON from then on. One backend
 * at a time. HH_EIO when the file cannot be written. */
hh_code hh_trace_begin(hh_backend *be, const char *path, hh_error *err);

#endif
