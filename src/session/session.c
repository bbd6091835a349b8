/* One sequence over a model; see session.h. Between hh_guard_begin and hh_guard_end nothing is allocated: memory does
 * not grow with use. */
#include "session/session_parts.h"

#include "base/progress.h"

#include <string.h>

static void place(hh_session *s, const hh_config *c, int64_t context, hh_arena *host) {
    s->next = hh_arena_alloc(host, (size_t)c->vocab * sizeof *s->next);
    s->ids = hh_arena_alloc(host, (size_t)context * sizeof *s->ids);
}

static size_t count_own(const hh_config *c, int64_t context) {
    hh_session s;
    hh_arena host;
    hh_arena_init_counting(&host, "run");
    place(&s, c, context, &host);
    return host.used;
}

static hh_group_options group_of_one(const hh_backend *be, const hh_session_options *o) {
    const int64_t chunk = o->chunk > 0 ? o->chunk : be->pass_tokens;
    return (hh_group_options){.chunk = chunk < o->context ? chunk : o->context, .most = 1, .kv_dtype = o->kv_dtype};
}

size_t hh_group_session_bytes(const hh_config *c, int64_t context, hh_dtype kv_dtype) {
    return hh_cache_bytes(c, context, kv_dtype) + count_own(c, context);
}

size_t hh_session_bytes(const hh_config *c, const hh_backend *be, const hh_session_options *o) {
    const hh_group_options g = group_of_one(be, o);
    return hh_group_bytes(c, be, &g) + hh_group_session_bytes(c, o->context, o->kv_dtype);
}

static hh_code check_context(int64_t context, hh_error *err) {
    if (context >= 1 && context <= (int64_t)1 << 40) return HH_OK;
    return hh_fail(err, HH_EINVAL, "a context of %lld tokens makes no sense", (long long)context);
}

hh_code hh_group_session(hh_session **out, hh_group *g, int64_t context, hh_error *err) {
    *out = NULL;
    HH_TRY(check_context(context, err));
    hh_session *s = hh_alloc(sizeof *s);
    s->g = g;
    hh_code code = g->m->be->host_arena_init(g->m->be, &s->host, "run", count_own(&g->m->config, context), err);
    if (code == HH_OK) code = hh_cache_new(&s->cache, g->m, context, g->kv_dtype, err);
    if (code != HH_OK) {
        hh_session_free(s);
        return code;
    }
    place(s, &g->m->config, context, &s->host);
    *out = s;
    return HH_OK;
}

hh_code hh_session_new(hh_session **out, const hh_model *m, const hh_session_options *o, hh_error *err) {
    *out = NULL;
    HH_TRY(check_context(o->context, err));
    const hh_group_options options = group_of_one(m->be, o);
    hh_group *g;
    HH_TRY(hh_group_new(&g, m, &options, err));
    hh_code code = hh_group_session(out, g, o->context, err);
    if (code == HH_OK)
        (*out)->owns_group = true;
    else
        hh_group_free(g);
    return code;
}

void hh_session_free(hh_session *s) {
    if (!s) return;
    hh_cache_free(s->cache, s->g->m->be);
    if (s->host.base) s->g->m->be->host_arena_release(s->g->m->be, &s->host);
    if (s->owns_group) hh_group_free(s->g);
    hh_free(s);
}

void hh_session_reset(hh_session *s) {
    hh_cache_reset(s->cache);
    s->target = s->exact = 0;
    s->has_next = false;
}

int64_t hh_session_position(const hh_session *s) {
    return s->cache->length;
}

int64_t hh_session_context(const hh_session *s) {
    return s->cache->capacity;
}

const hh_real *hh_session_logits(const hh_session *s) {
    return s->has_next ? s->next : NULL;
}

int64_t hh_session_reused(const hh_session *s) {
    return s->reused;
}

void hh_session_cancel(hh_session *s) {
    atomic_store(&s->cancelled, true);
}

bool hh_session_take_cancel(hh_session *s) {
    return atomic_exchange(&s->cancelled, false);
}

void hh_session_on_progress(hh_session *s, hh_progress_fn *f, void *context) {
    s->on_progress = f;
    s->progress_context = context;
}

/* Row of the first value that is not finite; -1: none. */
static int64_t find_nonfinite(hh_backend *be, hh_tensor t) {
    int64_t at;
    be->ops->find_nonfinite(be, &at, t);
    return at < 0 ? -1 : at / hh_tensor_row_count(t);
}

