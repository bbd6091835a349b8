/* The model, forward: docs/METHOD.md sections 1 and 2 as a list of op calls. Weights may be of any type; what a
 * backward needs stays in the layer's hh_act. */
#include "model/run.h"

#include "base/progress.h"

#include <math.h>

enum { MAX_RECORDED = 64 }; /* sequences of a recorded step */

static double log_scale(const hh_run *r, const hh_layer *l) {
    const hh_config *c = &r->m->config;
    bool on = !l->dense && (r->mode == HH_RUN_INFERENCE || c->log_scale_in_training);
    return on ? c->log_scale_base : 0;
}

/* Keys and values where attention reads them: the caches, which get the batch's own, or the batch's own alone. */
static void gather_kv(hh_run *r, const hh_batch *b, int64_t layer, const hh_act *a) {
    for (int64_t s = 0; s < b->n_spans; s++) {
        const hh_span span = b->span[s];
        if (b->cache) {
            r->kv[s] = (hh_kv){.k = b->cache[s]->layer[layer].k, .v = b->cache[s]->layer[layer].v};
        } else {
            r->kv[s] =
                (hh_kv){.k = hh_tensor_rows(a->fa_k, span.lo, span.hi), .v = hh_tensor_rows(a->fa_v, span.lo, span.hi)};
        }
    }
    if (b->cache) r->be->ops->cache_append(r->be, r->kv, a->fa_k, a->fa_v, b->span, b->n_spans);
}

/* What the inputs of all mixers share. */
static hh_mixer_inputs inputs_of(const hh_run *r, const hh_batch *b) {
    return (hh_mixer_inputs){.cos = hh_tensor_rows(r->cos, 0, b->n_tokens),
                             .sin = hh_tensor_rows(r->sin, 0, b->n_tokens),
                             .eps = r->m->config.norm_eps,
                             .beta_scale = r->m->config.beta_scale};
}

/* Section 2.1; a dense layer is the same with rotary embedding and without gate and log-scale. */
static void forward_fa(hh_run *r, const hh_batch *b, int64_t layer, const hh_act *a) {
    hh_backend *be = r->be;
    const hh_ops *op = be->ops;
    const hh_config *c = &r->m->config;
    const hh_layer *l = &r->m->w.layer[layer];
    hh_mixer_inputs in = inputs_of(r, b);
    in.path[0] = (hh_mixer_path){.x = hh_part_heads(l, a->wide, HH_FA_Q, c->head_dim), .y = a->fa_q};
    in.path[1] = (hh_mixer_path){.x = hh_part_heads(l, a->wide, HH_FA_K, c->head_dim), .y = a->fa_k};
    for (int i = 0; i < 2; i++) {
        in.path[i].norm = i ? l->fa_k_norm : l->fa_q_norm;
        in.path[i].rstd = i ? a->fa_k_rstd : a->fa_q_rstd;
        in.path[i].rotate = l->dense;
    }
    in.n_paths = c->qk_norm || l->dense ? 2 : 0;
    op->mixer_inputs_fwd(be, &in, b->span, b->n_spans);
    hh_run_look(r, "attention's queries", layer, a->fa_q);
    hh_run_look(r, "attention's keys", layer, a->fa_k);
    gather_kv(r, b, layer, a);
    op->attention_fwd(be, a->fa_raw, a->lse, a->fa_q, r->kv, b->span, b->n_spans, l->kv_of_fa, log_scale(r, l));
    hh_run_look(r, "attention", layer, a->fa_raw);
    hh_tensor gate = hh_part_heads(l, a->wide, HH_FA_GATE, c->head_dim);
    if (gate.rank) op->sigmoid_gate_fwd(be, hh_heads_of(a->mixed, 0, l->n_fa), a->fa_raw, gate);
}

