/* See tests/support/hostile.h. */
#include "support/hostile.h"

#include "base/progress.h"
#include "base/rng.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct attack {
    server s;
    hh_rng rng;
    double patience;
    char *fault;
} attack;

static int pick(attack *a, int n) {
    return (int)hh_rng_below(&a->rng, n);
}

static void fault(attack *a, const char *what, const char *request, const char *answer) {
    if (!a->fault) a->fault = hh_sprintf("%s\n--- asked\n%.400s\n--- answered\n%.400s", what, request, answer);
}

/* Statuses that a hostile request may get: a refusal, or an answer when there was a harmless reading of it. */
static bool is_fine(int status) {
    return status == 100 || status == 200 || (status >= 400 && status < 500) || status == 501 || status == 503 ||
           status == 505;
}

static int status_of(const hh_buf *raw) {
    int status = 0;
    return sscanf(raw->data, "HTTP/1.%*d %d", &status) == 1 ? status : 0;
}

/* Sends bytes and looks at the first answer. `must`: there is one. */
static void expect(attack *a, const char *bytes, size_t n, bool must) {
    int fd = connect_to(a->s);
    send_all(fd, bytes, n);
    shutdown(fd, SHUT_WR);
    hh_buf raw = receive_all(fd, 60);
    close(fd);
    const int status = status_of(&raw);
    if (status ? !is_fine(status) : must) fault(a, "a status that does not fit", bytes, raw.data);
    hh_buf_release(&raw);
}

/* A whole POST whose answer must be one of the `allowed` ("400", "200 400"). */
static void post(attack *a, const char *path, const char *body, const char *allowed) {
    reply r = ask(a->s, path, NULL, body);
    char status[16];
    snprintf(status, sizeof status, "%d", r.status);
    if (!strstr(allowed, status)) fault(a, "a status that does not fit", body, r.body.data);
    if (r.status >= 400 && !json_is_object(json_object_get(r.json, "error")))
        fault(a, "an error that is not in OpenAI's form", body, r.body.data);
    release_reply(&r);
}

static char *with_head(const char *path, const char *body) {
    return hh_sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", path, strlen(body), body);
}

static const char *const paths[] = {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"};
static const char good[] = "{\"prompt\": \"The old man stopped and\", \"max_tokens\": 20, \"temperature\": 0}";
static const char long_stream[] =
    "{\"prompt\": \"The old man stopped and\", \"max_tokens\": 400, \"stream\": true, \"n\": 3}";

/* -- bodies -- */

static void truncated_body(attack *a) {
    const int fd = connect_to(a->s), keep = pick(a, (int)sizeof good - 1);
    char *head = hh_sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%.*s",
                            sizeof good - 1, keep, good);
    send_all(fd, head, strlen(head));
    if (pick(a, 2)) shutdown(fd, SHUT_WR);
    if (pick(a, 2)) usleep(20000);
    close(fd);
    hh_free(head);
}

static void truncated_json(attack *a) {
    char body[sizeof good];
    snprintf(body, sizeof body, "%.*s", pick(a, (int)sizeof good - 2), good);
    post(a, paths[pick(a, 4)], body, "400");
}

static void wrong_types(attack *a) {
    static const char *const fields[] = {"prompt",
                                         "messages",
                                         "max_tokens",
                                         "temperature",
                                         "top_p",
                                         "top_k",
                                         "min_p",
                                         "n",
                                         "stop",
                                         "stream",
                                         "stream_options",
                                         "logprobs",
                                         "top_logprobs",
                                         "echo",
                                         "seed",
                                         "logit_bias",
                                         "best_of",
                                         "tools",
                                         "response_format",
                                         "presence_penalty",
                                         "include_usage",
                                         "functions",
                                         "frequency_penalty",
                                         "repetition_penalty"};
    static const char *const values[] = {"null",
                                         "true",
                                         "-1",
                                         "1e999",
                                         "-1e308",
                                         "99999999999999999999",
                                         "0.5",
                                         "\"\"",
                                         "\"\\u0000\"",
                                         "\"\\ud800\"",
                                         "[]",
                                         "[[]]",
                                         "[null]",
                                         "{}",
                                         "{\"\": {}}",
                                         "[1e9]",
                                         "[\"a\", 1]",
                                         "{\"type\": 7}",
                                         "{\"type\": \"json_schema\", \"json_schema\": {\"schema\": []}}",
                                         "{\"1\": \"x\"}"};
    const int n_fields = sizeof fields / sizeof *fields, n_values = sizeof values / sizeof *values;
    const char *field = fields[pick(a, n_fields)], *value = values[pick(a, n_values)];
    char *body = !strcmp(field, "prompt") || pick(a, 4) == 0
                     ? hh_sprintf("{\"%s\": %s, \"max_tokens\": 2}", field, value)
                     : hh_sprintf("{\"prompt\": \"a\", \"%s\": %s%s}", field, value,
                                  strstr(field, "max") ? "" : ", \"max_tokens\": 2");
    post(a, "/v1/completions", body, "200 400");
    hh_free(body);
}

