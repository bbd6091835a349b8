/* The norms of single heads on the GPU: l2 norm, head norm, and the weights of fusion "gate"; equations in ops/l2norm.h and
 * ops/headnorm.h. A team of at most a warp owns a head of a token, so that a head is read once. */
#include "ops/cuda/rows.h"

extern "C" {
#include "ops/l2norm.h"
}

/* Heads of up to 1,024 numbers: 32 lanes, 4 packs. */
#define BY_HEAD(teams, V, K, ...)                                                                                      \
    do {                                                                                                               \
        if ((teams).packs == 1) {                                                                                      \
            constexpr int V = 8, K = 1;                                                                                \
            __VA_ARGS__;                                                                                               \
        } else if ((teams).packs > 1) {                                                                                \
            constexpr int V = 8, K = 4;                                                                                \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            constexpr int V = 1, K = 0;                                                                                \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

/* Which head of which token a team has; n is 0 where there is none. */
struct head_place {
    uint32_t row, head;
    int lane, n;
};
static __device__ __forceinline__ head_place head_place_of(int64_t g, int64_t n_groups, uint32_t heads, int n,
                                                           int lanes) {
    head_place at = {0, 0, (int)threadIdx.x % lanes, 0};
    if (g < n_groups) {
        at.row = (uint32_t)g / heads;
        at.head = (uint32_t)g - at.row * heads;
        at.n = n;
    }
    return at;
}

/* sum a^2 over the team's head, or sum a b; K packs are kept in registers, with K = 0 nothing is. */
template <typename T, int V, int K> struct head_part { hh_pack<V, T> a[K ? K : 1]; };
template <typename T, int V, int K>
static __device__ __forceinline__ void read_head(head_part<T, V, K> &h, const T *in, int lane, int lanes, int n) {
#pragma unroll
    for (int k = 0; k < K; k++) h.a[k] = hh_read_pack<V>(in + (lane + k * lanes) * V, n - (lane + k * lanes) * V);
}
template <typename T, int V, int K>
static __device__ __forceinline__ float dot_head(const head_part<T, V, K> &a, const head_part<T, V, K> &b, const T *pa,
                                                 const T *pb, int lane, int lanes, int n) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        float x[V], y[V];
        hh_unpack(x, a.a[k]);
        hh_unpack(y, b.a[k]);
#pragma unroll
        for (int i = 0; i < V; i++) sum += x[i] * y[i];
    }
    if (!K)
        for (int c = lane; c < n; c += lanes) sum += hh_load(pa + c) * hh_load(pb + c);
    return hh_team_sum(sum, lanes);
}
/* out = f a + h b */
template <typename T, int V, int K>
static __device__ __forceinline__ void write_head(T *out, float f, const head_part<T, V, K> &a, const T *pa, float h,
                                                  const head_part<T, V, K> &b, const T *pb, int lane, int lanes,
                                                  int n) {
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = (lane + k * lanes) * V;
        float x[V], y[V];
        hh_unpack(x, a.a[k]);
        hh_unpack(y, b.a[k]);
#pragma unroll
        for (int i = 0; i < V; i++) x[i] = f * x[i] + h * y[i];
        hh_store_pack(out + c, x, n - c);
    }
    if (!K)
        for (int c = lane; c < n; c += lanes) hh_store(out + c, f * hh_load(pa + c) + h * hh_load(pb + c));
}

/* -- l2 norm -- */

template <typename T, int V, int K>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    l2norm_forward(hh_view<T> y, hh_view<float> r, hh_view<const T> x, int64_t n_groups, uint32_t heads, int n,
                   int lanes, float scale) {
    const int64_t g = hh_team_index(lanes);
    const head_place at = head_place_of(g, n_groups, heads, n, lanes);
    const T *in = x.p + at.row * x.stride + (int64_t)at.head * n;
    head_part<T, V, K> a;
    read_head(a, in, at.lane, lanes, at.n);
    const float inverse = 1.0f / sqrtf(dot_head(a, a, in, in, at.lane, lanes, at.n) + (float)HH_L2NORM_EPS); /* F1 */
    if (at.n && at.lane == 0) r.p[at.row * r.stride + at.head] = inverse;
    write_head(y.p + at.row * y.stride + (int64_t)at.head * n, scale * inverse, a, in, 0.0f, a, in, at.lane, lanes,
               at.n); /* F2 */
}

