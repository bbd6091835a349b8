/* How fast text becomes ids on one thread: bench_tokenizer [MODEL [FILE [DOCUMENT_BYTES]]]. The file (plain or .gz;
 * nano's own text when none is given) is cut into documents at spaces; the best of five rounds counts, in the thread's
 * processor time. tools/bench_tokenizers.py does the same with Hugging Face tokenizers and prints the ratio. */
#include "data/corpus.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int fail(const hh_error *err) {
    fprintf(stderr, "bench_tokenizer: %s\n", err->text);
    return 1;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* End of the document that begins at `at`: the first space behind `size` bytes. */
static size_t find_end(const char *text, size_t n, size_t at, size_t size) {
    if (n - at <= size) return n;
    at += size;
    while (at < n && text[at] != ' ') at++;
    return at;
}

int main(int argc, char **argv) {
    const char *model = argc > 1 ? argv[1] : "models/nano",
               *file = argc > 2 ? argv[2] : "models/nano/text_valid.txt.gz";
    size_t size = argc > 3 ? strtoul(argv[3], NULL, 10) : 10000, n;
    hh_error err = {0};
    hh_tokenizer *t;
    char *text;
    double start = now(), best = 1e30;
    if (hh_tokenizer_open(&t, model, &err) != HH_OK) return fail(&err);
    double opened = now() - start;
    if (hh_text_read(file, &text, &n, &err) != HH_OK) return fail(&err);
    long long n_ids = 0;
    for (int round = 0; round < 5; round++) {
        n_ids = 0;
        start = now();
        for (size_t at = 0, end; at < n; at = end) {
            hh_ids ids = {0};
            end = find_end(text, n, at, size);
            if (hh_tokenizer_encode(t, text + at, end - at, HH_ENCODE_PLAIN, &ids, &err) != HH_OK) return fail(&err);
            n_ids += ids.len;
            hh_ids_release(&ids);
        }
        double seconds = now() - start;
        if (seconds < best) best = seconds;
    }
    printf("encode %s: %.2f MB/s (documents of %zu bytes, one thread), %lld ids of %zu bytes, opened in %.3f s\n",
           model, (double)n / best / 1e6, size, n_ids, n, opened);
    hh_free(text);
    hh_tokenizer_close(t);
    return 0;
}
