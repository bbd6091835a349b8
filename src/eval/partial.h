/* Finished pieces of a long evaluation, one JSON object a line, so that the same command goes on where it was stopped.
 */
#ifndef HH_EVAL_PARTIAL_H
#define HH_EVAL_PARTIAL_H
#include "base/memory.h"

typedef struct hh_partial hh_partial;
/* Reads what is there; a last line that was cut off is dropped, other lines that make no sense are HH_EFORMAT by
 * number. */
hh_code hh_partial_open(hh_partial **out, const char *path, hh_error *err);
/* The numbers kept under (key, index); false when there are none or not n of them. p may be NULL: nothing is found,
 * nothing kept. */
bool hh_partial_find(const hh_partial *p, const char *key, int64_t index, double *value, int n);
hh_code hh_partial_add(hh_partial *p, const char *key, int64_t index, const double *value, int n, hh_error *err);
void hh_partial_close(hh_partial *p); /* the file stays */
#endif
