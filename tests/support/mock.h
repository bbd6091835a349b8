/* A backend whose memory the CPU cannot read: the CPU's kernels behind arenas that are unreadable but during op calls
 * and copies, so that a forgotten access from outside ends the program where it happens. It records, too: of two
 * recordings one is first run through without effect, as a GPU does when a replay turns out to be another one. */
#ifndef HH_TESTS_SUPPORT_MOCK_H
#define HH_TESTS_SUPPORT_MOCK_H

#include "ops/ops.h"

/* Over a CPU backend of its own, opened with these; closed with hh_backend_close. */
hh_code mock_open(hh_backend **out, int n_threads, hh_precision precision, const char *isa, hh_error *err);
/* How often a recording was begun. */
int64_t mock_recordings(const hh_backend *be);

#endif
