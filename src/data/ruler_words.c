/* The sorted list of RULER's keys as segments; see ruler_words.h. */
#include "data/ruler_words.h"

#include <string.h>

static void add_segment(hh_ruler_words *w, int adjective, int noun, int end) {
    if (noun == end) return;
    w->segment[w->n_segments++] = (hh_ruler_segment){w->n, adjective, noun, end - noun};
    w->n += end - noun;
}

static int lower_bound(const char *word) {
    int lo = 0, hi = hh_ruler_n_nouns;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (strcmp(hh_ruler_nouns[mid], word) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Adds adjective i and those that begin with it; returns the first adjective behind them. No noun begins with what such
 * an adjective adds ("eyed-"), so that its keys stand together. */
static int add_adjective(hh_ruler_words *w, int i) {
    size_t len = strlen(hh_ruler_adjectives[i]);
    int noun = 0, next = i + 1;
    while (next < hh_ruler_n_adjectives && strncmp(hh_ruler_adjectives[next], hh_ruler_adjectives[i], len) == 0) {
        int cut = lower_bound(hh_ruler_adjectives[next] + len);
        add_segment(w, i, noun, cut);
        noun = cut;
        next = add_adjective(w, next);
    }
    add_segment(w, i, noun, hh_ruler_n_nouns);
    return next;
}

void hh_ruler_words_init(hh_ruler_words *w) {
    *w = (hh_ruler_words){.segment = hh_alloc(2 * (size_t)hh_ruler_n_adjectives * sizeof *w->segment)};
    for (int i = 0; i < hh_ruler_n_adjectives;) i = add_adjective(w, i);
}

void hh_ruler_words_release(hh_ruler_words *w) {
    hh_free(w->segment);
    *w = (hh_ruler_words){0};
}

void hh_ruler_words_get(const hh_ruler_words *w, int64_t i, hh_buf *out) {
    HH_ASSERT(i >= 0 && i < w->n);
    int64_t lo = 0, hi = w->n_segments;
    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;
        if (w->segment[mid].first <= i)
            lo = mid;
        else
            hi = mid;
    }
    const hh_ruler_segment *s = &w->segment[lo];
    hh_buf_puts(out, hh_ruler_adjectives[s->adjective]);
    hh_buf_puts(out, hh_ruler_nouns[s->noun + (i - s->first)]);
}
