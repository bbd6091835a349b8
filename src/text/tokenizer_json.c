/* tokenizer.json and the files beside it; see tokenizer.h. */
#include "text/rules_json.h"

#include "base/filemap.h"
#include "format/quote.h"

#include <stdio.h>
#include <string.h>

enum { MAX_FILE_BYTES = 256 << 20 };

static hh_code fail_token(const hh_tokenizer *t, const char *token, const char *what, hh_error *err) {
    hh_quote q;
    return hh_fail(err, HH_EFORMAT, "%s: the token %s %s", t->path, hh_quoted(&q, token, strlen(token)), what);
}

static hh_code read_vocab(hh_tokenizer *t, hh_json_object model, hh_error *err) {
    json_t *vocab = hh_json_get(model, "vocab");
    if (!json_is_object(vocab)) return hh_json_refuse(model, "vocab", HH_EFORMAT, "an object", err);
    const char *token;
    json_t *id;
    /* Ids may have holes, but a table by id must not be much larger than the file. */
    json_int_t limit = 4 * (json_int_t)json_object_size(vocab) + 4096;
    if (limit > HH_VOCAB_MAX_ID) limit = HH_VOCAB_MAX_ID;
    json_object_foreach(vocab, token, id) {
        json_int_t n = json_integer_value(id);
        if (!json_is_integer(id) || n < 0) return fail_token(t, token, "has no proper id", err);
        if (n > limit) return fail_token(t, token, "has an id far beyond the number of tokens", err);
        if (n < t->vocab.size && t->vocab.flags[n]) return fail_token(t, token, "has the id of another token", err);
        hh_vocab_set_written(&t->vocab, (int32_t)n, token, strlen(token), 0);
    }
    return HH_OK;
}

/* "a b" or ["a", "b"] */
static bool split_merge(const json_t *merge, const char **a, size_t *a_len, const char **b) {
    if (json_is_string(merge)) {
        *a = json_string_value(merge);
        const char *space = strchr(*a, ' ');
        if (!space || strchr(space + 1, ' ')) return false;
        *a_len = (size_t)(space - *a);
        *b = space + 1;
        return true;
    }
    if (json_array_size(merge) != 2) return false;
    *a = json_string_value(json_array_get(merge, 0));
    *b = json_string_value(json_array_get(merge, 1));
    if (!*a || !*b) return false;
    *a_len = strlen(*a);
    return true;
}

static hh_code read_merges(hh_tokenizer *t, hh_json_object model, hh_error *err) {
    const json_t *merges = hh_json_get(model, "merges");
    if (!json_is_array(merges)) return hh_json_refuse(model, "merges", HH_EFORMAT, "a list", err);
    size_t n = json_array_size(merges);
    hh_bpe_init(&t->bpe, &t->vocab, n);
    hh_buf joined = {0};
    hh_code code = HH_OK;
    for (size_t i = 0; i < n && code == HH_OK; i++) {
        const char *a, *b;
        size_t a_len;
        if (!split_merge(json_array_get(merges, i), &a, &a_len, &b)) {
            code = hh_fail(err, HH_EFORMAT, "%s: model.merges[%zu] is no pair of tokens", t->path, i);
            break;
        }
        hh_buf_clear(&joined);
        hh_buf_add(&joined, a, a_len);
        hh_buf_puts(&joined, b);
        int32_t left = hh_vocab_find_written(&t->vocab, a, a_len),
                right = hh_vocab_find_written(&t->vocab, b, strlen(b)),
                id = hh_vocab_find_written(&t->vocab, joined.data, joined.len);
        if (left < 0 || right < 0 || id < 0) {
            hh_quote q;
            code =
                hh_fail(err, HH_EFORMAT, "%s: model.merges[%zu], which makes %s, has a token that the vocabulary lacks",
                        t->path, i, hh_quoted(&q, joined.data, joined.len));
        } else {
            hh_bpe_add(&t->bpe, left, right, (int32_t)i, id);
        }
    }
    hh_buf_release(&joined);
    return code;
}

