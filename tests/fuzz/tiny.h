/* A tiny hybrid of random weights for fuzz targets whose files belong to a model: two layers, one head of full attention
 * and one of Gated DeltaNet in each. Made once. */
#ifndef HH_TESTS_FUZZ_TINY_H
#define HH_TESTS_FUZZ_TINY_H

#include "base/rng.h"
#include "model/model.h"

enum { FUZZ_VOCAB = 17 };

static hh_model *fuzz_model(void) {
    static hh_model *m;
    static hh_config c = {.family = HH_LLAMA,
                          .hybrid = true,
                          .n_layers = 2,
                          .n_heads = 2,
                          .n_kv_heads = 2,
                          .head_dim = 4,
                          .width = 8,
                          .ffn = 8,
                          .vocab = FUZZ_VOCAB,
                          .max_position = 256,
                          .norm_eps = 1e-6,
                          .tied = true,
                          .stored = HH_DTYPE_F32,
                          .beta_scale = 2,
                          .gdn_conv = true,
                          .bos_id = -1,
                          .rope = {.theta = 10000, .factor = 1}};
    hh_error err = {0};
    hh_backend *be;
    if (m) return m;
    c.fa[0][0] = c.fa[1][1] = true;
    if (hh_cpu_open(&be, 1, HH_PRECISION_F32, NULL, &err) != HH_OK || hh_model_create(&m, be, &c, &err) != HH_OK)
        hh_assert_failed(__FILE__, __LINE__, err.text);
    hh_rng rng = hh_rng_seeded(1);
    hh_real *x = m->flat.data;
    for (int64_t i = 0; i < hh_tensor_count(m->flat); i++) x[i] = (hh_real)(0.1 * hh_rng_normal(&rng));
    return m;
}

#endif
