/* Any bytes as a file of pairs, of choice items, of prompts: refused with file and line, or something the measures can
 * use. */
#include "data/choice.h"
#include "data/needle.h"
#include "eval/generate.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const hh_tokenizer *tokenizer(void) {
    static hh_tokenizer *t;
    hh_error err;
    if (!t && hh_tokenizer_open_json(&t, "models/nano/tokenizer.json", &err) != HH_OK)
        hh_assert_failed(__FILE__, __LINE__, err.text);
    return t;
}

static void check_refusal(hh_code code, const hh_error *err) {
    HH_ASSERT(code == HH_OK || strncmp(err->text, "fuzz.jsonl", 10) == 0);
}

static void check_pairs(const char *bytes, size_t size) {
    hh_error err = {0};
    hh_pair *p;
    int64_t n;
    hh_code code = hh_pairs_parse("fuzz.jsonl", bytes, size, tokenizer(), &p, &n, &err);
    check_refusal(code, &err);
    if (code != HH_OK) return;
    for (int64_t i = 0; i < n; i++) HH_ASSERT(p[i].prompt.len == p[i].corrupt.len && p[i].answer.len > 0);
    hh_pairs_free(p, n);
}

static void check_choice(const char *bytes, size_t size) {
    hh_error err = {0};
    hh_choice_set s;
    hh_code code = hh_choice_parse(&s, "fuzz.jsonl", bytes, size, 0, &err);
    check_refusal(code, &err);
    if (code != HH_OK) return;
    hh_ids ids = {0};
    for (int64_t i = 0; i < s.n; i++)
        for (int64_t j = 0; j < s.item[i].n; j++) {
            int64_t n_context;
            bool truncated;
            HH_ASSERT(s.item[i].gold >= 0 && s.item[i].gold < s.item[i].n && s.item[i].chars[j] <= s.item[i].bytes[j]);
            if (hh_choice_encode(tokenizer(), s.item[i].context[j], s.item[i].text[j], 16, &ids, &n_context, &truncated,
                                 &err) != HH_OK)
                hh_assert_failed(__FILE__, __LINE__, err.text);
            HH_ASSERT(n_context >= 1 && n_context < ids.len && ids.len <= 17);
        }
    hh_ids_release(&ids);
    hh_choice_release(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *bytes = (const char *)data;
    hh_error err = {0};
    hh_prompts p;
    check_pairs(bytes, size);
    check_choice(bytes, size);
    hh_code code = hh_prompts_parse(&p, "fuzz.jsonl", bytes, size, 0, &err);
    check_refusal(code, &err);
    if (code == HH_OK) hh_prompts_release(&p);
    return 0;
}
