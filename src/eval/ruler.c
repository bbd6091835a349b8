/* Needle tasks over models; see ruler.h. Reports are in ruler_report.c. */
#include "eval/ruler.h"

#include "base/filemap.h"
#include "base/progress.h"
#include "base/stats.h"
#include "eval/partial.h"
#include "session/session.h"

#include <ctype.h>
#include <string.h>

static bool occurs(const char *text, const char *value) {
    size_t len = strlen(value);
    for (; *text; text++) {
        size_t i = 0;
        while (i < len && tolower((unsigned char)text[i]) == tolower((unsigned char)value[i])) i++;
        if (i == len) return true;
    }
    return len == 0;
}

double hh_ruler_score(const hh_needle_sample *s, const char *text) {
    int found = 0;
    for (int i = 0; i < s->n_answers; i++) found += occurs(text, s->answer[i]);
    return s->n_answers ? (double)found / s->n_answers : 0;
}

typedef struct answer {
    const hh_tokenizer *t;
    const hh_needle_sample *sample;
    hh_buf text;
    double score;
} answer;

static bool take_token(void *context, int32_t id) {
    answer *a = context;
    hh_error ignored;
    hh_tokenizer_decode(a->t, &id, 1, false, &a->text, &ignored);
    a->score = hh_ruler_score(a->sample, a->text.data ? a->text.data : "");
    return a->score < 1;
}

typedef struct runner {
    const hh_subject *subject;
    hh_session *session;
    hh_ids end_ids, prompt;
} runner;

static hh_code run_sample(runner *r, const hh_needle_sample *s, hh_ruler_sample *out, hh_error *err) {
    answer a = {.t = r->subject->tokenizer, .sample = s};
    hh_rng unused = hh_rng_seeded(0);
    int64_t n_new = 0;
    r->prompt.len = 0;
    HH_TRY(hh_tokenizer_encode(a.t, s->prompt, strlen(s->prompt), HH_ENCODE_PLAIN, &r->prompt, err));
    hh_session_reset(r->session);
    hh_code code = hh_session_eval(r->session, r->prompt.data, r->prompt.len, err);
    if (code == HH_OK)
        code = hh_session_generate(r->session, s->max_new, r->end_ids.data, r->end_ids.len, &(hh_sampling){.top_p = 1},
                                   &unused, take_token, &a, &n_new, err);
    hh_buf_release(&a.text);
    *out = (hh_ruler_sample){.score = a.score,
                             .depth = s->depth,
                             .n_prompt = r->prompt.len,
                             .n_new = n_new,
                             .truncated = a.score < 1 && n_new >= s->max_new};
    return code;
}

static void summarise(hh_ruler_cell *c) {
    double *score = hh_alloc((size_t)c->n * sizeof *score);
    c->n_truncated = 0;
    for (int64_t i = 0; i < c->n; i++) {
        score[i] = c->sample[i].score;
        c->n_truncated += c->sample[i].truncated;
    }
    c->accuracy = hh_mean(score, c->n);
    c->error = hh_standard_error(score, c->n);
    hh_free(score);
}

typedef struct evaluation {
    hh_ruler_result *result;
    hh_partial *partial; /* NULL: not kept */
    hh_progress progress;
    int64_t done;
} evaluation;

static hh_code run_cell(evaluation *e, runner *r, hh_needles *needles, const char *label, uint64_t hash,
                        hh_ruler_cell *c, hh_error *err) {
    const hh_ruler_options *o = &e->result->options;
    char *key = hh_sprintf("%s, %016llx", label, (unsigned long long)hash);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < o->n_samples && code == HH_OK; i++) {
        hh_needle_sample s;
        code =
            hh_needles_next(needles, &s, err); /* drawn also when its result is known: the next one follows from it */
        if (code != HH_OK) break;
        hh_ruler_sample *out = &c->sample[i];
        double kept[5];
        if (hh_partial_find(e->partial, key, i, kept, 5)) {
            *out = (hh_ruler_sample){kept[0], kept[1], (int64_t)kept[2], (int64_t)kept[3], kept[4] != 0};
            e->result->n_resumed++;
        } else {
            code = run_sample(r, &s, out, err);
            double fresh[5] = {out->score, out->depth, (double)out->n_prompt, (double)out->n_new, out->truncated};
            if (code == HH_OK) code = hh_partial_add(e->partial, key, i, fresh, 5, err);
        }
        hh_needle_sample_release(&s);
        if (code == HH_OK && hh_interrupted()) code = hh_fail(err, HH_ECANCELLED, "interrupted");
        c->n = i + 1;
        hh_progress_update(&e->progress, (double)++e->done, label);
    }
    hh_free(key);
    if (code == HH_OK) summarise(c);
    return code;
}

