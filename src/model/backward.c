/* The model, backward: forward.c's list from its end to its start. Norms and SwiGLU are computed again rather than
 * kept. `dx` is the gradient of the residual stream and is carried in place through all blocks. */
#include "model/run.h"

#include "base/progress.h"

#include "ops/gdn.h"

#include <math.h>

/* Where weight gradients go; without gradients, a layer that has none. */
static const hh_layer no_layer;

static const hh_layer *grads_of(const hh_gradients *g, int64_t layer) {
    return g ? &g->w.layer[layer] : &no_layer;
}

static void weight_gradient(hh_backend *be, const hh_gradients *g, const hh_linear *dw, hh_tensor dy, hh_tensor x) {
    if (g) be->ops->linear_bwd_weight(be, dw, dy, x);
}

/* dz of a gated branch, and do of its mixer: d_out [T,n,D] -> d_raw, which is d_out itself without a gate. */
static hh_tensor backward_gate(hh_run *r, const hh_layer *l, hh_input_part p, const hh_act *a, hh_tensor d_wide,
                               hh_tensor raw, hh_tensor d_out) {
    const int64_t d = r->m->config.head_dim;
    hh_tensor z = hh_part_heads(l, a->wide, p, d);
    if (z.rank) r->be->ops->sigmoid_gate_bwd(r->be, d_out, hh_part_heads(l, d_wide, p, d), d_out, raw, z);
    return d_out;
}

static void backward_fa(hh_run *r, const hh_batch *b, int64_t layer, const hh_act *a, hh_tensor d_wide, hh_tensor d_out,
                        const hh_layer *dl) {
    hh_backend *be = r->be;
    const hh_ops *op = be->ops;
    const hh_config *c = &r->m->config;
    const hh_layer *l = &r->m->w.layer[layer];
    hh_tensor dq = hh_part_heads(l, d_wide, HH_FA_Q, c->head_dim), dk = hh_part_heads(l, d_wide, HH_FA_K, c->head_dim);
    hh_tensor dv = hh_part_heads(l, d_wide, HH_FA_V, c->head_dim);
    hh_tensor d_raw = backward_gate(r, l, HH_FA_GATE, a, d_wide, a->fa_raw, d_out);
    double scale = !l->dense && c->log_scale_in_training ? c->log_scale_base : 0;
    op->attention_bwd(be, dq, dk, dv, d_raw, a->fa_q, a->fa_k, a->fa_v, a->fa_raw, a->lse, b->span, b->n_spans,
                      l->kv_of_fa, scale);
    hh_run_look(r, "attention's gradient", layer, dq);
    if (l->dense) {
        hh_tensor cos = hh_tensor_rows(r->cos, 0, b->n_tokens), sin = hh_tensor_rows(r->sin, 0, b->n_tokens);
        op->rope(be, dq, cos, sin, true);
        op->rope(be, dk, cos, sin, true);
    }
    if (c->qk_norm) {
        op->rmsnorm_bwd(be, dq, dl->fa_q_norm, dq, hh_part_heads(l, a->wide, HH_FA_Q, c->head_dim), l->fa_q_norm,
                        a->fa_q_rstd, false);
        op->rmsnorm_bwd(be, dk, dl->fa_k_norm, dk, hh_part_heads(l, a->wide, HH_FA_K, c->head_dim), l->fa_k_norm,
                        a->fa_k_rstd, false);
    }
}

