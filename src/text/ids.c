/* Growing arrays of token ids; see tokenizer.h. */
#include "text/tokenizer.h"

#include <string.h>

void hh_ids_append(hh_ids *ids, const int32_t *more, int64_t n) {
    if (n == 0) return;
    if (ids->len + n > ids->capacity) {
        int64_t capacity = ids->capacity ? ids->capacity * 2 : 64;
        while (capacity < ids->len + n) capacity *= 2;
        ids->data = hh_realloc(ids->data, (size_t)capacity * sizeof *ids->data);
        ids->capacity = capacity;
    }
    memcpy(ids->data + ids->len, more, (size_t)n * sizeof *more);
    ids->len += n;
}

void hh_ids_push(hh_ids *ids, int32_t id) {
    hh_ids_append(ids, &id, 1);
}

void hh_ids_release(hh_ids *ids) {
    hh_free(ids->data);
    *ids = (hh_ids){0};
}
