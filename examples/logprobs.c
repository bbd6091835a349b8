/* How likely a text is, token by token, and what was likelier: logprobs [MODEL [TEXT]] */
#include <hydrahead.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hh_error err;

static void check(hh_code code) {
    if (code == HH_OK) return;
    fprintf(stderr, "logprobs: %s\n", err.text);
    exit(1);
}

static void print_token(const hh_engine *engine, int32_t id, float log_probability) {
    char *text;
    size_t len;
    check(hh_engine_detokenize(engine, &id, 1, true, &text, &len, &err));
    printf("  %8.3f '%s'", (double)log_probability, text);
    hh_memory_free(text);
}

int main(int argc, char **argv) {
    const char *model = argc > 1 ? argv[1] : "nano", *text = argc > 2 ? argv[2] : "The grass is green.";
    hh_engine *engine;
    hh_sequence *sequence;
    int32_t *ids, *top_ids;
    float *each, *top;
    int64_t n;
    double sum = 0;

    check(hh_engine_open(&engine, model, NULL, &err));
    check(hh_engine_tokenize(engine, text, strlen(text), false, &ids, &n, &err));
    check(hh_sequence_new(&sequence, engine, n > 0 ? n : 1, &err));
    check(hh_sequence_score(sequence, ids, n, 3, &each, &top_ids, &top, &err));
    for (int64_t i = 0; i < n - 1; i++) {
        print_token(engine, ids[i + 1], each[i]);
        fputs("   likeliest:", stdout);
        for (int64_t t = 0; t < 3; t++) print_token(engine, top_ids[3 * i + t], top[3 * i + t]);
        putchar('\n');
        sum += (double)each[i];
    }
    if (n > 1) printf("perplexity %.3f over %lld tokens\n", exp(-sum / (double)(n - 1)), (long long)(n - 1));
    hh_memory_free(each);
    hh_memory_free(top_ids);
    hh_memory_free(top);
    hh_memory_free(ids);
    hh_sequence_free(sequence);
    hh_engine_close(engine);
    return 0;
}
