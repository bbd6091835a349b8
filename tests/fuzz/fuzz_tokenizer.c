/* Any bytes as tokenizer.json, or as the vocabulary of a GGUF file: refused with a sentence that names the file, or a
 * tokenizer that encodes and decodes. */
#include "format/gguf.h"
#include "text/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const hh_tokenizer *t, const char *text, size_t n, int flags) {
    hh_error err = {0};
    hh_ids ids = {0};
    hh_buf out = {0};
    if (hh_tokenizer_encode(t, text, n, flags, &ids, &err) == HH_OK) {
        for (int64_t i = 0; i < ids.len; i++) {
            size_t len;
            HH_ASSERT(hh_tokenizer_token(t, ids.data[i], &len));
        }
        HH_ASSERT(hh_tokenizer_decode(t, ids.data, ids.len, true, &out, &err) == HH_OK);
    } else {
        HH_ASSERT(ids.len == 0 && strncmp(err.text, "fuzz.json: ", 11) == 0);
    }
    hh_ids_release(&ids);
    hh_buf_release(&out);
}

static hh_code parse(hh_tokenizer **t, const uint8_t *data, size_t size, hh_error *err) {
    *t = NULL;
    if (size < 4 || memcmp(data, "GGUF", 4) != 0)
        return hh_tokenizer_parse_json(t, "fuzz.json", (const char *)data, size, err);
    hh_gguf *g;
    HH_TRY(hh_gguf_parse(&g, "fuzz.json", data, size, err));
    hh_code code = hh_tokenizer_open_gguf(t, g, "fuzz.json", err);
    hh_gguf_free(g);
    return code;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "ab  ba12 3\n\n<x>e\xcc\x81 \xc3\xa9\xff'S!? a\r\n\xe6\xbc\xa2 ab";
    hh_error err = {0};
    hh_tokenizer *t;
    if (parse(&t, data, size, &err) != HH_OK) {
        HH_ASSERT(!t && strncmp(err.text, "fuzz.json: ", 11) == 0);
        return 0;
    }
    use(t, text, sizeof text - 1, HH_ENCODE_PLAIN);
    use(t, text, sizeof text - 1, HH_ENCODE_SPECIAL | HH_ENCODE_BOS_EOS);
    use(t, (const char *)data, size < 2000 ? size : 2000, HH_ENCODE_SPECIAL);
    hh_tokenizer_close(t);
    return 0;
}
