/* Text on its way to tokens: documents of a text file, token shards made once beside it, and batches drawn from a
 * mixture. */
#ifndef HH_DATA_CORPUS_H
#define HH_DATA_CORPUS_H
#include "base/options.h"
#include "data/needle_docs.h"
#include "text/tokenizer.h"

/* Reads a text file (plain or .gz) whole; documents end with a line "<|endoftext|>". Owned by the caller (hh_free). */
hh_code hh_text_read(const char *path, char **text, size_t *len, hh_error *err);
/* The shipped book excerpts, for training and default calibration, or (`valid`) for evaluation haystacks:
 * models/nano/text_*.txt.gz. */
hh_code hh_text_shipped(bool valid, char **text, size_t *len, hh_error *err);
/* The same file's path, owned by the caller: looked for where the shipped model is (HYDRAHEAD_MODELS, the working
 * directory, above the program). */
char *hh_text_shipped_path(bool valid);

/* A token shard: every document's ids with the tokenizer's end id behind each, mapped from a cache file in `dir` that
 * is made on first use (keyed by path, size, time and tokenizer) and refused when damaged. `dir` NULL: nothing is
 * cached, the ids live in memory. */
typedef struct hh_shard {
    const int32_t *ids;
    int64_t n;
    void *impl;
} hh_shard;
hh_code hh_shard_open(hh_shard *out, const char *text_path, const hh_tokenizer *t, const char *dir, hh_error *err);
void hh_shard_close(hh_shard *s);

/* A mixture of text files and needle documents. Row `row` of step `step` depends on (seed, step, row, n_rows, length)
 * only: a run that resumes sees the same batches. Within a step the sources have their exact share of the rows, but for
 * rounding. A row of text is a window at a random place of the file's documents laid end to end; a row of the needle
 * source is one needle document. */
typedef struct hh_mixture hh_mixture;
typedef struct hh_mixture_options {
    const char *const *files; /* [n_files] "FILE" or "FILE=weight"; weights are relative, 1 when not given */
    int64_t n_files;
    double needles;        /* weight of needle documents on the same scale; 0: none */
    bool all_forms;        /* of needle documents (data/needle_docs.h) */
    const char *cache_dir; /* for shards; NULL: in memory */
    uint64_t seed;
} hh_mixture_options;
hh_code hh_mixture_new(hh_mixture **out, const hh_tokenizer *t, const hh_mixture_options *o, hh_error *err);
void hh_mixture_free(hh_mixture *m);

enum {
    HH_TOKEN_STARTS = 1 /* first token of a document or of the row */,
    HH_TOKEN_ANSWER = 2 /* of a needle's answer */
};
/* Fills ids[length] and flags[length] (may be NULL). Safe from several threads. */
hh_code hh_mixture_row(const hh_mixture *m, int64_t step, int64_t row, int64_t n_rows, int64_t length, int32_t *ids,
                       uint8_t *flags, hh_error *err);
#endif
