/* The server as a client sees it: what OpenAI's API promises, what was read before, several at once, and bad requests. */
#include "support/http_client.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static server s; /* nano in float32, 4 slots */

static int start(void **state) {
    (void)state;
    s = start_server((const char *const[]){"--dtype", "f32", "--ctx", "512", "-t", "1", NULL});
    return 0;
}

static int stop(void **state) {
    (void)state;
    return stop_server(s);
}

static const char *const beginning = "They had been walking for a long time when the old man stopped and looked at";

static char *completion(const char *prompt, const char *more) {
    json_t *p = json_string(prompt);
    char *quoted = json_dumps(p, JSON_ENCODE_ANY),
         *body = hh_sprintf("{\"prompt\": %s, \"temperature\": 0%s%s}", quoted, *more ? ", " : "", more);
    free(quoted);
    json_decref(p);
    return body;
}

static reply complete(server at, const char *prompt, const char *more) {
    char *body = completion(prompt, more);
    reply r = ask(at, "/v1/completions", NULL, body);
    hh_free(body);
    return r;
}

static json_int_t usage(const reply *r, const char *field) {
    const json_t *u = json_object_get(r->json, "usage");
    if (!strcmp(field, "cached_tokens")) u = json_object_get(u, "prompt_tokens_details");
    return json_integer_value(json_object_get(u, field));
}

static void simple_paths(void **state) {
    (void)state;
    static const char *const paths[] = {"/health", "/v1/models", "/props", "/metrics", "/"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        reply r = ask(s, paths[i], NULL, NULL);
        if (r.status != 200) fail_msg("%s: %d", paths[i], r.status);
        release_reply(&r);
    }
    reply r = ask(s, "/props", NULL, NULL);
    assert_true(json_is_false(json_object_get(r.json, "chat"))); /* nano has no template; its page completes texts */
    release_reply(&r);
    r = ask(s, "/tokenize", NULL, "{\"content\": \"The grass is green.\"}");
    json_t *tokens = json_incref(json_object_get(r.json, "tokens"));
    assert_true(json_array_size(tokens) > 3);
    release_reply(&r);
    json_t *body = json_pack("{s:o}", "tokens", tokens);
    char *text = json_dumps(body, 0);
    r = ask(s, "/detokenize", NULL, text);
    assert_string_equal(json_string_value(json_object_get(r.json, "content")), "The grass is green.");
    free(text);
    json_decref(body);
    release_reply(&r);
}

static void completions_are_openais(void **state) {
    (void)state;
    reply r = complete(s, beginning, "\"max_tokens\": 12");
    assert_int_equal(r.status, 200);
    assert_string_equal(json_string_value(json_object_get(r.json, "object")), "text_completion");
    assert_int_equal(usage(&r, "completion_tokens"), 12);
    assert_int_equal(usage(&r, "total_tokens"), usage(&r, "prompt_tokens") + 12);
    char *whole = hh_strdup(choice_text(&r, 0));
    assert_true(strlen(whole) > 10);
    const json_t *c = json_array_get(json_object_get(r.json, "choices"), 0);
    assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "length");
    release_reply(&r);

    /* a stop string ends before itself, given as text or as a list */
    char stop_word[8];
    snprintf(stop_word, sizeof stop_word, "%.3s", whole + 8);
    for (int list = 0; list < 2; list++) {
        char *more = hh_sprintf("\"max_tokens\": 12, \"stop\": %s\"%s\"%s", list ? "[\"zzz\", " : "", stop_word,
                                list ? "]" : "");
        r = complete(s, beginning, more);
        size_t at = (size_t)(strstr(whole, stop_word) - whole);
        assert_int_equal(strlen(choice_text(&r, 0)), at);
        assert_memory_equal(choice_text(&r, 0), whole, at);
        hh_free(more);
        release_reply(&r);
    }

    /* the same as a stream */
    r = complete(s, beginning, "\"max_tokens\": 12, \"stream\": true, \"stream_options\": {\"include_usage\": true}");
    hh_buf text = {0};
    hh_buf_puts(&text, "");
    bool done = false, told = false;
    for (char *line = strtok(r.body.data, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "data: ", 6)) continue;
        done = !strcmp(line, "data: [DONE]");
        json_t *e = json_loads(line + 6, 0, NULL);
        const char *piece =
            json_string_value(json_object_get(json_array_get(json_object_get(e, "choices"), 0), "text"));
        if (piece) hh_buf_puts(&text, piece);
        told = told || json_is_object(json_object_get(e, "usage"));
        json_decref(e);
    }
    assert_true(done && told);
    assert_string_equal(text.data, whole);
    hh_buf_release(&text);
    hh_free(whole);
    release_reply(&r);
}

