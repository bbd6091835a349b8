/* From a checkpoint's tensors to a model's slots: names (Hugging Face, GGUF), shapes, and the few that cannot be used
 * as they stand, because heads are reordered, rows are interleaved, or the type is not the one computed in. */
#include "model/load.h"

#include "format/gguf.h"

#include <stdio.h>
#include <string.h>

typedef char source_name[128];

/* Names of a GGUF file for parts of a Hugging Face name: under model.layers.N. / blk.N. */
static const char *const gguf_parts[][2] = {
    {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},       {NULL, NULL},
};

static void gguf_name(source_name out, const hh_param *p) {
    static const char *const outer[][2] = {{"model.embed_tokens.weight", "token_embd.weight"},
                                           {"model.norm.weight", "output_norm.weight"},
                                           {"lm_head.weight", "output.weight"}};
    if (p->layer < 0) {
        for (size_t i = 0; i < sizeof outer / sizeof *outer; i++)
            if (!strcmp(p->name, outer[i][0])) snprintf(out, sizeof(source_name), "%s", outer[i][1]);
        return;
    }
    char prefix[32];
    int n = snprintf(prefix, sizeof prefix, "model.layers.%d.", (int)p->layer);
    const char *rest = p->name + n, *dot = strrchr(rest, '.');
    for (int i = 0; gguf_parts[i][0]; i++) {
        size_t len = strlen(gguf_parts[i][0]);
        if (len == (size_t)(dot - rest) && !strncmp(rest, gguf_parts[i][0], len)) {
            snprintf(out, sizeof(source_name), "blk.%d.%s%s", (int)p->layer, gguf_parts[i][1], dot);
            return;
        }
    }
    HH_ASSERT(!"a dense parameter without a GGUF name");
}

static bool is_rotated(const hh_param *p) {
    return strstr(p->name, ".q_proj.") || strstr(p->name, ".k_proj.");
}

/* "[3, 4]" */
static const char *shape_text(char out[96], int rank, const int64_t *dim) {
    int n = snprintf(out, 96, "[");
    for (int i = 0; i < rank; i++) n += snprintf(out + n, (size_t)(96 - n), "%s%lld", i ? ", " : "", (long long)dim[i]);
    snprintf(out + n, (size_t)(96 - n), "]");
    return out;
}

static hh_code check_shape(const hh_named_tensor *t, const hh_param *p, hh_error *err) {
    bool same = t->t.rank == p->rank;
    for (int i = 0; same && i < p->rank; i++) same = t->t.dim[i] == p->dim[i];
    char have[96], want[96];
    if (!same)
        return hh_fail(err, HH_EFORMAT, "%s: tensor '%s' has shape %s, but the configuration asks for %s", t->file,
                       t->name, shape_text(have, t->t.rank, t->t.dim), shape_text(want, p->rank, p->dim));
    if (!hh_dtype_is_float(t->t.dtype) && !hh_dtype_is_quantised(t->t.dtype))
        return hh_fail(err, HH_EUNSUPPORTED, "%s: tensor '%s' is of type %s; weights are floats or GGUF blocks",
                       t->file, t->name, hh_dtype_name(t->t.dtype));
    return HH_OK;
}

const int32_t *hh_param_order(const hh_model *m, const hh_param *p) {
    if (!p->permuted_columns && !p->permuted_rows) return NULL;
    const hh_layer *l = &m->w.layer[p->layer];
    for (int32_t i = 0; i < m->config.n_heads; i++)
        if (l->head[i] != i) return l->head;
    return NULL;
}

