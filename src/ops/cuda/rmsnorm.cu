/* RMSNorm on the GPU; equations in ops/rmsnorm.h. One pass over memory: a team of threads holds its row in registers. The
 * gradient of w is summed by every block over the rows it meets and then over blocks. */
#include "ops/cuda/rows.h"

/* F1, F2; with `d` F3 before them. */
template <typename T, int V, int K>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    rmsnorm_forward(hh_view<T> y, hh_view<float> rstd, hh_view<T> x, hh_view<const T> d, const float *w,
                    int64_t n_groups, uint32_t groups, int n, int lanes, float eps) {
    const int64_t g = hh_team_index(lanes);
    const bool active = g < n_groups;
    const int lane = threadIdx.x % lanes, m = active ? n : 0;
    const uint32_t row = active ? (uint32_t)g / groups : 0, group = active ? (uint32_t)g - row * groups : 0;
    T *in = x.p + row * x.stride + (int64_t)group * n;
    const T *add = d.p + row * d.stride + (int64_t)group * n;
    T *out = y.p + row * y.stride + (int64_t)group * n;
    hh_pack<V, T> kept[K ? K : 1], more[K ? K : 1];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = (lane + k * lanes) * V;
        kept[k] = hh_read_pack<V>((const T *)in + c, m - c);
        if (d.p) more[k] = hh_read_pack<V>(add + c, m - c);
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = (lane + k * lanes) * V;
        float a[V], b[V];
        if (!d.p) continue;
        hh_unpack(a, kept[k]);
        hh_unpack(b, more[k]);
#pragma unroll
        for (int i = 0; i < V; i++) a[i] += b[i];
        hh_store_pack(in + c, a, m - c);
        kept[k] = hh_make_pack<T>(a); /* the norm is that of what was stored */
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        float a[V];
        hh_unpack(a, kept[k]);
#pragma unroll
        for (int i = 0; i < V; i++) sum += a[i] * a[i];
    }
    if (!K)
        for (int c = lane; c < m; c += lanes) {
            if (d.p) hh_store(in + c, hh_load(in + c) + hh_load(add + c));
            sum += hh_load(in + c) * hh_load(in + c);
        }
    const float r = 1.0f / sqrtf(hh_team_sum(sum, lanes) / (float)n + eps);
    if (rstd.p && active && lane == 0) rstd.p[row * rstd.stride + group] = r;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = (lane + k * lanes) * V;
        float a[V], s[V];
        hh_unpack(a, kept[k]);
        if (w) hh_load_pack(s, w + c, m - c);
#pragma unroll
        for (int i = 0; i < V; i++) a[i] = w ? a[i] * r * s[i] : a[i] * r;
        hh_store_pack(out + c, a, m - c);
    }
    if (!K)
        for (int c = lane; c < m; c += lanes) hh_store(out + c, hh_load(in + c) * r * (w ? w[c] : 1.0f));
}

static void run_forward(hh_backend *be, const char *op, hh_tensor y, hh_tensor rstd, hh_tensor x, hh_tensor d,
                        hh_tensor w, double eps) {
    const int64_t n = hh_last_dim(x), groups = hh_groups(x), n_groups = x.dim[0] * groups;
    HH_ASSERT(hh_is_act(be, x) && hh_is_act(be, y) && hh_is_like(y, x) && hh_groups(y) == groups && n < INT32_MAX);
    HH_ASSERT(hh_is_absent(w) || hh_is_f32_vector(w, n));
    HH_ASSERT(hh_is_absent(rstd) || hh_is_f32_per_group(rstd, x));
    HH_ASSERT(n_groups < UINT32_MAX - HH_CUDA_BLOCK);
    const bool packed = hh_is_packed(x) && hh_is_packed(y) && hh_is_packed(w) && hh_is_packed(d);
    const hh_teams teams = hh_teams_for(n, packed, 8);
    const dim3 grid((unsigned)hh_ceil_div(n_groups, HH_CUDA_BLOCK / teams.lanes));
    HH_CUDA_BY_TYPE(be->activation, T,
                    HH_CUDA_BY_TEAM(teams, V, K,
                                    hh_cuda_launch(be, op, rmsnorm_forward<T, V, K>, grid, HH_CUDA_BLOCK, 0,
                                                   hh_view_of<T>(y), hh_view_of<float>(rstd), hh_view_of<T>(x),
                                                   hh_view_of<const T>(d), (const float *)w.data, n_groups,
                                                   (uint32_t)groups, (int)n, teams.lanes, (float)eps)));
}

