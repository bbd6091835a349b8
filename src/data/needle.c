/* RULER's needle tasks: the same draws in the same order as NVIDIA/RULER's generator. See needle.h.
 *
 * A prompt takes from the Mersenne Twister, in this order: for each key its text, then its values; for a haystack of
 * needles the key and the value of every line; where the needles stand; which keys are asked. The needles' order is a
 * shuffle by a generator of its own, seeded anew for every prompt. The size of the haystack is found by bisection over
 * prompts that count as draws too.
 */
#include "data/needle_make.h"

#include "data/corpus.h"
#include "data/needle_docs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const hh_needle_setting settings[HH_NEEDLE_TASKS] = {
    {"niah_single_1", HH_HAYSTACK_NOISE, HH_KIND_WORDS, HH_KIND_NUMBERS, 1, 1, 1},
    {"niah_single_2", HH_HAYSTACK_ESSAY, HH_KIND_WORDS, HH_KIND_NUMBERS, 1, 1, 1},
    {"niah_single_3", HH_HAYSTACK_ESSAY, HH_KIND_WORDS, HH_KIND_UUIDS, 1, 1, 1},
    {"niah_multikey_1", HH_HAYSTACK_ESSAY, HH_KIND_WORDS, HH_KIND_NUMBERS, 4, 1, 1},
    {"niah_multikey_2", HH_HAYSTACK_NEEDLES, HH_KIND_WORDS, HH_KIND_NUMBERS, 1, 1, 1},
    {"niah_multikey_3", HH_HAYSTACK_NEEDLES, HH_KIND_UUIDS, HH_KIND_UUIDS, 1, 1, 1},
    {"niah_multivalue", HH_HAYSTACK_ESSAY, HH_KIND_WORDS, HH_KIND_NUMBERS, 1, 4, 1},
    {"niah_multiquery", HH_HAYSTACK_ESSAY, HH_KIND_WORDS, HH_KIND_NUMBERS, 4, 1, 4},
    {"niah_book", HH_HAYSTACK_BOOK, HH_KIND_BOOK_WORDS, HH_KIND_BOOK_NUMBERS, 1, 1, 1},
};

static const char noise[] = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

enum { RULER_NEW_TOKENS = 128, RULER_ESSAY_STEP = 500, RULER_LINE_STEP = 25, N_DEPTHS = 40 };

const char *hh_needle_task_name(hh_needle_task t) {
    HH_ASSERT(t >= 0 && t < HH_NEEDLE_TASKS);
    return settings[t].name;
}

hh_code hh_needle_task_parse(const char *name, hh_needle_task *out, hh_error *err) {
    hh_buf known = {0};
    for (int i = 0; i < HH_NEEDLE_TASKS; i++) {
        if (strcmp(settings[i].name, name) == 0) {
            *out = (hh_needle_task)i;
            hh_buf_release(&known);
            return HH_OK;
        }
        hh_buf_printf(&known, "%s%s", i ? ", " : "", settings[i].name);
    }
    hh_fail(err, HH_EINVAL, "'%s' is no needle task; there are %s", name, known.data);
    hh_buf_release(&known);
    return HH_EINVAL;
}

bool hh_needle_tasks_read_text(const char *list) {
    hh_words names;
    hh_error err = {0};
    bool any = false;
    if (hh_parse_word_list(list, &names) != HH_OK) return true;
    for (int64_t i = 0; i < names.n && !any; i++) {
        hh_needle_task t;
        any = hh_needle_task_parse(names.word[i], &t, &err) != HH_OK || settings[t].haystack == HH_HAYSTACK_ESSAY ||
              settings[t].haystack == HH_HAYSTACK_BOOK;
    }
    hh_words_release(&names);
    return any;
}

