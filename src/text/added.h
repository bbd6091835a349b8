/* Added tokens: strings that are found in the text before anything else is done to it, longest first, as Hugging Face
 * tokenizers does. */
#ifndef HH_TEXT_ADDED_H
#define HH_TEXT_ADDED_H

#include "base/memory.h"

typedef struct hh_added_token {
    char *text; /* what is looked for: the content, or its normal form when `normalized` */
    size_t len;
    int32_t id;
    bool special, normalized; /* normalized: looked for in the normalised text */
    bool single_word;         /* only between characters that are no part of a word */
    bool lstrip, rstrip;      /* takes the white space before, after it along */
} hh_added_token;

/* Tokens sorted by text, so that those with a common beginning are neighbours. */
typedef struct hh_added_set {
    hh_added_token *tokens;
    size_t n, capacity;
    bool begins[256];   /* bytes that a token begins with */
    bool any_plain;     /* one is not special */
    void *word_pattern; /* hh_regex of a word character when a token is single_word */
} hh_added_set;

void hh_added_push(hh_added_set *a, const char *text, size_t len, hh_added_token flags);
/* Sorts; to be called once, after the last push. A text given twice counts once (the first). */
hh_code hh_added_finish(hh_added_set *a, hh_error *err);
void hh_added_release(hh_added_set *a);

/* What lies between tokens, then the token: text[lo, hi) and an id, -1 for text. */
typedef struct hh_added_span {
    size_t lo, hi;
    int32_t id;
} hh_added_span;

/* Where the search stands. Zeroed before the first call. */
typedef struct hh_added_cursor {
    size_t at, done;       /* search goes on at `at`; text before `done` has been given out */
    hh_added_span pending; /* the token after the text that was given out */
    bool has_pending;
} hh_added_cursor;

/* The next span of text[0, n); false at the end. Special tokens are passed over unless `special`. */
bool hh_added_next(const hh_added_set *a, hh_added_cursor *c, const char *text, size_t n, bool special,
                   hh_added_span *out);

#endif