extern "C" void hh_rmsnorm_fwd_cuda(hh_backend *be, hh_tensor y, hh_tensor rstd, hh_tensor x, hh_tensor w, double eps) {
    const hh_tensor none = {};
    run_forward(be, "rmsnorm_fwd", y, rstd, x, none, w, eps);
}

extern "C" void hh_add_rmsnorm_fwd_cuda(hh_backend *be, hh_tensor y, hh_tensor rstd, hh_tensor x, hh_tensor d,
                                        hh_tensor w, double eps) {
    HH_ASSERT(hh_is_act(be, d) && hh_is_like(d, x) && (y.data != x.data || !x.dim[0]));
    run_forward(be, "add_rmsnorm_fwd", y, rstd, x, d, w, eps);
}

/* B1-B3. Blocks run over all groups in steps of the grid. With `partial` [blocks, n] every block leaves its share of dw
 * there (K > 0). */
template <typename T, int V, int K>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    rmsnorm_backward(hh_view<T> dx, float *partial, hh_view<const T> dy, hh_view<const T> x, const float *w,
                     hh_view<const float> rstd, int64_t n_groups, uint32_t groups, int n, int lanes, bool accumulate) {
    extern __shared__ float shared[]; /* [teams, n] */
    const int lane = threadIdx.x % lanes;
    const int64_t step = (int64_t)gridDim.x * (HH_CUDA_BLOCK / lanes);
    float dw[K ? K : 1][V] = {};
    for (int64_t first = 0; first < n_groups; first += step) { /* the same number of rounds for all */
        const int64_t g = first + hh_team_index(lanes);
        const bool active = g < n_groups;
        const int m = active ? n : 0;
        const uint32_t row = active ? (uint32_t)g / groups : 0, group = active ? (uint32_t)g - row * groups : 0;
        const T *in = x.p + row * x.stride + (int64_t)group * n, *grad = dy.p + row * dy.stride + (int64_t)group * n;
        T *out = dx.p + row * dx.stride + (int64_t)group * n;
        const float r = active ? rstd.p[row * rstd.stride + group] : 0.0f;
        hh_pack<V, T> a[K ? K : 1], b[K ? K : 1];
        float sum = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int c = (lane + k * lanes) * V;
            a[k] = hh_read_pack<V>(in + c, m - c);
            b[k] = hh_read_pack<V>(grad + c, m - c);
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int c = (lane + k * lanes) * V;
            float u[V], d[V], s[V];
            hh_unpack(u, a[k]);
            hh_unpack(d, b[k]);
            if (w) hh_load_pack(s, w + c, m - c);
#pragma unroll
            for (int i = 0; i < V; i++) {
                dw[k][i] += d[i] * (u[i] * r);
                sum += (w ? d[i] * s[i] : d[i]) * (u[i] * r);
            }
        }
        if (!K)
            for (int c = lane; c < m; c += lanes) sum += hh_load(grad + c) * (w ? w[c] : 1.0f) * (hh_load(in + c) * r);
        const float mean = hh_team_sum(sum, lanes) / (float)n;
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int c = (lane + k * lanes) * V;
            float u[V], d[V], s[V];
            hh_unpack(u, a[k]);
            hh_unpack(d, b[k]);
            if (w) hh_load_pack(s, w + c, m - c);
#pragma unroll
            for (int i = 0; i < V; i++) d[i] = r * ((w ? d[i] * s[i] : d[i]) - u[i] * r * mean);
            if (accumulate) {
                hh_load_pack(s, (const T *)(out + c), m - c);
#pragma unroll
                for (int i = 0; i < V; i++) d[i] += s[i];
            }
            hh_store_pack(out + c, d, m - c);
        }
        if (!K)
            for (int c = lane; c < m; c += lanes) {
                const float d = r * (hh_load(grad + c) * (w ? w[c] : 1.0f) - hh_load(in + c) * r * mean);
                hh_store(out + c, accumulate ? hh_load(out + c) + d : d);
            }
    }
    if (!K || !partial) return;
    const int teams = HH_CUDA_BLOCK / lanes, team = threadIdx.x / lanes;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int i = 0; i < V; i++) {
            const int c = (lane + k * lanes) * V + i;
            if (c >= n) continue;
            if (teams == 1) {
                partial[(int64_t)blockIdx.x * n + c] = dw[k][i];
            } else {
                shared[team * n + c] = dw[k][i];
            }
        }
    if (teams == 1) return;
    __syncthreads();
    for (int c = threadIdx.x; c < n; c += HH_CUDA_BLOCK) {
        float sum = 0;
        for (int t = 0; t < teams; t++) sum += shared[t * n + c];
        partial[(int64_t)blockIdx.x * n + c] = sum;
    }
}

