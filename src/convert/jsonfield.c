/* JSON fields with named refusals; see jsonfield.h. */
#include "convert/jsonfield.h"

#include "base/filemap.h"

#include <inttypes.h>
#include <math.h>

#define MAX_JSON_BYTES ((size_t)64 << 20)

hh_code hh_json_parse_object(json_t **out, const char *path, const char *text, size_t size, hh_error *err) {
    json_error_t e;
    *out = json_loadb(text, size, JSON_REJECT_DUPLICATES, &e);
    if (!*out) return hh_fail(err, HH_EFORMAT, "%s: not valid JSON at line %d, column %d: %s", path, e.line, e.column, e.text);
    if (json_is_object(*out)) return HH_OK;
    json_decref(*out);
    *out = NULL;
    return hh_fail(err, HH_EFORMAT, "%s: an object was expected at the top", path);
}

hh_code hh_json_read_object(json_t **out, const char *path, hh_error *err) {
    hh_buf text = {0};
    *out = NULL;
    hh_code code = hh_file_read(path, MAX_JSON_BYTES, &text, err);
    if (code == HH_OK) code = hh_json_parse_object(out, path, text.data ? text.data : "", text.len, err);
    hh_buf_release(&text);
    return code;
}

hh_code hh_json_int_field(int64_t *out, const char *path, const json_t *object, const char *field, int64_t lo, int64_t hi,
                          int64_t fallback, hh_error *err) {
    const json_t *v = json_object_get(object, field);
    if (!v && fallback >= 0) {
        *out = fallback;
        return HH_OK;
    }
    if (!v) return hh_fail(err, HH_EFORMAT, "%s: field \"%s\" is missing", path, field);
    if (!json_is_integer(v)) return hh_fail(err, HH_EFORMAT, "%s: field \"%s\" is not an integer", path, field);
    int64_t n = json_integer_value(v);
    if (n < lo || n > hi)
        return hh_fail(err, HH_EFORMAT, "%s: field \"%s\" is %" PRId64 ", outside [%" PRId64 ", %" PRId64 "]", path, field,
                       n, lo, hi);
    *out = n;
    return HH_OK;
}

static hh_code read_row(double *out, const char *path, const char *where, const char *field, const json_t *row, int64_t r,
                        int64_t cols, hh_error *err) {
    if (!json_is_array(row) || (int64_t)json_array_size(row) != cols)
        return hh_fail(err, HH_EFORMAT, "%s: %s\"%s\": row %" PRId64 " has %zu values where %" PRId64 " were expected", path,
                       where, field, r, json_array_size(row), cols);
    for (int64_t c = 0; c < cols; c++) {
        const json_t *v = json_array_get(row, (size_t)c);
        /* JSON has no NaN; writers put null or a string where one was. */
        if (!json_is_number(v) || !isfinite(json_number_value(v)))
            return hh_fail(err, HH_EFORMAT,
                           "%s: %s\"%s\": the value of layer %" PRId64 ", head %" PRId64 " is not a finite number", path,
                           where, field, r, c);
        out[c] = json_number_value(v);
    }
    return HH_OK;
}

hh_code hh_json_matrix_field(double *out, const char *path, const char *where, const json_t *object, const char *field,
                             int64_t rows, int64_t cols, hh_error *err) {
    const json_t *v = json_object_get(object, field);
    if (!v) return hh_fail(err, HH_EFORMAT, "%s: %sfield \"%s\" is missing", path, where, field);
    if (!json_is_array(v) || (int64_t)json_array_size(v) != rows)
        return hh_fail(err, HH_EFORMAT, "%s: %s\"%s\" has %zu rows where %" PRId64 " layers were expected", path, where,
                       field, json_array_size(v), rows);
    for (int64_t r = 0; r < rows; r++)
        HH_TRY(read_row(out + r * cols, path, where, field, json_array_get(v, (size_t)r), r, cols, err));
    return HH_OK;
}
