/* Log-likelihoods of given continuations, many sequences at a time.
 *
 * Sequences of one group share what they have in common: it runs once, then each goes on from a copy of the cache. A
 * sequence that lies wholly in the common part costs nothing more. Logits are made only where a scored token is
 * predicted, some rows at a time.
 */
#ifndef HH_EVAL_LOGLIK_H
#define HH_EVAL_LOGLIK_H
#include "model/forward.h"

typedef struct hh_scored {
    const int32_t *ids; /* [n] */
    int64_t n, first;   /* tokens [first, n) are scored, each given all before it; first >= 1 */
    int64_t group;      /* neighbours with the same number share their beginning */
    double loglik;      /* out: natural logarithm, summed */
    bool greedy;        /* out: every scored token is the most likely one (ties: the lowest id) */
} hh_scored;

typedef struct hh_loglik hh_loglik;
/* max_length: tokens of the longest sequence; max_group: sequences of the largest group; batch: tokens of one forward,
 * at least (it is raised to max_length); kv_dtype: of the caches. Unless it is the activations' type, in which a cache
 * changes nothing, every sequence is read through a cache. */
hh_code hh_loglik_new(hh_loglik **out, const hh_model *m, int64_t max_length, int64_t max_group, int64_t batch,
                      hh_dtype kv_dtype, hh_error *err);
void hh_loglik_free(hh_loglik *l);
/* Scores s[0, n). Called again for the next ones; HH_ECANCELLED when interrupted, HH_ENONFINITE when a logit is not
 * finite. */
hh_code hh_loglik_score(hh_loglik *l, hh_scored *s, int64_t n, hh_error *err);
#endif