static void backward_gdn(hh_run *r, const hh_batch *b, int64_t layer, const hh_act *a, hh_tensor d_wide,
                         hh_tensor d_out, const hh_layer *dl) {
    hh_backend *be = r->be;
    const hh_ops *op = be->ops;
    const hh_config *c = &r->m->config;
    const hh_layer *l = &r->m->w.layer[layer];
    const int64_t n = b->n_tokens, width = l->n_gdn * c->head_dim;
    hh_tensor d_in[3], d[3]; /* of the projections, and of what the convolution made of them */
    for (int i = 0; i < 3; i++) {
        d_in[i] = hh_part_columns(l, d_wide, (hh_input_part)(HH_GDN_Q + i));
        d[i] = c->gdn_conv ? hh_tensor_columns(hh_tensor_rows(r->d_conv[i], 0, n), 0, width) : d_in[i];
    }
    hh_tensor dq = hh_tensor_split(d[0], l->n_gdn), dk = hh_tensor_split(d[1], l->n_gdn),
              dv = hh_tensor_split(d[2], l->n_gdn);
    hh_tensor dg = hh_tensor_columns(hh_tensor_rows(r->d_g, 0, n), 0, l->n_gdn);
    hh_tensor dbeta = hh_tensor_columns(hh_tensor_rows(r->d_beta, 0, n), 0, l->n_gdn);
    hh_tensor d_raw = backward_gate(r, l, HH_GDN_GATE, a, d_wide, a->gdn_raw, d_out);
    op->gdn_bwd(be, dq, dk, dv, dg, dbeta, d_raw, r->saved[layer], a->gdn_q, a->gdn_k, a->gdn_v, a->g, a->beta, NULL,
                b->span, b->n_spans, hh_all_single(b) ? HH_GDN_RECURRENT : r->gdn_mode);
    hh_run_look(r, "GDN's gradient", layer, dq);
    hh_tensor dA_log = dl->A_log.rank ? dl->A_log : hh_tensor_rows(r->unwanted_gate[0], 0, l->n_gdn);
    hh_tensor ddt_bias = dl->dt_bias.rank ? dl->dt_bias : hh_tensor_rows(r->unwanted_gate[1], 0, l->n_gdn);
    op->gdn_gates_bwd(be, hh_part_columns(l, d_wide, HH_GDN_A), hh_part_columns(l, d_wide, HH_GDN_B), dA_log, ddt_bias,
                      dg, dbeta, hh_part_columns(l, a->wide, HH_GDN_A), hh_part_columns(l, a->wide, HH_GDN_B), l->A_log,
                      l->dt_bias, c->beta_scale);
    op->l2norm_bwd(be, dq, dq, a->gdn_q, a->gdn_q_r, 1 / sqrt((double)c->head_dim));
    op->l2norm_bwd(be, dk, dk, a->gdn_k, a->gdn_k_r, 1);
    hh_tensor cos = hh_tensor_rows(r->cos, 0, n), sin = hh_tensor_rows(r->sin, 0, n);
    op->rope(be, dq, cos, sin, true);
    op->rope(be, dk, cos, sin, true);
    if (c->qk_norm) {
        hh_tensor q = hh_tensor_split(a->gdn_conv[0], l->n_gdn), k = hh_tensor_split(a->gdn_conv[1], l->n_gdn);
        op->rmsnorm_bwd(be, dq, dl->gdn_q_norm, dq, q, l->gdn_q_norm, a->gdn_q_rstd, false);
        op->rmsnorm_bwd(be, dk, dl->gdn_k_norm, dk, k, l->gdn_k_norm, a->gdn_k_rstd, false);
    }
    for (int i = 0; i < 3 && c->gdn_conv; i++) {
        hh_tensor dw = dl->conv[i].rank ? dl->conv[i] : hh_tensor_rows(r->unwanted_conv, 0, width);
        op->conv_bwd(be, d_in[i], dw, d[i], hh_part_columns(l, a->wide, (hh_input_part)(HH_GDN_Q + i)), l->conv[i],
                     b->span, b->n_spans);
    }
}

/* From the gradient of W_O's product to that of the layer's normalised input, left in r->d_norm. With `detach` it ends
 * at the heads and returns false: there is no such gradient. */
