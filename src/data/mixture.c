/* Batches from a mixture of text files and needle documents, a function of (seed, step, row) alone; see corpus.h. */
#include "data/corpus.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct hh_mixture {
    hh_shard *shard; /* [n_files] */
    double *upto;    /* [n_files + 1] cumulative share; the last is the needle source */
    int64_t n_files;
    hh_needle_docs *needles; /* NULL: none */
    int32_t eos;
    uint64_t seed;
};

/* "FILE=2.5" is FILE and 2.5; a name that itself holds '=' stays whole when a number does not follow the last one. */
static hh_code split_weight(const char *word, char **path, double *weight, hh_error *err) {
    const char *sign = strrchr(word, '=');
    char *end = NULL;
    double value = sign ? strtod(sign + 1, &end) : 1;
    bool number = sign && end != sign + 1 && *end == 0;
    if (number && !(isfinite(value) && value > 0))
        return hh_fail(err, HH_EINVAL, "%s: the weight is not a positive number", word);
    *weight = number ? value : 1;
    *path = number ? hh_sprintf("%.*s", (int)(sign - word), word) : hh_strdup(word);
    return HH_OK;
}

static hh_code open_file(hh_mixture *m, int64_t i, const char *word, const hh_tokenizer *t, const char *dir,
                         hh_error *err) {
    char *path = NULL;
    HH_TRY(split_weight(word, &path, &m->upto[i], err));
    hh_code code = hh_shard_open(&m->shard[i], path, t, dir, err);
    if (code == HH_OK && m->shard[i].n < 2)
        code = hh_fail(err, HH_EINVAL, "%s: %lld tokens of text; there is nothing to train on", path,
                       (long long)m->shard[i].n);
    hh_free(path);
    return code;
}

hh_code hh_mixture_new(hh_mixture **out, const hh_tokenizer *t, const hh_mixture_options *o, hh_error *err) {
    HH_ASSERT(o->needles >= 0 && o->n_files >= 0);
    *out = NULL;
    if (o->n_files == 0 && o->needles == 0)
        return hh_fail(err, HH_EINVAL, "no training data: give text files or a weight for needle documents");
    hh_mixture *m = hh_alloc(sizeof *m);
    m->shard = hh_alloc((size_t)o->n_files * sizeof *m->shard);
    m->upto = hh_alloc((size_t)(o->n_files + 1) * sizeof *m->upto);
    m->seed = o->seed;
    m->eos = hh_tokenizer_eos(t);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < o->n_files && code == HH_OK; i++) {
        m->n_files = i + 1;
        code = open_file(m, i, o->files[i], t, o->cache_dir, err);
    }
    if (code == HH_OK && o->needles > 0)
        code = hh_needle_docs_new(
            &m->needles, t, &(hh_needle_docs_options){.compact_share = 0.5, .all_forms = o->all_forms, .seed = o->seed},
            err);
    if (code != HH_OK) {
        hh_mixture_free(m);
        return code;
    }
    m->upto[m->n_files] = o->needles;
    double sum = 0;
    for (int64_t i = 0; i <= m->n_files; i++) m->upto[i] = sum += m->upto[i];
    for (int64_t i = 0; i <= m->n_files; i++) m->upto[i] /= sum;
    *out = m;
    return HH_OK;
}

void hh_mixture_free(hh_mixture *m) {
    if (!m) return;
    for (int64_t i = 0; i < m->n_files; i++) hh_shard_close(&m->shard[i]);
    hh_needle_docs_free(m->needles);
    hh_free(m->shard);
    hh_free(m->upto);
    hh_free(m);
}

/* The rows of a step stand evenly on the line of shares, with a common offset: each source gets its share to within one
 * row. */
static int64_t pick_source(const hh_mixture *m, int64_t step, int64_t row, int64_t n_rows) {
    hh_rng r = hh_rng_stream(m->seed ^ UINT64_C(0x6D6978), (uint64_t)step);
    double x = ((double)row + hh_rng_uniform(&r)) / (double)n_rows;
    int64_t i = 0;
    while (i < m->n_files && x >= m->upto[i]) i++;
    if (i == m->n_files && !m->needles) i--;
    return i;
}

static void take_window(const hh_mixture *m, const hh_shard *s, hh_rng *r, int64_t length, int32_t *ids,
                        uint8_t *flags) {
    int64_t at = hh_rng_below(r, s->n > length ? s->n - length + 1 : s->n);
    for (int64_t i = 0; i < length; i++) { /* a short text goes round */
        ids[i] = s->ids[(at + i) % s->n];
        if (flags) flags[i] = i == 0 || ids[i - 1] == m->eos ? HH_TOKEN_STARTS : 0;
    }
}

hh_code hh_mixture_row(const hh_mixture *m, int64_t step, int64_t row, int64_t n_rows, int64_t length, int32_t *ids,
                       uint8_t *flags, hh_error *err) {
    HH_ASSERT(step >= 0 && row >= 0 && row < n_rows && length > 0);
    int64_t source = pick_source(m, step, row, n_rows), index = step * n_rows + row;
    if (source < m->n_files) {
        hh_rng r = hh_rng_stream(m->seed, (uint64_t)index);
        take_window(m, &m->shard[source], &r, length, ids, flags);
        return HH_OK;
    }
    hh_ids doc = {0}, answer = {0};
    hh_code code = hh_needle_docs_get(m->needles, index, length, &doc, &answer, err);
    for (int64_t i = 0; code == HH_OK && i < length; i++) {
        ids[i] = doc.data[i];
        if (flags) flags[i] = (uint8_t)((i == 0 ? HH_TOKEN_STARTS : 0) | (answer.data[i] ? HH_TOKEN_ANSWER : 0));
    }
    hh_ids_release(&doc);
    hh_ids_release(&answer);
    return code;
}
