/* Reference of the elementwise ops; see elementwise.h. All are bound by memory, so there is no faster version. */
#include "ops/elementwise.h"

#include "base/parallel.h"

#include <string.h>

enum { SEGMENT = 1 << 14 }; /* elements of an item; a multiple of every block */

/* A loop over contiguous pieces of y and, if it is there, x. */
typedef struct job {
    hh_tensor y, x;
    double value;
    const int32_t *rows;
    void (*body)(const struct job *j, char *y, const char *x, int64_t n);
    int64_t row, n_rows, cut; /* elements of a row; rows; pieces of a row */
} job;

static char *address(hh_tensor t, int64_t row, int64_t column) {
    return (char *)t.data + (size_t)row * hh_dtype_bytes(t.dtype, t.stride) + hh_dtype_bytes(t.dtype, column);
}

static void run_piece(void *context, int64_t item, int thread) {
    const job *j = context;
    (void)thread;
    if (j->cut > 1) {
        int64_t lo = item % j->cut * SEGMENT, hi = lo + SEGMENT < j->row ? lo + SEGMENT : j->row;
        j->body(j, address(j->y, item / j->cut, lo), j->x.data ? address(j->x, item / j->cut, lo) : NULL, hi - lo);
        return;
    }
    int64_t step = SEGMENT / j->row, lo = item * step, hi = lo + step < j->n_rows ? lo + step : j->n_rows;
    for (int64_t r = lo; r < hi; r++) j->body(j, address(j->y, r, 0), j->x.data ? address(j->x, r, 0) : NULL, j->row);
}

/* One long row where both tensors are dense. */
static void flatten(hh_tensor *t) {
    int64_t n = hh_tensor_count(*t);
    *t = (hh_tensor){.data = t->data, .dtype = t->dtype, .rank = 2, .dim = {1, n, 1, 1}, .stride = n};
}

static void run(hh_backend *be, job *j) {
    if (j->x.data) HH_ASSERT(hh_tensor_count(j->x) == hh_tensor_count(j->y));
    if (hh_tensor_count(j->y) == 0) return;
    if (hh_tensor_is_dense(j->y) && (!j->x.data || hh_tensor_is_dense(j->x))) {
        flatten(&j->y);
        if (j->x.data) flatten(&j->x);
    }
    if (j->x.data) HH_ASSERT(j->x.dim[0] == j->y.dim[0]);
    j->n_rows = j->y.dim[0];
    j->row = hh_tensor_row_count(j->y);
    j->cut = (j->row + SEGMENT - 1) / SEGMENT;
    int64_t step = j->cut > 1 ? 1 : SEGMENT / j->row;
    hh_parallel_for(be->n_threads, j->cut > 1 ? j->n_rows * j->cut : (j->n_rows + step - 1) / step, run_piece, j);
}

static void copy_piece(const job *j, char *y, const char *x, int64_t n) {
    hh_dtype to = j->y.dtype, from = j->x.dtype;
    if (to == from) {
        memcpy(y, x, hh_dtype_bytes(to, n));
    } else if (from == HH_DTYPE_REAL) {
        hh_quantise(to, (const hh_real *)x, n, y);
    } else if (to == HH_DTYPE_REAL) {
        hh_dequantise(from, x, n, (hh_real *)y);
    } else {
        hh_real part[256];
        for (int64_t i = 0; i < n; i += 256) {
            int64_t m = n - i < 256 ? n - i : 256;
            hh_dequantise(from, x + hh_dtype_bytes(from, i), m, part);
            hh_quantise(to, part, m, y + hh_dtype_bytes(to, i));
        }
    }
}

void hh_copy_reference(hh_backend *be, hh_tensor y, hh_tensor x) {
    run(be, &(job){.y = y, .x = x, .body = copy_piece});
}

static void fill_piece(const job *j, char *y, const char *x, int64_t n) {
    hh_real *to = (hh_real *)y, value = (hh_real)j->value;
    (void)x;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = value;
}

void hh_fill_reference(hh_backend *be, hh_tensor y, double value) {
    HH_ASSERT(y.dtype == HH_DTYPE_REAL);
    run(be, &(job){.y = y, .value = value, .body = fill_piece});
}

static void axpy_piece(const job *j, char *y, const char *x, int64_t n) {
    hh_real *restrict to = (hh_real *)y, alpha = (hh_real)j->value;
    const hh_real *restrict from = (const hh_real *)x;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] += alpha * from[i];
}

void hh_axpy_reference(hh_backend *be, hh_tensor y, double alpha, hh_tensor x) {
    HH_ASSERT(y.dtype == HH_DTYPE_REAL && x.dtype == HH_DTYPE_REAL);
    run(be, &(job){.y = y, .x = x, .value = alpha, .body = axpy_piece});
}

static void gather_row(void *context, int64_t i, int thread) {
    const job *j = context;
    (void)thread;
    HH_ASSERT(j->rows[i] >= 0 && j->rows[i] < j->x.dim[0]);
    memcpy(address(j->y, i, 0), address(j->x, j->rows[i], 0), hh_dtype_bytes(j->y.dtype, j->row));
}

void hh_gather_rows_reference(hh_backend *be, hh_tensor y, hh_tensor x, const int32_t *rows) {
    HH_ASSERT(y.dtype == x.dtype && hh_tensor_row_count(y) == hh_tensor_row_count(x));
    job j = {.y = y, .x = x, .rows = rows, .row = hh_tensor_row_count(y)};
    hh_parallel_for(hh_tensor_count(y) > SEGMENT ? be->n_threads : 1, y.dim[0], gather_row, &j);
}

/* Threads share columns, not rows: a row that occurs twice is added twice in order. */
static void scatter_columns(void *context, int64_t item, int thread) {
    const job *j = context;
    (void)thread;
    int64_t lo = item * 64, hi = lo + 64 < j->row ? lo + 64 : j->row;
    for (int64_t i = 0; i < j->x.dim[0]; i++) {
        HH_ASSERT(j->rows[i] >= 0 && j->rows[i] < j->y.dim[0]);
        hh_real *restrict to = hh_row(j->y, j->rows[i]);
        const hh_real *restrict from = hh_row(j->x, i);
#pragma omp simd
        for (int64_t c = lo; c < hi; c++) to[c] += from[c];
    }
}

void hh_scatter_add_rows_reference(hh_backend *be, hh_tensor y, hh_tensor x, const int32_t *rows) {
    HH_ASSERT(y.dtype == HH_DTYPE_REAL && x.dtype == HH_DTYPE_REAL);
    HH_ASSERT(hh_tensor_row_count(y) == hh_tensor_row_count(x));
    job j = {.y = y, .x = x, .rows = rows, .row = hh_tensor_row_count(y)};
    hh_parallel_for(hh_tensor_count(x) > SEGMENT ? be->n_threads : 1, (j.row + 63) / 64, scatter_columns, &j);
}
