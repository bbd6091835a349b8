/* Writing a checkpoint directory: docs/FORMATS.md. Heads go back to their original order; each file is written aside
 * and renamed. */
#include "model/load.h"

#include "base/filemap.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "format/gguf.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "tensor/mirror.h"

#include <stdlib.h>
#include <string.h>

/* What a parameter is written from and to. Threads take rows of the file apart, a few at a time. */
typedef struct conversion {
    const hh_param *p;
    const char *data;           /* in memory */
    const int32_t *rows, *cols; /* where heads stand in the file, or NULL */
    int64_t n, k, head_dim;     /* rows of k numbers */
    hh_dtype type;
    char *dst;
    hh_real *work; /* [threads, 2 k] */
} conversion;

enum { ROWS_AT_ONCE = 16 };

static void convert_rows(void *context, int64_t item, int thread) {
    const conversion *c = context;
    const hh_dtype from = c->p->slot->dtype;
    const int64_t lo = item * ROWS_AT_ONCE, hi = lo + ROWS_AT_ONCE < c->n ? lo + ROWS_AT_ONCE : c->n;
    hh_real *row = c->work + 2 * c->k * thread, *moved = row + c->k;
    for (int64_t i = lo; i < hi; i++) {
        char *dst = c->dst + (size_t)(c->rows ? c->rows[i] : i) * hh_dtype_bytes(c->type, c->k);
        hh_dequantise(from, c->data + (size_t)i * hh_dtype_bytes(from, c->k), c->k, row);
        for (int64_t h = 0; c->cols && h < c->k / c->head_dim; h++)
            memcpy(moved + c->cols[h] * c->head_dim, row + h * c->head_dim, (size_t)c->head_dim * sizeof *row);
        hh_quantise(c->type, c->cols ? moved : row, c->k, dst);
    }
}

static int64_t rows_of(const hh_param *p) {
    return p->rank == 1 && !p->permuted_rows ? 1 : p->dim[0];
}

typedef struct saving {
    const hh_model *m;
    hh_named_tensor *named;
    const hh_param **param; /* [n_params] in the file's order */
    hh_mirror mirror;
    void *buffer; /* of the largest tensor */
    hh_real *work;
    bool stops; /* when interrupted */
} saving;