static hh_code read_model(hh_tokenizer *t, hh_json_object top, hh_error *err) {
    hh_json_object model;
    const char *type = "BPE", *prefix = "", *suffix = "", *unknown = NULL;
    bool byte_fallback = false;
    double dropout = 0;
    HH_TRY(hh_json_need(top, "model", err));
    HH_TRY(hh_json_sub(&model, top, "model", "model.", err));
    HH_TRY(hh_rules_only(model,
                         "type|dropout|unk_token|continuing_subword_prefix|end_of_word_suffix|fuse_unk|byte_fallback|"
                         "ignore_merges|vocab|merges",
                         err));
    HH_TRY(hh_json_string(model, "type", &type, err));
    if (strcmp(type, "BPE") != 0) return hh_json_refuse(model, "type", HH_EUNSUPPORTED, "BPE", err);
    HH_TRY(hh_json_number(model, "dropout", 0, 1, &dropout, err));
    if (dropout != 0) return hh_json_refuse(model, "dropout", HH_EUNSUPPORTED, "null", err);
    HH_TRY(hh_json_string(model, "continuing_subword_prefix", &prefix, err));
    if (*prefix) return hh_json_refuse(model, "continuing_subword_prefix", HH_EUNSUPPORTED, "null", err);
    HH_TRY(hh_json_string(model, "end_of_word_suffix", &suffix, err));
    if (*suffix) return hh_json_refuse(model, "end_of_word_suffix", HH_EUNSUPPORTED, "null", err);
    HH_TRY(hh_json_bool(model, "byte_fallback", &byte_fallback, err));
    if (byte_fallback) return hh_json_refuse(model, "byte_fallback", HH_EUNSUPPORTED, "false", err);
    HH_TRY(read_vocab(t, model, err));
    HH_TRY(read_merges(t, model, err));
    HH_TRY(hh_json_bool(model, "fuse_unk", &t->bpe.fuse_unknown, err));
    HH_TRY(hh_json_bool(model, "ignore_merges", &t->bpe.ignore_merges, err));
    HH_TRY(hh_json_string(model, "unk_token", &unknown, err));
    if (!unknown) return HH_OK;
    t->bpe.unknown = hh_vocab_find_written(&t->vocab, unknown, strlen(unknown));
    return t->bpe.unknown >= 0 ? HH_OK
                               : hh_json_refuse(model, "unk_token", HH_EFORMAT, "a token of the vocabulary", err);
}

/* A token that the vocabulary lacks has the id *next: Hugging Face tokenizers numbers them so, whatever the file says.
 */
static hh_code read_added_token(hh_tokenizer *t, hh_json_object o, int64_t *next, hh_error *err) {
    static const char *const needed[] = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"};
    int64_t id = -1;
    const char *content = "";
    hh_added_token a = {0};
    HH_TRY(hh_rules_only(o, "id|content|single_word|lstrip|rstrip|normalized|special", err));
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) HH_TRY(hh_json_need(o, needed[i], err));
    HH_TRY(hh_json_int(o, "id", 0, HH_VOCAB_MAX_ID, &id, err));
    HH_TRY(hh_json_string(o, "content", &content, err));
    HH_TRY(hh_json_bool(o, "single_word", &a.single_word, err));
    HH_TRY(hh_json_bool(o, "lstrip", &a.lstrip, err));
    HH_TRY(hh_json_bool(o, "rstrip", &a.rstrip, err));
    HH_TRY(hh_json_bool(o, "normalized", &a.normalized, err));
    HH_TRY(hh_json_bool(o, "special", &a.special, err));
    size_t len = strlen(content);
    if (!len) return HH_OK;
    a.id = (int32_t)id;
    int flags = HH_TOKEN_ADDED | (a.special ? HH_TOKEN_SPECIAL : 0);
    int32_t known = hh_vocab_find_written(&t->vocab, content, len);
    if (known < 0) known = hh_vocab_find(&t->vocab, content, len, false);
    if (known >= 0 && known != id)
        return hh_json_refuse(o, "id", HH_EFORMAT, "the vocabulary's id for this content", err);
    bool taken = id < t->vocab.size && t->vocab.flags[id];
    if (known < 0 && (id != *next || taken))
        return hh_json_refuse(o, "id", HH_EFORMAT, "the first id behind all others", err);
    if (known < 0) (*next)++;
    if (known >= 0)
        t->vocab.flags[id] |= (uint8_t)flags;
    else
        hh_vocab_set(&t->vocab, a.id, content, len, flags);
    if (!a.normalized) {
        hh_added_push(&t->added, content, len, a);
        return HH_OK;
    }
    hh_buf room = {0};
    hh_regex_scratch scratch = {0};
    const char *normal;
    hh_code code = hh_normalise(&t->normaliser, &scratch, &normal, &len, &room, content, len, err);
    if (code == HH_OK) hh_added_push(&t->added_normal, normal, len, a);
    hh_regex_scratch_release(&scratch);
    hh_buf_release(&room);
    return code;
}

