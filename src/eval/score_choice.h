/* Choice items (data/choice.h) scored by log-likelihood, by lm-evaluation-harness's definitions:
 * acc: the option of highest log-likelihood is the right one; acc_norm: of highest log-likelihood a character of the
 * choice as written; acc_bytes: a byte. WinoGrande-like items compare one continuation after several contexts (acc
 * alone). LAMBADA-like items: acc is the share whose every token is the most likely one, and perplexity exp(-mean
 * log-likelihood) of the continuations. */
#ifndef HH_EVAL_SCORE_CHOICE_H
#define HH_EVAL_SCORE_CHOICE_H
#include "data/choice.h"
#include "eval/subject.h"

typedef struct hh_rate {
    double value, error; /* and its standard error */
} hh_rate;

typedef struct hh_choice_result {
    hh_choice_kind kind;
    int64_t n, n_truncated; /* items; of which some context was cut to the model's length */
    hh_rate acc, acc_norm, acc_bytes, perplexity;
    double **loglik; /* [n] of each item's options */
} hh_choice_result;

typedef struct hh_choice_options {
    int64_t max_length; /* 0: the model's own */
    int64_t batch;      /* tokens of one forward; 0: 2048 */
} hh_choice_options;

hh_code hh_eval_choice(hh_choice_result *out, const hh_subject *s, const hh_choice_set *set, const hh_choice_options *o,
                       hh_error *err);
void hh_choice_result_release(hh_choice_result *r);
json_t *hh_choice_json(const hh_choice_result *r); /* {"acc", "acc_stderr", "acc_norm", ..., "n", "truncated"} */
json_t *hh_choice_items_json(const hh_choice_result *r,
                             const hh_choice_set *set); /* [[log-likelihood of each option], ...] */
#endif
