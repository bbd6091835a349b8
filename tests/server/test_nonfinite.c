/* A value that is not finite fails the one request that made it, with layer and position; the others, in the same pass
 * over the weights, and those that come after it into the same slot get the tokens that they get alone. */
#include "support/http_client.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STREAMS = 3, BAD_ID = 777 };

static server s;

static void put(const char *folder, const char *name, const void *data, size_t size) {
    char *path = hh_sprintf("%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size) fail_msg("cannot write %s", path);
    fclose(f);
    hh_free(path);
}

static void set_offsets(json_t *tensor, size_t lo, size_t hi) {
    json_object_set_new(tensor, "data_offsets", json_pack("[I, I]", (json_int_t)lo, (json_int_t)hi));
}

/* nano with an infinite embedding of one token. It is untied: the copy that makes logits stays as it was. */
static void write_weights(const char *folder) {
    hh_buf whole = read_whole("models/nano/model.safetensors"), out = {0};
    uint64_t size;
    memcpy(&size, whole.data, sizeof size);
    json_t *head = json_loadb(whole.data + 8, size, 0, NULL),
           *embedding = json_object_get(head, "model.embed_tokens.weight"), *copy = json_deep_copy(embedding);
    char *data = whole.data + 8 + size;
    const size_t n = whole.len - 8 - size;
    const size_t lo = (size_t)json_integer_value(json_array_get(json_object_get(embedding, "data_offsets"), 0)),
                 hi = (size_t)json_integer_value(json_array_get(json_object_get(embedding, "data_offsets"), 1)),
                 width = (size_t)json_integer_value(json_array_get(json_object_get(embedding, "shape"), 1));
    set_offsets(copy, n, n + hi - lo);
    json_object_set_new(head, "lm_head.weight", copy);
    char *text = json_dumps(head, JSON_COMPACT);
    size = strlen(text);
    hh_buf_add(&out, &size, sizeof size);
    hh_buf_add(&out, text, size);
    const size_t start = out.len;
    hh_buf_add(&out, data, n);
    hh_buf_add(&out, data + lo, hi - lo);
    const uint16_t infinity = 0x7f80; /* bf16 */
    memcpy(out.data + start + lo + 2 * width * BAD_ID, &infinity, sizeof infinity);
    put(folder, "model.safetensors", out.data, out.len);
    free(text);
    json_decref(head);
    hh_buf_release(&whole);
    hh_buf_release(&out);
}

static int start(void **state) {
    (void)state;
    const char *folder = temp_path("infinite");
    mkdir(folder, 0777);
    write_weights(folder);
    hh_buf config = read_whole("models/nano/config.json"), tokenizer = read_whole("models/nano/tokenizer.json");
    json_t *c = json_loadb(config.data, config.len, 0, NULL);
    json_object_set_new(c, "tie_word_embeddings", json_false());
    char *text = json_dumps(c, 0);
    put(folder, "config.json", text, strlen(text));
    put(folder, "tokenizer.json", tokenizer.data, tokenizer.len);
    free(text);
    json_decref(c);
    hh_buf_release(&config);
    hh_buf_release(&tokenizer);
    s = start_server_of(folder, (const char *const[]){"--dtype", "f32", "--ctx", "512", "-t", "1", NULL});
    return 0;
}

static int stop(void **state) {
    (void)state;
    return stop_server(s);
}

typedef struct stream {
    pthread_t thread;
    int index;
    char *alone;
} stream;

static atomic_bool over;
static atomic_int n_different;

static char *ask_well(int index) {
    char *body =
        hh_sprintf("{\"prompt\": \"Chapter %d. They had been walking for a long time when\", \"max_tokens\": 50, "
                   "\"temperature\": 0}",
                   index * 17);
    reply r = ask(s, "/v1/completions", NULL, body);
    char *text = hh_strdup(choice_text(&r, 0));
    release_reply(&r);
    hh_free(body);
    return text;
}

static void *behave(void *context) {
    stream *w = context;
    while (!atomic_load(&over)) {
        char *text = ask_well(w->index);
        if (strcmp(text, w->alone)) atomic_fetch_add(&n_different, 1);
        hh_free(text);
    }
    return NULL;
}

/* 60 ids with the bad one at 40. */
static void bad_prompt(hh_buf *body) {
    for (int i = 0; i < 60; i++) hh_buf_printf(body, "%s%d", i ? ", " : "", i == 40 ? BAD_ID : 300 + i);
}

static void expect_failure(const char *body, int status, const char *position) {
    reply r = ask(s, "/v1/completions", NULL, body);
    if (r.status != status || !strstr(r.body.data, "not finite") || !strstr(r.body.data, position) ||
        !strstr(r.body.data, "layer 0"))
        fail_msg("%s: %d %s", body, r.status, r.body.data);
    release_reply(&r);
}

static void one_request_fails(void **state) {
    (void)state;
    stream w[STREAMS];
    hh_buf read = {0}, streamed = {0};
    hh_buf_puts(&read, "{\"max_tokens\": 4, \"prompt\": [");
    bad_prompt(&read);
    hh_buf_add(&streamed, read.data, read.len);
    hh_buf_puts(&read, "]}");
    hh_buf_puts(&streamed, "], \"stream\": true}");
    char *drawn = hh_sprintf("{\"prompt\": [300, 301, 302], \"max_tokens\": 9, \"temperature\": 0, "
                             "\"logit_bias\": {\"%d\": 100}}",
                             BAD_ID);
    for (int i = 0; i < STREAMS; i++) {
        w[i] = (stream){.index = i, .alone = ask_well(i)};
        assert_true(strlen(w[i].alone) > 20);
    }
    for (int i = 0; i < STREAMS; i++) pthread_create(&w[i].thread, NULL, behave, &w[i]);
    for (int i = 0; i < 8; i++) {
        expect_failure(read.data, 500, "position 40");
        expect_failure(streamed.data, 200, "position 40"); /* it had begun: an event of the stream says it */
        expect_failure(drawn, 500, "position 3");          /* in one pass with the tokens of the others */
    }
    atomic_store(&over, true);
    for (int i = 0; i < STREAMS; i++) pthread_join(w[i].thread, NULL);
    assert_int_equal(atomic_load(&n_different), 0);
    for (int i = 0; i < STREAMS; i++) { /* and in the slots where it happened */
        char *text = ask_well(i);
        assert_string_equal(text, w[i].alone);
        hh_free(text);
        hh_free(w[i].alone);
    }
    hh_free(drawn);
    hh_buf_release(&read);
    hh_buf_release(&streamed);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_request_fails)};
    return cmocka_run_group_tests_name("a value that is not finite", tests, start, stop);
}
