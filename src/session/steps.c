/* Steps: one token more for several sequences, in one pass over the weights. */
#include "session/session_parts.h"

/* One call of hh_sessions_step. */
typedef struct step_call {
    hh_session *const *s;
    const int32_t *ids;
    int64_t n;
    hh_code *codes;
    hh_code first; /* failure, whose sentence *err holds */
    hh_error *err;
} step_call;

/* How sequence i fared; `why` holds the sentence when it failed. */
static void note(step_call *call, int64_t i, const hh_error *why) {
    if (call->codes) call->codes[i] = why ? why->code : HH_OK;
    if (!why || call->first != HH_OK) return;
    call->first = why->code;
    *call->err = *why;
}

static hh_code check(const step_call *call, int64_t i, hh_error *err) {
    hh_session *s = call->s[i];
    for (int64_t j = 0; j < i; j++)
        if (call->s[j] == s)
            return hh_fail(err, HH_EINVAL, "sequence %lld of a step is sequence %lld again", (long long)i,
                           (long long)j);
    if (s->g != call->s[0]->g)
        return hh_fail(err, HH_EINVAL, "sequence %lld of a step is of another model", (long long)i);
    if (s->cache->length < s->target)
        return hh_fail(err, HH_EINVAL, "its prompt is not read to the end: %lld of %lld tokens",
                       (long long)s->cache->length, (long long)s->target);
    if (s->cache->length == s->cache->capacity)
        return hh_fail(err, HH_EINVAL, "1 token behind position %lld does not fit the context of %lld tokens",
                       (long long)s->cache->length, (long long)s->cache->capacity);
    HH_TRY(hh_session_check_ids(s, &call->ids[i], 1, err));
    if (hh_session_take_cancel(s))
        return hh_fail(err, HH_ECANCELLED, "cancelled at position %lld", (long long)s->cache->length);
    return HH_OK;
}

/* Reads the tokens of n sequences that stand in the group's lists. */
static hh_code read_batch(hh_group *g, int64_t n, hh_error *err) {
    hh_backend *be = g->m->be;
    const hh_batch batch = {.n_tokens = n, .n_spans = n, .ids = g->ids, .span = g->span, .cache = g->cache};
    const hh_tensor logits = hh_tensor_rows(g->logits, 0, n);
    hh_tensor final;
    hh_guard_begin();
    hh_code code = hh_forward_next(g->run, &batch, logits, &final, err);
    for (int64_t i = 0; i < n && code == HH_OK; i++) {
        const hh_tensor one = hh_tensor_rows(logits, i, i + 1);
        be->to_host(be, g->stepping[i]->next, one.data, hh_tensor_bytes(one));
    }
    hh_guard_end();
    return code == HH_OK ? be->sync(be, err) : code;
}

static void run_batch(step_call *call, int64_t n) {
    hh_group *g = call->s[0]->g;
    hh_error err = {0};
    const hh_code code = read_batch(g, n, &err);
    for (int64_t i = 0; i < n; i++) {
        hh_session *s = g->stepping[i];
        hh_error own = err;
        if (code != HH_OK) hh_session_reset(s); /* the layers do not agree */
        s->has_next = code == HH_OK;
        const bool fine = code == HH_OK && hh_session_check_next(s, &own) == HH_OK;
        note(call, g->index[i], fine ? NULL : &own);
    }
}

hh_code hh_sessions_step(hh_session *const *s, const int32_t *ids, int64_t n, hh_code *codes, hh_error *err) {
    step_call call = {.s = s, .ids = ids, .n = n, .codes = codes, .err = err};
    int64_t held = 0;
    for (int64_t i = 0; i < n; i++) {
        hh_group *g = s[0]->g;
        hh_error why = {0};
        if (check(&call, i, &why) != HH_OK) {
            note(&call, i, &why);
        } else {
            const int64_t at = s[i]->cache->length;
            s[i]->ids[at] = g->ids[held] = ids[i];
            g->span[held] = (hh_span){.lo = held, .hi = held + 1, .pos = at};
            g->cache[held] = s[i]->cache;
            g->stepping[held] = s[i];
            g->index[held++] = i;
        }
        if (held && (held == g->most || i == n - 1)) {
            run_batch(&call, held);
            held = 0;
        }
    }
    return call.first;
}
