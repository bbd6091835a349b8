/* Matrix products by oneDNN: the only file that knows it.
 *
 * They run on the calling thread alone: callers share work in tiles (base/parallel.h). Row-major; lda, ldb, ldc count elements
 * between rows as stored. C [m,n] float32 = A B (+ C when `add`), with A [m,k] or its transpose [k,m] when `ta`, B [k,n] or
 * its transpose [n,k] when `tb`.
 */
#ifndef HH_OPS_GEMM_H
#define HH_OPS_GEMM_H

#include <stdbool.h>
#include <stdint.h>

void hh_gemm_f32(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                 int64_t ldb, float *c, int64_t ldc, bool add);

/* Whether this processor multiplies bf16 faster than float32 (avx512_bf16, AMX). */
bool hh_gemm_has_bf16(void);
/* bf16 operands, float32 accumulation. Only where hh_gemm_has_bf16. Shapes are compiled at first use, a thread each. */
void hh_gemm_bf16(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b,
                  int64_t ldb, float *c, int64_t ldc, bool add);

/* C [m,n] = A B^T (+ C) in blocks of HH_GEMM_ROWS rows, every one by the same compiled product, so that a row's result does
 * not depend on m. A [m,k] is dense and can be read up to a whole block; `block` [HH_GEMM_ROWS, n] is work memory. */
#define HH_GEMM_ROWS 128
void hh_gemm_bf16_rows(int64_t m, int64_t n, int64_t k, const uint16_t *a, const uint16_t *b, int64_t ldb, float *c,
                       int64_t ldc, bool add, float *block);

#endif