template <typename T, int V, int K>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    l2norm_backward(hh_view<T> dx, hh_view<const T> dy, hh_view<const T> y, hh_view<const float> r, int64_t n_groups,
                    uint32_t heads, int n, int lanes, float scale) {
    const int64_t g = hh_team_index(lanes);
    const head_place at = head_place_of(g, n_groups, heads, n, lanes);
    const T *unit = y.p + at.row * y.stride + (int64_t)at.head * n;
    const T *grad = dy.p + at.row * dy.stride + (int64_t)at.head * n;
    head_part<T, V, K> a, b;
    read_head(a, unit, at.lane, lanes, at.n);
    read_head(b, grad, at.lane, lanes, at.n);
    const float along = dot_head(a, b, unit, grad, at.lane, lanes, at.n) / (scale * scale);
    const float f = at.n ? scale * r.p[at.row * r.stride + at.head] : 0.0f;
    write_head(dx.p + at.row * dx.stride + (int64_t)at.head * n, f, b, grad, -f * along, a, unit, at.lane, lanes,
               at.n); /* B1 */
}

static unsigned head_blocks(int64_t n_groups, hh_teams t) {
    HH_ASSERT(n_groups < UINT32_MAX - HH_CUDA_BLOCK);
    return (unsigned)hh_ceil_div(n_groups, HH_CUDA_BLOCK / t.lanes);
}

extern "C" void hh_l2norm_fwd_cuda(hh_backend *be, hh_tensor y, hh_tensor r, hh_tensor x, double scale) {
    const int64_t n = hh_last_dim(x), heads = hh_groups(x);
    HH_ASSERT(hh_is_act(be, x) && hh_is_act(be, y) && hh_is_like(y, x) && hh_is_f32_per_group(r, x) && n <= 1024);
    const hh_teams t = hh_teams_for(n, hh_is_packed(x) && hh_is_packed(y), 4);
    HH_CUDA_BY_TYPE(
        be->activation, T,
        BY_HEAD(t, V, K,
                hh_cuda_launch(be, "l2norm_fwd", l2norm_forward<T, V, K>, head_blocks(x.dim[0] * heads, t),
                               HH_CUDA_BLOCK, 0, hh_view_of<T>(y), hh_view_of<float>(r), hh_view_of<const T>(x),
                               x.dim[0] * heads, (uint32_t)heads, (int)n, t.lanes, (float)scale)));
}

extern "C" void hh_l2norm_bwd_cuda(hh_backend *be, hh_tensor dx, hh_tensor dy, hh_tensor y, hh_tensor r, double scale) {
    const int64_t n = hh_last_dim(y), heads = hh_groups(y);
    HH_ASSERT(hh_is_act(be, y) && hh_is_act(be, dy) && hh_is_act(be, dx) && hh_is_like(dy, y) && hh_is_like(dx, y));
    HH_ASSERT(hh_is_f32_per_group(r, y) && n <= 1024);
    const hh_teams t = hh_teams_for(n, hh_is_packed(y) && hh_is_packed(dy) && hh_is_packed(dx), 4);
    HH_CUDA_BY_TYPE(be->activation, T,
                    BY_HEAD(t, V, K,
                            hh_cuda_launch(be, "l2norm_bwd", l2norm_backward<T, V, K>, head_blocks(y.dim[0] * heads, t),
                                           HH_CUDA_BLOCK, 0, hh_view_of<T>(dx), hh_view_of<const T>(dy),
                                           hh_view_of<const T>(y), hh_view_of<const float>(r), y.dim[0] * heads,
                                           (uint32_t)heads, (int)n, t.lanes, (float)scale)));
}

/* -- head norm -- */

template <typename T, int V, int K>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    headnorm_forward(hh_view<T> y, hh_view<float> rstd, hh_view<const T> o, const float *gamma,
                     hh_view<const float> weight, int64_t n_groups, uint32_t heads, int n, int lanes, float eps) {
    const int64_t g = hh_team_index(lanes);
    const head_place at = head_place_of(g, n_groups, heads, n, lanes);
    const T *in = o.p + at.row * o.stride + (int64_t)at.head * n;
    head_part<T, V, K> a;
    read_head(a, in, at.lane, lanes, at.n);
    const float r = 1.0f / sqrtf(dot_head(a, a, in, in, at.lane, lanes, at.n) / (float)n + eps); /* F1 */
    float f = r;
    if (at.n && at.lane == 0) rstd.p[at.row * rstd.stride + at.head] = r;
    if (at.n && gamma) f *= gamma[at.head];
    if (at.n && weight.p) f *= weight.p[at.row * weight.stride + at.head];
    write_head(y.p + at.row * y.stride + (int64_t)at.head * n, f, a, in, 0.0f, a, in, at.lane, lanes, at.n); /* F2 */
}

#define MOST_SUMS 8192 /* heads of a slab: their weight_th s stand in shared memory */

