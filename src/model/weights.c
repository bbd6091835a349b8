/* The one list of parameters: names, shapes and places, for teacher and hybrid layers (docs/METHOD.md, checkpoint). */
#include "model/weights.h"

#include <stdio.h>
#include <string.h>

/* How a part of the input projection is called under self_attn. in a hybrid layer; a dense layer drops "fa.". */
static const struct part_name {
    const char *name;
    bool matrix; /* the gates' narrow projections stay float32 */
} part_names[HH_INPUT_PARTS] = {
    [HH_FA_Q] = {"fa.q_proj", true},       [HH_FA_K] = {"fa.k_proj", true},         [HH_FA_V] = {"fa.v_proj", true},
    [HH_FA_GATE] = {"fa.gate_proj", true}, [HH_GDN_Q] = {"gdn.q_proj", true},       [HH_GDN_K] = {"gdn.k_proj", true},
    [HH_GDN_V] = {"gdn.v_proj", true},     [HH_GDN_GATE] = {"gdn.gate_proj", true}, [HH_GDN_A] = {"gdn.a_proj", false},
    [HH_GDN_B] = {"gdn.b_proj", false},    [HH_HEAD_GATE] = {"head_gate", false},
};

void hh_layer_describe(const hh_config *c, int64_t l, hh_layer *out) {
    *out = (hh_layer){.dense = !c->hybrid || c->dense[l]};
    HH_ASSERT(c->n_heads <= HH_MAX_HEADS && l < c->n_layers);
    for (int32_t h = 0; h < c->n_heads; h++)
        if (out->dense || c->fa[l][h]) out->head[out->n_fa++] = h;
    for (int32_t h = 0; h < c->n_heads; h++)
        if (!out->dense && !c->fa[l][h]) out->head[out->n_fa + out->n_gdn++] = h;
    int32_t last = -1;
    for (int64_t i = 0; i < out->n_fa; i++) { /* g(h) = floor(h G / H) ascends with h */
        int32_t g = (int32_t)(out->head[i] * c->n_kv_heads / c->n_heads);
        if (g != last) out->n_kv++;
        last = g;
        out->kv_of_fa[i] = (int32_t)out->n_kv - 1;
    }
    bool gdn = out->n_gdn > 0;
    const int64_t d = c->head_dim, fa_q = out->n_fa * d, fa_kv = out->n_kv * d, gdn_n = out->n_gdn * d;
    const int64_t width[HH_INPUT_PARTS] = {
        [HH_FA_Q] = fa_q,
        [HH_FA_K] = fa_kv,
        [HH_FA_V] = fa_kv,
        [HH_FA_GATE] = !out->dense && c->fa_gate ? fa_q : 0,
        [HH_GDN_Q] = gdn_n,
        [HH_GDN_K] = gdn_n,
        [HH_GDN_V] = gdn_n,
        [HH_GDN_GATE] = gdn && c->gdn_gate ? gdn_n : 0,
        [HH_GDN_A] = out->n_gdn,
        [HH_GDN_B] = out->n_gdn,
        [HH_HEAD_GATE] = !out->dense && c->fusion == HH_FUSION_GATE ? c->n_heads : 0,
    };
    for (int p = 0; p < HH_INPUT_PARTS; p++) out->column[p + 1] = out->column[p] + width[p];
}

/* The list being written; with `out` NULL it only counts. */
typedef struct list {
    const hh_config *c;
    hh_param *out;
    hh_param unused; /* where a count writes */
    int64_t n, layer;
    bool mixer;
} list;

static hh_param *add(list *s, hh_tensor *slot, bool matrix, int64_t rows, int64_t cols, const char *name) {
    hh_param *p = s->out ? &s->out[s->n] : &s->unused;
    s->n++;
    *p = (hh_param){.layer = s->layer,
                    .rank = cols ? 2 : 1,
                    .dim = {rows, cols ? cols : 1},
                    .slot = slot,
                    .matrix = matrix,
                    .product = cols > 0,
                    .mixer = s->mixer};
    if (s->layer < 0) {
        snprintf(p->name, sizeof p->name, "%s", name);
    } else {
        snprintf(p->name, sizeof p->name, "model.layers.%d.%s", (int)s->layer, name);
    }
    return p;
}

static void add_inputs(list *s, hh_layer *l) {
    const hh_config *c = s->c;
    for (int pass = 0; pass < 2; pass++) { /* all weights, then all biases, so that parts lie together */
        for (int p = 0; p < HH_INPUT_PARTS; p++) {
            int64_t n = l->column[p + 1] - l->column[p];
            bool gate = p == HH_FA_GATE || p == HH_GDN_GATE, qkv = p <= HH_FA_V || (p >= HH_GDN_Q && p <= HH_GDN_V);
            bool bias = gate || (qkv && c->attention_bias);
            if (!n || (pass && !bias)) continue;
            char name[64];
            snprintf(name, sizeof name, "self_attn.%s.%s", part_names[p].name + (l->dense ? strlen("fa.") : 0),
                     pass ? "bias" : "weight");
            hh_param *q = pass ? add(s, &l->input[p].bias, false, n, 0, name)
                               : add(s, &l->input[p].w, part_names[p].matrix, n, c->width, name);
            q->permuted_rows = p == HH_HEAD_GATE;
        }
    }
}

