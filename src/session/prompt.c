/* Prompts: what of one is known already, reading the rest chunk by chunk, keeping snapshots, scoring its tokens. */
#include "session/session_parts.h"

#include "base/progress.h"

#include <math.h>
#include <string.h>

enum { FIRST_ANCHOR = 256 }; /* snapshots stand at this position and its doubles */

static int64_t align_down(int64_t n) {
    return n / HH_SNAPSHOT_ALIGN * HH_SNAPSHOT_ALIGN;
}

/* -- what is known -- */

/* Tokens of ids[0, n) that the session itself holds and can go on from. */
static int64_t find_own(const hh_session *s, const int32_t *ids, int64_t n) {
    const int64_t length = s->cache->length, most = s->exact < n ? s->exact : n;
    int64_t common = 0;
    while (common < most && s->ids[common] == ids[common]) common++;
    if (common == n && length == n && s->exact == n && s->has_next) return n;
    if (s->g->recurrent) return common == length && length % HH_SNAPSHOT_ALIGN == 0 && length < n ? length : 0;
    return align_down(common < n ? common : n - 1);
}

static hh_code check_prompt(const hh_session *s, const int32_t *ids, int64_t n, hh_error *err) {
    if (n < 1) return hh_fail(err, HH_EINVAL, "a prompt of %lld tokens: at least one is needed", (long long)n);
    if (n > s->cache->capacity)
        return hh_fail(err, HH_EINVAL, "a prompt of %lld tokens does not fit the context of %lld tokens", (long long)n,
                       (long long)s->cache->capacity);
    return hh_session_check_ids(s, ids, n, err);
}

/* `afresh`: nothing that is known is used. */
static void begin(hh_session *s, const int32_t *ids, int64_t n, bool afresh) {
    hh_snapshots *snapshots = s->g->snapshots;
    int64_t length = afresh ? 0 : find_own(s, ids, n);
    if (!afresh && snapshots && hh_snapshots_find(snapshots, ids, n) > length) {
        hh_snapshots_restore(snapshots, s->cache, ids, n, s->next, &length);
        s->has_next = length == n;
    } else if (length == 0) {
        hh_session_reset(s);
    } else {
        s->has_next = s->has_next && length == n;
        s->cache->length = length;
    }
    memmove(s->ids, ids, (size_t)n * sizeof *ids);
    s->target = n;
    s->exact = s->reused = length;
    s->scoring = (hh_scoring){.n_top = 0};
    atomic_store(&s->cancelled, false);
}

hh_code hh_session_begin(hh_session *s, const int32_t *ids, int64_t n, hh_error *err) {
    HH_TRY(check_prompt(s, ids, n, err));
    begin(s, ids, n, false);
    return HH_OK;
}

/* -- reading -- */

/* The end of the chunk that begins at the session's position. */
static int64_t chunk_end(const hh_session *s) {
    const int64_t at = s->cache->length, last = align_down(s->target);
    int64_t end = at + s->g->chunk, anchor = FIRST_ANCHOR;
    if (end > s->target) end = s->target;
    if (last > at && last < end) end = last;
    while (anchor <= at) anchor *= 2;
    return anchor < end ? anchor : end;
}

static bool is_anchor(const hh_session *s, int64_t position) {
    return position == align_down(s->target) || (position >= FIRST_ANCHOR && (position & (position - 1)) == 0);
}

static void keep_snapshot(const hh_session *s) {
    hh_snapshots *snapshots = s->g->snapshots;
    const int64_t at = s->cache->length;
    if (!snapshots || s->exact != at) return;
    if (is_anchor(s, at)) hh_snapshots_add(snapshots, s->cache, s->ids, NULL);
    if (at == s->target) hh_snapshots_add(snapshots, s->cache, s->ids, s->next);
}

static void score_chunk(hh_session *s, hh_tensor final, int64_t start);

/* What was read stays; the rest is given up. */
static hh_code stop(hh_session *s, const char *how, hh_error *err) {
    const int64_t target = s->target;
    s->target = 0;
    return hh_fail(err, HH_ECANCELLED, "%s after %lld of %lld tokens", how, (long long)s->cache->length,
                   (long long)target);
}