static void deep_json(attack *a) {
    static const char *const opens[] = {"[", "{\"a\":", "{\"properties\":{\"a\":", "{\"anyOf\":[", "{\"items\":"};
    const char *open = opens[pick(a, 5)];
    const int depth = 10 << pick(a, 13);
    hh_buf body = {0};
    const bool schema = pick(a, 2);
    hh_buf_puts(&body, schema
                           ? "{\"prompt\": \"a\", \"max_tokens\": 4, \"response_format\": {\"type\": \"json_schema\", "
                             "\"json_schema\": {\"schema\": "
                           : "{\"prompt\": ");
    for (int i = 0; i < depth; i++) hh_buf_puts(&body, open);
    hh_buf_puts(&body, "{}");
    for (int i = 0; i < depth; i++)
        hh_buf_puts(&body, strstr(open, "prop") ? "}}" : strstr(open, "any") ? "]}" : *open == '[' ? "]" : "}");
    hh_buf_puts(&body, schema ? "}}}" : "}");
    post(a, "/v1/completions", body.data, "200 400");
    hh_buf_release(&body);
}

static void repeat(hh_buf *b, const char *text, int n) {
    for (int i = 0; i < n; i++) hh_buf_puts(b, text);
}

static void huge_counts(attack *a) {
    hh_buf body = {0};
    switch (pick(a, 8)) {
    case 0: /* as many answers as a body can ask for */
        hh_buf_puts(&body, "{\"n\": 16, \"max_tokens\": 1, \"prompt\": [[5]");
        repeat(&body, ",[5]", 1000);
        hh_buf_puts(&body, "]}");
        break;
    case 1: /* a prompt far beyond the context */
        hh_buf_puts(&body, "{\"prompt\": [5");
        repeat(&body, ",5", 500000);
        hh_buf_puts(&body, "]}");
        break;
    case 2:
        hh_buf_puts(&body, "{\"prompt\": \"a\", \"stop\": [\"b\"");
        repeat(&body, ",\"b\"", 5000);
        hh_buf_puts(&body, "]}");
        break;
    case 3:
        hh_buf_puts(&body, "{\"prompt\": \"a\", \"logit_bias\": {");
        for (int i = 0; i < 5000; i++) hh_buf_printf(&body, "%s\"%d\": -100", i ? "," : "", i);
        hh_buf_puts(&body, "}}");
        break;
    case 4: /* nothing is left to be chosen */
        hh_buf_puts(&body, "{\"prompt\": \"a\", \"logit_bias\": {");
        for (int i = 0; i < 2048; i++) hh_buf_printf(&body, "%s\"%d\": -100", i ? "," : "", i);
        hh_buf_puts(&body, "}}");
        break;
    case 5:
        hh_buf_puts(&body, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}");
        repeat(&body, ",{\"role\": \"user\", \"content\": \"a\"}", 20000);
        hh_buf_puts(&body, "]}");
        break;
    case 6: /* one word without an end */
        hh_buf_puts(&body, "{\"prompt\": \"");
        repeat(&body, "abcdefgh", 100000);
        hh_buf_puts(&body, "\"}");
        break;
    default: /* more than is taken at all */
        hh_buf_puts(&body, "{\"prompt\": \"");
        repeat(&body, "abcdefgh", 1 << 20);
        hh_buf_puts(&body, "\"}");
    }
    post(a, strstr(body.data, "messages") ? "/v1/chat/completions" : "/v1/completions", body.data, "400 413 503");
    hh_buf_release(&body);
}

