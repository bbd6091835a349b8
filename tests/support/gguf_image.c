/* Builds GGUF files in memory. */
#include "support/gguf_image.h"

#include <string.h>

void gguf_number(hh_buf *b, size_t bytes, uint64_t v) {
    for (size_t i = 0; i < bytes; i++) {
        char c = (char)(v >> (8 * i));
        hh_buf_add(b, &c, 1);
    }
}

void gguf_text(hh_buf *b, const char *s) {
    gguf_number(b, 8, strlen(s));
    hh_buf_puts(b, s);
}

void gguf_header(hh_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys) {
    hh_buf_puts(b, "GGUF");
    gguf_number(b, 4, version);
    gguf_number(b, 8, n_tensors);
    gguf_number(b, 8, n_keys);
}

void gguf_key_u32(hh_buf *b, const char *key, uint32_t v) {
    gguf_text(b, key);
    gguf_number(b, 4, G_U32);
    gguf_number(b, 4, v);
}

void gguf_key_f32(hh_buf *b, const char *key, float v) {
    gguf_text(b, key);
    gguf_number(b, 4, G_F32);
    hh_buf_add(b, &v, sizeof v);
}

void gguf_key_string(hh_buf *b, const char *key, const char *v) {
    gguf_text(b, key);
    gguf_number(b, 4, G_STRING);
    gguf_text(b, v);
}

void gguf_tensor(hh_buf *b, const char *name, int rank, const uint64_t *dim, uint32_t type, uint64_t offset) {
    gguf_text(b, name);
    gguf_number(b, 4, (uint64_t)rank);
    for (int d = 0; d < rank; d++) gguf_number(b, 8, dim[d]);
    gguf_number(b, 4, type);
    gguf_number(b, 8, offset);
}

void gguf_data(hh_buf *b, size_t alignment, size_t n) {
    while (b->len % alignment) gguf_number(b, 1, 0);
    for (size_t i = 0; i < n; i++) gguf_number(b, 1, i + 1);
}
