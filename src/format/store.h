/* A store is a set of named tensors in mapped files: a safetensors directory (one file or shards) or a GGUF file.
 *
 * Nothing is copied: tensors point into the map and live as long as the store. Every number in a file is checked
 * before it is used; a refusal names file, tensor and numbers (HH_EFORMAT; HH_EUNSUPPORTED for what is well formed but
 * unknown).
 */
#ifndef HH_FORMAT_STORE_H
#define HH_FORMAT_STORE_H

#include "base/status.h"
#include "tensor/tensor.h"

#include <jansson.h>

typedef struct hh_named_tensor {
    const char *name; /* as the file has it */
    const char *file; /* path of the file that holds it */
    hh_tensor t;      /* dense, read only */
} hh_named_tensor;

typedef struct hh_store hh_store;
typedef struct hh_gguf hh_gguf; /* format/gguf.h: metadata */

typedef enum hh_store_kind { HH_STORE_SAFETENSORS, HH_STORE_GGUF } hh_store_kind;

/* Opens a directory (config.json + model.safetensors, or model.safetensors.index.json and its shards), a single
 * .safetensors file, or a .gguf file (by its magic). */
hh_code hh_store_open(hh_store **out, const char *path, hh_error *err);
void hh_store_close(hh_store *s); /* NULL is accepted */

hh_store_kind hh_store_get_kind(const hh_store *s);
const char *hh_store_path(const hh_store *s);
int64_t hh_store_count(const hh_store *s);
const hh_named_tensor *hh_store_at(const hh_store *s, int64_t i);          /* in the order of the files */
const hh_named_tensor *hh_store_find(const hh_store *s, const char *name); /* NULL: absent */
/* The memory of t's data, a tensor of this store, is given back; its file is read again if it is looked at again. */
void hh_store_forget(const hh_store *s, const hh_tensor *t);
const hh_gguf *hh_store_gguf(const hh_store *s); /* NULL unless the kind is GGUF */

#endif
