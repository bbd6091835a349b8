/* Matrix products by oneDNN: the only file that knows it.
 *
 * Float32. They run on the calling thread alone: callers share work in tiles (base/parallel.h). Row-major; lda, ldb,
 * ldc count elements between rows as stored.
 */
#ifndef HH_OPS_GEMM_H
#define HH_OPS_GEMM_H

#include <stdbool.h>
#include <stdint.h>

/* C[m,n] = A B (+ C when `add`), with A [m,k] or its transpose [k,m] when `ta`, B [k,n] or its transpose [n,k]. */
void hh_gemm_f32(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                 int64_t ldb, float *c, int64_t ldc, bool add);

#endif
