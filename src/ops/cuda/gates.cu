/* The gates of Gated DeltaNet on the GPU; equations in ops/gates.h. */
#include "ops/cuda/rows.h"

template <typename T>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    gates_forward(hh_view<float> g, hh_view<float> beta, hh_view<const T> a, hh_view<const T> b, const float *A_log,
                  const float *dt_bias, float beta_scale, int64_t rows, int64_t heads) {
    const hh_place at = hh_place_of<1>(rows, heads);
    if (!at.n) return;
    const int64_t t = at.row, h = at.column;
    g.p[t * g.stride + h] = -expf(A_log[h]) * hh_softplus(hh_load(a.p + t * a.stride + h) + dt_bias[h]); /* F1 */
    beta.p[t * beta.stride + h] = beta_scale * hh_sigmoid(hh_load(b.p + t * b.stride + h));              /* F2 */
}

/* A thread has one head of every (256 / heads)-th token of a slab; partial [2, blocks, heads] keeps B2 and B3. */
template <typename T>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    gates_backward(hh_view<T> da, hh_view<T> db, float *partial, hh_view<const float> dg, hh_view<const float> dbeta,
                   hh_view<const T> a, hh_view<const T> b, const float *A_log, const float *dt_bias, float beta_scale,
                   int64_t rows, int heads, int64_t slab) {
    __shared__ float sums[2][HH_CUDA_BLOCK];
    const int width = heads < HH_CUDA_BLOCK ? heads : HH_CUDA_BLOCK, lines = HH_CUDA_BLOCK / width;
    const int column = threadIdx.x % width, line = threadIdx.x / width, h = blockIdx.y * HH_CUDA_BLOCK + column;
    const int64_t lo = blockIdx.x * slab, hi = lo + slab < rows ? lo + slab : rows;
    float rate_sum = 0, bias_sum = 0;
    if (h < heads && line < lines) {
        const float rate = -expf(A_log[h]), bias = dt_bias[h];
        for (int64_t t = lo + line; t < hi; t += lines) {
            const float x = hh_load(a.p + t * a.stride + h) + bias, grad = dg.p[t * dg.stride + h];
            const float strength = hh_sigmoid(hh_load(b.p + t * b.stride + h));
            const float d = rate * hh_sigmoid(x) * grad; /* B1 */
            rate_sum += rate * hh_softplus(x) * grad;    /* B2 */
            bias_sum += d;                               /* B3 */
            hh_store(da.p + t * da.stride + h, d);
            hh_store(db.p + t * db.stride + h,
                     dbeta.p[t * dbeta.stride + h] * beta_scale * strength * (1.0f - strength)); /* B4 */
        }
    }
    sums[0][threadIdx.x] = rate_sum;
    sums[1][threadIdx.x] = bias_sum;
    __syncthreads();
    if (line || h >= heads) return;
    rate_sum = bias_sum = 0;
    for (int i = 0; i < lines; i++) {
        rate_sum += sums[0][i * width + column];
        bias_sum += sums[1][i * width + column];
    }
    partial[(int64_t)blockIdx.x * heads + h] = rate_sum;
    partial[((int64_t)gridDim.x + blockIdx.x) * heads + h] = bias_sum;
}

static void check_gates(hh_backend *be, hh_tensor a, hh_tensor b, hh_tensor g, hh_tensor beta, hh_tensor A_log,
                        hh_tensor dt_bias) {
    const int64_t heads = hh_tensor_row_count(a);
    HH_ASSERT(hh_is_act(be, a) && hh_is_act(be, b) && hh_is_f32(g) && hh_is_f32(beta));
    HH_ASSERT(hh_is_like(b, a) && hh_is_like(g, a) && hh_is_like(beta, a));
    HH_ASSERT(hh_is_f32_vector(A_log, heads) && hh_is_f32_vector(dt_bias, heads));
}

extern "C" void hh_gdn_gates_fwd_cuda(hh_backend *be, hh_tensor g, hh_tensor beta, hh_tensor a, hh_tensor b,
                                      hh_tensor A_log, hh_tensor dt_bias, double beta_scale) {
    check_gates(be, a, b, g, beta, A_log, dt_bias);
    const int64_t rows = a.dim[0], heads = hh_tensor_row_count(a);
    HH_CUDA_BY_TYPE(be->activation, T,
                    hh_cuda_launch(be, "gdn_gates_fwd", gates_forward<T>, hh_loop_grid(rows, heads, 1), HH_CUDA_BLOCK,
                                   0, hh_view_of<float>(g), hh_view_of<float>(beta), hh_view_of<const T>(a),
                                   hh_view_of<const T>(b), (const float *)A_log.data, (const float *)dt_bias.data,
                                   (float)beta_scale, rows, heads));
}

extern "C" void hh_gdn_gates_bwd_cuda(hh_backend *be, hh_tensor da, hh_tensor db, hh_tensor dA_log, hh_tensor ddt_bias,
                                      hh_tensor dg, hh_tensor dbeta, hh_tensor a, hh_tensor b, hh_tensor A_log,
                                      hh_tensor dt_bias, double beta_scale) {
    check_gates(be, a, b, dg, dbeta, A_log, dt_bias);
    const int64_t rows = a.dim[0], heads = hh_tensor_row_count(a);
    HH_ASSERT(hh_is_act(be, da) && hh_is_act(be, db) && hh_is_like(da, a) && hh_is_like(db, a));
    HH_ASSERT(hh_is_f32_vector(dA_log, heads) && hh_is_f32_vector(ddt_bias, heads) && heads < INT32_MAX);
    if (!rows || !heads) return;
    int64_t slab = hh_ceil_div(rows, 8 * (int64_t)hh_cuda_of(be)->n_sms);
    if (slab < 32) slab = 32;
    const int64_t blocks = hh_ceil_div(rows, slab);
    hh_cuda_scratch_begin(be);
    float *partial = (float *)hh_cuda_scratch(be, (size_t)(2 * blocks * heads) * sizeof(float));
    HH_CUDA_BY_TYPE(be->activation, T,
                    hh_cuda_launch(be, "gdn_gates_bwd", gates_backward<T>,
                                   dim3((unsigned)blocks, (unsigned)hh_ceil_div(heads, HH_CUDA_BLOCK)), HH_CUDA_BLOCK,
                                   0, hh_view_of<T>(da), hh_view_of<T>(db), partial, hh_view_of<const float>(dg),
                                   hh_view_of<const float>(dbeta), hh_view_of<const T>(a), hh_view_of<const T>(b),
                                   (const float *)A_log.data, (const float *)dt_bias.data, (float)beta_scale, rows,
                                   (int)heads, slab));
    hh_cuda_add_columns(be, "gdn_gates_bwd", (float *)dA_log.data, partial, blocks, heads);
    hh_cuda_add_columns(be, "gdn_gates_bwd", (float *)ddt_bias.data, partial + blocks * heads, blocks, heads);
}
