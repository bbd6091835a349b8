/* Added tokens; see added.h. */
#include "text/added.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* A word character in the sense of Unicode's UTS 18. */
#define WORD_CHARACTER "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]"

void hh_added_push(hh_added_set *a, const char *text, size_t len, hh_added_token flags) {
    if (a->n == a->capacity) {
        a->capacity = a->capacity ? a->capacity * 2 : 32;
        a->tokens = hh_realloc(a->tokens, a->capacity * sizeof *a->tokens);
    }
    flags.text = hh_alloc(len + 1);
    flags.len = len;
    if (len) memcpy(flags.text, text, len);
    a->tokens[a->n++] = flags;
}

static int compare_text(const hh_added_token *a, const hh_added_token *b) {
    size_t n = a->len < b->len ? a->len : b->len;
    int c = memcmp(a->text, b->text, n);
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

typedef struct ordered {
    hh_added_token token;
    size_t order;
} ordered;

static int compare_ordered(const void *a, const void *b) {
    const ordered *x = a, *y = b;
    int c = compare_text(&x->token, &y->token);
    return c ? c : (x->order > y->order) - (x->order < y->order);
}

hh_code hh_added_finish(hh_added_set *a, hh_error *err) {
    ordered *all = hh_alloc((a->n + 1) * sizeof *all);
    for (size_t i = 0; i < a->n; i++) all[i] = (ordered){a->tokens[i], i};
    qsort(all, a->n, sizeof *all, compare_ordered);
    size_t kept = 0;
    bool single_word = false;
    for (size_t i = 0; i < a->n; i++) {
        hh_added_token t = all[i].token;
        if (t.len == 0 || (kept && compare_text(&a->tokens[kept - 1], &t) == 0)) {
            hh_free(t.text);
            continue;
        }
        a->begins[(uint8_t)t.text[0]] = true;
        if (!t.special) a->any_plain = true;
        if (t.single_word) single_word = true;
        a->tokens[kept++] = t;
    }
    a->n = kept;
    hh_free(all);
    if (!single_word) return HH_OK;
    hh_regex *word = NULL;
    HH_TRY(hh_regex_compile_native(&word, WORD_CHARACTER, err));
    a->word_pattern = word;
    return HH_OK;
}

void hh_added_release(hh_added_set *a) {
    for (size_t i = 0; i < a->n; i++) hh_free(a->tokens[i].text);
    hh_free(a->tokens);
    hh_regex_free(a->word_pattern);
    *a = (hh_added_set){0};
}

/* The longest token that begins at text[at]; NULL: none. Narrows the sorted tokens to those that agree, byte by byte.
 */
static const hh_added_token *match_at(const hh_added_set *a, const char *text, size_t n, size_t at) {
    const hh_added_token *best = NULL;
    size_t lo = 0, hi = a->n;
    for (size_t depth = 0; at + depth < n && lo < hi; depth++) {
        uint8_t c = (uint8_t)text[at + depth];
        size_t low = lo, high = hi; /* first token whose byte at depth is >= c */
        while (low < high) {
            size_t middle = (low + high) / 2;
            if ((uint8_t)a->tokens[middle].text[depth] < c)
                low = middle + 1;
            else
                high = middle;
        }
        lo = low;
        high = hi; /* first token whose byte is > c */
        while (low < high) {
            size_t middle = (low + high) / 2;
            if ((uint8_t)a->tokens[middle].text[depth] <= c)
                low = middle + 1;
            else
                high = middle;
        }
        hi = low;
        if (lo < hi && a->tokens[lo].len == depth + 1) best = &a->tokens[lo++];
    }
    return best;
}

static bool is_word(const hh_added_set *a, const char *s, size_t n) {
    int32_t cp;
    if (hh_utf8_next(s, n, &cp) != (int)n || cp < 0) return false;
    hh_regex_scratch scratch = {0};
    hh_error err;
    int64_t lo, hi;
    hh_code code = hh_regex_match(a->word_pattern, &scratch, s, n, 0, &lo, &hi, &err);
    hh_regex_scratch_release(&scratch);
    return code == HH_OK && lo >= 0;
}

static bool stands_alone(const hh_added_set *a, const char *text, size_t n, size_t lo, size_t hi) {
    int32_t cp;
    if (lo > 0) {
        size_t before = hh_utf8_back(text, lo, &cp);
        if (is_word(a, text + before, lo - before)) return false;
    }
    return hi == n || !is_word(a, text + hi, (size_t)hh_utf8_next(text + hi, n - hi, &cp));
}

static size_t strip_left(const char *text, size_t at) {
    while (at > 0) {
        int32_t cp;
        size_t before = hh_utf8_back(text, at, &cp);
        if (hh_char_class(cp) != HH_SPACE) break;
        at = before;
    }
    return at;
}

static size_t strip_right(const char *text, size_t n, size_t at) {
    while (at < n) {
        int32_t cp;
        size_t len = (size_t)hh_utf8_next(text + at, n - at, &cp);
        if (hh_char_class(cp) != HH_SPACE) break;
        at += len;
    }
    return at;
}

/* The next token at or after c->at that counts, with the white space it takes; c->at moves behind it. */
static bool find_token(const hh_added_set *a, hh_added_cursor *c, const char *text, size_t n, bool special,
                       hh_added_span *out) {
    while (c->at < n) {
        const hh_added_token *t = a->begins[(uint8_t)text[c->at]] ? match_at(a, text, n, c->at) : NULL;
        if (!t) {
            c->at++;
            continue;
        }
        size_t lo = c->at, hi = c->at + t->len;
        c->at = hi; /* a match that does not count still hides what overlaps it */
        if (t->special && !special) continue;
        if (t->single_word && !stands_alone(a, text, n, lo, hi)) continue;
        if (t->lstrip) {
            size_t stripped = strip_left(text, lo);
            lo = stripped > c->done ? stripped : c->done;
        }
        if (t->rstrip) hi = strip_right(text, n, hi);
        *out = (hh_added_span){lo, hi, t->id};
        return true;
    }
    return false;
}

bool hh_added_next(const hh_added_set *a, hh_added_cursor *c, const char *text, size_t n, bool special,
                   hh_added_span *out) {
    if (c->has_pending) {
        *out = c->pending;
        c->has_pending = false;
        c->done = out->hi;
        return true;
    }
    hh_added_span token;
    if (a->n && (special || a->any_plain) && find_token(a, c, text, n, special, &token)) {
        if (c->done >= token.lo) {
            *out = token;
            c->done = token.hi;
            return true;
        }
        *out = (hh_added_span){c->done, token.lo, -1};
        c->pending = token;
        c->has_pending = true;
        return true;
    }
    if (c->done >= n) return false;
    *out = (hh_added_span){c->done, n, -1};
    c->done = n;
    return true;
}
