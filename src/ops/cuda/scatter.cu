/* Sums of rows by target on the GPU: the embedding's gradient and scatter_add_rows. Without float atomics: the host sorts the
 * rows by target, keeping their order; a warp sums a piece of one target's rows, and where a target has more than one
 * piece a second kernel sums the pieces. */
#include "ops/cuda/rows.h"

extern "C" {
#include "base/memory.h"
}

#define PIECE 32        /* rows summed by one warp */
#define TILE  (1 << 17) /* rows sorted at once: their lists fit the ring */

/* One list for the card, its parts of fixed sizes (n rows, at most n pieces and n / PIECE + 1 merges) so that it does not
 * change its size from step to step. */
typedef struct sorted {
    int32_t *list;
    int64_t n, pieces, merges, slots;
} sorted;

/* Offsets of the parts. A piece: its first place in `order`, its target, its slot of partial sums or -1. A merge: its
 * target, its first slot, how many. counts: pieces, merges. */
struct layout {
    int64_t order, first, target, slot, merge_target, merge_slot, merge_count, counts, all;
};
static __host__ __device__ inline layout layout_of(int64_t n) {
    const int64_t m = n / PIECE + 1;
    layout l;
    l.order = 0;
    l.first = l.order + n;
    l.target = l.first + n + 1;
    l.slot = l.target + n;
    l.merge_target = l.slot + n;
    l.merge_slot = l.merge_target + m;
    l.merge_count = l.merge_slot + m;
    l.counts = l.merge_count + m;
    l.all = l.counts + 2;
    return l;
}

static void add_target(sorted *s, const layout *l, int32_t target, int64_t lo, int64_t hi) {
    int32_t *a = s->list;
    const bool merged = hi - lo > PIECE;
    if (merged) {
        a[l->merge_target + s->merges] = target;
        a[l->merge_slot + s->merges] = (int32_t)s->slots;
        a[l->merge_count + s->merges++] = (int32_t)hh_ceil_div(hi - lo, PIECE);
    }
    for (int64_t at = lo; at < hi; at += PIECE) {
        a[l->first + s->pieces] = (int32_t)at;
        a[l->target + s->pieces] = target;
        a[l->slot + s->pieces++] = merged ? (int32_t)s->slots++ : -1;
    }
}

/* Counting sort of targets in [0, n_targets). The list is the caller's to free. */
static sorted sort_rows(const int32_t *targets, int64_t n, int64_t n_targets) {
    const layout l = layout_of(n);
    sorted s = {(int32_t *)hh_alloc_unguarded((size_t)l.all * sizeof(int32_t)), n, 0, 0, 0};
    int32_t *start = (int32_t *)hh_alloc_unguarded((size_t)(n_targets + 1) * sizeof(int32_t));
    for (int64_t i = 0; i < n; i++) {
        HH_ASSERT(targets[i] >= 0 && targets[i] < n_targets);
        start[targets[i] + 1]++;
    }
    for (int64_t v = 0; v < n_targets; v++) {
        const int64_t lo = start[v], hi = lo + start[v + 1];
        if (hi > lo) add_target(&s, &l, (int32_t)v, lo, hi);
        start[v + 1] = (int32_t)hi;
    }
    for (int64_t i = 0; i < n; i++) s.list[l.order + start[targets[i]]++] = (int32_t)i;
    s.list[l.first + s.pieces] = (int32_t)n;
    s.list[l.counts] = (int32_t)s.pieces;
    s.list[l.counts + 1] = (int32_t)s.merges;
    hh_free(start);
    return s;
}

/* A warp has a piece and 32 V columns. */
template <typename Y, typename X, int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    sum_pieces(hh_view<Y> y, float *partial, hh_view<const X> x, const int32_t *list, int64_t n_rows, int64_t n) {
    const layout l = layout_of(n_rows);
    const int64_t piece = hh_team_index(32), c = ((int64_t)blockIdx.y * 32 + threadIdx.x % 32) * V;
    if (piece >= list[l.counts] || c >= n) return;
    const int m = n - c < V ? (int)(n - c) : V;
    const int lo = list[l.first + piece], hi = list[l.first + piece + 1], slot = list[l.slot + piece];
    float sum[V] = {};
#pragma unroll 4
    for (int i = lo; i < hi; i++) {
        float a[V];
        hh_load_pack(a, x.p + list[l.order + i] * x.stride + c, m);
#pragma unroll
        for (int k = 0; k < V; k++) sum[k] += a[k];
    }
    if (slot >= 0) {
        for (int k = 0; k < m; k++) partial[slot * n + c + k] = sum[k];
        return;
    }
    Y *out = y.p + list[l.target + piece] * y.stride + c;
    float a[V];
    hh_load_pack(a, (const Y *)out, m);
#pragma unroll
    for (int k = 0; k < V; k++) sum[k] += a[k];
    hh_store_pack(out, sum, m);
}

