/* JSON through Jansson, with refusals that name file and field. */
#include "format/json.h"

#include "base/filemap.h"
#include "format/quote.h"

#include <math.h>
#include <string.h>

#define MAX_DEPTH 64

/* Jansson recurses once a level; this looks at the text first, strings skipped. */
static bool is_too_deep(const char *text, size_t size) {
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > MAX_DEPTH) return true;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return false;
}

hh_code hh_json_parse(json_t **out, const char *path, const char *text, size_t size, hh_error *err) {
    json_error_t fault;
    *out = NULL;
    if (is_too_deep(text, size))
        return hh_fail(err, HH_EFORMAT, "%s: JSON nested deeper than %d levels is not read", path, MAX_DEPTH);
    json_t *json = json_loadb(text ? text : "", size, JSON_REJECT_DUPLICATES, &fault);
    if (!json) {
        hh_quote q;
        return hh_fail(err, HH_EFORMAT, "%s: not valid JSON: %s (line %d, column %d)", path,
                       hh_quoted(&q, fault.text, strlen(fault.text)), fault.line, fault.column);
    }
    if (!json_is_object(json)) {
        json_decref(json);
        return hh_fail(err, HH_EFORMAT, "%s: the JSON at the top is not an object", path);
    }
    *out = json;
    return HH_OK;
}

hh_code hh_json_read(json_t **out, const char *path, size_t max_bytes, hh_error *err) {
    hh_buf text = {0};
    *out = NULL;
    hh_code code = hh_file_read(path, max_bytes, &text, err);
    if (code == HH_OK) code = hh_json_parse(out, path, text.data, text.len, err);
    hh_buf_release(&text);
    return code;
}

json_t *hh_json_get(hh_json_object o, const char *field) {
    json_t *v = json_object_get(o.json, field);
    return json_is_null(v) ? NULL : v;
}

hh_code hh_json_refuse(hh_json_object o, const char *field, hh_code code, const char *expected, hh_error *err) {
    const json_t *v = json_object_get(o.json, field);
    if (!v) return hh_fail(err, code, "%s: field '%s%s' is missing; expected %s", o.path, o.within, field, expected);
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    hh_quote q;
    hh_fail(err, code, "%s: field '%s%s' is %s; expected %s", o.path, o.within, field,
            text ? hh_quoted(&q, text, strlen(text)) : "unreadable", expected);
    hh_free(text);
    return code;
}

hh_code hh_json_need(hh_json_object o, const char *field, hh_error *err) {
    return hh_json_get(o, field) ? HH_OK : hh_json_refuse(o, field, HH_EFORMAT, "a value", err);
}

hh_code hh_json_sub(hh_json_object *out, hh_json_object o, const char *field, const char *within, hh_error *err) {
    const json_t *v = hh_json_get(o, field);
    *out = (hh_json_object){.path = o.path, .within = within};
    if (v && !json_is_object(v)) return hh_json_refuse(o, field, HH_EFORMAT, "an object", err);
    out->json = v;
    return HH_OK;
}

static hh_code refuse_number(hh_json_object o, const char *field, const char *kind, double min, double max,
                             hh_error *err) {
    char *expected = hh_sprintf("%s from %.15g to %.15g", kind, min, max);
    hh_code code = hh_json_refuse(o, field, HH_EFORMAT, expected, err);
    hh_free(expected);
    return code;
}

hh_code hh_json_int(hh_json_object o, const char *field, int64_t min, int64_t max, int64_t *out, hh_error *err) {
    const json_t *v = hh_json_get(o, field);
    if (!v) return HH_OK;
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
        return refuse_number(o, field, "an integer", (double)min, (double)max, err);
    *out = json_integer_value(v);
    return HH_OK;
}

hh_code hh_json_number(hh_json_object o, const char *field, double min, double max, double *out, hh_error *err) {
    const json_t *v = hh_json_get(o, field);
    if (!v) return HH_OK;
    double x = json_number_value(v);
    if (!json_is_number(v) || !isfinite(x) || x < min || x > max)
        return refuse_number(o, field, "a number", min, max, err);
    *out = x;
    return HH_OK;
}

hh_code hh_json_bool(hh_json_object o, const char *field, bool *out, hh_error *err) {
    const json_t *v = hh_json_get(o, field);
    if (!v) return HH_OK;
    if (!json_is_boolean(v)) return hh_json_refuse(o, field, HH_EFORMAT, "true or false", err);
    *out = json_is_true(v);
    return HH_OK;
}

hh_code hh_json_string(hh_json_object o, const char *field, const char **out, hh_error *err) {
    const json_t *v = hh_json_get(o, field);
    if (!v) return HH_OK;
    if (!json_is_string(v)) return hh_json_refuse(o, field, HH_EFORMAT, "a string", err);
    *out = json_string_value(v);
    return HH_OK;
}

static int add_text(const char *text, size_t n, void *out) {
    hh_buf_add(out, text, n);
    return 0;
}

void hh_json_print(hh_buf *out, const json_t *value, size_t flags) {
    HH_ASSERT(json_dump_callback(value, add_text, out, flags) == 0);
}

hh_code hh_json_write(const char *path, json_t *value, int digits, hh_error *err) {
    hh_buf out = {0};
    hh_json_print(&out, value, JSON_INDENT(1) | JSON_REAL_PRECISION(digits));
    json_decref(value);
    hh_buf_puts(&out, "\n");
    const hh_code code = hh_file_write(path, out.data, out.len, err);
    hh_buf_release(&out);
    return code;
}
