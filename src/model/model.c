/* A model's life: found, opened, created, closed; and gradients, which have the same shape. */
#include "model/load.h"

#include "base/env.h"
#include "base/filemap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* dir/../suffix, where dir holds the running program. NULL when the system does not say. */
static char *beside_program(const char *suffix) {
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return NULL;
    exe[n] = 0;
    char *slash = strrchr(exe, '/');
    if (!slash) return NULL;
    *slash = 0;
    return hh_sprintf("%s/../%s", exe, suffix);
}

hh_code hh_model_locate(char **out, const char *path, hh_error *err) {
    *out = NULL;
    if (strcmp(path, "nano")) {
        if (access(path, F_OK) && errno == ENOENT)
            return hh_fail(
                err, HH_EIO,
                "%s: there is no such file or directory; a model is a Hugging Face directory, a .gguf file, or "
                "'nano', the shipped one (nothing is fetched by its name)",
                path);
        *out = hh_strdup(path);
        return HH_OK;
    }
    const char *models = hh_env_get()->models;
    char *tried[] = {models ? hh_path_join(models, "nano") : NULL, hh_strdup("models/nano"),
                     beside_program("models/nano"), beside_program("../models/nano"),
                     beside_program("share/hydrahead/models/nano")};
    hh_buf list = {0};
    for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
        if (!tried[i]) continue;
        hh_buf_printf(&list, "%s%s", list.len ? ", " : "", tried[i]);
        if (!*out && hh_is_directory(tried[i])) {
            *out = tried[i];
        } else {
            hh_free(tried[i]);
        }
    }
    hh_code code = HH_OK;
    if (!*out)
        code =
            hh_fail(err, HH_EIO,
                    "nano: the shipped model is in none of %s; set HYDRAHEAD_MODELS to the directory that holds nano/",
                    list.data);
    hh_buf_release(&list);
    return code;
}

static hh_code open_store(hh_store **store, hh_config *c, const char *path, hh_error *err) {
    char *where;
    HH_TRY(hh_model_locate(&where, path, err));
    hh_code code = hh_store_open(store, where, err);
    hh_free(where);
    if (code != HH_OK) return code;
    code = hh_config_read(c, *store, err);
    if (code != HH_OK) {
        hh_store_close(*store);
        *store = NULL;
    }
    return code;
}

hh_code hh_model_read_config(hh_config *out, const char *path, hh_error *err) {
    hh_store *store;
    HH_TRY(open_store(&store, out, path, err));
    hh_store_close(store);
    return HH_OK;
}

/* Layers, list and frequencies of m->config; the slots are still empty. */
static void describe(hh_model *m) {
    const hh_config *c = &m->config;
    m->w.layer = hh_alloc((size_t)c->n_layers * sizeof *m->w.layer);
    m->n_params = hh_weights_count(c);
    m->param = hh_alloc((size_t)m->n_params * sizeof *m->param);
    hh_weights_list(c, &m->w, m->param);
    m->inv_freq = hh_alloc((size_t)(c->head_dim / 2) * sizeof *m->inv_freq);
    hh_rope_frequencies(c, m->inv_freq, &m->rope_factor);
}

static size_t arena_size(hh_model *m, const hh_source *source, hh_load load) {
    hh_arena count;
    hh_arena_init_counting(&count, "model");
    hh_sources_place(m, source, load, &count);
    return count.used;
}

/* The model without its weights: what opening and measuring have in common. */
static hh_code prepare(hh_model **out, hh_source **source, hh_backend *be, const char *path, hh_load load,
                       hh_error *err) {
    *out = NULL;
    *source = NULL;
    hh_model *m = hh_alloc(sizeof *m);
    m->be = be;
    hh_code code;
    HH_TRY_GOTO(code, open_store(&m->store, &m->config, path, err), fail);
    m->path = hh_strdup(hh_store_path(m->store));
    describe(m);
    *source = hh_alloc((size_t)m->n_params * sizeof **source);
    HH_TRY_GOTO(code, hh_sources_find(*source, m, load, err), fail);
    *out = m;
    return HH_OK;
fail:
    hh_free(*source);
    *source = NULL;
    hh_model_close(m);
    return code;
}

hh_code hh_model_measure(const char *path, hh_backend *be, hh_load load, hh_config *c, size_t *arena_bytes,
                         size_t *mapped_bytes, hh_error *err) {
    hh_model *m;
    hh_source *source;
    HH_TRY(prepare(&m, &source, be, path, load, err));
    if (c) *c = m->config;
    *arena_bytes = arena_size(m, source, load);
    *mapped_bytes = 0;
    for (int64_t i = 0; i < m->n_params; i++)
        if (source[i].in_place) *mapped_bytes += hh_tensor_bytes(source[i].t);
    hh_free(source);
    hh_model_close(m);
    return HH_OK;
}

