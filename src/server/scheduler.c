/* Continuous batching. Every turn: new jobs are prepared and get slots in the order they came; one chunk of one prompt is
 * read; all answers that are being made get one token each, in one pass over the weights. So a stream waits at most for a
 * chunk, whatever the prompts of the others are. Clients that have left are looked for every turn. */
#include "server/scheduler.h"

#include "base/progress.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define KEEP_ALIVE_SECONDS 5
#define MAX_TOP            20

void hh_scheduler_init(hh_scheduler *s, hh_engine *e, const hh_server_options *o) {
    *s = (hh_scheduler){.engine = e, .o = o};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wanted, NULL);
    s->arrived_end = &s->arrived;
    size_t n = (size_t)o->slots;
    s->slot = hh_alloc(n * sizeof *s->slot);
    s->answer = hh_alloc(n * sizeof *s->answer);
    s->step = hh_alloc(n * sizeof *s->step);
    s->step_of = hh_alloc(n * sizeof *s->step_of);
    s->step_id = hh_alloc(n * sizeof *s->step_id);
    s->step_code = hh_alloc(n * sizeof *s->step_code);
}

void hh_scheduler_release(hh_scheduler *s) {
    for (int64_t i = 0; i < s->o->slots; i++) hh_sequence_free(s->slot[i]);
    hh_free(s->slot);
    hh_free(s->answer);
    hh_free(s->step);
    hh_free(s->step_of);
    hh_free(s->step_id);
    hh_free(s->step_code);
    pthread_cond_destroy(&s->wanted);
    pthread_mutex_destroy(&s->lock);
}

bool hh_scheduler_take(hh_scheduler *s, hh_job *j) {
    pthread_mutex_lock(&s->lock);
    bool room = !s->stopping && s->n_under_way < s->o->queue + s->o->slots;
    s->stats.requests++;
    if (room) {
        atomic_fetch_add(&j->references, 1);
        j->next = NULL;
        *s->arrived_end = j;
        s->arrived_end = &j->next;
        s->n_under_way++;
        pthread_cond_signal(&s->wanted);
    } else {
        s->stats.refused++;
    }
    pthread_mutex_unlock(&s->lock);
    return room;
}

void hh_scheduler_stop(hh_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->wanted);
    pthread_mutex_unlock(&s->lock);
}

/* -- ends -- */

static void finish_job(hh_scheduler *s, hh_job *j, int status) {
    pthread_mutex_lock(&s->lock);
    j->state = HH_JOB_DONE;
    j->status = status;
    j->complete = true;
    s->n_under_way--;
    if (j->gone)
        s->stats.cancelled++;
    else if (status == 200)
        s->stats.finished++;
    else
        s->stats.failed++;
    hh_job_wake(j);
    pthread_mutex_unlock(&s->lock);
}

/* Before anything was said: an HTTP status; in a stream that has begun: an event. */
static void fail_job(hh_scheduler *s, hh_job *j, int status, const char *sentence) {
    pthread_mutex_lock(&s->lock);
    bool streaming = j->state == HH_JOB_ADMITTED && j->request.stream;
    if (streaming) {
        hh_out_event(&j->out, hh_error_json(status, sentence));
        hh_buf_puts(&j->out, "data: [DONE]\n\n");
    } else {
        hh_buf_clear(&j->out);
        hh_out_json(&j->out, hh_error_json(status, sentence));
    }
    pthread_mutex_unlock(&s->lock);
    finish_job(s, j, streaming ? 200 : status);
}

static int status_of(hh_code code) {
    return code == HH_EINVAL || code == HH_EFORMAT || code == HH_EUNSUPPORTED ? 400 : code == HH_ENOMEM ? 503 : 500;
}

static void free_slot(hh_scheduler *s, hh_answer *a) {
    for (int64_t i = 0; i < s->o->slots; i++)
        if (s->answer[i] == a) s->answer[i] = NULL;
    a->state = HH_ANSWER_DONE;
    a->sequence = NULL;
}

