/* Needle tasks over models; see ruler.h. Reports are in ruler_report.c. */
#include "eval/ruler.h"

#include "base/filemap.h"
#include "base/progress.h"
#include "base/stats.h"
#include "eval/partial.h"
#include "session/many.h"

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

/* A sample that is being answered, and where its result goes. */
typedef struct answer {
    const hh_tokenizer *t;
    hh_needle_sample sample;
    int64_t number;
    hh_ids prompt;
    hh_buf text;
    double score;
} answer;

static bool take_token(void *context, int32_t id) {
    answer *a = context;
    hh_error ignored;
    hh_tokenizer_decode(a->t, &id, 1, false, &a->text, &ignored);
    a->score = hh_ruler_score(&a->sample, a->text.data ? a->text.data : "");
    return a->score < 1;
}

/* Samples that are answered at once. */
typedef struct runner {
    const hh_subject *subject;
    hh_many *many;
    int64_t n_at_once, n;
    answer answer[HH_MANY_MOST];
    hh_ids end_ids;
} runner;

static void release_answers(runner *r) {
    for (int64_t i = 0; i < r->n; i++) {
        hh_needle_sample_release(&r->answer[i].sample);
        hh_ids_release(&r->answer[i].prompt);
        hh_buf_release(&r->answer[i].text);
    }
    r->n = 0;
}

static hh_code answer_samples(runner *r, hh_ruler_cell *c, hh_error *err) {
    hh_request request[HH_MANY_MOST];
    for (int64_t i = 0; i < r->n; i++) {
        answer *a = &r->answer[i];
        HH_TRY(hh_tokenizer_encode(a->t, a->sample.prompt, strlen(a->sample.prompt), HH_ENCODE_PLAIN, &a->prompt, err));
        request[i] = (hh_request){.ids = a->prompt.data,
                                  .n = a->prompt.len,
                                  .max_new = a->sample.max_new,
                                  .on_token = take_token,
                                  .context = a};
    }
    HH_TRY(hh_many_answer(r->many, request, r->n, r->end_ids.data, r->end_ids.len, err));
    for (int64_t i = 0; i < r->n; i++) {
        const answer *a = &r->answer[i];
        c->sample[a->number] = (hh_ruler_sample){.score = a->score,
                                                 .depth = a->sample.depth,
                                                 .n_prompt = request[i].n,
                                                 .n_new = request[i].n_new,
                                                 .truncated = a->score < 1 && request[i].n_new >= a->sample.max_new};
    }
    return HH_OK;
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

/* Answers what has been collected, and keeps the results. */
static hh_code flush(evaluation *e, runner *r, const char *key, hh_ruler_cell *c, hh_error *err) {
    hh_code code = r->n ? answer_samples(r, c, err) : HH_OK;
    for (int64_t i = 0; i < r->n && code == HH_OK; i++) {
        const hh_ruler_sample *s = &c->sample[r->answer[i].number];
        double fresh[5] = {s->score, s->depth, (double)s->n_prompt, (double)s->n_new, s->truncated};
        code = hh_partial_add(e->partial, key, r->answer[i].number, fresh, 5, err);
    }
    e->done += r->n;
    release_answers(r);
    if (code == HH_OK && hh_interrupted()) code = hh_fail(err, HH_ECANCELLED, "interrupted");
    return code;
}

static hh_code run_samples(evaluation *e, runner *r, hh_needles *needles, const char *label, const char *key,
                           hh_ruler_cell *c, hh_error *err) {
    const int64_t n = e->result->options.n_samples;
    for (int64_t i = 0; i < n; i++) {
        answer *a = &r->answer[r->n];
        double kept[5];
        *a = (answer){.t = r->subject->tokenizer, .number = i};
        HH_TRY(hh_needles_next(needles, &a->sample, err)); /* drawn also when known: the next one follows from it */
        if (hh_partial_find(e->partial, key, i, kept, 5)) {
            c->sample[i] = (hh_ruler_sample){kept[0], kept[1], (int64_t)kept[2], (int64_t)kept[3], kept[4] != 0};
            hh_needle_sample_release(&a->sample);
            e->result->n_resumed++;
            e->done++;
        } else if (++r->n == r->n_at_once) {
            HH_TRY(flush(e, r, key, c, err));
        }
        hh_progress_update(&e->progress, (double)e->done, label);
    }
    HH_TRY(flush(e, r, key, c, err));
    hh_progress_update(&e->progress, (double)e->done, label);
    c->n = n;
    return HH_OK;
}

static hh_code run_cell(evaluation *e, runner *r, hh_needles *needles, const char *label, uint64_t hash,
                        hh_ruler_cell *c, hh_error *err) {
    char *key = hh_sprintf("%s, %016llx", label, (unsigned long long)hash);
    hh_code code = run_samples(e, r, needles, label, key, c, err);
    release_answers(r);
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
    hh_dtype kv;
    hh_needle_options no = {.task = o->task[task],
                            .length = o->length[length],
                            .haystack = o->haystack,
                            .haystack_len = o->haystack_len,
                            .seed = o->seed,
                            .anywhere = o->anywhere};
    HH_TRY(hh_subject_kv(s, &kv, err));
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
    if (o->anywhere) h = hh_hash64(&o->anywhere, sizeof o->anywhere, h);
    char *label = hh_sprintf("%s, %s, %lld", s->name, hh_needle_task_name(no.task), (long long)no.length);
    r.n_at_once = hh_many_fitting(s->model, no.length, kv);
    if (r.n_at_once > o->n_samples) r.n_at_once = o->n_samples;
    code = hh_many_new(&r.many, s->model, r.n_at_once, no.length, kv, err);
    if (code == HH_OK) code = run_cell(e, &r, needles, label, h, c, err);
    hh_many_free(r.many);
    hh_ids_release(&r.end_ids);
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
