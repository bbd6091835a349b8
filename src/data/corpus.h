/* Text on its way to tokens: documents of a text file, and token shards made once beside it. */
#ifndef HH_DATA_CORPUS_H
#define HH_DATA_CORPUS_H
#include "text/tokenizer.h"
/* Reads a text file (plain or .gz) whole; documents end with a line "<|endoftext|>". Owned by the caller (hh_free). */
hh_code hh_text_read(const char *path, char **text, size_t *len, hh_error *err);
/* A token shard: every document's ids with the tokenizer's end id behind each, mapped from a cache file in `dir` that is made on first
 * use (keyed by path, size, time and tokenizer) and refused when damaged. */
typedef struct hh_shard {
    const int32_t *ids;
    int64_t n;
    void *impl;
} hh_shard;
hh_code hh_shard_open(hh_shard *out, const char *text_path, const hh_tokenizer *t, const char *dir, hh_error *err);
void hh_shard_close(hh_shard *s);
#endif
