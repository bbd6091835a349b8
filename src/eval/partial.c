/* Partial results; see partial.h. */
#include "eval/partial.h"

#include "base/filemap.h"
#include "data/jsonl.h"
#include "format/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct hh_partial {
    FILE *file;
    char *path;
    json_t *kept; /* {"key": {"index": [numbers]}} */
};

static hh_code take_line(void *context, const json_t *o, hh_error *err) {
    hh_partial *p = context;
    const char *key;
    char number[32];
    HH_TRY(hh_jsonl_string(o, "key", &key, err));
    const json_t *index = json_object_get(o, "index");
    json_t *value = json_object_get(o, "value"), *of_key = json_object_get(p->kept, key);
    bool numbers = json_is_integer(index) && json_is_array(value);
    for (size_t i = 0; numbers && i < json_array_size(value); i++) numbers = json_is_number(json_array_get(value, i));
    if (!numbers) return hh_fail(err, HH_EFORMAT, "not a partial result; delete the file to begin anew");
    if (!of_key) {
        of_key = json_object();
        json_object_set_new(p->kept, key, of_key);
    }
    snprintf(number, sizeof number, "%lld", (long long)json_integer_value(index));
    json_object_set(of_key, number, value);
    return HH_OK;
}

static hh_code read_lines(hh_partial *p, size_t *whole, hh_error *err) {
    hh_buf text = {0};
    HH_TRY(hh_file_read(p->path, (size_t)1 << 30, &text, err));
    while (text.len > 0 && text.data[text.len - 1] != '\n') text.len--; /* cut off while it was written */
    *whole = text.len;
    hh_code code = text.len ? hh_jsonl_each(p->path, text.data, text.len, 0, take_line, p, err) : HH_OK;
    hh_buf_release(&text);
    return code;
}

hh_code hh_partial_open(hh_partial **out, const char *path, hh_error *err) {
    hh_partial *p = hh_alloc(sizeof *p);
    size_t whole = 0;
    *out = NULL;
    p->path = hh_strdup(path);
    p->kept = json_object();
    hh_code code = hh_file_exists(path) ? read_lines(p, &whole, err) : HH_OK;
    if (code == HH_OK && ((p->file = fopen(path, "ab")) == NULL || ftruncate(fileno(p->file), (off_t)whole)))
        code = hh_fail(err, HH_EIO, "%s: cannot be written: %s", path, strerror(errno));
    if (code == HH_OK)
        *out = p;
    else
        hh_partial_close(p);
    return code;
}

bool hh_partial_find(const hh_partial *p, const char *key, int64_t index, double *value, int n) {
    char number[32];
    if (!p) return false;
    snprintf(number, sizeof number, "%lld", (long long)index);
    const json_t *a = json_object_get(json_object_get(p->kept, key), number);
    if (json_array_size(a) != (size_t)n) return false;
    for (int i = 0; i < n; i++) value[i] = json_number_value(json_array_get(a, (size_t)i));
    return true;
}

hh_code hh_partial_add(hh_partial *p, const char *key, int64_t index, const double *value, int n, hh_error *err) {
    if (!p) return HH_OK;
    hh_buf line = {0};
    json_t *numbers = json_array(),
           *o = json_pack("{s:s, s:I, s:o}", "key", key, "index", (json_int_t)index, "value", numbers);
    HH_ASSERT(o);
    for (int i = 0; i < n; i++) json_array_append_new(numbers, json_real(value[i]));
    hh_json_print(&line, o, JSON_COMPACT);
    json_decref(o);
    hh_buf_puts(&line, "\n");
    bool ok = fwrite(line.data, 1, line.len, p->file) == line.len && fflush(p->file) == 0;
    hh_buf_release(&line);
    return ok ? HH_OK : hh_fail(err, HH_EIO, "%s: cannot be written: %s", p->path, strerror(errno));
}

void hh_partial_close(hh_partial *p) {
    if (!p) return;
    if (p->file) fclose(p->file);
    json_decref(p->kept);
    hh_free(p->path);
    hh_free(p);
}
