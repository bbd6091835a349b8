/* Migration of weights; see migrate.h. Parameters are filled by their names in the checkpoint, so this file knows the
 * list of hh_weights_list and nothing of how it lies in memory but the order of heads. */
#include "convert/migrate.h"

#include "base/rng.h"
#include "tensor/mirror.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

hh_hybrid_options hh_hybrid_defaults(void) {
    return (hh_hybrid_options){
        .fusion = HH_FUSION_SCALE, .log_scale_base = 500, .beta_scale = 2, .fa_gate = true, .gate_bias = 1};
}

hh_code hh_hybrid_check(const hh_config *teacher, const hh_plan *plan, const hh_hybrid_options *o, hh_error *err) {
    if (teacher->hybrid)
        return hh_fail(err, HH_EUNSUPPORTED, "the model is a hybrid already; convert its dense teacher");
    if (plan->n_layers != teacher->n_layers || plan->n_heads != teacher->n_heads)
        return hh_fail(err, HH_EINVAL,
                       "the plan is of a model of %" PRId64 " layers and %" PRId64 " heads, the teacher has %" PRId64
                       " and %" PRId64 "; select from the scores of this teacher",
                       plan->n_layers, plan->n_heads, teacher->n_layers, teacher->n_heads);
    if (o->log_scale_base != 0 && !(o->log_scale_base > 1 && isfinite(o->log_scale_base)))
        return hh_fail(err, HH_EINVAL, "the log-scale's base is %g; it must be above 1, or 0 for none",
                       o->log_scale_base);
    if (!(o->beta_scale > 0 && o->beta_scale <= 2))
        return hh_fail(err, HH_EINVAL, "beta_scale is %g; the delta rule is stable in (0, 2]", o->beta_scale);
    return HH_OK;
}

static hh_code make_config(hh_config *out, const hh_config *teacher, const hh_plan *plan, const hh_hybrid_options *o,
                           hh_error *err) {
    HH_TRY(hh_hybrid_check(teacher, plan, o, err));
    *out = *teacher;
    out->hybrid = true;
    out->fusion = o->fusion;
    out->log_scale_base = o->log_scale_base;
    out->log_scale_in_training = o->log_scale_in_training;
    out->beta_scale = o->beta_scale;
    out->fa_gate = o->fa_gate;
    out->gdn_conv = o->gdn_conv;
    out->gdn_gate = o->gdn_gate;
    for (int64_t l = 0; l < plan->n_layers; l++) {
        bool all = true;
        for (int64_t h = 0; h < plan->n_heads; h++) all &= out->fa[l][h] = hh_plan_keeps(plan, l, h);
        out->dense[l] = all && o->fusion == HH_FUSION_NONE;
    }
    return HH_OK;
}

typedef struct migration {
    const hh_model *teacher;
    hh_model *model;
    const hh_hybrid_options *o;
    const double *gamma; /* [L*H] or NULL */
    hh_mirror from, to;
    hh_real *x; /* the parameter being filled, through `to` */
} migration;

/* Rows [at, at + n) of a tensor of any type, to out. */
static void read_rows(hh_tensor t, int64_t at, int64_t n, hh_real *out) {
    int64_t cols = hh_tensor_row_count(t);
    HH_ASSERT(hh_tensor_is_dense(t) && at + n <= t.dim[0]);
    hh_dequantise(t.dtype, (const char *)t.data + hh_dtype_bytes(t.dtype, at * cols), n * cols, out);
}

/* A parameter of the teacher, readable until the next is found. */
static hh_tensor find_teacher(migration *m, int64_t layer, const char *suffix) {
    char name[160];
    if (layer < 0)
        snprintf(name, sizeof name, "%s", suffix);
    else
        snprintf(name, sizeof name, "model.layers.%d.%s", (int)layer, suffix);
    const hh_param *p = hh_param_find(m->teacher->param, m->teacher->n_params, name);
    HH_ASSERT(p && p->slot->data);
    hh_tensor t = *p->slot;
    t.data = (void *)hh_mirror_read(&m->from, t);
    return t;
}

