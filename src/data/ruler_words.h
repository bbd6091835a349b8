/* RULER's keys: every "adjective-noun" of wonderwords' lists, sorted by bytes, without six million strings in memory.
 */
#ifndef HH_DATA_RULER_WORDS_H
#define HH_DATA_RULER_WORDS_H
#include "base/memory.h"

extern const int hh_ruler_n_adjectives, hh_ruler_n_nouns;
extern const char *const hh_ruler_adjectives[]; /* each with '-' behind it */
extern const char *const hh_ruler_nouns[];

/* Keys [first, first + n) are one adjective with nouns [noun, noun + n). "blue-eyed-..." stands among "blue-...", so
 * that an adjective may have several segments. */
typedef struct hh_ruler_segment {
    int64_t first;
    int32_t adjective, noun, n;
} hh_ruler_segment;
typedef struct hh_ruler_words {
    hh_ruler_segment *segment;
    int64_t n_segments, n; /* n: keys */
} hh_ruler_words;
void hh_ruler_words_init(hh_ruler_words *w);
void hh_ruler_words_release(hh_ruler_words *w);
/* Appends key i, 0 <= i < w->n. */
void hh_ruler_words_get(const hh_ruler_words *w, int64_t i, hh_buf *out);
#endif
