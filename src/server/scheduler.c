/* Continuous batching. Every turn: new jobs are prepared and get slots in the order they came; one chunk of one prompt is
 * read; all answers that are being made get one token each, in one pass over the weights. So a stream waits at most for a
 * chunk, whatever the prompts of the others are. Clients that have left are looked for every turn. */
#include "server/scheduler.h"

#include "base/progress.h"

#include <poll.h>
#include <string.h>

#define KEEP_ALIVE_SECONDS 5

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

/* Takes a job from the list of those under way, and lets go of it. */
static void drop(hh_scheduler *s, hh_job *j) {
    for (int64_t i = 0; i < j->n_begun; i++) hh_answer_leave(s, &j->answer[i]);
    for (hh_job **at = &s->jobs; *at; at = &(*at)->next)
        if (*at == j) {
            *at = j->next;
            break;
        }
    hh_job_release(j);
}

void hh_job_finish(hh_scheduler *s, hh_job *j, int status) {
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
    drop(s, j);
}

static int status_of(hh_code code) {
    return code == HH_EINVAL || code == HH_EFORMAT || code == HH_EUNSUPPORTED ? 400 : code == HH_ENOMEM ? 503 : 500;
}

/* Before anything was said: an HTTP status; in a stream that has begun: an event. */
static void fail_job(hh_scheduler *s, hh_job *j, hh_code code, const char *sentence) {
    int status = status_of(code);
    pthread_mutex_lock(&s->lock);
    const bool streaming = j->state == HH_JOB_ADMITTED && j->request.stream;
    if (streaming) {
        hh_out_event(&j->out, hh_error_json(status, sentence));
        hh_buf_puts(&j->out, "data: [DONE]\n\n");
    } else {
        hh_buf_clear(&j->out);
        hh_out_json(&j->out, hh_error_json(status, sentence));
    }
    pthread_mutex_unlock(&s->lock);
    hh_job_finish(s, j, streaming ? 200 : status);
}

/* -- new jobs -- */

static hh_code tokenize_chat(hh_scheduler *s, hh_request *r, hh_error *err) {
    const json_t *list = r->messages;
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

/* What is wrong with the options shows in the first sampler; the others are made when their turn comes. */
static hh_code make_answers(hh_scheduler *s, hh_job *j, hh_error *err) {
    hh_request *r = &j->request;
    j->n_answers = r->n_prompts * r->n;
    j->answer = hh_alloc((size_t)j->n_answers * sizeof *j->answer);
    for (int64_t i = 0; i < j->n_answers; i++) {
        hh_answer *a = &j->answer[i];
        *a = (hh_answer){.job = j, .index = i, .prompt = &r->prompt[i / r->n]};
        a->text.stop = (const char *const *)r->stop;
        a->text.n_stops = r->n_stops;
    }
    return hh_answer_make_sampler(s, &j->answer[0], err);
}

static void prepare(hh_scheduler *s, hh_job *j) {
    hh_error err = {0};
    hh_code code = tokenize(s, &j->request, &err);
    if (code == HH_OK) code = check_prompts(s, &j->request, &err);
    if (code == HH_OK) code = make_answers(s, j, &err);
    if (code != HH_OK) {
        fail_job(s, j, code, err.text);
        return;
    }
    hh_job **end = &s->jobs;
    while (*end) end = &(*end)->next;
    *end = j;
    j->next = NULL;
    j->last_output = hh_now();
    j->given = ++s->given;
    pthread_mutex_lock(&s->lock);
    j->state = HH_JOB_ADMITTED;
    j->status = 200;
    if (j->request.stream) hh_job_wake(j);
    pthread_mutex_unlock(&s->lock);
}

/* -- slots -- */

/* The first answer to a prompt reads it; the others wait and find it read. */
static bool may_begin(const hh_answer *a) {
    const hh_answer *first = &a->job->answer[a->index / a->job->request.n * a->job->request.n];
    return a == first || first->state >= HH_ANSWER_MAKING;
}

/* The answer whose turn it is: of the request that has the fewest slots, and among such the one that has waited longest
 * since it was given one, or since it came; NULL: nobody waits. */
static hh_answer *next_waiting(const hh_scheduler *s) {
    hh_answer *best = NULL;
    for (hh_job *j = s->jobs; j; j = j->next) {
        if (j->n_begun == j->n_answers || !may_begin(&j->answer[j->n_begun])) continue;
        const bool poorer = !best || j->n_held < best->job->n_held,
                   waited = best && j->n_held == best->job->n_held && j->given < best->job->given;
        if (poorer || waited) best = &j->answer[j->n_begun];
    }
    return best;
}

static hh_code begin(hh_scheduler *s, hh_answer *a, int64_t slot, hh_error *err) {
    s->answer[slot] = a;
    a->job->n_begun++;
    a->job->n_held++;
    a->job->given = ++s->given;
    atomic_fetch_add(&s->n_busy, 1);
    if (!s->slot[slot]) HH_TRY(hh_sequence_new(&s->slot[slot], s->engine, s->o->context, err));
    return hh_answer_begin(s, a, s->slot[slot], err);
}

static void give_slots(hh_scheduler *s) {
    for (int64_t slot = 0; slot < s->o->slots; slot++) {
        while (!s->answer[slot]) {
            hh_answer *a = next_waiting(s);
            hh_error err = {0};
            if (!a) return;
            hh_code code = begin(s, a, slot, &err);
            if (code != HH_OK) fail_job(s, a->job, code, err.text);
        }
    }
}

/* -- turns -- */

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
        if (code == HH_OK && left == 0) code = hh_answer_was_read(s, a, &err);
        if (code != HH_OK) fail_job(s, j, code, err.text);
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
        if (!a) continue;
        hh_job *j = a->job;
        hh_code code = s->step_code[i];
        if (code == HH_OK) code = hh_answer_draw(s, a, &err);
        if (code == HH_OK) continue;
        for (int64_t k = i + 1; k < n; k++)
            if (s->step_of[k] && s->step_of[k]->job == j) s->step_of[k] = NULL; /* fails with it */
        fail_job(s, j, code, err.text);
    }
}

/* -- clients that leave, and such that wait long -- */

/* A client that has closed its side, whatever it sent before. */
static bool has_left(hh_scheduler *s, hh_job *j) {
    pthread_mutex_lock(&s->lock);
    if (!j->gone && j->socket >= 0) {
        struct pollfd p = {.fd = j->socket, .events = POLLRDHUP};
        j->gone = poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
    }
    bool gone = j->gone;
    pthread_mutex_unlock(&s->lock);
    return gone;
}

static void look_after(hh_scheduler *s) {
    double now = hh_now(), quarter = s->o->request_seconds / 4,
           comment_after = quarter < KEEP_ALIVE_SECONDS ? quarter : KEEP_ALIVE_SECONDS;
    for (hh_job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        if (has_left(s, j)) {
            hh_job_finish(s, j, 200);
        } else if (j->request.stream && now - j->last_output > comment_after) {
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
