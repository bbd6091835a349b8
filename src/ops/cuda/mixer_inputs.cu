/* A mixer's inputs on the GPU in one launch; steps in ops/mixer_inputs.h. A team of lanes owns one head of a chunk of tokens of
 * one path: every lane has 4 numbers of the head's first half and the 4 that the rotary embedding pairs with them, and all
 * rows of the chunk are on their way before the first is used. */
#include "ops/cuda/rows.h"
#include "ops/cuda/spans.cuh"

extern "C" {
#include "ops/conv.h"
#include "ops/l2norm.h"
#include "ops/mixer_inputs.h"
}

#define W      HH_CONV_WIDTH
#define TAIL   (HH_CONV_WIDTH - 1)
#define CHUNK  8 /* tokens of a team */
#define MOST_D 256

struct path_args {
    void *y, *conv;
    const void *x;
    int64_t y_stride, conv_stride, x_stride, tail_stride, rstd_stride, r_stride;
    const float *taps, *norm;
    float *const *tails;
    float *rstd, *r, scale;
    int32_t heads, rotate, unused;
};
struct mixer_args {
    path_args path[3];
    const float *cos_, *sin_;
    int64_t cos_stride, sin_stride;
    const hh_span *span;
    int64_t n_spans, rows;
    float *g, *beta;
    const void *a, *b;
    int64_t g_stride, beta_stride, a_stride, b_stride;
    const float *A_log, *dt_bias;
    float beta_scale, eps;
    int32_t n_paths, gates, half, lanes;
};

template <typename T> static __device__ void make_gates(const mixer_args &m) {
    const uint32_t h = (uint32_t)m.gates, all = (uint32_t)m.rows * h;
    for (uint32_t i = blockIdx.x * HH_CUDA_BLOCK + threadIdx.x; i < all; i += gridDim.x * HH_CUDA_BLOCK) {
        const int64_t t = i / h, head = i - t * h;
        const float x = hh_load((const T *)m.a + t * m.a_stride + head) + m.dt_bias[head];
        m.g[t * m.g_stride + head] = -expf(m.A_log[head]) * hh_softplus(x);
        m.beta[t * m.beta_stride + head] = m.beta_scale * hh_sigmoid(hh_load((const T *)m.b + t * m.b_stride + head));
    }
}

/* Four numbers of row t, which may stand in the span's tail (float) or before everything (zeros). */
template <typename T>
static __device__ __forceinline__ hh_pack<4, T> read_window(const T *x, int64_t stride, const float *tail,
                                                            int64_t tail_stride, int64_t lo, int64_t t, int n) {
    if (t >= lo || !tail) return hh_read_pack<4>(x + t * stride, t >= lo ? n : 0);
    const float *from = tail + (t - lo + TAIL) * tail_stride;
    float row[4];
#pragma unroll
    for (int i = 0; i < 4; i++) row[i] = n ? from[i] : 0.0f;
    return hh_make_pack<T>(row);
}

/* The last three inputs of a span, by the team that read its tail. */
template <typename T>
static __device__ void keep_tail(const T *x, int64_t stride, float *tail, int64_t tail_stride, int64_t lo, int64_t hi) {
    for (int j = 0; j < TAIL; j++) { /* oldest first: no row is read that was already replaced */
        const int64_t t = hi - TAIL + j;
        for (int i = 0; i < 4; i++)
            tail[j * tail_stride + i] = t >= lo ? hh_load(x + t * stride + i) : tail[(t - lo + TAIL) * tail_stride + i];
    }
}

/* F1 of 4 channels: rows[0..3] end with the present token. */
template <typename T>
static __device__ __forceinline__ void convolve(float (&out)[4], const hh_pack<4, T> *rows, const float4 (&taps)[4]) {
    float r[W][4];
#pragma unroll
    for (int j = 0; j < W; j++) hh_unpack(r[j], rows[j]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = taps[i].x * r[0][i] + taps[i].y * r[1][i] + taps[i].z * r[2][i] + taps[i].w * r[3][i];
}

static __device__ __forceinline__ float squares(const float (&a)[4], const float (&b)[4]) {
    float s = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) s += a[i] * a[i] + b[i] * b[i];
    return s;
}

/* F2-F4 of one token's head: a, b are this lane's numbers of its halves. All lanes of a warp come here. */
static __device__ __forceinline__ void normalise(float (&a)[4], float (&b)[4], const mixer_args &m, const path_args &p,
                                                 int64_t t, int head, int c, int n, bool first_lane) {
    if (p.norm) {
        const float r = 1.0f / sqrtf(hh_team_sum(squares(a, b), m.lanes) / (float)(2 * m.half) + m.eps);
        float u[4], v[4];
        hh_load_pack(u, p.norm + c, n);
        hh_load_pack(v, p.norm + m.half + c, n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[i] *= r * u[i];
            b[i] *= r * v[i];
        }
        if (p.rstd && first_lane) p.rstd[t * p.rstd_stride + head] = r;
    }
    if (p.rotate) {
        float cosine[4], sine[4];
        hh_load_pack(cosine, m.cos_ + t * m.cos_stride + c, n);
        hh_load_pack(sine, m.sin_ + t * m.sin_stride + c, n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float u = a[i], v = b[i];
            a[i] = u * cosine[i] - v * sine[i];
            b[i] = v * cosine[i] + u * sine[i];
        }
    }
    if (p.r) {
        const float r = 1.0f / sqrtf(hh_team_sum(squares(a, b), m.lanes) + (float)HH_L2NORM_EPS);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[i] *= p.scale * r;
            b[i] *= p.scale * r;
        }
        if (first_lane) p.r[t * p.r_stride + head] = r;
    }
}

