/* Spans inside kernels: which one a row, or a chunk of rows, belongs to; and the tails of their convolutions. */
#ifndef HH_OPS_CUDA_SPANS_CUH
#define HH_OPS_CUDA_SPANS_CUH

#include "ops/cuda/cuda.h"

extern "C" {
#include "base/memory.h"
#include "ops/conv.h"
}

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

/* The addresses of tail[n_spans], each [3, N] in float32 and all of one stride, on the card. */
static inline float *const *hh_cuda_list_tails(hh_backend *be, const hh_tensor *tail, int64_t n_spans, int64_t N) {
    float **all = (float **)hh_alloc_unguarded((size_t)n_spans * sizeof(float *));
    for (int64_t s = 0; s < n_spans; s++) {
        HH_ASSERT(tail[s].dtype == HH_DTYPE_F32 && tail[s].dim[0] == HH_CONV_WIDTH - 1);
        HH_ASSERT(hh_tensor_row_count(tail[s]) == N && tail[s].stride == tail[0].stride);
        all[s] = (float *)tail[s].data;
    }
    float *const *list = hh_cuda_list<float *>(be, all, n_spans);
    hh_free(all);
    return list;
}

#endif
