/* Reference linear map; see linear.h. Loops are ordered so that the innermost one runs over K in a vector. */
#include "ops/linear.h"

#include "base/parallel.h"

enum { ROWS = 16, TOKENS = 4 }; /* of an item; at a time */

void hh_linear_check(hh_tensor y, hh_tensor x, const hh_linear *w) {
    HH_ASSERT(x.dtype == HH_DTYPE_REAL && y.dtype == HH_DTYPE_REAL);
    HH_ASSERT(x.dim[0] == y.dim[0]);
    HH_ASSERT(hh_tensor_row_count(x) == w->k && hh_tensor_row_count(y) == w->n);
    HH_ASSERT(w->n_parts >= 0 && w->n_parts <= HH_MAX_PARTS);
    int64_t n = 0;
    for (int p = 0; p < w->n_parts; p++) {
        const hh_part *part = &w->part[p];
        HH_ASSERT(part->w.dim[1] == w->k);
        HH_ASSERT(!part->bias.data || (part->bias.dtype == HH_DTYPE_REAL && part->bias.dim[0] == part->w.dim[0]));
        n += part->w.dim[0];
    }
    HH_ASSERT(n == w->n);
}

int64_t hh_linear_item_count(const hh_linear *w, int64_t step) {
    int64_t n = 0;
    for (int p = 0; p < w->n_parts; p++) n += (w->part[p].w.dim[0] + step - 1) / step;
    return n;
}

hh_linear_item hh_linear_item_at(const hh_linear *w, int64_t step, int64_t i) {
    int64_t column = 0;
    for (int p = 0;; p++) {
        HH_ASSERT(p < w->n_parts);
        int64_t n = w->part[p].w.dim[0], items = (n + step - 1) / step;
        if (i < items) {
            int64_t lo = i * step, hi = lo + step < n ? lo + step : n;
            return (hh_linear_item){&w->part[p], lo, hi, column + lo};
        }
        i -= items;
        column += n;
    }
}

typedef struct job {
    hh_backend *be;
    hh_tensor y, x; /* or dx, dy */
    const hh_linear *w;
    bool accumulate;
    int64_t step; /* tokens of an item */
} job;

/* Row r of w as hh_real: where it is, or widened into `buffer`. */
static const hh_real *weight_row(hh_tensor w, int64_t r, hh_real *buffer) {
    if (w.dtype == HH_DTYPE_REAL) return hh_row(w, r);
    const char *from = (const char *)w.data + (size_t)r * hh_dtype_bytes(w.dtype, w.stride);
    hh_dequantise(w.dtype, from, w.dim[1], buffer);
    return buffer;
}

static hh_real *take_buffer(hh_backend *be, int thread, int64_t n) {
    return hh_arena_alloc(&be->thread_scratch[thread], (size_t)n * sizeof(hh_real));
}

/* F1 for one weight row and up to TOKENS tokens from t on. */
static void dot_tokens(hh_real *out, hh_tensor x, int64_t t, int64_t n, const hh_real *w) {
    int64_t k = x.dim[1] * x.dim[2] * x.dim[3];
    if (n == TOKENS) {
        const hh_real *x0 = hh_row(x, t), *x1 = hh_row(x, t + 1), *x2 = hh_row(x, t + 2), *x3 = hh_row(x, t + 3);
        hh_real s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
        for (int64_t i = 0; i < k; i++) {
            s0 += x0[i] * w[i];
            s1 += x1[i] * w[i];
            s2 += x2[i] * w[i];
            s3 += x3[i] * w[i];
        }
        out[0] = s0, out[1] = s1, out[2] = s2, out[3] = s3;
        return;
    }
    for (int64_t j = 0; j < n; j++) {
        const hh_real *xj = hh_row(x, t + j);
        hh_real s = 0;
#pragma omp simd reduction(+ : s)
        for (int64_t i = 0; i < k; i++) s += xj[i] * w[i];
        out[j] = s;
    }
}

