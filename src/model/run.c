/* A run's activations: which stages of a layer need memory of their own, and where they are placed. */
#include "model/run.h"

#include "base/env.h"
#include "ops/gdn.h"

#include <string.h>

hh_tensor hh_part_columns(const hh_layer *l, hh_tensor wide, hh_input_part p) {
    if (l->column[p] == l->column[p + 1]) return HH_NONE;
    return hh_tensor_columns(wide, l->column[p], l->column[p + 1]);
}

hh_tensor hh_part_heads(const hh_layer *l, hh_tensor wide, hh_input_part p, int64_t head_dim) {
    hh_tensor t = hh_part_columns(l, wide, p);
    return t.rank ? hh_tensor_split(t, t.dim[1] / head_dim) : t;
}

hh_tensor hh_heads_of(hh_tensor t, int64_t lo, int64_t hi) {
    if (lo == hi) return HH_NONE;
    int64_t d = t.dim[2];
    return hh_tensor_split(hh_tensor_columns(hh_tensor_join(t), lo * d, hi * d), hi - lo);
}

hh_act hh_act_rows(const hh_act *a, int64_t n) {
    hh_act out = *a;
    hh_tensor *t = (hh_tensor *)&out;
    for (size_t i = 0; i < sizeof out / sizeof *t; i++)
        if (t[i].rank) t[i] = hh_tensor_rows(t[i], 0, n);
    return out;
}

/* The arena and the sizes, as short words for placing. */
typedef struct placing {
    const hh_config *c;
    hh_arena *a;
    hh_dtype type; /* of activations */
    int64_t n;     /* tokens */
    bool keep;     /* for a backward */
    bool mlp;      /* which runs of attention alone do not reach */
} placing;

static hh_tensor matrix(const placing *p, int64_t columns) {
    return hh_tensor_place_2d(p->a, p->type, p->n, columns);
}

/* Rows at multiples of 8 numbers: odd widths (the gates' columns) would deny every part of the row wide accesses. */
static hh_tensor aligned_matrix(const placing *p, int64_t columns) {
    return hh_tensor_columns(matrix(p, (columns + 7) / 8 * 8), 0, columns);
}

static hh_tensor heads(const placing *p, int64_t n_heads) {
    return hh_tensor_place_3d(p->a, p->type, p->n, n_heads, p->c->head_dim);
}

/* Statistics, tables and what stands behind the gates' functions: hh_real on every backend. */
static hh_tensor real_matrix(const placing *p, int64_t columns) {
    return hh_tensor_place_2d(p->a, HH_DTYPE_REAL, p->n, columns);
}

/* Statistics that only a backward wants. */
static hh_tensor kept_vector(const placing *p) {
    return p->keep ? hh_tensor_place_1d(p->a, HH_DTYPE_REAL, p->n) : HH_NONE;
}

static hh_tensor kept_matrix(const placing *p, int64_t columns) {
    return p->keep ? real_matrix(p, columns) : HH_NONE;
}

static void place_fa(const placing *p, const hh_layer *l, hh_act *a) {
    const int64_t d = p->c->head_dim;
    const bool own = p->keep && p->c->qk_norm;
    hh_tensor q = hh_part_heads(l, a->wide, HH_FA_Q, d), k = hh_part_heads(l, a->wide, HH_FA_K, d);
    a->fa_q = own ? heads(p, l->n_fa) : q;
    a->fa_k = own ? heads(p, l->n_kv) : k;
    a->fa_v = hh_part_heads(l, a->wide, HH_FA_V, d);
    if (p->c->qk_norm) {
        a->fa_q_rstd = kept_matrix(p, l->n_fa);
        a->fa_k_rstd = kept_matrix(p, l->n_kv);
    }
    a->lse = kept_matrix(p, l->n_fa);
    bool gated = l->column[HH_FA_GATE] != l->column[HH_FA_GATE + 1];
    a->fa_raw = gated && p->keep ? heads(p, l->n_fa) : hh_heads_of(a->mixed, 0, l->n_fa);
}

