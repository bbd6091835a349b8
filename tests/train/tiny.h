/* A tiny teacher, hybrids of it, and sequences without any tokenizer, for the tests of training. Header of its own, for
 * two programs use it. */
#ifndef HH_TESTS_TRAIN_TINY_H
#define HH_TESTS_TRAIN_TINY_H

#include "base/rng.h"
#include "convert/migrate.h"
#include "data/corpus.h"
#include "support/gradcheck.h"
#include "support/small.h"
#include "support/support.h"
#include "tensor/mirror.h"
#include "train/initialise.h"
#include "train/job.h"
#include "train/stage.h"

#include <math.h>
#include <string.h>

enum { TINY_L = 2, TINY_H = 4, TINY_V = 61, TINY_LENGTH = 24, TINY_ROWS = 6 };

static hh_error err;
static int64_t tiny_head_dim = 8;

static hh_config tiny_config(void) {
    return small_config(HH_QWEN3, (small_shape){TINY_L, TINY_H, 2, tiny_head_dim, 32, TINY_V});
}

static hh_model *tiny_teacher(hh_backend *be, uint64_t seed) {
    hh_model *m;
    hh_config c = tiny_config();
    assert_ok(hh_model_create(&m, be, &c, &err));
    assert_ok(hh_model_initialise(m, seed, &err));
    hh_real *x = hh_alloc(hh_tensor_bytes(m->flat));
    hh_tensor_to_host(be, x, m->flat);
    for (int64_t i = 0; i < hh_tensor_count(m->flat); i++)
        x[i] *= x[i] == 1 ? 1 : 6; /* far enough from zero to be worth imitating */
    be->to_device(be, m->flat.data, x, hh_tensor_bytes(m->flat));
    hh_free(x);
    return m;
}

/* Head 1 of layer 0, and heads 0 and 3 of layer 1, keep full attention. */
static hh_model *tiny_hybrid(const hh_model *teacher, uint64_t seed) {
    hh_plan plan;
    hh_model *m;
    hh_hybrid_options o = hh_hybrid_defaults();
    o.seed = seed;
    hh_plan_init(&plan, TINY_L, TINY_H);
    plan.rule[1] = plan.rule[TINY_H] = plan.rule[TINY_H + 3] = HH_KEEP_GIVEN;
    assert_ok(hh_migrate(&m, teacher, &plan, &o, NULL, &err));
    hh_plan_release(&plan);
    return m;
}

/* Tokens that follow each other with a rule and some noise; the last quarter counts as an answer. */
static hh_code tiny_sequence(void *context, int64_t step, int64_t row, int64_t n_rows, int64_t length, int32_t *ids,
                             uint8_t *flags, hh_error *e) {
    (void)e;
    (void)context;
    hh_rng rng = hh_rng_stream(77, (uint64_t)(step * n_rows + row));
    int32_t at = (int32_t)hh_rng_below(&rng, TINY_V);
    for (int64_t i = 0; i < length; i++) {
        ids[i] = at;
        flags[i] = i >= length - length / 4 ? HH_TOKEN_ANSWER : 0;
        at = hh_rng_uniform(&rng) < 0.1 ? (int32_t)hh_rng_below(&rng, TINY_V) : (at * 3 + 1) % TINY_V;
    }
    return HH_OK;
}

static const int64_t tiny_lengths[] = {TINY_LENGTH};

static hh_trainer_options tiny_options(const hh_stage *stage, int64_t steps) {
    hh_trainer_options o = hh_trainer_defaults(stage, steps);
    o.data.sequences = TINY_ROWS;
    o.data.length = tiny_lengths;
    o.data.n_lengths = 1;
    o.data.micro_tokens = 2 * TINY_LENGTH;
    o.data.fill = tiny_sequence;
    return o;
}

#endif
