/* A mixer's inputs step by step; see mixer_inputs.h. */
#include "ops/mixer_inputs.h"
#include "ops/shape.h"

static void make_path(hh_backend *be, const hh_mixer_inputs *in, const hh_mixer_path *p, const hh_span *span,
                      int64_t n_spans) {
    const hh_ops *op = be->ops;
    hh_tensor from = p->x;
    if (!hh_is_absent(p->taps)) { /* F1 */
        from = p->conv;
        op->conv_fwd(be, hh_tensor_join(p->conv), hh_tensor_join(p->x), p->taps, p->tail, span, n_spans);
    }
    if (!hh_is_absent(p->norm)) {
        op->rmsnorm_fwd(be, p->y, p->rstd, from, p->norm, in->eps); /* F2 */
    } else if (from.data != p->y.data) {
        op->copy(be, p->y, from);
    }
    if (p->rotate) op->rope(be, p->y, in->cos, in->sin, false);              /* F3 */
    if (!hh_is_absent(p->r)) op->l2norm_fwd(be, p->y, p->r, p->y, p->scale); /* F4 */
}

void hh_mixer_inputs_by_steps(hh_backend *be, const hh_mixer_inputs *in, const hh_span *span, int64_t n_spans) {
    HH_ASSERT(in->n_paths >= 0 && in->n_paths <= 3);
    for (int i = 0; i < in->n_paths; i++) make_path(be, in, &in->path[i], span, n_spans);
    if (!hh_is_absent(in->g)) /* F5 */
        be->ops->gdn_gates_fwd(be, in->g, in->beta, in->a, in->b, in->A_log, in->dt_bias, in->beta_scale);
}

void hh_mixer_inputs_fwd_reference(hh_backend *be, const hh_mixer_inputs *in, const hh_span *span, int64_t n_spans) {
    hh_mixer_inputs_by_steps(be, in, span, n_spans);
}
