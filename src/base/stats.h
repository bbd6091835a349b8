/* Small statistics of measured numbers: means with their errors, and how far two rankings agree. Always in double. */
#ifndef HH_BASE_STATS_H
#define HH_BASE_STATS_H

#include <stdint.h>

double hh_mean(const double *x, int64_t n);           /* 0 when n is 0 */
double hh_deviation(const double *x, int64_t n);      /* of the sample (n - 1); 0 when n < 2 */
double hh_standard_error(const double *x, int64_t n); /* deviation / sqrt(n) */

/* Ranks from 1, ties share their mean. NaN counts as the smallest. */
void hh_ranks(const double *x, int64_t n, double *rank);
/* Spearman's rank correlation; 0 when one side is constant or n < 2. */
double hh_spearman(const double *x, const double *y, int64_t n);
/* |top k of x, and of y| / |top k of x, or of y|; ties are broken by the lower index. 1 when k <= 0. */
double hh_top_jaccard(const double *x, const double *y, int64_t n, int64_t k);
/* The indices of x in falling order, ties by the lower index, NaN last; order: [n]. */
void hh_order_falling(const double *x, int64_t n, int64_t *order);

#endif
