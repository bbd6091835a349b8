/* Gated DeltaNet's backward without tensor cores: float32 arithmetic, any head width, every line an equation of
 * ops/gdn.h. It serves --dtype f32 and the widths that have no kernel of their own, and the others are tested by it. */
#include "ops/cuda/gdn_bwd.cuh"

#define THREADS 256
#define COLUMNS 16 /* of dS, that a block of the scan has */

/* The scratch of a chunk and head. Matrices [n,n] have rows of GDN_N. */
typedef struct plain_scratch {
    float *KK, *A0, *P, *Y, *X, *half, *dN, *Dp; /* [n,n] */
    float *R, *Vh, *dVh, *dR;                    /* [n,D] */
    float *dS1;                                  /* [D,D] */
} plain_scratch;

int64_t gdn_bwd_scratch_plain(int64_t D) {
    return (int64_t)sizeof(float) * (8 * GDN_N * GDN_N + 4 * GDN_N * D + D * D);
}

static __device__ plain_scratch scratch_of(const gdn_bwd &x, int64_t c, int64_t h) {
    float *at = (float *)gdn_bwd_scratch_of(x, c, h);
    float *wide = at + 8 * GDN_N * GDN_N;
    plain_scratch s;
    s.KK = at, s.A0 = at + GDN_N * GDN_N, s.P = at + 2 * GDN_N * GDN_N, s.Y = at + 3 * GDN_N * GDN_N;
    s.X = at + 4 * GDN_N * GDN_N, s.half = at + 5 * GDN_N * GDN_N, s.dN = at + 6 * GDN_N * GDN_N;
    s.Dp = at + 7 * GDN_N * GDN_N;
    s.R = wide, s.Vh = wide + GDN_N * x.D, s.dVh = wide + 2 * GDN_N * x.D, s.dR = wide + 3 * GDN_N * x.D;
    s.dS1 = wide + 4 * GDN_N * x.D;
    return s;
}

/* sum of term(l) for l of [lo, hi) */
template <typename F> static __device__ __forceinline__ float sum(int64_t lo, int64_t hi, F term) {
    float s = 0;
    for (int64_t l = lo; l < hi; l++) s += term(l);
    return s;
}

/* G and beta of a chunk's tokens into shared memory; ends with a barrier. */
static __device__ void load_gates(float *G, float *beta, const gdn_bwd &x, gdn_bwd_chunk c, int64_t h) {
    for (int i = threadIdx.x; i < c.n; i += THREADS) {
        G[i] = *gdn_row<float>(x.g, c.t + i, h, 1);
        beta[i] = *gdn_row<float>(x.beta, c.t + i, h, 1);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < c.n; i++) G[i] += G[i - 1];
    __syncthreads();
}

/* F4-F7: K K^T, A0, P, R, V^. */
template <typename T> static __global__ void __launch_bounds__(THREADS) prepare_plain(gdn_bwd x) {
    __shared__ float G[GDN_N], beta[GDN_N], A0[GDN_N * (GDN_N + 1)];
    const int64_t h = blockIdx.y, D = x.D, ci = x.first + blockIdx.x;
    const gdn_bwd_chunk c = x.chunk[ci];
    const int n = c.n;
    const plain_scratch s = scratch_of(x, ci, h);
    const T *q = gdn_row<T>(x.q, c.t, h, D), *k = gdn_row<T>(x.k, c.t, h, D), *v = gdn_row<T>(x.v, c.t, h, D);
    const T *S0 = gdn_row<T>(x.saved, ci, h, D * D);
    load_gates(G, beta, x, c, h);
    for (int e = threadIdx.x; e < n * n; e += THREADS) {
        const int i = e / n, j = e % n;
        const T *ki = k + i * x.k.stride, *kj = k + j * x.k.stride, *qi = q + i * x.q.stride;
        s.KK[i * GDN_N + j] = i > j ? sum(0, D, [=](int64_t d) { return hh_load(ki + d) * hh_load(kj + d); }) : 0;
        s.P[i * GDN_N + j] =
            i >= j ? expf(G[i] - G[j]) * sum(0, D, [=](int64_t d) { return hh_load(qi + d) * hh_load(kj + d); }) : 0;
    }
    __syncthreads();
    const int j = threadIdx.x;
    if (j < n) /* a column a thread */
        for (int i = 0; i < n; i++) {
            const float a =
                i <= j ? i == j
                       : -beta[i] * sum(j, i, [&](int64_t m) { return s.KK[i * GDN_N + m] * A0[m * (GDN_N + 1) + j]; });
            A0[i * (GDN_N + 1) + j] = s.A0[i * GDN_N + j] = a;
        }
    for (int64_t e = threadIdx.x; e < n * D; e += THREADS) {
        const int64_t i = e / D, d = e % D;
        const T *ki = k + i * x.k.stride;
        s.R[e] = hh_load(v + i * x.v.stride + d) -
                 expf(G[i]) * sum(0, D, [=](int64_t a) { return hh_load(ki + a) * hh_load(S0 + a * D + d); });
    }
    __syncthreads();
    for (int64_t e = threadIdx.x; e < n * D; e += THREADS) {
        const int64_t i = e / D, d = e % D;
        s.Vh[e] = sum(0, i + 1, [&](int64_t m) {
            return A0[i * (GDN_N + 1) + m] * expf(G[i] - G[m]) * beta[m] * s.R[m * D + d];
        });
    }
}

