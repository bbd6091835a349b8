/* Reading heads.json; see heads.h. */
#include "convert/heads.h"

#include "convert/jsonfield.h"

#include <inttypes.h>
#include <math.h>

#define MAX_CAPABILITIES 4096

static hh_code read_capability(hh_heads *h, const char *path, const json_t *cap, int64_t index, double *scratch,
                               hh_error *err) {
    int64_t L = h->n_layers, H = h->n_heads, n = L * H;
    const char *name = json_string_value(json_object_get(cap, "name"));
    if (!json_is_object(cap) || !name)
        return hh_fail(err, HH_EFORMAT, "%s: capability %" PRId64 " is not an object with a \"name\"", path, index);
    char where[200];
    snprintf(where, sizeof where, "capability \"%.100s\": ", name);
    double *receiver = scratch, *sender = scratch + n, *attribution = scratch + 2 * n;
    HH_TRY(hh_json_matrix_field(receiver, path, where, cap, "receiver", L, H, err));
    HH_TRY(hh_json_matrix_field(sender, path, where, cap, "sender", L, H, err));
    HH_TRY(hh_json_matrix_field(attribution, path, where, cap, "attribution", L, H, err));
    double share = 1.0 / (double)h->n_capabilities;
    for (int64_t i = 0; i < n; i++) {
        h->mean_ie[i] += share * fmax(receiver[i], sender[i]);
        h->attribution[i] += share * attribution[i];
    }
    return HH_OK;
}

static hh_code read_object(hh_heads *h, const char *path, const json_t *root, hh_error *err) {
    HH_TRY(hh_json_int_field(&h->n_layers, path, root, "layers", 1, HH_MAX_LAYERS, -1, err));
    HH_TRY(hh_json_int_field(&h->n_heads, path, root, "heads", 1, HH_MAX_HEADS, -1, err));
    HH_TRY(hh_json_int_field(&h->n_kv_heads, path, root, "kv_heads", 1, h->n_heads, 0, err));
    HH_TRY(hh_json_int_field(&h->head_dim, path, root, "head_dim", 1, 65536, 0, err));
    size_t n = (size_t)(h->n_layers * h->n_heads);
    h->score = hh_alloc(n * sizeof(double));
    h->mean_ie = hh_alloc(n * sizeof(double));
    h->attribution = hh_alloc(n * sizeof(double));
    HH_TRY(hh_json_matrix_field(h->score, path, "", root, "score", h->n_layers, h->n_heads, err));

    const json_t *caps = json_object_get(root, "capabilities");
    if (!json_is_array(caps) || !json_array_size(caps) || json_array_size(caps) > MAX_CAPABILITIES)
        return hh_fail(err, HH_EFORMAT, "%s: field \"capabilities\" is not a list of 1 to %d capabilities", path,
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
    HH_TRY(hh_json_parse_object(&root, path, json, size, err));
    return finish(out, path, root, err);
}

hh_code hh_heads_read(hh_heads *out, const char *path, hh_error *err) {
    json_t *root;
    *out = (hh_heads){0};
    HH_TRY(hh_json_read_object(&root, path, err));
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
