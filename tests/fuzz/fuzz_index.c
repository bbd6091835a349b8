/* Any text as model.safetensors.index.json, beside two shards that are there: refused with a sentence that names a file of
 * the folder, or a store in which every tensor of the index is found. */
#include "format/store.h"
#include "fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A safetensors file of two float32 tensors, "<prefix>.0" and "<prefix>.1". */
static void write_shard(const char *name, const char *prefix) {
    char file[512] = {0};
    char *header = hh_sprintf("{\"%s.0\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}, "
                              "\"%s.1\": {\"dtype\": \"F32\", \"shape\": [1, 2], \"data_offsets\": [8, 16]}}",
                              prefix, prefix);
    const uint64_t n = strlen(header);
    memcpy(file, &n, sizeof n);
    memcpy(file + sizeof n, header, n);
    fuzz_write(name, file, sizeof n + n + 16);
    hh_free(header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hh_error err = {0};
    hh_store *s;
    if (fuzz_make_folder()) {
        write_shard("a.safetensors", "a");
        write_shard("b.safetensors", "b");
    }
    fuzz_write("model.safetensors.index.json", data, size);
    if (hh_store_open(&s, fuzz_folder, &err) != HH_OK) {
        HH_ASSERT(strncmp(err.text, fuzz_folder, strlen(fuzz_folder)) == 0);
        return 0;
    }
    for (int64_t i = 0; i < hh_store_count(s); i++) HH_ASSERT(hh_store_find(s, hh_store_at(s, i)->name));
    hh_store_close(s);
    return 0;
}
