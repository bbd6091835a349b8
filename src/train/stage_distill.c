/* Distillation: KL(teacher || student) of the next-token distributions, all weights training.
 *
 * The teacher's final hidden states stand in its run while every student is compared with them; logits exist for a tile
 * of tokens at a time, inside the op, and only for tokens whose loss counts. */
#include "train/stage.h"

static hh_code run(hh_trainer *t, const hh_micro *m, hh_error *err) {
    hh_backend *be = t->be;
    const hh_trainer_options *o = &t->o;
    int64_t n = m->b.n_tokens;
    hh_tensor dx = hh_tensor_rows(t->dx, 0, n), taught, final;
    const int32_t *target = o->ce_weight > 0 ? m->target : NULL;
    HH_TRY(hh_forward(t->teacher_run, &m->b, &taught, err));
    for (int64_t i = 0; i < t->n_students; i++) {
        hh_student *s = &t->student[i];
        hh_tensor kl = hh_losses_of(t, t->kl, i, n), nll = hh_losses_of(t, t->nll, i, n);
        HH_TRY(hh_forward(s->run, &m->b, &final, err));
        be->ops->kl_head(be, kl, target ? nll : HH_NONE, dx, &s->gradients->w.head, final, &s->model->w.head, taught,
                         &t->teacher->w.head, target, m->weight, m->per_weight, o->ce_weight);
        hh_backward(s->run, &m->b, dx, s->gradients, &(hh_backward_options){0});
    }
    return HH_OK;
}

static void add_losses(hh_trainer *t, const hh_micro *m) {
    const int64_t n = m->b.n_tokens;
    const double ce_weight = t->o.ce_weight;
    for (int64_t i = 0; i < t->n_students; i++) {
        double *loss = &t->student[i].loss;
        *loss += m->per_weight * hh_sum_rows(t, hh_losses_of(t, t->kl, i, n), n);
        if (ce_weight > 0) *loss += m->per_weight * ce_weight * hh_sum_rows(t, hh_losses_of(t, t->nll, i, n), n);
    }
}

const hh_stage hh_stage_distill = {.name = "distill",
                                   .needs_teacher = true,
                                   .lr = 1e-4,
                                   .final_share = 0.1,
                                   .warmup = 50,
                                   .run = run,
                                   .add_losses = add_losses};
