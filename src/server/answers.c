/* One answer: reading its prompt, giving the prompt back, drawing tokens, telling what was drawn. */
#include "server/scheduler.h"

#include "base/progress.h"

#include <math.h>

enum {
    MAX_TOP = 20,
    MOST_UNREAD = 16 << 20, /* bytes of a stream: a client that reads none of them is not waited for */
    MOST_TOLD = 1 << 20     /* log-probabilities of one request, at some hundred bytes each */
};

/* -- telling -- */

static void emit(hh_scheduler *s, hh_answer *a, const char *text, bool first) {
    hh_job *j = a->job;
    if (!j->request.stream) {
        hh_buf_puts(&a->whole, text);
        return;
    }
    pthread_mutex_lock(&s->lock);
    hh_out_event(&j->out, hh_chunk_json(a, s->o->model_name, text, first));
    j->gone = j->gone || j->out.len - j->sent > MOST_UNREAD;
    hh_job_wake(j);
    pthread_mutex_unlock(&s->lock);
    j->last_output = hh_now();
}

/* The n most likely tokens, by insertion: n is small. */
static void find_top(const hh_answer *a, int64_t vocab, int64_t n, int32_t *id, double *p) {
    const float *logits = hh_sequence_logits(a->sequence);
    int64_t have = 0;
    for (int64_t v = 0; v < vocab; v++) {
        if (have == n && !(logits[v] > logits[id[have - 1]])) continue;
        int64_t at = have < n ? have++ : n - 1;
        for (; at > 0 && logits[v] > logits[id[at - 1]]; at--) id[at] = id[at - 1];
        id[at] = (int32_t)v;
    }
    for (int64_t i = 0; i < have; i++) p[i] = hh_sequence_log_probability(a->sequence, id[i]);
}

/* Log-probabilities are held until they are sent: a request can ask for more than there is room for. */
static hh_code count_told(hh_answer *a, hh_error *err) {
    hh_job *j = a->job;
    j->n_told += 1 + j->request.n_top;
    if (j->n_told <= MOST_TOLD || j->request.stream) return HH_OK;
    return hh_fail(err, HH_EINVAL,
                   "more than %d log-probabilities in one answer; ask for fewer tokens, or for a stream", MOST_TOLD);
}

static hh_code tell_token(hh_scheduler *s, hh_answer *a, int32_t id, hh_error *err) {
    int32_t top_id[MAX_TOP];
    double top[MAX_TOP];
    int64_t n = a->job->request.n_top, vocab = hh_engine_get_info(s->engine).vocab;
    if (n < 0) return HH_OK;
    HH_TRY(count_told(a, err));
    if (n > vocab) n = vocab;
    if (n > 0) find_top(a, vocab, n, top_id, top);
    hh_answer_add_token(a, s->engine, id, hh_sequence_log_probability(a->sequence, id), top_id, top, n);
    return HH_OK;
}

static void release_scores(hh_answer *a) {
    hh_free(a->scores);
    hh_free(a->top);
    hh_free(a->top_ids);
    a->scores = a->top = NULL;
    a->top_ids = NULL;
}

static void finish(hh_scheduler *s, hh_answer *a, const char *how) {
    hh_job *j = a->job;
    hh_buf rest = {0};
    if (!a->text.stopped) hh_stream_text_end(&a->text, &rest);
    a->finish = how;
    emit(s, a, rest.data ? rest.data : "", false);
    hh_buf_release(&rest);
    pthread_mutex_lock(&s->lock);
    s->stats.prompt_tokens += a->prompt->n;
    s->stats.cached_tokens += a->n_cached;
    s->stats.made_tokens += a->n_made;
    pthread_mutex_unlock(&s->lock);
    hh_answer_leave(s, a);
    if (j->n_done < j->n_answers) return;
    pthread_mutex_lock(&s->lock);
    if (j->request.stream) {
        if (j->request.include_usage) hh_out_event(&j->out, hh_usage_chunk_json(j, s->o->model_name));
        hh_buf_puts(&j->out, "data: [DONE]\n\n");
    } else {
        hh_out_json(&j->out, hh_result_json(j, s->o->model_name));
    }
    pthread_mutex_unlock(&s->lock);
    hh_job_finish(s, j, 200);
}

void hh_answer_leave(hh_scheduler *s, hh_answer *a) {
    if (a->state == HH_ANSWER_DONE) return;
    for (int64_t i = 0; i < s->o->slots; i++) {
        if (s->answer[i] != a) continue;
        s->answer[i] = NULL;
        a->job->n_held--;
        atomic_fetch_sub(&s->n_busy, 1);
    }
    a->state = HH_ANSWER_DONE;
    a->job->n_done++;
    a->sequence = NULL;
    hh_sampler_free(a->sampler);
    a->sampler = NULL;
    release_scores(a);
}

/* -- reading -- */

hh_code hh_answer_make_sampler(hh_scheduler *s, hh_answer *a, hh_error *err) {
    hh_sampler_options o = a->job->request.sampling;
    if (a->sampler) return HH_OK;
    o.seed += (uint64_t)a->index; /* the answers to one prompt differ */
    HH_TRY(hh_sampler_new(&a->sampler, s->engine, &o, err));
    hh_sampler_see(a->sampler, a->prompt->ids, a->prompt->n);
    return HH_OK;
}

