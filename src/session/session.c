/* One sequence over a model; see session.h. Between hh_guard_begin and hh_guard_end nothing is allocated: memory does
 * not grow with use. */
#include "session/session.h"

#include "base/progress.h"
#include "session/sample.h"

struct hh_session {
    const hh_model *m;
    hh_run *run;
    hh_cache *cache;
    int64_t chunk;
    hh_tensor logits;        /* [1, V] where the model lives */
    hh_real *next;           /* [V] the same for the CPU */
    hh_candidate *candidate; /* [V] work of the sampler */
    hh_arena arena, host;
};

static int64_t chunk_of(const hh_backend *be, const hh_session_options *o) {
    int64_t chunk = o->chunk > 0 ? o->chunk : be->pass_tokens;
    return chunk < o->context ? chunk : o->context;
}

static void place(hh_session *s, const hh_config *c, hh_arena *a, hh_arena *host) {
    s->logits = hh_tensor_place_2d(a, HH_DTYPE_REAL, 1, c->vocab);
    s->next = hh_arena_alloc(host, (size_t)c->vocab * sizeof *s->next);
    s->candidate = hh_arena_alloc(host, (size_t)c->vocab * sizeof *s->candidate);
}

static void count_own(const hh_config *c, size_t *bytes, size_t *host_bytes) {
    hh_session s;
    hh_arena count, host;
    hh_arena_init_counting(&count, "run");
    hh_arena_init_counting(&host, "run");
    place(&s, c, &count, &host);
    *bytes = count.used;
    *host_bytes = host.used;
}

size_t hh_session_bytes(const hh_config *c, const hh_backend *be, const hh_session_options *o) {
    size_t own, host;
    count_own(c, &own, &host);
    return hh_run_bytes(c, be->activation, chunk_of(be, o), 1, HH_RUN_INFERENCE) +
           hh_cache_bytes(c, o->context, o->kv_dtype) + own + host;
}

hh_code hh_session_new(hh_session **out, const hh_model *m, const hh_session_options *o, hh_error *err) {
    *out = NULL;
    if (o->context < 1 || o->context > (int64_t)1 << 40)
        return hh_fail(err, HH_EINVAL, "a context of %lld tokens makes no sense", (long long)o->context);
    size_t own, host;
    count_own(&m->config, &own, &host);
    hh_session *s = hh_alloc(sizeof *s);
    *s = (hh_session){.m = m, .chunk = chunk_of(m->be, o)};
    hh_code code = m->be->arena_init(m->be, &s->arena, "run", own, err);
    if (code == HH_OK) code = m->be->host_arena_init(m->be, &s->host, "run", host, err);
    if (code == HH_OK) code = hh_run_new(&s->run, m, s->chunk, 1, HH_RUN_INFERENCE, err);
    if (code == HH_OK) code = hh_cache_new(&s->cache, m, o->context, o->kv_dtype, err);
    if (code != HH_OK) {
        hh_session_free(s);
        return code;
    }
    place(s, &m->config, &s->arena, &s->host);
    *out = s;
    return HH_OK;
}

void hh_session_free(hh_session *s) {
    if (!s) return;
    hh_run_free(s->run);
    hh_cache_free(s->cache, s->m->be);
    if (s->arena.base) s->m->be->arena_release(s->m->be, &s->arena);
    if (s->host.base) s->m->be->host_arena_release(s->m->be, &s->host);
    hh_free(s);
}

void hh_session_reset(hh_session *s) {
    hh_cache_reset(s->cache);
}

int64_t hh_session_position(const hh_session *s) {
    return s->cache->length;
}

const hh_real *hh_session_logits(const hh_session *s) {
    return s->next;
}

/* Row of the first value that is not finite; -1: none. */
static int64_t find_nonfinite(hh_backend *be, hh_tensor t) {
    int64_t at;
    be->ops->find_nonfinite(be, &at, t);
    return at < 0 ? -1 : at / hh_tensor_row_count(t);
}

/* The first layer whose kept values show the fault; if they are keys or values, its first position there. */
static void find_fault(const hh_session *s, int64_t start, int64_t *layer, int64_t *position) {
    hh_backend *be = s->m->be;
    for (*layer = 0; *layer < s->m->config.n_layers; ++*layer) {
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
    if (final.dim[0] > 1 || !last) row = find_nonfinite(s->m->be, final);
    if (row < 0 && last && !hh_logits_are_finite(s->next, s->m->config.vocab)) row = final.dim[0] - 1;
    if (row < 0) return HH_OK;
    int64_t layer, position = start + row;
    find_fault(s, start, &layer, &position);
    hh_session_reset(s);
    return hh_fail(
        err, HH_ENONFINITE,
        "%s: a value is not finite at position %lld, first seen in layer %lld; HYDRAHEAD_CHECK=nan names the "
        "operation",
        s->m->path, (long long)position, (long long)layer);
}

static hh_code eval_chunk(hh_session *s, const int32_t *ids, int64_t n, bool prompt, bool last, hh_error *err) {
    const int64_t start = s->cache->length;
    const hh_span span = {.lo = 0, .hi = n, .pos = start};
    const hh_batch batch = {
        .n_tokens = n, .n_spans = 1, .ids = ids, .span = &span, .cache = &s->cache, .prompt = prompt};
    hh_backend *be = s->m->be;
    hh_tensor final;
    hh_guard_begin();
    hh_code code =
        last ? hh_forward_next(s->run, &batch, s->logits, &final, err) : hh_forward(s->run, &batch, &final, err);
    if (code == HH_OK && last) be->to_host(be, s->next, s->logits.data, hh_tensor_bytes(s->logits));
    hh_guard_end();
    if (code == HH_OK) code = be->sync(be, err);
    if (code == HH_ENONFINITE || code == HH_ECANCELLED) hh_session_reset(s); /* the layers do not agree */
    return code == HH_OK ? check_finite(s, final, start, last, err) : code;
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
        int32_t id = hh_sample_with(s->next, s->m->config.vocab, sampling, rng, s->candidate);
        ++*n_new;
        if (contains(end_ids, n_end, id) || !on_token(context, id)) break;
        if (*n_new == max_new || s->cache->length == s->cache->capacity) break;
        HH_TRY(hh_session_step(s, id, err));
    }
    return HH_OK;
}
