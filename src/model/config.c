/* Configurations: where they are read from, the checks that tie their fields together, and what follows from them. */
#include "model/config.h"

#include "base/filemap.h"
#include "model/config_parts.h"

#include <string.h>

const char *const hh_family_names[] = {[HH_QWEN3] = "qwen3", [HH_QWEN2] = "qwen2", [HH_LLAMA] = "llama"};
const char *const hh_fusion_names[] = {
    [HH_FUSION_SCALE] = "scale", [HH_FUSION_NORM] = "norm", [HH_FUSION_NONE] = "none", [HH_FUSION_GATE] = "gate"};
const char *const hh_rope_names[] = {
    [HH_ROPE_DEFAULT] = "default", [HH_ROPE_LINEAR] = "linear", [HH_ROPE_LLAMA3] = "llama3", [HH_ROPE_YARN] = "yarn"};

int hh_name_index(const char *const *names, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

void hh_config_init(hh_config *c) {
    *c = (hh_config){.norm_eps = 1e-6, .stored = HH_DTYPE_F32, .bos_id = -1, .fusion = HH_FUSION_NONE};
    c->rope = (hh_rope_config){
        .kind = HH_ROPE_DEFAULT, .theta = 10000, .factor = 1, .beta_fast = 32, .beta_slow = 1, .truncate = true};
}

hh_code hh_config_add_end(hh_config *c, const char *path, int64_t id, hh_error *err) {
    const int32_t most = (int32_t)(sizeof c->end_ids / sizeof c->end_ids[0]);
    for (int32_t i = 0; i < c->n_end_ids; i++)
        if (c->end_ids[i] == id) return HH_OK;
    if (c->n_end_ids == most)
        return hh_fail(err, HH_EUNSUPPORTED, "%s: more than %d different end tokens (eos_token_id)", path, (int)most);
    c->end_ids[c->n_end_ids++] = (int32_t)id;
    return HH_OK;
}

hh_code hh_config_finish(hh_config *c, const char *path, hh_error *err) {
    if (!c->n_kv_heads) c->n_kv_heads = c->n_heads;
    if (!c->head_dim) {
        if (c->width % c->n_heads)
            return hh_fail(err, HH_EFORMAT,
                           "%s: hidden_size %lld is no multiple of num_attention_heads %lld, and head_dim "
                           "is not given",
                           path, (long long)c->width, (long long)c->n_heads);
        c->head_dim = c->width / c->n_heads;
    }
    if (c->n_heads % c->n_kv_heads)
        return hh_fail(err, HH_EFORMAT, "%s: num_attention_heads %lld is no multiple of num_key_value_heads %lld", path,
                       (long long)c->n_heads, (long long)c->n_kv_heads);
    if (c->head_dim % 2 || c->head_dim > HH_MAX_HEAD_DIM)
        return hh_fail(err, HH_EUNSUPPORTED, "%s: head_dim %lld; rotary embedding needs an even number up to %d", path,
                       (long long)c->head_dim, HH_MAX_HEAD_DIM);
    if (!c->rope.original_max_position) c->rope.original_max_position = c->max_position;
    if (!c->hybrid) {
        for (int64_t l = 0; l < c->n_layers; l++) {
            c->dense[l] = true;
            for (int64_t h = 0; h < c->n_heads; h++) c->fa[l][h] = true;
        }
    }
    return HH_OK;
}

/* A layer of a hybrid whose heads are all full attention may have kept its teacher's tensors; only the file knows. */
static hh_code find_dense_layers(hh_config *c, const hh_store *store, hh_error *err) {
    for (int64_t l = 0; l < c->n_layers && c->hybrid; l++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%lld.self_attn.q_proj.weight", (long long)l);
        const hh_named_tensor *t = hh_store_find(store, name);
        if (!t) continue;
        if (hh_config_fa_count(c, l) != c->n_heads)
            return hh_fail(err, HH_EFORMAT,
                           "%s: tensor '%s' belongs to a layer without linear heads, but "
                           "full_attention_heads of layer %lld lists %lld of %lld heads",
                           t->file, name, (long long)l, (long long)hh_config_fa_count(c, l), (long long)c->n_heads);
        c->dense[l] = true;
    }
    return HH_OK;
}

static hh_code read_directory(hh_config *c, const hh_store *store, const char *dir, hh_error *err) {
    hh_buf text = {0};
    char *path = hh_path_join(dir, "config.json"), *generation = hh_path_join(dir, "generation_config.json");
    hh_code code = hh_file_read(path, HH_CONFIG_MAX_BYTES, &text, err);
    if (code == HH_OK) code = hh_config_parse(c, path, text.data, text.len, err);
    if (code == HH_OK && hh_file_exists(generation)) code = hh_config_add_generation(c, generation, err);
    if (code == HH_OK) code = find_dense_layers(c, store, err);
    hh_free(path);
    hh_free(generation);
    hh_buf_release(&text);
    return code;
}

hh_code hh_config_read(hh_config *out, const hh_store *store, hh_error *err) {
    if (hh_store_get_kind(store) == HH_STORE_GGUF) return hh_config_read_gguf(out, store, err);
    char *dir = hh_strdup(hh_store_path(store));
    if (!hh_is_directory(dir)) { /* a single .safetensors file: its neighbour */
        char *slash = strrchr(dir, '/');
        if (slash) {
            slash[slash == dir] = 0;
        } else {
            hh_free(dir);
            dir = hh_strdup(".");
        }
    }
    hh_code code = read_directory(out, store, dir, err);
    hh_free(dir);
    return code;
}

int64_t hh_config_fa_count(const hh_config *c, int64_t layer) {
    int64_t n = 0;
    for (int64_t h = 0; h < c->n_heads; h++) n += c->fa[layer][h];
    return n;
}

int64_t hh_config_kept_kv(const hh_config *c, int64_t layer, int32_t *kv_head, int32_t *kv_of_fa) {
    int64_t kept = 0, fa = 0, last = -1;
    for (int64_t h = 0; h < c->n_heads; h++) {
        if (!c->fa[layer][h]) continue;
        int64_t g = h * c->n_kv_heads / c->n_heads;
        if (g != last) {
            if (kv_head) kv_head[kept] = (int32_t)g;
            kept++;
            last = g;
        }
        if (kv_of_fa) kv_of_fa[fa] = (int32_t)(kept - 1);
        fa++;
    }
    return kept;
}

double hh_config_cache_bytes(const hh_config *c, double bytes_per_value) {
    int64_t kept = 0;
    for (int64_t l = 0; l < c->n_layers; l++) kept += hh_config_kept_kv(c, l, NULL, NULL);
    return (double)kept * 2 * (double)c->head_dim * bytes_per_value;
}
