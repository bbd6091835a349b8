/* Reference embedding, fast enough for every CPU; see embedding.h. */
#include "ops/embedding.h"

#include "base/parallel.h"

enum { TOKENS = 64, COLUMNS = 64, SMALL = 1 << 14 /* numbers that are not worth a second thread */ };

typedef struct job {
    hh_tensor y, w;
    const int32_t *ids;
} job;

static void check(hh_tensor y, hh_tensor w, const int32_t *ids) {
    HH_ASSERT(y.dtype == HH_DTYPE_REAL && hh_tensor_row_count(y) == w.dim[1]);
    for (int64_t t = 0; t < y.dim[0]; t++) HH_ASSERT(ids[t] >= 0 && ids[t] < w.dim[0]);
}

static int threads_for(const hh_backend *be, hh_tensor y) {
    return hh_tensor_count(y) > SMALL ? be->n_threads : 1;
}

static void copy_rows(void *context, int64_t item, int thread) {
    const job *j = context;
    (void)thread;
    size_t row = hh_dtype_bytes(j->w.dtype, j->w.stride);
    int64_t hi = (item + 1) * TOKENS < j->y.dim[0] ? (item + 1) * TOKENS : j->y.dim[0];
    for (int64_t t = item * TOKENS; t < hi; t++)
        hh_dequantise(j->w.dtype, (const char *)j->w.data + (size_t)j->ids[t] * row, j->w.dim[1],
                      hh_row(j->y, t)); /* F1 */
}

void hh_embedding_fwd_reference(hh_backend *be, hh_tensor y, hh_tensor w, const int32_t *ids) {
    check(y, w, ids);
    job j = {y, w, ids};
    hh_parallel_for(threads_for(be, y), (y.dim[0] + TOKENS - 1) / TOKENS, copy_rows, &j);
}

/* Threads share columns, not tokens: a token that occurs twice is added twice in order. */
static void add_columns(void *context, int64_t item, int thread) {
    const job *j = context;
    (void)thread;
    int64_t lo = item * COLUMNS, hi = lo + COLUMNS < j->w.dim[1] ? lo + COLUMNS : j->w.dim[1];
    for (int64_t t = 0; t < j->y.dim[0]; t++) {
        hh_real *restrict to = hh_row(j->w, j->ids[t]);
        const hh_real *restrict from = hh_row(j->y, t);
#pragma omp simd
        for (int64_t c = lo; c < hi; c++) to[c] += from[c]; /* B1 */
    }
}

void hh_embedding_bwd_reference(hh_backend *be, hh_tensor dw, hh_tensor dy, const int32_t *ids) {
    HH_ASSERT(dw.dtype == HH_DTYPE_REAL);
    check(dy, dw, ids);
    job j = {dy, dw, ids};
    hh_parallel_for(threads_for(be, dy), (dw.dim[1] + COLUMNS - 1) / COLUMNS, add_columns, &j);
}
