/* Shape questions that the ops ask of their arguments, all asserted: a wrong shape is a bug of the caller. */
#ifndef HH_OPS_SHAPE_H
#define HH_OPS_SHAPE_H

#include "ops/ops.h"

static inline bool hh_is_absent(hh_tensor t) {
    return t.data == NULL;
}

/* The last dimension (D of [T,h,D], C of [T,C]) and how many such groups a row has (h, or 1). */
static inline int64_t hh_last_dim(hh_tensor t) {
    return t.dim[t.rank - 1];
}
static inline int64_t hh_groups(hh_tensor t) {
    return t.rank == 3 ? t.dim[1] : 1;
}

static inline bool hh_is_real_vector(hh_tensor t, int64_t n) {
    return t.dtype == HH_DTYPE_REAL && t.rank == 1 && t.dim[0] == n && (n <= 1 || t.stride == 1);
}

static inline bool hh_is_real_matrix(hh_tensor t, int64_t rows, int64_t cols) {
    return t.dtype == HH_DTYPE_REAL && t.rank == 2 && t.dim[0] == rows && t.dim[1] == cols;
}

static inline bool hh_is_real_heads(hh_tensor t, int64_t rows, int64_t heads, int64_t width) {
    return t.dtype == HH_DTYPE_REAL && t.rank == 3 && t.dim[0] == rows && t.dim[1] == heads && t.dim[2] == width;
}

/* The same shape, both hh_real; strides may differ. */
static inline bool hh_is_real_like(hh_tensor t, hh_tensor model) {
    if (t.dtype != HH_DTYPE_REAL || model.dtype != HH_DTYPE_REAL || t.rank != model.rank) return false;
    for (int i = 0; i < t.rank; i++)
        if (t.dim[i] != model.dim[i]) return false;
    return true;
}

/* One number for every group of x: [T,h] for [T,h,D], [T] (or [T,1]) for [T,C]. */
static inline bool hh_is_real_per_group(hh_tensor t, hh_tensor x) {
    return t.dtype == HH_DTYPE_REAL && t.dim[0] == x.dim[0] &&
           (t.rank == 1 ? hh_groups(x) == 1 : t.rank == 2 && t.dim[1] == hh_groups(x));
}

/* Spans lie inside [0, rows), in ascending order, without overlap. */
static inline bool hh_are_spans(const hh_span *span, int64_t n_spans, int64_t rows) {
    int64_t at = 0;
    for (int64_t s = 0; s < n_spans; s++) {
        if (span[s].lo < at || span[s].hi < span[s].lo || span[s].pos < 0) return false;
        at = span[s].hi;
    }
    return at <= rows;
}

#endif