static void add_attention(list *s, hh_layer *l) {
    const hh_config *c = s->c;
    s->mixer = !l->dense;
    add_inputs(s, l);
    if (c->qk_norm && l->n_fa) {
        add(s, &l->fa_q_norm, false, c->head_dim, 0,
            l->dense ? "self_attn.q_norm.weight" : "self_attn.fa.q_norm.weight");
        add(s, &l->fa_k_norm, false, c->head_dim, 0,
            l->dense ? "self_attn.k_norm.weight" : "self_attn.fa.k_norm.weight");
    }
    if (c->qk_norm && l->n_gdn) {
        add(s, &l->gdn_q_norm, false, c->head_dim, 0, "self_attn.gdn.q_norm.weight");
        add(s, &l->gdn_k_norm, false, c->head_dim, 0, "self_attn.gdn.k_norm.weight");
    }
    if (l->n_gdn) {
        add(s, &l->A_log, false, l->n_gdn, 0, "self_attn.gdn.A_log");
        add(s, &l->dt_bias, false, l->n_gdn, 0, "self_attn.gdn.dt_bias");
        for (int i = 0; i < 3 && c->gdn_conv; i++) {
            char name[64];
            snprintf(name, sizeof name, "self_attn.gdn.%c_conv.weight", "qkv"[i]);
            add(s, &l->conv[i], false, l->n_gdn * c->head_dim, 4, name)->product = false;
        }
    }
    if (!l->dense && c->fusion == HH_FUSION_SCALE)
        add(s, &l->gamma, false, c->n_heads, 0, "self_attn.head_scale")->permuted_rows = true;
    add(s, &l->o_part.w, true, c->width, c->n_heads * c->head_dim, "self_attn.o_proj.weight")->permuted_columns = true;
    if (c->o_bias) add(s, &l->o_part.bias, false, c->width, 0, "self_attn.o_proj.bias");
    s->mixer = false;
}

static void add_mlp(list *s, hh_layer *l) {
    const hh_config *c = s->c;
    add(s, &l->gate_part.w, true, c->ffn, c->width, "mlp.gate_proj.weight");
    add(s, &l->up_part.w, true, c->ffn, c->width, "mlp.up_proj.weight");
    if (c->mlp_bias) {
        add(s, &l->gate_part.bias, false, c->ffn, 0, "mlp.gate_proj.bias");
        add(s, &l->up_part.bias, false, c->ffn, 0, "mlp.up_proj.bias");
    }
    add(s, &l->down_part.w, true, c->width, c->ffn, "mlp.down_proj.weight");
    if (c->mlp_bias) add(s, &l->down_part.bias, false, c->width, 0, "mlp.down_proj.bias");
}

/* With w and out NULL only counts. */
static int64_t walk(const hh_config *c, hh_weights *w, hh_param *out) {
    list s = {.c = c, .out = out, .layer = -1};
    hh_weights no_weights = {0};
    hh_layer no_layer;
    if (!w) w = &no_weights;
    add(&s, &w->embedding, true, c->vocab, c->width, "model.embed_tokens.weight");
    for (int64_t i = 0; i < c->n_layers; i++) {
        hh_layer *l = w->layer ? &w->layer[i] : &no_layer;
        hh_layer_describe(c, i, l);
        s.layer = i;
        add(&s, &l->norm1, false, c->width, 0, "input_layernorm.weight");
        add_attention(&s, l);
        add(&s, &l->norm2, false, c->width, 0, "post_attention_layernorm.weight");
        add_mlp(&s, l);
    }
    s.layer = -1;
    add(&s, &w->final_norm, false, c->width, 0, "model.norm.weight");
    if (!c->tied) add(&s, &w->lm_head, true, c->vocab, c->width, "lm_head.weight");
    return s.n;
}

int64_t hh_weights_count(const hh_config *c) {
    return walk(c, NULL, NULL);
}

void hh_weights_list(const hh_config *c, hh_weights *w, hh_param *out) {
    HH_ASSERT(w->layer || !c->n_layers);
    walk(c, w, out);
}

/* Does b begin where a ends, in the same type? */
static bool follows(hh_tensor a, hh_tensor b) {
    return a.dtype == b.dtype && (const char *)a.data + hh_tensor_bytes(a) == (const char *)b.data;
}

static void append(hh_linear *m, hh_part p) {
    m->n += p.w.dim[0];
    m->k = p.w.dim[1];
    hh_part *last = m->n_parts ? &m->part[m->n_parts - 1] : NULL;
    bool biases_fit = last && (!last->bias.data) == (!p.bias.data) && (!p.bias.data || follows(last->bias, p.bias));
    if (last && biases_fit && follows(last->w, p.w)) {
        last->w.dim[0] += p.w.dim[0];
        if (p.bias.data) last->bias.dim[0] += p.bias.dim[0];
        return;
    }
    HH_ASSERT(m->n_parts < HH_MAX_PARTS);
    m->part[m->n_parts++] = p;
}

void hh_weights_merge(const hh_config *c, hh_weights *w) {
    w->head = (hh_linear){0};
    append(&w->head, (hh_part){.w = c->tied ? w->embedding : w->lm_head});
    for (int64_t i = 0; i < c->n_layers; i++) {
        hh_layer *l = &w->layer[i];
        l->in = l->out = l->gate_up = l->down = (hh_linear){0};
        for (int p = 0; p < HH_INPUT_PARTS; p++)
            if (l->input[p].w.data) append(&l->in, l->input[p]);
        append(&l->out, l->o_part);
        append(&l->gate_up, l->gate_part);
        append(&l->gate_up, l->up_part);
        append(&l->down, l->down_part);
    }
}

const hh_param *hh_param_find(const hh_param *params, int64_t n, const char *name) {
    for (int64_t i = 0; i < n; i++)
        if (!strcmp(params[i].name, name)) return &params[i];
    return NULL;
}