void hh_needle_draw_text(const hh_needles *n, hh_mt *mt, hh_needle_kind k, char *out, size_t size) {
    hh_buf text = {0};
    char uuid[37];
    switch (k) {
    case HH_KIND_NUMBERS:
        hh_buf_printf(&text, "%lld", (long long)hh_mt_randint(mt, 1000000, 9999999));
        break;
    case HH_KIND_WORDS:
        hh_ruler_words_get(&n->words, hh_mt_below(mt, n->words.n), &text);
        break;
    case HH_KIND_UUIDS:
        hh_mt_uuid4(mt, uuid);
        hh_buf_puts(&text, uuid);
        break;
    case HH_KIND_BOOK_WORDS: {
        const char *first = n->book_word[hh_mt_below(mt, n->n_book_words)];
        hh_buf_printf(&text, "%s-%s", first, n->book_word[hh_mt_below(mt, n->n_book_words)]);
        break;
    }
    case HH_KIND_BOOK_NUMBERS:
        do {
            hh_buf_clear(&text);
            hh_buf_printf(&text, "%lld", (long long)hh_mt_randint(mt, 1000000, 9999999));
        } while (!hh_needle_value_held_out(text.data));
        break;
    }
    HH_ASSERT(text.len < size);
    memcpy(out, text.data, text.len + 1);
    hh_buf_release(&text);
}

static const char *value_noun(bool uuids, bool plural) {
    if (uuids) return plural ? "uuids" : "uuid";
    return plural ? "numbers" : "number";
}

void hh_needle_sentence(bool uuids, const char *key, const char *value, hh_buf *out) {
    hh_buf_printf(out, "One of the special magic %s for %s is: %s.", value_noun(uuids, true), key, value);
}

void hh_needle_head(bool uuids, bool several, hh_buf *out) {
    const char *noun = value_noun(uuids, several);
    hh_buf_printf(out,
                  "%s special magic %s %s hidden within the following text. Make sure to memorize it. I will quiz you "
                  "about the %s afterwards.\n",
                  several ? "Some" : "A", noun, several ? "are" : "is", noun);
}

static void add_keys(const char *const *key, int n, hh_buf *out) {
    for (int i = 0; i < n; i++) hh_buf_printf(out, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : ", and ", key[i]);
}

void hh_needle_question(bool uuids, bool several, const char *const *key, int n, hh_buf *out) {
    const char *noun = value_noun(uuids, several);
    hh_buf_printf(out, "\nWhat %s the special magic %s for ", several ? "are all" : "is", noun);
    add_keys(key, n, out);
    hh_buf_printf(out, " mentioned in the provided text? The special magic %s for ", noun);
    add_keys(key, n, out);
    hh_buf_printf(out, " mentioned in the provided text %s", several ? "are" : "is");
}

static bool has_uuids(const hh_needle_setting *s) {
    return s->value == HH_KIND_UUIDS;
}

static void add_needle(const hh_needles *n, const hh_needle_draw *d, int64_t needle, hh_buf *out) {
    hh_needle_sentence(has_uuids(n->setting), d->key[needle / n->setting->n_values], d->value[needle], out);
}

