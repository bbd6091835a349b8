/* Several continuations of one text at once, each step one pass over the weights: batch [MODEL [TEXT [TOKENS]]] */
#include <hydrahead.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 4 };

static hh_error err;

static void check(hh_code code) {
    if (code == HH_OK) return;
    fprintf(stderr, "batch: %s\n", err.text);
    exit(1);
}

int main(int argc, char **argv) {
    const char *model = argc > 1 ? argv[1] : "nano", *text = argc > 2 ? argv[2] : "The grass is green.";
    const int64_t most = argc > 3 ? atoi(argv[3]) : 20;
    hh_engine *engine;
    hh_sequence *sequence[N];
    hh_sampler *sampler[N];
    int32_t *ids, *made[N], next[N];
    int64_t n;

    check(hh_engine_open(&engine, model, NULL, &err));
    check(hh_engine_tokenize(engine, text, strlen(text), false, &ids, &n, &err));
    for (int i = 0; i < N; i++) {
        check(hh_sequence_new(&sequence[i], engine, n + most, &err));
        check(hh_sampler_new(&sampler[i], engine, &(hh_sampler_options){.temperature = 1, .seed = (uint64_t)i}, &err));
        check(hh_sequence_prompt(sequence[i], ids, n, &err)); /* the first is read, the others find it known */
        made[i] = malloc((size_t)most * sizeof *made[i] + 1);
        if (!made[i]) return 1;
    }
    for (int64_t t = 0; t < most; t++) {
        for (int i = 0; i < N; i++) made[i][t] = next[i] = hh_sampler_draw(sampler[i], hh_sequence_logits(sequence[i]));
        check(hh_sequences_step(sequence, next, N, NULL, &err));
    }
    for (int i = 0; i < N; i++) {
        char *more;
        size_t len;
        check(hh_engine_detokenize(engine, made[i], most, false, &more, &len, &err));
        printf("%d (%lld of %lld tokens reused): %s%s\n", i, (long long)hh_sequence_reused(sequence[i]), (long long)n,
               text, more);
        hh_memory_free(more);
        free(made[i]);
        hh_sampler_free(sampler[i]);
        hh_sequence_free(sequence[i]);
    }
    hh_memory_free(ids);
    hh_engine_close(engine);
    return 0;
}
