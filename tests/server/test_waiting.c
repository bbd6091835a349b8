/* Clients that wait and clients that leave: in the queue, while a long prompt is read, in front of others' batches; and
 * chats, with a template that nano is given. */
#include "support/http_client.h"

#include "base/progress.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONG = 3000 }; /* tokens of a prompt that takes a while */

static server s; /* one slot, chunks of 64 tokens */

static int start(void **state) {
    (void)state;
    s = start_server((const char *const[]){"--dtype", "f32", "-t", "1", "--ctx", "4096", "--slots", "1", "--chunk",
                                           "64", "--cache-bytes", "0", "--timeout", "2", NULL});
    return 0;
}

static int stop(void **state) {
    (void)state;
    return stop_server(s);
}

/* A prompt of n ids, no two alike for different `kind`. */
static char *prompt_of(int n, int kind, const char *more) {
    hh_buf body = {0};
    hh_buf_printf(&body, "{%s, \"prompt\": [%d", more, kind);
    for (int i = 1; i < n; i++) hh_buf_printf(&body, ",%d", (i * 7 + kind) % 1000 + 5);
    hh_buf_puts(&body, "]}");
    return body.data;
}

static int send_request(const char *body) {
    char *text =
        hh_sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    const int fd = connect_to(s);
    send_all(fd, text, strlen(text));
    hh_free(text);
    return fd;
}

static double wait_for(const char *name, double value) {
    const double begin = hh_now();
    while (metric(s, name) != value && hh_now() - begin < 300) usleep(2000);
    return hh_now() - begin;
}

static void too_long_a_prompt_is_refused_before_anything_is_computed(void **state) {
    (void)state;
    char *body = prompt_of(4097, 5, "\"max_tokens\": 1");
    reply r = ask(s, "/v1/completions", NULL, body);
    assert_int_equal(r.status, 400);
    if (!strstr(r.body.data, "4097") || !strstr(r.body.data, "4096")) fail_msg("%s", r.body.data);
    assert_true(metric(s, "prompt_tokens_total") == 0 && metric(s, "slots_busy") == 0);
    release_reply(&r);
    hh_free(body);
}

static void who_leaves_frees_the_slot(void **state) {
    (void)state;
    char *body = prompt_of(LONG, 6, "\"max_tokens\": 1");
    double begin = hh_now();
    reply r = ask(s, "/v1/completions", NULL, body);
    const double whole = hh_now() - begin;
    assert_int_equal(r.status, 200);
    release_reply(&r);
    for (int stream = 0; stream < 2; stream++) {
        char *again = prompt_of(LONG, 7 + stream, stream ? "\"stream\": true" : "\"max_tokens\": 1");
        const double cancelled = metric(s, "requests_cancelled_total");
        const int reading = send_request(again), waiting = send_request(again);
        wait_for("requests_under_way", 2);
        close(waiting); /* from the queue */
        assert_true(wait_for("requests_under_way", 1) < whole / 2);
        assert_true(metric(s, "slots_busy") == 1);
        close(reading); /* in the middle of its prompt */
        assert_true(wait_for("slots_busy", 0) < whole / 2);
        assert_true(metric(s, "requests_cancelled_total") == cancelled + 2);
        hh_free(again);
    }
    hh_free(body);
}

static void who_waits_long_gets_comments(void **state) {
    (void)state;
    char *slow = prompt_of(LONG, 9, "\"max_tokens\": 400"),
         *quick = prompt_of(4, 10, "\"max_tokens\": 2, \"stream\": true");
    const int first = send_request(slow);
    wait_for("slots_busy", 1);
    const int second = send_request(quick);
    char text[4096] = "";
    size_t n = 0;
    for (double end = hh_now() + 20; !strstr(text, ": reading\n\n") && hh_now() < end && n < sizeof text - 1;) {
        ssize_t got = recv(second, text + n, sizeof text - 1 - n, 0);
        if (got <= 0) break;
        n += (size_t)got;
        text[n] = 0;
    }
    if (!strstr(text, ": reading\n\n")) fail_msg("no comment: %s", text);
    close(first);
    hh_buf rest = receive_all(second, 3);
    assert_non_null(strstr(rest.data, "[DONE]"));
    close(second);
    hh_buf_release(&rest);
    hh_free(slow);
    hh_free(quick);
}

