/* Any bytes as text, for nano's vocabulary under several rules (the first byte chooses): every byte comes back, whole
 * and token by token, and scanners cut as the regular expressions do (but for characters newer than PCRE2's tables). */
#include "base/filemap.h"
#include "text/normalise.h"
#include "text/split.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const rules[] = {
    " ?\\p{N}+|\\S",
    HH_PATTERN_GPT2,
    HH_PATTERN_LLAMA3,
    HH_PATTERN_QWEN2,
    HH_PATTERN_QWEN35,
    "\\s|[ae]{1,2}",
    "(?<=a).|\\s+$|^\\p{N}{1,3}",
};
enum { N_RULES = sizeof rules / sizeof rules[0] };

static hh_tokenizer
    *tokenizers[2 * N_RULES]; /* the second half with (?:) in front of the pattern, so that PCRE2 runs it */

static void open_all(void) {
    hh_error err = {0};
    hh_buf file = {0};
    HH_ASSERT(hh_file_read("models/nano/tokenizer.json", 1 << 24, &file, &err) == HH_OK);
    json_t *json = json_loadb(file.data, file.len, 0, NULL);
    HH_ASSERT(json);
    for (int i = 0; i < 2 * N_RULES; i++) {
        const char *pattern = rules[i % N_RULES];
        char *whole = hh_sprintf("%s%s", i < N_RULES ? "" : "(?:)", pattern);
        json_object_set_new(json, "pre_tokenizer",
                            json_pack("{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b}]}", "type", "Sequence",
                                      "pretokenizers", "type", "Split", "pattern", "Regex", whole, "behavior",
                                      "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space", 0, "use_regex",
                                      0));
        hh_free(whole);
        char *text = json_dumps(json, 0);
        HH_ASSERT(hh_tokenizer_parse_json(&tokenizers[i], "nano", text, strlen(text), &err) == HH_OK);
        hh_free(text);
    }
    json_decref(json);
    hh_buf_release(&file);
}

/* Has the text a character that PCRE2 does not know? */
static bool has_new_character(const char *text, size_t n) {
    static hh_regex *unassigned;
    hh_error err = {0};
    hh_regex_scratch scratch = {0};
    hh_buf room = {0};
    int64_t lo, hi;
    if (!unassigned) HH_ASSERT(hh_regex_compile_native(&unassigned, "\\p{Cn}", &err) == HH_OK);
    const char *shadow = hh_shadow(text, n, &room);
    HH_ASSERT(hh_regex_match(unassigned, &scratch, shadow, n, 0, &lo, &hi, &err) == HH_OK);
    hh_regex_scratch_release(&scratch);
    hh_buf_release(&room);
    return lo >= 0;
}

static hh_ids encode(const hh_tokenizer *t, const char *text, size_t n) {
    hh_error err = {0};
    hh_ids ids = {0};
    HH_ASSERT(hh_tokenizer_encode(t, text, n, HH_ENCODE_PLAIN, &ids, &err) == HH_OK);
    return ids;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!tokenizers[0]) open_all();
    if (size < 1) return 0;
    int rule = data[0] % N_RULES;
    const hh_tokenizer *t = tokenizers[rule];
    const char *text = (const char *)data + 1;
    size_t n = size - 1;
    hh_ids ids = encode(t, text, n), same = encode(tokenizers[rule + N_RULES], text, n);
    HH_ASSERT(
        has_new_character(text, n) ||
        (ids.len == same.len && (!ids.len || memcmp(ids.data, same.data, (size_t)ids.len * sizeof *ids.data) == 0)));
    hh_error err = {0};
    hh_buf whole = {0}, stream = {0};
    hh_detok d = {0};
    HH_ASSERT(hh_tokenizer_decode(t, ids.data, ids.len, false, &whole, &err) == HH_OK);
    for (int64_t i = 0; i < ids.len; i++) hh_detok_push(&d, t, ids.data[i], &stream);
    hh_detok_flush(&d, &stream);
    HH_ASSERT(whole.len == n && stream.len == n);
    HH_ASSERT(n == 0 || (memcmp(whole.data, text, n) == 0 && memcmp(stream.data, text, n) == 0));
    hh_buf_release(&whole);
    hh_buf_release(&stream);
    hh_ids_release(&ids);
    hh_ids_release(&same);
    return 0;
}