static hh_code begin_scores(hh_answer *a, hh_error *err) {
    const hh_prompt_ids *p = a->prompt;
    const size_t rows = (size_t)p->n - 1, wide = (size_t)a->job->request.n_top;
    void *scores, *ids, *top;
    HH_TRY(hh_alloc_checked(&scores, rows, sizeof *a->scores, "log-probabilities of a prompt", err));
    a->scores = scores;
    HH_TRY(hh_alloc_checked(&ids, rows * wide, sizeof *a->top_ids, "likeliest tokens of a prompt", err));
    a->top_ids = ids;
    HH_TRY(hh_alloc_checked(&top, rows * wide, sizeof *a->top, "log-probabilities of a prompt", err));
    a->top = top;
    return hh_sequence_begin_score(a->sequence, p->ids, p->n, (int64_t)wide, a->scores, a->top_ids, a->top, err);
}

hh_code hh_answer_begin(hh_scheduler *s, hh_answer *a, hh_sequence *sequence, hh_error *err) {
    const hh_request *r = &a->job->request;
    a->sequence = sequence;
    a->state = HH_ANSWER_READING;
    HH_TRY(hh_answer_make_sampler(s, a, err));
    if (r->echo && r->n_top >= 0 && a->prompt->n > 1) {
        HH_TRY(begin_scores(a, err));
    } else {
        HH_TRY(hh_sequence_begin(sequence, a->prompt->ids, a->prompt->n, err));
    }
    a->n_cached = hh_sequence_reused(sequence);
    return HH_OK;
}

/* The prompt's own tokens, as they were scored while it was read. */
static hh_code tell_prompt(hh_scheduler *s, hh_answer *a, hh_error *err) {
    const hh_prompt_ids *p = a->prompt;
    const int64_t n_top = a->job->request.n_top;
    double top[MAX_TOP];
    for (int64_t i = 0; i < p->n; i++) {
        const int64_t row = i - 1;
        HH_TRY(count_told(a, err));
        if (row < 0) {
            hh_answer_add_token(a, s->engine, p->ids[0], (double)NAN, NULL, NULL, 0);
            continue;
        }
        for (int64_t k = 0; k < n_top; k++) top[k] = (double)a->top[row * n_top + k];
        hh_answer_add_token(a, s->engine, p->ids[i], (double)a->scores[row],
                            a->top_ids ? a->top_ids + row * n_top : NULL, top, n_top);
    }
    release_scores(a);
    return HH_OK;
}

/* The prompt, given back. */
static hh_code echo(hh_scheduler *s, hh_answer *a, hh_error *err) {
    char *text = NULL;
    size_t n = 0;
    HH_TRY(hh_engine_detokenize(s->engine, a->prompt->ids, a->prompt->n, true, &text, &n, err));
    hh_code code = a->job->request.n_top >= 0 ? tell_prompt(s, a, err) : HH_OK;
    if (code == HH_OK) {
        hh_buf clean = {0};
        hh_clean_utf8(text, n, &clean);
        emit(s, a, clean.data ? clean.data : "", true);
        hh_buf_release(&clean);
    }
    hh_memory_free(text);
    return code;
}

hh_code hh_answer_was_read(hh_scheduler *s, hh_answer *a, hh_error *err) {
    const hh_request *r = &a->job->request;
    if (r->echo)
        HH_TRY(echo(s, a, err));
    else if (r->stream && r->chat)
        emit(s, a, "", true);
    a->state = HH_ANSWER_MAKING;
    return hh_answer_draw(s, a, err);
}

/* -- making -- */

static bool is_end(const hh_engine *e, int32_t id) {
    int64_t n;
    const int32_t *end = hh_engine_end_tokens(e, &n);
    for (int64_t i = 0; i < n; i++)
        if (end[i] == id) return true;
    return false;
}

/* Gives the token's text to the client; true: a stop string is complete. */
static bool give_text(hh_scheduler *s, hh_answer *a, int32_t id) {
    const hh_request *r = &a->job->request;
    char *bytes = NULL;
    size_t n = 0;
    hh_error ignored = {0};
    hh_buf out = {0};
    if (hh_engine_detokenize(s->engine, &id, 1, false, &bytes, &n, &ignored) != HH_OK) n = 0;
    const bool stopped = hh_stream_text_add(&a->text, bytes ? bytes : "", n, &out);
    hh_memory_free(bytes);
    if (out.len || (r->n_top >= 0 && r->stream)) emit(s, a, out.data ? out.data : "", false);
    hh_buf_release(&out);
    return stopped;
}

hh_code hh_answer_draw(hh_scheduler *s, hh_answer *a, hh_error *err) {
    const hh_request *r = &a->job->request;
    int64_t room = s->o->context - a->prompt->n,
            most = r->max_tokens < 0 || r->max_tokens > room + 1 ? room + 1 : r->max_tokens;
    if (most == 0) {
        finish(s, a, "length");
        return HH_OK;
    }
    const int32_t id = hh_sampler_draw(a->sampler, hh_sequence_logits(a->sequence));
    if (id < 0)
        return hh_fail(err, HH_EINVAL, "'logit_bias' and 'response_format' leave no token that could come next");
    a->n_made++;
    if (is_end(s->engine, id)) {
        finish(s, a, "stop");
        return HH_OK;
    }
    HH_TRY(tell_token(s, a, id, err));
    a->next = id;
    const bool stopped = give_text(s, a, id);
    if (stopped || a->n_made == most) finish(s, a, stopped ? "stop" : "length");
    return HH_OK;
}
