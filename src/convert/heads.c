/* Reading heads.json; see heads.h. */
#include "convert/heads.h"

#include "format/json.h"

#include <inttypes.h>
#include <math.h>

#define MAX_CAPABILITIES 4096
#define MAX_JSON_BYTES   ((size_t)64 << 20)

static hh_code read_row(double *out, hh_json_object o, const char *field, const json_t *row, int64_t r, int64_t cols,
                        hh_error *err) {
    if (!json_is_array(row) || (int64_t)json_array_size(row) != cols)
        return hh_fail(err, HH_EFORMAT,
                       "%s: field '%s%s': row %" PRId64 " has %zu values where %" PRId64 " were expected", o.path,
                       o.within, field, r, json_array_size(row), cols);
    for (int64_t c = 0; c < cols; c++) {
        const json_t *v = json_array_get(row, (size_t)c);
        /* JSON has no NaN; writers put null or a string where one was. */
        if (!json_is_number(v) || !isfinite(json_number_value(v)))
            return hh_fail(err, HH_EFORMAT,
                           "%s: field '%s%s': the value of layer %" PRId64 ", head %" PRId64 " is not a finite number",
                           o.path, o.within, field, r, c);
        out[c] = json_number_value(v);
    }
    return HH_OK;
}

/* [L][H] finite numbers. */
static hh_code read_matrix(double *out, hh_json_object o, const char *field, const hh_heads *h, hh_error *err) {
    const json_t *v = hh_json_get(o, field);
    if (!json_is_array(v) || (int64_t)json_array_size(v) != h->n_layers)
        return hh_fail(err, HH_EFORMAT,
                       "%s: field '%s%s' is %s; a list of %" PRId64
                       " layers was expected, as in the heads.json of `hydrahead probe`",
                       o.path, o.within, field, v ? "of another shape" : "missing", h->n_layers);
    for (int64_t r = 0; r < h->n_layers; r++)
        HH_TRY(read_row(out + r * h->n_heads, o, field, json_array_get(v, (size_t)r), r, h->n_heads, err));
    return HH_OK;
}

static hh_code read_capability(hh_heads *h, const char *path, const json_t *cap, int64_t index, double *scratch,
                               hh_error *err) {
    int64_t n = h->n_layers * h->n_heads;
    const char *name = json_string_value(json_object_get(cap, "name"));
    if (!name)
        return hh_fail(err, HH_EFORMAT, "%s: capability %" PRId64 " is not an object with a 'name'", path, index);
    char within[200];
    snprintf(within, sizeof within, "capability '%.100s': ", name);
    hh_json_object o = {cap, path, within};
    double *receiver = scratch, *sender = scratch + n, *attribution = scratch + 2 * n;
    HH_TRY(read_matrix(receiver, o, "receiver", h, err));
    HH_TRY(read_matrix(sender, o, "sender", h, err));
    HH_TRY(read_matrix(attribution, o, "attribution", h, err));
    double share = 1.0 / (double)h->n_capabilities;
    for (int64_t i = 0; i < n; i++) {
        h->mean_ie[i] += share * fmax(receiver[i], sender[i]);
        h->attribution[i] += share * attribution[i];
    }
    return HH_OK;
}

static hh_code read_object(hh_heads *h, const char *path, const json_t *root, hh_error *err) {
    hh_json_object o = {root, path, ""};
    HH_TRY(hh_json_need(o, "layers", err));
    HH_TRY(hh_json_need(o, "heads", err));
    HH_TRY(hh_json_int(o, "layers", 1, HH_MAX_LAYERS, &h->n_layers, err));
    HH_TRY(hh_json_int(o, "heads", 1, HH_MAX_HEADS, &h->n_heads, err));
    HH_TRY(hh_json_int(o, "kv_heads", 1, h->n_heads, &h->n_kv_heads, err));
    HH_TRY(hh_json_int(o, "head_dim", 1, 65536, &h->head_dim, err));
    size_t n = (size_t)(h->n_layers * h->n_heads);
    h->score = hh_alloc(n * sizeof(double));
    h->mean_ie = hh_alloc(n * sizeof(double));
    h->attribution = hh_alloc(n * sizeof(double));
    HH_TRY(read_matrix(h->score, o, "score", h, err));

    const json_t *caps = hh_json_get(o, "capabilities");
    if (!json_is_array(caps) || !json_array_size(caps) || json_array_size(caps) > MAX_CAPABILITIES)
        return hh_fail(err, HH_EFORMAT, "%s: field 'capabilities' is not a list of 1 to %d capabilities", path,
                       MAX_CAPABILITIES);
    h->n_capabilities = (int64_t)json_array_size(caps);
    double *scratch = hh_alloc(3 * n * sizeof(double));
    hh_code code = HH_OK;
    for (int64_t i = 0; i < h->n_capabilities && code == HH_OK; i++)
        code = read_capability(h, path, json_array_get(caps, (size_t)i), i, scratch, err);
    hh_free(scratch);
    return code;
}

static hh_code finish(hh_heads *out, const char *path, json_t *root, hh_error *err) {
    *out = (hh_heads){0};
    hh_code code = read_object(out, path, root, err);
    json_decref(root);
    if (code != HH_OK) hh_heads_release(out);
    return code;
}

hh_code hh_heads_parse(hh_heads *out, const char *path, const char *json, size_t size, hh_error *err) {
    json_t *root;
    *out = (hh_heads){0};
    HH_TRY(hh_json_parse(&root, path, json, size, err));
    return finish(out, path, root, err);
}

hh_code hh_heads_read(hh_heads *out, const char *path, hh_error *err) {
    json_t *root;
    *out = (hh_heads){0};
    HH_TRY(hh_json_read(&root, path, MAX_JSON_BYTES, err));
    return finish(out, path, root, err);
}

void hh_heads_release(hh_heads *h) {
    hh_free(h->score);
    hh_free(h->mean_ie);
    hh_free(h->attribution);
    *h = (hh_heads){0};
}

hh_code hh_heads_bind(hh_heads *h, const char *path, const hh_config *c, hh_error *err) {
    if (h->n_layers != c->n_layers || h->n_heads != c->n_heads)
        return hh_fail(err, HH_EINVAL,
                       "%s is of a model of %" PRId64 " layers and %" PRId64 " heads, but the model has %" PRId64
                       " and %" PRId64 "; probe this model first",
                       path, h->n_layers, h->n_heads, c->n_layers, c->n_heads);
    h->n_kv_heads = c->n_kv_heads;
    h->head_dim = c->head_dim;
    return HH_OK;
}