static hh_code read_added(hh_tokenizer *t, hh_json_object top, hh_error *err) {
    const json_t *list = hh_json_get(top, "added_tokens");
    if (list && !json_is_array(list)) return hh_json_refuse(top, "added_tokens", HH_EFORMAT, "a list", err);
    int64_t next = (int64_t)json_object_size(json_object_get(json_object_get(top.json, "model"), "vocab"));
    for (size_t i = 0; i < json_array_size(list); i++) {
        char within[40];
        snprintf(within, sizeof within, "added_tokens[%zu].", i);
        hh_json_object o = {json_array_get(list, i), top.path, within};
        if (!json_is_object(o.json)) return hh_fail(err, HH_EFORMAT, "%s: added_tokens[%zu] is no object", top.path, i);
        HH_TRY(read_added_token(t, o, &next, err));
    }
    HH_TRY(hh_added_finish(&t->added, err));
    return hh_added_finish(&t->added_normal, err);
}

/* Padding to the longest of a batch does nothing to one text. */
static hh_code check_padding(hh_json_object top, hh_error *err) {
    hh_json_object padding;
    const char *strategy = "";
    if (json_is_object(hh_json_get(top, "padding"))) {
        HH_TRY(hh_json_sub(&padding, top, "padding", "padding.", err));
        const json_t *s = hh_json_get(padding, "strategy");
        if (json_is_string(s)) strategy = json_string_value(s);
    }
    if (hh_json_get(top, "padding") && strcmp(strategy, "BatchLongest") != 0)
        return hh_json_refuse(top, "padding", HH_EUNSUPPORTED, "null", err);
    return HH_OK;
}

static hh_code read_tokenizer(hh_tokenizer *t, hh_json_object top, hh_error *err) {
    HH_TRY(hh_rules_only(
        top, "version|truncation|padding|added_tokens|normalizer|pre_tokenizer|post_processor|decoder|model", err));
    if (hh_json_get(top, "truncation")) return hh_json_refuse(top, "truncation", HH_EUNSUPPORTED, "null", err);
    HH_TRY(check_padding(top, err));
    HH_TRY(hh_rules_read_normalizer(t, top, err));
    HH_TRY(hh_rules_read_pre_tokenizer(t, top, err));
    HH_TRY(hh_rules_check_decoder(top, err));
    HH_TRY(read_model(t, top, err));
    HH_TRY(read_added(t, top, err));
    return hh_rules_read_post_processor(t, top, err);
}

hh_code hh_tokenizer_parse_json(hh_tokenizer **out, const char *path, const char *bytes, size_t size, hh_error *err) {
    json_t *json;
    *out = NULL;
    HH_TRY(hh_json_parse(&json, path, bytes, size, err));
    hh_tokenizer *t = hh_tokenizer_new(path);
    hh_code code = read_tokenizer(t, (hh_json_object){json, t->path, ""}, err);
    json_decref(json);
    if (code == HH_OK)
        *out = t;
    else
        hh_tokenizer_close(t);
    return code;
}

