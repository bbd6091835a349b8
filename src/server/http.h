/* Inside the HTTP side: what http.c (connections, jobs, the daemon) and pages.c (answers that need no computing) share. */
#ifndef HH_SERVER_HTTP_H
#define HH_SERVER_HTTP_H

#include "server/scheduler.h"
#include "server/watch.h"

#include <microhttpd.h>

typedef struct hh_http {
    struct MHD_Daemon *daemon;
    hh_scheduler scheduler;
    hh_watch watch;
    const hh_server_options *o;
    atomic_llong next_id;
    atomic_int answering; /* jobs whose answers are not sent to the end */
    size_t arriving;      /* bytes of bodies that are held; the HTTP thread's own */
    time_t started;
} hh_http;

/* One request while it arrives and is answered. */
typedef struct hh_exchange {
    hh_watched *watched; /* its connection */
    int refused;         /* status, when the head alone tells that nothing will come of it */
    char why[200];
    bool ambiguous; /* where the request ends: nothing behind it on this connection is read */
    hh_buf body;
    bool large;  /* megabytes were read */
    hh_job *job; /* handed to the scheduler */
} hh_exchange;

typedef enum MHD_Result hh_page_fn(hh_http *h, struct MHD_Connection *c, hh_exchange *x);

enum MHD_Result hh_answer_bytes(struct MHD_Connection *c, int status, const char *type, const void *data, size_t size,
                                enum MHD_ResponseMemoryMode mode);
enum MHD_Result hh_answer_json(struct MHD_Connection *c, int status, json_t *j); /* takes j */
enum MHD_Result hh_answer_error(struct MHD_Connection *c, int status, const char *sentence);
/* `last`: the connection is closed behind it. */
enum MHD_Result hh_answer_refusal(struct MHD_Connection *c, int status, const char *sentence, bool last);

hh_page_fn hh_serve_models, hh_serve_health, hh_serve_props, hh_serve_metrics, hh_serve_page, hh_serve_embeddings,
    hh_serve_tokenize, hh_serve_detokenize;

#endif
