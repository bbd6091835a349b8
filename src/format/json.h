/* JSON through Jansson, with refusals that name file and field.
 *
 * Numbers are range-checked where they are read, so that nothing behind this point meets a size nobody looked at. */
#ifndef HH_FORMAT_JSON_H
#define HH_FORMAT_JSON_H

#include "base/memory.h"

#include <jansson.h>

/* Parses an object. Refused: anything else at the top, duplicate keys, invalid UTF-8, text behind the object, integers
 * beyond 64 bits, nesting deeper than 64. `path` is for messages. New reference. */
hh_code hh_json_parse(json_t **out, const char *path, const char *text, size_t size, hh_error *err);
/* Reads a file of at most max_bytes and parses it. */
hh_code hh_json_read(json_t **out, const char *path, size_t max_bytes, hh_error *err);

/* Appends a value's text to `out`, written by Jansson with its `flags`. */
void hh_json_print(hh_buf *out, const json_t *value, size_t flags);
/* Writes a value (the reference is taken) as a file with a final newline, aside and renamed; numbers with `digits` digits, 0:
 * as many as tell them apart. */
hh_code hh_json_write(const char *path, json_t *value, int digits, hh_error *err);

/* An object inside a file. A field that is absent or null is "not there". */
typedef struct hh_json_object {
    const json_t *json; /* NULL: an object without fields */
    const char *path;   /* file, for messages */
    const char *within; /* "" at the top, "rope_scaling." inside */
} hh_json_object;

/* The field, or NULL when it is not there. */
json_t *hh_json_get(hh_json_object o, const char *field);
/* The field as an object; json is NULL when it is not there. `within` must outlive the result: "rope_scaling.". */
hh_code hh_json_sub(hh_json_object *out, hh_json_object o, const char *field, const char *within, hh_error *err);

/* Each leaves *out alone when the field is not there, and fails with HH_EFORMAT on another type or a number outside
 * [min, max]. */
hh_code hh_json_int(hh_json_object o, const char *field, int64_t min, int64_t max, int64_t *out, hh_error *err);
hh_code hh_json_number(hh_json_object o, const char *field, double min, double max, double *out, hh_error *err);
hh_code hh_json_bool(hh_json_object o, const char *field, bool *out, hh_error *err);
/* Borrowed from the object. */
hh_code hh_json_string(hh_json_object o, const char *field, const char **out, hh_error *err);
/* Fails with HH_EFORMAT when the field is not there. */
hh_code hh_json_need(hh_json_object o, const char *field, hh_error *err);
/* "PATH: field 'within.field' is 12; expected ...": HH_EFORMAT, for checks of the caller's own. */
hh_code hh_json_refuse(hh_json_object o, const char *field, hh_code code, const char *expected, hh_error *err);

#endif
