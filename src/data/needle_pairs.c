/* Counterfactual pairs: from the needle generator, and from a user's file; see needle.h. */
#include "data/jsonl.h"
#include "data/needle_make.h"

#include <stdio.h>
#include <string.h>

void hh_pair_release(hh_pair *p) {
    hh_ids_release(&p->prompt);
    hh_ids_release(&p->corrupt);
    hh_ids_release(&p->answer);
    hh_ids_release(&p->wrong);
    *p = (hh_pair){0};
}

void hh_pairs_free(hh_pair *pairs, int64_t n) {
    for (int64_t i = 0; pairs && i < n; i++) hh_pair_release(&pairs[i]);
    hh_free(pairs);
}

static hh_code encode(const hh_tokenizer *t, const char *text, size_t len, hh_ids *out, hh_error *err) {
    out->len = 0;
    return hh_tokenizer_encode(t, text, len, HH_ENCODE_PLAIN, out, err);
}

static void replace_all(const char *text, const char *from, const char *to, hh_buf *out) {
    size_t len = strlen(from);
    hh_buf_clear(out);
    for (const char *at; (at = strstr(text, from)) != NULL; text = at + len) {
        hh_buf_add(out, text, (size_t)(at - text));
        hh_buf_puts(out, to);
    }
    hh_buf_puts(out, text);
}

static bool is_drawn(const hh_needles *n, const char *text) {
    for (int i = 0; i < n->setting->n_keys; i++)
        if (strcmp(n->last.key[i], text) == 0) return true;
    for (int i = 0; i < n->setting->n_keys * n->setting->n_values; i++)
        if (strcmp(n->last.value[i], text) == 0) return true;
    return false;
}

/* Tries to make the pair of the generator's last prompt; *ok says whether a distractor of the same token counts was
 * found. */
static hh_code corrupt_last(hh_needles *n, hh_corruption c, hh_pair *p, hh_buf *text, bool *ok, hh_error *err) {
    const hh_needle_setting *s = n->setting;
    int64_t asked = n->last.asked[0];
    const char *key = n->last.key[asked], *value = n->last.value[asked * s->n_values];
    char from[256], to[256], other[96], spaced[64];
    *ok = false;
    snprintf(spaced, sizeof spaced, " %s", value);
    HH_TRY(encode(n->t, n->prompt.data, n->prompt.len, &p->prompt, err));
    HH_TRY(encode(n->t, spaced, strlen(spaced), &p->answer, err));
    for (int tries = 0; tries < 64; tries++) {
        hh_needle_draw_text(n, &n->spare, c == HH_CORRUPT_VALUE ? s->value : s->key, other, sizeof other);
        if (is_drawn(n, other)) continue;
        if (c == HH_CORRUPT_VALUE) {
            snprintf(from, sizeof from, " for %s is: %s.", key, value);
            snprintf(to, sizeof to, " for %s is: %s.", key, other);
            snprintf(spaced, sizeof spaced, " %.60s", other);
            HH_TRY(encode(n->t, spaced, strlen(spaced), &p->wrong, err));
            if (p->wrong.len != p->answer.len) continue;
        } else { /* every needle of the key: none may match the question */
            snprintf(from, sizeof from, " for %s is: ", key);
            snprintf(to, sizeof to, " for %s is: ", other);
        }
        int64_t before, after;
        HH_TRY(hh_needle_count(n, from, strlen(from), &before, err));
        HH_TRY(hh_needle_count(n, to, strlen(to), &after, err));
        if (before != after) continue;
        replace_all(n->prompt.data, from, to, text);
        HH_TRY(encode(n->t, text->data, text->len, &p->corrupt, err));
        if (p->corrupt.len != p->prompt.len) continue;
        *ok = true;
        return HH_OK;
    }
    return HH_OK;
}

hh_code hh_pair_from_needles(hh_needles *n, hh_corruption c, hh_pair *out, hh_error *err) {
    hh_buf text = {0};
    hh_code code = HH_OK;
    bool ok = false;
    *out = (hh_pair){0};
    for (int tries = 0; code == HH_OK && !ok && tries < 64; tries++) {
        hh_needle_sample sample;
        code = hh_needles_next(n, &sample, err);
        if (code != HH_OK) break;
        hh_needle_sample_release(&sample);
        code = corrupt_last(n, c, out, &text, &ok, err);
    }
    hh_buf_release(&text);
    if (code == HH_OK && !ok)
        code = hh_fail(err, HH_EINVAL, "%s: no distractor with as many tokens as the %s was found in 64 prompts",
                       n->setting->name, c == HH_CORRUPT_VALUE ? "value" : "key");
    if (code != HH_OK) hh_pair_release(out);
    return code;
}

