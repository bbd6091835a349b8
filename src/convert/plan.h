/* plan.json: which query heads keep full attention, and why each of them does. Selection writes it, migration reads it.
 */
#ifndef HH_CONVERT_PLAN_H
#define HH_CONVERT_PLAN_H

#include "model/config.h"

/* Why a head was kept: the first measure in which it beats the best head left out, or the strategy's own reason. */
typedef enum hh_keep_rule {
    HH_KEEP_NOT,         /* linear */
    HH_KEEP_SCORE,       /* its score */
    HH_KEEP_MEAN_IE,     /* equal score; its unclamped mean indirect effect */
    HH_KEEP_ATTRIBUTION, /* equal in both; its attribution */
    HH_KEEP_ORDER,       /* equal in everything; the lower layer and head */
    HH_KEEP_ALL,         /* the budget holds every head */
    HH_KEEP_MIN1,        /* the best of a layer that would have had none */
    HH_KEEP_QUOTA,       /* its layer's quota */
    HH_KEEP_KV_GROUP,    /* its key/value head is paid for by another head */
    HH_KEEP_FIXED,       /* same place in every layer */
    HH_KEEP_RANDOM,      /* drawn */
    HH_KEEP_LAYER,       /* its whole layer was chosen */
    HH_KEEP_GIVEN,       /* a hand-written plan does not say */
    HH_KEEP_RULES
} hh_keep_rule;
const char *hh_keep_rule_name(hh_keep_rule r); /* "score", "mean_ie", ... as plan.json has it */

typedef struct hh_plan {
    int64_t n_layers, n_heads, n_kv_heads, head_dim; /* L, H, G, D; the last two 0: unknown */
    char strategy[32];
    char budget[64];                       /* as it was asked for: "ratio 7:1", "heads 4", "kv-bytes 1024" */
    uint64_t seed;                         /* of the random strategies */
    uint8_t *rule;                         /* [L*H] hh_keep_rule */
    double *score, *mean_ie, *attribution; /* [L*H] the measures that decided; NULL: the plan has none */
} hh_plan;

void hh_plan_init(hh_plan *p, int64_t n_layers, int64_t n_heads);
void hh_plan_release(hh_plan *p);
bool hh_plan_keeps(const hh_plan *p, int64_t layer, int64_t head);
int64_t hh_plan_count(const hh_plan *p); /* heads that keep full attention */
/* Key/value heads that must be cached, over all layers; n_kv_heads must be known. */
int64_t hh_plan_kv_count(const hh_plan *p);
/* Bytes of cache a token at `bytes` a value, of this plan and of the dense model; n_kv_heads and head_dim must be
 * known. */
double hh_plan_cache_bytes(const hh_plan *p, double bytes);
double hh_plan_dense_cache_bytes(const hh_plan *p, double bytes);
#define HH_PLAN_CACHE_VALUE_BYTES 2.0 /* bf16, what a session keeps by default */

/* Only "full_attention_heads" (with "layers" and "heads") is needed in a plan written by hand. HH_EFORMAT names file
 * and field. */
hh_code hh_plan_read(hh_plan *out, const char *path, hh_error *err);
hh_code hh_plan_parse(hh_plan *out, const char *path, const char *json, size_t size, hh_error *err);
hh_code hh_plan_write(const hh_plan *p, const char *path, hh_error *err);
json_t *hh_plan_to_json(const hh_plan *p); /* new reference */

#endif
