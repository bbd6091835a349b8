/* Plans as values and as files; see plan.h. */
#include "convert/plan.h"

#include "base/filemap.h"
#include "format/json.h"

#include <inttypes.h>
#include <string.h>

#define MAX_JSON_BYTES ((size_t)64 << 20)

static const char *const rule_name[HH_KEEP_RULES] = {"",       "score", "mean_ie",     "attribution", "order",
                                                     "all",    "min1",  "layer_quota", "kv_group",    "fixed",
                                                     "random", "layer", "given"};

const char *hh_keep_rule_name(hh_keep_rule r) {
    HH_ASSERT((unsigned)r < HH_KEEP_RULES);
    return rule_name[r];
}

void hh_plan_init(hh_plan *p, int64_t n_layers, int64_t n_heads) {
    *p = (hh_plan){.n_layers = n_layers, .n_heads = n_heads};
    p->rule = hh_alloc((size_t)(n_layers * n_heads));
}

void hh_plan_release(hh_plan *p) {
    hh_free(p->rule);
    hh_free(p->score);
    hh_free(p->mean_ie);
    hh_free(p->attribution);
    *p = (hh_plan){0};
}

bool hh_plan_keeps(const hh_plan *p, int64_t layer, int64_t head) {
    return p->rule[layer * p->n_heads + head] != HH_KEEP_NOT;
}

int64_t hh_plan_count(const hh_plan *p) {
    int64_t n = 0;
    for (int64_t i = 0; i < p->n_layers * p->n_heads; i++) n += p->rule[i] != HH_KEEP_NOT;
    return n;
}

int64_t hh_plan_kv_count(const hh_plan *p) {
    HH_ASSERT(p->n_kv_heads > 0);
    int64_t n = 0;
    for (int64_t l = 0; l < p->n_layers; l++) {
        int64_t last = -1; /* a query head's group never falls as h rises */
        for (int64_t h = 0; h < p->n_heads; h++) {
            int64_t g = h * p->n_kv_heads / p->n_heads;
            if (hh_plan_keeps(p, l, h) && g != last) n++, last = g;
        }
    }
    return n;
}

double hh_plan_cache_bytes(const hh_plan *p, double bytes) {
    HH_ASSERT(p->head_dim > 0);
    return (double)hh_plan_kv_count(p) * 2.0 * (double)p->head_dim * bytes;
}

double hh_plan_dense_cache_bytes(const hh_plan *p, double bytes) {
    HH_ASSERT(p->head_dim > 0 && p->n_kv_heads > 0);
    return (double)(p->n_layers * p->n_kv_heads) * 2.0 * (double)p->head_dim * bytes;
}

static hh_code read_heads_of_layer(hh_plan *p, const char *path, int64_t l, const json_t *list, hh_error *err) {
    if (!json_is_array(list))
        return hh_fail(err, HH_EFORMAT, "%s: 'full_attention_heads': layer %" PRId64 " is not a list of heads", path,
                       l);
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        json_int_t h = json_is_integer(v) ? json_integer_value(v) : -1;
        if (h < 0 || h >= p->n_heads)
            return hh_fail(err, HH_EFORMAT,
                           "%s: 'full_attention_heads': entry %zu of layer %" PRId64 " is not a head of [0, %" PRId64
                           ")",
                           path, i, l, p->n_heads);
        if (hh_plan_keeps(p, l, h))
            return hh_fail(err, HH_EFORMAT, "%s: 'full_attention_heads': layer %" PRId64 " names head %d twice", path,
                           l, (int)h);
        p->rule[l * p->n_heads + h] = HH_KEEP_GIVEN;
    }
    return HH_OK;
}

static hh_keep_rule parse_rule(const char *name) {
    for (int r = HH_KEEP_SCORE; r < HH_KEEP_RULES; r++)
        if (name && !strcmp(name, rule_name[r])) return (hh_keep_rule)r;
    return HH_KEEP_GIVEN;
}

/* "kept" repeats the heads with their reasons; only the reasons are taken from it. */
static hh_code read_reasons(hh_plan *p, const char *path, const json_t *kept, hh_error *err) {
    size_t i;
    json_t *v;
    if (kept && !json_is_array(kept)) return hh_fail(err, HH_EFORMAT, "%s: field 'kept' is not a list", path);
    json_array_foreach(kept, i, v) {
        int64_t l = 0, h = 0;
        hh_json_object o = {v, path, "kept[]."};
        HH_TRY(hh_json_need(o, "layer", err));
        HH_TRY(hh_json_need(o, "head", err));
        HH_TRY(hh_json_int(o, "layer", 0, p->n_layers - 1, &l, err));
        HH_TRY(hh_json_int(o, "head", 0, p->n_heads - 1, &h, err));
        if (!hh_plan_keeps(p, l, h))
            return hh_fail(err, HH_EFORMAT,
                           "%s: 'kept' names layer %" PRId64 ", head %" PRId64
                           ", which 'full_attention_heads' does not",
                           path, l, h);
        p->rule[l * p->n_heads + h] = (uint8_t)parse_rule(json_string_value(json_object_get(v, "rule")));
    }
    return HH_OK;
}

