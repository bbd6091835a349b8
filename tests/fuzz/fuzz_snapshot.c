/* Any bytes as a snapshot: its head and tokens as they are; then, with key and checksums mended, as the one file of a
 * folder that a store opens, finds its tokens in, and restores. */
#include "fuzz/folder.h"
#include "fuzz/mended.h"
#include "fuzz/fuzzed_model.h"
#include "session/snapshot_tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CONTEXT = 256, HEAD = 96 };

static void parse(const uint8_t *file, size_t size) {
    hh_error err = {0};
    hh_snapshot *n;
    uint64_t parent, key = size > 24 ? fuzz_word(file, 2) : 0; /* the model that the file names */
    if (hh_snapshot_parse_head(&n, &parent, key, "fuzz", file, size, &err) == HH_OK)
        hh_snapshot_free(n);
    else
        HH_ASSERT(strncmp(err.text, "fuzz: ", 6) == 0);
}

/* Words of the head: 2 key, 3 parent's hash, 4 hash of all tokens, 5 from, 6 to, 8 payload bytes; hashes of ids, payload,
 * head. A snapshot that begins at 0 has the root for its parent. */
static void mend(uint8_t *file, size_t size) {
    if (size < HEAD) return;
    const uint64_t ids = (fuzz_word(file, 6) - fuzz_word(file, 5)) * sizeof(int32_t);
    memcpy(file, "HHSNAP\0", 8);
    fuzz_set_word(file, 1, 1);
    fuzz_set_word(file, 2, hh_snapshots_key(fuzz_model(), HH_DTYPE_F32));
    if (!fuzz_word(file, 5)) {
        fuzz_set_word(file, 3, 0);
        fuzz_set_word(file, 4, fuzz_hash(file, size, HEAD, ids, 17));
    }
    fuzz_set_word(file, 9, fuzz_hash(file, size, HEAD, ids, 0));
    fuzz_set_word(file, 10, fuzz_hash(file, size, HEAD + ids, fuzz_word(file, 8), 0));
    fuzz_set_word(file, 11, hh_hash64(file, HEAD - 8, 0));
}

/* The name that the store gives a snapshot, under which its payload is looked for. */
static char *name_of(const uint8_t *file, size_t size) {
    if (size < HEAD) return hh_strdup("x.snap");
    const hh_snapshot n = {
        .hash = fuzz_word(file, 4), .to = (int64_t)fuzz_word(file, 6), .has_logits = fuzz_word(file, 7) != 0};
    char *path = hh_snapshot_path("", fuzz_word(file, 2), &n), *name = hh_strdup(path + 1);
    hh_free(path);
    return name;
}

/* Restores a prompt that begins with the file's tokens. */
static void restore(hh_snapshots *s, hh_cache *cache, const uint8_t *file, size_t size) {
    int32_t ids[CONTEXT] = {0};
    hh_real logits[FUZZ_VOCAB];
    int64_t length = -1;
    if (size > HEAD) memcpy(ids, file + HEAD, size - HEAD < sizeof ids ? size - HEAD : sizeof ids);
    hh_cache_reset(cache);
    for (int64_t n = 1; n <= CONTEXT; n += 51) {
        hh_snapshots_restore(s, cache, ids, n, logits, &length);
        HH_ASSERT(length >= 0 && length <= n && cache->length == length);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static hh_cache *cache;
    hh_error err = {0};
    hh_snapshots *s;
    if (fuzz_make_folder() && hh_cache_new(&cache, fuzz_model(), CONTEXT, HH_DTYPE_F32, &err) != HH_OK)
        hh_assert_failed(__FILE__, __LINE__, err.text);
    uint8_t *copy = hh_alloc(size + 1);
    if (size) memcpy(copy, data, size);
    parse(copy, size);
    mend(copy, size);
    parse(copy, size);
    char *name = name_of(copy, size), *path = fuzz_path(name);
    fuzz_write(name, copy, size);
    const hh_snapshots_options o = {.max_bytes = 1 << 20, .dir = fuzz_folder, .kv_dtype = HH_DTYPE_F32};
    if (hh_snapshots_new(&s, fuzz_model(), &o, &err) != HH_OK) hh_assert_failed(__FILE__, __LINE__, err.text);
    restore(s, cache, copy, size);
    hh_snapshots_free(s);
    unlink(path);
    hh_free(path);
    hh_free(name);
    hh_free(copy);
    return 0;
}