hh_code hh_session_advance(hh_session *s, int64_t *left, hh_error *err) {
    *left = 0;
    if (hh_session_take_cancel(s)) return stop(s, "cancelled", err);
    if (s->cache->length >= s->target) return HH_OK;
    if (hh_interrupted()) return stop(s, "interrupted", err);
    const int64_t start = s->cache->length, end = chunk_end(s);
    hh_tensor final;
    HH_TRY(hh_session_read(s, end - start, true, end == s->target, &final, err));
    keep_snapshot(s);
    if (s->scoring.log_probability) score_chunk(s, final, start);
    *left = s->target - end;
    if (!*left) s->scoring = (hh_scoring){.n_top = 0}; /* the caller's places may go */
    if (s->on_progress && !s->on_progress(s->progress_context, end, s->target) && *left)
        return stop(s, "cancelled", err);
    return HH_OK;
}

/* -- scoring -- */

double hh_log_sum_exp(const hh_real *logits, int64_t vocab) {
    double most = (double)logits[0], sum = 0;
    for (int64_t i = 1; i < vocab; i++) most = (double)logits[i] > most ? (double)logits[i] : most;
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - most);
    return most + log(sum);
}

/* The n likeliest, in order; ties go to the lower id. */
static void find_top(const hh_real *logits, int64_t vocab, double norm, int64_t n, int32_t *ids, float *top) {
    int64_t have = 0;
    for (int64_t v = 0; v < vocab; v++) {
        int64_t at = have;
        while (at > 0 && logits[v] > logits[ids[at - 1]]) at--;
        if (at >= n) continue;
        if (have < n) have++;
        memmove(ids + at + 1, ids + at, (size_t)(have - at - 1) * sizeof *ids);
        ids[at] = (int32_t)v;
    }
    for (int64_t i = 0; i < n; i++) {
        top[i] = i < have ? (float)((double)logits[ids[i]] - norm) : -INFINITY;
        if (i >= have) ids[i] = -1;
    }
}

static void score_row(const hh_session *s, int64_t place, const hh_real *logits) {
    const hh_scoring *to = &s->scoring;
    const int64_t vocab = s->g->m->config.vocab;
    const double norm = hh_log_sum_exp(logits, vocab);
    to->log_probability[place] = (float)((double)logits[s->ids[place + 1]] - norm);
    if (to->n_top)
        find_top(logits, vocab, norm, to->n_top, to->top_ids + place * to->n_top, to->top + place * to->n_top);
}

/* The rows of a chunk that say something of a later token, as many at a time as there are logits for. */
static void score_chunk(hh_session *s, hh_tensor final, int64_t start) {
    hh_group *g = s->g;
    hh_backend *be = g->m->be;
    const int64_t end = s->cache->length, rows = (end < s->target ? end : s->target - 1) - start;
    hh_real *row = hh_alloc((size_t)g->m->config.vocab * sizeof *row);
    for (int64_t lo = 0; lo < rows; lo += g->most) {
        const int64_t hi = lo + g->most < rows ? lo + g->most : rows;
        const hh_tensor logits = hh_tensor_rows(g->logits, 0, hi - lo);
        hh_logits(g->run, hh_tensor_rows(final, lo, hi), NULL, hi - lo, logits);
        for (int64_t i = 0; i < hi - lo; i++) {
            const hh_tensor one = hh_tensor_rows(logits, i, i + 1);
            be->to_host(be, row, one.data, hh_tensor_bytes(one));
            score_row(s, start + lo + i, row);
        }
    }
    hh_free(row);
}

hh_code hh_session_begin_score(hh_session *s, const int32_t *ids, int64_t n, float *log_probability, int64_t n_top,
                               int32_t *top_ids, float *top, hh_error *err) {
    HH_TRY(check_prompt(s, ids, n, err));
    if (n_top < 0 || n_top > s->g->m->config.vocab)
        return hh_fail(err, HH_EINVAL, "the %lld most likely of a vocabulary of %lld make no sense", (long long)n_top,
                       (long long)s->g->m->config.vocab);
    begin(s, ids, n, true);
    s->scoring = (hh_scoring){log_probability, n_top, top_ids, top};
    return HH_OK;
}