static void copy_text(char *out, size_t size, const json_t *v) {
    const char *s = json_string_value(v);
    snprintf(out, size, "%s", s ? s : "given");
}

static hh_code read_object(hh_plan *out, const char *path, const json_t *root, hh_error *err) {
    hh_json_object o = {root, path, ""};
    int64_t L = 0, H = 0, seed = 0;
    HH_TRY(hh_json_need(o, "layers", err));
    HH_TRY(hh_json_need(o, "heads", err));
    HH_TRY(hh_json_int(o, "layers", 1, HH_MAX_LAYERS, &L, err));
    HH_TRY(hh_json_int(o, "heads", 1, HH_MAX_HEADS, &H, err));
    hh_plan_init(out, L, H);
    HH_TRY(hh_json_int(o, "kv_heads", 1, H, &out->n_kv_heads, err));
    HH_TRY(hh_json_int(o, "head_dim", 1, 65536, &out->head_dim, err));
    HH_TRY(hh_json_int(o, "seed", 0, INT64_MAX, &seed, err));
    out->seed = (uint64_t)seed;
    copy_text(out->strategy, sizeof out->strategy, json_object_get(root, "strategy"));
    copy_text(out->budget, sizeof out->budget, json_object_get(root, "budget"));
    const json_t *layers = json_object_get(root, "full_attention_heads");
    if (!json_is_array(layers) || (int64_t)json_array_size(layers) != L)
        return hh_fail(err, HH_EFORMAT,
                       "%s: field 'full_attention_heads' is not a list of %" PRId64
                       " layers; plans are what `hydrahead select` writes",
                       path, L);
    for (int64_t l = 0; l < L; l++) HH_TRY(read_heads_of_layer(out, path, l, json_array_get(layers, (size_t)l), err));
    return read_reasons(out, path, json_object_get(root, "kept"), err);
}

static hh_code finish(hh_plan *out, const char *path, json_t *root, hh_error *err) {
    *out = (hh_plan){0};
    hh_code code = read_object(out, path, root, err);
    json_decref(root);
    if (code != HH_OK) hh_plan_release(out);
    return code;
}

hh_code hh_plan_parse(hh_plan *out, const char *path, const char *json, size_t size, hh_error *err) {
    json_t *root;
    *out = (hh_plan){0};
    HH_TRY(hh_json_parse(&root, path, json, size, err));
    return finish(out, path, root, err);
}

hh_code hh_plan_read(hh_plan *out, const char *path, hh_error *err) {
    json_t *root;
    *out = (hh_plan){0};
    HH_TRY(hh_json_read(&root, path, MAX_JSON_BYTES, err));
    return finish(out, path, root, err);
}

static json_t *kept_to_json(const hh_plan *p, int64_t l, int64_t h) {
    int64_t i = l * p->n_heads + h;
    json_t *k = json_object();
    json_object_set_new(k, "layer", json_integer(l));
    json_object_set_new(k, "head", json_integer(h));
    json_object_set_new(k, "rule", json_string(hh_keep_rule_name(p->rule[i])));
    if (p->score) json_object_set_new(k, "score", json_real(p->score[i]));
    if (p->mean_ie) json_object_set_new(k, "mean_ie", json_real(p->mean_ie[i]));
    if (p->attribution) json_object_set_new(k, "attribution", json_real(p->attribution[i]));
    return k;
}

json_t *hh_plan_to_json(const hh_plan *p) {
    json_t *root = json_object(), *layers = json_array(), *kept = json_array();
    json_object_set_new(root, "version", json_integer(1));
    json_object_set_new(root, "strategy", json_string(p->strategy));
    json_object_set_new(root, "budget", json_string(p->budget));
    json_object_set_new(root, "seed", json_integer((json_int_t)p->seed));
    json_object_set_new(root, "layers", json_integer(p->n_layers));
    json_object_set_new(root, "heads", json_integer(p->n_heads));
    if (p->n_kv_heads) json_object_set_new(root, "kv_heads", json_integer(p->n_kv_heads));
    if (p->head_dim) json_object_set_new(root, "head_dim", json_integer(p->head_dim));
    for (int64_t l = 0; l < p->n_layers; l++) {
        json_t *heads = json_array();
        for (int64_t h = 0; h < p->n_heads; h++)
            if (hh_plan_keeps(p, l, h)) {
                json_array_append_new(heads, json_integer(h));
                json_array_append_new(kept, kept_to_json(p, l, h));
            }
        json_array_append_new(layers, heads);
    }
    json_object_set_new(root, "full_attention_heads", layers);
    json_object_set_new(root, "kept", kept);
    if (p->n_kv_heads && p->head_dim) {
        json_t *bytes = json_object();
        json_object_set_new(bytes, "before", json_real(hh_plan_dense_cache_bytes(p, HH_PLAN_CACHE_VALUE_BYTES)));
        json_object_set_new(bytes, "after", json_real(hh_plan_cache_bytes(p, HH_PLAN_CACHE_VALUE_BYTES)));
        json_object_set_new(root, "cache_bytes_per_token", bytes);
    }
    return root;
}

hh_code hh_plan_write(const hh_plan *p, const char *path, hh_error *err) {
    return hh_json_write(path, hh_plan_to_json(p), 9, err);
}
