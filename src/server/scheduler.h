/* The thread that computes: which answers are being read or made, a chunk and a step at a time (scheduler.c), and what
 * is done for one of them (answers.c). */
#ifndef HH_SERVER_SCHEDULER_H
#define HH_SERVER_SCHEDULER_H

#include "server/server_job.h"
#include "server/server.h"

#include <pthread.h>

typedef struct hh_server_stats {
    int64_t requests, refused, cancelled, failed, finished;
    int64_t prompt_tokens, cached_tokens, made_tokens;
    double busy_seconds;
} hh_server_stats;

typedef struct hh_scheduler {
    hh_engine *engine;
    const hh_server_options *o;
    pthread_mutex_t lock;
    pthread_cond_t wanted; /* there is something to do */
    /* under the lock */
    hh_job *arrived, **arrived_end;
    int64_t n_under_way;
    bool stopping; /* take nothing new; end when nothing is left */
    hh_server_stats stats;
    /* of both threads */
    atomic_int n_busy; /* slots in use */
    /* the computing thread's own */
    hh_job *jobs;       /* admitted, oldest first */
    hh_sequence **slot; /* [slots], made when first needed */
    hh_answer **answer; /* [slots] who has it, or NULL */
    int64_t turn;       /* whose chunk is read next */
    int64_t given;      /* how often a slot was given or a job admitted */
    hh_sequence **step; /* [slots] work: the sequences of a step */
    hh_answer **step_of;
    int32_t *step_id;
    hh_code *step_code;
} hh_scheduler;

void hh_scheduler_init(hh_scheduler *s, hh_engine *e, const hh_server_options *o);
void hh_scheduler_release(hh_scheduler *s);
/* Hands a job over (the scheduler takes a reference). False: the queue is full, or the server is stopping. */
bool hh_scheduler_take(hh_scheduler *s, hh_job *j);
/* Wakes whoever sends the job's bytes. Under the lock. */
void hh_job_wake(hh_job *j); /* http.c */
/* Ends a job in every way there is, and forgets it: neither it nor its answers may be touched afterwards. */
void hh_job_finish(hh_scheduler *s, hh_job *j, int status);
/* Computes until hh_scheduler_stop, and then until nothing is left. */
void hh_scheduler_run(hh_scheduler *s);
void hh_scheduler_stop(hh_scheduler *s);

/* -- one answer (answers.c) -- */

/* When a code is returned, the request is to fail with it. Otherwise the answer, and with the last one the job, may be
 * finished and gone after was_read and draw. */
hh_code hh_answer_make_sampler(hh_scheduler *s, hh_answer *a, hh_error *err);
hh_code hh_answer_begin(hh_scheduler *s, hh_answer *a, hh_sequence *sequence, hh_error *err);
hh_code hh_answer_was_read(hh_scheduler *s, hh_answer *a, hh_error *err); /* its prompt, to the end */
hh_code hh_answer_draw(hh_scheduler *s, hh_answer *a, hh_error *err);     /* a token, from the sequence's logits */
void hh_answer_leave(hh_scheduler *s, hh_answer *a);                      /* its slot; nothing more is made */

#endif