/* A block has `slab` tokens; with `partial` [blocks, H] it leaves its share of B3 there. */
template <typename T, int V, int K>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    headnorm_backward(hh_view<T> do_, float *partial, hh_view<float> dweight, hh_view<const T> dy, hh_view<const T> o,
                      const float *gamma, hh_view<const float> weight, hh_view<const float> rstd, int64_t tokens,
                      uint32_t heads, int n, int lanes, int slab) {
    extern __shared__ float sums[]; /* [slab, heads] */
    const int64_t lo = (int64_t)blockIdx.x * slab, left = tokens - lo;
    const int count = (int)(left < slab ? left : slab), teams = HH_CUDA_BLOCK / lanes;
    for (int first = 0; first < count * (int)heads; first += teams) {
        const int g = first + (int)threadIdx.x / lanes;
        const head_place at = head_place_of(g, (int64_t)count * heads, heads, n, lanes);
        const int64_t row = lo + at.row;
        const T *in = o.p + row * o.stride + (int64_t)at.head * n,
                *grad = dy.p + row * dy.stride + (int64_t)at.head * n;
        head_part<T, V, K> a, b;
        read_head(a, in, at.lane, lanes, at.n);
        read_head(b, grad, at.lane, lanes, at.n);
        const float r = at.n ? rstd.p[row * rstd.stride + at.head] : 0.0f;
        const float s = dot_head(a, b, in, grad, at.lane, lanes, at.n) * r; /* B1 */
        const float weigh = at.n && weight.p ? weight.p[row * weight.stride + at.head] : 1.0f;
        const float scale = at.n && gamma ? gamma[at.head] : 1.0f, f = scale * weigh * r;
        write_head(do_.p + row * do_.stride + (int64_t)at.head * n, f, b, grad, -f * r * (s / (float)n), a, in, at.lane,
                   lanes, at.n); /* B2 */
        if (!at.n || at.lane) continue;
        if (partial) sums[at.row * heads + at.head] = weigh * s;
        if (dweight.p) dweight.p[row * dweight.stride + at.head] = scale * s; /* B4 */
    }
    if (!partial) return;
    __syncthreads();
    for (uint32_t h = threadIdx.x; h < heads; h += HH_CUDA_BLOCK) {
        float sum = 0;
        for (int t = 0; t < count; t++) sum += sums[t * heads + h];
        partial[(int64_t)blockIdx.x * heads + h] = sum; /* B3 */
    }
}

static void check_headnorm(hh_backend *be, hh_tensor o, hh_tensor rstd, hh_tensor gamma, hh_tensor weight) {
    HH_ASSERT(hh_is_act(be, o) && o.rank == 3 && hh_is_f32_per_group(rstd, o) && o.dim[2] <= 1024);
    HH_ASSERT(hh_is_absent(gamma) || hh_is_f32_vector(gamma, o.dim[1]));
    HH_ASSERT(hh_is_absent(weight) || hh_is_f32_per_group(weight, o));
}

extern "C" void hh_headnorm_fwd_cuda(hh_backend *be, hh_tensor y, hh_tensor rstd, hh_tensor o, hh_tensor gamma,
                                     hh_tensor weight, double eps) {
    check_headnorm(be, o, rstd, gamma, weight);
    HH_ASSERT(hh_is_act(be, y) && hh_is_like(y, o));
    const int64_t heads = o.dim[1], n = o.dim[2];
    const hh_teams t = hh_teams_for(n, hh_is_packed(o) && hh_is_packed(y), 4);
    HH_CUDA_BY_TYPE(
        be->activation, T,
        BY_HEAD(t, V, K,
                hh_cuda_launch(be, "headnorm_fwd", headnorm_forward<T, V, K>, head_blocks(o.dim[0] * heads, t),
                               HH_CUDA_BLOCK, 0, hh_view_of<T>(y), hh_view_of<float>(rstd), hh_view_of<const T>(o),
                               (const float *)gamma.data, hh_view_of<const float>(weight), o.dim[0] * heads,
                               (uint32_t)heads, (int)n, t.lanes, (float)eps)));
}

