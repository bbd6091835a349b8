/* Gated activations on the GPU; equations in ops/activation.h. A thread has 8 numbers of every tensor. */
#include "ops/cuda/rows.h"

template <typename T, int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    sigmoid_gate_forward(hh_view<T> y, hh_view<const T> x, hh_view<const T> z, int64_t rows, int64_t n) {
    const hh_place at = hh_place_of<V>(rows, n);
    float a[V], b[V];
    hh_load_pack(a, x.p + at.row * x.stride + at.column, at.n);
    hh_load_pack(b, z.p + at.row * z.stride + at.column, at.n);
#pragma unroll
    for (int i = 0; i < V; i++) a[i] *= hh_sigmoid(b[i]); /* F1 */
    hh_store_pack(y.p + at.row * y.stride + at.column, a, at.n);
}

template <typename T, int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    sigmoid_gate_backward(hh_view<T> dx, hh_view<T> dz, hh_view<const T> dy, hh_view<const T> x, hh_view<const T> z,
                          int64_t rows, int64_t n) {
    const hh_place at = hh_place_of<V>(rows, n);
    float a[V], b[V], d[V];
    hh_load_pack(a, x.p + at.row * x.stride + at.column, at.n);
    hh_load_pack(b, z.p + at.row * z.stride + at.column, at.n);
    hh_load_pack(d, dy.p + at.row * dy.stride + at.column, at.n);
#pragma unroll
    for (int i = 0; i < V; i++) { /* B1 */
        const float s = hh_sigmoid(b[i]);
        b[i] = d[i] * a[i] * s * (1.0f - s);
        a[i] = d[i] * s;
    }
    hh_store_pack(dx.p + at.row * dx.stride + at.column, a, at.n);
    hh_store_pack(dz.p + at.row * dz.stride + at.column, b, at.n);
}

template <typename T, int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    swiglu_forward(hh_view<T> y, hh_view<const T> gate, hh_view<const T> up, int64_t rows, int64_t n) {
    const hh_place at = hh_place_of<V>(rows, n);
    float a[V], b[V];
    hh_load_pack(a, gate.p + at.row * gate.stride + at.column, at.n);
    hh_load_pack(b, up.p + at.row * up.stride + at.column, at.n);
#pragma unroll
    for (int i = 0; i < V; i++) a[i] = a[i] * hh_sigmoid(a[i]) * b[i]; /* F2 */
    hh_store_pack(y.p + at.row * y.stride + at.column, a, at.n);
}

template <typename T, int V>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    swiglu_backward(hh_view<T> dgate, hh_view<T> dup, hh_view<const T> dy, hh_view<const T> gate, hh_view<const T> up,
                    int64_t rows, int64_t n) {
    const hh_place at = hh_place_of<V>(rows, n);
    float a[V], b[V], d[V];
    hh_load_pack(a, gate.p + at.row * gate.stride + at.column, at.n);
    hh_load_pack(b, up.p + at.row * up.stride + at.column, at.n);
    hh_load_pack(d, dy.p + at.row * dy.stride + at.column, at.n);
#pragma unroll
    for (int i = 0; i < V; i++) { /* B2 */
        const float s = hh_sigmoid(a[i]), u = b[i];
        b[i] = d[i] * a[i] * s;
        a[i] = d[i] * u * s * (1.0f + a[i] * (1.0f - s));
    }
    hh_store_pack(dgate.p + at.row * dgate.stride + at.column, a, at.n);
    hh_store_pack(dup.p + at.row * dup.stride + at.column, b, at.n);
}

static hh_loop loop_over(hh_backend *be, const hh_tensor *t, int count) {
    for (int i = 0; i < count; i++) HH_ASSERT(hh_is_act(be, t[i]));
    return hh_loop_over(t, count);
}

extern "C" void hh_sigmoid_gate_fwd_cuda(hh_backend *be, hh_tensor y, hh_tensor x, hh_tensor z) {
    const hh_tensor all[] = {y, x, z};
    const hh_loop l = loop_over(be, all, 3);
    HH_CUDA_BY_TYPE(be->activation, T,
                    HH_CUDA_BY_PACK(l.packed, V, 8,
                                    hh_cuda_launch(be, "sigmoid_gate_fwd", sigmoid_gate_forward<T, V>,
                                                   hh_loop_grid(l.rows, l.n, V), HH_CUDA_BLOCK, 0, hh_view_of<T>(y),
                                                   hh_view_of<const T>(x), hh_view_of<const T>(z), l.rows, l.n)));
}

extern "C" void hh_sigmoid_gate_bwd_cuda(hh_backend *be, hh_tensor dx, hh_tensor dz, hh_tensor dy, hh_tensor x,
                                         hh_tensor z) {
    const hh_tensor all[] = {dx, dz, dy, x, z};
    const hh_loop l = loop_over(be, all, 5);
    HH_CUDA_BY_TYPE(be->activation, T,
                    HH_CUDA_BY_PACK(l.packed, V, 8,
                                    hh_cuda_launch(be, "sigmoid_gate_bwd", sigmoid_gate_backward<T, V>,
                                                   hh_loop_grid(l.rows, l.n, V), HH_CUDA_BLOCK, 0, hh_view_of<T>(dx),
                                                   hh_view_of<T>(dz), hh_view_of<const T>(dy), hh_view_of<const T>(x),
                                                   hh_view_of<const T>(z), l.rows, l.n)));
}

extern "C" void hh_swiglu_fwd_cuda(hh_backend *be, hh_tensor y, hh_tensor gate, hh_tensor up) {
    const hh_tensor all[] = {y, gate, up};
    const hh_loop l = loop_over(be, all, 3);
    HH_CUDA_BY_TYPE(be->activation, T,
                    HH_CUDA_BY_PACK(l.packed, V, 8,
                                    hh_cuda_launch(be, "swiglu_fwd", swiglu_forward<T, V>, hh_loop_grid(l.rows, l.n, V),
                                                   HH_CUDA_BLOCK, 0, hh_view_of<T>(y), hh_view_of<const T>(gate),
                                                   hh_view_of<const T>(up), l.rows, l.n)));
}

extern "C" void hh_swiglu_bwd_cuda(hh_backend *be, hh_tensor dgate, hh_tensor dup, hh_tensor dy, hh_tensor gate,
                                   hh_tensor up) {
    const hh_tensor all[] = {dgate, dup, dy, gate, up};
    const hh_loop l = loop_over(be, all, 5);
    HH_CUDA_BY_TYPE(be->activation, T,
                    HH_CUDA_BY_PACK(l.packed, V, 8,
                                    hh_cuda_launch(be, "swiglu_bwd", swiglu_backward<T, V>,
                                                   hh_loop_grid(l.rows, l.n, V), HH_CUDA_BLOCK, 0, hh_view_of<T>(dgate),
                                                   hh_view_of<T>(dup), hh_view_of<const T>(dy),
                                                   hh_view_of<const T>(gate), hh_view_of<const T>(up), l.rows, l.n)));
}
