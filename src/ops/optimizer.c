/* Reference optimizer and the loops around its inner kernels; see optimizer.h. */
#include "ops/optimizer.h"

#include "base/parallel.h"

#include <math.h>

enum { PIECE = 1 << 14, BATCH = 4096 }; /* numbers of an item; items whose sums are kept at once */

typedef struct sum_job {
    const hh_real *x;
    int64_t n, first;
    double *sum;
    hh_sum_squares_piece *piece;
} sum_job;

static void sum_item(void *context, int64_t item, int thread) {
    const sum_job *j = context;
    (void)thread;
    int64_t lo = (j->first + item) * PIECE, hi = lo + PIECE < j->n ? lo + PIECE : j->n;
    j->sum[item] = j->piece(j->x + lo, hi - lo);
}

void hh_sum_squares_by(hh_backend *be, double *out, hh_tensor x, hh_sum_squares_piece *piece) {
    HH_ASSERT(x.dtype == HH_DTYPE_REAL && hh_tensor_is_dense(x));
    double sum[BATCH];
    sum_job j = {.x = x.data, .n = hh_tensor_count(x), .sum = sum, .piece = piece};
    int64_t items = (j.n + PIECE - 1) / PIECE;
    for (; j.first < items; j.first += BATCH) {
        int64_t n = items - j.first < BATCH ? items - j.first : BATCH;
        hh_parallel_for(be->n_threads, n, sum_item, &j);
        for (int64_t i = 0; i < n; i++) *out += sum[i];
    }
}

static double sum_squares_piece(const hh_real *x, int64_t n) {
    double s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < n; i++) s += (double)x[i] * (double)x[i]; /* F1 */
    return s;
}

void hh_sum_squares_reference(hh_backend *be, double *out, hh_tensor x) {
    hh_sum_squares_by(be, out, x, sum_squares_piece);
}

hh_adamw_step hh_adamw_constants(double lr, double beta1, double beta2, double eps, double weight_decay,
                                 double grad_scale, int64_t step) {
    HH_ASSERT(step >= 1);
    return (hh_adamw_step){
        .beta1 = (hh_real)beta1,
        .one_minus_beta1 = (hh_real)(1 - beta1),
        .beta2 = (hh_real)beta2,
        .one_minus_beta2 = (hh_real)(1 - beta2),
        .decay = (hh_real)(1 - lr * weight_decay),
        .rate = (hh_real)(lr / (1 - pow(beta1, (double)step))),
        .inverse_root = (hh_real)(1 / sqrt(1 - pow(beta2, (double)step))),
        .eps = (hh_real)eps,
        .grad_scale = (hh_real)grad_scale,
    };
}

typedef struct adamw_job {
    const hh_adamw_step *s;
    hh_real *p, *m, *v;
    const hh_real *grad;
    int64_t n;
    hh_adamw_piece *piece;
} adamw_job;

static void adamw_item(void *context, int64_t item, int thread) {
    const adamw_job *j = context;
    (void)thread;
    int64_t lo = item * PIECE, hi = lo + PIECE < j->n ? lo + PIECE : j->n;
    j->piece(j->s, j->p + lo, j->m + lo, j->v + lo, j->grad + lo, hi - lo);
}

void hh_adamw_by(hh_backend *be, hh_tensor p, hh_tensor m, hh_tensor v, hh_tensor grad, const hh_adamw_step *s,
                 hh_adamw_piece *piece) {
    const hh_tensor all[] = {p, m, v, grad};
    for (int i = 0; i < 4; i++)
        HH_ASSERT(all[i].dtype == HH_DTYPE_REAL && hh_tensor_is_dense(all[i]) &&
                  hh_tensor_count(all[i]) == hh_tensor_count(p));
    adamw_job j = {
        .s = s, .p = p.data, .m = m.data, .v = v.data, .grad = grad.data, .n = hh_tensor_count(p), .piece = piece};
    hh_parallel_for(be->n_threads, (j.n + PIECE - 1) / PIECE, adamw_item, &j);
}

static void adamw_piece(const hh_adamw_step *s, hh_real *restrict p, hh_real *restrict m, hh_real *restrict v,
                        const hh_real *restrict grad, int64_t n) {
    const hh_adamw_step c = *s;
    for (int64_t i = 0; i < n; i++) { /* F2 */
        hh_real g = c.grad_scale * grad[i];
        m[i] = c.beta1 * m[i] + c.one_minus_beta1 * g;
        v[i] = c.beta2 * v[i] + c.one_minus_beta2 * g * g;
        hh_real root = (hh_real)sqrt((double)v[i]) * c.inverse_root;
        p[i] = p[i] * c.decay - c.rate * m[i] / (root + c.eps);
    }
}

void hh_adamw_reference(hh_backend *be, hh_tensor p, hh_tensor m, hh_tensor v, hh_tensor grad, double lr, double beta1,
                        double beta2, double eps, double weight_decay, double grad_scale, int64_t step) {
    hh_adamw_step s = hh_adamw_constants(lr, beta1, beta2, eps, weight_decay, grad_scale, step);
    hh_adamw_by(be, p, m, v, grad, &s, adamw_piece);
}
