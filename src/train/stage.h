/* A training stage is a loss: what one micro-batch adds to the students' gradients. One file each (docs/METHOD.md section 6).
 */
#ifndef HH_TRAIN_STAGE_H
#define HH_TRAIN_STAGE_H

#include "train/trainer.h"

/* Some sequences of a step, as a batch. */
typedef struct hh_micro {
    hh_batch b;
    const int32_t *target; /* [n_tokens], -1: none */
    const float *weight;   /* [n_tokens] */
    /* One over the whole step's tokens, tokens with a target, and their weights: what losses are scaled by. */
    double per_token, per_target, per_weight;
} hh_micro;

struct hh_stage {
    const char *name;
    bool needs_teacher;
    bool mixers_only; /* only hybrid attention layers train; the others stay as they are */
    /* Published defaults: peak rate, its share at the end of the cosine (1: constant), warm-up steps, weight decay. */
    double lr, final_share, weight_decay;
    int64_t warmup;
    /* Adds to every student's gradients, and leaves losses where tensors are. The teacher runs once. It may be recorded:
     * nothing of the host but ops and their lists may depend on it. */
    hh_code (*run)(hh_trainer *t, const hh_micro *m, hh_error *err);
    /* Then: adds those losses to every student's. */
    void (*add_losses)(hh_trainer *t, const hh_micro *m);
};

/* Next-token cross-entropy of every student, shared by pretrain and extend. */
hh_code hh_next_token_run(hh_trainer *t, const hh_micro *m, hh_error *err);
void hh_next_token_losses(hh_trainer *t, const hh_micro *m);

/* Student i's first n rows of t->nll or t->kl. */
hh_tensor hh_losses_of(const hh_trainer *t, hh_tensor losses, int64_t i, int64_t n);

/* Sum of the first n numbers of a vector, in double. */
double hh_sum_rows(const hh_trainer *t, hh_tensor x, int64_t n);

#endif
