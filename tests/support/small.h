/* The configuration of a small dense model, for tests that make one of random weights; what a test wants otherwise it sets
 * in the result. Header only: fuzz targets use it too. */
#ifndef HH_TESTS_SUPPORT_SMALL_H
#define HH_TESTS_SUPPORT_SMALL_H

#include "model/model.h"

typedef struct small_shape {
    int64_t layers, heads, kv_heads, head_dim, width, vocab;
} small_shape;

static inline hh_config small_config(hh_family family, small_shape s) {
    hh_config c = {.family = family,
                   .n_layers = s.layers,
                   .n_heads = s.heads,
                   .n_kv_heads = s.kv_heads,
                   .head_dim = s.head_dim,
                   .width = s.width,
                   .ffn = 40,
                   .vocab = s.vocab,
                   .max_position = 64,
                   .norm_eps = 1e-6,
                   .tied = true,
                   .qk_norm = family == HH_QWEN3,
                   .attention_bias = family == HH_QWEN2,
                   .stored = HH_DTYPE_F32,
                   .rope = {.kind = HH_ROPE_DEFAULT, .theta = 10000, .factor = 1},
                   .bos_id = -1};
    for (int64_t l = 0; l < c.n_layers; l++) {
        c.dense[l] = true;
        for (int64_t h = 0; h < c.n_heads; h++) c.fa[l][h] = true;
    }
    return c;
}

#endif
