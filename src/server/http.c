/* HTTP: routes, keys, limits, and the way of a job's bytes to its client.
 *
 * A request that computes is handed to the scheduler and its connection suspended. It is resumed when the answer is there
 * (or, for a stream, when it was admitted), and within a stream whenever there are new bytes. */
#include "server/scheduler.h"

#include "base/progress.h"
#include "server/chat_page.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct http {
    struct MHD_Daemon *daemon;
    hh_scheduler scheduler;
    const hh_server_options *o;
    atomic_llong next_id;
    time_t started;
} http;

/* One request while it arrives and is answered. */
typedef struct exchange {
    hh_buf body;
    bool too_large;
    hh_job *job; /* handed to the scheduler */
} exchange;

/* -- answers -- */

static enum MHD_Result answer_bytes(struct MHD_Connection *c, int status, const char *type, const void *data,
                                    size_t size, enum MHD_ResponseMemoryMode mode) {
    struct MHD_Response *r = MHD_create_response_from_buffer(size, (void *)data, mode);
    MHD_add_response_header(r, "Content-Type", type);
    if (status == 401) MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    enum MHD_Result done = MHD_queue_response(c, (unsigned)status, r);
    MHD_destroy_response(r);
    return done;
}

static enum MHD_Result answer_json(struct MHD_Connection *c, int status, json_t *j) {
    hh_buf out = {0};
    hh_out_json(&out, j);
    hh_buf_puts(&out, "\n");
    enum MHD_Result done = answer_bytes(c, status, "application/json", out.data, out.len, MHD_RESPMEM_MUST_COPY);
    hh_buf_release(&out);
    return done;
}

static enum MHD_Result answer_error(struct MHD_Connection *c, int status, const char *sentence) {
    return answer_json(c, status, hh_error_json(status, sentence));
}

/* -- what needs no computing -- */

static json_t *model_json(const http *h) {
    return json_pack("{s:s, s:s, s:I, s:s}", "id", h->o->model_name, "object", "model", "created",
                     (json_int_t)h->started, "owned_by", "hydrahead");
}

static enum MHD_Result serve_models(http *h, struct MHD_Connection *c, exchange *x) {
    (void)x;
    return answer_json(c, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(h)));
}

static enum MHD_Result serve_health(http *h, struct MHD_Connection *c, exchange *x) {
    (void)h, (void)x;
    return answer_json(c, 200, json_pack("{s:s}", "status", "ok"));
}

static enum MHD_Result serve_props(http *h, struct MHD_Connection *c, exchange *x) {
    hh_engine_info i = hh_engine_get_info(h->scheduler.engine);
    (void)x;
    return answer_json(c, 200,
                       json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:s}", "model",
                                 h->o->model_name, "family", i.family, "backend", i.backend, "hybrid", i.hybrid,
                                 "context", (json_int_t)h->o->context, "native_context", (json_int_t)i.native_context,
                                 "vocabulary", (json_int_t)i.vocab, "heads", (json_int_t)(i.n_layers * i.n_heads),
                                 "full_attention_heads", (json_int_t)i.n_kept_heads, "cache_bytes_per_token",
                                 i.cache_bytes_per_token, "state_bytes", i.state_bytes, "slots",
                                 (json_int_t)h->o->slots, "version", hh_version()));
}

static void metric(hh_buf *out, const char *name, const char *kind, const char *help, double value) {
    hh_buf_printf(out, "# HELP hydrahead_%s %s\n# TYPE hydrahead_%s %s\nhydrahead_%s %.17g\n", name, help, name, kind,
                  name, value);
}

static enum MHD_Result serve_metrics(http *h, struct MHD_Connection *c, exchange *x) {
    hh_scheduler *s = &h->scheduler;
    hh_buf out = {0};
    (void)x;
    pthread_mutex_lock(&s->lock);
    hh_server_stats t = s->stats;
    double under_way = (double)s->n_under_way;
    pthread_mutex_unlock(&s->lock);
    metric(&out, "requests_total", "counter", "Requests that asked for tokens.", (double)t.requests);
    metric(&out, "requests_finished_total", "counter", "Requests that were answered.", (double)t.finished);
    metric(&out, "requests_failed_total", "counter", "Requests that ended in an error.", (double)t.failed);
    metric(&out, "requests_cancelled_total", "counter", "Requests whose client left.", (double)t.cancelled);
    metric(&out, "requests_refused_total", "counter", "Requests for which the queue had no room.", (double)t.refused);
    metric(&out, "requests_under_way", "gauge", "Requests in the queue or being answered.", under_way);
    metric(&out, "prompt_tokens_total", "counter", "Tokens of prompts.", (double)t.prompt_tokens);
    metric(&out, "cached_tokens_total", "counter", "Tokens of prompts that were not read again.",
           (double)t.cached_tokens);
    metric(&out, "generated_tokens_total", "counter", "Tokens of answers.", (double)t.made_tokens);
    metric(&out, "busy_seconds_total", "counter", "Time spent computing.", t.busy_seconds);
    enum MHD_Result done = answer_bytes(c, 200, "text/plain; version=0.0.4", out.data, out.len, MHD_RESPMEM_MUST_COPY);
    hh_buf_release(&out);
    return done;
}

