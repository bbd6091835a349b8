/* Training documents that ask for retrieval: needles (a key and a value) hidden in running text, questions at the end.
 *
 * The plain form asks for 7-digit values, in two wordings: RULER's own with one question, and a compact one with up to three, both with one, two or four needles,
 * as the pretraining mixture of `nano` has them. Keys are two words joined by '-'. With all forms there are also UUIDs as
 * values and keys, several values of a key, one question for several keys, and needles among nothing but needles, as
 * RULER's eight tasks have them. Nothing that evaluation asks for
 * occurs here: key words and values are split by a hash (hh_needle_word_held_out, hh_needle_value_held_out), and the
 * haystack is the caller's training text. A document depends on (seed, index, length) only, so that a resumed run sees
 * the same ones; a generator is immutable and may be shared by threads.
 */
#ifndef HH_DATA_NEEDLE_DOCS_H
#define HH_DATA_NEEDLE_DOCS_H
#include "text/tokenizer.h"

typedef struct hh_needle_docs hh_needle_docs;
typedef struct hh_needle_docs_options {
    const char *haystack; /* text, copied; NULL: the shipped training excerpt */
    size_t haystack_len;
    const char *const *words; /* key words, copied; NULL: the haystack's own (4 to 9 letters, of middle frequency) */
    int64_t n_words;
    double compact_share; /* share of documents in the compact wording, 0..1; 0.5 is nano's mixture */
    bool all_forms;       /* all of RULER's forms, not the plain one alone */
    uint64_t seed;
} hh_needle_docs_options;
/* HH_EINVAL when the haystack has too few sentences or words, with the numbers. */
hh_code hh_needle_docs_new(hh_needle_docs **out, const hh_tokenizer *t, const hh_needle_docs_options *o, hh_error *err);
/* Appends document `index`, exactly `length` tokens; it ends with an answer and a full stop. answer (may be NULL) gets
 * as many entries, 1 where the token is one of an answer's value. HH_EINVAL when not even one needle and its question
 * fit. */
hh_code hh_needle_docs_get(const hh_needle_docs *d, int64_t index, int64_t length, hh_ids *ids, hh_ids *answer,
                           hh_error *err);
void hh_needle_docs_free(hh_needle_docs *d);

/* One word in eight and one value in eight are never trained on: the task niah_book asks for these. */
bool hh_needle_word_held_out(const char *word);
bool hh_needle_value_held_out(const char *digits);
#endif
