/* HTTP: routes, keys, limits, and the way of a job's bytes to its client.
 *
 * A request that computes is handed to the scheduler and its connection suspended. It is resumed when the answer is there
 * (or, for a stream, when it was admitted), and within a stream whenever there are new bytes. */
#include "server/http.h"

#include "base/progress.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    MOST_CONNECTIONS = 1000,
    OTHER_FILES = 64,           /* the model's shards, snapshots */
    BODIES_AT_ONCE = 8,         /* of the largest size */
    SLOWEST = 64 << 10,         /* bytes a second, behind the seconds that every request has */
    LARGE = 1 << 20,            /* bytes of a body behind which memory is given back */
    CONNECTION_BYTES = 64 << 10 /* the head of a request must fit into half of it */
};

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
    hh_http *h;
    hh_job *job;
    hh_watched *watched;
    bool last_part; /* nothing more will be made: the client has a time to take it */
} reader;

/* Bytes of a stream as they come. */
static ssize_t read_stream(void *context, uint64_t position, char *to, size_t most) {
    reader *r = context;
    hh_job *j = r->job;
    ssize_t n;
    (void)position;
    pthread_mutex_lock(&r->h->scheduler.lock);
    const size_t left = j->out.len - j->sent;
    const bool begins_last = j->complete && !r->last_part;
    r->last_part = j->complete;
    if (j->gone) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (left) {
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
    pthread_mutex_unlock(&r->h->scheduler.lock);
    if (begins_last) hh_watch_begin(&r->h->watch, r->watched, r->h->o->request_seconds + (double)left / SLOWEST);
    return n;
}

static void free_reader(void *context) {
    reader *r = context;
    hh_job_release(r->job);
    hh_free(r);
}

static enum MHD_Result answer_stream(hh_http *h, struct MHD_Connection *c, hh_exchange *x) {
    reader *r = hh_alloc(sizeof *r);
    *r = (reader){.h = h, .job = x->job, .watched = x->watched};
    atomic_fetch_add(&x->job->references, 1);
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
static enum MHD_Result answer_job(hh_http *h, struct MHD_Connection *c, hh_exchange *x) {
    hh_job *j = x->job;
    pthread_mutex_lock(&h->scheduler.lock);
    hh_job_state state = j->state;
    if (state == HH_JOB_NEW || (state == HH_JOB_ADMITTED && !j->request.stream)) { /* woken too early */
        suspend(j, c);
        pthread_mutex_unlock(&h->scheduler.lock);
        return MHD_YES;
    }
    pthread_mutex_unlock(&h->scheduler.lock);
    if (j->request.stream && j->status == 200) return answer_stream(h, c, x);
    hh_watch_begin(&h->watch, x->watched, h->o->request_seconds + (double)j->out.len / SLOWEST);
    return hh_answer_bytes(c, j->status, "application/json", j->out.data ? j->out.data : "", j->out.len,
                           MHD_RESPMEM_MUST_COPY);
}

/* The body is held until it is read, and counted as long. */
static void forget_body(hh_http *h, hh_exchange *x) {
    h->arriving -= x->body.len;
    x->large = x->large || x->body.len > LARGE;
    hh_buf_release(&x->body);
}

static enum MHD_Result begin_job(hh_http *h, struct MHD_Connection *c, hh_exchange *x, bool chat) {
    hh_error err = {0};
    if (x->job) return answer_job(h, c, x);
    hh_job *j = hh_job_new();
    int status = hh_request_read(&j->request, x->body.data ? x->body.data : "", x->body.len, chat, &err);
    forget_body(h, x);
    if (status) {
        hh_job_release(j);
        return hh_answer_error(c, status, err.text);
    }
    snprintf(j->id, sizeof j->id, "%s-%llx%08llx", chat ? "chatcmpl" : "cmpl", (long long)h->started,
             (long long)atomic_fetch_add(&h->next_id, 1));
    j->connection = c;
    j->socket = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    x->job = j;
    hh_watch_begin(&h->watch, x->watched, 0);
    atomic_fetch_add(&h->answering, 1);
    pthread_mutex_lock(&h->scheduler.lock);
    suspend(j, c); /* before anybody can wake it */
    pthread_mutex_unlock(&h->scheduler.lock);
    if (hh_scheduler_take(&h->scheduler, j)) return MHD_YES;
    pthread_mutex_lock(&h->scheduler.lock);
    j->state = HH_JOB_DONE;
    j->status = 503;
    hh_out_json(&j->out, hh_error_json(503, h->scheduler.stopping ? "the server is about to end"
                                                                  : "the queue is full; try again later"));
    j->complete = true;
    hh_job_wake(j);
    pthread_mutex_unlock(&h->scheduler.lock);
    return MHD_YES;
}

static hh_page_fn serve_chat, serve_completion;

static enum MHD_Result serve_chat(hh_http *h, struct MHD_Connection *c, hh_exchange *x) {
    return begin_job(h, c, x, true);
}

static enum MHD_Result serve_completion(hh_http *h, struct MHD_Connection *c, hh_exchange *x) {
    return begin_job(h, c, x, false);
}

/* -- routes -- */

typedef struct route {
    const char *path;
    bool post, open; /* open: without a key */
    hh_page_fn *serve;
} route;

static const route routes[] = {
    {"/", false, true, hh_serve_page},
    {"/health", false, true, hh_serve_health},
    {"/v1/models", false, false, hh_serve_models},
    {"/props", false, false, hh_serve_props},
    {"/metrics", false, false, hh_serve_metrics},
    {"/tokenize", true, false, hh_serve_tokenize},
    {"/detokenize", true, false, hh_serve_detokenize},
    {"/v1/chat/completions", true, false, serve_chat},
    {"/v1/completions", true, false, serve_completion},
    {"/v1/embeddings", true, false, hh_serve_embeddings},
};

static const route *find_route(const char *url) {
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (!strcmp(url, routes[i].path)) return &routes[i];
    return NULL;
}

/* The same time whatever the keys have in common. */
static bool same_key(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    unsigned char difference = n != m;
    for (size_t i = 0; i < n; i++) difference |= (unsigned char)(a[i] ^ b[m ? i % m : 0]);
    return !difference && n == m;
}

static bool may_enter(const hh_http *h, struct MHD_Connection *c) {
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    bool known = h->o->n_keys == 0;
    if (!given || strncmp(given, "Bearer ", 7)) return known;
    for (int64_t i = 0; i < h->o->n_keys; i++) known = same_key(given + 7, h->o->key[i]) || known;
    return known;
}

/* -- heads of requests -- */

/* What a head says of its body's length. */
typedef struct framing {
    const char *length, *coding;
    bool conflict;
} framing;

static enum MHD_Result note_framing(void *context, enum MHD_ValueKind kind, const char *key, const char *value) {
    framing *f = context;
    (void)kind;
    const char **held = !strcasecmp(key, "Content-Length")      ? &f->length
                        : !strcasecmp(key, "Transfer-Encoding") ? &f->coding
                                                                : NULL;
    if (!held) return MHD_YES;
    if (!value) value = "";
    f->conflict = f->conflict || (*held && strcmp(*held, value)) || (held == &f->coding && *held);
    *held = value;
    return MHD_YES;
}

static void refuse(hh_exchange *x, int status, const char *why) {
    if (x->refused) return;
    x->refused = status;
    snprintf(x->why, sizeof x->why, "%s", why);
}

/* What the head alone tells; the body of such a request is passed over, not held. */
static void check_head(hh_http *h, struct MHD_Connection *c, const char *url, const char *method, hh_exchange *x) {
    const bool post = !strcmp(method, "POST"), get = !strcmp(method, "GET") || !strcmp(method, "HEAD");
    const route *r = find_route(url);
    char sentence[200];
    framing f = {0};
    MHD_get_connection_values(c, MHD_HEADER_KIND, note_framing, &f);
    x->ambiguous = f.conflict || (f.length && f.coding) || (f.coding && strcasecmp(f.coding, "chunked") != 0);
    if (f.conflict || (f.length && f.coding)) refuse(x, 400, "the head says in two ways how long the body is");
    if (f.coding && strcasecmp(f.coding, "chunked")) refuse(x, 501, "no Transfer-Encoding but chunked is understood");
    if (!post && !get) refuse(x, 405, "only GET and POST are served");
    snprintf(sentence, sizeof sentence, "there is nothing at %.150s", url);
    if (!r) refuse(x, 404, sentence);
    if (r && post != r->post) refuse(x, 405, post ? "this path is read with GET" : "this path is written to with POST");
    if (r && !r->open && !may_enter(h, c)) refuse(x, 401, "a key is needed: Authorization: Bearer KEY");
}

static void take_body(hh_http *h, hh_exchange *x, const char *data, size_t size) {
    const size_t most = h->o->max_body;
    char sentence[120];
    if (size > most - x->body.len) {
        snprintf(sentence, sizeof sentence, "the body is larger than the %zu bytes that are taken", most);
        refuse(x, 413, sentence);
    }
    if (h->arriving + size > BODIES_AT_ONCE * most)
        refuse(x, 503, "too much is being sent by others at the moment; try again later");
    if (x->refused) {
        forget_body(h, x);
        return;
    }
    hh_buf_add(&x->body, data, size);
    h->arriving += size;
    hh_watch_extend(&h->watch, x->watched, (double)size / SLOWEST);
}

static enum MHD_Result handle(void *context, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *data, size_t *size, void **mine) {
    hh_http *h = context;
    hh_exchange *x = *mine;
    (void)version;
    if (!x) {
        *mine = x = hh_alloc(sizeof *x);
        x->watched = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
        check_head(h, c, url, method, x);
        return MHD_YES;
    }
    if (*size) {
        take_body(h, x, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (x->refused) return hh_answer_refusal(c, x->refused, x->why, x->ambiguous);
    return find_route(url)->serve(h, c, x);
}

/* The exchange is over, whoever ended it. */
static void completed(void *context, struct MHD_Connection *c, void **mine, enum MHD_RequestTerminationCode why) {
    hh_http *h = context;
    hh_exchange *x = *mine;
    (void)c, (void)why;
    if (!x) return;
    if (x->job) {
        pthread_mutex_lock(&h->scheduler.lock);
        x->job->gone = x->job->gone || !x->job->complete;
        x->job->socket = -1;
        x->job->suspended = false;
        pthread_mutex_unlock(&h->scheduler.lock);
        hh_job_release(x->job);
        atomic_fetch_sub(&h->answering, 1);
    }
    hh_watch_begin(&h->watch, x->watched, h->o->request_seconds); /* for the next request */
    forget_body(h, x);
    const bool large = x->large;
    hh_free(x);
    *mine = NULL;
    if (large) hh_memory_give_back(); /* its JSON was many small blocks, whose heap would stay as it is */
}

static void connected(void *context, struct MHD_Connection *c, void **mine, enum MHD_ConnectionNotificationCode what) {
    hh_http *h = context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        *mine = hh_watch_add(&h->watch, MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
                             h->o->request_seconds);
    } else {
        hh_watch_remove(&h->watch, *mine);
        *mine = NULL;
    }
}

/* -- the server -- */

static void *compute(void *context) {
    hh_scheduler_run(context);
    return NULL;
}

/* As many as the limit on open files has room for. */
static unsigned most_connections(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files)) return MOST_CONNECTIONS / 2;
    if (files.rlim_cur >= MOST_CONNECTIONS + OTHER_FILES) return MOST_CONNECTIONS;
    return files.rlim_cur > 2 * OTHER_FILES ? (unsigned)files.rlim_cur - OTHER_FILES : OTHER_FILES;
}

static hh_code listen_at(hh_http *h, int *port, hh_error *err) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)h->o->port)};
    const char *host = h->o->host && strcmp(h->o->host, "localhost") ? h->o->host : "127.0.0.1";
    if (inet_pton(AF_INET, host, &at.sin_addr) != 1)
        return hh_fail(err, HH_EINVAL, "--host %s is not an address such as 127.0.0.1 or 0.0.0.0", host);
    const unsigned seconds = h->o->request_seconds < 1 ? 1 : (unsigned)h->o->request_seconds;
    /* Without MHD_OPTION_LISTENING_ADDRESS_REUSE: on Linux that is SO_REUSEPORT, with which a second server would take
     * half of the connections of the first. A port whose last server has just ended is free all the same. */
    errno = 0;
    h->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME,
                                 (uint16_t)h->o->port, NULL, NULL, handle, h, MHD_OPTION_SOCK_ADDR, &at,
                                 MHD_OPTION_NOTIFY_COMPLETED, completed, h, MHD_OPTION_NOTIFY_CONNECTION, connected, h,
                                 MHD_OPTION_CONNECTION_LIMIT, most_connections(), MHD_OPTION_CONNECTION_TIMEOUT,
                                 seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_END);
    if (!h->daemon)
        return hh_fail(err, HH_EIO, "cannot listen at %s, port %d: %s; --port 0 takes one that is free", host,
                       h->o->port, errno ? strerror(errno) : "the system refuses it");
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
    *port = info ? info->port : h->o->port;
    return HH_OK;
}