static bool backward_mixer(hh_run *r, const hh_batch *b, int64_t layer, const hh_act *a, hh_tensor x, hh_tensor dout,
                           const hh_gradients *g, const hh_tap *tap, bool detach) {
    hh_backend *be = r->be;
    const hh_ops *op = be->ops;
    const hh_config *c = &r->m->config;
    const hh_layer *l = &r->m->w.layer[layer], *dl = grads_of(g, layer);
    const int64_t n = b->n_tokens;
    hh_tensor d_heads = hh_tensor_rows(r->d_heads[0], 0, n), d_mixed = d_heads;
    hh_tensor norm = hh_tensor_rows(r->norm, 0, n), d_norm = hh_tensor_rows(r->d_norm, 0, n);
    op->linear_bwd_input(be, hh_tensor_join(d_heads), dout, &l->out, false);
    weight_gradient(be, g, &dl->out, dout, hh_tensor_join(a->heads));
    hh_run_announce(r, tap, HH_POINT_HEAD_OUTPUT, layer, d_heads);
    if (detach) return false;
    hh_tensor d_wide = hh_tensor_columns(hh_tensor_rows(r->d_wide, 0, n), 0, l->column[HH_INPUT_PARTS]);
    if (!l->dense && c->fusion != HH_FUSION_NONE) {
        hh_tensor d_weight = a->head_weight.rank ? hh_tensor_rows(r->d_weight, 0, n) : HH_NONE;
        d_mixed = hh_tensor_rows(r->d_heads[1], 0, n);
        op->headnorm_bwd(be, d_mixed, dl->gamma, d_weight, d_heads, a->mixed, l->gamma, a->head_weight, a->head_rstd);
        if (d_weight.rank) op->head_weight_bwd(be, hh_part_columns(l, d_wide, HH_HEAD_GATE), d_weight, a->head_weight);
    }
    hh_run_branch(r, l, HH_BRANCH_SIDE);
    if (l->n_gdn) backward_gdn(r, b, layer, a, d_wide, hh_heads_of(d_mixed, l->n_fa, c->n_heads), dl);
    hh_run_branch(r, l, HH_BRANCH_MAIN);
    if (l->n_fa) backward_fa(r, b, layer, a, d_wide, hh_heads_of(d_mixed, 0, l->n_fa), dl);
    hh_run_branch(r, l, HH_BRANCH_NONE);
    if (g) {
        op->rmsnorm_fwd(be, norm, HH_NONE, x, l->norm1, c->norm_eps);
        op->linear_bwd_weight(be, &dl->in, d_wide, norm);
    }
    op->linear_bwd_input(be, d_norm, d_wide, &l->in, false);
    return true;
}

/* dx: of the block's output before, of the stream between attention and MLP after. */
static void backward_mlp(hh_run *r, int64_t layer, const hh_act *a, hh_tensor dx, const hh_gradients *g) {
    hh_backend *be = r->be;
    const hh_ops *op = be->ops;
    const hh_config *c = &r->m->config;
    const hh_layer *l = &r->m->w.layer[layer], *dl = grads_of(g, layer);
    const int64_t n = dx.dim[0];
    hh_tensor gate = hh_tensor_columns(a->gate_up, 0, c->ffn), up = hh_tensor_columns(a->gate_up, c->ffn, 2 * c->ffn);
    hh_tensor d_gate_up = hh_tensor_rows(r->d_gate_up, 0, n), d_h = hh_tensor_rows(r->d_h, 0, n);
    hh_tensor norm = hh_tensor_rows(r->norm, 0, n), d_norm = hh_tensor_rows(r->d_norm, 0, n);
    op->linear_bwd_input(be, d_h, dx, &l->down, false);
    op->swiglu_bwd(be, hh_tensor_columns(d_gate_up, 0, c->ffn), hh_tensor_columns(d_gate_up, c->ffn, 2 * c->ffn), d_h,
                   gate, up);
    if (g) {
        op->swiglu_fwd(be, a->h, gate, up);
        op->linear_bwd_weight(be, &dl->down, dx, a->h);
        op->rmsnorm_fwd(be, norm, HH_NONE, a->mid, l->norm2, c->norm_eps);
        op->linear_bwd_weight(be, &dl->gate_up, d_gate_up, norm);
    }
    op->linear_bwd_input(be, d_norm, d_gate_up, &l->gate_up, false);
    op->rmsnorm_bwd(be, dx, dl->norm2, d_norm, a->mid, l->norm2, a->rstd2, true);
}