/* The type that parameter p will have in memory, and whether the map can serve it. */
static void decide(hh_source *s, const hh_model *m, const hh_param *p, hh_load load) {
    size_t align = hh_dtype_is_quantised(s->t.dtype) ? 2 : hh_dtype_bytes(s->t.dtype, 1);
    const int32_t *order = hh_param_order(m, p);
    bool stored = load == HH_LOAD_STORED && p->matrix && s->t.dtype != HH_DTYPE_F64;
    s->dtype = stored ? s->t.dtype : HH_DTYPE_REAL;
    if (stored && order && p->permuted_columns && m->config.head_dim % hh_dtype_block(s->t.dtype))
        s->dtype = m->be->precision == HH_PRECISION_F32 ? HH_DTYPE_F32 : HH_DTYPE_BF16; /* blocks cross heads */
    s->in_place = load == HH_LOAD_STORED && s->dtype == s->t.dtype && !order && !s->unrotate && m->be->host_memory &&
                  (uintptr_t)s->t.data % align == 0;
}

/* A tensor that no parameter asked for, but that changes nothing. */
static bool is_harmless(const hh_model *m, const char *name) {
    size_t n = strlen(name);
    static const char buffer[] = "rotary_emb.inv_freq";
    if (n >= sizeof buffer - 1 && !strcmp(name + n - (sizeof buffer - 1), buffer)) return true;
    if (m->config.tied && !strcmp(name, "lm_head.weight")) return true;
    return hh_store_get_kind(m->store) == HH_STORE_GGUF &&
           !strcmp(name, "rope_freqs.weight"); /* part of the configuration */
}

static hh_code check_left_over(const hh_model *m, const source_name *names, hh_error *err) {
    for (int64_t i = 0; i < hh_store_count(m->store); i++) {
        const hh_named_tensor *t = hh_store_at(m->store, i);
        bool known = is_harmless(m, t->name);
        for (int64_t j = 0; j < m->n_params && !known; j++) known = !strcmp(names[j], t->name);
        char shape[96];
        if (!known)
            return hh_fail(
                err, HH_EUNSUPPORTED,
                "%s: tensor '%s' of shape %s belongs to no part of the model that the configuration describes; "
                "leaving it out would change the result",
                t->file, t->name, shape_text(shape, t->t.rank, t->t.dim));
    }
    return HH_OK;
}

hh_code hh_sources_find(hh_source *out, const hh_model *m, hh_load load, hh_error *err) {
    bool gguf = hh_store_get_kind(m->store) == HH_STORE_GGUF;
    source_name *names = hh_alloc((size_t)m->n_params * sizeof *names);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < m->n_params; i++) {
        const hh_param *p = &m->param[i];
        if (gguf) {
            gguf_name(names[i], p);
        } else {
            memcpy(names[i], p->name, sizeof names[i]);
        }
        const hh_named_tensor *t = hh_store_find(m->store, names[i]);
        char want[96];
        if (!t) {
            code = hh_fail(err, HH_EFORMAT, "%s: tensor '%s' of shape %s is missing", hh_store_path(m->store), names[i],
                           shape_text(want, p->rank, p->dim));
            goto done;
        }
        HH_TRY_GOTO(code, check_shape(t, p, err), done);
        out[i] = (hh_source){.t = t->t, .unrotate = gguf && m->config.family == HH_LLAMA && is_rotated(p)};
        decide(&out[i], m, p, load);
    }
    code = check_left_over(m, (const source_name *)names, err);
done:
    hh_free(names);
    return code;
}

static hh_tensor shaped(hh_arena *a, hh_dtype dtype, const hh_param *p) {
    return p->rank == 1 ? hh_tensor_place_1d(a, dtype, p->dim[0]) : hh_tensor_place_2d(a, dtype, p->dim[0], p->dim[1]);
}

hh_tensor hh_place_flat(hh_arena *a, const hh_param *param, int64_t n) {
    size_t start = a->used;
    for (int64_t i = 0; i < n; i++) *param[i].slot = shaped(a, HH_DTYPE_REAL, &param[i]);
    return hh_tensor_1d(a->base ? a->base + start : NULL, HH_DTYPE_REAL,
                        (int64_t)((a->used - start) / sizeof(hh_real)));
}

