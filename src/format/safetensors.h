/* safetensors: 8 bytes of header length, a JSON header, raw little-endian data. Strict: no holes, overlaps, trailing
 * bytes or duplicate names; white space around the header, rank 0, zero dimensions and __metadata__ are accepted. */
#ifndef HH_FORMAT_SAFETENSORS_H
#define HH_FORMAT_SAFETENSORS_H

#include "format/store.h"

/* Parses a whole file in memory. `visit` is called for every tensor in order of its offset; a non-zero return stops.
 * `path` is for messages. Also the entry of the fuzz target. */
typedef hh_code hh_safetensors_visit(void *context, const char *name, hh_tensor t, hh_error *err);
hh_code hh_safetensors_parse(const char *path, const void *bytes, size_t size, hh_safetensors_visit *visit,
                             void *context, hh_error *err);

/* Writes tensors (dense, F32/F64->F32/F16/BF16/I32/I64) as one file, aside and renamed, with metadata {"format": "pt"}
 * and no time stamps: the same tensors give the same bytes. Names are written in the order given. */
hh_code hh_safetensors_write(const char *path, const hh_named_tensor *tensors, int64_t n, hh_error *err);

#endif