static void backward_block(hh_run *r, const hh_batch *b, int64_t layer, hh_tensor dx, const hh_gradients *g,
                           const hh_backward_options *o) {
    hh_backend *be = r->be;
    const hh_layer *l = &r->m->w.layer[layer];
    const hh_act a = hh_act_rows(&r->act[layer], b->n_tokens);
    be->layer = layer;
    hh_run_announce(r, &o->tap, HH_POINT_BLOCK_OUTPUT, layer, dx);
    backward_mlp(r, layer, &a, dx, g);
    hh_tensor d_attention = dx;
    if (o->tap.call) { /* an observer may change it, and the stream's gradient must stay */
        d_attention = hh_tensor_rows(r->d_norm, 0, b->n_tokens);
        be->ops->copy(be, d_attention, dx);
    }
    hh_run_announce(r, &o->tap, HH_POINT_ATTENTION_OUTPUT, layer, d_attention);
    if (backward_mixer(r, b, layer, &a, a.x, d_attention, g, &o->tap, o->detach_attention))
        be->ops->rmsnorm_bwd(be, dx, grads_of(g, layer)->norm1, hh_tensor_rows(r->d_norm, 0, b->n_tokens), a.x,
                             l->norm1, a.rstd1, true);
    hh_run_announce(r, &o->tap, HH_POINT_BLOCK_INPUT, layer, dx);
}

void hh_backward(hh_run *r, const hh_batch *b, hh_tensor dfinal, hh_gradients *g, const hh_backward_options *options) {
    static const hh_backward_options none;
    const hh_backward_options *o = options ? options : &none;
    hh_backend *be = r->be;
    const hh_model *m = r->m;
    HH_ASSERT(r->mode == HH_RUN_TRAINING && !b->cache && dfinal.dim[0] == b->n_tokens);
    hh_run_begin(r, b);
    hh_run_announce(r, &o->tap, HH_POINT_FINAL, m->config.n_layers, dfinal);
    be->ops->rmsnorm_bwd(be, dfinal, g ? g->w.final_norm : HH_NONE, dfinal, hh_tensor_rows(r->last, 0, b->n_tokens),
                         m->w.final_norm, hh_tensor_rows(r->final_rstd, 0, b->n_tokens), false);
    for (int64_t l = m->config.n_layers - 1; l >= 0; l--) {
        if (hh_interrupted()) return;
        backward_block(r, b, l, dfinal, g, o);
        be->layer = -1;
    }
    if (g) be->ops->embedding_bwd(be, g->w.embedding, dfinal, b->ids);
}

void hh_backward_attention(hh_run *r, const hh_batch *b, int64_t layer, hh_tensor x, hh_tensor dout, hh_gradients *g,
                           hh_tensor dx) {
    static const hh_tap nobody;
    HH_ASSERT(r->mode != HH_RUN_INFERENCE && !b->cache);
    hh_run_begin(r, b);
    const hh_act a = hh_act_rows(&r->act[layer], b->n_tokens);
    const int64_t outer = r->be->layer;
    r->be->layer = layer;
    backward_mixer(r, b, layer, &a, x, dout, g, &nobody, false);
    if (dx.rank)
        r->be->ops->rmsnorm_bwd(r->be, dx, HH_NONE, hh_tensor_rows(r->d_norm, 0, b->n_tokens), x,
                                r->m->w.layer[layer].norm1, a.rstd1, false);
    r->be->layer = outer;
}
