/* A tensor is a value: where the numbers are, their type, and their shape. It owns nothing.
 *
 * Up to four dimensions, row-major. Dimension 0 may be strided (a view of some columns of a wider matrix, as the q part
 * of a fused projection); all dimensions behind it are dense. `stride` counts elements between rows of dimension 0.
 * Tokens always come first: [T, H, D]. A quantised tensor is a dense matrix whose rows are whole blocks.
 */
#ifndef HH_TENSOR_TENSOR_H
#define HH_TENSOR_TENSOR_H

#include "base/memory.h"
#include "tensor/dtype.h"

#define HH_MAX_RANK 4

typedef struct hh_tensor {
    void *data; /* NULL: absent */
    hh_dtype dtype;
    int rank;
    int64_t dim[HH_MAX_RANK]; /* unused ones are 1 */
    int64_t stride;           /* elements between rows of dimension 0 */
} hh_tensor;

/* Dense tensors over memory that exists. */
hh_tensor hh_tensor_1d(void *data, hh_dtype t, int64_t n);
hh_tensor hh_tensor_2d(void *data, hh_dtype t, int64_t rows, int64_t cols);
hh_tensor hh_tensor_3d(void *data, hh_dtype t, int64_t d0, int64_t d1, int64_t d2);
/* The same, placed in an arena (data is NULL while counting; the shape is right all the same). */
hh_tensor hh_tensor_place_1d(hh_arena *a, hh_dtype t, int64_t n);
hh_tensor hh_tensor_place_2d(hh_arena *a, hh_dtype t, int64_t rows, int64_t cols);
hh_tensor hh_tensor_place_3d(hh_arena *a, hh_dtype t, int64_t d0, int64_t d1, int64_t d2);

int64_t hh_tensor_count(hh_tensor t);     /* elements of the view */
int64_t hh_tensor_row_count(hh_tensor t); /* elements of one row: product of dims 1.. */
size_t hh_tensor_bytes(hh_tensor t);      /* bytes of a dense tensor of this shape */
bool hh_tensor_is_dense(hh_tensor t);

hh_tensor hh_tensor_rows(hh_tensor t, int64_t lo, int64_t hi); /* rows [lo, hi) of dimension 0 */
/* Columns [lo, hi) of a matrix, as [T, hi-lo]; float types only. */
hh_tensor hh_tensor_columns(hh_tensor t, int64_t lo, int64_t hi);
/* [T, n*D] -> [T, n, D], the stride kept. */
hh_tensor hh_tensor_split(hh_tensor t, int64_t n);
/* [T, n, D] -> [T, n*D], the stride kept. */
hh_tensor hh_tensor_join(hh_tensor t);

/* Row r of an hh_real tensor. */
static inline hh_real *hh_row(hh_tensor t, int64_t r) {
    return (hh_real *)t.data + r * t.stride;
}

#endif
