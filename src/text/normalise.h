/* The normalizer of a tokenizer file: a list of steps over the text. */
#ifndef HH_TEXT_NORMALISE_H
#define HH_TEXT_NORMALISE_H

#include "text/regex.h"
#include "text/unicode.h"

typedef enum hh_normalise_kind { HH_NORMALISE_UNICODE, HH_NORMALISE_REPLACE, HH_NORMALISE_PREPEND } hh_normalise_kind;

typedef struct hh_normalise_step {
    hh_normalise_kind kind;
    hh_normal_form form; /* UNICODE */
    char *pattern;       /* REPLACE: a string; NULL: regex */
    hh_regex *regex;     /* REPLACE */
    char *content;       /* REPLACE: what comes instead; PREPEND: what comes before a text that is not empty */
} hh_normalise_step;

enum { HH_NORMALISE_MAX_STEPS = 16 };

typedef struct hh_normaliser {
    hh_normalise_step steps[HH_NORMALISE_MAX_STEPS];
    int n_steps;
} hh_normaliser;

/* Appends a step, which the normaliser then owns (also on failure). */
hh_code hh_normaliser_add(hh_normaliser *n, hh_normalise_step step, const char *path, hh_error *err);
void hh_normaliser_release(hh_normaliser *n);

/* *out is the normalised text: the text itself when nothing changes it, else in `room` (cleared first). Any bytes are
 * taken. */
hh_code hh_normalise(const hh_normaliser *n, hh_regex_scratch *scratch, const char **out, size_t *out_len, hh_buf *room,
                     const char *text, size_t len, hh_error *err);

/* A copy of text with every invalid byte replaced by a control character, in `room`; the text itself when all is valid.
 */
const char *hh_shadow(const char *text, size_t n, hh_buf *room);

#endif
