/* Rules of tokenizer.json; see rules_json.h. What is not understood is refused by its name: a rule that is passed over
 * would give other ids. */
#include "text/rules_json.h"

#include <stdio.h>
#include <string.h>

/* An object inside another with the name it has there; the name lives here. */
typedef struct inner {
    hh_json_object o;
    char within[200];
} inner;

static hh_code open_inner(inner *in, hh_json_object parent, const char *field, hh_error *err) {
    snprintf(in->within, sizeof in->within, "%.140s%.40s.", parent.within, field);
    return hh_json_sub(&in->o, parent, field, in->within, err);
}

/* Item i of the list `field` of an object. */
static hh_code open_item(inner *in, hh_json_object parent, const char *field, size_t i, hh_error *err) {
    const json_t *item = json_array_get(hh_json_get(parent, field), i);
    snprintf(in->within, sizeof in->within, "%.140s%.40s[%zu].", parent.within, field, i);
    in->o = (hh_json_object){item, parent.path, in->within};
    if (!json_is_object(item)) return hh_fail(err, HH_EFORMAT, "%s: %s is no object", parent.path, in->within);
    return HH_OK;
}

static hh_code need_list(hh_json_object o, const char *field, size_t *n, hh_error *err) {
    const json_t *list = hh_json_get(o, field);
    if (!json_is_array(list)) return hh_json_refuse(o, field, HH_EFORMAT, "a list", err);
    *n = json_array_size(list);
    return HH_OK;
}

static hh_code need_string(hh_json_object o, const char *field, const char **out, hh_error *err) {
    HH_TRY(hh_json_need(o, field, err));
    return hh_json_string(o, field, out, err);
}

static bool is_among(const char *name, const char *words) {
    size_t n = strlen(name);
    for (const char *w = words; n && w; w = strchr(w, '|')) {
        if (*w == '|') w++;
        if (strncmp(w, name, n) == 0 && (w[n] == '|' || !w[n])) return true;
    }
    return false;
}

hh_code hh_rules_only(hh_json_object o, const char *allowed, hh_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)o.json, name, value) {
        if (!is_among(name, allowed)) return hh_json_refuse(o, name, HH_EUNSUPPORTED, "no such field", err);
    }
    return HH_OK;
}

/* "String" or "Regex" of a pattern object. */
static hh_code read_pattern(hh_json_object o, const char **string, const char **regex, hh_error *err) {
    inner p;
    *string = *regex = NULL;
    HH_TRY(hh_json_need(o, "pattern", err));
    HH_TRY(open_inner(&p, o, "pattern", err));
    HH_TRY(hh_rules_only(p.o, "String|Regex", err));
    HH_TRY(hh_json_string(p.o, "String", string, err));
    HH_TRY(hh_json_string(p.o, "Regex", regex, err));
    if (!*string == !*regex || (*string && !**string))
        return hh_json_refuse(o, "pattern", HH_EFORMAT, "a String or a Regex", err);
    return HH_OK;
}

/* ---- normalizer */

static hh_code read_replace(hh_tokenizer *t, hh_json_object o, hh_error *err) {
    const char *string, *regex, *content = NULL;
    HH_TRY(hh_rules_only(o, "type|pattern|content", err));
    HH_TRY(need_string(o, "content", &content, err));
    HH_TRY(read_pattern(o, &string, &regex, err));
    hh_normalise_step step = {.kind = HH_NORMALISE_REPLACE};
    if (regex) HH_TRY(hh_regex_compile(&step.regex, o.path, "normalizer", regex, err));
    if (string) step.pattern = hh_strdup(string);
    step.content = hh_strdup(content);
    return hh_normaliser_add(&t->normaliser, step, o.path, err);
}

