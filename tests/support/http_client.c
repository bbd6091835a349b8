/* See tests/support/http_client.h. */
#include "support/http_client.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

server start_server(const char *const *words) {
    return start_server_of("nano", words);
}

server start_server_of(const char *model, const char *const *words) {
    const char *argv[40] = {program_path(), "serve", model, "--port", "0", "-q"};
    int n = 6, out[2];
    server s = {0};
    for (; words && *words; words++) argv[n++] = *words;
    if (pipe(out)) fail_msg("no pipe");
    if (!(s.pid = fork())) {
        dup2(out[1], 1);
        close(out[0]);
        close(out[1]);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    close(out[1]);
    FILE *f = fdopen(out[0], "r");
    if (fscanf(f, "%d", &s.port) != 1) fail_msg("the server did not come up");
    fclose(f);
    return s;
}

int stop_server(server s) {
    int status;
    kill(s.pid, SIGTERM);
    waitpid(s.pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int connect_to(server s) {
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)s.port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at)) fail_msg("no connection to port %d", s.port);
    return fd;
}

void send_all(int fd, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) return; /* the server may have hung up, rightly */
        bytes += sent;
        n -= (size_t)sent;
    }
}

hh_buf receive_all(int fd, int seconds) {
    hh_buf out = {0};
    char block[1 << 16];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    hh_buf_puts(&out, "");
    while (poll(&p, 1, seconds * 1000) > 0) {
        ssize_t n = recv(fd, block, sizeof block, 0);
        if (n <= 0) break;
        hh_buf_add(&out, block, (size_t)n);
    }
    return out;
}

/* The body behind the head, its chunks joined. */
static void read_body(hh_buf *body, const char *raw, size_t size) {
    const char *head_end = strstr(raw, "\r\n\r\n"), *at = head_end ? head_end + 4 : raw + size, *end = raw + size;
    hh_buf_puts(body, "");
    bool chunked =
        head_end && strstr(raw, "Transfer-Encoding: chunked") && strstr(raw, "Transfer-Encoding: chunked") < head_end;
    if (!chunked) {
        hh_buf_add(body, at, (size_t)(end - at));
        return;
    }
    while (at < end) {
        char *rest;
        size_t n = strtoul(at, &rest, 16);
        if (!n || rest + 2 + n > end) return;
        hh_buf_add(body, rest + 2, n);
        at = rest + 2 + n + 2;
    }
}

reply ask(server s, const char *path, const char *headers, const char *body) {
    reply r = {0};
    int fd = connect_to(s);
    char *head =
        body ? hh_sprintf("POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n", path,
                          headers ? headers : "", strlen(body))
             : hh_sprintf("GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n", path, headers ? headers : "");
    send_all(fd, head, strlen(head));
    if (body) send_all(fd, body, strlen(body));
    hh_buf raw = receive_all(fd, 300);
    close(fd);
    hh_free(head);
    if (sscanf(raw.data, "HTTP/1.1 %d", &r.status) != 1) r.status = 0;
    read_body(&r.body, raw.data, raw.len);
    r.json = json_loadb(r.body.data, r.body.len, 0, NULL);
    hh_buf_release(&raw);
    return r;
}

void release_reply(reply *r) {
    hh_buf_release(&r->body);
    json_decref(r->json);
    *r = (reply){0};
}

const char *choice_text(const reply *r, size_t i) {
    const json_t *c = json_array_get(json_object_get(r->json, "choices"), i), *m = json_object_get(c, "message");
    const char *text = json_string_value(json_object_get(m ? m : c, m ? "content" : "text"));
    return text ? text : "";
}

char *streamed_text(reply *r) {
    hh_buf text = {0};
    char *rest = NULL;
    bool done = false;
    hh_buf_puts(&text, "");
    for (char *line = strtok_r(r->body.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "data: ", 6)) continue;
        done = !strcmp(line, "data: [DONE]");
        json_t *e = json_loads(line + 6, 0, NULL);
        const json_t *c = json_array_get(json_object_get(e, "choices"), 0), *delta = json_object_get(c, "delta");
        const char *piece = json_string_value(json_object_get(delta ? delta : c, delta ? "content" : "text"));
        if (piece) hh_buf_puts(&text, piece);
        json_decref(e);
    }
    char *whole = hh_strdup(done ? text.data : "");
    hh_buf_release(&text);
    return whole;
}

double metric(server s, const char *name) {
    reply r = ask(s, "/metrics", NULL, NULL);
    char *line = hh_sprintf("\nhydrahead_%s ", name);
    const char *at = r.status == 200 ? strstr(r.body.data, line) : NULL;
    double value = at ? strtod(at + strlen(line), NULL) : -1;
    hh_free(line);
    release_reply(&r);
    return value;
}
