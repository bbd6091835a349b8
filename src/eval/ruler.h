/* RULER's needle tasks over models, lengths and samples: greedy answers, scored as RULER scores them.
 *
 * A sample's score is the share of its values that occur in the answer, small and capital letters alike. Generation
 * ends early when all have been found, which cannot change the score. Results are kept sample by sample in a partial
 * file, so that a half-done evaluation resumes.
 */
#ifndef HH_EVAL_RULER_H
#define HH_EVAL_RULER_H
#include "data/needle.h"
#include "eval/subject.h"

typedef struct hh_ruler_options {
    const hh_needle_task *task;
    const int64_t *length; /* tokens of prompt and answer */
    int64_t n_tasks, n_lengths, n_samples;
    uint32_t seed;        /* RULER's own default is 42 */
    const char *haystack; /* text for essays, NULL: the shipped excerpt */
    size_t haystack_len;
    const char *haystack_name; /* for the record; NULL: "the shipped excerpt" */
    bool anywhere;             /* essays begin at a place drawn for each sample; RULER's at the first word */
    const char *partial;       /* file of finished samples, read and appended to; NULL: none */
} hh_ruler_options;

typedef struct hh_ruler_sample {
    double score, depth;
    int64_t n_prompt, n_new;
    bool truncated; /* the answer was cut off by the limit, with values missing and no end token */
} hh_ruler_sample;

/* One model, task and length. n is 0 when the task does not fit; `why` says so then. */
typedef struct hh_ruler_cell {
    hh_ruler_sample *sample;
    int64_t n, n_truncated;
    double accuracy, error; /* mean score and its standard error */
    char *why;
} hh_ruler_cell;

typedef struct hh_ruler_result {
    hh_ruler_options options; /* as given: it must outlive the result */
    const hh_subject *subject;
    int64_t n_subjects, n_resumed; /* samples taken from the partial file */
    hh_ruler_cell *cell;           /* [n_subjects, n_tasks, n_lengths] */
} hh_ruler_result;

/* HH_EUNSUPPORTED when nothing fits. What was done stays in the partial file on any failure. */
hh_code hh_eval_ruler(hh_ruler_result *out, const hh_subject *subject, int64_t n_subjects, const hh_ruler_options *o,
                      hh_error *err);
void hh_ruler_result_release(hh_ruler_result *r);
const hh_ruler_cell *hh_ruler_cell_at(const hh_ruler_result *r, int64_t subject, int64_t task, int64_t length);

/* {"models": {name: {task: {length: accuracy}}}, "stderr": ..., "truncated": ..., "depths": ..., "skipped": [...],
 * ...}. New reference. */
json_t *hh_ruler_json(const hh_ruler_result *r);
void hh_ruler_table(const hh_ruler_result *r, hh_buf *out); /* for a terminal */
void hh_ruler_page(const hh_ruler_result *r, const char *title,
                   hh_buf *out); /* HTML: the table, a heat map of depth by length for each model and task */

/* RULER's score of a text: the share of the sample's answers that occur in it. */
double hh_ruler_score(const hh_needle_sample *s, const char *text);
#endif
