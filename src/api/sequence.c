/* Sequences of an engine; see hydrahead.h. */
#include "api/api.h"

#include <math.h>

struct hh_sequence {
    hh_engine *e;
    hh_session *session;
};

hh_code hh_sequence_new(hh_sequence **out, hh_engine *e, int64_t context, hh_error *err) {
    hh_session *session;
    *out = NULL;
    HH_TRY(hh_group_session(&session, e->group, context, err));
    hh_sequence *s = hh_alloc(sizeof *s);
    *s = (hh_sequence){e, session};
    *out = s;
    return HH_OK;
}

void hh_sequence_free(hh_sequence *s) {
    if (!s) return;
    hh_session_free(s->session);
    hh_free(s);
}

/* -- prompts -- */

/* Says of a snapshot that could not be trusted. */
static void tell_refusals(hh_engine *e) {
    if (!hh_group_snapshots(e->group)) return;
    const hh_snapshots_stats stats = hh_snapshots_get_stats(hh_group_snapshots(e->group));
    if (stats.refused > e->refused_said)
        hh_engine_say(e, HH_LOG_WARNING, "a snapshot was not used: %s", stats.last_refusal);
    e->refused_said = stats.refused;
}

hh_code hh_sequence_begin(hh_sequence *s, const int32_t *ids, int64_t n, hh_error *err) {
    HH_TRY(hh_session_begin(s->session, ids, n, err));
    s->e->tokens_reused += hh_session_reused(s->session);
    tell_refusals(s->e);
    return HH_OK;
}

hh_code hh_sequence_advance(hh_sequence *s, int64_t *left, hh_error *err) {
    const int64_t before = hh_session_position(s->session);
    hh_code code = hh_session_advance(s->session, left, err);
    const int64_t read = hh_session_position(s->session) - before;
    if (read > 0) s->e->tokens_read += read;
    return code;
}

hh_code hh_sequence_prompt(hh_sequence *s, const int32_t *ids, int64_t n, hh_error *err) {
    HH_TRY(hh_sequence_begin(s, ids, n, err));
    for (int64_t left = n; left;) HH_TRY(hh_sequence_advance(s, &left, err));
    return HH_OK;
}

hh_code hh_sequence_begin_score(hh_sequence *s, const int32_t *ids, int64_t n, int64_t n_top, float *log_probability,
                                int32_t *top_ids, float *top, hh_error *err) {
    return hh_session_begin_score(s->session, ids, n, log_probability, n_top, top_ids, top, err);
}

hh_code hh_sequence_score(hh_sequence *s, const int32_t *ids, int64_t n, int64_t n_top, float **log_probability,
                          int32_t **top_ids, float **top, hh_error *err) {
    const size_t rows = n > 1 ? (size_t)n - 1 : 0, wide = n_top > 0 ? (size_t)n_top : 0;
    void *one = NULL, *id = NULL, *many = NULL;
    *log_probability = NULL;
    if (top_ids) *top_ids = NULL;
    if (top) *top = NULL;
    if (wide && (!top_ids || !top))
        return hh_fail(err, HH_EINVAL, "the %lld most likely have no place to go", (long long)n_top);
    hh_code code = hh_alloc_checked(&one, rows, sizeof(float), "log-probabilities", err);
    if (code == HH_OK) code = hh_alloc_checked(&id, rows * wide, sizeof(int32_t), "likeliest ids", err);
    if (code == HH_OK) code = hh_alloc_checked(&many, rows * wide, sizeof(float), "log-probabilities", err);
    if (code == HH_OK) code = hh_sequence_begin_score(s, ids, n, n_top, one, id, many, err);
    for (int64_t left = n; left && code == HH_OK;) code = hh_sequence_advance(s, &left, err);
    if (code != HH_OK || !wide) {
        hh_free(id);
        hh_free(many);
    }
    if (code != HH_OK) {
        hh_free(one);
        return code;
    }
    *log_probability = one;
    if (wide) {
        *top_ids = id;
        *top = many;
    }
    return HH_OK;
}

/* -- steps -- */

hh_code hh_sequences_step(hh_sequence *const *s, const int32_t *ids, int64_t n, hh_code *codes, hh_error *err) {
    if (n < 0) return hh_fail(err, HH_EINVAL, "a step of %lld sequences makes no sense", (long long)n);
    hh_session **session = hh_alloc((size_t)n * sizeof *session);
    for (int64_t i = 0; i < n; i++) session[i] = s[i]->session;
    hh_code code = hh_sessions_step(session, ids, n, codes, err);
    hh_free(session);
    return code;
}

/* -- what stands there -- */

const float *hh_sequence_logits(const hh_sequence *s) {
    return hh_session_logits(s->session);
}

double hh_sequence_log_probability(const hh_sequence *s, int32_t id) {
    const hh_real *logits = hh_session_logits(s->session);
    const int64_t vocab = s->e->m->config.vocab;
    if (!logits || id < 0 || id >= vocab) return (double)NAN;
    return (double)logits[id] - hh_log_sum_exp(logits, vocab);
}

int64_t hh_sequence_length(const hh_sequence *s) {
    return hh_session_position(s->session);
}

int64_t hh_sequence_context(const hh_sequence *s) {
    return hh_session_context(s->session);
}

int64_t hh_sequence_reused(const hh_sequence *s) {
    return hh_session_reused(s->session);
}

void hh_sequence_cancel(hh_sequence *s) {
    hh_session_cancel(s->session);
}

void hh_sequence_on_progress(hh_sequence *s, hh_progress_fn *f, void *context) {
    hh_session_on_progress(s->session, f, context);
}

hh_code hh_sequence_save(const hh_sequence *s, const char *path, hh_error *err) {
    return hh_session_save(s->session, path, err);
}

hh_code hh_sequence_load(hh_sequence *s, const char *path, hh_error *err) {
    return hh_session_load(s->session, path, err);
}