hh_code hh_model_open(hh_model **out, hh_backend *be, const char *path, hh_load load, hh_error *err) {
    *out = NULL;
    hh_model *m;
    hh_source *source;
    HH_TRY(prepare(&m, &source, be, path, load, err));
    hh_code code = be->arena_init(be, &m->arena, "model", arena_size(m, source, load), err);
    if (code == HH_OK) {
        hh_sources_place(m, source, load, &m->arena);
        if (load == HH_LOAD_REAL) be->ops->fill(be, m->flat, 0); /* what lies between parameters */
        code = hh_sources_read(m, source, err);
    }
    hh_free(source);
    if (code != HH_OK) {
        hh_model_close(m);
        return code;
    }
    hh_weights_merge(&m->config, &m->w);
    if (load == HH_LOAD_REAL || !be->host_memory) { /* nothing points into the map any more */
        hh_store_close(m->store);
        m->store = NULL;
    }
    *out = m;
    return HH_OK;
}

hh_code hh_model_create(hh_model **out, hh_backend *be, const hh_config *c, hh_error *err) {
    *out = NULL;
    hh_model *m = hh_alloc(sizeof *m);
    m->be = be;
    m->config = *c;
    m->path = hh_strdup("(new model)");
    describe(m);
    hh_code code = be->arena_init(be, &m->arena, "model", arena_size(m, NULL, HH_LOAD_REAL), err);
    if (code != HH_OK) {
        hh_model_close(m);
        return code;
    }
    m->flat = hh_place_flat(&m->arena, m->param, m->n_params);
    be->ops->fill(be, m->flat, 0);
    hh_weights_merge(&m->config, &m->w);
    *out = m;
    return HH_OK;
}

hh_code hh_model_stretch(hh_model *m, const char *scaling, hh_error *err) {
    hh_config *c = &m->config;
    const char *colon = strchr(scaling, ':');
    char *end = NULL;
    double factor = colon ? strtod(colon + 1, &end) : 0;
    bool yarn = !strncmp(scaling, "yarn:", 5), linear = !strncmp(scaling, "linear:", 7);
    if (!(yarn || linear) || !end || *end || !(factor >= 1 && factor <= 1e4))
        return hh_fail(err, HH_EINVAL, "'%s' is no way to stretch positions; yarn:4 or linear:4 is, factors 1 to 10000",
                       scaling);
    if (c->rope.kind != HH_ROPE_DEFAULT)
        return hh_fail(err, HH_EINVAL, "%s: its positions are scaled already (%s, factor %g)", m->path,
                       hh_rope_names[c->rope.kind], c->rope.factor);
    c->rope.kind = yarn ? HH_ROPE_YARN : HH_ROPE_LINEAR;
    c->rope.factor = factor;
    c->rope.beta_fast = 32; /* the YaRN paper's, and transformers' defaults */
    c->rope.beta_slow = 1;
    c->rope.truncate = true;
    c->rope.original_max_position = c->max_position;
    c->max_position = (int64_t)((double)c->max_position * factor);
    hh_rope_frequencies(c, m->inv_freq, &m->rope_factor);
    return HH_OK;
}

void hh_model_close(hh_model *m) {
    if (!m) return;
    if (m->arena.base) m->be->arena_release(m->be, &m->arena);
    hh_store_close(m->store);
    hh_free(m->w.layer);
    hh_free(m->param);
    hh_free(m->inv_freq);
    hh_free(m->path);
    hh_free(m);
}

hh_code hh_gradients_new(hh_gradients **out, const hh_model *m, hh_error *err) {
    hh_gradients *g = hh_alloc(sizeof *g);
    hh_param *param = hh_alloc((size_t)m->n_params * sizeof *param);
    g->w.layer = hh_alloc((size_t)m->config.n_layers * sizeof *g->w.layer);
    hh_weights_list(&m->config, &g->w, param);
    hh_arena count;
    hh_arena_init_counting(&count, "step");
    hh_place_flat(&count, param, m->n_params);
    hh_code code = m->be->arena_init(m->be, &g->arena, "step", count.used, err);
    if (code == HH_OK) {
        g->flat = hh_place_flat(&g->arena, param, m->n_params);
        hh_weights_merge(&m->config, &g->w);
    }
    hh_free(param);
    if (code != HH_OK) {
        hh_gradients_free(g, m->be);
        g = NULL;
    }
    *out = g;
    return code;
}

void hh_gradients_free(hh_gradients *g, hh_backend *be) {
    if (!g) return;
    if (g->arena.base) be->arena_release(be, &g->arena);
    hh_free(g->w.layer);
    hh_free(g);
}