static void copy_whole(migration *m, const hh_param *p, const char *suffix) {
    hh_tensor from = find_teacher(m, p->layer, suffix);
    HH_ASSERT(hh_tensor_count(from) == hh_tensor_count(*p->slot));
    if (from.rank == 1)
        hh_dequantise(from.dtype, from.data, from.dim[0], m->x);
    else
        read_rows(from, 0, from.dim[0], m->x);
}

/* W_O: the teacher's columns, block by block in the order in which heads stand in memory. */
static void copy_output(migration *m, const hh_param *p, const hh_layer *l) {
    hh_tensor from = find_teacher(m, p->layer, "self_attn.o_proj.weight");
    int64_t d = m->model->config.head_dim, h = m->model->config.n_heads;
    hh_real *row = hh_alloc((size_t)(h * d) * sizeof *row);
    for (int64_t r = 0; r < from.dim[0]; r++) {
        read_rows(from, r, 1, row);
        hh_real *to = m->x + r * h * d;
        for (int64_t i = 0; i < h; i++) memcpy(to + i * d, row + l->head[i] * d, (size_t)d * sizeof *row);
    }
    hh_free(row);
}

/* {q,k,v}_proj of one branch, weight or bias: the rows of the branch's heads; k and v of the linear branch once for
 * each query head. */
static void copy_heads(migration *m, const hh_param *p, const hh_layer *l, bool fa, char which, const char *tail) {
    const hh_config *c = &m->model->config;
    char suffix[64];
    snprintf(suffix, sizeof suffix, "self_attn.%c_proj.%s", which, tail);
    hh_tensor from = find_teacher(m, p->layer, suffix);
    int64_t d = c->head_dim, cols = from.rank == 1 ? 1 : from.dim[1], block = d * cols;
    int64_t first = fa ? 0 : l->n_fa, n = fa ? l->n_fa : l->n_gdn, slot = 0, last = -1;
    hh_real *to = m->x;
    for (int64_t i = 0; i < n; i++) {
        int64_t source = l->head[first + i];
        if (which != 'q') source = source * c->n_kv_heads / c->n_heads;
        if (fa && which != 'q' && source == last) continue; /* a kept key/value head stands once */
        last = source;
        if (from.rank == 1)
            hh_dequantise(from.dtype, (const char *)from.data + hh_dtype_bytes(from.dtype, source * d), d,
                          to + slot * block);
        else
            read_rows(from, source * d, d, to + slot * block);
        slot++;
    }
    HH_ASSERT(slot * block == hh_tensor_count(*p->slot));
}

static void fill(const migration *m, const hh_param *p, double value) {
    for (int64_t i = 0; i < hh_tensor_count(*p->slot); i++) m->x[i] = (hh_real)value;
}

enum { DRAW_A_PROJ, DRAW_B_PROJ, DRAW_A, DRAW_DT, DRAWS };

static hh_rng draws_of(migration *m, const hh_param *p, int which) {
    return hh_rng_stream(m->o->seed, (uint64_t)(p->layer * DRAWS + which));
}

static void draw_normal(migration *m, const hh_param *p, int which) {
    hh_rng rng = draws_of(m, p, which);
    for (int64_t i = 0; i < hh_tensor_count(*p->slot); i++) m->x[i] = (hh_real)(0.02 * hh_rng_normal(&rng));
}

/* A ~ U(1, 16). */
static void draw_A_log(migration *m, const hh_param *p) {
    hh_rng rng = draws_of(m, p, DRAW_A);
    for (int64_t i = 0; i < p->dim[0]; i++) m->x[i] = (hh_real)log(1 + 15 * hh_rng_uniform(&rng));
}

/* dt log-uniform in [1e-3, 0.1]; dt_bias = softplus^-1(dt). */
static void draw_dt_bias(migration *m, const hh_param *p) {
    hh_rng rng = draws_of(m, p, DRAW_DT);
    for (int64_t i = 0; i < p->dim[0]; i++) {
        double dt = exp(log(1e-3) + hh_rng_uniform(&rng) * (log(0.1) - log(1e-3)));
        m->x[i] = (hh_real)(dt + log(-expm1(-dt)));
    }
}