/* Takes no new request, finishes those under way and waits until their answers are with the clients. */
static void finish(hh_http *h, pthread_t computing) {
    const int listening = MHD_quiesce_daemon(h->daemon);
    hh_scheduler_stop(&h->scheduler);
    pthread_join(computing, NULL);
    for (double end = hh_now() + h->o->request_seconds; atomic_load(&h->answering) && hh_now() < end;) {
        usleep(5000);
        hh_watch_look(&h->watch);
    }
    MHD_stop_daemon(h->daemon);
    if (listening >= 0) close(listening);
}

hh_code hh_server_run(hh_engine *e, const hh_server_options *o, hh_error *err) {
    hh_http h = {.o = o, .started = time(NULL)};
    int port = 0;
    pthread_t computing;
    hh_scheduler_init(&h.scheduler, e, o);
    hh_watch_init(&h.watch);
    hh_code code = listen_at(&h, &port, err);
    if (code == HH_OK && pthread_create(&computing, NULL, compute, &h.scheduler)) {
        MHD_stop_daemon(h.daemon);
        code = hh_fail(err, HH_EIO, "no thread to compute in");
    }
    if (code == HH_OK) {
        hh_interrupt_hold(true); /* prompts that are being read are read to their end */
        if (o->on_ready) o->on_ready(o->context_of_ready, port);
        while (!hh_interrupt_asked()) {
            usleep(50000);
            hh_watch_look(&h.watch);
        }
        finish(&h, computing);
        for (bool done = false; !done && code == HH_OK;) code = hh_engine_write_snapshot(e, &done, err);
        hh_interrupt_hold(false);
    }
    hh_scheduler_release(&h.scheduler);
    hh_watch_release(&h.watch);
    return code;
}
