/* A dialogue, a line a turn: dialogue MODEL [CACHE_DIR]. Every turn gives the whole conversation, and only what is new of it
 * is read; with a folder for snapshots that is so after a restart, too. */
#include <hydrahead.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 100, CONTEXT = 4096, ANSWER = 512 };

static hh_error err;

static void check(hh_code code) {
    if (code == HH_OK) return;
    fprintf(stderr, "dialogue: %s\n", err.text);
    exit(1);
}

static int is_end(const hh_engine *engine, int32_t id) {
    int64_t n;
    const int32_t *end = hh_engine_end_tokens(engine, &n);
    for (int64_t i = 0; i < n; i++)
        if (end[i] == id) return 1;
    return 0;
}

/* The assistant's answer to ids[0, n); hh_memory_free it. */
static char *answer(hh_engine *engine, hh_sequence *sequence, const int32_t *ids, int64_t n) {
    int32_t made[ANSWER];
    int64_t k = 0;
    char *text;
    size_t len;
    hh_sampler *sampler;
    check(hh_sampler_new(&sampler, engine, &(hh_sampler_options){.temperature = 0.7, .top_p = 0.9}, &err));
    check(hh_sequence_prompt(sequence, ids, n, &err));
    fprintf(stderr, "[%lld of %lld tokens were known]\n", (long long)hh_sequence_reused(sequence), (long long)n);
    while (k < ANSWER && n + k < CONTEXT) {
        const int32_t id = hh_sampler_draw(sampler, hh_sequence_logits(sequence));
        if (id < 0 || is_end(engine, id)) break;
        check(hh_sequences_step(&sequence, &id, 1, NULL, &err));
        made[k++] = id;
    }
    check(hh_engine_detokenize(engine, made, k, false, &text, &len, &err));
    hh_sampler_free(sampler);
    return text;
}

int main(int argc, char **argv) {
    static hh_message turn[TURNS];
    static char line[TURNS][1000];
    int64_t turns = 0;
    hh_engine *engine;
    hh_sequence *sequence;
    if (argc < 2) {
        fprintf(stderr, "dialogue MODEL [CACHE_DIR]\n");
        return 2;
    }
    const hh_engine_options options = {.cache_dir = argc > 2 ? argv[2] : NULL};
    check(hh_engine_open(&engine, argv[1], &options, &err));
    check(hh_sequence_new(&sequence, engine, CONTEXT, &err));
    while (turns + 2 <= TURNS && fgets(line[turns], sizeof line[turns], stdin)) {
        int32_t *ids;
        int64_t n;
        line[turns][strcspn(line[turns], "\n")] = 0;
        turn[turns] = (hh_message){"user", line[turns]};
        check(hh_engine_chat(engine, turn, ++turns, &ids, &n, &err));
        turn[turns] = (hh_message){"assistant", answer(engine, sequence, ids, n)};
        puts(turn[turns++].content);
        hh_memory_free(ids);
    }
    for (bool done = false; !done;) check(hh_engine_write_snapshot(engine, &done, &err));
    for (int64_t i = 1; i < turns; i += 2) hh_memory_free((char *)turn[i].content);
    hh_sequence_free(sequence);
    hh_engine_close(engine);
    return 0;
}
