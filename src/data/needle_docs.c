/* Training documents with needles; see needle_docs.h. */
#include "data/needle_docs.h"

#include "base/filemap.h"
#include "base/rng.h"
#include "data/corpus.h"
#include "data/haystack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEEDLE " One of the special magic numbers for %s is: "
#define COMPACT_QUERY                                                                                                  \
    " What is the special magic number for %s mentioned in the provided text? The special magic number for %s "        \
    "mentioned in the provided text is: "
#define RULER_HEAD                                                                                                     \
    "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the " \
    "number afterwards.\n"
#define RULER_QUERY                                                                                                    \
    "\nWhat is the special magic number for %s mentioned in the provided text? The special magic number for %s "       \
    "mentioned in the provided text is "

enum { MAX_KEYS = 4, MAX_QUESTIONS = 3, LEAST_BODY = 16, SHORTEST_SENTENCE = 20, LONGEST_SENTENCE = 400 };

typedef struct sentence {
    size_t at, len;
} sentence;

struct hh_needle_docs {
    const hh_tokenizer *t;
    hh_haystack hay;
    sentence *sentence;
    int64_t n_sentences;
    char **word;
    int64_t n_words;
    double compact_share;
    uint64_t seed;
};

bool hh_needle_word_held_out(const char *word) {
    return hh_hash64(word, strlen(word), 0x6b6579) % 8 == 0;
}

bool hh_needle_value_held_out(const char *digits) {
    return hh_hash64(digits, strlen(digits), 0x76616c) % 8 == 0;
}

static hh_code read_text(hh_needle_docs *d, const hh_needle_docs_options *o, hh_error *err) {
    char *shipped = NULL;
    size_t len = o->haystack_len, *start;
    if (!o->haystack) HH_TRY(hh_text_shipped(false, &shipped, &len, err));
    hh_haystack_init(&d->hay, o->haystack ? o->haystack : shipped, len);
    hh_free(shipped);
    int64_t n = hh_sentences(d->hay.text, d->hay.len, &start);
    d->sentence = hh_alloc((size_t)n * sizeof *d->sentence);
    for (int64_t i = 0; i < n; i++) {
        size_t size = start[i + 1] - 1 - start[i];
        if (size > SHORTEST_SENTENCE && size < LONGEST_SENTENCE)
            d->sentence[d->n_sentences++] = (sentence){start[i], size};
    }
    hh_free(start);
    if (d->n_sentences >= 16) return HH_OK;
    return hh_fail(err, HH_EINVAL,
                   "the text for needle documents has %lld sentences of %d to %d bytes; at least 16 are needed",
                   (long long)d->n_sentences, SHORTEST_SENTENCE, LONGEST_SENTENCE);
}

/* The caller's words without the held-out ones, in one block. */
static char **copy_words(const char *const *words, int64_t n, int64_t *kept) {
    size_t bytes = 0;
    for (int64_t i = 0; i < n; i++) bytes += strlen(words[i]) + 1;
    char **list = hh_alloc((size_t)n * sizeof *list + bytes), *text = (char *)(list + n);
    *kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if (hh_needle_word_held_out(words[i])) continue;
        size_t len = strlen(words[i]) + 1;
        list[(*kept)++] = memcpy(text, words[i], len);
        text += len;
    }
    return list;
}

hh_code hh_needle_docs_new(hh_needle_docs **out, const hh_tokenizer *t, const hh_needle_docs_options *o,
                           hh_error *err) {
    HH_ASSERT(o->compact_share >= 0 && o->compact_share <= 1);
    *out = NULL;
    hh_needle_docs *d = hh_alloc(sizeof *d);
    d->t = t;
    d->compact_share = o->compact_share;
    d->seed = o->seed;
    hh_code code = read_text(d, o, err);
    if (code == HH_OK) {
        d->word = o->words ? copy_words(o->words, o->n_words, &d->n_words)
                           : hh_haystack_key_words(&d->hay, false, &d->n_words);
        if (d->n_words < 16)
            code =
                hh_fail(err, HH_EINVAL,
                        "%lld key words for needle documents; at least 16 are needed (words of 4 to 9 small letters)",
                        (long long)d->n_words);
    }
    if (code == HH_OK)
        *out = d;
    else
        hh_needle_docs_free(d);
    return code;
}

