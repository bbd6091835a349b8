/* Items scored by log-likelihood; see choice.h. */
#include "data/choice.h"

#include "data/jsonl.h"

#include <string.h>

#define MAX_OPTIONS 64

static int64_t count_characters(const char *s) {
    int64_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

typedef struct reading {
    hh_choice_set *set;
    int64_t capacity;
} reading;

static const char *kind_name(hh_choice_kind k) {
    if (k == HH_CHOICE_MULTIPLE) return "query and choices";
    return k == HH_CHOICE_CONTEXTS ? "context_options and continuation" : "context and continuation";
}

static hh_code find_kind(const json_t *o, hh_choice_kind *kind, hh_error *err) {
    if (json_object_get(o, "choices"))
        *kind = HH_CHOICE_MULTIPLE;
    else if (json_object_get(o, "context_options"))
        *kind = HH_CHOICE_CONTEXTS;
    else if (json_object_get(o, "context"))
        *kind = HH_CHOICE_CONTINUATION;
    else
        return hh_fail(err, HH_EFORMAT, "neither \"choices\" nor \"context_options\" nor \"context\" is there");
    return HH_OK;
}

/* An array of at least two strings, none of them empty. */
static hh_code check_options(const json_t *o, const char *field, json_t **out, hh_error *err) {
    json_t *a = json_object_get(o, field);
    size_t n = json_array_size(a);
    if (!json_is_array(a) || n < 2 || n > MAX_OPTIONS)
        return hh_fail(err, HH_EFORMAT, "\"%s\" is not an array of 2 to %d strings", field, MAX_OPTIONS);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(a, i);
        if (!json_is_string(v) || json_string_length(v) == 0 || strlen(json_string_value(v)) != json_string_length(v))
            return hh_fail(err, HH_EFORMAT, "\"%s\"[%zu] is not a string with text in it", field, i);
    }
    *out = a;
    return HH_OK;
}

static hh_code read_gold(const json_t *o, int64_t n, int64_t *gold, hh_error *err) {
    const json_t *v = json_object_get(o, "gold");
    if (!json_is_integer(v)) return hh_fail(err, HH_EFORMAT, "\"gold\" is missing or not a whole number");
    *gold = (int64_t)json_integer_value(v);
    if (*gold < 0 || *gold >= n)
        return hh_fail(err, HH_EFORMAT, "\"gold\" is %lld, but there are %lld options", (long long)*gold, (long long)n);
    return HH_OK;
}

static void set_option(hh_choice_item *item, int64_t i, const char *context, const char *text, const char *measured) {
    item->context[i] = hh_strdup(context);
    item->text[i] = hh_sprintf(" %s", text);
    item->chars[i] = count_characters(measured);
    item->bytes[i] = (int64_t)strlen(measured);
}

static hh_code read_item(void *context, const json_t *o, hh_error *err) {
    reading *r = context;
    hh_choice_set *set = r->set;
    hh_choice_kind kind = set->kind;
    json_t *options = NULL;
    const char *before = NULL, *behind = NULL;
    int64_t gold = 0;
    HH_TRY(find_kind(o, &kind, err));
    if (set->n == 0) set->kind = kind;
    if (kind != set->kind)
        return hh_fail(err, HH_EFORMAT, "%s here, but the lines before have %s; one file holds one kind",
                       kind_name(kind), kind_name(set->kind));
    if (kind == HH_CHOICE_MULTIPLE) HH_TRY(hh_jsonl_string(o, "query", &before, err));
    if (kind == HH_CHOICE_CONTINUATION) HH_TRY(hh_jsonl_string(o, "context", &before, err));
    if (kind != HH_CHOICE_MULTIPLE) {
        HH_TRY(hh_jsonl_string(o, "continuation", &behind, err));
        if (!*behind) return hh_fail(err, HH_EFORMAT, "\"continuation\" is empty");
    }
    if (kind != HH_CHOICE_CONTINUATION) {
        HH_TRY(check_options(o, kind == HH_CHOICE_MULTIPLE ? "choices" : "context_options", &options, err));
        HH_TRY(read_gold(o, (int64_t)json_array_size(options), &gold, err));
    }
    if (set->n == r->capacity)
        set->item = hh_realloc(set->item, (size_t)(r->capacity = 2 * r->capacity + 64) * sizeof *set->item);
    size_t n = options ? json_array_size(options) : 1;
    hh_choice_item *item = &set->item[set->n++];
    *item = (hh_choice_item){.n = (int64_t)n,
                             .gold = gold,
                             .context = hh_alloc(n * sizeof(char *)),
                             .text = hh_alloc(n * sizeof(char *)),
                             .chars = hh_alloc(n * sizeof(int64_t)),
                             .bytes = hh_alloc(n * sizeof(int64_t))};
    for (size_t i = 0; i < n; i++) {
        const char *option = options ? json_string_value(json_array_get(options, i)) : behind;
        set_option(item, (int64_t)i, before ? before : option, behind ? behind : option, option);
    }
    return HH_OK;
}

