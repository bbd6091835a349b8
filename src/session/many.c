/* Several sequences at once; see many.h. */
#include "session/many.h"

#include "session/session_parts.h"

struct hh_many {
    hh_group *g;
    hh_session *s[HH_MANY_MOST];
    int64_t n_sequences;
};

int64_t hh_many_fitting(const hh_model *m, int64_t context, hh_dtype kv_dtype) {
    size_t free_bytes = (size_t)2 << 30, all = 0, one = hh_cache_bytes(&m->config, context, kv_dtype);
    if (m->be->memory) m->be->memory(m->be, &free_bytes, &all);
    int64_t most = m->be->decode_tokens < HH_MANY_MOST ? m->be->decode_tokens : HH_MANY_MOST;
    size_t n = one ? free_bytes / 2 / one : HH_MANY_MOST;
    return n < 1 ? 1 : n < (size_t)most ? (int64_t)n : most;
}

hh_code hh_many_new(hh_many **out, const hh_model *m, int64_t n_sequences, int64_t context, hh_dtype kv_dtype,
                    hh_error *err) {
    HH_ASSERT(n_sequences > 0 && n_sequences <= HH_MANY_MOST && context > 0);
    const int64_t pass = m->be->pass_tokens;
    const hh_group_options o = {.chunk = pass < context ? pass : context, .most = n_sequences, .kv_dtype = kv_dtype};
    hh_many *s = hh_alloc(sizeof *s);
    *out = NULL;
    *s = (hh_many){.n_sequences = n_sequences};
    hh_code code = hh_group_new(&s->g, m, &o, err);
    for (int64_t i = 0; i < n_sequences && code == HH_OK; i++) code = hh_group_session(&s->s[i], s->g, context, err);
    if (code != HH_OK) {
        hh_many_free(s);
        return code;
    }
    *out = s;
    return HH_OK;
}

void hh_many_free(hh_many *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->n_sequences; i++) hh_session_free(s->s[i]);
    hh_group_free(s->g);
    hh_free(s);
}

static bool contains(const int32_t *ids, int64_t n, int32_t id) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* Makes a token behind what a session has read, and hands it out; does the sequence go on? */
static bool take(const hh_many *m, hh_session *s, hh_request *r, int32_t *id, const int32_t *end_ids, int64_t n_end) {
    static const hh_sampling greedy = {.top_p = 1};
    *id = hh_sample_with(s->next, m->g->m->config.vocab, &greedy, NULL, m->g->candidate);
    ++r->n_new;
    if (contains(end_ids, n_end, *id) || !r->on_token(r->context, *id)) return false;
    return r->n_new < r->max_new && s->cache->length < s->cache->capacity;
}

hh_code hh_many_answer(hh_many *m, hh_request *r, int64_t n, const int32_t *end_ids, int64_t n_end, hh_error *err) {
    hh_session *going[HH_MANY_MOST];
    hh_request *request[HH_MANY_MOST];
    int32_t id[HH_MANY_MOST];
    int64_t n_going = 0;
    HH_ASSERT(n <= m->n_sequences);
    for (int64_t i = 0; i < n; i++) {
        r[i].n_new = 0;
        if (r[i].n < 1) return hh_fail(err, HH_EINVAL, "prompt %lld is empty", (long long)i);
        hh_session_reset(m->s[i]);
        if (hh_session_eval(m->s[i], r[i].ids, r[i].n, err) != HH_OK)
            return hh_fail_in(err, "prompt %lld", (long long)i);
        if (r[i].max_new < 1) continue;
        going[n_going] = m->s[i];
        request[n_going++] = &r[i];
    }
    for (;;) {
        int64_t left = 0;
        for (int64_t i = 0; i < n_going; i++) {
            if (!take(m, going[i], request[i], &id[left], end_ids, n_end)) continue;
            going[left] = going[i];
            request[left++] = request[i];
        }
        n_going = left;
        if (!n_going) return HH_OK;
        HH_TRY(hh_sessions_step(going, id, n_going, NULL, err));
    }
}
