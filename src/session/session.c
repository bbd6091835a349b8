/* One sequence over a model; see session.h. Between hh_guard_begin and hh_guard_end nothing is allocated: memory does
 * not grow with use. */
#include "session/session.h"

#include "base/progress.h"
#include "session/sample.h"

#include <math.h>

struct hh_session {
    const hh_model *m;
    hh_run *run;
    hh_cache *cache;
    int64_t chunk;
    hh_tensor logits;        /* [1, V] */
    hh_candidate *candidate; /* [V] work of the sampler */
    hh_arena arena;
};

static int64_t chunk_of(const hh_session_options *o) {
    int64_t chunk = o->chunk > 0 ? o->chunk : 512;
    return chunk < o->context ? chunk : o->context;
}

static void place(hh_session *s, const hh_config *c, hh_arena *a) {
    s->logits = hh_tensor_place_2d(a, HH_DTYPE_REAL, 1, c->vocab);
    s->candidate = hh_arena_alloc(a, (size_t)c->vocab * sizeof *s->candidate);
}

static size_t own_bytes(const hh_config *c) {
    hh_session s;
    hh_arena count;
    hh_arena_init_counting(&count, "run");
    place(&s, c, &count);
    return count.used;
}

size_t hh_session_bytes(const hh_config *c, const hh_session_options *o) {
    return hh_run_bytes(c, chunk_of(o), 1, HH_RUN_INFERENCE) + hh_cache_bytes(c, o->context, o->kv_dtype) +
           own_bytes(c);
}

hh_code hh_session_new(hh_session **out, const hh_model *m, const hh_session_options *o, hh_error *err) {
    *out = NULL;
    if (o->context < 1 || o->context > (int64_t)1 << 40)
        return hh_fail(err, HH_EINVAL, "a context of %lld tokens makes no sense", (long long)o->context);
    hh_session *s = hh_alloc(sizeof *s);
    *s = (hh_session){.m = m, .chunk = chunk_of(o)};
    hh_code code = hh_arena_init(&s->arena, "run", own_bytes(&m->config), err);
    if (code == HH_OK) code = hh_run_new(&s->run, m, s->chunk, 1, HH_RUN_INFERENCE, err);
    if (code == HH_OK) code = hh_cache_new(&s->cache, m, o->context, o->kv_dtype, err);
    if (code != HH_OK) {
        hh_session_free(s);
        return code;
    }
    place(s, &m->config, &s->arena);
    *out = s;
    return HH_OK;
}

void hh_session_free(hh_session *s) {
    if (!s) return;
    hh_run_free(s->run);
    hh_cache_free(s->cache, s->m->be);
    hh_arena_release(&s->arena);
    hh_free(s);
}

void hh_session_reset(hh_session *s) {
    hh_cache_reset(s->cache);
}

int64_t hh_session_position(const hh_session *s) {
    return s->cache->length;
}

const hh_real *hh_session_logits(const hh_session *s) {
    return s->logits.data;
}

static bool row_is_finite(hh_tensor t, int64_t row) {
    const int64_t n = hh_tensor_row_count(t);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(hh_row(t, row)[i])) return false;
    return true;
}

/* Where the fault is first seen: the first layer whose kept values show it, and there the first position. */
static void find_fault(const hh_session *s, int64_t start, int64_t *layer, int64_t *position) {
    for (*layer = 0; *layer < s->m->config.n_layers; ++*layer) {
        const struct hh_layer_cache *kept = &s->cache->layer[*layer];
        for (int64_t p = start; kept->k.rank && kept->k.dtype == HH_DTYPE_REAL && p < s->cache->length; p++) {
            if (row_is_finite(kept->k, p) && row_is_finite(kept->v, p)) continue;
            *position = p;
            return;
        }
        for (int64_t h = 0; kept->state.rank && h < kept->state.dim[0]; h++)
            if (!row_is_finite(kept->state, h)) return;
    }
}

