/* A chat template and turns, parts of the input between NULs: the template, then role and content in turn; with no
 * template, nano's tokenizer's own. Refused with a sentence, and nothing is added, or a prompt whose special tokens are
 * the template's alone. */
#include "base/filemap.h"
#include "text/parts.h"

#include <jansson.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_TURNS = 16 };

/* nano's vocabulary with the tokens that templates name. */
static hh_tokenizer *open_tokenizer(void) {
    static const char *const names[] = {
        "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<think>", "</think>"};
    hh_error err = {0};
    hh_buf file = {0};
    hh_tokenizer *t;
    if (hh_file_read("models/nano/tokenizer.json", 1 << 24, &file, &err) != HH_OK)
        hh_assert_failed(__FILE__, __LINE__, err.text);
    json_t *json = json_loadb(file.data, file.len, 0, NULL), *added = json_object_get(json, "added_tokens");
    const json_t *vocab = json_object_get(json_object_get(json, "model"), "vocab");
    int next = (int)json_object_size(vocab);
    for (size_t i = 0; i < json_array_size(added); i++) {
        const int id = (int)json_integer_value(json_object_get(json_array_get(added, i), "id"));
        if (id >= next) next = id + 1;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        json_array_append_new(added,
                              json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", next++, "content", names[i],
                                        "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    char *text = json_dumps(json, 0);
    if (hh_tokenizer_parse_json(&t, "fuzz.json", text, strlen(text), &err) != HH_OK)
        hh_assert_failed(__FILE__, __LINE__, err.text);
    hh_free(text);
    json_decref(json);
    hh_buf_release(&file);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static hh_tokenizer *t;
    hh_error err = {0};
    hh_chat_turn turn[MOST_TURNS];
    int64_t n = 0;
    if (!t) t = open_tokenizer();
    char *copy = hh_alloc(size + 1), *end = copy + size;
    if (size) memcpy(copy, data, size);
    *end = 0;
    char *at = copy + strlen(copy) + 1;
    hh_free(t->chat_template);
    t->chat_template = *copy ? hh_strdup(copy) : NULL;
    while (at < end && n < MOST_TURNS) {
        const char *role = at;
        at += strlen(at) + 1;
        if (at > end) break;
        turn[n++] = (hh_chat_turn){role, at};
        at += strlen(at) + 1;
    }
    hh_ids out = {0};
    hh_ids_push(&out, 1);
    if (hh_tokenizer_chat(t, turn, n, &out, &err) != HH_OK) {
        HH_ASSERT(out.len == 1 && err.text[0]);
    } else {
        int64_t special = 0;
        for (int64_t i = 1; i < out.len; i++) {
            HH_ASSERT(out.data[i] >= 0 && out.data[i] < hh_tokenizer_vocab_size(t));
            special += hh_tokenizer_is_special(t, out.data[i]);
        }
        HH_ASSERT(out.len > 1 && special <= 3 * (n + 2) + 1); /* at most three a turn, one default turn, one answer */
    }
    hh_ids_release(&out);
    hh_free(copy);
    return 0;
}
