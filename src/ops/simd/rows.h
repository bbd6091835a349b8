/* Loops over the rows of a batch for the ops that treat every row by itself: in pieces worth a thread's while (a few
 * tokens never start a second thread), and sums over rows that do not depend on the number of threads. */
#ifndef HH_OPS_SIMD_ROWS_H
#define HH_OPS_SIMD_ROWS_H

#include "ops/shape.h"
#include "ops/simd/simd.h"

#include "base/parallel.h"

#define HH_ROW_GRAIN 16384 /* elements in a piece */
#define HH_SUM_PARTS 16

/* Rows [lo, hi); `partial` is the piece's own sums, zeroed before (NULL without sums). */
typedef void hh_rows_body(const void *context, int64_t lo, int64_t hi, float *partial);

typedef struct hh_rows_job {
    hh_rows_body *body;
    const void *context;
    int64_t rows, parts, n_sums;
    float *partial; /* [parts, n_sums] */
} hh_rows_job;

static inline void hh_rows_piece(void *context, int64_t i, int thread) {
    const hh_rows_job *job = context;
    (void)thread;
    job->body(job->context, job->rows * i / job->parts, job->rows * (i + 1) / job->parts,
              job->partial ? job->partial + i * job->n_sums : NULL);
}

/* `elements`: what a row costs, in elements of one pass. */
static inline void hh_over_rows(hh_backend *be, int64_t rows, int64_t elements, hh_rows_body *body,
                                const void *context) {
    if (rows <= 0) return;
    const int64_t want = rows * elements / HH_ROW_GRAIN;
    hh_rows_job job = {.body = body,
                       .context = context,
                       .rows = rows,
                       .parts = want < 1      ? 1
                                : want > rows ? rows
                                              : want};
    hh_parallel_for(be->n_threads, job.parts, hh_rows_piece, &job);
}

/* The same with n_sums numbers that every piece adds up for itself, then added to `sums` piece after piece. */
static inline void hh_over_rows_summing(hh_backend *be, int64_t rows, int64_t elements, int64_t n_sums, float *sums,
                                        hh_rows_body *body, const void *context) {
    if (rows <= 0) return;
    const size_t mark = be->scratch.used;
    int64_t parts = rows * elements / HH_ROW_GRAIN;
    parts = parts < 1 ? 1 : parts > HH_SUM_PARTS ? HH_SUM_PARTS : parts;
    hh_rows_job job = {
        .body = body, .context = context, .rows = rows, .parts = parts < rows ? parts : rows, .n_sums = n_sums};
    job.partial = hh_arena_alloc(&be->scratch, sizeof(float) * (size_t)(job.parts * n_sums));
    memset(job.partial, 0, sizeof(float) * (size_t)(job.parts * n_sums));
    hh_parallel_for(be->n_threads, job.parts, hh_rows_piece, &job);
    for (int64_t p = 0; p < job.parts; p++)
        for (int64_t i = 0; i < n_sums; i++) sums[i] += job.partial[p * n_sums + i];
    hh_arena_reset(&be->scratch, mark);
}

/* A whole vector, or the `left` < HH_VW elements that are left. */
static inline hh_vf hh_vload_upto(const float *p, int64_t left) {
    return left >= HH_VW ? hh_vload(p) : hh_vload_n(p, left);
}
static inline void hh_vstore_upto(float *p, hh_vf a, int64_t left) {
    if (left >= HH_VW)
        hh_vstore(p, a);
    else
        hh_vstore_n(p, a, left);
}

#endif
