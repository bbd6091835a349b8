/* The tokens of a vocabulary: bytes by id, id by bytes, and what kind of token each is. */
#ifndef HH_TEXT_VOCAB_H
#define HH_TEXT_VOCAB_H

#include "base/memory.h"

enum {
    HH_TOKEN_PRESENT = 1, /* the id is in use */
    HH_TOKEN_BYTES = 2,   /* a token of the byte alphabet: what BPE works on */
    HH_TOKEN_ADDED = 4,   /* matched in text before BPE */
    HH_TOKEN_SPECIAL = 8, /* a control token: text only when the caller asks for it */
};

#define HH_VOCAB_MAX_ID (1 << 24)

typedef struct hh_vocab {
    hh_buf bytes;     /* all tokens, one after the other */
    size_t *offset;   /* [capacity] */
    uint32_t *length; /* [capacity] */
    uint8_t *flags;   /* [capacity]; 0: no such token */
    int64_t size;     /* highest id + 1 */
    int64_t capacity;
    int32_t *slots; /* open addressing, -1 empty; [n_slots], a power of two */
    size_t n_slots, n_used;
} hh_vocab;

/* Adds or replaces the token of id (0 <= id <= HH_VOCAB_MAX_ID). A token of the byte alphabet and one of the same bytes
 * outside of it are different keys. A key given twice belongs to the last id. */
void hh_vocab_set(hh_vocab *v, int32_t id, const char *bytes, size_t len, int flags);
/* -1: none. */
int32_t hh_vocab_find(const hh_vocab *v, const char *bytes, size_t len, bool byte_alphabet);
/* A token as the files write it ("Ġthe", "<|im_end|>"). -1: none. */
int32_t hh_vocab_find_written(const hh_vocab *v, const char *written, size_t len);
/* Adds a token as the files write it. */
void hh_vocab_set_written(hh_vocab *v, int32_t id, const char *written, size_t len, int flags);
static inline const char *hh_vocab_bytes(const hh_vocab *v, int32_t id, size_t *len) {
    *len = v->length[id];
    return v->bytes.data + v->offset[id];
}
void hh_vocab_release(hh_vocab *v);

#endif
