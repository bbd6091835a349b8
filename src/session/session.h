/* Sessions: sequences of tokens over a model, each at one exact position.
 *
 * A session of its own (hh_session_new) is for one sequence: prefill in chunks of any size, decode, sampling. Sessions of
 * a group share what a pass needs and the snapshots of what was read: their prompts are given whole, of which only what
 * is new is read (hh_session_begin), and they step together (hh_sessions_step).
 */
#ifndef HH_SESSION_SESSION_H
#define HH_SESSION_SESSION_H

#include "base/rng.h"
#include "model/forward.h"
#include "session/snapshots.h"

typedef struct hh_session hh_session;
typedef struct hh_group hh_group;

typedef struct hh_session_options {
    int64_t context;   /* tokens the caches hold */
    int64_t chunk;     /* tokens of one prefill pass; 0: the backend's pass_tokens */
    hh_dtype kv_dtype; /* of hh_cache_type */
} hh_session_options;

size_t hh_session_bytes(const hh_config *c, const hh_backend *be, const hh_session_options *o);
hh_code hh_session_new(hh_session **out, const hh_model *m, const hh_session_options *o, hh_error *err);
void hh_session_free(hh_session *s);
void hh_session_reset(hh_session *s);
int64_t hh_session_position(const hh_session *s);
int64_t hh_session_context(const hh_session *s);
/* Appends tokens; afterwards hh_session_logits is the distribution of the next one, [V] hh_real. HH_EINVAL when the
 * context is full (both numbers) or an id is none of the model's: nothing has happened then. HH_ECANCELLED when
 * interrupted: between two chunks, hh_session_position says how much has been taken; inside of one the session is reset.
 * HH_ENONFINITE names layer and position; the session is reset. The same bits however a prompt is cut into calls and
 * chunks, so long as the cuts are at multiples of HH_GDN_CHUNK tokens. */
hh_code hh_session_eval(hh_session *s, const int32_t *ids, int64_t n, hh_error *err);
/* The same for one token that the model has made: equal to rounding, and faster. */
hh_code hh_session_step(hh_session *s, int32_t id, hh_error *err);
const hh_real *hh_session_logits(const hh_session *s); /* NULL when a prompt is not read to its end */

/* -- groups -- */

typedef struct hh_group_options {
    int64_t chunk; /* tokens of one pass of a prompt; 0: the backend's pass_tokens */
    int64_t most;  /* sequences of one pass of a step */
    hh_dtype kv_dtype;
    const hh_snapshots_options *snapshots; /* NULL: nothing is kept; kv_dtype in it is the group's */
} hh_group_options;

size_t hh_group_bytes(const hh_config *c, const hh_backend *be, const hh_group_options *o); /* without snapshots */
hh_code hh_group_new(hh_group **out, const hh_model *m, const hh_group_options *o, hh_error *err);
void hh_group_free(hh_group *g); /* after its sessions; NULL is accepted */
hh_snapshots *hh_group_snapshots(const hh_group *g);
size_t hh_group_session_bytes(const hh_config *c, int64_t context, hh_dtype kv_dtype);
hh_code hh_group_session(hh_session **out, hh_group *g, int64_t context, hh_error *err);

/* -- prompts (prompt.c) -- */

/* Makes ids[0, n) what the session is to have read: keeps what it, or a snapshot, has of them. What it has is taken only
 * where the bits are those of a prompt read at once: tokens that were read as part of a prompt, up to a multiple of 64; a
 * model with recurrent heads must stand there already. HH_EINVAL, and nothing has happened, when n is 0, more than the
 * context, or an id is none of the vocabulary. */
hh_code hh_session_begin(hh_session *s, const int32_t *ids, int64_t n, hh_error *err);
/* Reads one chunk of it; *left tokens remain. Chunks end at multiples of 64, at the positions where snapshots are kept
 * (256, 512, 1024, ... and the last multiple of 64) and at the prompt's end. HH_ECANCELLED: what was read stays, and a
 * prompt that begins like it goes on from there. */
hh_code hh_session_advance(hh_session *s, int64_t *left, hh_error *err);
int64_t hh_session_reused(const hh_session *s); /* tokens of the last prompt that were not read again */

/* As hh_session_begin, but nothing that is known is used, and hh_session_advance writes the log-probability of each token
 * but the first given those before it, [n - 1], and, with n_top > 0, of each place the n_top most likely ids and their
 * log-probabilities, [n - 1, n_top], likeliest first. The places are the caller's, until the prompt is read or another
 * begins. */
hh_code hh_session_begin_score(hh_session *s, const int32_t *ids, int64_t n, float *log_probability, int64_t n_top,
                               int32_t *top_ids, float *top, hh_error *err);
/* log of the softmax of logits [vocab] at id: logit - log sum exp, in double. */
double hh_log_sum_exp(const hh_real *logits, int64_t vocab);

/* From any thread: the prompt being read, or the next step, ends with HH_ECANCELLED. A prompt that begins later does not
 * know of it. */
void hh_session_cancel(hh_session *s);
/* After every chunk of a prompt; false cancels. NULL: nobody listens. */
void hh_session_on_progress(hh_session *s, hh_progress_fn *f, void *context);

/* -- steps (steps.c) -- */

/* Appends ids[i] to s[i], all of one group, as hh_session_step does, in one pass for as many as the group takes at once.
 * No row depends on the others. codes [n], when not NULL, tells how each fared: HH_EINVAL (its context is full, the id is
 * none, its prompt is not read to the end, it was named before) and HH_ECANCELLED leave it as it was; HH_ENONFINITE
 * resets it. Returns the first failure, with its sentence. */
hh_code hh_sessions_step(hh_session *const *s, const int32_t *ids, int64_t n, hh_code *codes, hh_error *err);

/* -- files (sequence_file.c) -- */

/* Writes what the session has read to one file, aside and renamed; and back. Loading fails with HH_EFORMAT when the file
 * is damaged, HH_EUNSUPPORTED when it is of another model, HH_EINVAL (both numbers) when the context is too small: the
 * session is as it was, but after a fault in the payload it is reset. */
hh_code hh_session_save(const hh_session *s, const char *path, hh_error *err);
hh_code hh_session_load(hh_session *s, const char *path, hh_error *err);

/* -- sampling -- */

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
