/* The sampler with the caller's work memory, so that decoding allocates nothing. */
#ifndef HH_SESSION_SAMPLE_H
#define HH_SESSION_SAMPLE_H

#include "session/session.h"

typedef struct hh_candidate {
    double weight; /* exp((logit - largest) / temperature): 1 for the most likely */
    int32_t id;
} hh_candidate;

/* hh_sample; work [vocab]. */
int32_t hh_sample_with(const hh_real *logits, int64_t vocab, const hh_sampling *s, hh_rng *rng, hh_candidate *work);

/* Is every one of them? */
bool hh_logits_are_finite(const hh_real *logits, int64_t vocab);

#endif
