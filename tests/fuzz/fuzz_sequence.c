/* Any bytes as a saved sequence of a tiny hybrid, as they are and with key and checksums mended: refused with a sentence
 * that names the file, or a sequence that goes on. */
#include "fuzz/folder.h"
#include "fuzz/mended.h"
#include "fuzz/fuzzed_model.h"
#include "session/session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CONTEXT = 96 };

static void use(hh_session *s, const char *path) {
    hh_error err = {0};
    if (hh_session_load(s, path, &err) != HH_OK) {
        HH_ASSERT(strncmp(err.text, path, strlen(path)) == 0);
        return;
    }
    HH_ASSERT(hh_session_position(s) >= 1 && hh_session_position(s) <= CONTEXT);
    hh_code code = hh_session_step(s, 3, &err); /* the numbers may be anything, and the context full */
    HH_ASSERT(code == HH_OK || err.text[0]);
}

/* Words of the head: 2 key, 3 length, 5 whether logits follow, 6 payload bytes; hashes of ids, payload, logits, head. */
static void mend(uint8_t *file, size_t size) {
    enum { HEAD = 88 };
    if (size < HEAD) return;
    const uint64_t ids = fuzz_word(file, 3) * sizeof(int32_t), payload = fuzz_word(file, 6);
    memcpy(file, "HHSEQ\0\0", 8);
    fuzz_set_word(file, 1, 1);
    fuzz_set_word(file, 2, hh_snapshots_key(fuzz_model(), HH_DTYPE_F32));
    fuzz_set_word(file, 7, fuzz_hash(file, size, HEAD, ids, 0));
    fuzz_set_word(file, 8, fuzz_hash(file, size, HEAD + ids, payload, 0));
    fuzz_set_word(file, 9, fuzz_word(file, 5) ? fuzz_hash(file, size, HEAD + ids + payload, size, 0) : 0);
    fuzz_set_word(file, 10, hh_hash64(file, HEAD - 8, 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static hh_session *s;
    static char *path;
    hh_error err = {0};
    if (fuzz_make_folder()) {
        const hh_session_options o = {.context = CONTEXT, .kv_dtype = HH_DTYPE_F32};
        path = fuzz_path("sequence");
        if (hh_session_new(&s, fuzz_model(), &o, &err) != HH_OK) hh_assert_failed(__FILE__, __LINE__, err.text);
    }
    uint8_t *copy = hh_alloc(size + 1);
    if (size) memcpy(copy, data, size);
    fuzz_write("sequence", copy, size);
    use(s, path);
    mend(copy, size);
    fuzz_write("sequence", copy, size);
    use(s, path);
    hh_free(copy);
    return 0;
}