void hh_sources_place(hh_model *m, const hh_source *source, hh_load load, hh_arena *a) {
    if (load == HH_LOAD_REAL) {
        m->flat = hh_place_flat(a, m->param, m->n_params);
        return;
    }
    for (int64_t i = 0; i < m->n_params; i++)
        *m->param[i].slot = source[i].in_place ? source[i].t : shaped(a, source[i].dtype, &m->param[i]);
}

/* One row of a source as hh_real; W_O's heads in their order in memory. */
static void read_row(hh_real *dst, hh_real *plain, const hh_source *s, int64_t row, int64_t k, const int32_t *order,
                     int64_t head_dim) {
    size_t row_bytes = hh_dtype_bytes(s->t.dtype, k);
    hh_dequantise(s->t.dtype, (const char *)s->t.data + (size_t)row * row_bytes, k, order ? plain : dst);
    for (int64_t i = 0; order && i < k / head_dim; i++)
        memcpy(dst + i * head_dim, plain + order[i] * head_dim, (size_t)head_dim * sizeof *dst);
}

/* Which row of the file stands at row i in memory. */
static int64_t file_row(const hh_source *s, int64_t i, const int32_t *order, int64_t head_dim) {
    if (order) return order[i];
    if (!s->unrotate) return i;
    int64_t head = i / head_dim, at = i % head_dim, half = head_dim / 2;
    return head * head_dim + 2 * (at % half) + at / half;
}

static void read_param(hh_model *m, const hh_param *p, const hh_source *s, hh_real *work, void *packed) {
    const int64_t rows = p->dim[0], k = p->rank == 1 ? 1 : p->dim[1], d = m->config.head_dim;
    const int32_t *order = hh_param_order(m, p), *columns = p->permuted_columns ? order : NULL;
    const bool same_type = s->dtype == s->t.dtype;
    const size_t from = k == 1 && hh_dtype_is_quantised(s->t.dtype) ? 0 : hh_dtype_bytes(s->t.dtype, k);
    const size_t to = hh_dtype_bytes(s->dtype, k);
    char *dst = p->slot->data;
    if (!from) { /* a quantised vector is one row and never permuted */
        hh_dequantise(s->t.dtype, s->t.data, rows, work);
        m->be->to_device(m->be, dst, work, (size_t)rows * to);
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        int64_t r = file_row(s, i, p->permuted_rows ? order : NULL, d);
        const char *src = (const char *)s->t.data + (size_t)r * from;
        if (same_type && !columns) {
            m->be->to_device(m->be, dst + (size_t)i * to, src, to);
        } else if (same_type) {
            size_t head = hh_dtype_bytes(s->dtype, d);
            for (int64_t h = 0; h < k / d; h++)
                m->be->to_device(m->be, dst + (size_t)i * to + (size_t)h * head, src + (size_t)columns[h] * head, head);
        } else {
            read_row(work, work + k, s, r, k, columns, d);
            if (s->dtype != HH_DTYPE_REAL) hh_quantise(s->dtype, work, k, packed);
            m->be->to_device(m->be, dst + (size_t)i * to, s->dtype == HH_DTYPE_REAL ? work : packed, to);
        }
    }
}

void hh_sources_read(hh_model *m, const hh_source *source) {
    int64_t longest = 1;
    for (int64_t i = 0; i < m->n_params; i++) {
        const hh_param *p = &m->param[i];
        int64_t k = p->rank == 1 ? p->dim[0] : p->dim[1];
        if (k > longest) longest = k;
    }
    hh_real *work = hh_alloc(2 * (size_t)longest * sizeof *work), *packed = hh_alloc((size_t)longest * sizeof *packed);
    for (int64_t i = 0; i < m->n_params; i++)
        if (!source[i].in_place) read_param(m, &m->param[i], &source[i], work, packed);
    hh_free(work);
    hh_free(packed);
}