/* Section 2.2. */
static void forward_gdn(hh_run *r, const hh_batch *b, int64_t layer, const hh_act *a) {
    hh_backend *be = r->be;
    const hh_ops *op = be->ops;
    const hh_config *c = &r->m->config;
    const hh_layer *l = &r->m->w.layer[layer];
    for (int64_t s = 0; b->cache && s < b->n_spans; s++) {
        r->state[s] = b->cache[s]->layer[layer].state;
        for (int i = 0; i < 3; i++) r->tail[i][s] = b->cache[s]->layer[layer].tail[i];
    }
    hh_mixer_inputs in = inputs_of(r, b);
    in.n_paths = c->gdn_conv ? 3 : 2;
    for (int i = 0; i < in.n_paths; i++) {
        in.path[i] = (hh_mixer_path){.x = hh_part_heads(l, a->wide, (hh_input_part)(HH_GDN_Q + i), c->head_dim),
                                     .y = i == 0   ? a->gdn_q
                                          : i == 1 ? a->gdn_k
                                                   : a->gdn_v,
                                     .rotate = i < 2};
        if (!c->gdn_conv) continue;
        in.path[i].conv = hh_tensor_split(a->gdn_conv[i], l->n_gdn);
        in.path[i].taps = l->conv[i];
        in.path[i].tail = b->cache ? r->tail[i] : NULL;
    }
    for (int i = 0; i < 2; i++) {
        in.path[i].norm = i ? l->gdn_k_norm : l->gdn_q_norm;
        in.path[i].rstd = i ? a->gdn_k_rstd : a->gdn_q_rstd;
        in.path[i].r = i ? a->gdn_k_r : a->gdn_q_r;
        in.path[i].scale = i ? 1 : 1 / sqrt((double)c->head_dim);
    }
    in.g = a->g;
    in.beta = a->beta;
    in.a = hh_part_columns(l, a->wide, HH_GDN_A);
    in.b = hh_part_columns(l, a->wide, HH_GDN_B);
    in.A_log = l->A_log;
    in.dt_bias = l->dt_bias;
    op->mixer_inputs_fwd(be, &in, b->span, b->n_spans);
    hh_run_look(r, "GDN's queries", layer, a->gdn_q);
    hh_run_look(r, "GDN's keys", layer, a->gdn_k);
    hh_run_look(r, "GDN's log-decays", layer, a->g);
    op->gdn_fwd(be, a->gdn_raw, r->saved[layer], a->gdn_q, a->gdn_k, a->gdn_v, a->g, a->beta,
                b->cache ? r->state : NULL, b->span, b->n_spans, hh_all_single(b) ? HH_GDN_RECURRENT : r->gdn_mode);
    hh_run_look(r, "GDN", layer, a->gdn_raw);
    hh_tensor gate = hh_part_heads(l, a->wide, HH_GDN_GATE, c->head_dim);
    if (gate.rank) op->sigmoid_gate_fwd(be, hh_heads_of(a->mixed, l->n_fa, c->n_heads), a->gdn_raw, gate);
}

/* out = Attn(RMSNorm(x)); section 2.3 joins the branches. */
static void forward_mixer(hh_run *r, const hh_batch *b, int64_t layer, const hh_act *a, hh_tensor x, hh_tensor out) {
    hh_backend *be = r->be;
    const hh_ops *op = be->ops;
    const hh_config *c = &r->m->config;
    const hh_layer *l = &r->m->w.layer[layer];
    hh_tensor norm = hh_tensor_rows(r->norm, 0, b->n_tokens);
    op->rmsnorm_fwd(be, norm, a->rstd1, x, l->norm1, c->norm_eps);
    op->linear_fwd(be, a->wide, norm, &l->in, false);
    hh_run_look(r, "input projections", layer, a->wide);
    hh_run_branch(r, l, HH_BRANCH_SIDE);
    if (l->n_gdn) forward_gdn(r, b, layer, a);
    hh_run_branch(r, l, HH_BRANCH_MAIN);
    if (l->n_fa) forward_fa(r, b, layer, a);
    hh_run_branch(r, l, HH_BRANCH_NONE);
    if (a->head_weight.rank) op->head_weight_fwd(be, a->head_weight, hh_part_columns(l, a->wide, HH_HEAD_GATE));
    if (!l->dense && c->fusion != HH_FUSION_NONE)
        op->headnorm_fwd(be, a->heads, a->head_rstd, a->mixed, l->gamma, a->head_weight, c->norm_eps);
    hh_run_announce(r, &r->tap, HH_POINT_HEAD_OUTPUT, layer, a->heads);
    op->linear_fwd(be, out, hh_tensor_join(a->heads), &l->out, false);
}

