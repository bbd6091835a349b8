/* Writing a checkpoint directory: docs/FORMATS.md. Heads go back to their original order; each file is written aside
 * and renamed. */
#include "model/load.h"

#include "base/filemap.h"
#include "format/gguf.h"
#include "format/safetensors.h"
#include "tensor/mirror.h"

#include <stdlib.h>
#include <string.h>

/* One row from memory as hh_real in `row`; W_O's heads back at their places. */
static void write_row(hh_real *row, hh_real *work, const hh_param *p, const void *src, int64_t k, const int32_t *order,
                      int64_t head_dim) {
    hh_dequantise(p->slot->dtype, src, k, order ? work : row);
    for (int64_t i = 0; order && i < k / head_dim; i++)
        memcpy(row + order[i] * head_dim, work + i * head_dim, (size_t)head_dim * sizeof *row);
}

/* The parameter, whose bytes are `data`, as the file has it, into dst. */
static void convert(const hh_model *m, const hh_param *p, const char *data, hh_dtype dtype, char *dst, hh_real *work) {
    const int64_t rows = p->rank == 1 && !p->permuted_rows ? 1 : p->dim[0];
    const int64_t k = hh_tensor_count(*p->slot) / rows;
    const int32_t *order = hh_param_order(m, p);
    const size_t from = hh_dtype_bytes(p->slot->dtype, k), to = hh_dtype_bytes(dtype, k);
    for (int64_t i = 0; i < rows; i++) {
        write_row(work, work + k, p, data + (size_t)i * from, k, p->permuted_columns ? order : NULL,
                  m->config.head_dim);
        int64_t row = p->permuted_rows && order ? order[i] : i;
        hh_quantise(dtype, work, k, dst + (size_t)row * to);
    }
}

static hh_code save_weights(const hh_model *m, const char *dir, hh_dtype dtype, hh_error *err) {
    size_t bytes = 0, longest = 1;
    for (int64_t i = 0; i < m->n_params; i++) {
        const hh_param *p = &m->param[i];
        size_t n = (size_t)hh_tensor_count(*p->slot), row = p->rank == 1 ? n : (size_t)p->dim[1];
        bytes += hh_dtype_bytes(p->matrix ? dtype : HH_DTYPE_F32, (int64_t)n);
        if (row > longest) longest = row;
    }
    hh_named_tensor *named = hh_alloc((size_t)m->n_params * sizeof *named);
    hh_real *work = hh_alloc(2 * longest * sizeof *work);
    hh_mirror mirror = hh_mirror_of(m->be);
    void *data = NULL;
    hh_code code = hh_alloc_checked(&data, bytes, 1, "a copy of the weights for saving", err);
    char *at = data;
    for (int64_t i = 0; i < m->n_params && code == HH_OK; i++) {
        const hh_param *p = &m->param[i];
        hh_dtype t = p->matrix ? dtype : HH_DTYPE_F32;
        named[i].name = p->name;
        named[i].t = p->rank == 1 ? hh_tensor_1d(at, t, p->dim[0]) : hh_tensor_2d(at, t, p->dim[0], p->dim[1]);
        convert(m, p, hh_mirror_read(&mirror, *p->slot), t, at, work);
        at += hh_tensor_bytes(named[i].t);
    }
    if (code == HH_OK) code = m->be->sync(m->be, err); /* what was read came from a backend that works */
    char *path = hh_path_join(dir, "model.safetensors");
    if (code == HH_OK) code = hh_safetensors_write(path, named, m->n_params, err);
    hh_free(path);
    hh_mirror_release(&mirror);
    hh_free(data);
    hh_free(work);
    hh_free(named);
    return code;
}

static hh_code save_config(const hh_model *m, const char *dir, hh_dtype dtype, hh_error *err) {
    hh_config c = m->config;
    c.stored = dtype;
    json_t *json = hh_config_to_json(&c);
    char *text = json_dumps(json, JSON_INDENT(1));
    HH_ASSERT(text);
    char *path = hh_path_join(dir, "config.json");
    hh_code code = hh_file_write(path, text, strlen(text), err);
    hh_free(path);
    free(text);
    json_decref(json);
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
    HH_ASSERT(dtype == HH_DTYPE_F32 || dtype == HH_DTYPE_BF16);
    HH_TRY(hh_make_directory(dir, err));
    HH_TRY(save_weights(m, dir, dtype, err));
    HH_TRY(save_config(m, dir, dtype, err));
    return tokenizer_from ? save_tokenizer(tokenizer_from, dir, err) : HH_OK;
}