static atomic_bool batch_done;

static void *ask_batch(void *unused) {
    (void)unused;
    hh_buf body = {0};
    hh_buf_puts(&body, "{\"max_tokens\": 60, \"prompt\": [[5, 6, 7]");
    for (int i = 0; i < 11; i++) hh_buf_printf(&body, ", [%d, 6, 7]", i + 8);
    hh_buf_puts(&body, "]}");
    reply r = ask(s, "/v1/completions", NULL, body.data);
    atomic_store(&batch_done, true);
    const size_t n = json_array_size(json_object_get(r.json, "choices"));
    release_reply(&r);
    hh_buf_release(&body);
    return n == 12 ? NULL : &batch_done;
}

static void a_batch_lets_others_through(void **state) {
    (void)state;
    pthread_t batch;
    void *failed;
    pthread_create(&batch, NULL, ask_batch, NULL);
    wait_for("slots_busy", 1);
    reply r = ask(s, "/v1/completions", NULL, "{\"prompt\": [40, 41], \"max_tokens\": 2}");
    assert_int_equal(r.status, 200);
    assert_false(atomic_load(&batch_done));
    release_reply(&r);
    pthread_join(batch, &failed);
    assert_null(failed);
}

static atomic_int n_quick;

static void *ask_quickly(void *unused) {
    (void)unused;
    for (int i = 0; i < 40; i++) {
        reply r = ask(s, "/v1/completions", NULL, "{\"prompt\": [50, 51], \"max_tokens\": 2}");
        atomic_fetch_add(&n_quick, r.status == 200);
        release_reply(&r);
    }
    return NULL;
}

/* Others who come again and again do not keep a request from its second slot. */
static void nobody_waits_for_ever(void **state) {
    (void)state;
    pthread_t others[3];
    for (int i = 0; i < 3; i++) pthread_create(&others[i], NULL, ask_quickly, NULL);
    while (atomic_load(&n_quick) < 3) usleep(1000);
    reply r =
        ask(s, "/v1/completions", NULL, "{\"prompt\": [[60, 61], [62, 63], [64, 65]], \"n\": 2, \"max_tokens\": 2}");
    assert_int_equal(r.status, 200);
    assert_true(atomic_load(&n_quick) < 100);
    release_reply(&r);
    for (int i = 0; i < 3; i++) pthread_join(others[i], NULL);
    assert_int_equal(atomic_load(&n_quick), 120);
}

/* -- chats -- */

static const char template[] = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                               "message['content'] + '<|im_end|>' + '\n'}}"
                               "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/* Two of nano's tokens, its last merges, become the marks of turns. */