/* ---- the files beside it */

/* A token given as a string or as an object with its content; -1: absent or no token. */
static int32_t find_config_token(const hh_tokenizer *t, const json_t *config, const char *field) {
    const json_t *value = json_object_get(config, field);
    if (json_is_object(value)) value = json_object_get(value, "content");
    return json_is_string(value) ? hh_tokenizer_id(t, json_string_value(value)) : -1;
}

/* A template as a string, or as a list of named ones of which "default" counts. */
static const char *find_chat_template(const json_t *config) {
    const json_t *value = json_object_get(config, "chat_template");
    size_t i;
    json_t *item;
    json_array_foreach(value, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && strcmp(name, "default") == 0) return json_string_value(json_object_get(item, "template"));
    }
    return json_string_value(value);
}

static void add_end_ids(hh_tokenizer *t, const json_t *config) {
    const json_t *value = json_object_get(config, "eos_token_id");
    if (json_is_integer(value)) hh_tokenizer_add_end(t, json_integer_value(value));
    size_t i;
    json_t *item;
    json_array_foreach(value, i, item) {
        if (json_is_integer(item)) hh_tokenizer_add_end(t, json_integer_value(item));
    }
}

/* A JSON file of the same folder; *out stays NULL when there is none. */
static hh_code read_beside(json_t **out, const char *folder, const char *name, hh_error *err) {
    char *path = hh_path_join(folder, name);
    hh_code code = hh_file_exists(path) ? hh_json_read(out, path, MAX_FILE_BYTES, err) : HH_OK;
    hh_free(path);
    return code;
}

static hh_code read_neighbours(hh_tokenizer *t, const char *folder, hh_error *err) {
    json_t *config = NULL;
    HH_TRY(read_beside(&config, folder, "tokenizer_config.json", err));
    t->bos = find_config_token(t, config, "bos_token");
    t->eos = find_config_token(t, config, "eos_token");
    hh_tokenizer_add_end(t, t->eos);
    const char *template = find_chat_template(config);
    if (template) t->chat_template = hh_strdup(template);
    json_decref(config);
    static const char *const others[] = {"generation_config.json", "config.json"};
    for (size_t i = 0; i < 2; i++) {
        config = NULL;
        HH_TRY(read_beside(&config, folder, others[i], err));
        add_end_ids(t, config);
        json_decref(config);
    }
    if (t->eos < 0 && t->end_ids.len) t->eos = t->end_ids.data[0];
    char *path = hh_path_join(folder, "chat_template.jinja");
    hh_buf text = {0};
    hh_code code = hh_file_exists(path) ? hh_file_read(path, MAX_FILE_BYTES, &text, err) : HH_OK;
    if (code == HH_OK && text.len) {
        hh_free(t->chat_template);
        t->chat_template = hh_strdup(text.data);
    }
    hh_buf_release(&text);
    hh_free(path);
    return code;
}

hh_code hh_tokenizer_open_json(hh_tokenizer **out, const char *path, hh_error *err) {
    hh_buf text = {0};
    *out = NULL;
    hh_code code = hh_file_read(path, MAX_FILE_BYTES, &text, err);
    if (code == HH_OK) code = hh_tokenizer_parse_json(out, path, text.data, text.len, err);
    hh_buf_release(&text);
    HH_TRY(code);
    const char *slash = strrchr(path, '/');
    char *folder = slash ? hh_sprintf("%.*s", (int)(slash - path), path) : hh_strdup(".");
    code = read_neighbours(*out, slash == path ? "/" : folder, err);
    hh_free(folder);
    if (code != HH_OK) {
        hh_tokenizer_close(*out);
        *out = NULL;
    }
    return code;
}