void hh_needle_docs_free(hh_needle_docs *d) {
    if (!d) return;
    hh_haystack_release(&d->hay);
    hh_free(d->sentence);
    hh_free(d->word);
    hh_free(d);
}

/* What a document is made of, as tokens. */
typedef struct draft {
    int n_keys, n_questions;
    bool compact;
    char *key[MAX_KEYS], value[MAX_KEYS][24];
    hh_ids head, needle[MAX_KEYS], tail, tail_answer;
    int64_t taken; /* tokens of all of these */
} draft;

static void release_draft(draft *w) {
    for (int i = 0; i < MAX_KEYS; i++) {
        hh_free(w->key[i]);
        hh_ids_release(&w->needle[i]);
    }
    hh_ids_release(&w->head);
    hh_ids_release(&w->tail);
    hh_ids_release(&w->tail_answer);
    *w = (draft){0};
}

static void draw_keys(const hh_needle_docs *d, hh_rng *r, draft *w) {
    for (int i = 0; i < w->n_keys;) {
        const char *first = d->word[hh_rng_below(r, d->n_words)];
        char *key = hh_sprintf("%s-%s", first, d->word[hh_rng_below(r, d->n_words)]);
        bool fresh = true;
        for (int j = 0; j < i; j++) fresh = fresh && strcmp(w->key[j], key) != 0;
        if (!fresh) {
            hh_free(key);
            continue;
        }
        do snprintf(w->value[i], sizeof w->value[i], "%07lld", (long long)hh_rng_below(r, 9000000) + 1000000);
        while (hh_needle_value_held_out(w->value[i]));
        w->key[i++] = key;
    }
}

/* Appends the tokens of text; marks (may be NULL) gets 1 for those that touch bytes [lo, hi). */
static hh_code add_text(const hh_needle_docs *d, const char *text, size_t lo, size_t hi, hh_ids *ids, hh_ids *marks,
                        hh_error *err) {
    int64_t begin = ids->len;
    HH_TRY(hh_tokenizer_encode(d->t, text, strlen(text), HH_ENCODE_PLAIN, ids, err));
    size_t at = 0, len;
    for (int64_t i = begin; marks && i < ids->len; i++) {
        if (!hh_tokenizer_token(d->t, ids->data[i], &len)) len = 0;
        hh_ids_push(marks, at < hi && at + len > lo);
        at += len;
    }
    return HH_OK;
}

static hh_code write_draft(const hh_needle_docs *d, hh_rng *r, draft *w, hh_error *err) {
    int64_t order[MAX_KEYS];
    hh_code code = HH_OK;
    hh_buf text = {0};
    if (!w->compact) code = add_text(d, RULER_HEAD, 0, 0, &w->head, NULL, err);
    w->taken = w->head.len;
    for (int i = 0; i < w->n_keys && code == HH_OK; i++) {
        order[i] = i;
        hh_buf_clear(&text);
        hh_buf_printf(&text, NEEDLE "%s.", w->key[i], w->value[i]);
        code = add_text(d, text.data, 0, 0, &w->needle[i], NULL, err);
        w->taken += w->needle[i].len;
    }
    hh_rng_shuffle(r, order, w->n_keys);
    for (int i = 0; i < w->n_questions && code == HH_OK; i++) {
        const char *key = w->key[order[i]], *value = w->value[order[i]];
        hh_buf_clear(&text);
        if (w->compact)
            hh_buf_printf(&text, COMPACT_QUERY, key, key);
        else
            hh_buf_printf(&text, RULER_QUERY, key, key);
        size_t lo = text.len;
        hh_buf_printf(&text, "%s.", value);
        code = add_text(d, text.data, lo, lo + strlen(value), &w->tail, &w->tail_answer, err);
    }
    w->taken += w->tail.len;
    hh_buf_release(&text);
    return code;
}

