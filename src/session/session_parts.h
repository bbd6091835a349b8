/* Inside a session: what session.c (life and appending), group.c, prompt.c, steps.c and sequence_file.c share. */
#ifndef HH_SESSION_SESSION_PARTS_H
#define HH_SESSION_SESSION_PARTS_H

#include "session/sample.h"

#include <stdatomic.h>

struct hh_group {
    const hh_model *m;
    hh_run *run;
    hh_snapshots *snapshots; /* NULL: nothing is kept */
    int64_t chunk, most;     /* tokens of a prompt, and sequences of a step, in one pass */
    hh_dtype kv_dtype;
    bool recurrent;          /* some head keeps a state, which cannot be taken back to an earlier position */
    hh_tensor logits;        /* [most, V] where the model lives */
    hh_candidate *candidate; /* [V] work of the sampler */
    hh_span *span;           /* [most] and so on: a step's batch */
    hh_cache **cache;
    hh_session **stepping;
    int64_t *index; /* in the caller's list */
    int32_t *ids;
    hh_arena arena, host;
};

/* Where the log-probabilities of a prompt's tokens go while it is read; the caller's. */
typedef struct hh_scoring {
    float *log_probability; /* [n - 1]; NULL: nobody wants them */
    int64_t n_top;
    int32_t *top_ids; /* [n - 1, n_top] */
    float *top;
} hh_scoring;

struct hh_session {
    hh_group *g;
    bool owns_group;
    hh_cache *cache;
    int32_t *ids;   /* [context] tokens read, and behind them what of a prompt is still to be */
    int64_t target; /* tokens of the prompt; less than or equal to the position when nothing is left to read */
    int64_t exact;  /* of the tokens read, so many as a prompt is read: what another prompt may begin with */
    int64_t reused; /* of the last prompt */
    bool has_next;
    hh_real *next; /* [V] logits behind the last token */
    hh_scoring scoring;
    atomic_bool cancelled;
    hh_progress_fn *on_progress;
    void *progress_context;
    hh_arena host;
};

/* Reads the next n of s->ids in one pass; `last`: and the logits behind them. *final as hh_forward has it. */
hh_code hh_session_read(hh_session *s, int64_t n, bool prompt, bool last, hh_tensor *final, hh_error *err);
/* HH_ENONFINITE when the logits in s->next are not finite; the session is reset then. */
hh_code hh_session_check_next(hh_session *s, hh_error *err);
/* HH_EINVAL when an id is none of the vocabulary. */
hh_code hh_session_check_ids(const hh_session *s, const int32_t *ids, int64_t n, hh_error *err);
/* Was this session told to stop? It is told once. */
bool hh_session_take_cancel(hh_session *s);

#endif
