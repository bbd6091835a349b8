/* Continues a text: complete [MODEL [TEXT [TOKENS]]] */
#include <hydrahead.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hh_error err;

/* Ends the program when a call has failed. */
static void check(hh_code code) {
    if (code == HH_OK) return;
    fprintf(stderr, "complete: %s\n", err.text);
    exit(1);
}

static int is_end(const hh_engine *engine, int32_t id) {
    int64_t n;
    const int32_t *end = hh_engine_end_tokens(engine, &n);
    for (int64_t i = 0; i < n; i++)
        if (end[i] == id) return 1;
    return 0;
}

int main(int argc, char **argv) {
    const char *model = argc > 1 ? argv[1] : "nano", *text = argc > 2 ? argv[2] : "The grass is green.";
    const int64_t most = argc > 3 ? atoi(argv[3]) : 40;
    const hh_sampler_options options = {.temperature = 0.7, .top_p = 0.95, .seed = 1};
    hh_engine *engine;
    hh_sequence *sequence;
    hh_sampler *sampler;
    int32_t *ids;
    int64_t n;

    check(hh_engine_open(&engine, model, NULL, &err));
    check(hh_engine_tokenize(engine, text, strlen(text), false, &ids, &n, &err));
    check(hh_sequence_new(&sequence, engine, n + most, &err));
    check(hh_sampler_new(&sampler, engine, &options, &err));
    check(hh_sequence_prompt(sequence, ids, n, &err));
    fputs(text, stdout);
    for (int64_t i = 0; i < most; i++) {
        char *piece;
        size_t len;
        const int32_t id = hh_sampler_draw(sampler, hh_sequence_logits(sequence));
        if (id < 0 || is_end(engine, id)) break;
        check(hh_engine_detokenize(engine, &id, 1, false, &piece, &len, &err));
        fwrite(piece, 1, len, stdout);
        fflush(stdout);
        hh_memory_free(piece);
        check(hh_sequences_step(&sequence, &id, 1, NULL, &err));
    }
    putchar('\n');
    hh_memory_free(ids);
    hh_sampler_free(sampler);
    hh_sequence_free(sequence);
    hh_engine_close(engine);
    return 0;
}
