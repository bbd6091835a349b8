/* Tensors as values; see tensor.h. */
#include "tensor/tensor.h"

static hh_tensor make(void *data, hh_dtype t, int rank, int64_t d0, int64_t d1, int64_t d2) {
    HH_ASSERT(d0 >= 0 && d1 >= 0 && d2 >= 0);
    hh_tensor x = {.data = data, .dtype = t, .rank = rank, .dim = {d0, d1, d2, 1}, .stride = d1 * d2};
    HH_ASSERT(x.stride % hh_dtype_block(t) == 0);
    return x;
}

/* A quantised vector is one row. */
hh_tensor hh_tensor_1d(void *data, hh_dtype t, int64_t n) {
    if (!hh_dtype_is_quantised(t)) return make(data, t, 1, n, 1, 1);
    HH_ASSERT(n >= 0 && n % hh_dtype_block(t) == 0);
    return (hh_tensor){.data = data, .dtype = t, .rank = 1, .dim = {n, 1, 1, 1}, .stride = 1};
}

hh_tensor hh_tensor_2d(void *data, hh_dtype t, int64_t rows, int64_t cols) {
    return make(data, t, 2, rows, cols, 1);
}

hh_tensor hh_tensor_3d(void *data, hh_dtype t, int64_t d0, int64_t d1, int64_t d2) {
    return make(data, t, 3, d0, d1, d2);
}

static hh_tensor place(hh_arena *a, hh_tensor t) {
    t.data = hh_arena_alloc(a, hh_tensor_bytes(t));
    return t;
}

hh_tensor hh_tensor_place_1d(hh_arena *a, hh_dtype t, int64_t n) {
    return place(a, hh_tensor_1d(NULL, t, n));
}

hh_tensor hh_tensor_place_2d(hh_arena *a, hh_dtype t, int64_t rows, int64_t cols) {
    return place(a, hh_tensor_2d(NULL, t, rows, cols));
}

hh_tensor hh_tensor_place_3d(hh_arena *a, hh_dtype t, int64_t d0, int64_t d1, int64_t d2) {
    return place(a, hh_tensor_3d(NULL, t, d0, d1, d2));
}

int64_t hh_tensor_row_count(hh_tensor t) {
    return t.dim[1] * t.dim[2] * t.dim[3];
}

int64_t hh_tensor_count(hh_tensor t) {
    return t.dim[0] * hh_tensor_row_count(t);
}

size_t hh_tensor_bytes(hh_tensor t) {
    return hh_dtype_bytes(t.dtype, hh_tensor_count(t));
}

bool hh_tensor_is_dense(hh_tensor t) {
    return t.dim[0] <= 1 || t.stride == hh_tensor_row_count(t);
}

/* The same tensor, its data moved on by n elements (whole blocks). An absent one stays absent. */
static hh_tensor advance(hh_tensor t, int64_t n) {
    if (t.data) t.data = (char *)t.data + hh_dtype_bytes(t.dtype, n);
    return t;
}

hh_tensor hh_tensor_rows(hh_tensor t, int64_t lo, int64_t hi) {
    HH_ASSERT(t.rank >= 1 && lo >= 0 && lo <= hi && hi <= t.dim[0]);
    t = advance(t, lo * t.stride);
    t.dim[0] = hi - lo;
    return t;
}

hh_tensor hh_tensor_columns(hh_tensor t, int64_t lo, int64_t hi) {
    HH_ASSERT(t.rank == 2 && !hh_dtype_is_quantised(t.dtype) && lo >= 0 && lo <= hi && hi <= t.dim[1]);
    t = advance(t, lo);
    t.dim[1] = hi - lo;
    return t;
}

hh_tensor hh_tensor_split(hh_tensor t, int64_t n) {
    HH_ASSERT(t.rank == 2 && n > 0 && t.dim[1] % n == 0);
    t.rank = 3;
    t.dim[2] = t.dim[1] / n;
    t.dim[1] = n;
    return t;
}

hh_tensor hh_tensor_join(hh_tensor t) {
    HH_ASSERT(t.rank == 3);
    t.rank = 2;
    t.dim[1] *= t.dim[2];
    t.dim[2] = 1;
    return t;
}