static void drop_job(hh_scheduler *s, hh_job *j) {
    for (int64_t i = 0; i < j->n_answers; i++) free_slot(s, &j->answer[i]);
    for (hh_job **at = &s->jobs; *at; at = &(*at)->next)
        if (*at == j) {
            *at = j->next;
            break;
        }
    hh_job_release(j);
}

/* -- new jobs -- */

static hh_code tokenize_chat(hh_scheduler *s, hh_request *r, hh_error *err) {
    const json_t *list = json_object_get(r->body, "messages");
    int64_t n = (int64_t)json_array_size(list);
    hh_message *m = hh_alloc((size_t)n * sizeof *m);
    hh_buf *text = hh_alloc((size_t)n * sizeof *text);
    for (int64_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(list, (size_t)i), *content = json_object_get(one, "content"), *part;
        size_t k;
        hh_buf_puts(&text[i], json_is_string(content) ? json_string_value(content) : "");
        json_array_foreach((json_t *)content, k, part)
            hh_buf_puts(&text[i], json_string_value(json_object_get(part, "text")));
        const char *role = json_string_value(json_object_get(one, "role"));
        m[i] = (hh_message){strcmp(role, "developer") ? role : "system", text[i].data};
    }
    hh_code code = hh_engine_chat(s->engine, m, n, &r->prompt[0].ids, &r->prompt[0].n, err);
    for (int64_t i = 0; i < n; i++) hh_buf_release(&text[i]);
    hh_free(text);
    hh_free(m);
    return code;
}

static hh_code tokenize(hh_scheduler *s, hh_request *r, hh_error *err) {
    if (r->chat) return tokenize_chat(s, r, err);
    for (int64_t i = 0; i < r->n_prompts; i++) {
        hh_prompt_ids *p = &r->prompt[i];
        if (!p->text) continue;
        hh_code code = hh_engine_tokenize(s->engine, p->text, strlen(p->text), true, &p->ids, &p->n, err);
        if (code != HH_OK) return code;
    }
    return HH_OK;
}

/* What the context has no room for is refused before anything is computed. */
static hh_code check_prompts(hh_scheduler *s, const hh_request *r, hh_error *err) {
    int64_t vocab = hh_engine_get_info(s->engine).vocab;
    for (int64_t i = 0; i < r->n_prompts; i++) {
        const hh_prompt_ids *p = &r->prompt[i];
        if (!p->n) return hh_fail(err, HH_EINVAL, "prompt %lld is empty; at least one token is needed", (long long)i);
        if (p->n > s->o->context)
            return hh_fail(err, HH_EINVAL, "the prompt has %lld tokens, the context of this server %lld",
                           (long long)p->n, (long long)s->o->context);
        for (int64_t k = 0; k < p->n; k++)
            if (p->ids[k] < 0 || p->ids[k] >= vocab)
                return hh_fail(err, HH_EINVAL, "token id %d is outside the model's vocabulary of %lld", p->ids[k],
                               (long long)vocab);
    }
    return HH_OK;
}

static hh_code make_answers(hh_scheduler *s, hh_job *j, hh_error *err) {
    hh_request *r = &j->request;
    j->n_answers = r->n_prompts * r->n;
    j->answer = hh_alloc((size_t)j->n_answers * sizeof *j->answer);
    for (int64_t i = 0; i < j->n_answers; i++) {
        hh_answer *a = &j->answer[i];
        hh_sampler_options o = r->sampling;
        o.seed += (uint64_t)i; /* the answers to one prompt differ */
        *a = (hh_answer){.job = j, .index = i, .prompt = &r->prompt[i / r->n]};
        a->text.stop = (const char *const *)r->stop;
        a->text.n_stops = r->n_stops;
        hh_code code = hh_sampler_new(&a->sampler, s->engine, &o, err);
        if (code != HH_OK) return code;
        hh_sampler_see(a->sampler, a->prompt->ids, a->prompt->n);
    }
    return HH_OK;
}

