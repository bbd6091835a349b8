/* oneDNN's products; see gemm.h. */
#include "ops/gemm.h"

#include "base/parallel.h"
#include "base/status.h"

#include <oneapi/dnnl/dnnl.h>

void hh_gemm_f32(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                 int64_t ldb, float *c, int64_t ldc, bool add) {
    if (m == 0 || n == 0) return;
    hh_parallel_tame_libraries();
    dnnl_status_t s =
        dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, add ? 1.0f : 0.0f, c, ldc);
    HH_ASSERT(s == dnnl_success);
}