/* B5 and B12 through the chunks of a span, for some columns of dS. */
template <typename T> static __global__ void __launch_bounds__(THREADS) scan_plain(gdn_bwd x) {
    __shared__ float G[GDN_N], beta[GDN_N], dS[HH_GDN_MAX_DIM * COLUMNS], dR[GDN_N * COLUMNS];
    const int64_t h = blockIdx.y, D = x.D, lo = blockIdx.z * COLUMNS;
    const int w = (int)(D - lo < COLUMNS ? D - lo : COLUMNS);
    const int64_t span = blockIdx.x, begin = max(x.first, x.span_chunk[span]);
    const int64_t end = min(x.last, x.span_chunk[span + 1]);
    if (begin >= end) return;
    const float *from = gdn_dS_from(x, span, end, h);
    float *to = gdn_dS_to(x, span, begin, h);
    for (int e = threadIdx.x; e < D * w; e += THREADS) dS[e] = from ? from[e / w * D + lo + e % w] : 0;
    for (int64_t ci = end - 1; ci >= begin; ci--) {
        const gdn_bwd_chunk c = x.chunk[ci];
        const int n = c.n;
        const plain_scratch s = scratch_of(x, ci, h);
        const T *q = gdn_row<T>(x.q, c.t, h, D), *k = gdn_row<T>(x.k, c.t, h, D);
        const T *dO = gdn_row<T>(x.do_, c.t, h, D) + lo;
        load_gates(G, beta, x, c, h);
        for (int e = threadIdx.x; e < D * w; e += THREADS) s.dS1[e / w * D + lo + e % w] = dS[e];
        for (int e = threadIdx.x; e < n * w; e += THREADS) {
            const int i = e / w, b = e % w;
            const T *ki = k + i * x.k.stride;
            s.dVh[i * D + lo + b] =
                sum(i, n, [=](int64_t m) { return s.P[m * GDN_N + i] * hh_load(dO + m * x.do_.stride + b); }) +
                expf(G[n - 1] - G[i]) * sum(0, D, [&](int64_t a) { return hh_load(ki + a) * dS[a * w + b]; });
        }
        __syncthreads();
        for (int e = threadIdx.x; e < n * w; e += THREADS) {
            const int i = e / w, b = e % w;
            dR[e] = beta[i] * sum(i, n, [&](int64_t m) {
                        return s.A0[m * GDN_N + i] * expf(G[m] - G[i]) * s.dVh[m * D + lo + b];
                    });
            s.dR[i * D + lo + b] = dR[e];
            hh_store(gdn_row<T>(x.dv, c.t + i, h, D) + lo + b, dR[e]);
        }
        __syncthreads();
        for (int e = threadIdx.x; e < D * w; e += THREADS) {
            const int a = e / w, b = e % w;
            dS[e] = expf(G[n - 1]) * dS[e] + sum(0, n, [&](int64_t i) {
                        return expf(G[i]) * (hh_load(q + i * x.q.stride + a) * hh_load(dO + i * x.do_.stride + b) -
                                             hh_load(k + i * x.k.stride + a) * dR[i * w + b]);
                    });
        }
        __syncthreads();
    }
    for (int e = threadIdx.x; e < D * w && to; e += THREADS) to[e / w * D + lo + e % w] = dS[e];
}

