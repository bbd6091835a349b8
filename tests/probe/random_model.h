/* A small dense model of random weights, for the tests of probing. */
#ifndef HH_TESTS_PROBE_RANDOM_MODEL_H
#define HH_TESTS_PROBE_RANDOM_MODEL_H

#include "support/small.h"
#include "support/support.h"

#include "base/rng.h"
#include "tensor/mirror.h"

#include <math.h>

static int64_t random_head_dim = 8;

static hh_model *random_model(hh_backend *be, hh_family family, uint64_t seed) {
    hh_config c = small_config(family, (small_shape){2, 4, 2, random_head_dim, 24, 53});
    c.tied = family != HH_LLAMA;
    c.attention_bias = false;
    hh_error err = {0};
    hh_model *m;
    assert_int_equal(hh_model_create(&m, be, &c, &err), HH_OK);
    hh_rng rng = hh_rng_seeded(seed);
    hh_mirror mirror = hh_mirror_of(be);
    for (int64_t i = 0; i < m->n_params; i++) {
        hh_tensor t = *m->param[i].slot;
        hh_real *x = hh_mirror_write(&mirror, t);
        double scale = t.rank == 2 ? 1.5 / sqrt((double)t.dim[1]) : 0.1;
        for (int64_t j = 0; j < hh_tensor_count(t); j++) x[j] = (hh_real)(scale * hh_rng_normal(&rng) + (t.rank == 1));
        hh_mirror_flush(&mirror, t);
    }
    hh_mirror_release(&mirror);
    return m;
}

#endif
