/* The short convolution on the GPU; equations in ops/conv.h. A thread has 4 channels of some rows; all rows of a chunk are on
 * their way before the first is used, and a window of them moves through registers, so that a row is read once. */
#include "ops/cuda/rows.h"
#include "ops/cuda/spans.cuh"

extern "C" {
#include "ops/conv.h"
}

#define W     HH_CONV_WIDTH
#define TAIL  (HH_CONV_WIDTH - 1)
#define BLOCK 64 /* threads: channels are few */
#define CHUNK 8  /* rows that a thread reads at once */

/* w of V channels from c on; zeros beyond N. */
template <int V>
static __device__ __forceinline__ void read_taps(float (&taps)[V][W], const float *w, int64_t stride, int64_t c,
                                                 int n) {
#pragma unroll
    for (int i = 0; i < V; i++)
#pragma unroll
        for (int j = 0; j < W; j++) taps[i][j] = i < n ? w[(c + i) * stride + j] : 0.0f;
}

/* Row t of a span that begins at lo: of x, of its tail, or zeros. */
template <typename T, int V>
static __device__ __forceinline__ void read_row(float (&v)[V], hh_view<const T> x, const float *tail,
                                                int64_t tail_stride, int64_t lo, int64_t t, int64_t c, int n) {
    if (t >= lo) {
        hh_load_pack(v, x.p + t * x.stride + c, n);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) v[i] = tail && i < n ? tail[(t - lo + TAIL) * tail_stride + c + i] : 0.0f;
    }
}

/* The oldest row of a window gives way to the next. */
template <typename T, int V>
static __device__ __forceinline__ void move_window(float (&row)[W][V], const hh_pack<V, T> &next) {
#pragma unroll
    for (int j = 0; j < TAIL; j++)
#pragma unroll
        for (int i = 0; i < V; i++) row[j][i] = row[j + 1][i];
    hh_unpack(row[TAIL], next);
}

/* F1, and F2 by the threads that have the span's first chunk: they alone read its tail. */
template <typename T, int V>
static __global__ void __launch_bounds__(BLOCK)
    conv_forward(hh_view<T> y, hh_view<const T> x, hh_view<const float> w, float *const *tails, int64_t tail_stride,
                 const hh_span *span, int64_t n_spans, int64_t N) {
    const int64_t c = ((int64_t)blockIdx.y * BLOCK + threadIdx.x) * V;
    int64_t first;
    const int64_t s = hh_span_of_chunk(&first, span, n_spans, blockIdx.x, CHUNK);
    if (c >= N || s < 0) return;
    const int64_t lo = span[s].lo, hi = span[s].hi;
    if (first >= hi) return;
    const int n = N - c < V ? (int)(N - c) : V;
    float *tail = tails ? tails[s] : nullptr;
    float taps[V][W], row[W][V]; /* row[3] is the present token's */
    read_taps(taps, w.p, w.stride, c, n);
#pragma unroll
    for (int j = 0; j < TAIL; j++)
        read_row(row[j + 1], x, (const float *)tail, tail_stride, lo, first - TAIL + j, c, n);
    hh_pack<V, T> next[CHUNK];
#pragma unroll
    for (int k = 0; k < CHUNK; k++) next[k] = hh_read_pack<V>(x.p + (first + k) * x.stride + c, first + k < hi ? n : 0);
#pragma unroll
    for (int k = 0; k < CHUNK; k++) {
        if (first + k >= hi) break;
        float out[V];
        move_window(row, next[k]);
#pragma unroll
        for (int i = 0; i < V; i++) {
            out[i] = 0;
#pragma unroll
            for (int j = 0; j < W; j++) out[i] += taps[i][j] * row[j][i];
        }
        hh_store_pack(y.p + (first + k) * y.stride + c, out, n);
    }
    if (!tail || first != lo) return;
#pragma unroll
    for (int j = 0; j < TAIL; j++) { /* oldest first: no row is read that was already replaced */
        float kept[V];
        read_row(kept, x, (const float *)tail, tail_stride, lo, hi - TAIL + j, c, n);
        for (int i = 0; i < n; i++) tail[j * tail_stride + c + i] = kept[i];
    }
}