static void place_gdn(const placing *p, const hh_layer *l, hh_act *a) {
    const int64_t d = p->c->head_dim;
    const bool own = p->keep && p->c->qk_norm;
    for (int i = 0; i < 3; i++)
        a->gdn_conv[i] =
            p->c->gdn_conv ? matrix(p, l->n_gdn * d) : hh_part_columns(l, a->wide, (hh_input_part)(HH_GDN_Q + i));
    a->gdn_q = own ? heads(p, l->n_gdn) : hh_tensor_split(a->gdn_conv[0], l->n_gdn);
    a->gdn_k = own ? heads(p, l->n_gdn) : hh_tensor_split(a->gdn_conv[1], l->n_gdn);
    a->gdn_v = hh_tensor_split(a->gdn_conv[2], l->n_gdn);
    if (p->c->qk_norm) {
        a->gdn_q_rstd = kept_matrix(p, l->n_gdn);
        a->gdn_k_rstd = kept_matrix(p, l->n_gdn);
    }
    a->gdn_q_r = real_matrix(p, l->n_gdn);
    a->gdn_k_r = real_matrix(p, l->n_gdn);
    a->g = real_matrix(p, l->n_gdn);
    a->beta = real_matrix(p, l->n_gdn);
    bool gated = l->column[HH_GDN_GATE] != l->column[HH_GDN_GATE + 1];
    a->gdn_raw = gated && p->keep ? heads(p, l->n_gdn) : hh_heads_of(a->mixed, l->n_fa, p->c->n_heads);
}

/* a->x and a->mid are there. */
static void place_layer(const placing *p, const hh_layer *l, hh_act *a, hh_tensor work_h) {
    const hh_config *c = p->c;
    a->rstd1 = kept_vector(p);
    a->rstd2 = kept_vector(p);
    a->wide = aligned_matrix(p, l->column[HH_INPUT_PARTS]);
    a->mixed = heads(p, c->n_heads);
    if (l->n_fa) place_fa(p, l, a);
    if (l->n_gdn) place_gdn(p, l, a);
    bool fused = !l->dense && c->fusion != HH_FUSION_NONE;
    if (fused) a->head_rstd = real_matrix(p, c->n_heads);
    if (!l->dense && c->fusion == HH_FUSION_GATE) a->head_weight = real_matrix(p, c->n_heads);
    a->heads = fused && p->keep ? heads(p, c->n_heads) : a->mixed;
    if (!p->mlp) return;
    a->gate_up = matrix(p, 2 * c->ffn);
    a->h = p->keep ? work_h : hh_tensor_columns(a->gate_up, 0, c->ffn);
}

static void place_backward(hh_run *r, const placing *p, const hh_layer *layer) {
    const hh_config *c = p->c;
    int64_t widest = 1, n_gdn = 0;
    for (int64_t i = 0; i < c->n_layers; i++) {
        if (layer[i].column[HH_INPUT_PARTS] > widest) widest = layer[i].column[HH_INPUT_PARTS];
        if (layer[i].n_gdn > n_gdn) n_gdn = layer[i].n_gdn;
    }
    r->d_norm = matrix(p, c->width);
    r->d_wide = aligned_matrix(p, widest);
    for (int i = 0; i < 2; i++) r->d_heads[i] = heads(p, c->n_heads);
    if (p->mlp) {
        r->work_h = matrix(p, c->ffn);
        r->d_gate_up = matrix(p, 2 * c->ffn);
        r->d_h = matrix(p, c->ffn);
    }
    for (int i = 0; i < 3 && c->hybrid && c->gdn_conv; i++) r->d_conv[i] = matrix(p, n_gdn * c->head_dim);
    if (n_gdn) {
        r->d_g = real_matrix(p, n_gdn);
        r->d_beta = real_matrix(p, n_gdn);
        for (int i = 0; i < 2; i++) r->unwanted_gate[i] = hh_tensor_place_1d(p->a, HH_DTYPE_REAL, n_gdn);
        if (c->gdn_conv) r->unwanted_conv = hh_tensor_place_2d(p->a, HH_DTYPE_REAL, n_gdn * c->head_dim, 4);
    }
    if (c->hybrid && c->fusion == HH_FUSION_GATE) r->d_weight = real_matrix(p, c->n_heads);
}

/* What stays from batch to batch, counted or placed. */
static void place_tables(hh_run *r, const hh_config *c, hh_arena *a) {
    const placing p = {.c = c, .a = a, .n = r->max_tokens};
    r->cos = real_matrix(&p, c->head_dim / 2);
    r->sin = real_matrix(&p, c->head_dim / 2);
}

