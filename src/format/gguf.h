/* GGUF versions 2 and 3: typed metadata and tensors of the families hydrahead reads. Checks cost O(1) an element. */
#ifndef HH_FORMAT_GGUF_H
#define HH_FORMAT_GGUF_H

#include "format/store.h"

hh_code hh_gguf_parse(hh_gguf **out, const char *path, const void *bytes, size_t size, hh_error *err);
void hh_gguf_free(hh_gguf *g);
int64_t hh_gguf_tensor_count(const hh_gguf *g);
/* GGUF dimensions are reversed into row-major ones. */
const hh_named_tensor *hh_gguf_tensor(const hh_gguf *g, int64_t i);

/* Metadata. Each getter returns false when the key is absent or of another type. */
bool hh_gguf_has(const hh_gguf *g, const char *key);
bool hh_gguf_int(const hh_gguf *g, const char *key, int64_t *out);  /* any integer type, or bool as 0/1 */
bool hh_gguf_float(const hh_gguf *g, const char *key, double *out); /* f32, f64, or an integer */
bool hh_gguf_bool(const hh_gguf *g, const char *key, bool *out);
bool hh_gguf_string(const hh_gguf *g, const char *key, const char **s, size_t *len); /* not NUL-terminated */
/* Arrays: count, then elements. */
bool hh_gguf_array_count(const hh_gguf *g, const char *key, int64_t *n);
bool hh_gguf_array_string(const hh_gguf *g, const char *key, int64_t i, const char **s, size_t *len); /* O(1) */
bool hh_gguf_array_int(const hh_gguf *g, const char *key, int64_t i, int64_t *out);
/* Writes the metadata alone, as a GGUF file without tensors: how a converted model keeps the vocabulary of its teacher.
 */
hh_code hh_gguf_write_metadata(const hh_gguf *g, const char *path, hh_error *err);
/* For `inspect`: key i of n, its type's name and a short rendering. */
int64_t hh_gguf_key_count(const hh_gguf *g);
const char *hh_gguf_key(const hh_gguf *g, int64_t i);
void hh_gguf_render(const hh_gguf *g, int64_t i, hh_buf *out);

#endif
