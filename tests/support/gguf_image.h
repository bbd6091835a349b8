/* Builds GGUF files in memory, right ones and wrong ones, a field at a time. */
#ifndef HH_TESTS_SUPPORT_GGUF_IMAGE_H
#define HH_TESTS_SUPPORT_GGUF_IMAGE_H

#include "base/memory.h"

/* GGUF's numbers of value types. */
enum { G_U8, G_I8, G_U16, G_I16, G_U32, G_I32, G_F32, G_BOOL, G_STRING, G_ARRAY, G_U64, G_I64, G_F64 };

void gguf_number(hh_buf *b, size_t bytes, uint64_t v); /* little-endian */
void gguf_text(hh_buf *b, const char *s);              /* length and bytes */
void gguf_header(hh_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys);
void gguf_key_u32(hh_buf *b, const char *key, uint32_t v);
void gguf_key_f32(hh_buf *b, const char *key, float v);
void gguf_key_string(hh_buf *b, const char *key, const char *v);
/* rank dimensions, innermost first. */
void gguf_tensor(hh_buf *b, const char *name, int rank, const uint64_t *dim, uint32_t type, uint64_t offset);
/* Zeros up to a multiple of `alignment`, then n bytes 1, 2, 3, ... */
void gguf_data(hh_buf *b, size_t alignment, size_t n);

#endif
