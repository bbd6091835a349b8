/* Running text to hide needles in: words with single spaces between them, where sentences begin, and words fit for
 * keys. */
#ifndef HH_DATA_HAYSTACK_H
#define HH_DATA_HAYSTACK_H
#include "base/memory.h"

typedef struct hh_haystack {
    char *text; /* all white space (Unicode's too) is one space each; no document marks */
    size_t len;
    size_t *word; /* [n_words + 1] where each word begins; the last entry is len + 1 */
    int64_t n_words;
} hh_haystack;
void hh_haystack_init(hh_haystack *h, const char *text, size_t len); /* copies */
void hh_haystack_release(hh_haystack *h);
/* Appends n words from word `first`, round and round. h->n_words > 0. */
void hh_haystack_take(const hh_haystack *h, int64_t first, int64_t n, hh_buf *out);

/* Offsets at which the sentences of text[0, len) begin (single spaces between words); *starts is owned by the caller
 * and has one more entry, len + 1. Returns their number. A sentence ends at . ! or ? with closing quotes or brackets
 * behind it, but not at a title or an initial. */
int64_t hh_sentences(const char *text, size_t len, size_t **starts);

/* Words of 4 to 9 small letters, by frequency, the 300 commonest left out, at most 5700; of these the held-out ones
 * (needle_docs.h) or the others. One block owned by the caller (hh_free). */
char **hh_haystack_key_words(const hh_haystack *h, bool held_out, int64_t *n);
#endif
