/* Gated DeltaNet token by token, F1-F3: the state stays in registers, is read once and written once. */
#include "ops/cuda/gdn_fwd.cuh"

#define WARPS   8
#define COLUMNS 32

/* A token's k and q. */
typedef struct keys {
    float k[HH_GDN_MAX_DIM], q[HH_GDN_MAX_DIM];
} keys;

template <typename T>
static __device__ __forceinline__ void load_keys(keys *x, const hh_gdn_io &io, int64_t t, int64_t h) {
    const T *q = (const T *)io.q + t * io.q_stride + h * io.D, *k = (const T *)io.k + t * io.k_stride + h * io.D;
    for (int a = threadIdx.x; a < HH_GDN_MAX_DIM; a += WARPS * 32) {
        x->k[a] = a < io.D ? hh_load(k + a) : 0;
        x->q[a] = a < io.D ? hh_load(q + a) : 0;
    }
}

/* A block has 32 columns of one head's state: lane l column l, warp w rows [w ROWS, (w + 1) ROWS). S'^T k and S'^T q are
 * summed together, for o = S^T q = S'^T q + beta (k . q) u: one barrier a token. Shared memory: three tokens' keys (one
 * is read, the next arrives, the one before may still be read), and the warps' sums of this token and the one before.
 * Bound by the state's traffic. */
template <typename T, int ROWS>
static __global__ void __launch_bounds__(WARPS * 32, ROWS == 32 ? 1 : 4)
    gdn_fwd_step_kernel(hh_gdn_io io, hh_gdn_part part) {
    __shared__ keys token[3];
    __shared__ float sums[2][3][WARPS][COLUMNS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = warp * ROWS;
    const int64_t s = blockIdx.x, h = io.first_head + blockIdx.y, D = io.D, b = blockIdx.z * COLUMNS + lane;
    const hh_span span = io.span[s];
    int64_t t = span.lo;
    if (part == HH_GDN_LAST_TOKEN) t = hh_gdn_has_last_token(span) ? span.hi - 1 : span.hi;
    if (t >= span.hi) return;
    float *state = hh_gdn_state(io, s, blockIdx.y), S[ROWS];
    const bool from_zero = !state || (!io.state && t == span.lo);
#pragma unroll
    for (int r = 0; r < ROWS; r++) S[r] = !from_zero && first + r < D && b < D ? state[(first + r) * D + b] : 0;
    const int64_t n_before = io.saved ? hh_gdn_chunks_before(io, s) : 0;
    load_keys<T>(&token[0], io, t, h);
    __syncthreads();
    for (int now = 0, odd = 0; t < span.hi; t++, now = now == 2 ? 0 : now + 1, odd ^= 1) {
        if (io.saved && (t - span.lo) % HH_GDN_CHUNK == 0 && b < D) {
            int64_t chunk = n_before + (t - span.lo) / HH_GDN_CHUNK;
            T *saved = (T *)io.saved + chunk * io.saved_stride + h * D * D;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (first + r < D) hh_store(saved + (first + r) * D + b, S[r]);
        }
        const float keep = expf(io.g[t * io.g_stride + h]), beta = io.beta[t * io.beta_stride + h];
        const float v = b < D ? hh_load((const T *)io.v + t * io.v_stride + h * D + b) : 0;
        const keys *x = &token[now];
        float Sk = 0, Sq = 0, kq = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            S[r] *= keep;
            Sk += S[r] * x->k[first + r];
            Sq += S[r] * x->q[first + r];
            kq += x->k[first + r] * x->q[first + r];
        }
        sums[odd][0][warp][lane] = Sk;
        sums[odd][1][warp][lane] = Sq;
        sums[odd][2][warp][lane] = kq;
        if (t + 1 < span.hi) load_keys<T>(&token[now == 2 ? 0 : now + 1], io, t + 1, h);
        __syncthreads();
        Sk = Sq = kq = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            Sk += sums[odd][0][w][lane];
            Sq += sums[odd][1][w][lane];
            kq += sums[odd][2][w][lane];
        }
        const float write = beta * (v - Sk); /* F1 */
#pragma unroll
        for (int r = 0; r < ROWS; r++) S[r] += x->k[first + r] * write;                             /* F2 */
        if (warp == 0 && b < D) hh_store((T *)io.o + t * io.o_stride + h * D + b, Sq + kq * write); /* F3 */
    }
    if (!state) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (first + r < D && b < D) state[(first + r) * D + b] = S[r];
}

void hh_gdn_step(hh_backend *be, const hh_gdn_io *x, hh_dtype dtype, hh_gdn_part part) {
    const dim3 grid((unsigned)x->n_spans, (unsigned)x->n_heads, (unsigned)hh_ceil_div(x->D, COLUMNS));
    HH_CUDA_BY_TYPE(dtype, T, {
        void (*kernel)(hh_gdn_io, hh_gdn_part) = x->D <= 8 * WARPS    ? gdn_fwd_step_kernel<T, 8>
                                                 : x->D <= 16 * WARPS ? gdn_fwd_step_kernel<T, 16>
                                                                      : gdn_fwd_step_kernel<T, 32>;
        hh_cuda_launch(be, "gdn_fwd", kernel, grid, dim3(WARPS * 32), 0, *x, part);
    });
}
