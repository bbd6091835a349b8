/* The reference of the reductions; see reduce.h. */
#include "ops/reduce.h"

#include "base/parallel.h"
#include "ops/shape.h"

#include <math.h>

typedef struct dot_job {
    hh_tensor out, a, b, c;
} dot_job;

static void dot_head(void *context, int64_t h, int thread) {
    const dot_job *j = context;
    const int64_t D = j->a.dim[2];
    double sum = 0;
    (void)thread;
    for (int64_t t = 0; t < j->a.dim[0]; t++) {
        const hh_real *a = hh_row(j->a, t) + h * D, *b = hh_row(j->b, t) + h * D;
        if (j->c.data) {
            const hh_real *c = hh_row(j->c, t) + h * D;
            for (int64_t d = 0; d < D; d++) sum += (double)a[d] * ((double)b[d] - (double)c[d]);
        } else {
            for (int64_t d = 0; d < D; d++) sum += (double)a[d] * (double)b[d];
        }
    }
    ((hh_real *)j->out.data)[h] = (hh_real)sum; /* F1 */
}

void hh_head_dot_reference(hh_backend *be, hh_tensor out, hh_tensor a, hh_tensor b, hh_tensor c) {
    HH_ASSERT(a.rank == 3 && hh_is_real_like(b, a) && (hh_is_absent(c) || hh_is_real_like(c, a)));
    HH_ASSERT(hh_is_real_vector(out, a.dim[1]));
    dot_job j = {out, a, b, c};
    hh_parallel_for(be->n_threads, a.dim[1], dot_head, &j);
}

void hh_find_nonfinite_reference(hh_backend *be, int64_t *at, hh_tensor x) {
    const int64_t n = hh_tensor_row_count(x);
    hh_real part[256];
    (void)be;
    HH_ASSERT(hh_dtype_is_float(x.dtype));
    for (int64_t r = 0; r < x.dim[0]; r++)
        for (int64_t i = 0; i < n; i += 256) {
            int64_t m = n - i < 256 ? n - i : 256;
            hh_dequantise(x.dtype, (const char *)x.data + hh_dtype_bytes(x.dtype, r * x.stride + i), m, part);
            for (int64_t k = 0; k < m; k++)
                if (!isfinite(part[k])) { /* F2 */
                    *at = r * n + i + k;
                    return;
                }
        }
    *at = -1;
}
