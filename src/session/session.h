/* A session: one sequence of tokens over a model, at one exact position; prefill in chunks of any size, decode,
 * sampling. */
#ifndef HH_SESSION_SESSION_H
#define HH_SESSION_SESSION_H

#include "base/rng.h"
#include "model/forward.h"

typedef struct hh_session hh_session;

typedef struct hh_session_options {
    int64_t context;   /* tokens the caches hold */
    int64_t chunk;     /* tokens of one prefill pass; 0: the backend's pass_tokens */
    hh_dtype kv_dtype; /* F32 or BF16; the backend's `activation` is the natural one */
} hh_session_options;

size_t hh_session_bytes(const hh_config *c, const hh_backend *be, const hh_session_options *o);
hh_code hh_session_new(hh_session **out, const hh_model *m, const hh_session_options *o, hh_error *err);
void hh_session_free(hh_session *s);
void hh_session_reset(hh_session *s);
int64_t hh_session_position(const hh_session *s);
/* Appends tokens; afterwards hh_session_logits is the distribution of the next one, [V] hh_real. HH_EINVAL when the
 * context is full (both numbers) or an id is none of the model's: nothing has happened then. HH_ECANCELLED when
 * interrupted: between two chunks, hh_session_position says how much has been taken; inside of one the session is reset. HH_ENONFINITE names layer and position;
 * the session is reset. The same bits however a prompt is cut into calls and chunks, so long as the cuts are at multiples
 * of HH_GDN_CHUNK tokens. */
hh_code hh_session_eval(hh_session *s, const int32_t *ids, int64_t n, hh_error *err);
/* The same for one token that the model has made: equal to rounding, and faster. */
hh_code hh_session_step(hh_session *s, int32_t id, hh_error *err);
const hh_real *hh_session_logits(const hh_session *s);

typedef struct hh_sampling {
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: off */
    double top_p;       /* 1: off */
    double min_p;       /* 0: off */
} hh_sampling;
/* Draws a token: temperature, then the top_k most likely, of these the smallest set with top_p of the mass, of these
 * what has at least min_p of the most likely one's probability. Ties go to the lower id. */
int32_t hh_sample(const hh_real *logits, int64_t vocab, const hh_sampling *s, hh_rng *rng);

/* Called for every new token; returning false stops. */
typedef bool hh_token_fn(void *context, int32_t id);
/* Generates up to max_new tokens behind what hh_session_eval has taken; stops when an end id has been made, which is
 * not handed to `on_token`, or when the context is full. *n_new counts tokens made, the end id too; the last of them is
 * not yet appended. */
hh_code hh_session_generate(hh_session *s, int64_t max_new, const int32_t *end_ids, int64_t n_end,
                            const hh_sampling *sampling, hh_rng *rng, hh_token_fn *on_token, void *context,
                            int64_t *n_new, hh_error *err);

#endif
