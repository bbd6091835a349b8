/* A training run as a user sees it: a directory that fills, a loop that can be killed at any moment and continues bit
 * for bit.
 *
 * The directory holds state.bin, and every student has a checkpoint directory of its own with a log.jsonl; with one
 * student the two are the same directory. Checkpoints are written before the state, so that a finished state means
 * finished checkpoints. With several processes (hh_trainer_options.comm) all call; the first one writes, and a run
 * continues with any number of them.
 */
#ifndef HH_TRAIN_JOB_H
#define HH_TRAIN_JOB_H

#include "train/trainer.h"

typedef struct hh_job {
    hh_trainer *trainer;
    const char *dir;                          /* of state.bin */
    const char *student_dir[HH_MAX_STUDENTS]; /* where each student's checkpoint and log go */
    const char *tokenizer_from;               /* a checkpoint path whose tokenizer goes along; NULL: none */
    hh_dtype dtype;                           /* of the written matrices: F32 or BF16 */
    int64_t save_every;                       /* steps; 0: at the end only */
    const char *settings;                     /* "name value" lines that must be equal for a run to be continued */
    /* Called after every step; NULL: nobody wants to know. */
    void (*on_step)(void *context, const hh_step_report *r, const hh_trainer *t);
    void *context;
} hh_job;

typedef struct hh_job_result {
    int64_t first_step, steps; /* where it continued, and how far it is now */
    int64_t n_tokens;
    double seconds;
} hh_job_result;

/* Runs or continues until the schedule's last step. Ctrl-C saves and returns HH_ECANCELLED; a non-finite loss or
 * gradient returns HH_ENONFINITE and leaves the last saved state. A directory that holds a checkpoint of something else
 * is refused. */
hh_code hh_job_run(const hh_job *j, hh_job_result *out, hh_error *err);

#endif