static hh_code read_prepend(hh_tokenizer *t, hh_json_object o, hh_error *err) {
    const char *content = NULL;
    HH_TRY(hh_rules_only(o, "type|prepend", err));
    HH_TRY(need_string(o, "prepend", &content, err));
    return hh_normaliser_add(
        &t->normaliser, (hh_normalise_step){.kind = HH_NORMALISE_PREPEND, .content = hh_strdup(content)}, o.path, err);
}

static hh_code read_normalizer(hh_tokenizer *t, hh_json_object o, hh_error *err) {
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    const char *type = NULL;
    HH_TRY(need_string(o, "type", &type, err));
    if (strcmp(type, "Sequence") == 0) {
        size_t n;
        HH_TRY(hh_rules_only(o, "type|normalizers", err));
        HH_TRY(need_list(o, "normalizers", &n, err));
        for (size_t i = 0; i < n; i++) {
            inner in;
            HH_TRY(open_item(&in, o, "normalizers", i, err));
            HH_TRY(read_normalizer(t, in.o, err));
        }
        return HH_OK;
    }
    if (strcmp(type, "Replace") == 0) return read_replace(t, o, err);
    if (strcmp(type, "Prepend") == 0) return read_prepend(t, o, err);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (strcmp(type, forms[i]) != 0) continue;
        HH_TRY(hh_rules_only(o, "type", err));
        return hh_normaliser_add(
            &t->normaliser, (hh_normalise_step){.kind = HH_NORMALISE_UNICODE, .form = (hh_normal_form)i}, o.path, err);
    }
    return hh_json_refuse(o, "type", HH_EUNSUPPORTED, "NFC, NFD, NFKC, NFKD, Replace, Prepend or Sequence", err);
}

hh_code hh_rules_read_normalizer(hh_tokenizer *t, hh_json_object top, hh_error *err) {
    inner in;
    if (!hh_json_get(top, "normalizer")) return HH_OK;
    HH_TRY(open_inner(&in, top, "normalizer", err));
    return read_normalizer(t, in.o, err);
}

/* ---- pre_tokenizer */

static hh_code read_behaviour(hh_json_object o, hh_split_behaviour *out, hh_error *err) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    HH_TRY(need_string(o, "behavior", &name, err));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (hh_split_behaviour)i;
        return HH_OK;
    }
    return hh_json_refuse(o, "behavior", HH_EUNSUPPORTED,
                          "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous", err);
}

static hh_code read_split(hh_tokenizer *t, hh_json_object o, hh_error *err) {
    hh_split_stage stage = {.kind = HH_SPLIT_REGEX};
    const char *string, *regex;
    HH_TRY(hh_rules_only(o, "type|pattern|behavior|invert", err));
    HH_TRY(read_behaviour(o, &stage.behaviour, err));
    HH_TRY(hh_json_bool(o, "invert", &stage.invert, err));
    HH_TRY(read_pattern(o, &string, &regex, err));
    if (regex) return hh_splitter_add_pattern(&t->splitter, o.path, "pre_tokenizer", regex, stage, err);
    stage.kind = HH_SPLIT_STRING;
    stage.string = hh_strdup(string);
    return hh_splitter_add(&t->splitter, stage, o.path, err);
}

static hh_code read_digits(hh_tokenizer *t, hh_json_object o, hh_error *err) {
    bool individual = false;
    HH_TRY(hh_rules_only(o, "type|individual_digits", err));
    HH_TRY(hh_json_bool(o, "individual_digits", &individual, err));
    hh_split_stage stage = {.kind = HH_SPLIT_DIGITS, .behaviour = individual ? HH_SPLIT_ISOLATED : HH_SPLIT_CONTIGUOUS};
    return hh_splitter_add(&t->splitter, stage, o.path, err);
}