static void write_tokenizer(const char *path) {
    static const char *const marks[] = {"<|im_start|>", "<|im_end|>"};
    json_t *t = json_load_file("models/nano/tokenizer.json", 0, NULL), *m = json_object_get(t, "model"),
           *vocab = json_object_get(m, "vocab"), *merges = json_object_get(m, "merges"), *id;
    const char *key;
    void *next;
    for (int i = 0; i < 2; i++) {
        const json_int_t last = 2047 - i;
        json_object_foreach_safe(vocab, next, key, id) if (json_integer_value(id) == last) json_object_del(vocab, key);
        json_array_remove(merges, json_array_size(merges) - 1);
        json_object_set_new(vocab, marks[i], json_integer(last));
        json_array_append_new(json_object_get(t, "added_tokens"),
                              json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", last, "content", marks[i],
                                        "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    }
    assert_int_equal(json_dump_file(t, path, 0), 0);
    json_decref(t);
}

static const char *model_that_chats(void) {
    const char *folder = temp_path("chats");
    mkdir(folder, 0777);
    char *to = hh_sprintf("cp models/nano/config.json models/nano/model.safetensors %s", folder);
    assert_int_equal(run_line(to, 20, NULL, NULL), 0);
    json_t *config = json_pack("{s:s}", "chat_template", template);
    char *path = hh_sprintf("%s/tokenizer_config.json", folder);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    hh_free(path);
    path = hh_sprintf("%s/tokenizer.json", folder);
    write_tokenizer(path);
    hh_free(path);
    hh_free(to);
    return folder;
}

static json_int_t prompt_tokens(server at, const char *content) {
    char *body = hh_sprintf("{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]}", content);
    reply r = ask(at, "/v1/chat/completions", NULL, body);
    if (r.status != 200) fail_msg("%s", r.body.data);
    const json_int_t n = json_integer_value(json_object_get(json_object_get(r.json, "usage"), "prompt_tokens"));
    release_reply(&r);
    hh_free(body);
    return n;
}

static void chats_are_openais(void **state) {
    (void)state;
    server c =
        start_server_of(model_that_chats(), (const char *const[]){"--dtype", "f32", "-t", "1", "--ctx", "512", NULL});
    static const char whole[] =
        "{\"max_tokens\": 30, \"temperature\": 0, \"logprobs\": true, \"top_logprobs\": 2, \"messages\": ["
        "{\"role\": \"system\", \"content\": \"You tell stories.\"}, {\"role\": \"user\", "
        "\"content\": [{\"type\": \"text\", \"text\": \"Go on: the old man\"}]}]";
    char *body = hh_sprintf("%s}", whole),
         *streamed = hh_sprintf("%s, \"stream\": true, \"stream_options\": {\"include_usage\": true}}", whole);
    reply r = ask(c, "/v1/chat/completions", NULL, body), t = ask(c, "/v1/chat/completions", NULL, streamed);
    if (r.status != 200) fail_msg("%s", r.body.data);
    assert_string_equal(json_string_value(json_object_get(r.json, "object")), "chat.completion");
    const json_t *choice = json_array_get(json_object_get(r.json, "choices"), 0);
    const json_t *content = json_object_get(json_object_get(choice, "logprobs"), "content"), *one;
    size_t i;
    hh_buf bytes = {0};
    hh_buf_puts(&bytes, "");
    json_array_foreach((json_t *)content, i, one) { /* the tokens' bytes are the text */
        size_t k;
        json_t *byte;
        assert_int_equal(json_array_size(json_object_get(one, "top_logprobs")), 2);
        json_array_foreach(json_object_get(one, "bytes"), k, byte) {
            const char b = (char)json_integer_value(byte);
            hh_buf_add(&bytes, &b, 1);
        }
    }
    assert_string_equal(bytes.data, choice_text(&r, 0));
    assert_true(bytes.len > 10);
    assert_non_null(strstr(t.body.data, "\"role\":\"assistant\""));
    assert_non_null(strstr(t.body.data, "\"usage\":{"));
    char *text = streamed_text(&t);
    assert_string_equal(text, choice_text(&r, 0));
    /* what a user writes is text, be it written like a special token */
    assert_true(prompt_tokens(c, "<|endoftext|>") > prompt_tokens(c, "a") + 2);
    assert_int_equal(stop_server(c), 0);
    hh_free(text);
    hh_buf_release(&bytes);
    release_reply(&r);
    release_reply(&t);
    hh_free(body);
    hh_free(streamed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_long_a_prompt_is_refused_before_anything_is_computed),
        cmocka_unit_test(who_leaves_frees_the_slot),
        cmocka_unit_test(who_waits_long_gets_comments),
        cmocka_unit_test(a_batch_lets_others_through),
        cmocka_unit_test(nobody_waits_for_ever),
        cmocka_unit_test(chats_are_openais),
    };
    return cmocka_run_group_tests_name("waiting", tests, start, stop);
}
