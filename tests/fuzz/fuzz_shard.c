/* Any bytes as a token shard in a run's cache, as they are and with key, count and checksum mended: refused with a
 * sentence that names the file, or ids of the vocabulary. */
#include "data/corpus.h"
#include "fuzz/folder.h"
#include "fuzz/mended.h"

#include <dirent.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static hh_tokenizer *tokenizer;
static char *text_path, *shard; /* shard: its name in the folder */
static uint64_t key;

static void find_shard(void) {
    DIR *d = opendir(fuzz_folder);
    HH_ASSERT(d);
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".ids")) shard = hh_strdup(e->d_name);
    closedir(d);
    HH_ASSERT(shard);
    key = strtoull(shard + strlen("text.txt."), NULL, 16);
}

static void use(const uint8_t *file, size_t size) {
    hh_error err = {0};
    hh_shard s;
    fuzz_write(shard, file, size);
    if (hh_shard_open(&s, text_path, tokenizer, fuzz_folder, &err) != HH_OK) {
        HH_ASSERT(strncmp(err.text, fuzz_folder, strlen(fuzz_folder)) == 0 && strstr(err.text, shard));
        return;
    }
    for (int64_t i = 0; i < s.n; i++) HH_ASSERT(s.ids[i] >= 0 && s.ids[i] < hh_tokenizer_vocab_size(tokenizer));
    hh_shard_close(&s);
}

static void begin(void) {
    hh_error err = {0};
    hh_shard s;
    text_path = fuzz_path("text.txt");
    fuzz_write("text.txt", "Some words.\n", 12);
    if (hh_tokenizer_open_json(&tokenizer, "models/nano/tokenizer.json", &err) != HH_OK ||
        hh_shard_open(&s, text_path, tokenizer, fuzz_folder, &err) != HH_OK)
        hh_assert_failed(__FILE__, __LINE__, err.text);
    hh_shard_close(&s);
    find_shard();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { HEAD = 64 };
    if (fuzz_make_folder()) begin();
    uint8_t *copy = hh_alloc(size + 1);
    if (size) memcpy(copy, data, size);
    use(copy, size);
    if (size >= HEAD) {
        memcpy(copy, "HHSHARD1", 8);
        fuzz_set_word(copy, 1, key);
        fuzz_set_word(copy, 2, (size - HEAD) / sizeof(int32_t));
        fuzz_set_word(copy, 3, hh_hash64(copy + HEAD, size - HEAD, key));
        use(copy, size);
    }
    hh_free(copy);
    return 0;
}