/* B6 and B10: dN, D', and Y as running sums of its rows, Y_i0 + .. + Y_ij. */
template <typename T>
static __device__ void triangle_grad(const gdn_bwd &x, const plain_scratch &s, const float *G, const float *beta,
                                     gdn_bwd_chunk c, int64_t h) {
    const int64_t D = x.D;
    const int n = c.n;
    const T *dO = gdn_row<T>(x.do_, c.t, h, D);
    for (int e = threadIdx.x; e < n * n; e += THREADS) {
        const int i = e / n, j = e % n, at = i * GDN_N + j;
        const T *grad = dO + i * x.do_.stride;
        const float *Vh = s.Vh + j * D, *dVh = s.dVh + i * D, *R = s.R + j * D;
        const float E = i >= j ? expf(G[i] - G[j]) : 0;
        const float dP = i >= j ? sum(0, D, [=](int64_t d) { return hh_load(grad + d) * Vh[d]; }) : 0;
        const float dB = i >= j ? sum(0, D, [=](int64_t d) { return dVh[d] * R[d]; }) : 0;
        s.Dp[at] = dP * E;
        s.X[at] = dB * E;
        s.Y[at] = i > j ? dP * s.P[at] + dB * s.A0[at] * E * beta[j] : 0;
    }
    __syncthreads();
    if (threadIdx.x < n)
        for (int j = 1; j < n; j++) s.Y[threadIdx.x * GDN_N + j] += s.Y[threadIdx.x * GDN_N + j - 1];
    for (int e = threadIdx.x; e < n * n; e += THREADS) {
        const int i = e / n, j = e % n;
        s.half[i * GDN_N + j] =
            sum(i, n, [=](int64_t m) { return s.A0[m * GDN_N + i] * s.X[m * GDN_N + j] * beta[j]; });
    }
    __syncthreads();
    for (int e = threadIdx.x; e < n * n; e += THREADS) {
        const int i = e / n, j = e % n;
        s.dN[i * GDN_N + j] =
            i > j ? -sum(0, j + 1, [=](int64_t m) { return s.half[i * GDN_N + m] * s.A0[j * GDN_N + m]; }) : 0;
    }
    __syncthreads();
}

/* B7 and B8, a token a warp. before_i = what token i adds to dg of later tokens, behind_i = to its own and those before
 * it. */
template <typename T>
static __device__ void token_grad(float *before, float *behind, const gdn_bwd &x, const plain_scratch &s,
                                  const float *G, const float *beta, gdn_bwd_chunk c, int64_t h, const T *S0) {
    const int64_t D = x.D;
    const int n = c.n, lane = threadIdx.x % 32;
    const T *q = gdn_row<T>(x.q, c.t, h, D), *k = gdn_row<T>(x.k, c.t, h, D);
    for (int i = threadIdx.x / 32; i < n; i += THREADS / 32) {
        const T *dO = gdn_row<T>(x.do_, c.t + i, h, D);
        const float *Vh = s.Vh + i * D, *dR = s.dR + i * D, into = expf(G[i]), out = expf(G[n - 1] - G[i]);
        float at_start = 0, at_end = 0;
        for (int64_t a = lane; a < D; a += 32) {
            const T *S0a = S0 + a * D;
            const float *dS1a = s.dS1 + a * D;
            const float from_q = into * sum(0, D, [=](int64_t b) { return hh_load(dO + b) * hh_load(S0a + b); });
            const float from_k = into * sum(0, D, [=](int64_t b) { return dR[b] * hh_load(S0a + b); });
            const float from_v = out * sum(0, D, [=](int64_t b) { return Vh[b] * dS1a[b]; });
            at_start += from_q * hh_load(q + i * x.q.stride + a) - from_k * hh_load(k + i * x.k.stride + a);
            at_end += from_v * hh_load(k + i * x.k.stride + a);
            const float dq =
                sum(0, i + 1, [=](int64_t j) { return s.Dp[i * GDN_N + j] * hh_load(k + j * x.k.stride + a); });
            const float dk =
                sum(i, n, [=](int64_t j) { return s.Dp[j * GDN_N + i] * hh_load(q + j * x.q.stride + a); });
            const float row =
                sum(0, i, [=](int64_t j) { return s.dN[i * GDN_N + j] * hh_load(k + j * x.k.stride + a); });
            const float column = sum(
                i + 1, n, [=](int64_t j) { return s.dN[j * GDN_N + i] * beta[j] * hh_load(k + j * x.k.stride + a); });
            hh_store(gdn_row<T>(x.dq, c.t + i, h, D) + a, from_q + dq);
            hh_store(gdn_row<T>(x.dk, c.t + i, h, D) + a, from_v - from_k + dk + beta[i] * row + column);
        }
        at_start = hh_warp_sum(at_start), at_end = hh_warp_sum(at_end);
        if (lane == 0) behind[i] = at_start, before[i] = at_end;
    }
}