static void forward_block(hh_run *r, const hh_batch *b, int64_t layer, hh_tensor x_next) {
    hh_backend *be = r->be;
    const hh_ops *op = be->ops;
    const hh_config *c = &r->m->config;
    const hh_layer *l = &r->m->w.layer[layer];
    const hh_act a = hh_act_rows(&r->act[layer], b->n_tokens);
    be->layer = layer;
    hh_run_announce(r, &r->tap, HH_POINT_BLOCK_INPUT, layer, a.x);
    forward_mixer(r, b, layer, &a, a.x, a.mid);
    hh_run_announce(r, &r->tap, HH_POINT_ATTENTION_OUTPUT, layer, a.mid);
    hh_tensor norm = hh_tensor_rows(r->norm, 0, b->n_tokens);
    /* With one stream for all layers, which nobody looks at within the block, the products add to it where it is. */
    const bool in_place = x_next.data == a.x.data && !r->tap.call && !r->check_nan;
    if (in_place)
        op->add_rmsnorm_fwd(be, norm, a.rstd2, a.x, a.mid, l->norm2, c->norm_eps);
    else
        op->add_rmsnorm_fwd(be, norm, a.rstd2, a.mid, a.x, l->norm2, c->norm_eps);
    op->linear_fwd(be, a.gate_up, norm, &l->gate_up, false);
    op->swiglu_fwd(be, a.h, hh_tensor_columns(a.gate_up, 0, c->ffn), hh_tensor_columns(a.gate_up, c->ffn, 2 * c->ffn));
    hh_run_look(r, "MLP", layer, a.h);
    op->linear_fwd(be, x_next, a.h, &l->down, in_place);
    if (!in_place) op->axpy(be, x_next, 1, a.mid);
    hh_run_announce(r, &r->tap, HH_POINT_BLOCK_OUTPUT, layer, x_next);
}

static hh_code check_capacity(const hh_batch *b, hh_error *err) {
    for (int64_t s = 0; b->cache && s < b->n_spans; s++) {
        int64_t end = b->span[s].pos + b->span[s].hi - b->span[s].lo;
        if (end > b->cache[s]->capacity)
            return hh_fail(err, HH_ENOMEM,
                           "the cache holds %lld tokens, but %lld are asked for; a larger context is needed",
                           (long long)b->cache[s]->capacity, (long long)end);
    }
    return HH_OK;
}

/* From ids to the final norm's output, in r->final. */
static hh_code forward_blocks(hh_run *r, const hh_batch *b, hh_error *err) {
    hh_backend *be = r->be;
    const hh_model *m = r->m;
    const int64_t n = b->n_tokens, layers = m->config.n_layers;
    hh_run_begin(r, b);
    r->decoding = be->decoding = hh_all_single(b) && !b->prompt;
    hh_tensor last = hh_tensor_rows(r->last, 0, n);
    hh_tensor x = layers ? hh_tensor_rows(r->act[0].x, 0, n) : last;
    be->ops->embedding_fwd(be, x, m->w.embedding, b->ids);
    for (int64_t l = 0; l < layers; l++) {
        be->layer = -1;
        if (!r->decoding && hh_interrupted())
            return hh_fail(err, HH_ECANCELLED, "interrupted in layer %lld of %lld", (long long)l, (long long)layers);
        forward_block(r, b, l, l + 1 < layers ? hh_tensor_rows(r->act[l + 1].x, 0, n) : last);
    }
    be->layer = -1;
    hh_tensor rstd = r->final_rstd.rank ? hh_tensor_rows(r->final_rstd, 0, n) : HH_NONE;
    be->ops->rmsnorm_fwd(be, hh_tensor_rows(r->final, 0, n), rstd, last, m->w.final_norm, m->config.norm_eps);
    hh_run_announce(r, &r->tap, HH_POINT_FINAL, layers, hh_tensor_rows(r->final, 0, n));
    be->decoding = false;
    return HH_OK;
}

/* The head's product with some rows (NULL: rows [0, n)) of a final tensor. */
static void project(hh_run *r, hh_tensor final, const int32_t *rows, int64_t n, hh_tensor out, bool decoding) {
    hh_backend *be = r->be;
    be->decoding = decoding;
    for (int64_t lo = 0; lo < n; lo += r->max_tokens) {
        int64_t hi = lo + r->max_tokens < n ? lo + r->max_tokens : n;
        hh_tensor x = rows ? hh_tensor_rows(r->norm, 0, hi - lo) : hh_tensor_rows(final, lo, hi);
        if (rows) be->ops->gather_rows(be, x, final, rows + lo);
        be->ops->linear_fwd(be, hh_tensor_rows(out, lo, hi), x, &r->m->w.head, false);
    }
    be->decoding = false;
}

/* Of every span's last token: what the next ones are drawn from, always by the product that decoding uses. */
static void last_logits(hh_run *r, const hh_batch *b, hh_tensor logits) {
    HH_ASSERT(logits.dim[0] == b->n_spans);
    for (int64_t s = 0; s < b->n_spans; s++) r->last_row[s] = (int32_t)b->span[s].hi - 1;
    hh_tensor final = hh_tensor_rows(r->final, 0, b->n_tokens);
    if (b->n_spans == 1)
        project(r, hh_tensor_rows(final, b->n_tokens - 1, b->n_tokens), NULL, 1, logits, true);
    else
        project(r, final, hh_all_single(b) ? NULL : r->last_row, b->n_spans, logits, true);
}

