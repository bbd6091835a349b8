/* Statistics; see stats.h. */
#include "base/stats.h"
#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

double hh_mean(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return n ? sum / (double)n : 0;
}

double hh_deviation(const double *x, int64_t n) {
    if (n < 2) return 0;
    double mean = hh_mean(x, n), sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    return sqrt(sum / (double)(n - 1));
}

double hh_standard_error(const double *x, int64_t n) {
    return n ? hh_deviation(x, n) / sqrt((double)n) : 0;
}

typedef struct entry {
    double value;
    int64_t index;
} entry;

static int compare_falling(const void *a, const void *b) {
    const entry *x = a, *y = b;
    bool x_nan = isnan(x->value), y_nan = isnan(y->value);
    if (x_nan != y_nan) return x_nan ? 1 : -1;
    if (!x_nan && x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static entry *sort_falling(const double *x, int64_t n) {
    entry *e = hh_alloc((size_t)n * sizeof *e);
    for (int64_t i = 0; i < n; i++) e[i] = (entry){x[i], i};
    qsort(e, (size_t)n, sizeof *e, compare_falling);
    return e;
}

void hh_order_falling(const double *x, int64_t n, int64_t *order) {
    entry *e = sort_falling(x, n);
    for (int64_t i = 0; i < n; i++) order[i] = e[i].index;
    hh_free(e);
}

static bool same_value(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}

void hh_ranks(const double *x, int64_t n, double *rank) {
    entry *e = sort_falling(x, n);
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && same_value(e[end].value, e[i].value);) end++;
        /* Places i .. end-1 from the top are ranks n-i .. n-end+1 from the bottom. */
        for (int64_t j = i; j < end; j++) rank[e[j].index] = (double)(2 * n - i - end + 1) / 2;
    }
    hh_free(e);
}

double hh_spearman(const double *x, const double *y, int64_t n) {
    if (n < 2) return 0;
    double *rx = hh_alloc((size_t)n * sizeof *rx), *ry = hh_alloc((size_t)n * sizeof *ry);
    hh_ranks(x, n, rx);
    hh_ranks(y, n, ry);
    double middle = (double)(n + 1) / 2, xx = 0, yy = 0, xy = 0;
    for (int64_t i = 0; i < n; i++) {
        double a = rx[i] - middle, b = ry[i] - middle;
        xx += a * a;
        yy += b * b;
        xy += a * b;
    }
    hh_free(rx);
    hh_free(ry);
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

double hh_top_jaccard(const double *x, const double *y, int64_t n, int64_t k) {
    if (k > n) k = n;
    if (k <= 0) return 1;
    entry *a = sort_falling(x, n), *b = sort_falling(y, n);
    int64_t both = 0;
    bool *in = hh_alloc((size_t)n);
    for (int64_t i = 0; i < k; i++) in[a[i].index] = true;
    for (int64_t i = 0; i < k; i++) both += in[b[i].index];
    hh_free(in);
    hh_free(a);
    hh_free(b);
    return (double)both / (double)(2 * k - both);
}
