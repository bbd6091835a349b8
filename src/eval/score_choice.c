/* Choice items by log-likelihood; see score_choice.h. */
#include "eval/score_choice.h"

#include "base/progress.h"
#include "base/stats.h"
#include "eval/loglik.h"

#include <math.h>

enum { ITEMS_A_CALL = 64, DEFAULT_BATCH = 2048 };

/* Every option of every item as tokens, one behind another. */
typedef struct tokens {
    hh_ids *ids;                           /* [n_sequences] */
    hh_scored *scored;                     /* [n_sequences], grouped by item */
    int64_t n_sequences, longest, largest; /* inputs of the longest sequence; options of the largest item */
} tokens;

static void release_tokens(tokens *t) {
    for (int64_t i = 0; t->ids && i < t->n_sequences; i++) hh_ids_release(&t->ids[i]);
    hh_free(t->ids);
    hh_free(t->scored);
}

static hh_code encode_all(tokens *t, const hh_subject *s, const hh_choice_set *set, int64_t max_length,
                          hh_choice_result *out, hh_error *err) {
    int64_t total = 0;
    for (int64_t i = 0; i < set->n; i++) total += set->item[i].n;
    t->ids = hh_alloc((size_t)total * sizeof *t->ids);
    t->scored = hh_alloc((size_t)total * sizeof *t->scored);
    for (int64_t i = 0; i < set->n; i++) {
        const hh_choice_item *item = &set->item[i];
        bool any = false;
        if (item->n > t->largest) t->largest = item->n;
        for (int64_t j = 0; j < item->n; j++) {
            hh_ids *ids = &t->ids[t->n_sequences];
            hh_scored *q = &t->scored[t->n_sequences++];
            bool truncated;
            HH_TRY(hh_choice_encode(s->tokenizer, item->context[j], item->text[j], max_length, ids, &q->first,
                                    &truncated, err));
            q->ids = ids->data;
            q->n = ids->len;
            q->group = i;
            any = any || truncated;
            if (q->n - 1 > t->longest) t->longest = q->n - 1;
        }
        out->n_truncated += any;
    }
    return HH_OK;
}

static hh_code score_all(tokens *t, const hh_subject *s, const hh_choice_set *set, int64_t batch, hh_error *err) {
    hh_loglik *l;
    hh_progress p;
    hh_dtype kv;
    HH_TRY(hh_subject_kv(s, &kv, err));
    HH_TRY(hh_loglik_new(&l, s->model, t->longest, t->largest, batch, kv, err));
    hh_progress_begin(&p, s->name, "items", (double)set->n);
    hh_code code = HH_OK;
    int64_t at = 0;
    for (int64_t i = 0, end; i < set->n && code == HH_OK; i = end) {
        int64_t n = 0;
        for (end = i; end < set->n && end < i + ITEMS_A_CALL; end++) n += set->item[end].n;
        code = hh_loglik_score(l, t->scored + at, n, err);
        at += n;
        hh_progress_update(&p, (double)end, NULL);
    }
    hh_progress_end(&p);
    hh_loglik_free(l);
    return code;
}

/* The first of the largest. */
static int64_t best_option(const hh_scored *s, int64_t n, const int64_t *length) {
    int64_t best = 0;
    double most = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double x = s[i].loglik / (length ? (double)length[i] : 1.0);
        if (x > most) {
            most = x;
            best = i;
        }
    }
    return best;
}

static hh_rate rate_of(const double *x, int64_t n) {
    return (hh_rate){hh_mean(x, n), hh_standard_error(x, n)};
}

static void summarise(hh_choice_result *out, const hh_choice_set *set, const tokens *t) {
    double *x[4];
    for (int i = 0; i < 4; i++) x[i] = hh_alloc((size_t)set->n * sizeof **x);
    const hh_scored *s = t->scored;
    for (int64_t i = 0; i < set->n; i++) {
        const hh_choice_item *item = &set->item[i];
        out->loglik[i] = hh_alloc((size_t)item->n * sizeof(double));
        for (int64_t j = 0; j < item->n; j++) out->loglik[i][j] = s[j].loglik;
        if (set->kind == HH_CHOICE_CONTINUATION) {
            x[0][i] = s->greedy;
            x[3][i] = s->loglik;
        } else {
            x[0][i] = best_option(s, item->n, NULL) == item->gold;
            x[1][i] = best_option(s, item->n, item->chars) == item->gold;
            x[2][i] = best_option(s, item->n, item->bytes) == item->gold;
        }
        s += item->n;
    }
    out->acc = rate_of(x[0], set->n);
    out->acc_norm = rate_of(x[1], set->n);
    out->acc_bytes = rate_of(x[2], set->n);
    double perplexity = exp(-hh_mean(x[3], set->n));
    out->perplexity = (hh_rate){perplexity, perplexity * hh_standard_error(x[3], set->n)};
    for (int i = 0; i < 4; i++) hh_free(x[i]);
}

hh_code hh_eval_choice(hh_choice_result *out, const hh_subject *s, const hh_choice_set *set, const hh_choice_options *o,
                       hh_error *err) {
    int64_t max_length = o->max_length > 0 ? o->max_length : s->model->config.max_position;
    *out = (hh_choice_result){.kind = set->kind, .n = set->n, .loglik = hh_alloc((size_t)set->n * sizeof *out->loglik)};
    tokens t = {0};
    hh_code code = encode_all(&t, s, set, max_length, out, err);
    if (code == HH_OK) code = score_all(&t, s, set, o->batch > 0 ? o->batch : DEFAULT_BATCH, err);
    if (code == HH_OK) summarise(out, set, &t);
    release_tokens(&t);
    if (code != HH_OK) hh_choice_result_release(out);
    return code;
}

void hh_choice_result_release(hh_choice_result *r) {
    for (int64_t i = 0; r->loglik && i < r->n; i++) hh_free(r->loglik[i]);
    hh_free(r->loglik);
    *r = (hh_choice_result){0};
}

static void set_rate(json_t *o, const char *name, hh_rate r) {
    char error[32];
    snprintf(error, sizeof error, "%s_stderr", name);
    json_object_set_new(o, name, json_real(r.value));
    json_object_set_new(o, error, json_real(r.error));
}

json_t *hh_choice_json(const hh_choice_result *r) {
    json_t *o = json_object();
    set_rate(o, "acc", r->acc);
    if (r->kind == HH_CHOICE_MULTIPLE) {
        set_rate(o, "acc_norm", r->acc_norm);
        set_rate(o, "acc_bytes", r->acc_bytes);
    }
    if (r->kind == HH_CHOICE_CONTINUATION) set_rate(o, "perplexity", r->perplexity);
    json_object_set_new(o, "n", json_integer(r->n));
    json_object_set_new(o, "truncated", json_integer(r->n_truncated));
    return o;
}

json_t *hh_choice_items_json(const hh_choice_result *r, const hh_choice_set *set) {
    json_t *a = json_array();
    for (int64_t i = 0; i < r->n; i++) {
        json_t *item = json_array();
        for (int64_t j = 0; j < set->item[i].n; j++) json_array_append_new(item, json_real(r->loglik[i][j]));
        json_array_append_new(a, item);
    }
    return a;
}
