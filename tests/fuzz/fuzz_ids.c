/* Any bytes as a list of token ids: refused by place, or ids of the vocabulary. */
#include "text/idlist.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hh_error err = {0};
    hh_ids ids = {0};
    if (hh_ids_parse(&ids, "fuzz", (const char *)data, size, 1000, &err) != HH_OK)
        HH_ASSERT(strncmp(err.text, "fuzz: ", 6) == 0);
    for (int64_t i = 0; i < ids.len; i++) HH_ASSERT(ids.data[i] >= 0 && ids.data[i] < 1000);
    hh_ids_release(&ids);
    return 0;
}