static void draw_needles(hh_needles *n, hh_needle_draw *d, int64_t *order) {
    const hh_needle_setting *s = n->setting;
    for (int k = 0; k < s->n_keys; k++) {
        hh_needle_draw_text(n, &n->mt, s->key, d->key[k], sizeof d->key[k]);
        for (int v = 0; v < s->n_values; v++) {
            char *value = d->value[k * s->n_values + v];
            hh_needle_draw_text(n, &n->mt, s->value, value, sizeof d->value[0]);
        }
    }
    int64_t count = s->n_keys * s->n_values;
    for (int64_t i = 0; i < count; i++) order[i] = i;
    hh_mt shuffle;
    hh_mt_seed(&shuffle, n->seed);
    hh_mt_shuffle(&shuffle, order, count);
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Sentences of the haystack with the needles between them, at depths drawn from forty. Pieces are joined by one space,
 * empty ones (before a needle at the very beginning) too. */
static void add_essay(hh_needles *n, const hh_needle_draw *d, const int64_t *order, int64_t units, hh_buf *out) {
    int64_t count = n->setting->n_keys * n->setting->n_values, at[HH_MAX_NEEDLES];
    hh_buf text = {0};
    hh_haystack_take(&n->hay, n->first_word, units, &text);
    size_t *start, done = 0;
    int64_t sentences = hh_sentences(text.data, text.len, &start);
    hh_mt_sample(&n->mt, N_DEPTHS, count, at);
    for (int64_t i = 0; i < count; i++) {
        double depth = nearbyint((double)at[i] * (100.0 / (N_DEPTHS - 1)));
        at[i] = (int64_t)((double)sentences * (depth / 100.0));
    }
    qsort(at, (size_t)count, sizeof *at, ascending);
    for (int64_t i = 0; i <= count; i++) {
        size_t end = i < count ? start[at[i]] : text.len + 1;
        if (i > 0) hh_buf_puts(out, " ");
        if (end > done) hh_buf_add(out, text.data + done, end - 1 - done);
        if (i == count) break;
        hh_buf_puts(out, " ");
        add_needle(n, d, order[i], out);
        done = end;
    }
    hh_free(start);
    hh_buf_release(&text);
}

/* Lines of noise or of other needles. */
static void add_lines(hh_needles *n, const hh_needle_draw *d, const int64_t *order, int64_t units, hh_buf *out) {
    const hh_needle_setting *s = n->setting;
    int64_t count = s->n_keys * s->n_values, at[HH_MAX_NEEDLES];
    hh_buf lines = {0};
    for (int64_t i = 0; i < units; i++) {
        if (s->haystack == HH_HAYSTACK_NEEDLES) {
            char key[sizeof d->key[0]], value[sizeof d->value[0]];
            hh_needle_draw_text(n, &n->mt, s->key, key, sizeof key);
            hh_needle_draw_text(n, &n->mt, s->value, value, sizeof value);
            hh_needle_sentence(has_uuids(s), key, value, &lines);
        } else {
            hh_buf_puts(&lines, noise);
        }
        hh_buf_puts(&lines, "\n");
    }
    hh_mt_sample(&n->mt, units, count, at);
    qsort(at, (size_t)count, sizeof *at, ascending);
    const char *line = lines.data;
    for (int64_t i = 0, next = 0; i < units; i++) {
        const char *end = strchr(line, '\n');
        if (next < count && at[next] == i) { /* the first needle of the order stands deepest */
            add_needle(n, d, order[count - 1 - next++], out);
            hh_buf_puts(out, "\n");
        }
        hh_buf_add(out, line, (size_t)(end - line) + (i + 1 < units));
        line = end + 1;
    }
    hh_buf_release(&lines);
}

static double find_depth(const hh_needles *n, const hh_needle_draw *d, const char *context, size_t len) {
    hh_buf needle = {0};
    add_needle(n, d, d->asked[0] * n->setting->n_values, &needle);
    const char *at = memmem(context, len, needle.data, needle.len);
    HH_ASSERT(at);
    double depth = len > needle.len ? (double)(at - context) / (double)(len - needle.len) : 0;
    hh_buf_release(&needle);
    return depth;
}

/* The next prompt, with `units` of haystack, into n->prompt and n->last. */
static void compose(hh_needles *n, int64_t units) {
    const hh_needle_setting *s = n->setting;
    hh_needle_draw *d = &n->last;
    hh_buf *out = &n->prompt;
    int64_t order[HH_MAX_NEEDLES];
    bool several = s->n_asked * s->n_values > 1;
    const char *asked[HH_MAX_NEEDLES];
    draw_needles(n, d, order);
    hh_buf_clear(out);
    hh_needle_head(has_uuids(s), several, out);
    size_t begin = out->len;
    if (s->haystack == HH_HAYSTACK_ESSAY || s->haystack == HH_HAYSTACK_BOOK)
        add_essay(n, d, order, units, out);
    else
        add_lines(n, d, order, units, out);
    size_t end = out->len;
    hh_mt_sample(&n->mt, s->n_keys, s->n_asked, d->asked);
    for (int i = 0; i < s->n_asked; i++) asked[i] = d->key[d->asked[i]];
    hh_needle_question(has_uuids(s), several, asked, s->n_asked, out);
    d->depth = find_depth(n, d, out->data + begin, end - begin);
}

hh_code hh_needle_count(hh_needles *n, const char *text, size_t len, int64_t *count, hh_error *err) {
    n->ids.len = 0;
    HH_TRY(hh_tokenizer_encode(n->t, text, len, HH_ENCODE_PLAIN, &n->ids, err));
    *count = n->ids.len;
    return HH_OK;
}

static hh_code compose_counted(hh_needles *n, int64_t units, int64_t *tokens, hh_error *err) {
    compose(n, units);
    return hh_needle_count(n, n->prompt.data, n->prompt.len, tokens, err);
}

/* RULER's bisection. n->units stays 0 when nothing fits. */
static hh_code find_units(hh_needles *n, hh_error *err) {
    int64_t tokens = 0;
    HH_TRY(compose_counted(n, n->step, &tokens, err));
    double per_unit = (double)tokens / (double)n->step;
    int64_t estimate = (int64_t)((double)n->length / per_unit * 3.0);
    int64_t lo = n->step, hi = estimate > 2 * n->step ? estimate : 2 * n->step;
    while (lo <= hi) {
        int64_t mid = (lo + hi) / 2;
        HH_TRY(compose_counted(n, mid, &tokens, err));
        if (tokens + n->reserve <= n->length) {
            n->units = mid;
            lo = mid + 1;
        } else {
            hi = mid - 1;
        }
    }
    return HH_OK;
}

/* Tokens of an answer as a model would write it, and a few more. */
static hh_code short_reserve(hh_needles *n, int64_t *reserve, hh_error *err) {
    char value[64] = " ";
    int64_t most = 0, tokens;
    for (int i = 0; i < 8; i++) {
        hh_needle_draw_text(n, &n->spare, n->setting->value, value + 1, sizeof value - 1);
        HH_TRY(hh_needle_count(n, value, strlen(value), &tokens, err));
        if (tokens > most) most = tokens;
    }
    *reserve = n->setting->n_asked * n->setting->n_values * (most + 2) + 2;
    return HH_OK;
}

/* Prompts of fewer and fewer units, from *units, until one fits. RULER takes a step off each time; away from its ways
 * each prompt is filled as far as its own words allow. */
static hh_code compose_fitting(hh_needles *n, int64_t *units, int64_t *tokens, int most_tries, hh_error *err) {
    if (n->setting->haystack == HH_HAYSTACK_BOOK) n->first_word = hh_mt_below(&n->mt, n->hay.n_words);
    if (n->anywhere) n->first_word = hh_mt_below(&n->place, n->hay.n_words);
    for (int tries = 0; tries < most_tries;) {
        HH_TRY(compose_counted(n, *units, tokens, err));
        int64_t excess = *tokens + n->reserve - n->length, less = n->step;
        if (excess <= 0) return HH_OK;
        if (n->tight && excess * *units / *tokens * 3 / 4 > less) less = excess * *units / *tokens * 3 / 4;
        if (*units > less)
            *units -= less;
        else
            tries++; /* other keys and values may be shorter */
    }
    return hh_fail(
        err, HH_EINVAL,
        "%s does not fit in %lld tokens: its shortest prompts take about %lld and %lld are kept for the answer",
        n->setting->name, (long long)n->length, (long long)*tokens, (long long)n->reserve);
}

static hh_code fit(hh_needles *n, hh_error *err) {
    bool book = n->setting->haystack == HH_HAYSTACK_BOOK, essay = book || n->setting->haystack == HH_HAYSTACK_ESSAY;
    int64_t tokens = 0;
    n->reserve = RULER_NEW_TOKENS;
    n->step = essay ? RULER_ESSAY_STEP : n->length < 4096 ? 5 : RULER_LINE_STEP;
    if (essay && n->length < 4096) n->step = 25; /* 500 words would be half of it and more */
    if (!book && (!essay || n->length >= 1024)) HH_TRY(find_units(n, err));
    if (n->units > 0) return HH_OK;
    n->tight = true;
    hh_mt_seed(&n->mt, n->seed);
    HH_TRY(short_reserve(n, &n->reserve, err));
    n->step = 1;
    n->units = essay ? n->length : n->length / 8 + 1; /* a word is a token at least, a line at least eight */
    HH_TRY(compose_fitting(n, &n->units, &tokens, 8, err));
    n->units += n->units / 4 + 2; /* where each prompt's own search begins */
    return HH_OK;
}

static hh_code read_haystack(hh_needles *n, const hh_needle_options *o, hh_error *err) {
    char *shipped = NULL;
    size_t len = o->haystack_len;
    if (!o->haystack) HH_TRY(hh_text_shipped(true, &shipped, &len, err));
    hh_haystack_init(&n->hay, o->haystack ? o->haystack : shipped, len);
    hh_free(shipped);
    if (n->hay.n_words < 100)
        return hh_fail(err, HH_EINVAL, "the haystack text has %lld words; %s wants at least 100",
                       (long long)n->hay.n_words, n->setting->name);
    if (n->setting->key != HH_KIND_BOOK_WORDS) return HH_OK;
    n->book_word = hh_haystack_key_words(&n->hay, true, &n->n_book_words);
    if (n->n_book_words >= 8) return HH_OK;
    return hh_fail(err, HH_EINVAL,
                   "the haystack text has %lld words fit for keys (4 to 9 small letters); %s wants at least 8",
                   (long long)n->n_book_words, n->setting->name);
}

hh_code hh_needles_new(hh_needles **out, const hh_tokenizer *t, const hh_needle_options *o, hh_error *err) {
    HH_ASSERT(o->task >= 0 && o->task < HH_NEEDLE_TASKS);
    *out = NULL;
    if (o->length < 1 || o->length > (int64_t)1 << 27)
        return hh_fail(err, HH_EINVAL, "%s: a length of %lld tokens; give 1 to %lld", settings[o->task].name,
                       (long long)o->length, 1LL << 27);
    hh_needles *n = hh_alloc(sizeof *n);
    n->t = t;
    n->setting = &settings[o->task];
    n->length = o->length;
    n->seed = o->seed;
    hh_mt_seed(&n->mt, o->seed);
    hh_mt_seed(&n->spare, (uint64_t)o->seed + 1);
    hh_mt_seed(&n->place, (uint64_t)o->seed + 2);
    n->anywhere = o->anywhere && n->setting->haystack == HH_HAYSTACK_ESSAY;
    hh_ruler_words_init(&n->words);
    hh_code code = HH_OK;
    if (n->setting->haystack == HH_HAYSTACK_ESSAY || n->setting->haystack == HH_HAYSTACK_BOOK)
        code = read_haystack(n, o, err);
    if (code == HH_OK) code = fit(n, err);
    if (code == HH_OK)
        *out = n;
    else
        hh_needles_free(n);
    return code;
}

void hh_needles_free(hh_needles *n) {
    if (!n) return;
    hh_haystack_release(&n->hay);
    hh_ruler_words_release(&n->words);
    hh_free(n->book_word);
    hh_buf_release(&n->prompt);
    hh_ids_release(&n->ids);
    hh_free(n);
}

hh_code hh_needles_next(hh_needles *n, hh_needle_sample *out, hh_error *err) {
    const hh_needle_setting *s = n->setting;
    int64_t units = n->units, tokens = 0;
    HH_TRY(compose_fitting(n, &units, &tokens, 2000, err));
    *out = (hh_needle_sample){
        .prompt = hh_strdup(n->prompt.data), .depth = n->last.depth, .n_tokens = tokens, .max_new = n->reserve};
    for (int i = 0; i < s->n_asked; i++)
        for (int v = 0; v < s->n_values; v++)
            out->answer[out->n_answers++] = hh_strdup(n->last.value[n->last.asked[i] * s->n_values + v]);
    return HH_OK;
}

void hh_needle_sample_release(hh_needle_sample *s) {
    hh_free(s->prompt);
    for (int i = 0; i < s->n_answers; i++) hh_free(s->answer[i]);
    *s = (hh_needle_sample){0};
}
