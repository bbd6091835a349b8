/* Fields of a JSON object, read with refusals that name file, place and field. */
#ifndef HH_CONVERT_JSONFIELD_H
#define HH_CONVERT_JSONFIELD_H

#include "base/memory.h"

#include <jansson.h>

/* Reads and parses a file of at most 64 MiB whose top is an object. New reference. */
hh_code hh_json_read_object(json_t **out, const char *path, hh_error *err);
hh_code hh_json_parse_object(json_t **out, const char *path, const char *text, size_t size, hh_error *err);

/* An integer in [lo, hi]. When the field may be absent, `fallback` >= 0 is its value then; -1: it must be there. */
hh_code hh_json_int_field(int64_t *out, const char *path, const json_t *object, const char *field, int64_t lo, int64_t hi,
                          int64_t fallback, hh_error *err);
/* [rows][cols] finite numbers into out[rows*cols]; `where` names the object, "" for the top. */
hh_code hh_json_matrix_field(double *out, const char *path, const char *where, const json_t *object, const char *field,
                             int64_t rows, int64_t cols, hh_error *err);

#endif
