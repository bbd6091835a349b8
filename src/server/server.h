/* The OpenAI-compatible server: HTTP by libmicrohttpd, one thread that computes. It sees hydrahead.h and base/ alone. */
#ifndef HH_SERVER_SERVER_H
#define HH_SERVER_SERVER_H

#include "hydrahead.h"

#include "base/memory.h"

typedef struct hh_server_options {
    const char *model_name; /* what /v1/models says */
    const char *host;       /* an address; NULL: "127.0.0.1" */
    int port;               /* 0: one that is free */
    int64_t context;        /* tokens of one request, prompt and answer */
    int64_t slots;          /* answers made at the same time */
    int64_t queue;          /* requests that may wait; more are refused with 503 */
    size_t max_body;        /* bytes of a request */
    double request_seconds; /* in which a request must arrive and an answer be taken; large ones get more */
    const char *const *key; /* any of these opens the API; none: it is open */
    int64_t n_keys;
    void (*on_ready)(void *context, int port); /* called when connections are accepted */
    void *context_of_ready;
} hh_server_options;

/* Serves until hh_interrupted() (base/progress.h): then no new request is taken, those under way are finished, snapshots are
 * written, and HH_OK is returned. HH_EIO when the address cannot be had. */
hh_code hh_server_run(hh_engine *e, const hh_server_options *o, hh_error *err);

#endif
