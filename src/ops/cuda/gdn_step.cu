/* Gated DeltaNet token by token, F1-F3: the state stays in registers, is read once and written once. */
#include "ops/cuda/gdn_fwd.cuh"

#define WARPS   8
#define COLUMNS 32

/* Where a block stands: a token of an item; an item is 32 columns of one head's state in one span. */
typedef struct place {
    unsigned item;
    int s, h, column;  /* span, head counted from first_head, this lane's column */
    int64_t t, lo, hi; /* the token, and its span's */
    bool begins, ends; /* the item's first or last token */
} place;

/* The next token of the item, or the first one of this block's next item that has tokens; false behind the last. */
static __device__ __forceinline__ bool advance(place *p, const hh_gdn_io &io, hh_gdn_part part, unsigned items) {
    const unsigned slices = (unsigned)(io.D + COLUMNS - 1) / COLUMNS, heads = (unsigned)io.n_heads;
    p->begins = ++p->t >= p->hi;
    while (p->t >= p->hi) {
        p->item += gridDim.x;
        if (p->item >= items) return false;
        const unsigned head = p->item / slices;
        p->column = (int)(p->item % slices) * COLUMNS + (threadIdx.x & 31);
        p->s = (int)(head / heads), p->h = (int)(head % heads);
        const hh_span span = io.span[p->s];
        p->lo = p->t = span.lo, p->hi = span.hi;
        if (part == HH_GDN_LAST_TOKEN) p->t = hh_gdn_chunks_end(span);
    }
    p->ends = p->t + 1 == p->hi;
    return true;
}

/* What a thread fetches of a token: element threadIdx.x of k and q, and what its lane's column needs. */
typedef struct token {
    float k, q, v, g, beta;
} token;

template <typename T> static __device__ __forceinline__ token load_token(const hh_gdn_io &io, const place &p) {
    const int64_t h = io.first_head + p.h, a = threadIdx.x;
    token x;
    x.k = a < io.D ? hh_load((const T *)io.k + p.t * io.k_stride + h * io.D + a) : 0;
    x.q = a < io.D ? hh_load((const T *)io.q + p.t * io.q_stride + h * io.D + a) : 0;
    x.v = p.column < io.D ? hh_load((const T *)io.v + p.t * io.v_stride + h * io.D + p.column) : 0;
    x.g = io.g[p.t * io.g_stride + h];
    x.beta = io.beta[p.t * io.beta_stride + h];
    return x;
}

template <int ROWS>
static __device__ __forceinline__ void load_state(float S[ROWS], const hh_gdn_io &io, const place &p) {
    const int first = (threadIdx.x >> 5) * ROWS, D = io.D;
    const float *state = hh_gdn_state(io, p.s, p.h);
    if (!io.state && p.t == p.lo) state = NULL;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        S[r] = state && first + r < D && p.column < D ? state[(first + r) * D + p.column] : 0;
}

/* To rows D apart; U is float for the state, the activation's type for what the backward wants. */
template <int ROWS, typename U>
static __device__ __forceinline__ void store_state(U *to, const float S[ROWS], const hh_gdn_io &io, const place &p) {
    const int first = (threadIdx.x >> 5) * ROWS, D = io.D;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (first + r < D && p.column < D) hh_store(to + (first + r) * D + p.column, S[r]);
}

/* A block goes through items: lane l has column l, warp w rows [w ROWS, (w + 1) ROWS). While a token is computed the next
 * one arrives, and the next item's state with it. S'^T k and S'^T q are summed together, for
 * o = S^T q = S'^T q + beta (k . q) u. Bound by the state's traffic. */
template <typename T, int ROWS>
static __global__ void __launch_bounds__(WARPS * 32, ROWS == 32 ? 1 : 3)
    gdn_fwd_step_kernel(hh_gdn_io io, hh_gdn_part part, unsigned items) {
    __shared__ float keys[2][2][WARPS * 32]; /* k and q of this token and the next */
    __shared__ float sums[3][WARPS][COLUMNS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = warp * ROWS;
    place now;
    now.item = blockIdx.x - gridDim.x, now.t = now.hi = 0;
    if (!advance(&now, io, part, items)) return;
    float S[ROWS], S_next[ROWS];
    token x = load_token<T>(io, now);
    load_state<ROWS>(S, io, now);
    keys[0][0][threadIdx.x] = x.k;
    keys[0][1][threadIdx.x] = x.q;
    __syncthreads();
    for (int odd = 0;; odd ^= 1) {
        place next = now;
        const bool more = advance(&next, io, part, items);
        token y = {0, 0, 0, 0, 0};
        if (more) {
            y = load_token<T>(io, next);
            if (next.begins) load_state<ROWS>(S_next, io, next);
        }
        if (io.saved && (now.t - now.lo) % HH_GDN_CHUNK == 0) {
            const int64_t chunk = hh_gdn_chunks_before(io, now.s) + (now.t - now.lo) / HH_GDN_CHUNK;
            store_state<ROWS>((T *)io.saved + chunk * io.saved_stride + (io.first_head + now.h) * io.D * io.D, S, io,
                              now);
        }
        const float *k = keys[odd][0] + first, *q = keys[odd][1] + first, keep = expf(x.g);
        float Sk = 0, Sq = 0, kq = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            S[r] *= keep;
            Sk += S[r] * k[r];
            Sq += S[r] * q[r];
            kq += k[r] * q[r];
        }
        sums[0][warp][lane] = Sk;
        sums[1][warp][lane] = Sq;
        sums[2][warp][lane] = kq;
        __syncthreads();
        Sk = Sq = kq = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            Sk += sums[0][w][lane];
            Sq += sums[1][w][lane];
            kq += sums[2][w][lane];
        }
        const float write = x.beta * (x.v - Sk); /* F1 */
#pragma unroll
        for (int r = 0; r < ROWS; r++) S[r] += k[r] * write; /* F2 */
        if (warp == 0 && now.column < io.D)
            hh_store((T *)io.o + now.t * io.o_stride + (io.first_head + now.h) * io.D + now.column,
                     Sq + kq * write); /* F3 */
        float *state = hh_gdn_state(io, now.s, now.h);
        if (now.ends && state) store_state<ROWS>(state, S, io, now);
        if (!more) return;
        if (next.begins)
#pragma unroll
            for (int r = 0; r < ROWS; r++) S[r] = S_next[r];
        keys[odd ^ 1][0][threadIdx.x] = y.k;
        keys[odd ^ 1][1][threadIdx.x] = y.q;
        x = y, now = next;
        __syncthreads();
    }
}

void hh_gdn_step(hh_backend *be, const hh_gdn_io *x, hh_dtype dtype, hh_gdn_part part) {
    const int64_t items = x->n_spans * x->n_heads * hh_ceil_div(x->D, COLUMNS);
    const int64_t most = 3 * hh_cuda_of(be)->n_sms;
    HH_ASSERT(items < INT32_MAX);
    HH_CUDA_BY_TYPE(dtype, T, {
        void (*kernel)(hh_gdn_io, hh_gdn_part, unsigned) = x->D <= 8 * WARPS    ? gdn_fwd_step_kernel<T, 8>
                                                           : x->D <= 16 * WARPS ? gdn_fwd_step_kernel<T, 16>
                                                                                : gdn_fwd_step_kernel<T, 32>;
        hh_cuda_launch(be, "gdn_fwd", kernel, dim3((unsigned)(items < most ? items : most)), dim3(WARPS * 32), 0, *x,
                       part, (unsigned)items);
    });
}
