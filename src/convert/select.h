/* Which heads keep full attention under a budget (docs/METHOD.md section 5).
 *
 * Heads are ranked by score, ties by unclamped mean indirect effect, then by attribution, then by layer and head. Few
 * heads score above zero, so most of a large budget is decided by the ties; the plan says for each head what decided.
 */
#ifndef HH_CONVERT_SELECT_H
#define HH_CONVERT_SELECT_H

#include "convert/heads.h"
#include "convert/plan.h"

typedef enum hh_strategy {
    HH_SELECT_GLOBAL,      /* the best of the model */
    HH_SELECT_GLOBAL_MIN1, /* the same with at least one in every layer */
    HH_SELECT_LAYER, /* the same number in every layer, the best of each; a remainder goes to the best next heads */
    HH_SELECT_KV,    /* whole query groups, by the score kept for each key/value head */
    HH_SELECT_FIXED, /* control: heads 0, 1, ... of every layer */
    HH_SELECT_LAYER_RANDOM,  /* control: the same number in every layer, drawn */
    HH_SELECT_GLOBAL_RANDOM, /* control: drawn from the model */
    HH_SELECT_LAYERWISE,     /* control: whole layers, by the sum of their heads' scores */
    HH_SELECT_STRATEGIES
} hh_strategy;
#define HH_STRATEGY_CHOICES "global|global-min1|layer|kv|fixed|layer-random|global-random|layerwise"
bool hh_strategy_parse(const char *name, hh_strategy *out);

typedef struct hh_select_options {
    hh_strategy strategy;
    /* Exactly one of the three is above 0. */
    double ratio; /* r of r:1; floor(L*H / (r+1)) heads */
    int64_t heads;
    int64_t kv_bytes;       /* cache bytes a token, in bf16; needs n_kv_heads and head_dim */
    uint64_t seed;          /* of the random strategies */
    const hh_plan *exclude; /* the random strategies never draw its heads; NULL: none */
} hh_select_options;

/* HH_EINVAL when the budget makes no sense for the strategy, with the numbers. `kv` may keep fewer heads than asked: it
 * takes whole groups. */
hh_code hh_select(hh_plan *out, const hh_heads *h, const hh_select_options *o, hh_error *err);

#endif