static enum MHD_Result serve_page(http *h, struct MHD_Connection *c, exchange *x) {
    (void)h, (void)x;
    return answer_bytes(c, 200, "text/html; charset=utf-8", hh_chat_page, hh_chat_page_size, MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result serve_embeddings(http *h, struct MHD_Connection *c, exchange *x) {
    (void)h, (void)x;
    return answer_error(c, 501, "this server makes no embeddings; it completes text and chats");
}

/* -- tokens -- */

static enum MHD_Result serve_tokenize(http *h, struct MHD_Connection *c, exchange *x) {
    json_t *body = json_loadb(x->body.data ? x->body.data : "", x->body.len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *text = json_object_get(body, "content");
    if (!text) text = json_object_get(body, "text");
    hh_error err = {0};
    int32_t *ids = NULL;
    int64_t n = 0;
    enum MHD_Result done;
    if (!json_is_string(text)) {
        done = answer_error(c, 400, "the body must be a JSON object with text under 'content'");
    } else if (hh_engine_tokenize(h->scheduler.engine, json_string_value(text), json_string_length(text),
                                  json_is_true(json_object_get(body, "special")), &ids, &n, &err) != HH_OK) {
        done = answer_error(c, 400, err.text);
    } else {
        json_t *list = json_array();
        for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
        done = answer_json(c, 200, json_pack("{s:o}", "tokens", list));
    }
    hh_memory_free(ids);
    json_decref(body);
    return done;
}

static enum MHD_Result serve_detokenize(http *h, struct MHD_Connection *c, exchange *x) {
    json_t *body = json_loadb(x->body.data ? x->body.data : "", x->body.len, JSON_REJECT_DUPLICATES, NULL),
           *list = json_object_get(body, "tokens"), *one;
    size_t i, n = json_array_size(list), size = 0;
    int64_t vocab = hh_engine_get_info(h->scheduler.engine).vocab;
    int32_t *ids = hh_alloc((n + 1) * sizeof *ids);
    bool good = json_is_array(list);
    char *text = NULL;
    hh_error err = {0};
    enum MHD_Result done;
    json_array_foreach(list, i, one) {
        good = good && json_is_integer(one) && json_integer_value(one) >= 0 && json_integer_value(one) < vocab;
        if (good) ids[i] = (int32_t)json_integer_value(one);
    }
    if (!good) {
        done = answer_error(c, 400,
                            "the body must be a JSON object with a list of token ids of the vocabulary under 'tokens'");
    } else if (hh_engine_detokenize(h->scheduler.engine, ids, (int64_t)n, true, &text, &size, &err) != HH_OK) {
        done = answer_error(c, 400, err.text);
    } else {
        hh_buf clean = {0};
        hh_clean_utf8(text, size, &clean);
        done = answer_json(c, 200, json_pack("{s:s%}", "content", clean.data ? clean.data : "", clean.len));
        hh_buf_release(&clean);
    }
    hh_memory_free(text);
    hh_free(ids);
    json_decref(body);
    return done;
}

/* -- what computes -- */

void hh_job_wake(hh_job *j) {
    if (!j->suspended) return;
    j->suspended = false;
    MHD_resume_connection(j->connection);
}

static void suspend(hh_job *j, struct MHD_Connection *c) {
    j->suspended = true;
    MHD_suspend_connection(c);
}

typedef struct reader {
    hh_scheduler *s;
    hh_job *job;
} reader;

/* Bytes of a stream as they come. */
static ssize_t read_stream(void *context, uint64_t position, char *to, size_t most) {
    reader *r = context;
    hh_job *j = r->job;
    ssize_t n;
    (void)position;
    pthread_mutex_lock(&r->s->lock);
    size_t left = j->out.len - j->sent;
    if (left) {
        n = (ssize_t)(left < most ? left : most);
        memcpy(to, j->out.data + j->sent, (size_t)n);
        j->sent += (size_t)n;
        if (j->sent == j->out.len) { /* what was sent is not kept */
            hh_buf_clear(&j->out);
            j->sent = 0;
        }
    } else if (j->complete) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        suspend(j, j->connection);
        n = 0;
    }
    pthread_mutex_unlock(&r->s->lock);
    return n;
}

static void free_reader(void *context) {
    reader *r = context;
    hh_job_release(r->job);
    hh_free(r);
}

static enum MHD_Result answer_stream(http *h, struct MHD_Connection *c, hh_job *j) {
    reader *r = hh_alloc(sizeof *r);
    *r = (reader){&h->scheduler, j};
    atomic_fetch_add(&j->references, 1);
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_stream, r, free_reader);
    MHD_add_response_header(response, "Content-Type", "text/event-stream");
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering", "no");
    enum MHD_Result done = MHD_queue_response(c, 200, response);
    MHD_destroy_response(response);
    return done;
}

/* The connection was resumed: the job is done, or a stream admitted. */
static enum MHD_Result answer_job(http *h, struct MHD_Connection *c, hh_job *j) {
    pthread_mutex_lock(&h->scheduler.lock);
    hh_job_state state = j->state;
    if (state == HH_JOB_NEW || (state == HH_JOB_ADMITTED && !j->request.stream)) { /* woken too early */
        suspend(j, c);
        pthread_mutex_unlock(&h->scheduler.lock);
        return MHD_YES;
    }
    pthread_mutex_unlock(&h->scheduler.lock);
    if (j->request.stream && j->status == 200) return answer_stream(h, c, j);
    return answer_bytes(c, j->status, "application/json", j->out.data ? j->out.data : "", j->out.len,
                        MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result begin_job(http *h, struct MHD_Connection *c, exchange *x, bool chat) {
    hh_error err = {0};
    if (x->job) return answer_job(h, c, x->job);
    hh_job *j = hh_job_new();
    int status = hh_request_read(&j->request, x->body.data ? x->body.data : "", x->body.len, chat, &err);
    if (status) {
        hh_job_release(j);
        return answer_error(c, status, err.text);
    }
    snprintf(j->id, sizeof j->id, "%s-%llx%08llx", chat ? "chatcmpl" : "cmpl", (long long)h->started,
             (long long)atomic_fetch_add(&h->next_id, 1));
    j->connection = c;
    j->socket = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    x->job = j;
    pthread_mutex_lock(&h->scheduler.lock);
    suspend(j, c); /* before anybody can wake it */
    pthread_mutex_unlock(&h->scheduler.lock);
    if (hh_scheduler_take(&h->scheduler, j)) return MHD_YES;
    pthread_mutex_lock(&h->scheduler.lock);
    j->state = HH_JOB_DONE;
    j->status = 503;
    hh_out_json(&j->out, hh_error_json(503, "the queue is full; try again later"));
    hh_job_wake(j);
    pthread_mutex_unlock(&h->scheduler.lock);
    return MHD_YES;
}

static enum MHD_Result serve_chat(http *h, struct MHD_Connection *c, exchange *x) {
    return begin_job(h, c, x, true);
}

static enum MHD_Result serve_completion(http *h, struct MHD_Connection *c, exchange *x) {
    return begin_job(h, c, x, false);
}

/* -- routes -- */

typedef enum MHD_Result route_fn(http *h, struct MHD_Connection *c, exchange *x);

static const struct {
    const char *path;
    bool post, open; /* open: without a key */
    route_fn *serve;
} routes[] = {
    {"/", false, true, serve_page},
    {"/health", false, true, serve_health},
    {"/v1/models", false, false, serve_models},
    {"/props", false, false, serve_props},
    {"/metrics", false, false, serve_metrics},
    {"/tokenize", true, false, serve_tokenize},
    {"/detokenize", true, false, serve_detokenize},
    {"/v1/chat/completions", true, false, serve_chat},
    {"/v1/completions", true, false, serve_completion},
    {"/v1/embeddings", true, false, serve_embeddings},
};

/* The same time whatever the keys have in common. */
static bool same_key(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    unsigned char difference = n != m;
    for (size_t i = 0; i < n; i++) difference |= (unsigned char)(a[i] ^ b[m ? i % m : 0]);
    return !difference && n == m;
}

static bool may_enter(const http *h, struct MHD_Connection *c) {
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    bool known = h->o->n_keys == 0;
    if (!given || strncmp(given, "Bearer ", 7)) return known;
    for (int64_t i = 0; i < h->o->n_keys; i++) known = same_key(given + 7, h->o->key[i]) || known;
    return known;
}

static enum MHD_Result route(http *h, struct MHD_Connection *c, const char *url, bool post, exchange *x) {
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(url, routes[i].path)) continue;
        if (post != routes[i].post)
            return answer_error(c, 405, post ? "this path is read with GET" : "this path is written to with POST");
        if (!routes[i].open && !may_enter(h, c))
            return answer_error(c, 401, "a key is needed: Authorization: Bearer KEY");
        return routes[i].serve(h, c, x);
    }
    char sentence[200];
    snprintf(sentence, sizeof sentence, "there is nothing at %.150s", url);
    return answer_error(c, 404, sentence);
}

static enum MHD_Result handle(void *context, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *data, size_t *size, void **mine) {
    http *h = context;
    exchange *x = *mine;
    bool post = !strcmp(method, "POST"), get = !strcmp(method, "GET") || !strcmp(method, "HEAD");
    (void)version;
    if (!x) {
        *mine = hh_alloc(sizeof *x);
        return MHD_YES;
    }
    if (*size) {
        x->too_large = x->too_large || x->body.len + *size > h->o->max_body;
        if (!x->too_large) hh_buf_add(&x->body, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (!post && !get) return answer_error(c, 405, "only GET and POST are served");
    if (x->too_large) {
        char sentence[120];
        snprintf(sentence, sizeof sentence, "the body is larger than the %zu bytes that are taken", h->o->max_body);
        return answer_error(c, 413, sentence);
    }
    return route(h, c, url, post, x);
}

/* The exchange is over, whoever ended it. */
static void completed(void *context, struct MHD_Connection *c, void **mine, enum MHD_RequestTerminationCode why) {
    http *h = context;
    exchange *x = *mine;
    (void)c, (void)why;
    if (!x) return;
    if (x->job) {
        pthread_mutex_lock(&h->scheduler.lock);
        x->job->gone = x->job->gone || !x->job->complete;
        x->job->socket = -1;
        x->job->suspended = false;
        pthread_mutex_unlock(&h->scheduler.lock);
        hh_job_release(x->job);
    }
    hh_buf_release(&x->body);
    hh_free(x);
    *mine = NULL;
}

static void *compute(void *context) {
    hh_scheduler_run(context);
    return NULL;
}

static hh_code listen_at(http *h, int *port, hh_error *err) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)h->o->port)};
    const char *host = h->o->host ? h->o->host : "127.0.0.1";
    if (inet_pton(AF_INET, host, &at.sin_addr) != 1)
        return hh_fail(err, HH_EINVAL, "--host %s is not an address such as 127.0.0.1 or 0.0.0.0", host);
    h->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME,
                                 (uint16_t)h->o->port, NULL, NULL, handle, h, MHD_OPTION_SOCK_ADDR, &at,
                                 MHD_OPTION_NOTIFY_COMPLETED, completed, h, MHD_OPTION_CONNECTION_LIMIT, 1000u,
                                 MHD_OPTION_CONNECTION_TIMEOUT, 60u, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 (size_t)64 << 10, MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_END);
    if (!h->daemon) return hh_fail(err, HH_EIO, "cannot listen at %s, port %d: %s", host, h->o->port, strerror(errno));
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
    *port = info ? info->port : h->o->port;
    return HH_OK;
}

hh_code hh_server_run(hh_engine *e, const hh_server_options *o, hh_error *err) {
    http h = {.o = o, .started = time(NULL)};
    int port = 0;
    pthread_t computing;
    hh_scheduler_init(&h.scheduler, e, o);
    hh_code code = listen_at(&h, &port, err);
    if (code == HH_OK && pthread_create(&computing, NULL, compute, &h.scheduler)) {
        MHD_stop_daemon(h.daemon);
        code = hh_fail(err, HH_EIO, "no thread to compute in");
    }
    if (code == HH_OK) {
        if (o->on_ready) o->on_ready(o->context_of_ready, port);
        while (!hh_interrupted()) usleep(50000);
        int listening = MHD_quiesce_daemon(h.daemon);
        hh_scheduler_stop(&h.scheduler);
        pthread_join(computing, NULL);
        MHD_stop_daemon(h.daemon);
        if (listening >= 0) close(listening);
        for (bool done = false; !done && code == HH_OK;) code = hh_engine_write_snapshot(e, &done, err);
    }
    hh_scheduler_release(&h.scheduler);
    return code;
}
