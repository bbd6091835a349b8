/* The rotary embedding on the GPU; equations in ops/rope.h. */
#include "ops/cuda/rows.h"
#include "ops/cuda/spans.cuh"

static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    fill_table(hh_view<float> cos_, hh_view<float> sin_, const double *inv_freq, double factor, const hh_span *span,
               int64_t n_spans, int64_t rows, int64_t half) {
    const hh_place at = hh_place_of<1>(rows, half);
    if (!at.n) return;
    const int64_t s = hh_span_of(span, n_spans, at.row);
    if (s < 0 || at.row >= span[s].hi) return;
    double sine, cosine;
    sincos((double)(span[s].pos + at.row - span[s].lo) * inv_freq[at.column], &sine, &cosine); /* F1 */
    cos_.p[at.row * cos_.stride + at.column] = (float)(factor * cosine);
    sin_.p[at.row * sin_.stride + at.column] = (float)(factor * sine);
}

extern "C" void hh_rope_table_cuda(hh_backend *be, hh_tensor cos_, hh_tensor sin_, const double *inv_freq,
                                   double factor, const hh_span *span, int64_t n_spans) {
    const int64_t rows = cos_.dim[0], half = hh_tensor_row_count(cos_);
    HH_ASSERT(hh_is_f32(cos_) && hh_is_f32(sin_) && hh_is_like(sin_, cos_) && hh_are_spans(span, n_spans, rows));
    if (!n_spans) return;
    const double *freq = hh_cuda_list(be, inv_freq, half);
    const hh_span *spans = hh_cuda_list(be, span, n_spans);
    hh_cuda_launch(be, "rope_table", fill_table, hh_loop_grid(rows, half, 1), HH_CUDA_BLOCK, 0, hh_view_of<float>(cos_),
                   hh_view_of<float>(sin_), freq, factor, spans, n_spans, rows, half);
}

#define AHEAD 3 /* heads that a thread reads at once */

/* A thread turns V pairs of the heads of its slice (gridDim.y slices): sine and cosine are read once for all of them. */
template <typename T, int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    turn(hh_view<T> x, hh_view<const float> cos_, hh_view<const float> sin_, int64_t rows, int64_t half, int heads,
         float sign) {
    const hh_place at = hh_place_of<V>(rows, half);
    if (!at.n) return;
    float c[V], s[V];
    hh_load_pack(c, cos_.p + at.row * cos_.stride + at.column, at.n);
    hh_load_pack(s, sin_.p + at.row * sin_.stride + at.column, at.n);
    T *row = x.p + at.row * x.stride + at.column;
    for (int first = blockIdx.y; first < heads; first += AHEAD * gridDim.y) {
        hh_pack<V, T> p[AHEAD], q[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int h = first + j * gridDim.y, n = h < heads ? at.n : 0;
            p[j] = hh_read_pack<V>((const T *)row + h * 2 * half, n);
            q[j] = hh_read_pack<V>((const T *)row + h * 2 * half + half, n);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int h = first + j * gridDim.y;
            float a[V], b[V];
            if (h >= heads) break;
            hh_unpack(a, p[j]);
            hh_unpack(b, q[j]);
#pragma unroll
            for (int i = 0; i < V; i++) { /* F2, B1 */
                const float u = a[i], v = b[i], sine = sign * s[i];
                a[i] = u * c[i] - v * sine;
                b[i] = v * c[i] + u * sine;
            }
            hh_store_pack(row + h * 2 * half, a, at.n);
            hh_store_pack(row + h * 2 * half + half, b, at.n);
        }
    }
}

extern "C" void hh_rope_cuda(hh_backend *be, hh_tensor x, hh_tensor cos_, hh_tensor sin_, bool inverse) {
    const int64_t rows = x.dim[0], heads = hh_groups(x), half = hh_tensor_row_count(cos_);
    HH_ASSERT(hh_is_act(be, x) && hh_is_f32(cos_) && hh_is_f32(sin_) && hh_is_like(sin_, cos_));
    HH_ASSERT(cos_.dim[0] == rows && hh_last_dim(x) == 2 * half && heads < 65536);
    if (!heads) return;
    const bool packed = half % 8 == 0 && hh_is_packed(x) && hh_is_packed(cos_) && hh_is_packed(sin_);
    const int64_t threads = rows * hh_ceil_div(half, packed ? 8 : 1);
    int64_t slices = hh_ceil_div((int64_t)hh_cuda_of(be)->n_sms * 1024, threads ? threads : 1);
    if (slices > heads) slices = heads;
    HH_CUDA_BY_TYPE(be->activation, T, HH_CUDA_BY_PACK(packed, V, 8, {
                        dim3 grid = hh_loop_grid(rows, half, V);
                        grid.y = (unsigned)slices;
                        hh_cuda_launch(be, "rope", turn<T, V>, grid, HH_CUDA_BLOCK, 0, hh_view_of<T>(x),
                                       hh_view_of<const float>(cos_), hh_view_of<const float>(sin_), rows, half,
                                       (int)heads, inverse ? -1.0f : 1.0f);
                    }));
}
