/* A snapshot's head and tokens, as a folder of them is opened. */
#include "session/snapshot_tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hh_error err = {0};
    hh_snapshot *n;
    uint64_t parent, key = 0;
    if (size > 24) __builtin_memcpy(&key, data + 16, sizeof key); /* the model that the file names */
    if (hh_snapshot_parse_head(&n, &parent, key, "fuzz", data, size, &err) == HH_OK) hh_snapshot_free(n);
    return 0;
}