static void prompts_come_in_four_shapes(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\": \"The\", \"max_tokens\": 2}", "{\"prompt\": [\"The\", \"A\"], \"max_tokens\": 2}",
        "{\"prompt\": [5, 6, 7], \"max_tokens\": 2}", "{\"prompt\": [[5, 6], [7]], \"n\": 2, \"max_tokens\": 2}"};
    static const size_t choices[] = {1, 2, 1, 4};
    for (int i = 0; i < 4; i++) {
        reply r = ask(s, "/v1/completions", NULL, bodies[i]);
        if (r.status != 200) fail_msg("%s: %s", bodies[i], r.body.data);
        assert_int_equal(json_array_size(json_object_get(r.json, "choices")), choices[i]);
        release_reply(&r);
    }
}

static void log_probabilities_have_bytes_and_echo(void **state) {
    (void)state;
    reply r = complete(s, "The grass is", "\"max_tokens\": 3, \"logprobs\": 2, \"echo\": true");
    assert_int_equal(r.status, 200);
    const json_t *l = json_object_get(json_array_get(json_object_get(r.json, "choices"), 0), "logprobs");
    const json_t *p = json_object_get(l, "token_logprobs"), *tokens = json_object_get(l, "tokens");
    size_t n = json_array_size(tokens), i;
    json_t *one;
    assert_int_equal(n, usage(&r, "prompt_tokens") + 3);
    assert_int_equal(json_array_size(p), n);
    assert_true(json_is_null(json_array_get(p, 0)));
    for (i = 1; i < n; i++) assert_true(json_real_value(json_array_get(p, i)) <= 0);
    hh_buf text = {0};
    json_array_foreach((json_t *)tokens, i, one) hh_buf_puts(&text, json_string_value(one));
    assert_string_equal(text.data, choice_text(&r, 0));
    assert_memory_equal(text.data, "The grass is", 12);
    hh_buf_release(&text);
    release_reply(&r);
}

static void what_was_read_is_not_read_again(void **state) {
    (void)state;
    hh_buf prompt = {0};
    for (int i = 0; i < 12; i++) hh_buf_printf(&prompt, "In the %dth year the river rose over the fields. ", i);
    reply first = complete(s, prompt.data, "\"max_tokens\": 20"),
          again = complete(s, prompt.data, "\"max_tokens\": 20");
    assert_int_equal(usage(&first, "cached_tokens"), 0);
    assert_int_equal(usage(&again, "cached_tokens"), usage(&again, "prompt_tokens"));
    assert_string_equal(choice_text(&first, 0), choice_text(&again, 0));
    /* a second turn reads what is new, from the last multiple of 64 tokens */
    hh_buf_puts(&prompt, choice_text(&first, 0));
    hh_buf_puts(&prompt, " And then the rain came.");
    reply turn = complete(s, prompt.data, "\"max_tokens\": 4");
    assert_true(usage(&turn, "cached_tokens") >= usage(&first, "prompt_tokens") / 64 * 64);
    release_reply(&first);
    release_reply(&again);
    release_reply(&turn);
    hh_buf_release(&prompt);
}

static void seeds_and_formats(void **state) {
    (void)state;
    static const char *const body =
        "{\"prompt\": \"Once\", \"temperature\": 1, \"seed\": 7, \"max_tokens\": 16, \"n\": 2}";
    reply a = ask(s, "/v1/completions", NULL, body), b = ask(s, "/v1/completions", NULL, body);
    assert_string_equal(choice_text(&a, 0), choice_text(&b, 0));
    assert_string_equal(choice_text(&a, 1), choice_text(&b, 1));
    assert_string_not_equal(choice_text(&a, 0), choice_text(&a, 1));
    release_reply(&a);
    release_reply(&b);
    a = complete(s, "An object:",
                 "\"max_tokens\": 200, \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": "
                 "{\"type\": \"object\", "
                 "\"properties\": {\"yes\": {\"type\": \"boolean\"}, \"n\": {\"enum\": [1, 2]}}, \"required\": "
                 "[\"yes\", \"n\"]}}}");
    json_t *j = json_loads(choice_text(&a, 0), 0, NULL);
    if (!json_is_boolean(json_object_get(j, "yes"))) fail_msg("not of the schema: %s", a.body.data);
    json_decref(j);
    release_reply(&a);
}

