/* Prompts answered greedily, several at once: a group whose sessions read their prompts one after another and then step
 * together. An answer is the one that its prompt has alone, bit for bit. */
#ifndef HH_SESSION_MANY_H
#define HH_SESSION_MANY_H

#include "session/session.h"

typedef struct hh_many hh_many;

#define HH_MANY_MOST 16

/* How many sequences of `context` tokens are worth it: the backend's decode_tokens, or what fits at once into half of the
 * memory that is free (1 GiB where the backend does not say); 1 to HH_MANY_MOST. */
int64_t hh_many_fitting(const hh_model *m, int64_t context, hh_dtype kv_dtype);
hh_code hh_many_new(hh_many **out, const hh_model *m, int64_t n_sequences, int64_t context, hh_dtype kv_dtype,
                    hh_error *err);
void hh_many_free(hh_many *s);

typedef struct hh_request {
    const int32_t *ids; /* the prompt, [n], n > 0 */
    int64_t n, max_new;
    hh_token_fn *on_token; /* as in hh_session_generate */
    void *context;
    int64_t n_new; /* out: tokens made, an end id too */
} hh_request;

/* Answers up to n_sequences requests from their beginnings. HH_EINVAL when a prompt does not fit or has an id that is none
 * of the model's, HH_ECANCELLED, HH_ENONFINITE. */
hh_code hh_many_answer(hh_many *s, hh_request *r, int64_t n, const int32_t *end_ids, int64_t n_end, hh_error *err);

#endif