static void set_gamma(migration *m, const hh_param *p, const hh_layer *l) {
    int64_t h = m->model->config.n_heads;
    for (int64_t i = 0; i < h; i++) m->x[i] = (hh_real)(m->gamma ? m->gamma[p->layer * h + l->head[i]] : 1);
}

static void set_convolution(const migration *m, const hh_param *p) {
    fill(m, p, 0);
    for (int64_t r = 0; r < p->dim[0]; r++) m->x[4 * r + 3] = 1; /* the present token */
}

/* What follows "self_attn." in a hybrid layer. */
static void fill_mixer(migration *m, const hh_param *p, const hh_layer *l, const char *name) {
    bool fa = !strncmp(name, "fa.", 3), gdn = !strncmp(name, "gdn.", 4);
    const char *part = fa ? name + 3 : gdn ? name + 4 : name;
    if (!strcmp(name, "o_proj.weight"))
        copy_output(m, p, l);
    else if (!strcmp(name, "o_proj.bias"))
        copy_whole(m, p, "self_attn.o_proj.bias");
    else if (!strcmp(name, "head_scale"))
        set_gamma(m, p, l);
    else if (!strcmp(name, "head_gate.weight") || !strcmp(part, "gate_proj.weight"))
        fill(m, p, 0);
    else if (!strcmp(part, "gate_proj.bias"))
        fill(m, p, m->o->gate_bias);
    else if (!strcmp(part, "q_norm.weight") || !strcmp(part, "k_norm.weight"))
        copy_whole(m, p, *part == 'q' ? "self_attn.q_norm.weight" : "self_attn.k_norm.weight");
    else if (!strcmp(part, "a_proj.weight") || !strcmp(part, "b_proj.weight"))
        draw_normal(m, p, *part == 'a' ? DRAW_A_PROJ : DRAW_B_PROJ);
    else if (!strcmp(part, "A_log"))
        draw_A_log(m, p);
    else if (!strcmp(part, "dt_bias"))
        draw_dt_bias(m, p);
    else if (!strncmp(part + 1, "_conv.", 6))
        set_convolution(m, p);
    else {
        HH_ASSERT((fa || gdn) && strchr("qkv", *part) && !strncmp(part + 1, "_proj.", 6));
        copy_heads(m, p, l, fa, *part, part + 7);
    }
}

static void fill_parameter(migration *m, const hh_param *p) {
    static const char attention[] = "self_attn.";
    const char *suffix = p->name;
    if (p->layer >= 0) { /* behind "model.layers.N." */
        suffix += strlen("model.layers.");
        suffix = strchr(suffix, '.') + 1;
    }
    const hh_layer *l = p->layer >= 0 ? &m->model->w.layer[p->layer] : NULL;
    if (l && !l->dense && !strncmp(suffix, attention, sizeof attention - 1))
        fill_mixer(m, p, l, suffix + sizeof attention - 1);
    else
        copy_whole(m, p, suffix);
}

hh_code hh_migrate(hh_model **out, const hh_model *teacher, const hh_plan *plan, const hh_hybrid_options *o,
                   const double *gamma, hh_error *err) {
    hh_config *config = hh_alloc(sizeof *config);
    hh_model *model = NULL;
    hh_code code = make_config(config, &teacher->config, plan, o, err);
    if (code == HH_OK) code = hh_model_create(&model, teacher->be, config, err);
    hh_free(config);
    *out = model;
    HH_TRY(code);
    migration m = {.teacher = teacher,
                   .model = model,
                   .o = o,
                   .gamma = gamma,
                   .from = hh_mirror_of(teacher->be),
                   .to = hh_mirror_of(model->be)};
    for (int64_t i = 0; i < model->n_params; i++) {
        m.x = hh_mirror_write(&m.to, *model->param[i].slot);
        fill_parameter(&m, &model->param[i]);
        hh_mirror_flush(&m.to, *model->param[i].slot);
    }
    hh_mirror_release(&m.from);
    hh_mirror_release(&m.to);
    code = model->be->sync(model->be, err);
    if (code != HH_OK) {
        hh_model_close(model);
        *out = NULL;
    }
    return code;
}