static hh_code finish(hh_choice_set *set, hh_code code, const char *path, hh_error *err) {
    if (code == HH_OK && set->n == 0) code = hh_fail(err, HH_EFORMAT, "%s: no items; one JSON object a line", path);
    if (code != HH_OK) hh_choice_release(set);
    return code;
}

hh_code hh_choice_parse(hh_choice_set *out, const char *path, const char *bytes, size_t size, int64_t limit,
                        hh_error *err) {
    *out = (hh_choice_set){0};
    return finish(out, hh_jsonl_each(path, bytes, size, limit, read_item, &(reading){out, 0}, err), path, err);
}

hh_code hh_choice_read(hh_choice_set *out, const char *path, int64_t limit, hh_error *err) {
    *out = (hh_choice_set){0};
    return finish(out, hh_jsonl_read(path, limit, read_item, &(reading){out, 0}, err), path, err);
}

void hh_choice_release(hh_choice_set *s) {
    for (int64_t i = 0; i < s->n; i++) {
        hh_choice_item *item = &s->item[i];
        for (int64_t j = 0; j < item->n; j++) {
            hh_free(item->context[j]);
            hh_free(item->text[j]);
        }
        hh_free(item->context);
        hh_free(item->text);
        hh_free(item->chars);
        hh_free(item->bytes);
    }
    hh_free(s->item);
    *s = (hh_choice_set){0};
}

hh_code hh_choice_encode(const hh_tokenizer *t, const char *context, const char *text, int64_t max_length, hh_ids *ids,
                         int64_t *n_context, bool *truncated, hh_error *err) {
    size_t len = strlen(context), kept = len;
    while (kept > 0 && strchr(" \t\n\v\f\r", context[kept - 1])) kept--;
    ids->len = 0;
    if (kept > 0) HH_TRY(hh_tokenizer_encode(t, context, kept, HH_ENCODE_PLAIN, ids, err));
    *n_context = ids->len;
    ids->len = 0;
    if (kept == 0) {
        int32_t first = hh_tokenizer_bos(t) >= 0 ? hh_tokenizer_bos(t) : hh_tokenizer_eos(t);
        if (first < 0)
            return hh_fail(err, HH_EINVAL,
                           "an empty context, and the tokenizer has neither a begin nor an end token to stand for it");
        hh_ids_push(ids, first);
        *n_context = 1;
    }
    char *whole = hh_sprintf("%s%s", context, text);
    hh_code code = hh_tokenizer_encode(t, whole, strlen(whole), HH_ENCODE_PLAIN, ids, err);
    hh_free(whole);
    if (code != HH_OK) return code;
    if (*n_context >= ids->len) *n_context = ids->len - 1; /* merged away: at least its last token is scored */
    int64_t cut = ids->len - (max_length + 1);
    *truncated = cut > 0;
    if (cut > 0) {
        memmove(ids->data, ids->data + cut, (size_t)(ids->len - cut) * sizeof *ids->data);
        ids->len -= cut;
        *n_context = *n_context > cut ? *n_context - cut : 1;
    }
    return HH_OK;
}
