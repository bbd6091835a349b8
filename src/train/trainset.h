/* The tokens of one optimizer step: sequences, targets and weights, cut into micro-batches that bound memory.
 *
 * A step's tokens are a pure function of (seed, step): a run that resumes sees what it would have seen.
 */
#ifndef HH_TRAIN_TRAINSET_H
#define HH_TRAIN_TRAINSET_H

#include "base/memory.h"
#include "ops/ops.h"
#include "tensor/comm.h"

/* Fills one sequence; the shape of hh_mixture_row. flags: HH_TOKEN_ANSWER on tokens of an answer. */
typedef hh_code hh_sequence_fn(void *context, int64_t step, int64_t row, int64_t n_rows, int64_t length, int32_t *ids,
                               uint8_t *flags, hh_error *err);

/* Rows of a mixture of texts and needle documents; the context is the hh_mixture (data/corpus.h). */
hh_sequence_fn hh_sequence_from_mixture;

typedef struct hh_trainset_options {
    int64_t sequences;     /* in a step */
    const int64_t *length; /* [n_lengths] every sequence draws one of them */
    int64_t n_lengths;
    int64_t micro_tokens;     /* of one forward and backward; at least the longest length */
    int64_t vocab;            /* ids at or above it are refused */
    double background_weight; /* loss weight of tokens that answer nothing, in sequences that hold an answer; 1: all
                                 alike, 0: left out */
    uint64_t seed;
    int n_threads; /* that make sequences: `fill` is called from them at once; set by hh_trainer_new */
    hh_sequence_fn *fill;
    void *context;
} hh_trainset_options;

typedef struct hh_trainset {
    hh_trainset_options o;
    int64_t *length; /* [n_lengths] copied */
    int64_t step;    /* what the arrays hold; -1: nothing yet */
    int64_t n_tokens;
    int64_t *lo;           /* [sequences + 1] first token of each sequence */
    bool *failed;          /* [sequences] */
    int64_t first, end;    /* sequences of this rank's share; the arrays below hold theirs alone */
    int32_t *ids, *target; /* [n_tokens]; target -1: none */
    float *weight;         /* [n_tokens] */
    uint8_t *flags;
    int64_t n_targets;    /* rows of all ranks with a target */
    double target_weight; /* sum of their weights */
} hh_trainset;

hh_code hh_trainset_init(hh_trainset *s, const hh_trainset_options *o, hh_error *err);
void hh_trainset_release(hh_trainset *s);
/* Makes the tokens of this rank's share of a step. All ranks call and fail together; the error names step and sequence.
 */
hh_code hh_trainset_make(hh_trainset *s, int64_t step, hh_comm *c, hh_error *err);
/* Sequences from `first` of the share to the result are as many as fit into a micro-batch; spans[] gets theirs, from 0.
 */
int64_t hh_trainset_micro(const hh_trainset *s, int64_t first, hh_span *spans);
int64_t hh_trainset_max_spans(const hh_trainset_options *o);
int64_t hh_trainset_longest(const hh_trainset_options *o);
/* Tokens of an average step. */
double hh_trainset_mean_tokens(const hh_trainset_options *o);

#endif
