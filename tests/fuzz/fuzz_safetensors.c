/* Any bytes as a safetensors file: refused with a sentence, or tensors that lie inside the file. */
#include "format/safetensors.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct range {
    const uint8_t *begin, *end;
} range;

static hh_code touch(void *context, const char *name, hh_tensor t, hh_error *err) {
    (void)err;
    const range *file = context;
    const uint8_t *p = t.data;
    size_t n = hh_tensor_bytes(t);
    HH_ASSERT(name && p >= file->begin && n <= (size_t)(file->end - p));
    HH_ASSERT(hh_tensor_is_dense(t));
    volatile uint8_t sum = 0;
    if (n) sum = (uint8_t)(p[0] + p[n - 1]);
    (void)sum;
    return HH_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hh_error err = {0};
    range file = {data, data + size};
    hh_code code = hh_safetensors_parse("fuzz.safetensors", data, size, touch, &file, &err);
    HH_ASSERT(code == HH_OK || strncmp(err.text, "fuzz.safetensors: ", 18) == 0);
    return 0;
}