extern "C" void hh_headnorm_bwd_cuda(hh_backend *be, hh_tensor do_, hh_tensor dgamma, hh_tensor dweight, hh_tensor dy,
                                     hh_tensor o, hh_tensor gamma, hh_tensor weight, hh_tensor rstd) {
    check_headnorm(be, o, rstd, gamma, weight);
    const int64_t tokens = o.dim[0], heads = o.dim[1], n = o.dim[2];
    HH_ASSERT(hh_is_act(be, dy) && hh_is_act(be, do_) && hh_is_like(dy, o) && hh_is_like(do_, o));
    HH_ASSERT(hh_is_absent(dgamma) || hh_is_f32_vector(dgamma, heads));
    HH_ASSERT((hh_is_absent(dweight) || hh_is_f32_per_group(dweight, o)) && heads <= MOST_SUMS);
    if (!tokens || !heads) return;
    const hh_teams t = hh_teams_for(n, hh_is_packed(o) && hh_is_packed(dy) && hh_is_packed(do_), 4);
    int64_t slab = hh_ceil_div(tokens, 8 * (int64_t)hh_cuda_of(be)->n_sms);
    if (slab > MOST_SUMS / heads) slab = MOST_SUMS / heads;
    const int64_t blocks = hh_ceil_div(tokens, slab);
    hh_cuda_scratch_begin(be);
    float *partial = dgamma.data ? (float *)hh_cuda_scratch(be, (size_t)(blocks * heads) * sizeof(float)) : NULL;
    const size_t shared = partial ? (size_t)(slab * heads) * sizeof(float) : 0;
    HH_CUDA_BY_TYPE(
        be->activation, T,
        BY_HEAD(t, V, K,
                hh_cuda_launch(be, "headnorm_bwd", headnorm_backward<T, V, K>, dim3((unsigned)blocks), HH_CUDA_BLOCK,
                               shared, hh_view_of<T>(do_), partial, hh_view_of<float>(dweight), hh_view_of<const T>(dy),
                               hh_view_of<const T>(o), (const float *)gamma.data, hh_view_of<const float>(weight),
                               hh_view_of<const float>(rstd), tokens, (uint32_t)heads, (int)n, t.lanes, (int)slab)));
    if (partial) hh_cuda_add_columns(be, "headnorm_bwd", (float *)dgamma.data, partial, blocks, heads);
}

/* -- head weights: a warp has a token -- */

template <typename T>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    head_weight_forward(hh_view<float> weight, hh_view<const T> z, int64_t tokens, int heads) {
    const int64_t t = hh_team_index(32);
    if (t >= tokens) return;
    const T *in = z.p + t * z.stride;
    float *out = weight.p + t * weight.stride;
    const int lane = threadIdx.x % 32;
    float top = -INFINITY, sum = 0;
    for (int h = lane; h < heads; h += 32) top = fmaxf(top, hh_load(in + h));
    top = hh_warp_max(top);
    for (int h = lane; h < heads; h += 32) sum += expf(hh_load(in + h) - top);
    sum = hh_warp_sum(sum);
    for (int h = lane; h < heads; h += 32) out[h] = expf(hh_load(in + h) - top) * ((float)heads / sum); /* F3 */
}

template <typename T>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK)
    head_weight_backward(hh_view<T> dz, hh_view<const float> dweight, hh_view<const float> weight, int64_t tokens,
                         int heads) {
    const int64_t t = hh_team_index(32);
    if (t >= tokens) return;
    const float *w = weight.p + t * weight.stride, *grad = dweight.p + t * dweight.stride;
    T *out = dz.p + t * dz.stride;
    const int lane = threadIdx.x % 32;
    float sum = 0;
    for (int h = lane; h < heads; h += 32) sum += grad[h] * w[h];
    const float mean = hh_warp_sum(sum) / (float)heads;
    for (int h = lane; h < heads; h += 32) hh_store(out + h, w[h] * (grad[h] - mean)); /* B5 */
}

extern "C" void hh_head_weight_fwd_cuda(hh_backend *be, hh_tensor weight, hh_tensor z) {
    HH_ASSERT(hh_is_act(be, z) && hh_is_f32(weight) && hh_is_like(weight, z) && hh_tensor_row_count(z) < INT32_MAX);
    HH_CUDA_BY_TYPE(be->activation, T,
                    hh_cuda_launch(be, "head_weight_fwd", head_weight_forward<T>,
                                   dim3((unsigned)hh_ceil_div(z.dim[0], HH_CUDA_BLOCK / 32)), HH_CUDA_BLOCK, 0,
                                   hh_view_of<float>(weight), hh_view_of<const T>(z), z.dim[0],
                                   (int)hh_tensor_row_count(z)));
}

extern "C" void hh_head_weight_bwd_cuda(hh_backend *be, hh_tensor dz, hh_tensor dweight, hh_tensor weight) {
    HH_ASSERT(hh_is_act(be, dz) && hh_is_f32(weight) && hh_is_f32(dweight) && hh_is_like(dz, weight) &&
              hh_is_like(dweight, weight) && hh_tensor_row_count(dz) < INT32_MAX);
    HH_CUDA_BY_TYPE(be->activation, T,
                    hh_cuda_launch(be, "head_weight_bwd", head_weight_backward<T>,
                                   dim3((unsigned)hh_ceil_div(dz.dim[0], HH_CUDA_BLOCK / 32)), HH_CUDA_BLOCK, 0,
                                   hh_view_of<T>(dz), hh_view_of<const float>(dweight), hh_view_of<const float>(weight),
                                   dz.dim[0], (int)hh_tensor_row_count(dz)));
}