/* A draft that leaves room for some running text: fewer questions, then one needle, when the length is short. */
static hh_code make_draft(const hh_needle_docs *d, int64_t index, int64_t length, hh_rng *r, draft *w, hh_error *err) {
    static const int keys[] = {1, 1, 2, 4};
    bool compact = hh_rng_uniform(r) < d->compact_share;
    int n_keys = keys[hh_rng_below(r, 4)], n_questions = !compact ? 1 : n_keys < MAX_QUESTIONS ? n_keys : MAX_QUESTIONS;
    for (;;) {
        *w = (draft){.n_keys = n_keys, .n_questions = n_questions, .compact = compact};
        draw_keys(d, r, w);
        hh_code code = write_draft(d, r, w, err);
        if (code == HH_OK && length - w->taken >= LEAST_BODY) return HH_OK;
        if (code == HH_OK && n_keys == 1 && compact)
            code = hh_fail(err, HH_EINVAL,
                           "needle document %lld: one needle and its question take %lld tokens, with %d of text more "
                           "than the length of %lld",
                           (long long)index, (long long)w->taken, LEAST_BODY, (long long)length);
        release_draft(w);
        if (code != HH_OK) return code;
        if (n_questions > 1)
            n_questions--;
        else if (n_keys > 1)
            n_keys = 1;
        else
            compact = true; /* the compact wording is shorter by RULER's first line */
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Running text of exactly `body` tokens with the needles between its sentences, each equally likely before any of them
 * or at the end. */
static hh_code add_body(const hh_needle_docs *d, hh_rng *r, const draft *w, int64_t body, hh_ids *ids, hh_error *err) {
    hh_ids text = {0}, start = {0};
    hh_buf s = {0};
    hh_code code = HH_OK;
    for (int64_t i = hh_rng_below(r, d->n_sentences); text.len < body && code == HH_OK; i = (i + 1) % d->n_sentences) {
        hh_ids_push(&start, (int32_t)text.len);
        hh_buf_clear(&s);
        hh_buf_puts(&s, " ");
        hh_buf_add(&s, d->hay.text + d->sentence[i].at, d->sentence[i].len);
        code = hh_tokenizer_encode(d->t, s.data, s.len, HH_ENCODE_PLAIN, &text, err);
    }
    double at[MAX_KEYS];
    for (int i = 0; i < w->n_keys; i++) at[i] = hh_rng_uniform(r) * (double)(start.len + 1);
    qsort(at, (size_t)w->n_keys, sizeof *at, ascending);
    int next = 0;
    for (int64_t i = 0; i < start.len && code == HH_OK; i++) {
        int64_t end = i + 1 < start.len ? start.data[i + 1] : body;
        for (; next < w->n_keys && at[next] < (double)(i + 1); next++)
            hh_ids_append(ids, w->needle[next].data, w->needle[next].len);
        hh_ids_append(ids, text.data + start.data[i], end - start.data[i]);
    }
    for (; next < w->n_keys; next++) hh_ids_append(ids, w->needle[next].data, w->needle[next].len);
    hh_ids_release(&text);
    hh_ids_release(&start);
    hh_buf_release(&s);
    return code;
}

hh_code hh_needle_docs_get(const hh_needle_docs *d, int64_t index, int64_t length, hh_ids *ids, hh_ids *answer,
                           hh_error *err) {
    hh_rng r = hh_rng_stream(d->seed, (uint64_t)index);
    draft w;
    HH_TRY(make_draft(d, index, length, &r, &w, err));
    int64_t begin = ids->len;
    hh_ids_append(ids, w.head.data, w.head.len);
    hh_code code = add_body(d, &r, &w, length - w.taken, ids, err);
    if (code == HH_OK) {
        for (int64_t i = ids->len - begin; answer && i > 0; i--) hh_ids_push(answer, 0);
        hh_ids_append(ids, w.tail.data, w.tail.len);
        if (answer) hh_ids_append(answer, w.tail_answer.data, w.tail_answer.len);
        HH_ASSERT(ids->len - begin == length);
    }
    release_draft(&w);
    return code;
}
