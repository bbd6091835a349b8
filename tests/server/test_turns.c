/* Turns of a dialogue: what was read is not read again, by a dense model and by a hybrid, and neither after a restart; the
 * answers are those of a server that keeps nothing. What is damaged or of another model is not used. */
#include "support/http_client.h"
#include "support/zoo.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const models[] = {"nano", "hybrid_default"};

static const char *path_of(const char *model) {
    return strcmp(model, "nano") ? zoo_directory(zoo_case(model)) : model;
}

static server serve(const char *model, const char *cache_dir, const char *cache_bytes) {
    return start_server_of(path_of(model), (const char *const[]){"--dtype", "f32", "-t", "1", "--ctx", "1024",
                                                                 "--slots", "2", "--cache-bytes", cache_bytes,
                                                                 cache_dir ? "--cache-dir" : NULL, cache_dir, NULL});
}

/* Tokens of a dialogue: [lo, hi) of text number `kind`. */
typedef struct piece {
    int kind, lo, hi;
} piece;

static void put_prompt(hh_buf *body, const piece *p) {
    for (; p->hi; p++)
        for (int i = p->lo; i < p->hi; i++)
            hh_buf_printf(body, "%s%d", body->data[body->len - 1] == '[' ? "" : ", ",
                          (i * i * 31 + i * 7 + 3 + p->kind * (i % 13 + 11)) % 97);
}

/* Asks for five tokens behind the pieces. The log-probabilities of what was chosen among, and how much was known. */
static char *turn(server s, const piece *p, json_int_t *cached) {
    hh_buf body = {0};
    hh_buf_puts(&body, "{\"max_tokens\": 5, \"temperature\": 0, \"logprobs\": 3, \"prompt\": [");
    put_prompt(&body, p);
    hh_buf_puts(&body, "]}");
    reply r = ask(s, "/v1/completions", NULL, body.data);
    if (r.status != 200) fail_msg("%s", r.body.data);
    const json_t *usage = json_object_get(json_object_get(r.json, "usage"), "prompt_tokens_details"),
                 *choice = json_array_get(json_object_get(r.json, "choices"), 0);
    *cached = json_integer_value(json_object_get(usage, "cached_tokens"));
    char *text = json_dumps(json_object_get(choice, "logprobs"), JSON_SORT_KEYS), *copy = hh_strdup(text);
    free(text);
    release_reply(&r);
    hh_buf_release(&body);
    return copy;
}

#define TURN(...) ((const piece[]){__VA_ARGS__, {0, 0, 0}})

static const struct {
    const char *what;
    const piece *pieces;
    int dense, hybrid; /* tokens known at least */
} dialogue[] = {
    {"the first turn", TURN({0, 0, 300}), 0, 0},
    {"the same again", TURN({0, 0, 300}), 300, 300},
    {"a second turn", TURN({0, 0, 300}, {1, 0, 90}), 256, 256},
    {"a third", TURN({0, 0, 300}, {1, 0, 90}, {2, 0, 70}), 384, 384},
    {"the second regenerated", TURN({0, 0, 300}, {1, 0, 90}), 390, 390},
    {"another second turn, a branch", TURN({0, 0, 300}, {3, 0, 100}), 256, 256},
    {"the first branch once more", TURN({0, 0, 300}, {1, 0, 90}, {2, 0, 70}), 460, 460},
    {"an edit of the first turn", TURN({0, 0, 280}, {4, 0, 100}), 256, 256},
    {"an edit of its beginning", TURN({5, 0, 20}, {0, 20, 300}), 0, 0},
};
enum { TURNS = sizeof dialogue / sizeof *dialogue };

static void a_turn_reads_only_what_is_new(void **state) {
    (void)state;
    for (int m = 0; m < 2; m++) {
        char *name = hh_sprintf("cache-%s", models[m]);
        const char *dir = temp_path(name);
        server forgetful = serve(models[m], NULL, "0"), s = serve(models[m], dir, "1e8");
        char *expected[TURNS];
        json_int_t cached;
        for (int i = 0; i < TURNS; i++) expected[i] = turn(forgetful, dialogue[i].pieces, &cached);
        for (int round = 0; round < 2; round++) { /* the second round: by a server that has read nothing itself */
            for (int i = 0; i < TURNS; i++) {
                char *got = turn(s, dialogue[i].pieces, &cached);
                const int least = m ? dialogue[i].hybrid : dialogue[i].dense;
                if (cached < least || (!round && !least && cached))
                    fail_msg("%s, %s: %d tokens known, not %d", models[m], dialogue[i].what, (int)cached, least);
                if (round && cached < 64)
                    fail_msg("%s, %s: nothing known after a restart", models[m], dialogue[i].what);
                if (strcmp(got, expected[i]))
                    fail_msg("%s, %s: %s is not %s", models[m], dialogue[i].what, got, expected[i]);
                hh_free(got);
            }
            assert_int_equal(stop_server(s), 0);
            if (!round) s = serve(models[m], dir, "1e8");
        }
        for (int i = 0; i < TURNS; i++) hh_free(expected[i]);
        assert_int_equal(stop_server(forgetful), 0);
        hh_free(name);
    }
}

/* Changes a byte in the middle of every file of a folder. */
static int damage(const char *dir) {
    DIR *d = opendir(dir);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        char *path = hh_sprintf("%s/%s", dir, e->d_name);
        FILE *f = fopen(path, "r+b");
        fseek(f, 0, SEEK_END);
        const long middle = ftell(f) / 2;
        fseek(f, middle, SEEK_SET);
        const int byte = fgetc(f);
        fseek(f, middle, SEEK_SET);
        fputc(byte ^ 0x55, f);
        fclose(f);
        hh_free(path);
        n++;
    }
    if (d) closedir(d);
    return n;
}

static void damaged_and_foreign_snapshots_are_not_used(void **state) {
    (void)state;
    const char *dir = temp_path("cache-damaged");
    json_int_t cached;
    server s = serve("nano", dir, "1e8");
    char *expected = turn(s, dialogue[0].pieces, &cached);
    assert_int_equal(stop_server(s), 0);
    s = serve("hybrid_default", dir, "1e8"); /* another model, the same folder */
    hh_free(turn(s, dialogue[0].pieces, &cached));
    assert_int_equal(cached, 0);
    assert_int_equal(stop_server(s), 0);
    assert_true(damage(dir) > 0);
    s = serve("nano", dir, "1e8");
    char *got = turn(s, dialogue[0].pieces, &cached);
    assert_int_equal(cached, 0);
    assert_string_equal(got, expected);
    assert_int_equal(stop_server(s), 0);
    hh_free(got);
    hh_free(expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_reads_only_what_is_new),
        cmocka_unit_test(damaged_and_foreign_snapshots_are_not_used),
    };
    return cmocka_run_group_tests_name("turns", tests, NULL, NULL);
}
