/* What is kept of one sequence between forwards: see hh_cache in model.h. */
#include "model/model.h"

#include <string.h>

/* Of float32 activations bf16: half the bytes, and quicker to read. Who asks for float32 has it here too. */
static hh_dtype usual_type(const hh_backend *be) {
    return be->activation == HH_DTYPE_F32 && be->precision != HH_PRECISION_F32 ? HH_DTYPE_BF16 : be->activation;
}

hh_code hh_cache_type(hh_dtype *out, const char *word, const hh_backend *be, const hh_config *c, hh_error *err) {
    static const hh_dtype types[] = {HH_DTYPE_F32, HH_DTYPE_BF16, HH_DTYPE_Q8_0};
    *out = usual_type(be);
    if (!word || !strcmp(word, "auto")) return HH_OK;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(word, hh_dtype_name(types[i]))) continue;
        *out = types[i];
        if (c->head_dim % hh_dtype_block(*out) == 0) return HH_OK;
        return hh_fail(err, HH_EUNSUPPORTED,
                       "a KV cache of type %s has blocks of %lld numbers, but the heads are %lld wide; use bf16", word,
                       (long long)hh_dtype_block(*out), (long long)c->head_dim);
    }
    return hh_fail(err, HH_EINVAL, "there is no KV cache of type '%s'; it is auto, f32, bf16 or q8_0", word);
}

static void place(hh_cache *cache, const hh_config *c, hh_dtype kv_dtype, hh_arena *a) {
    for (int64_t i = 0; i < c->n_layers; i++) {
        hh_layer l;
        hh_layer_describe(c, i, &l);
        struct hh_layer_cache *kept = &cache->layer[i];
        *kept = (struct hh_layer_cache){0};
        if (l.n_kv) {
            kept->k = hh_tensor_place_3d(a, kv_dtype, cache->capacity, l.n_kv, c->head_dim);
            kept->v = hh_tensor_place_3d(a, kv_dtype, cache->capacity, l.n_kv, c->head_dim);
        }
        if (l.n_gdn) kept->state = hh_tensor_place_3d(a, HH_DTYPE_REAL, l.n_gdn, c->head_dim, c->head_dim);
        for (int j = 0; j < 3 && l.n_gdn && c->gdn_conv; j++)
            kept->tail[j] = hh_tensor_place_2d(a, HH_DTYPE_REAL, 3, l.n_gdn * c->head_dim);
    }
}

size_t hh_cache_bytes(const hh_config *c, int64_t capacity, hh_dtype kv_dtype) {
    hh_cache cache = {.capacity = capacity};
    cache.layer = hh_alloc((size_t)c->n_layers * sizeof *cache.layer);
    hh_arena count;
    hh_arena_init_counting(&count, "run");
    place(&cache, c, kv_dtype, &count);
    hh_free(cache.layer);
    return count.used;
}

hh_code hh_cache_new(hh_cache **out, const hh_model *m, int64_t capacity, hh_dtype kv_dtype, hh_error *err) {
    const hh_config *c = &m->config;
    HH_ASSERT(hh_dtype_is_float(kv_dtype) || kv_dtype == HH_DTYPE_Q8_0);
    HH_ASSERT(c->head_dim % hh_dtype_block(kv_dtype) == 0);
    *out = NULL;
    hh_cache *cache = hh_alloc(sizeof *cache);
    *cache = (hh_cache){.capacity = capacity, .n_layers = c->n_layers, .be = m->be};
    cache->layer = hh_alloc((size_t)c->n_layers * sizeof *cache->layer);
    hh_code code = m->be->arena_init(m->be, &cache->arena, "run", hh_cache_bytes(c, capacity, kv_dtype), err);
    if (code != HH_OK) {
        hh_cache_free(cache, m->be);
        return code;
    }
    place(cache, c, kv_dtype, &cache->arena);
    hh_cache_reset(cache);
    *out = cache;
    return HH_OK;
}

void hh_cache_reset(hh_cache *cache) {
    hh_backend *be = cache->be;
    for (int64_t i = 0; i < cache->n_layers; i++) {
        struct hh_layer_cache *l = &cache->layer[i];
        if (l->state.data) be->ops->fill(be, l->state, 0);
        for (int j = 0; j < 3; j++)
            if (l->tail[j].data) be->ops->fill(be, l->tail[j], 0);
    }
    cache->length = 0;
}

static void copy(hh_backend *be, hh_tensor dst, hh_tensor src, int64_t rows) {
    if (dst.data && rows) be->ops->copy(be, hh_tensor_rows(dst, 0, rows), hh_tensor_rows(src, 0, rows));
}

void hh_cache_copy(hh_cache *dst, const hh_cache *src) {
    HH_ASSERT(dst->n_layers == src->n_layers && dst->capacity >= src->length);
    hh_backend *be = dst->be;
    for (int64_t i = 0; i < dst->n_layers; i++) {
        struct hh_layer_cache *d = &dst->layer[i], *s = &src->layer[i];
        copy(be, d->k, s->k, src->length);
        copy(be, d->v, s->v, src->length);
        copy(be, d->state, s->state, s->state.dim[0]);
        for (int j = 0; j < 3; j++) copy(be, d->tail[j], s->tail[j], 3);
    }
    dst->length = src->length;
}

void hh_cache_free(hh_cache *cache, hh_backend *be) {
    if (!cache) return;
    if (cache->arena.base) be->arena_release(be, &cache->arena);
    hh_free(cache->layer);
    hh_free(cache);
}