typedef struct worker {
    pthread_t thread;
    int index;
    char *text;
} worker;

static void *work(void *context) {
    worker *w = context;
    char *prompt = hh_sprintf("Chapter %d. %s", w->index * 17, beginning);
    reply r = complete(s, prompt, "\"max_tokens\": 24");
    w->text = hh_strdup(choice_text(&r, 0));
    release_reply(&r);
    hh_free(prompt);
    return NULL;
}

static void others_change_no_token(void **state) {
    (void)state;
    worker alone[8] = {0}, together[8] = {0};
    for (int i = 0; i < 8; i++) {
        alone[i].index = together[i].index = i;
        work(&alone[i]);
    }
    for (int i = 0; i < 8; i++) pthread_create(&together[i].thread, NULL, work, &together[i]);
    for (int i = 0; i < 8; i++) {
        pthread_join(together[i].thread, NULL);
        assert_string_equal(together[i].text, alone[i].text);
        hh_free(together[i].text);
        hh_free(alone[i].text);
    }
}

static void errors_are_openais(void **state) {
    (void)state;
    static const struct {
        const char *path, *body;
        int status;
        const char *word;
    } cases[] = {
        {"/v1/completions", "{\"prompt\": ", 400, "not JSON"},
        {"/v1/completions", "[]", 400, "object"},
        {"/v1/completions", "{}", 400, "prompt"},
        {"/v1/completions", "{\"prompt\": 3}", 400, "prompt"},
        {"/v1/completions", "{\"prompt\": [[1, 2], [3, \"a\"]]}", 400, "prompt"}, /* keeps none of it (ASan tells) */
        {"/v1/completions", "{\"prompt\": [99999999]}", 400, "99999999"},
        {"/v1/completions", "{\"prompt\": \"a\", \"temperature\": -1}", 400, "temperature"},
        {"/v1/completions", "{\"prompt\": \"a\", \"n\": 1000}", 400, "n"},
        {"/v1/completions", "{\"prompt\": \"a\", \"suffix\": \"b\"}", 400, "suffix"},
        {"/v1/completions", "{\"prompt\": \"a\", \"prompt\": \"b\"}", 400, "duplicate"},
        {"/v1/completions",
         "{\"prompt\": \"a\", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": "
         "{\"pattern\": \"a\"}}}}",
         400, "pattern"},
        {"/v1/chat/completions", "{\"messages\": []}", 400, "messages"},
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}", 400, "role"},
        {"/v1/embeddings", "{\"input\": \"a\"}", 501, "embeddings"},
        {"/v1/nothing", "{}", 404, "/v1/nothing"},
        {"/health", "{}", 405, "GET"},
        {"/v1/completions", NULL, 405, "POST"},
        {"/tokenize", "{\"content\": 3}", 400, "content"},
        {"/detokenize", "{\"tokens\": [-1]}", 400, "tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reply r = ask(s, cases[i].path, NULL, cases[i].body);
        const char *message = json_string_value(json_object_get(json_object_get(r.json, "error"), "message"));
        if (r.status != cases[i].status || !message || !strstr(message, cases[i].word))
            fail_msg("%s %s: %d %s", cases[i].path, cases[i].body ? cases[i].body : "", r.status, r.body.data);
        release_reply(&r);
    }
    hh_buf prompt = {0};
    for (int i = 0; i < 600; i++) hh_buf_puts(&prompt, "word and ");
    reply r = complete(s, prompt.data, "");
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body.data, "512"));
    release_reply(&r);
    hh_buf_release(&prompt);
}

/* Connections that say nothing, too much, or hang up, while another stream runs. */
static void bad_clients_disturb_nobody(void **state) {
    (void)state;
    static const char *const lines[] = {"",
                                        "\r\n\r\n",
                                        "GET\r\n\r\n",
                                        "POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{\"prompt\"",
                                        "POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
                                        "\x16\x03\x01\x02\x00\x01",
                                        "GET / HTTP/9.9\r\n\r\n",
                                        "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"};
    worker alone = {.index = 3}, w = {.index = 3};
    work(&alone);
    pthread_create(&w.thread, NULL, work, &w);
    for (int round = 0; round < 5; round++)
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
            int fd = connect_to(s);
            send_all(fd, lines[i], strlen(lines[i]));
            close(fd);
        }
    for (int i = 0; i < 10; i++) { /* hang up while queued, read or answered */
        char *body = completion(beginning, "\"max_tokens\": 400, \"stream\": true, \"n\": 2");
        int fd = connect_to(s);
        char *head =
            hh_sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
        send_all(fd, head, strlen(head));
        usleep(3000 * (unsigned)i);
        close(fd);
        hh_free(head);
        hh_free(body);
    }
    pthread_join(w.thread, NULL);
    assert_string_equal(w.text, alone.text);
    hh_free(w.text);
    hh_free(alone.text);
    reply r = ask(s, "/health", NULL, NULL);
    assert_int_equal(r.status, 200);
    release_reply(&r);
}