/* gridDim.y: a path each, and one more for the gates. */
template <typename T, bool CONV>
static __global__ void __launch_bounds__(HH_CUDA_BLOCK) mixer_forward(const __grid_constant__ mixer_args m) {
    constexpr int BEFORE = CONV ? TAIL : 0;
    if (blockIdx.y == m.n_paths) {
        make_gates<T>(m);
        return;
    }
    const path_args &p = m.path[blockIdx.y];
    const int64_t item = hh_team_index(m.lanes), chunk = item / p.heads;
    const int head = (int)(item - chunk * p.heads), c = (threadIdx.x % m.lanes) * 4;
    int64_t first;
    const int64_t s = hh_span_of_chunk(&first, m.span, m.n_spans, chunk, CHUNK);
    const int64_t lo = s < 0 ? 0 : m.span[s].lo, hi = s < 0 ? 0 : m.span[s].hi;
    const int n = first < hi && c < m.half ? 4 : 0;
    const int64_t column = (int64_t)head * 2 * m.half + c;
    const T *x = (const T *)p.x + column;
    float *tail = CONV && p.tails && n ? p.tails[s] + column : nullptr;
    hh_pack<4, T> u[CHUNK + BEFORE], v[CHUNK + BEFORE];
#pragma unroll
    for (int k = -BEFORE; k < CHUNK; k++) {
        const int64_t t = first + k;
        const int here = t < hi ? n : 0;
        u[k + BEFORE] = read_window(x, p.x_stride, (const float *)tail, p.tail_stride, lo, t, here);
        v[k + BEFORE] = read_window(x + m.half, p.x_stride, tail ? (const float *)tail + m.half : nullptr,
                                    p.tail_stride, lo, t, here);
    }
    float4 u_taps[4], v_taps[4];
#pragma unroll
    for (int i = 0; CONV && i < 4; i++) {
        u_taps[i] = n ? ((const float4 *)p.taps)[column + i] : make_float4(0, 0, 0, 0);
        v_taps[i] = n ? ((const float4 *)p.taps)[column + m.half + i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < CHUNK; k++) {
        const int64_t t = first + k;
        const int here = t < hi ? n : 0;
        if (!__any_sync(0xffffffffu, here)) break;
        float a[4], b[4];
        if constexpr (CONV) {
            convolve(a, u + k, u_taps);
            convolve(b, v + k, v_taps);
            if (p.conv) {
                T *kept = (T *)p.conv + t * p.conv_stride + column;
                hh_store_pack(kept, a, here);
                hh_store_pack(kept + m.half, b, here);
            }
        } else {
            hh_unpack(a, u[k]);
            hh_unpack(b, v[k]);
        }
        normalise(a, b, m, p, t, head, c, here, here && c == 0);
        T *y = (T *)p.y + t * p.y_stride + column;
        hh_store_pack(y, a, here);
        hh_store_pack(y + m.half, b, here);
    }
    if (!tail || first != lo) return;
    keep_tail(x, p.x_stride, tail, p.tail_stride, lo, hi);
    keep_tail(x + m.half, p.x_stride, tail + m.half, p.tail_stride, lo, hi);
}

/* -- the call -- */

static bool is_wide(hh_backend *be, hh_tensor t) {
    return hh_is_packed(t, 4 * hh_dtype_bytes(be->activation, 1));
}

/* Can the kernel have it? Else the steps are taken one by one. */
static bool is_fusable(hh_backend *be, const hh_mixer_inputs *in) {
    const int64_t D = in->n_paths ? in->path[0].x.dim[2] : 8;
    if (D % 8 || D > MOST_D) return false;
    for (int i = 0; i < in->n_paths; i++) {
        const hh_mixer_path *p = &in->path[i];
        const bool convolves = !hh_is_absent(p->taps);
        if (convolves != !hh_is_absent(in->path[0].taps)) return false;
        if (!is_wide(be, p->x) || !is_wide(be, p->y) || !hh_is_packed(p->norm)) return false;
        if (convolves && (!is_wide(be, p->conv) || !hh_is_packed(p->taps) || !hh_tensor_is_dense(p->taps)))
            return false;
        if (p->rotate && (!hh_is_packed(in->cos) || !hh_is_packed(in->sin))) return false;
    }
    return true;
}

static void set_path(hh_backend *be, path_args *a, const hh_mixer_path *p, int64_t D, int64_t n_spans) {
    const int64_t heads = p->x.dim[1];
    HH_ASSERT(hh_is_act(be, p->x) && hh_is_act(be, p->y) && hh_is_like(p->y, p->x) && p->x.dim[2] == D);
    HH_ASSERT(hh_is_absent(p->norm) || hh_is_f32_vector(p->norm, D));
    HH_ASSERT(hh_is_absent(p->rstd) || hh_is_f32_per_group(p->rstd, p->x));
    HH_ASSERT(hh_is_absent(p->r) || hh_is_f32_per_group(p->r, p->x));
    a->x = p->x.data;
    a->x_stride = p->x.stride;
    a->y = p->y.data;
    a->y_stride = p->y.stride;
    a->heads = (int32_t)heads;
    a->rotate = p->rotate;
    a->norm = (const float *)p->norm.data;
    a->rstd = (float *)p->rstd.data;
    a->rstd_stride = p->rstd.stride;
    a->r = (float *)p->r.data;
    a->r_stride = p->r.stride;
    a->scale = (float)p->scale;
    if (hh_is_absent(p->taps)) return;
    HH_ASSERT(hh_is_act(be, p->conv) && hh_is_like(p->conv, p->x) && p->x.data != p->y.data);
    HH_ASSERT(hh_is_f32(p->taps) && p->taps.dim[0] == heads * D && hh_tensor_row_count(p->taps) == W);
    a->taps = (const float *)p->taps.data;
    a->conv = p->conv.data == p->y.data ? NULL : p->conv.data;
    a->conv_stride = p->conv.stride;
    if (!p->tail) return;
    a->tails = hh_cuda_list_tails(be, p->tail, n_spans, heads * D);
    a->tail_stride = p->tail[0].stride;
}

static void set_gates(hh_backend *be, mixer_args *m, const hh_mixer_inputs *in) {
    const int64_t h = hh_tensor_row_count(in->a);
    HH_ASSERT(hh_is_act(be, in->a) && hh_is_act(be, in->b) && hh_is_f32(in->g) && hh_is_f32(in->beta));
    HH_ASSERT(hh_is_like(in->b, in->a) && hh_is_like(in->g, in->a) && hh_is_like(in->beta, in->a));
    HH_ASSERT(hh_is_f32_vector(in->A_log, h) && hh_is_f32_vector(in->dt_bias, h) && in->a.dim[0] == m->rows);
    HH_ASSERT(m->rows * h < INT32_MAX);
    m->gates = (int32_t)h;
    m->g = (float *)in->g.data;
    m->beta = (float *)in->beta.data;
    m->a = in->a.data;
    m->b = in->b.data;
    m->g_stride = in->g.stride;
    m->beta_stride = in->beta.stride;
    m->a_stride = in->a.stride;
    m->b_stride = in->b.stride;
    m->A_log = (const float *)in->A_log.data;
    m->dt_bias = (const float *)in->dt_bias.data;
    m->beta_scale = (float)in->beta_scale;
}

extern "C" void hh_mixer_inputs_fwd_cuda(hh_backend *be, const hh_mixer_inputs *in, const hh_span *span,
                                         int64_t n_spans) {
    HH_ASSERT(in->n_paths >= 0 && in->n_paths <= 3);
    const bool gated = !hh_is_absent(in->g);
    if (!n_spans || (!in->n_paths && !gated)) return;
    if (!in->n_paths || !is_fusable(be, in)) {
        hh_mixer_inputs_by_steps(be, in, span, n_spans);
        return;
    }
    const int64_t D = in->path[0].x.dim[2];
    mixer_args m;
    memset(&m, 0, sizeof m);
    m.rows = in->path[0].x.dim[0];
    HH_ASSERT(hh_are_spans(span, n_spans, m.rows));
    m.half = (int32_t)(D / 2);
    for (m.lanes = 1; m.lanes * 4 < m.half;) m.lanes *= 2;
    m.n_paths = in->n_paths;
    m.n_spans = n_spans;
    m.eps = (float)in->eps;
    m.cos_ = (const float *)in->cos.data;
    m.sin_ = (const float *)in->sin.data;
    m.cos_stride = in->cos.stride;
    m.sin_stride = in->sin.stride;
    int64_t heads = 1;
    for (int i = 0; i < in->n_paths; i++) {
        HH_ASSERT(in->path[i].x.dim[0] == m.rows);
        set_path(be, &m.path[i], &in->path[i], D, n_spans);
        if (m.path[i].heads > heads) heads = m.path[i].heads;
    }
    if (gated) set_gates(be, &m, in);
    m.span = hh_cuda_list(be, span, n_spans);
    const int64_t teams = hh_chunk_bound(m.rows, n_spans, CHUNK) * heads;
    const dim3 grid((unsigned)hh_ceil_div(teams, HH_CUDA_BLOCK / m.lanes), (unsigned)(in->n_paths + gated));
    HH_CUDA_BY_TYPE(be->activation, T,
                    hh_cuda_launch(be, "mixer_inputs_fwd",
                                   hh_is_absent(in->path[0].taps) ? mixer_forward<T, false> : mixer_forward<T, true>,
                                   grid, HH_CUDA_BLOCK, 0, m));
}