template <typename Y>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    merge_pieces(hh_view<Y> y, const float *partial, const int32_t *list, int64_t n_rows, int64_t n) {
    const layout l = layout_of(n_rows);
    const int64_t merge = hh_team_index(32), c = (int64_t)blockIdx.y * 32 + threadIdx.x % 32;
    if (merge >= list[l.counts + 1] || c >= n) return;
    const int64_t slot = list[l.merge_slot + merge];
    const int count = list[l.merge_count + merge];
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < count; i++) sum += partial[(slot + i) * n + c];
    Y *out = y.p + list[l.merge_target + merge] * y.stride + c;
    hh_store(out, hh_load((const Y *)out) + sum);
}

static int64_t bucket(int64_t n, int64_t most) {
    int64_t b = 1;
    while (b < n) b *= 2;
    return b < most ? b : most;
}

template <typename Y, typename X>
static void add_tile(hh_backend *be, const char *op, hh_tensor y, hh_tensor x, const int32_t *targets) {
    const int64_t n_rows = x.dim[0], n = hh_tensor_row_count(x);
    sorted s = sort_rows(targets, n_rows, y.dim[0]);
    const int32_t *list = hh_cuda_list(be, (const int32_t *)s.list, layout_of(n_rows).all);
    hh_free(s.list);
    hh_cuda_scratch_begin(be);
    const int64_t most = 2 * (n_rows / PIECE) + 1; /* partial sums: a merged target has more than PIECE rows */
    float *partial = (float *)hh_cuda_scratch(be, (size_t)(most * n) * sizeof(float));
    const unsigned warps = HH_CUDA_BLOCK / 32;
    const bool recorded = hh_cuda_of(be)->mode != HH_CUDA_RUN; /* then a launch is as large whatever the targets are */
    const int64_t pieces = recorded ? n_rows : bucket(s.pieces, n_rows);
    const int64_t merges = recorded ? n_rows / PIECE + 1 : s.merges ? bucket(s.merges, n_rows) : 0;
    HH_CUDA_BY_PACK(hh_is_packed(x) && hh_is_packed(y), V, 8,
                    hh_cuda_launch(be, op, sum_pieces<Y, X, V>,
                                   dim3((unsigned)hh_ceil_div(pieces, warps), (unsigned)hh_ceil_div(n, 32 * V)),
                                   HH_CUDA_BLOCK, 0, hh_view_of<Y>(y), partial, hh_view_of<const X>(x), list, n_rows,
                                   n));
    hh_cuda_launch(be, op, merge_pieces<Y>, dim3((unsigned)hh_ceil_div(merges, warps), (unsigned)hh_ceil_div(n, 32)),
                   HH_CUDA_BLOCK, 0, hh_view_of<Y>(y), (const float *)partial, list, n_rows, n);
}

static void add_rows(hh_backend *be, const char *op, hh_tensor y, hh_tensor x, const int32_t *targets) {
    HH_ASSERT(hh_tensor_row_count(y) == hh_tensor_row_count(x) && hh_tensor_row_count(y) < INT32_MAX);
    int64_t step = TILE; /* whose partial sums fit scratch */
    while (step > PIECE && (size_t)(2 * (step / PIECE) + 2) * hh_tensor_row_count(x) * sizeof(float) > be->scratch.size)
        step /= 2;
    for (int64_t lo = 0; lo < x.dim[0]; lo += step) {
        const hh_tensor tile = hh_tensor_rows(x, lo, lo + step < x.dim[0] ? lo + step : x.dim[0]);
        HH_CUDA_BY_TYPE(y.dtype, Y, HH_CUDA_BY_TYPE(x.dtype, X, (add_tile<Y, X>(be, op, y, tile, targets + lo))));
    }
}

extern "C" void hh_embedding_bwd_cuda(hh_backend *be, hh_tensor dw, hh_tensor dy, const int32_t *ids) {
    HH_ASSERT(hh_is_f32(dw) && hh_is_act(be, dy));
    add_rows(be, "embedding_bwd", dw, dy, ids);
}

extern "C" void hh_scatter_add_rows_cuda(hh_backend *be, hh_tensor y, hh_tensor x, const int32_t *rows) {
    add_rows(be, "scatter_add_rows", y, x, rows);
}