/* One field of a line as ids; an absent "wrong" stays empty. */
static hh_code read_field(const json_t *object, const char *field, const hh_tokenizer *t, hh_ids *out, hh_error *err) {
    const char *text;
    HH_TRY(hh_jsonl_string(object, field, &text, err));
    if (!*text) return hh_fail(err, HH_EFORMAT, "\"%s\" is empty", field);
    return encode(t, text, strlen(text), out, err);
}

static hh_code check_counts(const char *a, const hh_ids *x, const char *b, const hh_ids *y, hh_error *err) {
    if (x->len == y->len) return HH_OK;
    return hh_fail(err, HH_EINVAL, "\"%s\" has %lld tokens and \"%s\" %lld; both need the same count", a,
                   (long long)x->len, b, (long long)y->len);
}

/* What is the same on both sides has no effect. */
static hh_code check_differ(const char *a, const hh_ids *x, const char *b, const hh_ids *y, hh_error *err) {
    if (memcmp(x->data, y->data, (size_t)x->len * sizeof *x->data)) return HH_OK;
    return hh_fail(err, HH_EINVAL, "\"%s\" and \"%s\" are the same; %s", a, b,
                   strcmp(a, "prompt") ? "leave \"wrong\" out, or name what the corrupt prompt should give"
                                       : "the corrupt prompt must hold other evidence");
}

typedef struct pair_list {
    const hh_tokenizer *t;
    hh_pair *pair;
    int64_t n, capacity;
} pair_list;

static hh_code read_pair(void *context, const json_t *object, hh_error *err) {
    static const char *const known[] = {"prompt", "corrupt", "answer", "wrong"};
    pair_list *l = context;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        bool found = false;
        for (int i = 0; i < 4; i++) found = found || strcmp(key, known[i]) == 0;
        if (!found)
            return hh_fail(err, HH_EFORMAT, "\"%.40s\" is not a field of a pair (prompt, corrupt, answer, wrong)", key);
    }
    if (l->n == l->capacity)
        l->pair = hh_realloc(l->pair, (size_t)(l->capacity = 2 * l->capacity + 16) * sizeof *l->pair);
    hh_pair *p = &l->pair[l->n++];
    *p = (hh_pair){0};
    HH_TRY(read_field(object, "prompt", l->t, &p->prompt, err));
    HH_TRY(read_field(object, "corrupt", l->t, &p->corrupt, err));
    HH_TRY(read_field(object, "answer", l->t, &p->answer, err));
    HH_TRY(check_counts("prompt", &p->prompt, "corrupt", &p->corrupt, err));
    HH_TRY(check_differ("prompt", &p->prompt, "corrupt", &p->corrupt, err));
    if (!json_object_get(object, "wrong")) return HH_OK;
    HH_TRY(read_field(object, "wrong", l->t, &p->wrong, err));
    HH_TRY(check_counts("answer", &p->answer, "wrong", &p->wrong, err));
    return check_differ("answer", &p->answer, "wrong", &p->wrong, err);
}

static hh_code finish(pair_list *l, hh_code code, const char *path, hh_pair **out, int64_t *n, hh_error *err) {
    if (code == HH_OK && l->n == 0)
        code = hh_fail(err, HH_EFORMAT, "%s: no pairs; one JSON object a line with \"prompt\", \"corrupt\", \"answer\"",
                       path);
    if (code != HH_OK) {
        hh_pairs_free(l->pair, l->n);
        return code;
    }
    *out = l->pair;
    *n = l->n;
    return HH_OK;
}

hh_code hh_pairs_parse(const char *path, const char *bytes, size_t size, const hh_tokenizer *t, hh_pair **out,
                       int64_t *n, hh_error *err) {
    pair_list l = {.t = t};
    return finish(&l, hh_jsonl_each(path, bytes, size, 0, read_pair, &l, err), path, out, n, err);
}

hh_code hh_pairs_read(const char *path, const hh_tokenizer *t, hh_pair **out, int64_t *n, hh_error *err) {
    pair_list l = {.t = t};
    return finish(&l, hh_jsonl_read(path, 0, read_pair, &l, err), path, out, n, err);
}