static void prepare(hh_scheduler *s, hh_job *j) {
    hh_error err = {0};
    hh_code code = tokenize(s, &j->request, &err);
    if (code == HH_OK) code = check_prompts(s, &j->request, &err);
    if (code == HH_OK) code = make_answers(s, j, &err);
    if (code != HH_OK) {
        fail_job(s, j, status_of(code), err.text);
        hh_job_release(j);
        return;
    }
    hh_job **end = &s->jobs;
    while (*end) end = &(*end)->next;
    *end = j;
    j->next = NULL;
    j->last_output = hh_now();
    pthread_mutex_lock(&s->lock);
    j->state = HH_JOB_ADMITTED;
    j->status = 200;
    if (j->request.stream) hh_job_wake(j);
    pthread_mutex_unlock(&s->lock);
}

/* The first answer to a prompt reads it; the others wait and find it read. */
static bool may_begin(const hh_answer *a) {
    const hh_answer *first = &a->job->answer[a->index / a->job->request.n * a->job->request.n];
    return a == first || first->state >= HH_ANSWER_MAKING;
}

static hh_code begin(hh_scheduler *s, hh_answer *a, int64_t slot, hh_error *err) {
    if (!s->slot[slot]) {
        hh_code code = hh_sequence_new(&s->slot[slot], s->engine, s->o->context, err);
        if (code != HH_OK) return code;
    }
    s->answer[slot] = a;
    a->sequence = s->slot[slot];
    a->state = HH_ANSWER_READING;
    hh_code code = hh_sequence_begin(a->sequence, a->prompt->ids, a->prompt->n, err);
    a->n_cached = hh_sequence_reused(a->sequence);
    return code;
}

static void give_slots(hh_scheduler *s) {
    for (hh_job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        for (int64_t i = 0; i < j->n_answers; i++) {
            hh_answer *a = &j->answer[i];
            if (a->state != HH_ANSWER_WAITING || !may_begin(a)) continue;
            int64_t slot = 0;
            while (slot < s->o->slots && s->answer[slot]) slot++;
            if (slot == s->o->slots) return; /* in order: nobody overtakes */
            hh_error err = {0};
            hh_code code = begin(s, a, slot, &err);
            if (code == HH_OK) continue;
            fail_job(s, j, status_of(code), err.text);
            drop_job(s, j);
            break;
        }
    }
}

/* -- making -- */

