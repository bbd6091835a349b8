/* Models under measurement and the shapes of results; see subject.h. */
#include "eval/subject.h"

#include "base/filemap.h"
#include "format/json.h"
#include "report/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static hh_code open_subject(hh_subject *s, hh_backend *be, const char *word, const char *rope, hh_error *err) {
    char *path;
    json_t *readable = json_string(word);
    json_decref(readable);
    if (!readable)
        return hh_fail(err, HH_EINVAL, "%s: a model's path must be UTF-8, for results are kept under it", word);
    const char *where = hh_path_split_name(&s->own_name, word);
    s->name = s->own_name;
    HH_TRY(hh_model_locate(&path, where, err));
    hh_code code = hh_model_open(&s->model, be, path, HH_LOAD_STORED, err);
    if (code == HH_OK && rope) code = hh_model_stretch(s->model, rope, err);
    if (code == HH_OK) code = hh_tokenizer_open(&s->tokenizer, path, err);
    if (code == HH_OK && hh_tokenizer_vocab_size(s->tokenizer) > s->model->config.vocab)
        code = hh_fail(err, HH_EFORMAT, "%s: its tokenizer has %lld tokens, its model %lld", where,
                       (long long)hh_tokenizer_vocab_size(s->tokenizer), (long long)s->model->config.vocab);
    hh_free(path);
    return code;
}

hh_code hh_subjects_open(hh_subject **out, hh_backend *be, const hh_words *words, const char *rope, hh_error *err) {
    hh_subject *s = hh_alloc((size_t)words->n * sizeof *s);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < words->n && code == HH_OK; i++) {
        code = open_subject(&s[i], be, words->word[i], rope, err);
        for (int64_t j = 0; j < i && code == HH_OK; j++)
            if (strcmp(s[i].name, s[j].name) == 0)
                code = hh_fail(err, HH_EINVAL, "%s is given twice; results are kept by name", s[i].name);
    }
    *out = s;
    if (code == HH_OK) return HH_OK;
    hh_subjects_close(s, words->n);
    *out = NULL;
    return code;
}

void hh_subjects_close(hh_subject *s, int64_t n) {
    for (int64_t i = 0; s && i < n; i++) {
        if (s[i].model) hh_model_close(s[i].model);
        if (s[i].tokenizer) hh_tokenizer_close(s[i].tokenizer);
        hh_free(s[i].own_name);
    }
    hh_free(s);
}

hh_code hh_subject_kv(const hh_subject *s, hh_dtype *out, hh_error *err) {
    hh_code code = hh_cache_type(out, s->kv, s->model->be, &s->model->config, err);
    return code == HH_OK ? code : hh_fail_in(err, "%s", s->name);
}

void hh_subject_end_ids(const hh_subject *s, hh_ids *out) {
    int64_t n;
    const int32_t *ids = hh_tokenizer_end_ids(s->tokenizer, &n);
    out->len = 0;
    hh_ids_append(out, ids, n);
    hh_ids_append(out, s->model->config.end_ids, s->model->config.n_end_ids);
}

uint64_t hh_subject_key(const hh_subject *s) {
    static const char *const files[] = {"config.json", "model.safetensors", "model.safetensors.index.json",
                                        "tokenizer.json", "tokenizer.gguf"};
    const char *path = s->model->path;
    uint64_t h = hh_file_stamp(path, hh_hash64(s->name, strlen(s->name), 7));
    hh_dtype kv;
    hh_error none = {0};
    if (hh_subject_kv(s, &kv, &none) == HH_OK) h = hh_hash64(&kv, sizeof kv, h);
    h = hh_hash64(s->model->inv_freq, (size_t)(s->model->config.head_dim / 2) * sizeof *s->model->inv_freq, h);
    for (size_t i = 0; i < sizeof files / sizeof *files && hh_is_directory(path); i++) {
        char *file = hh_path_join(path, files[i]);
        h = hh_file_stamp(file, h + i);
        hh_free(file);
    }
    return h;
}

char *hh_results_beside(const char *path, const char *extension) {
    size_t len = strlen(path);
    if (len > 5 && strcmp(path + len - 5, ".json") == 0) len -= 5;
    return hh_sprintf("%.*s%s", (int)len, path, extension);
}

void hh_cells_add(hh_cells *t, const char *format, ...) {
    va_list args, again;
    HH_ASSERT(t->cols > 0);
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    HH_ASSERT(n >= 0);
    if (t->n % t->cols == 0) t->cell = hh_realloc(t->cell, (size_t)(++t->rows * t->cols) * sizeof *t->cell);
    char *text = hh_alloc((size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    t->cell[t->n++] = text;
}

void hh_cells_print(const hh_cells *t, bool page, hh_buf *out) {
    HH_ASSERT(t->n == t->rows * t->cols);
    if (page)
        hh_page_table(out, (const char *const *)t->cell, t->rows, t->cols);
    else
        hh_terminal_table(out, (const char *const *)t->cell, t->rows, t->cols);
}

void hh_cells_release(hh_cells *t) {
    for (int64_t i = 0; i < t->n; i++) hh_free(t->cell[i]);
    hh_free(t->cell);
    *t = (hh_cells){0};
}
