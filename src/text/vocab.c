/* Token table; see vocab.h. */
#include "text/vocab.h"
#include "text/utf8.h"

#include "base/filemap.h"

#include <string.h>

static size_t hash_key(const char *bytes, size_t len, bool byte_alphabet) {
    return (size_t)hh_hash64(bytes, len, byte_alphabet ? 1 : 2);
}

/* The slot that holds the key, or the empty one where it belongs. */
static size_t find_slot(const hh_vocab *v, const char *bytes, size_t len, bool byte_alphabet) {
    size_t mask = v->n_slots - 1;
    for (size_t i = hash_key(bytes, len, byte_alphabet) & mask;; i = (i + 1) & mask) {
        int32_t id = v->slots[i];
        if (id < 0) return i;
        if (v->length[id] == len && !!(v->flags[id] & HH_TOKEN_BYTES) == byte_alphabet &&
            (len == 0 || memcmp(v->bytes.data + v->offset[id], bytes, len) == 0))
            return i;
    }
}

static void grow_slots(hh_vocab *v) {
    size_t n = v->n_slots ? v->n_slots * 2 : 1024;
    int32_t *old = v->slots;
    size_t n_old = v->n_slots;
    v->slots = hh_alloc(n * sizeof *v->slots);
    v->n_slots = n;
    for (size_t i = 0; i < n; i++) v->slots[i] = -1;
    for (size_t i = 0; i < n_old; i++) {
        int32_t id = old[i];
        if (id < 0) continue;
        size_t len;
        const char *bytes = hh_vocab_bytes(v, id, &len);
        v->slots[find_slot(v, bytes, len, v->flags[id] & HH_TOKEN_BYTES)] = id;
    }
    hh_free(old);
}

static void grow_ids(hh_vocab *v, int64_t need) {
    if (need <= v->capacity) return;
    int64_t capacity = v->capacity ? v->capacity : 1024;
    while (capacity < need) capacity *= 2;
    size_t n = (size_t)capacity, old = (size_t)v->capacity;
    v->offset = hh_realloc(v->offset, n * sizeof *v->offset);
    v->length = hh_realloc(v->length, n * sizeof *v->length);
    v->flags = hh_realloc(v->flags, n);
    memset(v->offset + old, 0, (n - old) * sizeof *v->offset);
    memset(v->length + old, 0, (n - old) * sizeof *v->length);
    memset(v->flags + old, 0, n - old);
    v->capacity = capacity;
}

void hh_vocab_set(hh_vocab *v, int32_t id, const char *bytes, size_t len, int flags) {
    HH_ASSERT(id >= 0 && id <= HH_VOCAB_MAX_ID && len <= UINT32_MAX);
    HH_ASSERT(id >= v->size || !v->flags[id]);
    grow_ids(v, (int64_t)id + 1);
    if (v->n_used * 2 >= v->n_slots) grow_slots(v);
    v->offset[id] = v->bytes.len;
    v->length[id] = (uint32_t)len;
    v->flags[id] = (uint8_t)(flags | HH_TOKEN_PRESENT);
    hh_buf_add(&v->bytes, bytes, len);
    if (id >= v->size) v->size = (int64_t)id + 1;
    size_t slot = find_slot(v, bytes, len, flags & HH_TOKEN_BYTES);
    if (v->slots[slot] < 0) v->n_used++;
    v->slots[slot] = id;
}

int32_t hh_vocab_find(const hh_vocab *v, const char *bytes, size_t len, bool byte_alphabet) {
    return v->n_slots ? v->slots[find_slot(v, bytes, len, byte_alphabet)] : -1;
}

int32_t hh_vocab_find_written(const hh_vocab *v, const char *written, size_t len) {
    char small[256];
    char *bytes = len <= sizeof small ? small : hh_alloc(len);
    size_t n;
    int32_t id = hh_letters_to_bytes(written, len, bytes, &n) ? hh_vocab_find(v, bytes, n, true)
                                                              : hh_vocab_find(v, written, len, false);
    if (bytes != small) hh_free(bytes);
    return id;
}

void hh_vocab_set_written(hh_vocab *v, int32_t id, const char *written, size_t len, int flags) {
    char small[256];
    char *bytes = len <= sizeof small ? small : hh_alloc(len);
    size_t n;
    if (hh_letters_to_bytes(written, len, bytes, &n))
        hh_vocab_set(v, id, bytes, n, flags | HH_TOKEN_BYTES);
    else
        hh_vocab_set(v, id, written, len, flags);
    if (bytes != small) hh_free(bytes);
}

void hh_vocab_release(hh_vocab *v) {
    hh_buf_release(&v->bytes);
    hh_free(v->offset);
    hh_free(v->length);
    hh_free(v->flags);
    hh_free(v->slots);
    *v = (hh_vocab){0};
}