static void emit(hh_scheduler *s, hh_answer *a, const char *text, bool first) {
    hh_job *j = a->job;
    if (!j->request.stream) {
        hh_buf_puts(&a->whole, text);
        return;
    }
    pthread_mutex_lock(&s->lock);
    hh_out_event(&j->out, hh_chunk_json(a, s->o->model_name, text, first));
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

static void tell_token(hh_scheduler *s, hh_answer *a, int32_t id) {
    int32_t top_id[MAX_TOP];
    double top[MAX_TOP];
    int64_t n = a->job->request.n_top, vocab = hh_engine_get_info(s->engine).vocab;
    if (n < 0) return;
    if (n > vocab) n = vocab;
    if (n > 0) find_top(a, vocab, n, top_id, top);
    hh_answer_add_token(a, s->engine, id, hh_sequence_log_probability(a->sequence, id), top_id, top, n);
}

static void finish_answer(hh_scheduler *s, hh_answer *a, const char *finish) {
    hh_job *j = a->job;
    hh_buf rest = {0};
    if (!a->text.stopped) hh_stream_text_end(&a->text, &rest);
    a->finish = finish;
    emit(s, a, rest.data ? rest.data : "", false);
    hh_buf_release(&rest);
    pthread_mutex_lock(&s->lock);
    s->stats.prompt_tokens += a->prompt->n;
    s->stats.cached_tokens += a->n_cached;
    s->stats.made_tokens += a->n_made;
    pthread_mutex_unlock(&s->lock);
    free_slot(s, a);
    for (int64_t i = 0; i < j->n_answers; i++)
        if (j->answer[i].state != HH_ANSWER_DONE) return;
    pthread_mutex_lock(&s->lock);
    if (j->request.stream) {
        if (j->request.include_usage) hh_out_event(&j->out, hh_usage_chunk_json(j, s->o->model_name));
        hh_buf_puts(&j->out, "data: [DONE]\n\n");
    } else {
        hh_out_json(&j->out, hh_result_json(j, s->o->model_name));
    }
    pthread_mutex_unlock(&s->lock);
    finish_job(s, j, 200);
    drop_job(s, j);
}

static bool is_end(const hh_engine *e, int32_t id) {
    int64_t n;
    const int32_t *end = hh_engine_end_tokens(e, &n);
    for (int64_t i = 0; i < n; i++)
        if (end[i] == id) return true;
    return false;
}

/* The next token from the sequence's logits. */
static void draw(hh_scheduler *s, hh_answer *a) {
    const hh_request *r = &a->job->request;
    int64_t room = s->o->context - a->prompt->n,
            most = r->max_tokens < 0 || r->max_tokens > room + 1 ? room + 1 : r->max_tokens;
    if (most == 0) {
        finish_answer(s, a, "length");
        return;
    }
    int32_t id = hh_sampler_draw(a->sampler, hh_sequence_logits(a->sequence));
    a->n_made++;
    if (is_end(s->engine, id)) {
        finish_answer(s, a, "stop");
        return;
    }
    tell_token(s, a, id);
    char *bytes = NULL;
    size_t n = 0;
    hh_error err = {0};
    hh_buf out = {0};
    if (hh_engine_detokenize(s->engine, &id, 1, false, &bytes, &n, &err) != HH_OK) n = 0;
    bool stopped = hh_stream_text_add(&a->text, bytes ? bytes : "", n, &out);
    hh_memory_free(bytes);
    a->next = id;
    if (out.len || (r->n_top >= 0 && r->stream)) emit(s, a, out.data ? out.data : "", false);
    hh_buf_release(&out);
    if (stopped || a->n_made == most) finish_answer(s, a, stopped ? "stop" : "length");
}

/* The prompt itself, given back; with log-probabilities when they are asked for. */
static hh_code echo(hh_scheduler *s, hh_answer *a, hh_error *err) {
    const hh_prompt_ids *p = a->prompt;
    const hh_request *r = &a->job->request;
    char *text = NULL;
    size_t n = 0;
    hh_code code = hh_engine_detokenize(s->engine, p->ids, p->n, true, &text, &n, err);
    if (code == HH_OK && r->n_top >= 0) {
        float *given = NULL, *top = NULL;
        int32_t *top_id = NULL;
        double as_double[MAX_TOP];
        hh_answer_add_token(a, s->engine, p->ids[0], (double)NAN, NULL, NULL, 0);
        if (p->n > 1) code = hh_sequence_score(a->sequence, p->ids, p->n, r->n_top, &given, &top_id, &top, err);
        for (int64_t i = 1; i < p->n && code == HH_OK; i++) {
            for (int64_t k = 0; k < r->n_top; k++) as_double[k] = (double)top[(i - 1) * r->n_top + k];
            hh_answer_add_token(a, s->engine, p->ids[i], (double)given[i - 1],
                                top_id ? top_id + (i - 1) * r->n_top : NULL, as_double, r->n_top);
        }
        hh_memory_free(given);
        hh_memory_free(top);
        hh_memory_free(top_id);
        if (code == HH_OK) code = hh_sequence_prompt(a->sequence, p->ids, p->n, err);
    }
    if (code == HH_OK) {
        hh_buf clean = {0};
        hh_clean_utf8(text, n, &clean);
        emit(s, a, clean.data ? clean.data : "", true);
        hh_buf_release(&clean);
    }
    hh_memory_free(text);
    return code;
}

/* One chunk of one prompt; whose turn it is goes round. */
static void read_some(hh_scheduler *s) {
    for (int64_t i = 0; i < s->o->slots; i++) {
        hh_answer *a = s->answer[(s->turn + i) % s->o->slots];
        if (!a || a->state != HH_ANSWER_READING) continue;
        s->turn = (s->turn + i + 1) % s->o->slots;
        hh_error err = {0};
        hh_job *j = a->job;
        int64_t left = 0;
        hh_code code = hh_sequence_advance(a->sequence, &left, &err);
        if (code == HH_OK && left == 0) {
            if (j->request.echo)
                code = echo(s, a, &err);
            else if (j->request.stream && j->request.chat)
                emit(s, a, "", true);
            a->state = HH_ANSWER_MAKING;
            if (code == HH_OK) draw(s, a);
        }
        if (code != HH_OK) {
            fail_job(s, j, status_of(code), err.text);
            drop_job(s, j);
        }
        return;
    }
}

/* A token more for every answer that is being made. */
static void step_all(hh_scheduler *s) {
    int64_t n = 0;
    for (int64_t i = 0; i < s->o->slots; i++) {
        hh_answer *a = s->answer[i];
        if (!a || a->state != HH_ANSWER_MAKING) continue;
        s->step[n] = a->sequence;
        s->step_of[n] = a;
        s->step_id[n++] = a->next;
    }
    if (!n) return;
    hh_error err = {0};
    hh_sequences_step(s->step, s->step_id, n, s->step_code, &err);
    for (int64_t i = 0; i < n; i++) {
        hh_answer *a = s->step_of[i];
        if (a && s->step_code[i] == HH_OK) draw(s, a);
        if (!a || s->step_code[i] == HH_OK) continue;
        hh_job *j = a->job;
        for (int64_t k = i + 1; k < n; k++)
            if (s->step_of[k] && s->step_of[k]->job == j) s->step_of[k] = NULL; /* fails with it */
        fail_job(s, j, status_of(s->step_code[i]), err.text);
        drop_job(s, j);
    }
}

/* -- clients that leave, and such that wait long -- */

static bool has_left(hh_scheduler *s, hh_job *j) {
    char byte;
    pthread_mutex_lock(&s->lock);
    if (!j->gone && j->socket >= 0) {
        ssize_t n = recv(j->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        j->gone = n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    }
    bool gone = j->gone;
    pthread_mutex_unlock(&s->lock);
    return gone;
}

static void look_after(hh_scheduler *s) {
    double now = hh_now();
    for (hh_job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        if (has_left(s, j)) {
            finish_job(s, j, 200);
            drop_job(s, j);
        } else if (j->request.stream && now - j->last_output > KEEP_ALIVE_SECONDS) {
            pthread_mutex_lock(&s->lock);
            hh_buf_puts(&j->out, ": reading\n\n");
            hh_job_wake(j);
            pthread_mutex_unlock(&s->lock);
            j->last_output = now;
        }
    }
}

/* New jobs, or NULL; when there is nothing else to do, snapshots are written and then it waits. *ended: no more will
 * come. */
static hh_job *receive(hh_scheduler *s, bool idle, bool *ended) {
    bool written = !idle;
    hh_error err = {0};
    while (!written) {
        pthread_mutex_lock(&s->lock);
        bool wanted = s->arrived != NULL;
        pthread_mutex_unlock(&s->lock);
        if (wanted || hh_engine_write_snapshot(s->engine, &written, &err) != HH_OK) break;
    }
    pthread_mutex_lock(&s->lock);
    while (idle && !s->arrived && !s->stopping) pthread_cond_wait(&s->wanted, &s->lock);
    hh_job *j = s->arrived;
    s->arrived = NULL;
    s->arrived_end = &s->arrived;
    *ended = s->stopping && !j && idle;
    pthread_mutex_unlock(&s->lock);
    return j;
}

void hh_scheduler_run(hh_scheduler *s) {
    for (bool ended = false; !ended;) {
        for (hh_job *j = receive(s, !s->jobs, &ended), *next; j; j = next) {
            next = j->next;
            prepare(s, j);
        }
        double start = hh_now();
        look_after(s);
        give_slots(s);
        read_some(s);
        step_all(s);
        pthread_mutex_lock(&s->lock);
        s->stats.busy_seconds += hh_now() - start;
        pthread_mutex_unlock(&s->lock);
    }
}