static hh_code read_byte_level(hh_tokenizer *t, hh_json_object o, hh_error *err) {
    bool use_regex = true;
    hh_split_stage stage = {.kind = HH_SPLIT_BYTE_LEVEL, .add_prefix_space = true};
    HH_TRY(hh_rules_only(o, "type|add_prefix_space|trim_offsets|use_regex", err));
    HH_TRY(hh_json_bool(o, "add_prefix_space", &stage.add_prefix_space, err));
    HH_TRY(hh_json_bool(o, "use_regex", &use_regex, err));
    if (use_regex) return hh_splitter_add_pattern(&t->splitter, o.path, "pre_tokenizer", HH_PATTERN_GPT2, stage, err);
    return hh_splitter_add(&t->splitter, stage, o.path, err);
}

static hh_code read_pre_tokenizer(hh_tokenizer *t, hh_json_object o, hh_error *err) {
    const char *type = NULL;
    int n_stages = t->splitter.n_stages;
    if (n_stages && t->splitter.stages[n_stages - 1].kind == HH_SPLIT_BYTE_LEVEL)
        return hh_fail(err, HH_EUNSUPPORTED, "%s: pre_tokenizer: %s comes after ByteLevel, which has to be the last",
                       o.path, o.within);
    HH_TRY(need_string(o, "type", &type, err));
    if (strcmp(type, "Split") == 0) return read_split(t, o, err);
    if (strcmp(type, "Digits") == 0) return read_digits(t, o, err);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(t, o, err);
    if (strcmp(type, "Sequence") != 0)
        return hh_json_refuse(o, "type", HH_EUNSUPPORTED, "Split, Digits, ByteLevel or Sequence", err);
    size_t n;
    HH_TRY(hh_rules_only(o, "type|pretokenizers", err));
    HH_TRY(need_list(o, "pretokenizers", &n, err));
    for (size_t i = 0; i < n; i++) {
        inner in;
        HH_TRY(open_item(&in, o, "pretokenizers", i, err));
        HH_TRY(read_pre_tokenizer(t, in.o, err));
    }
    return HH_OK;
}

hh_code hh_rules_read_pre_tokenizer(hh_tokenizer *t, hh_json_object top, hh_error *err) {
    inner in;
    HH_TRY(hh_json_need(top, "pre_tokenizer", err));
    HH_TRY(open_inner(&in, top, "pre_tokenizer", err));
    HH_TRY(read_pre_tokenizer(t, in.o, err));
    int n = t->splitter.n_stages;
    if (!n || t->splitter.stages[n - 1].kind != HH_SPLIT_BYTE_LEVEL)
        return hh_fail(err, HH_EUNSUPPORTED,
                       "%s: pre_tokenizer: no ByteLevel at its end; only byte-level BPE is supported", top.path);
    return HH_OK;
}

/* ---- post_processor */

static hh_code append_special(hh_tokenizer *t, hh_json_object o, const char *name, hh_ids *out, hh_error *err) {
    inner all, one;
    HH_TRY(open_inner(&all, o, "special_tokens", err));
    HH_TRY(hh_json_need(all.o, name, err));
    HH_TRY(open_inner(&one, all.o, name, err));
    size_t n;
    HH_TRY(need_list(one.o, "ids", &n, err));
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(hh_json_get(one.o, "ids"), i);
        size_t len;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > HH_VOCAB_MAX_ID ||
            !hh_tokenizer_token(t, (int32_t)json_integer_value(id), &len))
            return hh_json_refuse(one.o, "ids", HH_EFORMAT, "ids of the vocabulary", err);
        hh_ids_push(out, (int32_t)json_integer_value(id));
    }
    return HH_OK;
}

static hh_code read_template_item(hh_tokenizer *t, hh_json_object o, hh_json_object item, bool *seen, hh_ids *before,
                                  hh_ids *after, hh_error *err) {
    inner in;
    const char *id = NULL;
    HH_TRY(hh_rules_only(item, "Sequence|SpecialToken", err));
    bool is_text = hh_json_get(item, "Sequence");
    HH_TRY(open_inner(&in, item, is_text ? "Sequence" : "SpecialToken", err));
    HH_TRY(hh_rules_only(in.o, "id|type_id", err));
    HH_TRY(need_string(in.o, "id", &id, err));
    if (!is_text) return append_special(t, o, id, *seen ? after : before, err);
    if (*seen || strcmp(id, "A") != 0) return hh_json_refuse(o, "single", HH_EUNSUPPORTED, "the sequence A once", err);
    *seen = true;
    return HH_OK;
}

