/* The inside of a needle generator, shared by sampling (needle.c) and counterfactual pairs (needle_pairs.c). */
#ifndef HH_DATA_NEEDLE_MAKE_H
#define HH_DATA_NEEDLE_MAKE_H
#include "base/rng.h"
#include "data/haystack.h"
#include "data/needle.h"
#include "data/ruler_words.h"

#define HH_MAX_NEEDLES 4

typedef enum hh_needle_kind {
    HH_KIND_NUMBERS,
    HH_KIND_WORDS,
    HH_KIND_UUIDS,
    HH_KIND_BOOK_WORDS,
    HH_KIND_BOOK_NUMBERS
} hh_needle_kind;
typedef enum hh_haystack_kind {
    HH_HAYSTACK_NOISE,
    HH_HAYSTACK_ESSAY,
    HH_HAYSTACK_NEEDLES,
    HH_HAYSTACK_BOOK
} hh_haystack_kind;

typedef struct hh_needle_setting {
    const char *name;
    hh_haystack_kind haystack;
    hh_needle_kind key, value;
    int n_keys, n_values, n_asked; /* keys; values of each key; keys asked for */
} hh_needle_setting;

/* What one prompt was made of. */
typedef struct hh_needle_draw {
    char key[HH_MAX_NEEDLES][96], value[HH_MAX_NEEDLES][40]; /* value [n_keys * n_values] */
    int64_t asked[HH_MAX_NEEDLES];
    double depth; /* of the first asked key's first needle */
} hh_needle_draw;

struct hh_needles {
    const hh_tokenizer *t;
    const hh_needle_setting *setting;
    int64_t length;
    uint32_t seed;
    hh_haystack hay;      /* essays, books */
    hh_ruler_words words; /* RULER's keys */
    char **book_word;     /* [n_book_words] held-out words of the haystack */
    int64_t n_book_words;
    hh_mt mt, spare, place; /* the samples' draws; those of pairs; those of first_word */
    int64_t step, reserve;  /* units by which a haystack shrinks; tokens kept for the answer */
    int64_t units;          /* of the haystack */
    int64_t first_word;     /* of the haystack; RULER always begins at the first */
    bool anywhere;          /* it is drawn for each prompt */
    bool tight;             /* each prompt is filled by itself */
    hh_needle_draw last;    /* of the last prompt */
    hh_buf prompt;
    hh_ids ids; /* scratch of hh_needle_count */
};

/* A key or a value of kind k. */
void hh_needle_draw_text(const hh_needles *n, hh_mt *mt, hh_needle_kind k, char *out, size_t size);
/* Tokens of a text. */
hh_code hh_needle_count(hh_needles *n, const char *text, size_t len, int64_t *count, hh_error *err);
/* RULER's words, appended to out, for values that are numbers or UUIDs, one or several in answer.
 * "One of the special magic numbers for KEY is: VALUE." */
void hh_needle_sentence(bool uuids, const char *key, const char *value, hh_buf *out);
/* "A special magic number is hidden within the following text. ..." and a line's end. */
void hh_needle_head(bool uuids, bool several, hh_buf *out);
/* A line's end and "What is the special magic number for KEY mentioned in the provided text? The special magic number
 * for KEY mentioned in the provided text is", of n keys. */
void hh_needle_question(bool uuids, bool several, const char *const *key, int n, hh_buf *out);
#endif
