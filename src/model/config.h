/* What a model is: the numbers of config.json or of a GGUF's metadata, checked. Equations: docs/METHOD.md.
 * A field that would change the result and is not supported is refused by name (HH_EUNSUPPORTED). */
#ifndef HH_MODEL_CONFIG_H
#define HH_MODEL_CONFIG_H

#include "format/store.h"

#define HH_MAX_HEADS  128
#define HH_MAX_LAYERS 256

typedef enum hh_family { HH_QWEN3, HH_QWEN2, HH_LLAMA } hh_family;
typedef enum hh_rope_kind { HH_ROPE_DEFAULT, HH_ROPE_LINEAR, HH_ROPE_LLAMA3, HH_ROPE_YARN } hh_rope_kind;
typedef enum hh_fusion { HH_FUSION_SCALE, HH_FUSION_NORM, HH_FUSION_NONE, HH_FUSION_GATE } hh_fusion;

typedef struct hh_rope_config {
    hh_rope_kind kind;
    double theta, factor;
    double low_freq_factor, high_freq_factor;      /* llama3 */
    double beta_fast, beta_slow, attention_factor; /* yarn; attention_factor 0: 0.1 ln(factor) + 1 */
    double mscale, mscale_all_dim;                 /* yarn; 0: absent */
    bool truncate; /* yarn: correction range rounded to whole dimensions (default true) */
    int64_t original_max_position;
} hh_rope_config;

typedef struct hh_config {
    hh_family family;
    int64_t n_layers, n_heads, n_kv_heads, head_dim, width, ffn, vocab; /* L H G D C F V */
    int64_t max_position;                                               /* native length */
    double norm_eps;
    bool tied, qk_norm, attention_bias /* q,k,v */, o_bias, mlp_bias;
    hh_dtype stored; /* what the checkpoint says its weights are (F32, F16, BF16) */
    hh_dtype blocks; /* of a directory whose matrices are blocks: Q8_0, Q4_0; else F32 */
    hh_rope_config rope;
    int32_t end_ids[8], n_end_ids; /* eos ids of config.json and generation_config.json */
    int32_t bos_id;                /* -1: none */
    /* the hybrid part (docs/METHOD.md section 7) */
    bool hybrid;
    hh_fusion fusion;
    double log_scale_base; /* 0: off */
    bool log_scale_in_training, fa_gate, gdn_conv, gdn_gate;
    double beta_scale;
    bool fa[HH_MAX_LAYERS][HH_MAX_HEADS]; /* hybrid: head h of layer l keeps full attention; a dense model: all true */
    bool dense[HH_MAX_LAYERS];            /* the layer is a plain teacher layer (no hybrid tensors) */
} hh_config;

/* As model_type, `fusion` and `rope_type` have them, indexed by the enumerations. */
extern const char *const hh_family_names[], *const hh_fusion_names[], *const hh_rope_names[];

/* Reads config.json (and generation_config.json beside it) of a directory, or a GGUF's metadata. */
hh_code hh_config_read(hh_config *out, const hh_store *store, hh_error *err);
/* From JSON text; `path` is for messages. Also the fuzz target's entry. */
hh_code hh_config_parse(hh_config *out, const char *path, const char *json, size_t size, hh_error *err);
/* The JSON object of a config: for a hybrid exactly docs/METHOD.md section 7, for a dense model transformers' own. New
 * reference. */
json_t *hh_config_to_json(const hh_config *c);

/* KV heads that layer l keeps, ascending, and the map from its FA heads (ascending) to them. kv_head, kv_of_fa may be
 * NULL. */
int64_t hh_config_kept_kv(const hh_config *c, int64_t layer, int32_t *kv_head, int32_t *kv_of_fa);
int64_t hh_config_fa_count(const hh_config *c, int64_t layer);
/* Bytes of KV cache a token, at `bytes` a value, over all layers. */
double hh_config_cache_bytes(const hh_config *c, double bytes_per_value);

/* inv_freq[D/2] with the scaling applied for a context of `length`, and the factor on cos and sin (YaRN's attention
 * factor). */
void hh_rope_frequencies(const hh_config *c, double *inv_freq, double *factor);

#endif