static void forward_rows(void *context, int64_t item, int thread) {
    const job *j = context;
    hh_arena *scratch = &j->be->thread_scratch[thread];
    size_t mark = scratch->used;
    hh_real *buffer = take_buffer(j->be, thread, j->w->k);
    hh_linear_item r = hh_linear_item_at(j->w, ROWS, item);
    const hh_real *bias = r.part->bias.data;
    for (int64_t n = r.lo; n < r.hi; n++) {
        const hh_real *w = weight_row(r.part->w, n, buffer);
        for (int64_t t = 0; t < j->x.dim[0]; t += TOKENS) {
            int64_t m = j->x.dim[0] - t < TOKENS ? j->x.dim[0] - t : TOKENS;
            hh_real out[TOKENS];
            dot_tokens(out, j->x, t, m, w);
            for (int64_t i = 0; i < m; i++) {
                hh_real *y = hh_row(j->y, t + i) + r.column + (n - r.lo);
                *y = (j->accumulate ? *y : 0) + out[i] + (bias ? bias[n] : 0);
            }
        }
    }
    hh_arena_reset(scratch, mark);
}

void hh_linear_fwd_reference(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w, bool accumulate) {
    hh_linear_check(y, x, w);
    job j = {.be = be, .y = y, .x = x, .w = w, .accumulate = accumulate};
    hh_parallel_for(be->n_threads, hh_linear_item_count(w, ROWS), forward_rows, &j);
}

/* to += a w, over n numbers. */
static void add_scaled(hh_real *restrict to, hh_real a, const hh_real *restrict w, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] += a * w[i];
}

static void backward_tokens(void *context, int64_t item, int thread) {
    const job *j = context; /* y is dx, x is dy */
    hh_arena *scratch = &j->be->thread_scratch[thread];
    size_t mark = scratch->used;
    int64_t k = j->w->k, column = 0;
    hh_real *buffer = take_buffer(j->be, thread, k);
    int64_t lo = item * j->step, hi = lo + j->step < j->x.dim[0] ? lo + j->step : j->x.dim[0];
    if (!j->accumulate)
        for (int64_t t = lo; t < hi; t++)
            for (int64_t i = 0; i < k; i++) hh_row(j->y, t)[i] = 0;
    for (int p = 0; p < j->w->n_parts; p++) {
        hh_tensor part = j->w->part[p].w;
        for (int64_t n = 0; n < part.dim[0]; n++) {
            const hh_real *w = weight_row(part, n, buffer);
            for (int64_t t = lo; t < hi; t++) add_scaled(hh_row(j->y, t), hh_row(j->x, t)[column + n], w, k); /* B1 */
        }
        column += part.dim[0];
    }
    hh_arena_reset(scratch, mark);
}

void hh_linear_bwd_input_reference(hh_backend *be, hh_tensor dx, hh_tensor dy, const hh_linear *w, bool accumulate) {
    hh_linear_check(dy, dx, w);
    int64_t tokens = dx.dim[0], step = tokens / (2 * be->n_threads);
    job j = {.be = be, .y = dx, .x = dy, .w = w, .accumulate = accumulate};
    j.step = step < 4 ? 4 : (step > 64 ? 64 : step);
    hh_parallel_for(be->n_threads, (tokens + j.step - 1) / j.step, backward_tokens, &j);
}

static void weight_rows(void *context, int64_t item, int thread) {
    const job *j = context; /* y is dy */
    (void)thread;
    hh_linear_item r = hh_linear_item_at(j->w, ROWS, item);
    hh_real *dbias = r.part->bias.data;
    for (int64_t n = r.lo; n < r.hi; n++) {
        int64_t column = r.column + (n - r.lo);
        if (r.part->w.data)
            for (int64_t t = 0; t < j->x.dim[0]; t++)
                add_scaled(hh_row(r.part->w, n), hh_row(j->y, t)[column], hh_row(j->x, t), j->w->k); /* B2 */
        if (dbias)
            for (int64_t t = 0; t < j->x.dim[0]; t++) dbias[n] += hh_row(j->y, t)[column]; /* B3 */
    }
}

void hh_linear_bwd_weight_reference(hh_backend *be, const hh_linear *dw, hh_tensor dy, hh_tensor x) {
    hh_linear_check(dy, x, dw);
    for (int p = 0; p < dw->n_parts; p++) HH_ASSERT(!dw->part[p].w.data || dw->part[p].w.dtype == HH_DTYPE_REAL);
    job j = {.be = be, .y = dy, .x = x, .w = dw};
    hh_parallel_for(be->n_threads, hh_linear_item_count(dw, ROWS), weight_rows, &j);
}
