/* A tiny hybrid of random weights for fuzz targets whose files belong to a model: two layers, one head of full attention
 * and one of Gated DeltaNet in each. Made once. */
#ifndef HH_TESTS_FUZZ_FUZZED_MODEL_H
#define HH_TESTS_FUZZ_FUZZED_MODEL_H

#include "base/rng.h"
#include "support/small.h"

enum { FUZZ_VOCAB = 17 };

static hh_model *fuzz_model(void) {
    static hh_model *m;
    hh_config c = small_config(HH_LLAMA, (small_shape){2, 2, 2, 4, 8, FUZZ_VOCAB});
    hh_error err = {0};
    hh_backend *be;
    if (m) return m;
    c.hybrid = c.gdn_conv = true;
    c.beta_scale = 2;
    c.dense[0] = c.dense[1] = false;
    c.fa[0][1] = c.fa[1][0] = false;
    if (hh_cpu_open(&be, 1, HH_PRECISION_F32, NULL, &err) != HH_OK || hh_model_create(&m, be, &c, &err) != HH_OK)
        hh_assert_failed(__FILE__, __LINE__, err.text);
    hh_rng rng = hh_rng_seeded(1);
    hh_real *x = m->flat.data;
    for (int64_t i = 0; i < hh_tensor_count(m->flat); i++) x[i] = (hh_real)(0.1 * hh_rng_normal(&rng));
    return m;
}

#endif
