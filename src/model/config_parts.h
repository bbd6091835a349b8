/* What the two readers of configurations share: config_json.c for config.json, config_gguf.c for GGUF metadata. */
#ifndef HH_MODEL_CONFIG_PARTS_H
#define HH_MODEL_CONFIG_PARTS_H

#include "format/gguf.h"
#include "format/json.h"
#include "model/config.h"

/* Limits of what is read; their products fit 64 bits many times over. */
#define HH_CONFIG_MAX_BYTES ((size_t)16 << 20)
#define HH_MAX_HEAD_DIM     1024
#define HH_MAX_WIDTH        ((int64_t)1 << 20)
#define HH_MAX_FFN          ((int64_t)1 << 22)
#define HH_MAX_VOCAB        ((int64_t)1 << 24)
#define HH_MAX_POSITION     ((int64_t)1 << 31)

/* quantization_config.quant_method of what hydrahead quantize writes. */
#define HH_QUANT_METHOD "hydrahead"

/* A configuration with nothing in it but defaults. */
void hh_config_init(hh_config *c);
/* Adds an end id unless it is there already; HH_EUNSUPPORTED when there are too many. */
hh_code hh_config_add_end(hh_config *c, const char *path, int64_t id, hh_error *err);
/* Checks that tie fields together (heads, groups, widths), and fills what follows from them. */
hh_code hh_config_finish(hh_config *c, const char *path, hh_error *err);

hh_code hh_config_read_gguf(hh_config *c, const hh_store *store, hh_error *err);
/* Merges the end ids of generation_config.json. */
hh_code hh_config_add_generation(hh_config *c, const char *path, hh_error *err);

/* Index of name in names[0..n), or -1. */
int hh_name_index(const char *const *names, int n, const char *name);

#endif