/* B1 and B2. A block has `slab` rows, which may belong to several spans; partial [slabs, N, W] keeps its share of dw. */
template <typename T, int V>
static __global__ void __launch_bounds__(BLOCK)
    conv_backward(hh_view<T> dx, float *partial, hh_view<const T> dy, hh_view<const T> x, hh_view<const float> w,
                  const hh_span *span, int64_t n_spans, int64_t rows, int slab, int64_t N) {
    const int64_t c = ((int64_t)blockIdx.y * BLOCK + threadIdx.x) * V, begin = (int64_t)blockIdx.x * slab;
    if (c >= N) return;
    const int64_t end = begin + slab < rows ? begin + slab : rows;
    const int n = N - c < V ? (int)(N - c) : V;
    float taps[V][W], dw[V][W] = {}, in[W][V], grad[W][V]; /* at row t: in of t - 3 to t, grad of t to t + 3 */
    read_taps(taps, w.p, w.stride, c, n);
    int64_t s = hh_span_of(span, n_spans, begin);
    if (s < 0) s = 0;
    for (; s < n_spans && span[s].lo < end; s++) {
        const int64_t lo = span[s].lo, hi = span[s].hi;
        const int64_t from = lo > begin ? lo : begin, to = hi < end ? hi : end;
        if (from >= to) continue;
#pragma unroll
        for (int j = 0; j < TAIL; j++) {
            read_row(in[j + 1], x, (const float *)nullptr, 0, lo, from - TAIL + j, c, n);
            hh_load_pack(grad[j + 1], dy.p + (from + j) * dy.stride + c, from + j < hi ? n : 0);
        }
        for (int64_t first = from; first < to; first += CHUNK) {
            hh_pack<V, T> next_in[CHUNK], next_grad[CHUNK];
#pragma unroll
            for (int k = 0; k < CHUNK; k++) {
                const int64_t t = first + k;
                next_in[k] = hh_read_pack<V>(x.p + t * x.stride + c, t < to ? n : 0);
                next_grad[k] = hh_read_pack<V>(dy.p + (t + TAIL) * dy.stride + c, t < to && t + TAIL < hi ? n : 0);
            }
#pragma unroll
            for (int k = 0; k < CHUNK; k++) {
                if (first + k >= to) break;
                float out[V];
                move_window(in, next_in[k]);
                move_window(grad, next_grad[k]);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    out[i] = 0;
#pragma unroll
                    for (int j = 0; j < W; j++) {
                        out[i] += taps[i][j] * grad[TAIL - j][i]; /* B1 */
                        dw[i][j] += grad[0][i] * in[j][i];        /* B2 */
                    }
                }
                hh_store_pack(dx.p + (first + k) * dx.stride + c, out, n);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < V; i++)
#pragma unroll
        for (int j = 0; j < W; j++)
            if (i < n) partial[((int64_t)blockIdx.x * N + c + i) * W + j] = dw[i][j];
}

static bool is_taps(hh_tensor w, int64_t N) {
    return hh_is_f32(w) && w.dim[0] == N && hh_tensor_row_count(w) == W;
}

extern "C" void hh_conv_fwd_cuda(hh_backend *be, hh_tensor y, hh_tensor x, hh_tensor w, const hh_tensor *tail,
                                 const hh_span *span, int64_t n_spans) {
    const int64_t N = hh_tensor_row_count(x);
    HH_ASSERT(hh_is_act(be, x) && hh_is_act(be, y) && hh_is_like(y, x) && is_taps(w, N) && y.data != x.data);
    HH_ASSERT(hh_are_spans(span, n_spans, x.dim[0]));
    if (!n_spans) return;
    const size_t bytes = 4 * hh_dtype_bytes(be->activation, 1);
    const bool packed = hh_is_packed(x, bytes) && hh_is_packed(y, bytes);
    float *const *tails = tail ? hh_cuda_list_tails(be, tail, n_spans, N) : NULL;
    const hh_span *spans = hh_cuda_list(be, span, n_spans);
    HH_CUDA_BY_TYPE(
        be->activation, T,
        HH_CUDA_BY_PACK(packed, V, 4,
                        hh_cuda_launch(be, "conv_fwd", conv_forward<T, V>,
                                       dim3((unsigned)hh_chunk_bound(x.dim[0], n_spans, CHUNK),
                                            (unsigned)hh_ceil_div(N, BLOCK * V)),
                                       BLOCK, 0, hh_view_of<T>(y), hh_view_of<const T>(x), hh_view_of<const float>(w),
                                       tails, tail ? tail[0].stride : (int64_t)0, spans, n_spans, N)));
}

extern "C" void hh_conv_bwd_cuda(hh_backend *be, hh_tensor dx, hh_tensor dw, hh_tensor dy, hh_tensor x, hh_tensor w,
                                 const hh_span *span, int64_t n_spans) {
    const int64_t N = hh_tensor_row_count(x), rows = x.dim[0];
    HH_ASSERT(hh_is_act(be, x) && hh_is_act(be, dy) && hh_is_act(be, dx) && hh_is_like(dy, x) && hh_is_like(dx, x));
    HH_ASSERT(is_taps(w, N) && is_taps(dw, N) && hh_tensor_is_dense(dw) && dx.data != dy.data);
    HH_ASSERT(hh_are_spans(span, n_spans, rows));
    if (!n_spans || !rows || !N) return;
    const size_t bytes = 4 * hh_dtype_bytes(be->activation, 1);
    const bool packed = hh_is_packed(x, bytes) && hh_is_packed(dy, bytes) && hh_is_packed(dx, bytes);
    const int64_t across = hh_ceil_div(N, BLOCK * (packed ? 4 : 1));
    const int64_t wanted = hh_ceil_div(16 * (int64_t)hh_cuda_of(be)->n_sms, across); /* slabs: 16 blocks an SM */
    int64_t slab = hh_ceil_div(rows, wanted);
    if (slab < 16) slab = 16;
    const int64_t slabs = hh_ceil_div(rows, slab);
    hh_cuda_scratch_begin(be);
    float *partial = (float *)hh_cuda_scratch(be, (size_t)(slabs * N * W) * sizeof(float));
    const hh_span *spans = hh_cuda_list(be, span, n_spans);
    HH_CUDA_BY_TYPE(be->activation, T,
                    HH_CUDA_BY_PACK(packed, V, 4,
                                    hh_cuda_launch(be, "conv_bwd", conv_backward<T, V>,
                                                   dim3((unsigned)slabs, (unsigned)across), BLOCK, 0, hh_view_of<T>(dx),
                                                   partial, hh_view_of<const T>(dy), hh_view_of<const T>(x),
                                                   hh_view_of<const float>(w), spans, n_spans, rows, (int)slab, N)));
    hh_cuda_add_columns(be, "conv_bwd", (float *)dw.data, partial, slabs, N * W);
}