/* At the address that people know by its name. */
static void keys_open_the_api(void **state) {
    (void)state;
    server locked = start_server((const char *const[]){"-t", "1", "--host", "localhost", "--api-key-file",
                                                       temp_text("keys", "first-key\nsecond-key\n"), NULL});
    reply r = ask(locked, "/v1/models", NULL, NULL);
    assert_int_equal(r.status, 401);
    release_reply(&r);
    r = ask(locked, "/v1/models", "Authorization: Bearer third-key\r\n", NULL);
    assert_int_equal(r.status, 401);
    release_reply(&r);
    r = ask(locked, "/v1/models", "Authorization: Bearer second-key\r\n", NULL);
    assert_int_equal(r.status, 200);
    release_reply(&r);
    r = ask(locked, "/health", NULL, NULL);
    assert_int_equal(r.status, 200);
    release_reply(&r);
    assert_int_equal(stop_server(locked), 0);
}

/* A second server at a port would take half of the first one's connections. The port is free again when the first ends. */
static void a_port_is_served_once(void **state) {
    (void)state;
    hh_buf out = {0}, errors = {0};
    char *line = hh_sprintf("timeout 60 hydrahead serve nano --port %d", s.port);
    assert_int_equal(run_line(line, 60, &out, &errors), 1);
    char *port = hh_sprintf("port %d", s.port);
    if (!strstr(errors.data, port) || !strstr(errors.data, "in use") || !strstr(errors.data, "--port 0"))
        fail_msg("said: %s", errors.data);
    const server first = start_server((const char *const[]){"--ctx", "64", NULL});
    reply r = ask(first, "/health", NULL, NULL); /* a connection whose end the system remembers for a while */
    release_reply(&r);
    assert_int_equal(stop_server(first), 0);
    char *again = hh_sprintf("%d", first.port);
    const server second = start_server((const char *const[]){"--ctx", "64", "--port", again, NULL});
    assert_int_equal(second.port, first.port);
    assert_int_equal(stop_server(second), 0);
    hh_buf_release(&out);
    hh_buf_release(&errors);
    hh_free(line);
    hh_free(port);
    hh_free(again);
}

static void a_restart_keeps_what_was_read(void **state) {
    (void)state;
    const char *const words[] = {"-t", "1", "--ctx", "512", "--cache-dir", temp_path("cache"), NULL};
    hh_buf prompt = {0};
    for (int i = 0; i < 12; i++) hh_buf_printf(&prompt, "On the %dth day they reached another village. ", i);
    server one = start_server(words);
    reply r = complete(one, prompt.data, "\"max_tokens\": 8");
    char *text = hh_strdup(choice_text(&r, 0));
    release_reply(&r);
    assert_int_equal(stop_server(one), 0);
    server two = start_server(words);
    r = complete(two, prompt.data, "\"max_tokens\": 8");
    assert_int_equal(usage(&r, "cached_tokens"), usage(&r, "prompt_tokens"));
    assert_string_equal(choice_text(&r, 0), text);
    release_reply(&r);
    assert_int_equal(stop_server(two), 0);
    hh_free(text);
    hh_buf_release(&prompt);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simple_paths),
        cmocka_unit_test(completions_are_openais),
        cmocka_unit_test(prompts_come_in_four_shapes),
        cmocka_unit_test(log_probabilities_have_bytes_and_echo),
        cmocka_unit_test(what_was_read_is_not_read_again),
        cmocka_unit_test(seeds_and_formats),
        cmocka_unit_test(others_change_no_token),
        cmocka_unit_test(errors_are_openais),
        cmocka_unit_test(bad_clients_disturb_nobody),
        cmocka_unit_test(keys_open_the_api),
        cmocka_unit_test(a_port_is_served_once),
        cmocka_unit_test(a_restart_keeps_what_was_read),
    };
    return cmocka_run_group_tests_name("server", tests, start, stop);
}
