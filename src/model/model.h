/* A model: configuration, weights, and where they live. Read-only while it runs; several runs may share one. */
#ifndef HH_MODEL_MODEL_H
#define HH_MODEL_MODEL_H

#include "model/weights.h"

typedef enum hh_load {
    HH_LOAD_STORED, /* weights in their stored type, used from the file map wherever possible */
    HH_LOAD_REAL,   /* all weights as hh_real in one flat block, writable: for training (flat, flat_count are set) */
} hh_load;

typedef struct hh_model {
    hh_config config;
    hh_backend *be;
    hh_weights w;
    hh_param *param; /* [n_params] */
    int64_t n_params;
    char *path;
    hh_tensor flat; /* HH_LOAD_REAL: every parameter, one behind another (64-byte aligned), [flat_count] */
    double *inv_freq, rope_factor;
    hh_store *store;
    hh_arena arena; /* "model" */
} hh_model;

/* Where a model's files are: `path` itself, or for "nano" the shipped model: in HYDRAHEAD_MODELS, the working directory's or the
 * program's own models/, or the installed share/hydrahead/models. The caller owns *out. HH_EIO when nano is in none of them. */
hh_code hh_model_locate(char **out, const char *path, hh_error *err);
/* Configuration alone, by the same words as hh_model_open, without reading weights. */
hh_code hh_model_read_config(hh_config *out, const char *path, hh_error *err);
/* Bytes that opening takes beyond the file map, and those of the map that are used in place. `c` may be NULL. */
hh_code hh_model_measure(const char *path, hh_backend *be, hh_load load, hh_config *c, size_t *arena_bytes,
                         size_t *mapped_bytes, hh_error *err);

/* `path`: a directory or a GGUF file, or "nano" (the shipped model). The backend must outlive the model. */
hh_code hh_model_open(hh_model **out, hh_backend *be, const char *path, hh_load load, hh_error *err);
/* A model of configuration c with all parameters zero in one flat block (HH_LOAD_REAL); the caller fills them. */
hh_code hh_model_create(hh_model **out, hh_backend *be, const hh_config *c, hh_error *err);
/* Stretches the positions of an open model, for contexts beyond its own: "yarn:4" or "linear:4" reads four times its native
 * length. HH_EINVAL for other words, or when the checkpoint already has a scaling. */
hh_code hh_model_stretch(hh_model *m, const char *scaling, hh_error *err);
void hh_model_close(hh_model *m);
/* Writes a checkpoint directory: model.safetensors (matrices as `dtype`, F32, BF16, Q8_0 or Q4_0; the rest float32), heads in
 * original order, tokenizer files from `tokenizer_from` (a checkpoint path, NULL: none), config.json last; each file aside
 * and renamed. As blocks (Q8_0, Q4_0) hh_saved_type says which matrix becomes what, and HH_ECANCELLED that it was interrupted:
 * no weights have been written then. */
hh_code hh_model_save(const hh_model *m, const char *dir, hh_dtype dtype, const char *tokenizer_from, hh_error *err);

/* The type that a parameter is saved in: float32 where it is no matrix; as blocks the head (the embedding when tied) always
 * Q8_0, and a matrix whose rows are no whole blocks F16 or BF16 when it is, else F32. */
hh_dtype hh_saved_type(const hh_model *m, const hh_param *p, hh_dtype dtype);

/* Gradients or moments: the same structure over a flat block of the same layout. */
typedef struct hh_gradients {
    hh_weights w;
    hh_tensor flat;
    hh_arena arena;
} hh_gradients;
/* Not zeroed: what a backward is to add to is cleared first. What no stage trains is never touched, and takes no memory of the CPU's. */
hh_code hh_gradients_new(hh_gradients **out, const hh_model *m, hh_error *err);
void hh_gradients_free(hh_gradients *g, hh_backend *be);

/* What a session keeps of one sequence: KV of the kept heads, GDN states, convolution tails, at one exact position. */
typedef struct hh_cache {
    int64_t length;   /* tokens seen; the next token stands at this position */
    int64_t capacity; /* tokens that fit in k and v */
    int64_t n_layers;
    struct hh_layer_cache {
        hh_tensor k, v;    /* [capacity, n_kv, D] */
        hh_tensor state;   /* [n_gdn, D, D] hh_real */
        hh_tensor tail[3]; /* [3, n_gdn * D] */
    } * layer;
    hh_backend *be;
    hh_arena arena; /* "run" */
} hh_cache;
/* The type that a word asks for: "auto" (or NULL: bf16, float32 where the backend was opened for float32), "f32", "bf16", or
 * "q8_0", a byte a number and a scale for 32 of them. HH_EINVAL for any other; HH_EUNSUPPORTED when heads of c's width are no
 * whole blocks. */
hh_code hh_cache_type(hh_dtype *out, const char *word, const hh_backend *be, const hh_config *c, hh_error *err);
/* kv_dtype: HH_DTYPE_REAL, or one that hh_cache_type gave. */
size_t hh_cache_bytes(const hh_config *c, int64_t capacity, hh_dtype kv_dtype);
hh_code hh_cache_new(hh_cache **out, const hh_model *m, int64_t capacity, hh_dtype kv_dtype, hh_error *err);
void hh_cache_reset(hh_cache *cache);                   /* to position 0: states and tails zero */
void hh_cache_copy(hh_cache *dst, const hh_cache *src); /* same model, dst->capacity >= src->length */
void hh_cache_free(hh_cache *cache, hh_backend *be);

#endif