/* The rest; `layer` are described layers. */
static void place_activations(hh_run *r, const hh_config *c, hh_dtype activation, const hh_layer *layer, hh_arena *a) {
    const placing p = {.c = c,
                       .a = a,
                       .type = activation,
                       .n = r->max_tokens,
                       .keep = r->mode != HH_RUN_INFERENCE,
                       .mlp = r->mode != HH_RUN_ATTENTION};
    const bool reuse = r->mode != HH_RUN_TRAINING; /* a layer's place by the next */
    r->last = matrix(&p, c->width);
    r->final = matrix(&p, c->width);
    r->norm = matrix(&p, c->width);
    r->final_rstd = kept_vector(&p);
    if (p.keep) place_backward(r, &p, layer);
    hh_tensor mid = reuse ? matrix(&p, c->width) : HH_NONE;
    size_t shared = a->used, most = a->used;
    for (int64_t i = 0; i < c->n_layers; i++) {
        hh_act *act = &r->act[i];
        *act = (hh_act){0};
        if (reuse) hh_arena_reset(a, shared);
        act->x = reuse ? r->last : matrix(&p, c->width);
        act->mid = reuse ? mid : matrix(&p, c->width);
        place_layer(&p, &layer[i], act, r->work_h);
        if (p.keep && layer[i].n_gdn) { /* every span may end in a chunk of its own */
            int64_t chunks = r->max_tokens / HH_GDN_CHUNK + r->max_spans;
            r->saved[i] = hh_tensor_place_3d(a, activation, chunks, layer[i].n_gdn * c->head_dim, c->head_dim);
        }
        if (a->used > most) most = a->used;
    }
    a->used = most;
}

static void make_lists(hh_run *r, int64_t n_layers) {
    r->act = hh_alloc((size_t)n_layers * sizeof *r->act);
    r->saved = hh_alloc((size_t)n_layers * sizeof *r->saved);
}

size_t hh_run_activation_bytes(const hh_config *c, hh_dtype activation, int64_t max_tokens, int64_t max_spans,
                               hh_run_mode mode) {
    hh_run r = {.mode = mode, .max_tokens = max_tokens, .max_spans = max_spans};
    make_lists(&r, c->n_layers);
    hh_layer *layer = hh_alloc((size_t)c->n_layers * sizeof *layer);
    for (int64_t i = 0; i < c->n_layers; i++) hh_layer_describe(c, i, &layer[i]);
    hh_arena count;
    hh_arena_init_counting(&count, "run");
    place_activations(&r, c, activation, layer, &count);
    hh_free(layer);
    hh_free(r.act);
    hh_free(r.saved);
    return count.used;
}

static size_t table_bytes(const hh_config *c, int64_t max_tokens) {
    hh_run r = {.max_tokens = max_tokens};
    hh_arena count;
    hh_arena_init_counting(&count, "run");
    place_tables(&r, c, &count);
    return count.used;
}

size_t hh_run_bytes(const hh_config *c, hh_dtype activation, int64_t max_tokens, int64_t max_spans, hh_run_mode mode) {
    return table_bytes(c, max_tokens) + hh_run_activation_bytes(c, activation, max_tokens, max_spans, mode);
}

hh_code hh_run_new(hh_run **out, const hh_model *m, int64_t max_tokens, int64_t max_spans, hh_run_mode mode,
                   hh_error *err) {
    return hh_run_new_in(out, m, max_tokens, max_spans, mode, NULL, err);
}

static hh_code place(hh_run *r, hh_arena *activations, hh_error *err) {
    const hh_config *c = &r->m->config;
    const hh_dtype type = r->be->activation;
    HH_TRY(r->be->arena_init(r->be, &r->tables, "run", table_bytes(c, r->max_tokens), err));
    place_tables(r, c, &r->tables);
    size_t bytes = hh_run_activation_bytes(c, type, r->max_tokens, r->max_spans, r->mode);
    if (activations) {
        HH_ASSERT(activations->size >= bytes);
        hh_arena_reset(activations, 0);
    } else {
        activations = &r->activations;
        HH_TRY(r->be->arena_init(r->be, activations, r->mode == HH_RUN_INFERENCE ? "run" : "step", bytes, err));
    }
    place_activations(r, c, type, r->m->w.layer, activations);
    return HH_OK;
}