/* The first layer whose kept values show the fault; if they are keys or values, its first position there. */
static void find_fault(const hh_session *s, int64_t start, int64_t *layer, int64_t *position) {
    hh_backend *be = s->g->m->be;
    for (*layer = 0; *layer < s->g->m->config.n_layers; ++*layer) {
        const struct hh_layer_cache *kept = &s->cache->layer[*layer];
        if (kept->k.rank) {
            int64_t k = find_nonfinite(be, hh_tensor_rows(kept->k, start, s->cache->length));
            int64_t v = find_nonfinite(be, hh_tensor_rows(kept->v, start, s->cache->length));
            if (k >= 0 || v >= 0) {
                *position = start + (v < 0 || (k >= 0 && k < v) ? k : v);
                return;
            }
        }
        if (kept->state.rank && find_nonfinite(be, kept->state) >= 0) return;
    }
}

/* A value that is not finite fails this request and leaves the session as new. Of a single token the logits tell. */
static hh_code check_finite(hh_session *s, hh_tensor final, int64_t start, bool last, hh_error *err) {
    int64_t row = -1;
    if (final.dim[0] > 1 || !last) row = find_nonfinite(s->g->m->be, final);
    if (row < 0 && last && !hh_logits_are_finite(s->next, s->g->m->config.vocab)) row = final.dim[0] - 1;
    if (row < 0) return HH_OK;
    int64_t layer, position = start + row;
    find_fault(s, start, &layer, &position);
    hh_session_reset(s);
    return hh_fail(
        err, HH_ENONFINITE,
        "%s: a value is not finite at position %lld, first seen in layer %lld; HYDRAHEAD_CHECK=nan names the "
        "operation",
        s->g->m->path, (long long)position, (long long)layer);
}

hh_code hh_session_check_next(hh_session *s, hh_error *err) {
    const hh_tensor one = hh_tensor_2d(s->next, HH_DTYPE_REAL, 1, s->g->m->config.vocab);
    return check_finite(s, one, s->cache->length - 1, true, err);
}

hh_code hh_session_read(hh_session *s, int64_t n, bool prompt, bool last, hh_tensor *final, hh_error *err) {
    hh_group *g = s->g;
    const int64_t start = s->cache->length;
    const hh_span span = {.lo = 0, .hi = n, .pos = start};
    const hh_batch batch = {
        .n_tokens = n, .n_spans = 1, .ids = s->ids + start, .span = &span, .cache = &s->cache, .prompt = prompt};
    const hh_tensor logits = hh_tensor_rows(g->logits, 0, 1);
    hh_backend *be = g->m->be;
    s->has_next = false;
    hh_guard_begin();
    hh_code code = last ? hh_forward_next(g->run, &batch, logits, final, err) : hh_forward(g->run, &batch, final, err);
    if (code == HH_OK && last) be->to_host(be, s->next, logits.data, hh_tensor_bytes(logits));
    hh_guard_end();
    if (code == HH_OK) code = be->sync(be, err);
    if (code == HH_ENONFINITE || code == HH_ECANCELLED) hh_session_reset(s); /* the layers do not agree */
    HH_TRY(code);
    HH_TRY(check_finite(s, *final, start, last, err));
    s->has_next = last;
    if (prompt && s->exact == start && start % HH_SNAPSHOT_ALIGN == 0) s->exact = start + n;
    return HH_OK;
}

hh_code hh_session_check_ids(const hh_session *s, const int32_t *ids, int64_t n, hh_error *err) {
    const int64_t vocab = s->g->m->config.vocab;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return hh_fail(err, HH_EINVAL, "token id %d (number %lld) is outside the model's vocabulary of %lld",
                           ids[i], (long long)i, (long long)vocab);
    return HH_OK;
}

static hh_code append(hh_session *s, const int32_t *ids, int64_t n, bool prompt, hh_error *err) {
    const int64_t at = s->cache->length, context = s->cache->capacity;
    if (n > context - at)
        return hh_fail(err, HH_EINVAL, "%lld tokens behind position %lld do not fit the context of %lld tokens",
                       (long long)n, (long long)at, (long long)context);
    HH_TRY(hh_session_check_ids(s, ids, n, err));
    memcpy(s->ids + at, ids, (size_t)n * sizeof *ids);
    s->target = 0; /* of no prompt that was begun */
    for (int64_t lo = 0; lo < n; lo += s->g->chunk) {
        int64_t hi = lo + s->g->chunk < n ? lo + s->g->chunk : n;
        hh_tensor final;
        if (hh_interrupted())
            return hh_fail(err, HH_ECANCELLED, "interrupted after %lld of %lld tokens", (long long)lo, (long long)n);
        HH_TRY(hh_session_read(s, hi - lo, prompt, hi == n, &final, err));
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
        int32_t id = hh_sample_with(s->next, s->g->m->config.vocab, sampling, rng, s->g->candidate);
        ++*n_new;
        if (contains(end_ids, n_end, id) || !on_token(context, id)) break;
        if (*n_new == max_new || s->cache->length == s->cache->capacity) break;
        HH_TRY(hh_session_step(s, id, err));
    }
    return HH_OK;
}
