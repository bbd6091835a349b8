/* A server under test and a client that speaks HTTP/1.1 over a socket, so that requests can be as bad as they like. */
#ifndef HH_TESTS_SUPPORT_HTTP_CLIENT_H
#define HH_TESTS_SUPPORT_HTTP_CLIENT_H

#include "support/support.h"

#include <jansson.h>
#include <sys/types.h>

typedef struct server {
    pid_t pid;
    int port;
} server;

/* Starts `hydrahead serve nano` with more words behind it (NULL ends them) on a free port. Fails the test when it does not come up. */
server start_server(const char *const *words);
server start_server_of(const char *model, const char *const *words); /* another model */
/* Asks it to end and waits; the exit status. */
int stop_server(server s);

int connect_to(server s);
void send_all(int fd, const char *bytes, size_t n);
/* Everything until the server closes, or `seconds` pass. */
hh_buf receive_all(int fd, int seconds);

typedef struct reply {
    int status;
    hh_buf body;  /* chunks put together */
    json_t *json; /* NULL: it is none */
} reply;

/* One request on a connection of its own. `headers`: more lines, each with CRLF, or NULL. body NULL: GET. */
reply ask(server s, const char *path, const char *headers, const char *body);
void release_reply(reply *r);

/* The text of a stream's events joined, of completions or chats; "" when it does not come to its end. The caller frees. */
char *streamed_text(reply *r);

/* A value of /metrics, its name without "hydrahead_"; -1: there is none. */
double metric(server s, const char *name);

/* The text under choices[i]. */
const char *choice_text(const reply *r, size_t i);

#endif