hh_code hh_run_new_in(hh_run **out, const hh_model *m, int64_t max_tokens, int64_t max_spans, hh_run_mode mode,
                      hh_arena *activations, hh_error *err) {
    HH_ASSERT(max_tokens > 0 && max_spans > 0);
    *out = NULL;
    hh_run *r = hh_alloc(sizeof *r);
    *r = (hh_run){.m = m,
                  .be = m->be,
                  .mode = mode,
                  .max_tokens = max_tokens,
                  .max_spans = max_spans,
                  .gdn_mode = HH_GDN_CHUNKED,
                  .n_table_spans = -1,
                  .check_nan = hh_env_get()->check_nan};
    make_lists(r, m->config.n_layers);
    r->table_span = hh_alloc((size_t)max_spans * sizeof *r->table_span);
    r->kv = hh_alloc((size_t)max_spans * sizeof *r->kv);
    r->last_row = hh_alloc((size_t)max_spans * sizeof *r->last_row);
    r->state = hh_alloc((size_t)max_spans * sizeof *r->state);
    for (int i = 0; i < 3; i++) r->tail[i] = hh_alloc((size_t)max_spans * sizeof *r->tail[i]);
    hh_code code = place(r, activations, err);
    if (code == HH_OK)
        *out = r;
    else
        hh_run_free(r);
    return code;
}

void hh_run_free(hh_run *r) {
    if (!r) return;
    hh_backend_record_drop(r->be, r);
    if (r->tables.base) r->be->arena_release(r->be, &r->tables);
    if (r->activations.base) r->be->arena_release(r->be, &r->activations);
    hh_free(r->act);
    hh_free(r->saved);
    hh_free(r->table_span);
    hh_free(r->kv);
    hh_free(r->last_row);
    hh_free(r->state);
    for (int i = 0; i < 3; i++) hh_free(r->tail[i]);
    hh_free(r);
}

void hh_run_forget_table(hh_run *r) {
    r->n_table_spans = -1;
}

void hh_run_set_tap(hh_run *r, hh_tap tap) {
    r->tap = tap;
}

void hh_run_set_gdn_mode(hh_run *r, hh_gdn_mode mode) {
    r->gdn_mode = mode;
}

void hh_run_begin(hh_run *r, const hh_batch *b) {
    HH_ASSERT(b->n_tokens > 0 && b->n_tokens <= r->max_tokens && b->n_spans > 0 && b->n_spans <= r->max_spans);
    int64_t at = 0;
    for (int64_t s = 0; s < b->n_spans; s++) {
        HH_ASSERT(b->span[s].lo == at && b->span[s].hi >= at);
        HH_ASSERT(b->span[s].pos == (b->cache ? b->cache[s]->length : 0));
        at = b->span[s].hi;
    }
    HH_ASSERT(at == b->n_tokens);
    size_t bytes = (size_t)b->n_spans * sizeof *b->span;
    if (r->n_table_spans == b->n_spans && !memcmp(r->table_span, b->span, bytes)) return;
    r->be->ops->rope_table(r->be, hh_tensor_rows(r->cos, 0, b->n_tokens), hh_tensor_rows(r->sin, 0, b->n_tokens),
                           r->m->inv_freq, r->m->rope_factor, b->span, b->n_spans);
    memcpy(r->table_span, b->span, bytes);
    r->n_table_spans = b->n_spans;
}

/* The value at `at` of t, in words. */
static void report_nonfinite(hh_run *r, const char *op, int64_t layer, hh_tensor t, int64_t at) {
    const int64_t row = at / hh_tensor_row_count(t), column = at % hh_tensor_row_count(t);
    char raw[sizeof(double)];
    hh_real value;
    size_t offset = hh_dtype_bytes(t.dtype, row * t.stride + column);
    r->be->to_host(r->be, raw, (const char *)t.data + offset, hh_dtype_bytes(t.dtype, 1));
    hh_dequantise(t.dtype, raw, 1, &value);
    hh_fail(&r->fault, HH_ENONFINITE, "%s, layer %lld: value %lld of token %lld in the batch is %f", op,
            (long long)layer, (long long)column, (long long)row, (double)value);
}

void hh_run_branch(hh_run *r, const hh_layer *l, hh_branch b) {
    if (l->n_fa && l->n_gdn && !r->check_nan) hh_backend_branch(r->be, b); /* who looks at results waits for them */
}

void hh_run_look(hh_run *r, const char *op, int64_t layer, hh_tensor t) {
    int64_t at;
    if (!r->check_nan || r->fault.code != HH_OK || !t.rank) return;
    r->be->ops->find_nonfinite(r->be, &at, t);
    if (at >= 0) report_nonfinite(r, op, layer, t, at);
}

void hh_run_announce(hh_run *r, const hh_tap *tap, hh_point point, int64_t layer, hh_tensor t) {
    if (tap->call) tap->call(tap->context, point, layer, t);
    static const char *const names[] = {"block input", "head output", "attention output", "block output", "final norm"};
    hh_run_look(r, names[point], layer, t);
}