/* The numbers of tensor i as the file has them: where they are, or converted into the buffer. */
static hh_code give_tensor(void *context, int64_t i, const void **data, hh_error *err) {
    saving *s = context;
    const hh_model *m = s->m;
    const hh_param *p = s->param[i];
    const int32_t *order = hh_param_order(m, p);
    if (s->stops && hh_interrupted())
        return hh_fail(err, HH_ECANCELLED, "interrupted at tensor %lld of %lld; nothing has been written", (long long)i,
                       (long long)m->n_params);
    *data = hh_mirror_read(&s->mirror, *p->slot);
    HH_TRY(m->be->sync(m->be, err)); /* what was read came from a backend that works */
    if (p->slot->dtype == s->named[i].t.dtype && !order) return HH_OK;
    conversion c = {.p = p,
                    .data = *data,
                    .rows = p->permuted_rows ? order : NULL,
                    .cols = p->permuted_columns ? order : NULL,
                    .n = rows_of(p),
                    .k = hh_tensor_count(*p->slot) / rows_of(p),
                    .head_dim = m->config.head_dim,
                    .type = s->named[i].t.dtype,
                    .dst = s->buffer,
                    .work = s->work};
    hh_parallel_for(m->be->n_threads, (c.n + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, convert_rows, &c);
    *data = s->buffer;
    return HH_OK;
}

hh_dtype hh_saved_type(const hh_model *m, const hh_param *p, hh_dtype dtype) {
    const bool head = p->slot == (m->config.tied ? &m->w.embedding : &m->w.lm_head);
    if (!p->matrix) return HH_DTYPE_F32;
    if (!hh_dtype_is_quantised(dtype)) return dtype;
    if (p->dim[1] % hh_dtype_block(dtype)) {
        const hh_dtype own = p->slot->dtype;
        return own == HH_DTYPE_F16 || own == HH_DTYPE_BF16 ? own : HH_DTYPE_F32;
    }
    return head ? HH_DTYPE_Q8_0 : dtype;
}

/* Names and types of all tensors; blocks behind numbers, which so are aligned. Bytes of the largest, in the file and as a
 * row of hh_real. */
static void list_tensors(saving *s, hh_dtype dtype, size_t *largest, size_t *longest) {
    const hh_model *m = s->m;
    int64_t n = 0;
    *largest = *longest = 1;
    for (int blocks = 0; blocks < 2; blocks++)
        for (int64_t i = 0; i < m->n_params; i++) {
            const hh_param *p = &m->param[i];
            const hh_dtype t = hh_saved_type(m, p, dtype);
            if (hh_dtype_is_quantised(t) != blocks) continue;
            const size_t row = (size_t)(hh_tensor_count(*p->slot) / rows_of(p)) * sizeof(hh_real);
            s->param[n] = p;
            s->named[n].name = p->name;
            s->named[n].t =
                p->rank == 1 ? hh_tensor_1d(NULL, t, p->dim[0]) : hh_tensor_2d(NULL, t, p->dim[0], p->dim[1]);
            if (hh_tensor_bytes(s->named[n].t) > *largest) *largest = hh_tensor_bytes(s->named[n].t);
            if (row > *longest) *longest = row;
            n++;
        }
}

static hh_code save_weights(const hh_model *m, const char *dir, hh_dtype dtype, hh_error *err) {
    size_t largest, longest;
    saving s = {.m = m, .mirror = hh_mirror_of(m->be), .stops = hh_dtype_is_quantised(dtype)};
    s.named = hh_alloc((size_t)m->n_params * sizeof *s.named);
    s.param = hh_alloc((size_t)m->n_params * sizeof *s.param);
    list_tensors(&s, dtype, &largest, &longest);
    hh_code code = hh_alloc_checked(&s.buffer, largest, 1, "a tensor that is being saved", err);
    char *path = hh_path_join(dir, "model.safetensors");
    if (code == HH_OK) {
        s.work = hh_alloc(2 * longest * (size_t)m->be->n_threads);
        code = hh_safetensors_write_each(path, s.named, m->n_params, give_tensor, &s, err);
    }
    hh_free(path);
    hh_mirror_release(&s.mirror);
    hh_free(s.buffer);
    hh_free(s.work);
    hh_free(s.param);
    hh_free(s.named);
    return code;
}

static hh_code save_config(const hh_model *m, const char *dir, hh_dtype dtype, hh_error *err) {
    hh_config c = m->config;
    c.blocks = hh_dtype_is_quantised(dtype) ? dtype : HH_DTYPE_F32;
    c.stored = hh_dtype_is_quantised(dtype) ? HH_DTYPE_F32 : dtype;
    char *path = hh_path_join(dir, "config.json");
    const hh_code code = hh_json_write(path, hh_config_to_json(&c), 0, err);
    hh_free(path);
    return code;
}

/* Files beside a checkpoint that say how text becomes tokens and when an answer ends. */
static const char *const tokenizer_files[] = {"tokenizer.json",         "tokenizer_config.json",
                                              "generation_config.json", "special_tokens_map.json",
                                              "chat_template.jinja",    "tokenizer.gguf"};

static hh_code copy_file(const char *from_dir, const char *name, const char *to_dir, hh_error *err) {
    char *from = hh_path_join(from_dir, name), *to = hh_path_join(to_dir, name);
    hh_filemap map = {0};
    hh_code code = HH_OK;
    if (hh_file_exists(from)) {
        code = hh_filemap_open(&map, from, err);
        if (code == HH_OK) code = hh_file_write(to, map.data, map.size, err);
        hh_filemap_close(&map);
    }
    hh_free(from);
    hh_free(to);
    return code;
}

/* A GGUF teacher has no such files: its metadata goes along instead. */
static hh_code save_tokenizer(const char *from, const char *dir, hh_error *err) {
    char *path;
    HH_TRY(hh_model_locate(&path, from, err));
    hh_code code = HH_OK;
    if (hh_is_directory(path)) {
        for (size_t i = 0; i < sizeof tokenizer_files / sizeof *tokenizer_files && code == HH_OK; i++)
            code = copy_file(path, tokenizer_files[i], dir, err);
    } else {
        hh_store *store;
        code = hh_store_open(&store, path, err);
        if (code != HH_OK) store = NULL;
        if (store && hh_store_gguf(store)) {
            char *to = hh_path_join(dir, "tokenizer.gguf");
            code = hh_gguf_write_metadata(hh_store_gguf(store), to, err);
            hh_free(to);
        }
        hh_store_close(store);
    }
    hh_free(path);
    return code;
}

hh_code hh_model_save(const hh_model *m, const char *dir, hh_dtype dtype, const char *tokenizer_from, hh_error *err) {
    HH_ASSERT(dtype == HH_DTYPE_F32 || dtype == HH_DTYPE_BF16 || dtype == HH_DTYPE_Q8_0 || dtype == HH_DTYPE_Q4_0);
    HH_TRY(hh_make_directory(dir, err));
    HH_TRY(save_weights(m, dir, dtype, err));
    if (tokenizer_from) HH_TRY(save_tokenizer(tokenizer_from, dir, err));
    return save_config(m, dir, dtype, err); /* last: where it is, the others are */
}
