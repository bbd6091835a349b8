/* The reference of cache_append; see cache_append.h. It only moves bytes, so there is no faster version. */
#include "ops/cache_append.h"

#include "base/parallel.h"
#include "ops/shape.h"

#include <string.h>

enum { PIECE = 1 << 14 }; /* numbers of an item */

typedef struct job {
    hh_tensor to[2], from[2]; /* k, v of one span: its rows of the cache, and of the batch */
    int64_t rows;             /* of an item */
} job;

static void write_row(hh_tensor to, hh_tensor from, int64_t r) {
    char *dst = (char *)to.data + hh_dtype_bytes(to.dtype, r * to.stride);
    int64_t n = hh_tensor_row_count(to);
    if (to.dtype == from.dtype)
        memcpy(dst, hh_row(from, r), (size_t)n * sizeof(hh_real));
    else
        hh_quantise(to.dtype, hh_row(from, r), n, dst);
}

static void write_rows(void *context, int64_t item, int thread) {
    const job *j = context;
    (void)thread;
    int64_t lo = item * j->rows, hi = lo + j->rows < j->to[0].dim[0] ? lo + j->rows : j->to[0].dim[0];
    for (int i = 0; i < 2; i++)
        for (int64_t r = lo; r < hi; r++) write_row(j->to[i], j->from[i], r);
}

void hh_cache_append_reference(hh_backend *be, const hh_kv *kv, hh_tensor k, hh_tensor v, const hh_span *span,
                               int64_t n_spans) {
    HH_ASSERT(k.dtype == HH_DTYPE_REAL && hh_is_real_like(v, k) && hh_are_spans(span, n_spans, k.dim[0]));
    for (int64_t s = 0; s < n_spans; s++) {
        const hh_tensor from[2] = {k, v}, to[2] = {kv[s].k, kv[s].v};
        const int64_t lo = span[s].lo, hi = span[s].hi, pos = span[s].pos;
        job j;
        if (lo == hi) continue;
        for (int i = 0; i < 2; i++) {
            HH_ASSERT(to[i].dim[1] == k.dim[1] && to[i].dim[2] == k.dim[2]);
            j.to[i] = hh_tensor_rows(to[i], pos, pos + hi - lo);
            j.from[i] = hh_tensor_rows(from[i], lo, hi);
        }
        j.rows = PIECE / hh_tensor_row_count(k) + 1;
        hh_parallel_for(be->n_threads, (hi - lo + j.rows - 1) / j.rows, write_rows, &j);
    }
}
