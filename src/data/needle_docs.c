/* Training documents with needles; see needle_docs.h. */
#include "data/needle_docs.h"

#include "base/filemap.h"
#include "base/rng.h"
#include "data/corpus.h"
#include "data/haystack.h"
#include "data/needle_make.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPACT_QUERY                                                                                                  \
    " What is the special magic %s for %s mentioned in the provided text? The special magic %s for %s mentioned in "   \
    "the provided text is: "

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
    bool all_forms;
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
    d->all_forms = o->all_forms;
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

/* What a document asks, and of what. */
typedef struct form {
    int n_keys, n_values; /* keys; values of each */
    int n_questions;      /* each of one key, one after another */
    int n_joint;          /* keys that one question asks for together; 0: none is asked so */
    bool compact, uuid_keys, uuid_values;
    bool among_needles; /* the running text is other needles, a line each */
} form;

/* The same as tokens. */
typedef struct draft {
    form f;
    char *key[MAX_KEYS], value[MAX_KEYS][40]; /* value [n_keys * n_values] */
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

static char *draw_uuid(hh_rng *r) {
    const uint64_t hi = hh_rng_u64(r), lo = hh_rng_u64(r);
    char text[37];
    hh_uuid4_text((const uint32_t[]){(uint32_t)lo, (uint32_t)(lo >> 32), (uint32_t)hi, (uint32_t)(hi >> 32)}, text);
    return hh_strdup(text);
}

static char *draw_key(const hh_needle_docs *d, hh_rng *r, bool uuid) {
    if (uuid) return draw_uuid(r);
    const char *first = d->word[hh_rng_below(r, d->n_words)];
    return hh_sprintf("%s-%s", first, d->word[hh_rng_below(r, d->n_words)]);
}

static void draw_value(hh_rng *r, bool uuid, char value[40]) {
    do {
        char *text = uuid ? draw_uuid(r) : hh_sprintf("%07lld", (long long)hh_rng_below(r, 9000000) + 1000000);
        snprintf(value, 40, "%s", text);
        hh_free(text);
    } while (hh_needle_value_held_out(value));
}

/* A key that none of the first n is. */
static char *draw_fresh_key(const hh_needle_docs *d, hh_rng *r, const draft *w, int n) {
    for (;;) {
        char *key = draw_key(d, r, w->f.uuid_keys);
        bool fresh = true;
        for (int j = 0; j < n; j++) fresh = fresh && strcmp(w->key[j], key) != 0;
        if (fresh) return key;
        hh_free(key);
    }
}

static void draw_keys(const hh_needle_docs *d, hh_rng *r, draft *w) {
    for (int i = 0; i < w->f.n_keys; i++) {
        w->key[i] = draw_fresh_key(d, r, w, i);
        for (int v = 0; v < w->f.n_values; v++) draw_value(r, w->f.uuid_values, w->value[i * w->f.n_values + v]);
    }
}

/* Bytes [lo, hi) of a text. */
typedef struct span {
    size_t lo, hi;
} span;

/* Appends the tokens of text; marks (may be NULL) gets 1 for those that touch one of n spans. */
static hh_code add_text(const hh_needle_docs *d, const hh_buf *text, const span *spans, int n, hh_ids *ids,
                        hh_ids *marks, hh_error *err) {
    int64_t begin = ids->len;
    HH_TRY(hh_tokenizer_encode(d->t, text->data, text->len, HH_ENCODE_PLAIN, ids, err));
    size_t at = 0, len;
    for (int64_t i = begin; marks && i < ids->len; i++) {
        if (!hh_tokenizer_token(d->t, ids->data[i], &len)) len = 0;
        bool touches = false;
        for (int k = 0; k < n; k++) touches = touches || (at < spans[k].hi && at + len > spans[k].lo);
        hh_ids_push(marks, touches);
        at += len;
    }
    return HH_OK;
}

/* A question for n keys (numbers into w->key) and its answer: their values, in the order of the needles of each. */
static hh_code add_question(const hh_needle_docs *d, draft *w, const int64_t *asked, int n, hh_error *err) {
    const form *f = &w->f;
    const char *key[MAX_KEYS], *noun = f->uuid_values ? "uuid" : "number";
    span answer[MAX_KEYS];
    int count = 0;
    hh_buf text = {0};
    for (int i = 0; i < n; i++) key[i] = w->key[asked[i]];
    if (f->compact) {
        hh_buf_printf(&text, COMPACT_QUERY, noun, key[0], noun, key[0]);
    } else {
        hh_needle_question(f->uuid_values, n * f->n_values > 1, key, n, &text);
        hh_buf_puts(&text, " ");
    }
    for (int i = 0; i < n; i++) {
        for (int v = 0; v < f->n_values; v++) {
            if (count) hh_buf_puts(&text, ", ");
            size_t lo = text.len;
            hh_buf_puts(&text, w->value[asked[i] * f->n_values + v]);
            answer[count++] = (span){lo, text.len};
        }
    }
    hh_buf_puts(&text, ".");
    hh_code code = add_text(d, &text, answer, count, &w->tail, &w->tail_answer, err);
    hh_buf_release(&text);
    return code;
}

static hh_code write_draft(const hh_needle_docs *d, hh_rng *r, draft *w, hh_error *err) {
    const form *f = &w->f;
    int64_t order[MAX_KEYS];
    hh_code code = HH_OK;
    hh_buf text = {0};
    if (!f->compact) {
        hh_needle_head(f->uuid_values, f->n_joint > 1 || f->n_values > 1, &text);
        code = add_text(d, &text, NULL, 0, &w->head, NULL, err);
    }
    w->taken = w->head.len;
    for (int i = 0; i < f->n_keys * f->n_values && code == HH_OK; i++) {
        hh_buf_clear(&text);
        hh_buf_puts(&text, f->among_needles ? "\n" : " ");
        hh_needle_sentence(f->uuid_values, w->key[i / f->n_values], w->value[i], &text);
        code = add_text(d, &text, NULL, 0, &w->needle[i], NULL, err);
        w->taken += w->needle[i].len;
    }
    for (int i = 0; i < f->n_keys; i++) order[i] = i;
    hh_rng_shuffle(r, order, f->n_keys);
    for (int i = 0; i < f->n_questions && code == HH_OK; i++) code = add_question(d, w, &order[i], 1, err);
    if (f->n_joint > 0 && code == HH_OK) code = add_question(d, w, order, f->n_joint, err);
    w->taken += w->tail.len;
    hh_buf_release(&text);
    return code;
}

static form draw_numbers(const hh_needle_docs *d, hh_rng *r) {
    static const int keys[] = {1, 1, 2, 4};
    form f = {.n_values = 1, .compact = hh_rng_uniform(r) < d->compact_share};
    f.n_keys = keys[hh_rng_below(r, 4)];
    f.n_questions = !f.compact ? 1 : f.n_keys < MAX_QUESTIONS ? f.n_keys : MAX_QUESTIONS;
    return f;
}

/* All of RULER's forms: a third the plain one, a quarter the same with UUIDs, the rest shared by the others. */
static form draw_form(const hh_needle_docs *d, hh_rng *r) {
    double u = hh_rng_uniform(r);
    if (u < 0.55) {
        form f = draw_numbers(d, r);
        f.uuid_values = u >= 0.3;
        return f;
    }
    form f = {.n_keys = 1, .n_values = 1};
    if (u < 0.65) {
        f.uuid_keys = f.uuid_values = true;
        f.among_needles = hh_rng_below(r, 2);
    } else if (u < 0.8) {
        f.among_needles = true;
    } else if (u < 0.9) {
        f.n_values = 2 + (int)hh_rng_below(r, MAX_KEYS - 1);
    } else {
        f.n_keys = MAX_KEYS;
        f.n_joint = 2 + (int)hh_rng_below(r, MAX_KEYS - 1);
    }
    f.n_questions = f.n_joint == 0;
    return f;
}

/* The same with less of one thing. The compact wording is shorter by RULER's first line. False: it is the least. */
static bool lessen(form *f) {
    if (f->n_questions > 1) {
        f->n_questions--;
    } else if (f->n_keys > 1 || f->n_values > 1) {
        f->n_keys = f->n_values = f->n_questions = 1;
        f->n_joint = 0;
    } else if (!f->compact) {
        f->compact = true;
    } else if (f->uuid_keys || f->uuid_values) {
        f->uuid_keys = f->uuid_values = false;
    } else {
        return false;
    }
    return true;
}

/* A draft that leaves room for some running text, of a lesser form when the length is short. */
static hh_code make_draft(const hh_needle_docs *d, int64_t index, int64_t length, hh_rng *r, draft *w, hh_error *err) {
    form f = d->all_forms ? draw_form(d, r) : draw_numbers(d, r);
    for (;;) {
        *w = (draft){.f = f};
        draw_keys(d, r, w);
        hh_code code = write_draft(d, r, w, err);
        if (code == HH_OK && length - w->taken >= LEAST_BODY) return HH_OK;
        if (code == HH_OK && !lessen(&f))
            code = hh_fail(err, HH_EINVAL,
                           "needle document %lld: one needle and its question take %lld tokens, with %d of text more "
                           "than the length of %lld",
                           (long long)index, (long long)w->taken, LEAST_BODY, (long long)length);
        release_draft(w);
        if (code != HH_OK) return code;
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* A needle that nothing asks for. */
static void add_distractor(const hh_needle_docs *d, hh_rng *r, const draft *w, hh_buf *text) {
    char *key = draw_fresh_key(d, r, w, w->f.n_keys), value[40];
    draw_value(r, w->f.uuid_values, value);
    hh_buf_puts(text, "\n");
    hh_needle_sentence(w->f.uuid_values, key, value, text);
    hh_free(key);
}

/* Running text of exactly `body` tokens with the needles between its sentences, each equally likely before any of them
 * or at the end. */
static hh_code add_body(const hh_needle_docs *d, hh_rng *r, const draft *w, int64_t body, hh_ids *ids, hh_error *err) {
    int count = w->f.n_keys * w->f.n_values;
    hh_ids text = {0}, start = {0};
    hh_buf s = {0};
    hh_code code = HH_OK;
    int64_t i = w->f.among_needles ? 0 : hh_rng_below(r, d->n_sentences);
    for (; text.len < body && code == HH_OK; i = (i + 1) % d->n_sentences) {
        hh_ids_push(&start, (int32_t)text.len);
        hh_buf_clear(&s);
        if (w->f.among_needles) {
            add_distractor(d, r, w, &s);
        } else {
            hh_buf_puts(&s, " ");
            hh_buf_add(&s, d->hay.text + d->sentence[i].at, d->sentence[i].len);
        }
        code = hh_tokenizer_encode(d->t, s.data, s.len, HH_ENCODE_PLAIN, &text, err);
    }
    double at[MAX_KEYS];
    for (int k = 0; k < count; k++) at[k] = hh_rng_uniform(r) * (double)(start.len + 1);
    qsort(at, (size_t)count, sizeof *at, ascending);
    int next = 0;
    for (i = 0; i < start.len && code == HH_OK; i++) {
        int64_t end = i + 1 < start.len ? start.data[i + 1] : body;
        for (; next < count && at[next] < (double)(i + 1); next++)
            hh_ids_append(ids, w->needle[next].data, w->needle[next].len);
        hh_ids_append(ids, text.data + start.data[i], end - start.data[i]);
    }
    for (; next < count; next++) hh_ids_append(ids, w->needle[next].data, w->needle[next].len);
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
