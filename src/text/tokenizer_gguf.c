/* Vocabularies in GGUF files; see tokenizer.h.
 *
 * A GGUF file names its pre-tokenizer instead of spelling it out. The names known here are those whose rules in
 * llama.cpp and in the model's own tokenizer.json are known to agree; others are refused. Where the original normalises
 * (Qwen: NFC), it is done here too.
 */
#include "text/parts.h"

#include "format/gguf.h"
#include "format/quote.h"

#include <string.h>

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

#define KEY "tokenizer.ggml."

/* Patterns of GPT-4o and Tekken: words by case. */
#define UPPER      "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER      "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define GPT4O_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PATTERN_GPT4O                                                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER   \
    "*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}" GPT4O_TAIL
#define PATTERN_TEKKEN                                                                                                 \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*|\\p{N}" GPT4O_TAIL

typedef struct pre_rule {
    const char *name, *patterns[3];
    bool digits, nfc, ignore_merges, add_bos;
} pre_rule;

static const pre_rule rules[] = {
    {.name = "gpt-2", .patterns = {HH_PATTERN_GPT2}},
    {.name = "phi-2", .patterns = {HH_PATTERN_GPT2}},
    {.name = "smollm", .patterns = {HH_PATTERN_GPT2}, .digits = true},
    {.name = "starcoder", .patterns = {HH_PATTERN_GPT2}, .digits = true},
    {.name = "refact", .patterns = {HH_PATTERN_GPT2}, .digits = true},
    {.name = "qwen2", .patterns = {HH_PATTERN_QWEN2}, .nfc = true},
    {.name = "qwen35", .patterns = {HH_PATTERN_QWEN35}, .nfc = true},
    {.name = "llama3", .patterns = {HH_PATTERN_LLAMA3}, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .patterns = {HH_PATTERN_LLAMA3}, .ignore_merges = true, .add_bos = true},
    {.name = "llama-bpe", .patterns = {HH_PATTERN_LLAMA3}, .ignore_merges = true, .add_bos = true},
    {.name = "gpt-4o", .patterns = {PATTERN_GPT4O}},
    {.name = "llama4", .patterns = {PATTERN_GPT4O}},
    {.name = "tekken", .patterns = {PATTERN_TEKKEN}, .ignore_merges = true, .add_bos = true},
    {.name = "deepseek-v3",
     .patterns = {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
                  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
                  "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
};

static hh_code fail_key(const hh_tokenizer *t, const char *key, const char *what, hh_error *err) {
    return hh_fail(err, HH_EFORMAT, "%s: the metadata " KEY "%s %s", t->path, key, what);
}

static const pre_rule *find_rule(const char *name, size_t len) {
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (strlen(rules[i].name) == len && memcmp(rules[i].name, name, len) == 0) return &rules[i];
    return NULL;
}

static hh_code set_rule(hh_tokenizer *t, const pre_rule *rule, hh_error *err) {
    t->bpe.ignore_merges = rule->ignore_merges;
    if (rule->nfc)
        HH_TRY(hh_normaliser_add(&t->normaliser, (hh_normalise_step){.kind = HH_NORMALISE_UNICODE, .form = HH_NFC},
                                 t->path, err));
    if (rule->digits) HH_TRY(hh_splitter_add(&t->splitter, (hh_split_stage){.kind = HH_SPLIT_DIGITS}, t->path, err));
    for (size_t i = 0; i < 3 && rule->patterns[i]; i++)
        HH_TRY(hh_splitter_add_pattern(&t->splitter, t->path, KEY "pre", rule->patterns[i],
                                       (hh_split_stage){.kind = HH_SPLIT_REGEX}, err));
    return HH_OK;
}

static hh_code read_rule(hh_tokenizer *t, const hh_gguf *g, const pre_rule **rule, hh_error *err) {
    const char *name;
    size_t len;
    hh_quote q;
    if (!hh_gguf_string(g, KEY "model", &name, &len)) return fail_key(t, "model", "is missing", err);
    if (len != 4 || memcmp(name, "gpt2", 4) != 0)
        return hh_fail(err, HH_EUNSUPPORTED, "%s: " KEY "model is %s; only byte-level BPE ('gpt2') is supported",
                       t->path, hh_quoted(&q, name, len));
    if (!hh_gguf_string(g, KEY "pre", &name, &len))
        return hh_fail(err, HH_EUNSUPPORTED,
                       "%s: " KEY "pre, which names the pre-tokenizer, is missing; convert the model anew", t->path);
    *rule = find_rule(name, len);
    if (*rule) return HH_OK;
    if (len == 7 && !memcmp(name, "default", 7)) /* llama.cpp's guess, by which it warns that results suffer */
        return hh_fail(err, HH_EUNSUPPORTED,
                       "%s: " KEY
                       "pre is 'default', which a converter writes that did not know the model, and which no "
                       "supported family was trained with; convert the model anew",
                       t->path);
    hh_buf known = {0};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        hh_buf_printf(&known, "%s%s", i ? ", " : "", rules[i].name);
    hh_fail(err, HH_EUNSUPPORTED, "%s: " KEY "pre is %s; known are %s", t->path, hh_quoted(&q, name, len), known.data);
    hh_buf_release(&known);
    return HH_EUNSUPPORTED;
}

static hh_code read_tokens(hh_tokenizer *t, const hh_gguf *g, hh_error *err) {
    int64_t n, n_types;
    if (!hh_gguf_array_count(g, KEY "tokens", &n)) return fail_key(t, "tokens", "is missing", err);
    if (n > HH_VOCAB_MAX_ID) return fail_key(t, "tokens", "has more than 16777216 elements", err);
    bool typed = hh_gguf_array_count(g, KEY "token_type", &n_types);
    if (typed && n_types != n) return fail_key(t, "token_type", "has another length than tokens", err);
    for (int64_t i = 0; i < n; i++) {
        const char *s;
        size_t len;
        int64_t type = TYPE_NORMAL;
        if (!hh_gguf_array_string(g, KEY "tokens", i, &s, &len))
            return fail_key(t, "tokens", "is no list of strings", err);
        if (typed && !hh_gguf_array_int(g, KEY "token_type", i, &type))
            return fail_key(t, "token_type", "is no list of integers", err);
        if (type < TYPE_NORMAL || type > TYPE_UNUSED)
            return hh_fail(err, HH_EUNSUPPORTED, "%s: " KEY "token_type[%lld] is %lld; known are 1 to 5", t->path,
                           (long long)i, (long long)type);
        bool special = type == TYPE_CONTROL || type == TYPE_UNKNOWN, added = special || type == TYPE_USER;
        if (!added) {
            hh_vocab_set_written(&t->vocab, (int32_t)i, s, len, 0);
            continue;
        }
        if (special)
            hh_vocab_set_written(&t->vocab, (int32_t)i, s, len, HH_TOKEN_ADDED | HH_TOKEN_SPECIAL);
        else
            hh_vocab_set(&t->vocab, (int32_t)i, s, len, HH_TOKEN_ADDED);
        hh_added_push(&t->added, s, len, (hh_added_token){.id = (int32_t)i, .special = special});
    }
    return hh_added_finish(&t->added, err);
}

static hh_code read_merges(hh_tokenizer *t, const hh_gguf *g, hh_error *err) {
    int64_t n;
    if (!hh_gguf_array_count(g, KEY "merges", &n)) return fail_key(t, "merges", "is missing", err);
    if (n > INT32_MAX) return fail_key(t, "merges", "is too long", err);
    hh_bpe_init(&t->bpe, &t->vocab, (size_t)n);
    hh_buf joined = {0};
    hh_code code = HH_OK;
    for (int64_t i = 0; i < n && code == HH_OK; i++) {
        const char *s;
        size_t len;
        if (!hh_gguf_array_string(g, KEY "merges", i, &s, &len)) {
            code = fail_key(t, "merges", "is no list of strings", err);
            break;
        }
        const char *space = len > 1 ? memchr(s + 1, ' ', len - 1) : NULL;
        size_t left_len = space ? (size_t)(space - s) : 0, right_len = space ? len - left_len - 1 : 0;
        int32_t left = -1, right = -1, id = -1;
        if (space) {
            hh_buf_clear(&joined);
            hh_buf_add(&joined, s, left_len);
            hh_buf_add(&joined, space + 1, right_len);
            left = hh_vocab_find_written(&t->vocab, s, left_len);
            right = hh_vocab_find_written(&t->vocab, space + 1, right_len);
            id = hh_vocab_find_written(&t->vocab, joined.data, joined.len);
        }
        hh_quote q;
        if (left < 0 || right < 0 || id < 0)
            code = hh_fail(err, HH_EFORMAT, "%s: " KEY "merges[%lld], %s, is no pair of tokens that make a third",
                           t->path, (long long)i, hh_quoted(&q, s, len));
        else
            hh_bpe_add(&t->bpe, left, right, (int32_t)i, id);
    }
    hh_buf_release(&joined);
    return code;
}

/* An id among the tokens; -1: absent. */
static int32_t read_id(const hh_tokenizer *t, const hh_gguf *g, const char *key) {
    int64_t id;
    return hh_gguf_int(g, key, &id) && id >= 0 && id < t->vocab.size ? (int32_t)id : -1;
}

static hh_code read_ends(hh_tokenizer *t, const hh_gguf *g, bool add_bos, hh_error *err) {
    bool add_eos = false;
    t->bos = read_id(t, g, KEY "bos_token_id");
    t->eos = read_id(t, g, KEY "eos_token_id");
    static const char *const ends[] = {KEY "eos_token_id", KEY "eot_token_id", KEY "eom_token_id"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) hh_tokenizer_add_end(t, read_id(t, g, ends[i]));
    hh_gguf_bool(g, KEY "add_bos_token", &add_bos);
    hh_gguf_bool(g, KEY "add_eos_token", &add_eos);
    if (add_bos && t->bos < 0) return fail_key(t, "bos_token_id", "is missing, and add_bos_token asks for it", err);
    if (add_eos && t->eos < 0) return fail_key(t, "eos_token_id", "is missing, and add_eos_token asks for it", err);
    if (add_bos) hh_ids_push(&t->before, t->bos);
    if (add_eos) hh_ids_push(&t->after, t->eos);
    return HH_OK;
}

static hh_code read_gguf(hh_tokenizer *t, const hh_gguf *g, hh_error *err) {
    const pre_rule *rule = NULL;
    HH_TRY(read_rule(t, g, &rule, err));
    HH_TRY(set_rule(t, rule, err));
    HH_TRY(read_tokens(t, g, err));
    HH_TRY(read_merges(t, g, err));
    HH_TRY(read_ends(t, g, rule->add_bos, err));
    const char *template;
    size_t len;
    if (hh_gguf_string(g, "tokenizer.chat_template", &template, &len))
        t->chat_template = hh_sprintf("%.*s", (int)(len < INT32_MAX ? len : INT32_MAX), template);
    return HH_OK;
}

hh_code hh_tokenizer_open_gguf(hh_tokenizer **out, const hh_gguf *g, const char *path, hh_error *err) {
    hh_tokenizer *t = hh_tokenizer_new(path);
    hh_code code = read_gguf(t, g, err);
    *out = code == HH_OK ? t : NULL;
    if (code != HH_OK) hh_tokenizer_close(t);
    return code;
}