/* B3 for rows of any form: a thread owns a column of a slab of groups. */
template <typename T>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    rmsnorm_columns(float *partial, hh_view<const T> dy, hh_view<const T> x, hh_view<const float> rstd,
                    int64_t n_groups, uint32_t groups, int n, int64_t slab) {
    const int64_t c = (int64_t)blockIdx.y * HH_CUDA_BLOCK + threadIdx.x, lo = blockIdx.x * slab;
    if (c >= n) return;
    float sum = 0;
    for (int64_t g = lo; g < lo + slab && g < n_groups; g++) {
        const uint32_t row = (uint32_t)g / groups, group = (uint32_t)g - row * groups;
        const int64_t at = (int64_t)group * n + c;
        sum += hh_load(dy.p + row * dy.stride + at) *
               (hh_load(x.p + row * x.stride + at) * rstd.p[row * rstd.stride + group]);
    }
    partial[(int64_t)blockIdx.x * n + c] = sum;
}

extern "C" void hh_rmsnorm_bwd_cuda(hh_backend *be, hh_tensor dx, hh_tensor dw, hh_tensor dy, hh_tensor x, hh_tensor w,
                                    hh_tensor rstd, bool accumulate) {
    const int64_t n = hh_last_dim(x), groups = hh_groups(x), n_groups = x.dim[0] * groups;
    HH_ASSERT(hh_is_act(be, x) && hh_is_act(be, dy) && hh_is_act(be, dx) && hh_is_like(dy, x) && hh_is_like(dx, x));
    HH_ASSERT(hh_is_absent(w) || hh_is_f32_vector(w, n));
    HH_ASSERT(hh_is_absent(dw) || hh_is_f32_vector(dw, n));
    HH_ASSERT(hh_is_f32_per_group(rstd, x) && n < INT32_MAX && n_groups < UINT32_MAX - HH_CUDA_BLOCK);
    if (!n_groups) return;
    const hh_teams teams =
        hh_teams_for(n, hh_is_packed(x) && hh_is_packed(dy) && hh_is_packed(dx) && hh_is_packed(w), 4);
    const int a_block = HH_CUDA_BLOCK / teams.lanes;
    int64_t blocks = hh_ceil_div(n_groups, a_block), most = 4 * (int64_t)hh_cuda_of(be)->n_sms;
    if (blocks > most) blocks = most;
    const int64_t slab = hh_ceil_div(n_groups, blocks);
    hh_cuda_scratch_begin(be);
    float *partial = dw.data ? (float *)hh_cuda_scratch(be, (size_t)(blocks * n) * sizeof(float)) : NULL;
    HH_CUDA_BY_TYPE(be->activation, T, {
        if (partial && !teams.packs) /* before dx is written: it may be dy */
            hh_cuda_launch(be, "rmsnorm_bwd", rmsnorm_columns<T>,
                           dim3((unsigned)blocks, (unsigned)hh_ceil_div(n, HH_CUDA_BLOCK)), HH_CUDA_BLOCK, 0, partial,
                           hh_view_of<const T>(dy), hh_view_of<const T>(x), hh_view_of<const float>(rstd), n_groups,
                           (uint32_t)groups, (int)n, slab);
        HH_CUDA_BY_TEAM(teams, V, K, {
            const size_t shared = K && partial && a_block > 1 ? (size_t)(a_block * n) * sizeof(float) : 0;
            hh_cuda_launch(be, "rmsnorm_bwd", rmsnorm_backward<T, V, K>, dim3((unsigned)blocks), HH_CUDA_BLOCK, shared,
                           hh_view_of<T>(dx), partial, hh_view_of<const T>(dy), hh_view_of<const T>(x),
                           (const float *)w.data, hh_view_of<const float>(rstd), n_groups, (uint32_t)groups, (int)n,
                           teams.lanes, accumulate);
        });
    });
    if (partial) hh_cuda_add_columns(be, "rmsnorm_bwd", (float *)dw.data, partial, blocks, n);
}