/* A value that is not finite fails this request and leaves the session as new. */
static hh_code check_finite(hh_session *s, hh_tensor final, int64_t start, hh_error *err) {
    if (!s->m->be->host_memory) return HH_OK;
    for (int64_t i = 0; i < final.dim[0]; i++) {
        if (row_is_finite(final, i)) continue;
        int64_t layer, position = start + i;
        find_fault(s, start, &layer, &position);
        hh_session_reset(s);
        return hh_fail(
            err, HH_ENONFINITE,
            "%s: a value is not finite at position %lld, first seen in layer %lld; HYDRAHEAD_CHECK=nan names the "
            "operation",
            s->m->path, (long long)position, (long long)layer);
    }
    return HH_OK;
}

static hh_code eval_chunk(hh_session *s, const int32_t *ids, int64_t n, bool prompt, bool last, hh_error *err) {
    const int64_t start = s->cache->length;
    const hh_span span = {.lo = 0, .hi = n, .pos = start};
    const hh_batch batch = {
        .n_tokens = n, .n_spans = 1, .ids = ids, .span = &span, .cache = &s->cache, .prompt = prompt};
    hh_tensor final;
    hh_guard_begin();
    hh_code code = hh_forward(s->run, &batch, &final, err);
    if (code == HH_OK && last) hh_next_logits(s->run, final, n - 1, s->logits);
    hh_guard_end();
    if (code == HH_OK) code = s->m->be->sync(s->m->be, err);
    if (code == HH_ENONFINITE || code == HH_ECANCELLED) hh_session_reset(s); /* the layers do not agree */
    return code == HH_OK ? check_finite(s, final, start, err) : code;
}

static hh_code append(hh_session *s, const int32_t *ids, int64_t n, bool prompt, hh_error *err) {
    const int64_t at = s->cache->length, context = s->cache->capacity, vocab = s->m->config.vocab;
    if (n > context - at)
        return hh_fail(err, HH_EINVAL, "%lld tokens behind position %lld do not fit the context of %lld tokens",
                       (long long)n, (long long)at, (long long)context);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return hh_fail(err, HH_EINVAL, "token id %d (number %lld) is outside the model's vocabulary of %lld",
                           ids[i], (long long)i, (long long)vocab);
    for (int64_t lo = 0; lo < n; lo += s->chunk) {
        int64_t hi = lo + s->chunk < n ? lo + s->chunk : n;
        if (hh_interrupted())
            return hh_fail(err, HH_ECANCELLED, "interrupted after %lld of %lld tokens", (long long)lo, (long long)n);
        HH_TRY(eval_chunk(s, ids + lo, hi - lo, prompt, hi == n, err));
    }
    return HH_OK;
}

hh_code hh_session_eval(hh_session *s, const int32_t *ids, int64_t n, hh_error *err) {
    return append(s, ids, n, true, err);
}

hh_code hh_session_step(hh_session *s, int32_t id, hh_error *err) {
    return append(s, &id, 1, false, err);
}

static bool contains(const int32_t *ids, int64_t n, int32_t id) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

hh_code hh_session_generate(hh_session *s, int64_t max_new, const int32_t *end_ids, int64_t n_end,
                            const hh_sampling *sampling, hh_rng *rng, hh_token_fn *on_token, void *context,
                            int64_t *n_new, hh_error *err) {
    *n_new = 0;
    if (!s->cache->length) return hh_fail(err, HH_EINVAL, "generation needs at least one token to begin with");
    while (*n_new < max_new) {
        int32_t id = hh_sample_with(s->logits.data, s->m->config.vocab, sampling, rng, s->candidate);
        ++*n_new;
        if (contains(end_ids, n_end, id) || !on_token(context, id)) break;
        if (*n_new == max_new || s->cache->length == s->cache->capacity) break;
        HH_TRY(hh_session_step(s, id, err));
    }
    return HH_OK;
}
