/* Pretraining: next-token cross-entropy of a model that starts from random weights (initialise.h). */
#include "train/stage.h"

hh_code hh_next_token_run(hh_trainer *t, const hh_micro *m, hh_error *err) {
    hh_backend *be = t->be;
    int64_t n = m->b.n_tokens;
    hh_tensor dx = hh_tensor_rows(t->dx, 0, n), final;
    for (int64_t i = 0; i < t->n_students; i++) {
        hh_student *s = &t->student[i];
        HH_TRY(hh_forward(s->run, &m->b, &final, err));
        be->ops->ce_head(be, hh_losses_of(t, t->nll, i, n), NULL, dx, &s->gradients->w.head, final, &s->model->w.head,
                         m->target, m->per_target);
        hh_backward(s->run, &m->b, dx, s->gradients, &(hh_backward_options){0});
    }
    return HH_OK;
}

void hh_next_token_losses(hh_trainer *t, const hh_micro *m) {
    const int64_t n = m->b.n_tokens;
    for (int64_t i = 0; i < t->n_students; i++)
        t->student[i].loss += m->per_target * hh_sum_rows(t, hh_losses_of(t, t->nll, i, n), n);
}

const hh_stage hh_stage_pretrain = {.name = "pretrain",
                                    .lr = 1.5e-3,
                                    .final_share = 0.1,
                                    .weight_decay = 0.1,
                                    .warmup = 100,
                                    .run = hh_next_token_run,
                                    .add_losses = hh_next_token_losses};
