/* One JSON object a line; see jsonl.h. */
#include "data/jsonl.h"
#include "base/filemap.h"

#include <string.h>

static bool is_blank(const char *s, size_t n) {
    while (n > 0 && (*s == ' ' || *s == '\t' || *s == '\r')) {
        s++;
        n--;
    }
    return n == 0;
}

hh_code hh_jsonl_each(const char *path, const char *bytes, size_t size, int64_t limit, hh_jsonl_fn *each, void *context,
                      hh_error *err) {
    int64_t line = 0, seen = 0;
    for (size_t at = 0; at < size && (limit == 0 || seen < limit);) {
        const char *begin = bytes + at, *end = memchr(begin, '\n', size - at);
        size_t len = end ? (size_t)(end - begin) : size - at;
        at += len + 1;
        line++;
        if (is_blank(begin, len)) continue;
        json_error_t why;
        json_t *object = json_loadb(begin, len, JSON_REJECT_DUPLICATES, &why);
        hh_code code;
        if (!object)
            code = hh_fail(err, HH_EFORMAT, "not JSON: %s", why.text);
        else if (!json_is_object(object))
            code = hh_fail(err, HH_EFORMAT, "not a JSON object");
        else
            code = each(context, object, err);
        json_decref(object);
        if (code != HH_OK) return hh_fail_in(err, "%s, line %lld", path, (long long)line);
        seen++;
    }
    return HH_OK;
}

hh_code hh_jsonl_read(const char *path, int64_t limit, hh_jsonl_fn *each, void *context, hh_error *err) {
    hh_buf text = {0};
    hh_code code = hh_file_read(path, (size_t)1 << 30, &text, err);
    if (code == HH_OK) code = hh_jsonl_each(path, text.data ? text.data : "", text.len, limit, each, context, err);
    hh_buf_release(&text);
    return code;
}

hh_code hh_jsonl_string(const json_t *object, const char *field, const char **out, hh_error *err) {
    const json_t *v = json_object_get(object, field);
    if (!v) return hh_fail(err, HH_EFORMAT, "\"%s\" is missing", field);
    if (!json_is_string(v)) return hh_fail(err, HH_EFORMAT, "\"%s\" is not a string", field);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return hh_fail(err, HH_EFORMAT, "\"%s\" holds a NUL character", field);
    *out = json_string_value(v);
    return HH_OK;
}