/* What decoding repeats: a token for each of a few sequences, while nobody looks. */
static bool can_record(const hh_run *r, const hh_batch *b) {
    return b->cache && hh_all_single(b) && !b->prompt && b->n_tokens <= MAX_RECORDED && !r->tap.call && !r->check_nan;
}

/* Recordings are for a number of sequences and the power of two that the longest has not reached yet. */
static uint64_t recording_key(const hh_batch *b, bool logits) {
    uint64_t bucket = 0;
    for (int64_t s = 0; s < b->n_spans; s++)
        while (b->span[s].pos >> bucket) bucket++;
    return (uint64_t)b->n_tokens << 8 | bucket << 1 | logits;
}

/* What HYDRAHEAD_CHECK=nan has seen, also in a backward or a part of a block before this. */
static hh_code take_fault(hh_run *r, hh_error *err) {
    if (r->fault.code == HH_OK) return HH_OK;
    *err = r->fault;
    r->fault = (hh_error){0};
    return err->code;
}

static hh_code run_batch(hh_run *r, const hh_batch *b, hh_tensor logits, hh_error *err) {
    hh_backend *be = r->be;
    HH_TRY(check_capacity(b, err));
    HH_ASSERT(!b->cache || r->mode == HH_RUN_INFERENCE);
    bool again = false, record = can_record(r, b);
    do {
        if (record) {
            hh_run_forget_table(r);
            hh_backend_record_begin(be, r, recording_key(b, logits.rank));
        }
        HH_TRY(forward_blocks(r, b, err)); /* decoding is not interrupted: no recording stays open */
        if (logits.rank) last_logits(r, b, logits);
        if (record) again = hh_backend_record_end(be);
    } while (again);
    for (int64_t s = 0; b->cache && s < b->n_spans; s++) b->cache[s]->length += b->span[s].hi - b->span[s].lo;
    return take_fault(r, err);
}

hh_code hh_forward(hh_run *r, const hh_batch *b, hh_tensor *final, hh_error *err) {
    *final = hh_tensor_rows(r->final, 0, b->n_tokens);
    return run_batch(r, b, HH_NONE, err);
}

hh_code hh_forward_next(hh_run *r, const hh_batch *b, hh_tensor logits, hh_tensor *final, hh_error *err) {
    *final = hh_tensor_rows(r->final, 0, b->n_tokens);
    return run_batch(r, b, logits, err);
}

void hh_logits(hh_run *r, hh_tensor final, const int32_t *rows, int64_t n, hh_tensor out) {
    project(r, final, rows, n, out, r->decoding);
}

void hh_forward_attention(hh_run *r, const hh_batch *b, int64_t layer, hh_tensor x, hh_tensor out) {
    HH_ASSERT(!b->cache);
    hh_run_begin(r, b);
    const hh_act a = hh_act_rows(&r->act[layer], b->n_tokens);
    const int64_t outer = r->be->layer;
    r->be->layer = layer;
    forward_mixer(r, b, layer, &a, x, out);
    r->be->layer = outer;
}

void hh_forward_mlp(hh_run *r, int64_t layer, hh_tensor x) {
    hh_backend *be = r->be;
    const hh_config *c = &r->m->config;
    const hh_layer *l = &r->m->w.layer[layer];
    bool training = r->mode != HH_RUN_INFERENCE; /* whose saved activations are left alone */
    for (int64_t lo = 0; lo < x.dim[0]; lo += r->max_tokens) {
        int64_t n = x.dim[0] - lo < r->max_tokens ? x.dim[0] - lo : r->max_tokens;
        hh_tensor rows = hh_tensor_rows(x, lo, lo + n), norm = hh_tensor_rows(r->norm, 0, n);
        hh_tensor gate_up = hh_tensor_rows(training ? r->d_gate_up : r->act[layer].gate_up, 0, n);
        hh_tensor gate = hh_tensor_columns(gate_up, 0, c->ffn);
        be->ops->rmsnorm_fwd(be, norm, HH_NONE, rows, l->norm2, c->norm_eps);
        be->ops->linear_fwd(be, gate_up, norm, &l->gate_up, false);
        be->ops->swiglu_fwd(be, gate, gate, hh_tensor_columns(gate_up, c->ffn, 2 * c->ffn));
        be->ops->linear_fwd(be, rows, gate, &l->down, true);
    }
}

void hh_forward_final(hh_run *r, hh_tensor x, hh_tensor y) {
    r->be->ops->rmsnorm_fwd(r->be, y, HH_NONE, x, r->m->w.final_norm, r->m->config.norm_eps);
}
