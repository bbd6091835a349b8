/* Byte-pair encoding of one word: bytes become tokens, then the pair of lowest rank merges, leftmost first, until none
 * is left. */
#ifndef HH_TEXT_BPE_H
#define HH_TEXT_BPE_H

#include "text/tokenizer.h"
#include "text/vocab.h"

typedef struct hh_merge {
    uint64_t pair; /* left id << 32 | right id; HH_NO_PAIR: an empty slot */
    int32_t rank, id;
} hh_merge;

#define HH_NO_PAIR UINT64_MAX

typedef struct hh_bpe {
    int32_t byte_id[256]; /* -1: the vocabulary has no token for this byte */
    int32_t unknown;      /* what stands for such a byte; -1: nothing, it is dropped, as Hugging Face tokenizers does */
    bool fuse_unknown;    /* neighbouring unknown bytes give one token */
    bool ignore_merges;   /* a word that is a token is that token, whatever the merges say */
    hh_merge *merges;     /* open addressing, [n_slots], a power of two */
    size_t n_slots, n_used;
} hh_bpe;

/* Takes the single bytes from the vocabulary; `n_merges` is how many hh_bpe_add will follow at most. */
void hh_bpe_init(hh_bpe *b, const hh_vocab *v, size_t n_merges);
/* left and right give id at this rank. A pair that is given twice has its last rank. */
void hh_bpe_add(hh_bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);
void hh_bpe_release(hh_bpe *b);

/* What one call of encode keeps while it runs: room for long words and the words it has met. Zeroed is valid. */
typedef struct hh_bpe_scratch {
    struct hh_cached_word *cache; /* [n_cached], a power of two; NULL: no cache */
    size_t n_cached;
    void *room; /* arrays of a long word */
    size_t room_bytes;
} hh_bpe_scratch;

/* A cache fit for a text of this many bytes. */
void hh_bpe_scratch_init(hh_bpe_scratch *s, size_t text_bytes);
void hh_bpe_scratch_release(hh_bpe_scratch *s);

/* Appends the tokens of a word (any bytes, n >= 0). Time n log n. */
void hh_bpe_encode(const hh_bpe *b, const hh_vocab *v, hh_bpe_scratch *s, const char *word, size_t n, hh_ids *out);

#endif
