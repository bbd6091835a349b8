/* The summary of a comparison, gathered over many runs of eval: one file that every run adds its figures to.
 *
 *   {"models": {name: {"tokens": n, "ruler": {task: {length: accuracy}}, "choice": {file: accuracy}, "perplexity": x}}}
 *
 * `tokens` are those the model was trained on since its conversion (train/history.h); a choice file's accuracy is
 * acc_norm where there is one.
 */
#ifndef HH_EVAL_SUMMARY_H
#define HH_EVAL_SUMMARY_H
#include "eval/subject.h"

/* Adds the results of one measure ("ruler", "choice", "perplexity": an object with "models" by name) to the file, which
 * is made when it is not there. What other runs wrote stays, also of runs at the same time. HH_EFORMAT when the file holds something else. */
hh_code hh_summary_add(const char *path, const char *measure, const json_t *results, const hh_subject *subject,
                       int64_t n_subjects, hh_error *err);
#endif