static void invalid_utf8(attack *a) {
    static const char *const bad[] = {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"};
    const char *bytes = bad[pick(a, 6)];
    char *body = hh_sprintf("{\"%s\": \"a%sb\", \"max_tokens\": 2}", pick(a, 2) ? "prompt" : bytes, bytes);
    post(a, paths[pick(a, 4)], body, "400");
    hh_free(body);
    char *line = hh_sprintf("GET /%s HTTP/1.1\r\nHost: %s\r\nX-%s: %s\r\n\r\n", bytes, bytes, bytes, bytes);
    expect(a, line, strlen(line), false);
    hh_free(line);
}

static void flipped_bytes(attack *a) {
    char *text = with_head("/v1/completions", good);
    const size_t n = strlen(text);
    for (int i = 1 + pick(a, 4); i > 0; i--) text[pick(a, (int)n)] = (char)(1 + pick(a, 255));
    expect(a, text, n, false);
    hh_free(text);
}

/* -- connections -- */

/* Sends a byte now and then, of a head or a body, until the server has had enough; it must, in time. */
static void slow_writer(attack *a) {
    char *text = with_head("/v1/completions", good);
    const int fd = connect_to(a->s);
    const double end = hh_now() + a->patience;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    send_all(fd, text, (size_t)pick(a, (int)(strlen(text) / 2)));
    while (hh_now() < end && poll(&p, 1, 200) == 0) send_all(fd, "x", 1);
    if (poll(&p, 1, 0) == 0) fault(a, "a slow writer was not hung up on", text, "");
    close(fd);
    hh_free(text);
}

/* Reads a byte now and then of a long stream, through a small window. */
static void slow_reader(attack *a) {
    char *text = with_head("/v1/completions", long_stream), byte;
    const int fd = connect_to(a->s), small = 1024;
    const double end = hh_now() + a->patience * (1 + pick(a, 2)) / 2;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    send_all(fd, text, strlen(text));
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (hh_now() < end && poll(&p, 1, 1000) >= 0) {
        if ((p.revents & POLLIN) && recv(fd, &byte, 1, MSG_DONTWAIT) == 0) break;
        usleep(100000);
    }
    close(fd);
    hh_free(text);
}

static void reset(int fd) {
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

static void dropped_in_the_middle(attack *a) {
    char *text = with_head("/v1/completions", long_stream), block[4096];
    const int fd = connect_to(a->s), pieces = pick(a, 8);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    send_all(fd, text, strlen(text));
    if (pick(a, 3) == 0) send_all(fd, text, strlen(text)); /* the next one stands behind it already */
    for (int i = 0; i < pieces && poll(&p, 1, 2000) > 0; i++)
        if (recv(fd, block, sizeof block, 0) <= 0) break;
    if (pick(a, 2)) reset(fd);
    close(fd);
    hh_free(text);
}

static void connected_and_gone(attack *a) {
    for (int i = 0; i < 5; i++) {
        const int fd = connect_to(a->s);
        if (pick(a, 2)) reset(fd);
        close(fd);
    }
}

static void pipelined(attack *a) {
    hh_buf text = {0};
    int n = 1 + pick(a, 20), answers = 0;
    for (int i = 0; i < n; i++) {
        char *one = with_head("/v1/completions", good);
        hh_buf_puts(&text, i % 5 == 4 ? one : "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        hh_free(one);
    }
    hh_buf_puts(&text, "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    const int fd = connect_to(a->s);
    send_all(fd, text.data, text.len);
    hh_buf raw = receive_all(fd, 60);
    close(fd);
    for (const char *at = raw.data; (at = strstr(at, "HTTP/1.1 200")); at += 12) answers++;
    if (answers != n + 1) fault(a, "not as many answers as requests stood in one line", text.data, raw.data);
    hh_buf_release(&raw);
    hh_buf_release(&text);
}

/* -- heads -- */

static void wrong_method(attack *a) {
    static const char *const methods[] = {"PUT",
                                          "DELETE",
                                          "OPTIONS",
                                          "TRACE",
                                          "CONNECT",
                                          "PATCH",
                                          "post",
                                          "FOO",
                                          "HEAD",
                                          "\x01",
                                          "GETGETGETGETGETGETGET"};
    char *line =
        hh_sprintf("%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", methods[pick(a, 11)], paths[pick(a, 4)]);
    expect(a, line, strlen(line), true);
    hh_free(line);
}

static void huge_head(attack *a) {
    hh_buf text = {0};
    const int kind = pick(a, 4);
    hh_buf_puts(&text, "GET /");
    if (kind == 0) repeat(&text, "aaaaaaaaaa", 10000);
    hh_buf_puts(&text, "health HTTP/1.1\r\nHost: x\r\n");
    if (kind == 1) hh_buf_puts(&text, "X-Long: ");
    if (kind == 1) repeat(&text, "bbbbbbbbbb", 20000);
    if (kind == 2) repeat(&text, "X-Many: c\r\n", 8000);
    if (kind == 3) repeat(&text, " folded\r\n", 3000);
    hh_buf_puts(&text, "\r\n\r\n");
    expect(a, text.data, text.len, false);
    hh_buf_release(&text);
}

static void odd_chunks(attack *a) {
    static const char *const bodies[] = {"zz\r\n{}\r\n0\r\n\r\n",
                                         "ffffffffffffffff\r\n{}\r\n0\r\n\r\n",
                                         "-2\r\n{}\r\n0\r\n\r\n",
                                         "2\r\n{}0\r\n\r\n",
                                         "2;name=value\r\n{}\r\n0\r\n\r\n",
                                         "2\r\n{}\r\n0\r\nX-Trailer: y\r\n\r\n",
                                         "0\r\n\r\n",
                                         "1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
                                         "0x2\r\n{}\r\n0\r\n\r\n",
                                         "2\n{}\n0\n\n",
                                         "2\r\n{}\r\n",
                                         "00000000000000000000000000000002\r\n{}\r\n0\r\n\r\n",
                                         "\r\n\r\n"};
    char *text = hh_sprintf("POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%s", paths[pick(a, 4)],
                            bodies[pick(a, 13)]);
    expect(a, text, strlen(text), false);
    hh_free(text);
    hh_buf whole = {0}; /* and a good one, a byte at a time */
    hh_buf_puts(&whole, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (const char *c = good; *c; c++) hh_buf_printf(&whole, "1\r\n%c\r\n", *c);
    hh_buf_puts(&whole, "0\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    const int fd = connect_to(a->s);
    send_all(fd, whole.data, whole.len);
    hh_buf raw = receive_all(fd, 60);
    close(fd);
    if (status_of(&raw) != 200) fault(a, "a chunked body was not taken", whole.data, raw.data);
    hh_buf_release(&raw);
    hh_buf_release(&whole);
}

/* Two readings of where the body ends: never an answer to what one of them would make the next request. */
static void conflicting_lengths(attack *a) {
    static const char *const heads[] = {"Content-Length: 2\r\nContent-Length: 50\r\n",
                                        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
                                        "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n",
                                        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
                                        "Transfer-Encoding: gzip, chunked\r\n",
                                        "Transfer-Encoding: identity\r\n",
                                        "Content-Length: -1\r\n",
                                        "Content-Length: +2\r\n",
                                        "Content-Length: 2, 2\r\n",
                                        "Content-Length: 1e3\r\n",
                                        "Content-Length: 99999999999999999999\r\n",
                                        "Content-Length: \r\n",
                                        "Content-Length: 0x2\r\n"};
    const int kind = pick(a, 13);
    char *text = hh_sprintf("POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n%s\r\n{}GET /props HTTP/1.1\r\nHost: x\r\n\r\n",
                            heads[kind]);
    const int fd = connect_to(a->s);
    send_all(fd, text, strlen(text));
    shutdown(fd, SHUT_WR);
    hh_buf raw = receive_all(fd, 60);
    close(fd);
    if (strstr(raw.data, "\"vocabulary\"")) fault(a, "an answer to a smuggled request", text, raw.data);
    if (status_of(&raw) && !is_fine(status_of(&raw))) fault(a, "a status that does not fit", text, raw.data);
    hh_buf_release(&raw);
    hh_free(text);
}

static void no_http(attack *a) {
    static const char *const bytes[] = {"\x16\x03\x01\x02\x00\x01\xfc\x03\x03",
                                        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                        "GET /health\r\n\r\n",
                                        "GET /health HTTP/9.9\r\n\r\n",
                                        "\r\n\r\n\r\n\r\n",
                                        "GET  /health  HTTP/1.1\r\n\r\n",
                                        "GET http://else.where/health HTTP/1.1\r\nHost: x\r\n\r\n",
                                        "GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
                                        "GET /%00%ff%zz HTTP/1.1\r\nHost: x\r\n\r\n",
                                        "GET /health HTTP/1.1\r\nHost x\r\n: y\r\n\r\n",
                                        ("POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                                         "Content-Length: 5\r\n\r\n")};
    char noise[600];
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (char)(1 + pick(a, 255));
    noise[sizeof noise - 1] = 0;
    const char *one = bytes[pick(a, 11)];
    expect(a, one, strlen(one), false);
    expect(a, noise, sizeof noise - 1, false);
}

static const struct {
    const char *name;
    void (*send)(attack *a);
} kinds[] = {{"truncated body", truncated_body},
             {"truncated JSON", truncated_json},
             {"wrong types", wrong_types},
             {"deep JSON", deep_json},
             {"huge counts", huge_counts},
             {"invalid UTF-8", invalid_utf8},
             {"flipped bytes", flipped_bytes},
             {"slow writer", slow_writer},
             {"slow reader", slow_reader},
             {"dropped in the middle", dropped_in_the_middle},
             {"connected and gone", connected_and_gone},
             {"pipelined", pipelined},
             {"wrong method", wrong_method},
             {"huge head", huge_head},
             {"odd chunks", odd_chunks},
             {"conflicting lengths", conflicting_lengths},
             {"no HTTP", no_http}};

int hostile_kinds(void) {
    return sizeof kinds / sizeof *kinds;
}

const char *hostile_name(int i) {
    return kinds[i % hostile_kinds()].name;
}

char *hostile_request(server s, int i, double patience) {
    attack a = {.s = s, .rng = hh_rng_seeded((uint64_t)i), .patience = patience};
    kinds[i % hostile_kinds()].send(&a);
    return a.fault;
}
