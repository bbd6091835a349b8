/* Perplexity of a text in windows that do not overlap: exp(-mean log-likelihood) over all tokens but the first of each
 * window, which nothing predicts. The text is encoded in one piece, special tokens in it recognised, nothing added:
 * what the usual Hugging Face recipe computes with its stride equal to its length. */
#ifndef HH_EVAL_PERPLEXITY_H
#define HH_EVAL_PERPLEXITY_H
#include "eval/subject.h"

typedef struct hh_perplexity {
    double perplexity, nll, nll_error;   /* nats a token, and the standard error over windows' means */
    int64_t length, n_windows, n_tokens; /* scored */
} hh_perplexity;

/* At most `limit` windows (0: all) of `length` tokens (0: the model's own, at most 2048). HH_EINVAL for a text of less
 * than two tokens. */
hh_code hh_eval_perplexity(hh_perplexity *out, const hh_subject *s, const char *text, size_t len, int64_t length,
                           int64_t limit, hh_error *err);
json_t *hh_perplexity_json(const hh_perplexity *p);
#endif
