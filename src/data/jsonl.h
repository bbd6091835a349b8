/* Files of one JSON object a line, with refusals that name file and line. */
#ifndef HH_DATA_JSONL_H
#define HH_DATA_JSONL_H
#include "base/memory.h"

#include <jansson.h>

/* Called for each object; what it fails with gets "FILE, line N: " in front. */
typedef hh_code hh_jsonl_fn(void *context, const json_t *object, hh_error *err);
/* Blank lines are skipped; after `limit` objects (0: all) the rest is not looked at. */
hh_code hh_jsonl_each(const char *path, const char *bytes, size_t size, int64_t limit, hh_jsonl_fn *each, void *context,
                      hh_error *err);
/* Reads a whole file of at most 1 GiB and does the same. */
hh_code hh_jsonl_read(const char *path, int64_t limit, hh_jsonl_fn *each, void *context, hh_error *err);

/* A string field: HH_EFORMAT by name when it is missing or not a string. */
hh_code hh_jsonl_string(const json_t *object, const char *field, const char **out, hh_error *err);
#endif
