/* One optimizer step: tokens, a stage's loss over micro-batches, clipping, AdamW, for one or several students at once.
 *
 * Students see the same batches and share one forward of the teacher; that is the dear half of a distillation. Weights
 * are float32 masters (HH_LOAD_REAL); moments exist only for what the stage trains. A step allocates nothing.
 *
 * With several processes each computes its share of the step's sequences. Every range of trained numbers is cut into
 * one slice a rank: its owner gets the slice's gradients summed over the ranks, keeps its moments (no other rank does)
 * and updates its weights, which then go to all. All ranks call the same functions of a trainer in the same order, and
 * fail together.
 */
#ifndef HH_TRAIN_TRAINER_H
#define HH_TRAIN_TRAINER_H

#include "model/forward.h"
#include "tensor/comm.h"
#include "train/schedule.h"
#include "train/trainset.h"

typedef struct hh_stage hh_stage;
typedef struct hh_trainer hh_trainer;

extern const hh_stage hh_stage_pretrain, hh_stage_align, hh_stage_distill, hh_stage_extend;
#define HH_STAGE_CHOICES "align|distill|extend|pretrain"
const hh_stage *hh_stage_find(const char *name); /* NULL: none of that name */

#define HH_MAX_STUDENTS 4

typedef struct hh_trainer_options {
    const hh_stage *stage;
    hh_trainset_options data; /* `vocab` is set by hh_trainer_new */
    hh_schedule schedule;
    double beta1, beta2, eps, weight_decay;
    double clip;      /* largest global norm of the gradient; 0: none */
    double ce_weight; /* distill: share of next-token cross-entropy */
    /* Most tokens of a micro-batch that is recorded when its shape comes again, where the backend can; a larger one keeps a
     * GPU busy for longer than its launches take. 0: none. */
    int64_t recorded_tokens;
    hh_comm *comm; /* the caller's; NULL: one process */
} hh_trainer_options;

/* The stage's published defaults for a run of `steps`; the warm-up is at most a tenth of it. Data is left empty. */
hh_trainer_options hh_trainer_defaults(const hh_stage *stage, int64_t steps);

/* Numbers [at, at + n) of a model's flat block that train, behind `first` others. Moments of the slice that this rank
 * owns, [at + own, at + own + n_own), stand at `moment` of its arrays. */
typedef struct hh_trained_range {
    int64_t at, n, first;
    int64_t own, n_own, moment;
} hh_trained_range;

typedef struct hh_student {
    hh_model *model; /* the caller's */
    hh_run *run;
    hh_gradients *gradients;
    hh_trained_range *range;
    int64_t n_ranges, n_trained, n_own;
    hh_tensor m, v; /* [n_own] moments */
    hh_arena arena;
    double loss, grad_norm; /* of the step in progress, then of the last one; the norm before clipping */
} hh_student;

struct hh_trainer {
    hh_trainer_options o;
    hh_backend *be;
    hh_comm *comm, alone;
    const hh_model *teacher; /* the caller's; NULL: the stage needs none */
    hh_run *teacher_run;
    hh_student student[HH_MAX_STUDENTS];
    int64_t n_students;
    hh_trainset data;
    int64_t step;              /* steps done */
    hh_span *span;             /* of a micro-batch */
    hh_tensor nll, kl, mse;    /* [n_students * micro], the same, [n_students] */
    hh_tensor dx, stream, out; /* [micro, C] */
    hh_real *host;             /* [micro] losses where the CPU reads them */
    uint64_t met[8];           /* shapes of the latest micro-batches: those that come again are recorded */
    int64_t n_met;
    bool recorded; /* one of them has been */
    hh_arena arena, activations;
};

/* What one step did. */
typedef struct hh_step_report {
    int64_t step; /* from 0 */
    int64_t n_tokens;
    double lr, seconds;
} hh_step_report;

/* Students are of HH_LOAD_REAL and share the teacher's backend. HH_EINVAL names what does not fit together. */
hh_code hh_trainer_new(hh_trainer **out, const hh_trainer_options *o, const hh_model *teacher, hh_model *const *student,
                       int64_t n_students, hh_error *err);
void hh_trainer_free(hh_trainer *t);

/* Bytes of what hh_trainer_new would place for one student, by configurations alone (`plan`). */
typedef struct hh_trainer_sizes {
    size_t gradients, moments; /* of what the stage trains (a GPU has gradients of all) */
    size_t activations;        /* the student's, and a step's losses and streams */
    size_t teacher;            /* its activations */
} hh_trainer_sizes;
hh_trainer_sizes hh_trainer_measure(const hh_trainer_options *o, const hh_backend *be, const hh_config *teacher,
                                    const hh_config *student);

/* Takes step t->step. HH_ENONFINITE names step and sequences, HH_ECANCELLED after Ctrl-C; the weights then are what
 * they were before. */
hh_code hh_trainer_step(hh_trainer *t, hh_step_report *out, hh_error *err);

#endif
