/* The models that are measured side by side, and how results leave: JSON, tables, pages. */
#ifndef HH_EVAL_SUBJECT_H
#define HH_EVAL_SUBJECT_H
#include "base/options.h"
#include "model/model.h"
#include "text/tokenizer.h"

#include <jansson.h>

typedef struct hh_subject {
    const char *name; /* the key in results: as the caller wrote the path, or NAME of NAME=PATH */
    hh_model *model;
    hh_tokenizer *tokenizer;
    const char *kv; /* type of the caches it is measured with, a word of hh_cache_type; NULL: auto */
    char *own_name; /* name's memory; NULL: somebody else's */
} hh_subject;

/* Opens models and their tokenizers. A word is a model's path, or NAME=PATH. `rope` (NULL: none) stretches positions
 * (hh_model_stretch). HH_EINVAL when a name is given twice. */
hh_code hh_subjects_open(hh_subject **out, hh_backend *be, const hh_words *words, const char *rope, hh_error *err);
void hh_subjects_close(hh_subject *s, int64_t n);
/* hh_cache_type of the subject. */
hh_code hh_subject_kv(const hh_subject *s, hh_dtype *out, hh_error *err);
/* Every end token the tokenizer or the configuration names. */
void hh_subject_end_ids(const hh_subject *s, hh_ids *out);
/* Changes when the model's files, its tokenizer's or the type of its caches do: what partial results are kept under. */
uint64_t hh_subject_key(const hh_subject *s);

/* "results.json" -> "results.html"; another name gets ".html" behind it. Owned by the caller. */
char *hh_results_beside(const char *path, const char *extension);

/* A table of text cells that is filled cell by cell: for a terminal and for a page alike. */
typedef struct hh_cells {
    char **cell; /* [rows * cols] */
    int64_t rows, cols, n;
} hh_cells;
void hh_cells_add(hh_cells *t, const char *format, ...)
    HH_PRINTF(2, 3); /* rows grow as they fill; cols is set before */
void hh_cells_print(const hh_cells *t, bool page, hh_buf *out);
void hh_cells_release(hh_cells *t);
#endif