static hh_code evaluate(evaluation *e, int64_t subject, int64_t task, int64_t length, hh_error *err) {
    hh_ruler_result *result = e->result;
    const hh_ruler_options *o = &result->options;
    const hh_subject *s = &result->subject[subject];
    hh_ruler_cell *c = (hh_ruler_cell *)hh_ruler_cell_at(result, subject, task, length);
    hh_needles *needles;
    hh_needle_options no = {.task = o->task[task],
                            .length = o->length[length],
                            .haystack = o->haystack,
                            .haystack_len = o->haystack_len,
                            .seed = o->seed};
    hh_code code = hh_needles_new(&needles, s->tokenizer, &no, err);
    if (code == HH_EINVAL) { /* does not fit, and says so */
        c->why = hh_strdup(err->text);
        e->done += o->n_samples;
        return HH_OK;
    }
    if (code != HH_OK) return code;
    runner r = {.subject = s};
    hh_subject_end_ids(s, &r.end_ids);
    c->sample = hh_alloc((size_t)o->n_samples * sizeof *c->sample);
    uint64_t h = hh_hash64(&o->seed, sizeof o->seed, hh_subject_key(s));
    if (o->haystack) h = hh_hash64(o->haystack, o->haystack_len, h);
    char *label = hh_sprintf("%s, %s, %lld", s->name, hh_needle_task_name(no.task), (long long)no.length);
    code = hh_session_new(&r.session, s->model, &(hh_session_options){.context = no.length, .kv_dtype = s->model->be->activation},
                          err);
    if (code == HH_OK) code = run_cell(e, &r, needles, label, h, c, err);
    hh_session_free(r.session);
    hh_ids_release(&r.end_ids);
    hh_ids_release(&r.prompt);
    hh_needles_free(needles);
    hh_free(label);
    return code;
}

static bool nothing_fits(const hh_ruler_result *r) {
    for (int64_t i = 0; i < r->n_subjects * r->options.n_tasks * r->options.n_lengths; i++)
        if (r->cell[i].n > 0) return false;
    return true;
}

hh_code hh_eval_ruler(hh_ruler_result *out, const hh_subject *subject, int64_t n_subjects, const hh_ruler_options *o,
                      hh_error *err) {
    HH_ASSERT(n_subjects > 0 && o->n_tasks > 0 && o->n_lengths > 0 && o->n_samples > 0);
    int64_t cells = n_subjects * o->n_tasks * o->n_lengths;
    *out = (hh_ruler_result){.options = *o,
                             .subject = subject,
                             .n_subjects = n_subjects,
                             .cell = hh_alloc((size_t)cells * sizeof *out->cell)};
    evaluation e = {.result = out};
    hh_code code = o->partial ? hh_partial_open(&e.partial, o->partial, err) : HH_OK;
    hh_progress_begin(&e.progress, "needles", "samples", (double)(cells * o->n_samples));
    for (int64_t s = 0; s < n_subjects; s++)
        for (int64_t t = 0; t < o->n_tasks; t++)
            for (int64_t l = 0; l < o->n_lengths && code == HH_OK; l++) code = evaluate(&e, s, t, l, err);
    hh_progress_end(&e.progress);
    hh_partial_close(e.partial);
    if (code == HH_ECANCELLED)
        hh_fail(err, code, "interrupted after %lld of %lld samples%s", (long long)e.done,
                (long long)(cells * o->n_samples), o->partial ? "; the same command goes on from there" : "");
    if (code == HH_OK && nothing_fits(out)) code = hh_fail(err, HH_EUNSUPPORTED, "no task fits: %s", out->cell[0].why);
    if (code != HH_OK) hh_ruler_result_release(out);
    return code;
}

void hh_ruler_result_release(hh_ruler_result *r) {
    for (int64_t i = 0; r->cell && i < r->n_subjects * r->options.n_tasks * r->options.n_lengths; i++) {
        hh_free(r->cell[i].sample);
        hh_free(r->cell[i].why);
    }
    hh_free(r->cell);
    *r = (hh_ruler_result){0};
}

const hh_ruler_cell *hh_ruler_cell_at(const hh_ruler_result *r, int64_t subject, int64_t task, int64_t length) {
    return &r->cell[(subject * r->options.n_tasks + task) * r->options.n_lengths + length];
}