static hh_code read_template(hh_tokenizer *t, hh_json_object o, hh_error *err) {
    hh_ids before = {0}, after = {0};
    bool seen = false;
    size_t n = 0;
    HH_TRY(hh_rules_only(o, "type|single|pair|special_tokens", err));
    HH_TRY(need_list(o, "single", &n, err));
    hh_code code = HH_OK;
    for (size_t i = 0; i < n && code == HH_OK; i++) {
        inner in;
        code = open_item(&in, o, "single", i, err);
        if (code == HH_OK) code = read_template_item(t, o, in.o, &seen, &before, &after, err);
    }
    if (code == HH_OK && !seen) code = hh_json_refuse(o, "single", HH_EUNSUPPORTED, "the sequence A once", err);
    if (code == HH_OK && (t->before.len || t->after.len))
        code = hh_fail(err, HH_EUNSUPPORTED, "%s: post_processor: two TemplateProcessing in one Sequence", o.path);
    if (code == HH_OK) {
        t->before = before;
        t->after = after;
        return HH_OK;
    }
    hh_ids_release(&before);
    hh_ids_release(&after);
    return code;
}

static hh_code read_post_processor(hh_tokenizer *t, hh_json_object o, hh_error *err) {
    const char *type = NULL;
    HH_TRY(need_string(o, "type", &type, err));
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(t, o, err);
    if (strcmp(type, "ByteLevel") == 0) /* moves offsets only */
        return hh_rules_only(o, "type|add_prefix_space|trim_offsets|use_regex", err);
    if (strcmp(type, "Sequence") != 0)
        return hh_json_refuse(o, "type", HH_EUNSUPPORTED, "TemplateProcessing, ByteLevel or Sequence", err);
    size_t n;
    HH_TRY(hh_rules_only(o, "type|processors", err));
    HH_TRY(need_list(o, "processors", &n, err));
    for (size_t i = 0; i < n; i++) {
        inner in;
        HH_TRY(open_item(&in, o, "processors", i, err));
        HH_TRY(read_post_processor(t, in.o, err));
    }
    return HH_OK;
}

hh_code hh_rules_read_post_processor(hh_tokenizer *t, hh_json_object top, hh_error *err) {
    inner in;
    if (!hh_json_get(top, "post_processor")) return HH_OK;
    HH_TRY(open_inner(&in, top, "post_processor", err));
    return read_post_processor(t, in.o, err);
}

/* ---- decoder */

static hh_code check_decoder(hh_json_object o, hh_error *err) {
    const char *type = NULL;
    HH_TRY(need_string(o, "type", &type, err));
    if (strcmp(type, "ByteLevel") == 0) return hh_rules_only(o, "type|add_prefix_space|trim_offsets|use_regex", err);
    size_t n;
    if (strcmp(type, "Sequence") != 0) return hh_json_refuse(o, "type", HH_EUNSUPPORTED, "ByteLevel", err);
    HH_TRY(need_list(o, "decoders", &n, err));
    if (n != 1) return hh_json_refuse(o, "decoders", HH_EUNSUPPORTED, "ByteLevel alone", err);
    inner in;
    HH_TRY(open_item(&in, o, "decoders", 0, err));
    return check_decoder(in.o, err);
}

hh_code hh_rules_check_decoder(hh_json_object top, hh_error *err) {
    inner in;
    HH_TRY(hh_json_need(top, "decoder", err));
    HH_TRY(open_inner(&in, top, "decoder", err));
    return check_decoder(in.o, err);
}