/* B9 and B11, a token a thread. */
static __device__ void gate_grad(const gdn_bwd &x, const plain_scratch &s, const float *before, const float *behind,
                                 float along_state, gdn_bwd_chunk c, int64_t h) {
    const int n = c.n, m = threadIdx.x;
    if (m >= n) return;
    const float dbeta = sum(m, n, [=](int64_t i) { return s.X[i * GDN_N + m] * s.A0[i * GDN_N + m]; }) +
                        sum(0, m, [=](int64_t j) { return s.dN[m * GDN_N + j] * s.KK[m * GDN_N + j]; });
    const float factors = m ? sum(m, n, [=](int64_t i) { return s.Y[i * GDN_N + m - 1]; }) : 0;
    *gdn_row<float>(x.dbeta, c.t + m, h, 1) = dbeta;
    *gdn_row<float>(x.dg, c.t + m, h, 1) = factors + sum(m, n, [=](int64_t i) { return behind[i]; }) +
                                           sum(0, m, [=](int64_t i) { return before[i]; }) + along_state;
}

/* Everything that needs dS at the chunk's end and dR. */
template <typename T> static __global__ void __launch_bounds__(THREADS) finish_plain(gdn_bwd x) {
    __shared__ float G[GDN_N], beta[GDN_N], before[GDN_N], behind[GDN_N], part[THREADS / 32];
    const int64_t h = blockIdx.y, D = x.D, ci = x.first + blockIdx.x;
    const gdn_bwd_chunk c = x.chunk[ci];
    const plain_scratch s = scratch_of(x, ci, h);
    const T *S0 = gdn_row<T>(x.saved, ci, h, D * D);
    load_gates(G, beta, x, c, h);
    triangle_grad<T>(x, s, G, beta, c, h);
    token_grad(before, behind, x, s, G, beta, c, h, S0);
    float along = 0;
    for (int64_t e = threadIdx.x; e < D * D; e += THREADS) along += hh_load(S0 + e) * s.dS1[e];
    along = hh_warp_sum(along);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = along;
    __syncthreads();
    gate_grad(x, s, before, behind, expf(G[c.n - 1]) * sum(0, THREADS / 32, [&](int64_t i) { return part[i]; }), c, h);
}

template <typename T> static void launch_tile(hh_backend *be, const gdn_bwd *x) {
    const unsigned chunks = (unsigned)(x->last - x->first), heads = (unsigned)x->heads;
    const unsigned slices = (unsigned)hh_ceil_div(x->D, COLUMNS);
    hh_cuda_launch(be, "gdn_bwd", prepare_plain<T>, dim3(chunks, heads), dim3(THREADS), 0, *x);
    hh_cuda_launch(be, "gdn_bwd", scan_plain<T>, dim3((unsigned)x->n_spans, heads, slices), dim3(THREADS), 0, *x);
    hh_cuda_launch(be, "gdn_bwd", finish_plain<T>, dim3(chunks, heads), dim3(THREADS), 0, *x);
}

void gdn_bwd_tile_plain(hh_backend *be, const gdn_bwd *x) {
    HH_CUDA_BY_TYPE(be->activation, T, launch_tile<T>(be, x));
}
