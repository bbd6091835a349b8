/* What is done with rows of logits; the tiles they come from are loss.cu's. */
#ifndef HH_OPS_CUDA_LOSS_ROWS_H
#define HH_OPS_CUDA_LOSS_ROWS_H

#include "ops/cuda/cuda.h"

/* Rows of one launch. Results and choices are found by token. */
typedef struct hh_loss_row_job {
    const int32_t *token; /* of every row; NULL: first, first + 1, ... */
    int64_t first;
    int64_t stride; /* elements between rows of logits: a multiple of 8, and rows begin at 16 bytes */
    int64_t V;
    float *nll, *kl; /* or NULL */
    int32_t *argmax;
    const int32_t *target;
    const float *weight;
    float scale, ce_scale;
    int32_t gradient, unused;
} hh_loss_row_job;

/* ops/loss.h's F1 (with a teacher also F2) of every row of z; with `gradient` B1 (B2) over z. zt may be HH_NONE. What
 * lies between a row's end and the next row may be written. */
void hh_cuda_loss_rows(hh_backend *be, hh_tensor z, hh_tensor zt, const hh_loss_row_job *job);

#endif
