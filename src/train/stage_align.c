/* Alignment: every hybrid attention layer learns to give what the teacher's gives for the same stream.
 *
 * Layers read the teacher's stream, detached, so nothing flows between them, and a layer's loss and gradient can be
 * taken while the teacher's forward passes it: only that layer's stream and output are kept, whatever the depth of the
 * model. */
#include "train/stage.h"

typedef struct pass {
    hh_trainer *t;
    const hh_micro *m;
} pass;

/* The loss is summed over layers where it arises, so that nobody waits between them. */
static hh_tensor loss_of(const hh_trainer *t, int64_t i) {
    return hh_tensor_rows(t->mse, i, i + 1);
}

static void align_layer(const pass *p, int64_t i, int64_t layer, hh_tensor taught) {
    hh_trainer *t = p->t;
    hh_backend *be = t->be;
    const hh_student *s = &t->student[i];
    const hh_config *c = &s->model->config;
    int64_t n = p->m->b.n_tokens, hybrid = 0;
    if (s->model->w.layer[layer].dense) return;
    for (int64_t l = 0; l < c->n_layers; l++) hybrid += !s->model->w.layer[l].dense;
    hh_tensor x = hh_tensor_rows(t->stream, 0, n), out = hh_tensor_rows(t->out, 0, n), dy = hh_tensor_rows(t->dx, 0, n);
    hh_forward_attention(s->run, &p->m->b, layer, x, out);
    be->ops->mse(be, loss_of(t, i), dy, out, taught, p->m->per_token / (double)(c->width * hybrid));
    hh_backward_attention(s->run, &p->m->b, layer, x, dy, s->gradients, HH_NONE);
}

static void see_teacher(void *context, hh_point point, int64_t layer, hh_tensor x) {
    const pass *p = context;
    hh_trainer *t = p->t;
    if (point == HH_POINT_BLOCK_INPUT)
        t->be->ops->copy(t->be, hh_tensor_rows(t->stream, 0, x.dim[0]), x);
    else if (point == HH_POINT_ATTENTION_OUTPUT)
        for (int64_t i = 0; i < t->n_students; i++) align_layer(p, i, layer, x);
}

static hh_code run(hh_trainer *t, const hh_micro *m, hh_error *err) {
    pass p = {t, m};
    hh_tensor final;
    t->be->ops->fill(t->be, t->mse, 0);
    hh_run_set_tap(t->teacher_run, (hh_tap){see_teacher, &p});
    hh_code code = hh_forward(t->teacher_run, &m->b, &final, err);
    hh_run_set_tap(t->teacher_run, (hh_tap){0});
    return code;
}

static void add_losses(hh_trainer *t, const hh_micro *m) {
    (void)m;
    for (int64_t i = 0; i < t->n_students; i++) t->student[i].loss += hh_sum_rows(t, loss_of(t, i), 1);
}

const hh_stage hh_stage_align = {.name = "align",
                                 .needs_teacher = true,
                                 .mixers_only = true,
                                 .lr = 1e-3,
                                 .final_share = 0.01,
                                 .warmup = 50,
                                 .run = run,
                                 .add_losses = add_losses};
