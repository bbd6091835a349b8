/* Perplexity; see perplexity.h. */
#include "eval/perplexity.h"

#include "base/progress.h"
#include "base/stats.h"
#include "eval/loglik.h"

#include <math.h>

enum { WINDOWS_A_CALL = 16, LONGEST_DEFAULT = 2048 };

static hh_code score_windows(hh_scored *w, int64_t n, const hh_subject *s, int64_t length, hh_error *err) {
    hh_loglik *l;
    hh_progress p;
    hh_dtype kv;
    HH_TRY(hh_subject_kv(s, &kv, err));
    HH_TRY(hh_loglik_new(&l, s->model, length, 1, LONGEST_DEFAULT, kv, err));
    hh_progress_begin(&p, s->name, "windows", (double)n);
    hh_code code = HH_OK;
    for (int64_t i = 0, end; i < n && code == HH_OK; i = end) {
        end = i + WINDOWS_A_CALL < n ? i + WINDOWS_A_CALL : n;
        code = hh_loglik_score(l, w + i, end - i, err);
        hh_progress_update(&p, (double)end, NULL);
    }
    hh_progress_end(&p);
    hh_loglik_free(l);
    return code;
}

static hh_code measure(hh_perplexity *out, const hh_subject *s, const hh_ids *ids, int64_t limit, hh_error *err) {
    int64_t n = 0, most = (ids->len - 2) / out->length + 1;
    if (limit > 0 && limit < most) most = limit;
    hh_scored *w = hh_alloc((size_t)most * sizeof *w);
    for (int64_t at = 0; n < most; at += out->length, n++) {
        int64_t len = ids->len - at < out->length ? ids->len - at : out->length;
        w[n] = (hh_scored){.ids = ids->data + at, .n = len, .first = 1, .group = n};
    }
    hh_code code = score_windows(w, n, s, out->length, err);
    double *mean = hh_alloc((size_t)n * sizeof *mean), sum = 0;
    for (int64_t i = 0; i < n; i++) {
        out->n_tokens += w[i].n - 1;
        sum += w[i].loglik;
        mean[i] = w[i].loglik / (double)(w[i].n - 1);
    }
    out->n_windows = n;
    out->nll = -sum / (double)out->n_tokens;
    out->nll_error = hh_standard_error(mean, n);
    out->perplexity = exp(out->nll);
    hh_free(mean);
    hh_free(w);
    return code;
}

hh_code hh_eval_perplexity(hh_perplexity *out, const hh_subject *s, const char *text, size_t len, int64_t length,
                           int64_t limit, hh_error *err) {
    int64_t native = s->model->config.max_position;
    *out = (hh_perplexity){.length = length > 0 ? length : native < LONGEST_DEFAULT ? native : LONGEST_DEFAULT};
    if (out->length < 2)
        return hh_fail(err, HH_EINVAL, "a window of %lld tokens predicts nothing; give at least 2",
                       (long long)out->length);
    hh_ids ids = {0};
    hh_code code = hh_tokenizer_encode(s->tokenizer, text, len, HH_ENCODE_SPECIAL, &ids, err);
    if (code == HH_OK && ids.len < 2)
        code = hh_fail(err, HH_EINVAL, "the text has %lld tokens for %s; at least 2 are needed", (long long)ids.len,
                       s->name);
    if (code == HH_OK) code = measure(out, s, &ids, limit, err);
    hh_ids_release(&ids);
    return code;
}

json_t *hh_perplexity_json(const hh_perplexity *p) {
    return json_pack("{s:f, s:f, s:f, s:I, s:I, s:I}", "perplexity", p->perplexity, "nll", p->nll, "nll_stderr",
                     p->nll_error, "length", (json_int_t)p->length, "windows", (json_int_t)p->n_windows, "tokens",
                     (json_int_t)p->n_tokens);
}
