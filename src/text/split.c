/* Pre-tokenization stage by stage; see split.h.
 *
 * Nothing is collected: a stage hands each piece on to the next as soon as its end is known, the last one to the
 * caller.
 */
#include "text/split.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include <string.h>

typedef struct split_run {
    const hh_splitter *s;
    hh_regex_scratch *scratch;
    hh_split_word *word;
    void *context;
    hh_error *err;
} split_run;

typedef struct piece {
    const char *text, *shadow;
    size_t n;
} piece;

static hh_code run_stage(const split_run *r, int stage, piece p);

static hh_code pass_on(const split_run *r, int stage, piece p, size_t lo, size_t hi) {
    if (hi <= lo) return HH_OK;
    piece part = {p.text + lo, p.shadow + lo, hi - lo};
    if (stage + 1 < r->s->n_stages) return run_stage(r, stage + 1, part);
    r->word(r->context, part.text, part.n);
    return HH_OK;
}

/* Groups matches and what lies between them as the behaviour says. */
typedef struct grouping {
    const split_run *r;
    int stage;
    piece p;
    size_t lo, hi;             /* the group that is still open */
    bool open, previous_match; /* previous_match: the last span was a match */
} grouping;

static hh_code close_group(grouping *g) {
    if (!g->open) return HH_OK;
    g->open = false;
    return pass_on(g->r, g->stage, g->p, g->lo, g->hi);
}

/* The next span, a match or what lies between two; spans follow each other without a hole. */
static hh_code add_span(grouping *g, size_t lo, size_t hi, bool match) {
    const hh_split_stage *stage = &g->r->s->stages[g->stage];
    if (stage->invert) match = !match;
    bool join = false, keep_open = false;
    switch (stage->behaviour) {
    case HH_SPLIT_ISOLATED:
        break;
    case HH_SPLIT_REMOVED:
        if (match) return HH_OK;
        break;
    case HH_SPLIT_MERGED_PREV:
        join = match && !g->previous_match;
        keep_open = true;
        break;
    case HH_SPLIT_MERGED_NEXT:
        join = !match && g->previous_match;
        keep_open = match;
        break;
    case HH_SPLIT_CONTIGUOUS:
        join = match == g->previous_match;
        keep_open = true;
        break;
    }
    g->previous_match = match;
    if (join && g->open) {
        g->hi = hi;
    } else {
        HH_TRY(close_group(g));
        g->lo = lo;
        g->hi = hi;
        g->open = true;
    }
    return keep_open ? HH_OK : close_group(g);
}

static hh_code find_digit(const char *text, size_t n, size_t at, int64_t *lo, int64_t *hi) {
    *lo = -1;
    while (at < n) {
        int32_t cp;
        size_t len = (size_t)hh_utf8_next(text + at, n - at, &cp);
        if (hh_char_class(cp) == HH_NUMBER) {
            *lo = (int64_t)at;
            *hi = (int64_t)(at + len);
            break;
        }
        at += len;
    }
    return HH_OK;
}

static hh_code find_match(const split_run *r, const hh_split_stage *stage, piece p, size_t at, int64_t *lo,
                          int64_t *hi) {
    if (stage->kind == HH_SPLIT_DIGITS) return find_digit(p.shadow, p.n, at, lo, hi);
    if (stage->kind == HH_SPLIT_STRING) {
        size_t len = strlen(stage->string);
        const char *found = memmem(p.text + at, p.n - at, stage->string, len);
        *lo = found ? found - p.text : -1;
        *hi = *lo + (int64_t)len;
        return HH_OK;
    }
    return hh_regex_match(stage->regex, r->scratch, p.shadow, p.n, at, lo, hi, r->err);
}

static hh_code run_pattern(const split_run *r, int stage_index, piece p) {
    const hh_split_stage *stage = &r->s->stages[stage_index];
    if (stage->scan) {
        for (size_t at = 0, end; at < p.n; at = end) {
            end = stage->scan(p.shadow, p.n, at);
            HH_TRY(pass_on(r, stage_index, p, at, end));
        }
        return HH_OK;
    }
    grouping g = {.r = r, .stage = stage_index, .p = p};
    for (size_t at = 0; at < p.n;) {
        int64_t lo, hi;
        HH_TRY(find_match(r, stage, p, at, &lo, &hi));
        size_t begin = lo < 0 ? p.n : (size_t)lo;
        if (begin > at) HH_TRY(add_span(&g, at, begin, false));
        if (lo < 0) break;
        HH_TRY(add_span(&g, begin, (size_t)hi, true));
        at = (size_t)hi;
    }
    return close_group(&g);
}

static hh_code run_prefixed(const split_run *r, int stage, piece p) {
    hh_buf text = {0}, shadow = {0};
    hh_buf_add(&text, " ", 1);
    hh_buf_add(&text, p.text, p.n);
    hh_buf_add(&shadow, " ", 1);
    hh_buf_add(&shadow, p.shadow, p.n);
    piece prefixed = {text.data, shadow.data, text.len};
    hh_code code =
        r->s->stages[stage].regex ? run_pattern(r, stage, prefixed) : pass_on(r, stage, prefixed, 0, prefixed.n);
    hh_buf_release(&text);
    hh_buf_release(&shadow);
    return code;
}

static hh_code run_stage(const split_run *r, int stage, piece p) {
    const hh_split_stage *s = &r->s->stages[stage];
    if (s->add_prefix_space && p.text[0] != ' ') return run_prefixed(r, stage, p);
    if (s->kind == HH_SPLIT_BYTE_LEVEL && !s->regex) return pass_on(r, stage, p, 0, p.n);
    return run_pattern(r, stage, p);
}

hh_code hh_split(const hh_splitter *s, hh_regex_scratch *scratch, const char *text, const char *shadow, size_t n,
                 hh_split_word *word, void *context, hh_error *err) {
    split_run r = {s, scratch, word, context, err};
    if (n == 0) return HH_OK;
    if (s->n_stages) return run_stage(&r, 0, (piece){text, shadow, n});
    word(context, text, n);
    return HH_OK;
}

static void release_stage(hh_split_stage *stage) {
    hh_free(stage->string);
    hh_regex_free(stage->regex);
    *stage = (hh_split_stage){0};
}

hh_code hh_splitter_add(hh_splitter *s, hh_split_stage stage, const char *path, hh_error *err) {
    if (s->n_stages == HH_SPLIT_MAX_STAGES) {
        release_stage(&stage);
        return hh_fail(err, HH_EUNSUPPORTED, "%s: pre_tokenizer has more than %d stages", path, HH_SPLIT_MAX_STAGES);
    }
    /* A scanner gives the matches one by one, which is what these make of a pattern that matches everywhere. */
    bool plain = stage.behaviour == HH_SPLIT_ISOLATED || (stage.behaviour == HH_SPLIT_REMOVED && stage.invert);
    if (!plain) stage.scan = NULL;
    s->stages[s->n_stages++] = stage;
    return HH_OK;
}

void hh_splitter_release(hh_splitter *s) {
    for (int i = 0; i < s->n_stages; i++) release_stage(&s->stages[i]);
    s->n_stages = 0;
}
