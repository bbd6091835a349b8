/* safetensors: 8 bytes of header length, a JSON header, raw little-endian data. Strict: no holes, overlaps, trailing
 * bytes or duplicate names; white space around the header, rank 0, zero dimensions and __metadata__ are accepted. A matrix
 * of quantised blocks is U8 [rows, bytes of a row], with its type in __metadata__ as "blocks.NAME": "q8_0". */
#ifndef HH_FORMAT_SAFETENSORS_H
#define HH_FORMAT_SAFETENSORS_H

#include "format/store.h"

/* Parses a whole file in memory. `visit` is called for every tensor in order of its offset; a non-zero return stops.
 * `path` is for messages. Also the entry of the fuzz target. */
typedef hh_code hh_safetensors_visit(void *context, const char *name, hh_tensor t, hh_error *err);
hh_code hh_safetensors_parse(const char *path, const void *bytes, size_t size, hh_safetensors_visit *visit,
                             void *context, hh_error *err);

/* Writes tensors (dense, F32/F64->F32/F16/BF16/I32/I64, matrices of blocks) as one file, aside and renamed, with metadata {"format": "pt"}
 * and no time stamps: the same tensors give the same bytes. Names are written in the order given. */
hh_code hh_safetensors_write(const char *path, const hh_named_tensor *tensors, int64_t n, hh_error *err);
/* The same, for tensors that are made one by one: when it is the turn of tensor i, `give` says where its numbers are. They
 * are good until the next call; a code other than HH_OK ends the writing, and nothing is left of it. */
typedef hh_code hh_safetensors_give(void *context, int64_t i, const void **data, hh_error *err);
hh_code hh_safetensors_write_each(const char *path, const hh_named_tensor *tensors, int64_t n,
                                  hh_safetensors_give *give, void *context, hh_error *err);

#endif
