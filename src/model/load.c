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

/* Does a row of p have blocks that lie across two heads, so that heads cannot be moved before it is converted? */
static bool blocks_cross_heads(const hh_model *m, const hh_param *p, hh_dtype stored) {
    return p->permuted_columns && hh_param_order(m, p) && m->config.head_dim % hh_dtype_block(stored);
}

/* The type that parameter p will have in memory, and whether the map can serve it. */
static void decide(hh_source *s, const hh_model *m, const hh_param *p, hh_load load) {
    size_t align = hh_dtype_is_quantised(s->t.dtype) ? 2 : hh_dtype_bytes(s->t.dtype, 1);
    const hh_backend *be = m->be;
    bool in_map = load == HH_LOAD_STORED && be->host_memory;
    s->dtype = HH_DTYPE_REAL;
    if (in_map && p->matrix && s->t.dtype != HH_DTYPE_F64)
        s->dtype = !blocks_cross_heads(m, p, s->t.dtype) ? s->t.dtype
                   : be->precision == HH_PRECISION_F32   ? HH_DTYPE_F32
                                                         : HH_DTYPE_BF16;
    else if (load == HH_LOAD_STORED && !be->host_memory && p->product)
        s->dtype = be->activation;
    s->in_place =
        in_map && s->dtype == s->t.dtype && !hh_param_order(m, p) && !s->unrotate && (uintptr_t)s->t.data % align == 0;
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

/* Which row of the file stands at row i in memory. */
static int64_t file_row(const hh_source *s, int64_t i, const int32_t *order, int64_t head_dim) {
    if (order) return order[i];
    if (!s->unrotate) return i;
    int64_t head = i / head_dim, at = i % head_dim, half = head_dim / 2;
    return head * head_dim + 2 * (at % half) + at / half;
}

/* How a parameter gets from the map to its slot: as [rows, k], some rows at a time. */
typedef struct reading {
    hh_model *m;
    const hh_param *p;
    const hh_source *s;
    int64_t rows, k;
    const int32_t *row_order, *column_order; /* of heads; NULL: as they stand */
    hh_dtype staged;                         /* the type in which it travels */
    void *host, *stage, *converted;          /* room for a piece: gathered; and where the model lives, as it came, and
                                              * before heads move */
} reading;

#define STAGE_BYTES ((size_t)32 << 20)

static size_t row_bytes(const reading *r) {
    return hh_dtype_bytes(r->staged, r->k);
}

static reading reading_of(hh_model *m, const hh_param *p, const hh_source *s) {
    const int32_t *order = hh_param_order(m, p);
    bool by_row = p->rank == 2 || p->permuted_rows || s->unrotate; /* else a vector is one row */
    return (reading){.m = m,
                     .p = p,
                     .s = s,
                     .rows = by_row ? p->dim[0] : 1,
                     .k = by_row ? p->dim[1] : p->dim[0],
                     .row_order = p->permuted_rows ? order : NULL,
                     .column_order = p->permuted_columns ? order : NULL,
                     .staged = s->t.dtype == HH_DTYPE_F64 ? HH_DTYPE_REAL : s->t.dtype};
}

/* Rows of a piece: also converted they fit the stage. */
static int64_t piece_rows(const reading *r) {
    size_t row = (size_t)r->k * sizeof(hh_real);
    return row < STAGE_BYTES ? (int64_t)(STAGE_BYTES / row) : 1;
}

/* Row i of memory as it travels, into dst. */
static void take_row(const reading *r, int64_t i, char *dst) {
    const int64_t d = r->m->config.head_dim, from = file_row(r->s, i, r->row_order, d);
    const char *src = (const char *)r->s->t.data + hh_dtype_bytes(r->s->t.dtype, from * r->k);
    if (r->staged != r->s->t.dtype) {
        hh_dequantise(r->s->t.dtype, src, r->k, (hh_real *)dst);
        return;
    }
    if (!r->column_order || d % hh_dtype_block(r->staged)) {
        memcpy(dst, src, row_bytes(r));
        return;
    }
    const size_t head = hh_dtype_bytes(r->staged, d);
    for (int64_t h = 0; h < r->k / d; h++)
        memcpy(dst + (size_t)h * head, src + (size_t)r->column_order[h] * head, head);
}

/* Rows [lo, hi) of memory as they travel: in the map, or gathered. */
static const char *take_rows(const reading *r, int64_t lo, int64_t hi) {
    if (!r->row_order && !r->column_order && !r->s->unrotate && r->staged == r->s->t.dtype)
        return (const char *)r->s->t.data + (size_t)lo * row_bytes(r);
    for (int64_t i = lo; i < hi; i++) take_row(r, i, (char *)r->host + (size_t)(i - lo) * row_bytes(r));
    return r->host;
}

static void read_piece(const reading *r, int64_t lo, int64_t hi) {
    hh_backend *be = r->m->be;
    const int64_t n = hi - lo, d = r->m->config.head_dim;
    const size_t bytes = (size_t)n * row_bytes(r);
    hh_tensor to =
        hh_tensor_2d((char *)r->p->slot->data + hh_dtype_bytes(r->s->dtype, lo * r->k), r->s->dtype, n, r->k);
    const char *src = take_rows(r, lo, hi);
    if (r->staged == to.dtype) {
        be->to_device(be, to.data, src, bytes);
        return;
    }
    be->to_device(be, r->stage, src, bytes);
    hh_tensor stage = hh_tensor_2d(r->stage, r->staged, n, r->k);
    if (!r->column_order || d % hh_dtype_block(r->staged) == 0) {
        be->ops->copy(be, to, stage);
        return;
    }
    hh_tensor converted = hh_tensor_2d(r->converted, to.dtype, n, r->k);
    be->ops->copy(be, converted, stage);
    for (int64_t h = 0; h < r->k / d; h++)
        be->ops->copy(be, hh_tensor_columns(to, h * d, (h + 1) * d),
                      hh_tensor_columns(converted, r->column_order[h] * d, (r->column_order[h] + 1) * d));
}

/* Bytes that the largest piece of all may have. */
static size_t largest_piece(hh_model *m, const hh_source *source) {
    size_t most = 1;
    for (int64_t i = 0; i < m->n_params; i++) {
        reading r = reading_of(m, &m->param[i], &source[i]);
        int64_t rows = piece_rows(&r) < r.rows ? piece_rows(&r) : r.rows;
        size_t bytes = (size_t)(rows * r.k) * sizeof(hh_real);
        if (!source[i].in_place && bytes > most) most = bytes;
    }
    return most;
}

hh_code hh_sources_read(hh_model *m, const hh_source *source, hh_error *err) {
    const size_t bytes = largest_piece(m, source);
    hh_arena arena = {0};
    void *host = NULL;
    hh_code code = hh_alloc_checked(&host, bytes, 1, "a piece of the weights", err);
    if (code == HH_OK) code = m->be->arena_init(m->be, &arena, "load", 2 * bytes + 2 * HH_ARENA_ALIGN, err);
    if (code == HH_OK) {
        void *stage = hh_arena_alloc(&arena, bytes), *converted = hh_arena_alloc(&arena, bytes);
        for (int64_t i = 0; i < m->n_params; i++) {
            reading r = reading_of(m, &m->param[i], &source[i]);
            const int64_t step = piece_rows(&r);
            r.host = host;
            r.stage = stage;
            r.converted = converted;
            if (source[i].in_place) continue;
            for (int64_t lo = 0; lo < r.rows; lo += step) read_piece(&r, lo, lo + step < r.rows ? lo + step : r.rows);
            hh_store_forget(m->store, &source[i].t); /* it is in memory once, not twice */
        }
        code = m->be->sync(m->be, err);
    }
    if (arena.base) m->be->arena_release(m->be, &arena);
    hh_free(host);
    return code;
}
