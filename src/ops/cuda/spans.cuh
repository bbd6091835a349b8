/* Spans inside kernels: which one a row, or a chunk of rows, belongs to. */
#ifndef HH_OPS_CUDA_SPANS_CUH
#define HH_OPS_CUDA_SPANS_CUH

#include "ops/cuda/cuda.h"

/* The last span that begins at or before row t (the one that holds t, when one does), or -1. */
static __device__ __forceinline__ int64_t hh_span_of(const hh_span *span, int64_t n_spans, int64_t t) {
    int64_t lo = 0, hi = n_spans;
    while (lo < hi) {
        const int64_t mid = (lo + hi) / 2;
        if (span[mid].lo <= t) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo - 1;
}

/* Chunks of `size` rows that begin at their span's start. Chunk numbers [lo / size + s, ...) are span s's: enough for its
 * rows, whatever lies before. There are at most rows / size + n_spans of them; some are empty. */
static inline int64_t hh_chunk_bound(int64_t rows, int64_t n_spans, int64_t size) {
    return n_spans ? rows / size + n_spans : 0;
}
/* The span of a chunk and its first row. */
static __device__ __forceinline__ int64_t hh_span_of_chunk(int64_t *first, const hh_span *span, int64_t n_spans,
                                                           int64_t chunk, int size) {
    int64_t lo = 0, hi = n_spans;
    while (lo < hi) {
        const int64_t mid = (lo + hi) / 2;
        if (span[mid].lo / size + mid <= chunk) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    const int64_t s = lo - 1;
    *first = s < 0 ? 0 : span[s].lo + (chunk - span[s].lo / size - s) * size;
    return s;
}

#endif
