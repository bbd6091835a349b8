/* dS through the chunks of Gated DeltaNet's backward, on tensor cores; see gdn_bwd.cuh.
 *
 * A block walks with 32 columns of dS of one head through the chunks of a span, from the last to the first. Where spans
 * and heads are too few to fill the card, the tile is cut into windows of some chunks, and this goes in three steps.
 * A window that a span runs through is affine in the dS at its end: dS_start = A dS_end + C. First all windows at once
 * find A and C, walking from dS_end = I without the chunks' own terms, and from 0. Then `combine` goes through the
 * windows, and the walk proper starts at the true dS at every window's end. Exact, for twice the products. */
#include "ops/cuda/cluster.cuh"
#include "ops/cuda/gdn_bwd.cuh"

#define COLUMNS GDN_BWD_COLUMNS /* of dS, that a block has */
#define STAGES  4               /* chunks on their way to it, and the one in work */
#define THREADS 160             /* four warps that compute, one that sends for chunks and sends dS away */

#define SLICE_STRIDE HH_GDN_STRIDE(COLUMNS)

template <int D> struct scan_shared {
    struct {
        hh_bf16 ZK[D * HH_GDN_STRIDE(D)];
        float last[4]; /* e^{G_n} */
        hh_bf16 C[D * SLICE_STRIDE];
    } stage[STAGES];
    hh_bf16 dS[3][D * SLICE_STRIDE]; /* read by this step; made by it; on its way out from the step before */
    uint64_t full[STAGES];
};

/* This block's columns of Q'^T dO, later of dS1, of a chunk. */
template <int D> static __device__ __forceinline__ char *slice_of(const gdn_bwd &x, int64_t ci, int64_t h, int column) {
    return gdn_bwd_scratch_of(x, ci, h) + gdn_bwd_at_dS(D) + column * (D * SLICE_STRIDE * 2 / COLUMNS);
}

/* Sends for a chunk; one thread. */
template <int D>
static __device__ __forceinline__ void fetch(scan_shared<D> &s, int stage, const gdn_bwd &x, int64_t ci, int64_t h,
                                             int column) {
    constexpr int FIRST = D * HH_GDN_STRIDE(D) * 2 + 16, SECOND = D * SLICE_STRIDE * 2;
    hh_mbarrier_expect(&s.full[stage], FIRST + SECOND);
    hh_bulk_copy(s.stage[stage].ZK, gdn_bwd_scratch_of(x, ci, h) + gdn_bwd_at_ZK(), FIRST, &s.full[stage]);
    hh_bulk_copy(s.stage[stage].C, slice_of<D>(x, ci, h, column), SECOND, &s.full[stage]);
}

/* Row and column of the pair x of a warp's part of dS, D/4 rows and COLUMNS columns: acc[x / 8][x / 4 % 2][x / 2 % 2]. */
template <int D> static __device__ __forceinline__ int scan_row(int w, int x) {
    return w * (D / 4) + 16 * (x / 8) + hh_gdn_row(0, x % 2 * 2);
}
static __device__ __forceinline__ int scan_column(int x) {
    return hh_gdn_column(x / 4 % 2, x / 2 % 2, 0);
}

/* acc = X dS: rows of warp w of the [D,D] tile X, times columns in bf16. */
template <int D>
static __device__ __forceinline__ void multiply_dS(float acc[D / 64][2][2][4], const hh_bf16 *X, const hh_bf16 *dS,
                                                   int w) {
    constexpr int BLOCKS = D / 64;
#pragma unroll
    for (int i = 0; i < BLOCKS * 16; i++) ((float *)acc)[i] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t a[BLOCKS][4], b[2][4];
#pragma unroll
        for (int m = 0; m < BLOCKS; m++)
            hh_load_a(a[m], X + (w * (D / 4) + 16 * m) * HH_GDN_STRIDE(D) + k, HH_GDN_STRIDE(D));
#pragma unroll
        for (int n = 0; n < 2; n++) hh_load_b(b[n], dS + k * SLICE_STRIDE + 16 * n, SLICE_STRIDE);
#pragma unroll
        for (int m = 0; m < BLOCKS; m++)
#pragma unroll
            for (int n = 0; n < 2; n++) hh_mma_pair(acc[m][n], a[m], b[n]);
    }
}

/* One chunk: dS in `part` (float32) and `now` (bf16) becomes that before the chunk, in `part` and `next`. Without C, the
 * chunk's own term is left out. */
template <int D>
static __device__ __forceinline__ void step(float part[D / 64][2][2][4], hh_bf16 *next, const hh_bf16 *now,
                                            const hh_bf16 *ZK, const hh_bf16 *C, float last, int w) {
    float acc[D / 64][2][2][4];
    multiply_dS<D>(acc, ZK, now, w);
#pragma unroll
    for (int x = 0; x < D / 8; x++) {
        const int at = scan_row<D>(w, x) * SLICE_STRIDE + scan_column(x);
        float *d = (float *)part + x * 2;
        const float *p = (const float *)acc + x * 2;
        const uint32_t c = C ? *(const uint32_t *)(C + at) : 0;
        d[0] = last * (d[0] - p[0]) + hh_low_bf16(c);
        d[1] = last * (d[1] - p[1]) + hh_high_bf16(c);
        *(uint32_t *)(next + at) = hh_pack_bf16(d[0], d[1]);
    }
}

/* A window and head in x.windows: A' = e I - A in bf16, C and the dS at the window's end in float32, the dS that the
 * first of its spans ends with (the final walk writes dstate, while others begin), and e, the decay over the window. */
static inline __host__ __device__ int64_t at_C(int64_t D) {
    return D * D * 2;
}
static inline __host__ __device__ int64_t at_end(int64_t D) {
    return at_C(D) + D * D * 4;
}
static inline __host__ __device__ int64_t at_given(int64_t D) {
    return at_end(D) + D * D * 4;
}
static inline __host__ __device__ int64_t at_decay(int64_t D) {
    return at_given(D) + D * D * 4;
}
int64_t gdn_bwd_window_bytes(int64_t D) {
    return at_decay(D) + 256;
}
static __device__ __forceinline__ char *window_of(const gdn_bwd &x, int64_t w, int64_t h) {
    return x.windows + (w * x.heads + h) * x.window_bytes;
}

/* How a walk begins and what it leaves. */
typedef enum walk {
    WALK,   /* from the true dS; leaves it in every chunk's scratch */
    WALK_A, /* from I, without the chunks' own terms: leaves nothing on its way */
    WALK_C, /* from dS or 0: likewise */
} walk;

/* This thread's part of columns [column, column + COLUMNS) of a [D,D] in float32; NULL: zeros. */
template <int D>
static __device__ __forceinline__ void load_part(float part[D / 64][2][2][4], const float *from, int column, int w) {
#pragma unroll
    for (int e = 0; e < D / 8; e++) {
        const float *at = from + scan_row<D>(w, e) * D + column + scan_column(e);
        float *d = (float *)part + e * 2;
        d[0] = from ? at[0] : 0, d[1] = from ? at[1] : 0;
    }
}
template <int D>
static __device__ __forceinline__ void store_part(float *to, const float part[D / 64][2][2][4], int column, int w) {
#pragma unroll
    for (int e = 0; e < D / 8; e++) {
        float *at = to + scan_row<D>(w, e) * D + column + scan_column(e);
        at[0] = ((const float *)part)[e * 2], at[1] = ((const float *)part)[e * 2 + 1];
    }
}

/* The same in bf16, where all warps read it. */
template <int D>
static __device__ __forceinline__ void store_bf16(hh_bf16 *dS, const float part[D / 64][2][2][4], int w) {
#pragma unroll
    for (int e = 0; e < D / 8; e++) {
        const float *d = (const float *)part + e * 2;
        *(uint32_t *)(dS + scan_row<D>(w, e) * SLICE_STRIDE + scan_column(e)) = hh_pack_bf16(d[0], d[1]);
    }
}

/* Chunks [begin, end) of one span: `part` from behind the last to before the first. `count` counts chunks over all walks
 * of this block, for the barriers' parities. Returns the decay over them. */
template <int D>
static __device__ __forceinline__ float walk_chunks(float part[D / 64][2][2][4], int64_t *count, scan_shared<D> &s,
                                                    const gdn_bwd &x, int64_t begin, int64_t end, int64_t h, int column,
                                                    walk what) {
    const int w = threadIdx.x / 32;
    const bool sends = threadIdx.x == 4 * 32;
    const int64_t base = *count;
    float decay = 1;
    if (sends)
        for (int i = 0; i < STAGES - 1 && end - 1 - i >= begin; i++)
            fetch<D>(s, (int)((base + i) % STAGES), x, end - 1 - i, h, column);
    if (w < 4) {
        store_bf16<D>(s.dS[base % 3], part, w);
        hh_bulk_publish();
    }
    for (int64_t i = 0; i < end - begin; i++) {
        const int64_t ci = end - 1 - i, at = base + i;
        const int stage = (int)(at % STAGES), side = (int)(at % 3);
        __syncthreads(); /* dS is there, and the stage before this has been read */
        if (sends) {
            if (ci - (STAGES - 1) >= begin)
                fetch<D>(s, (int)((at + STAGES - 1) % STAGES), x, ci - (STAGES - 1), h, column);
            hh_mbarrier_wait(&s.full[stage], (int)(at / STAGES) & 1); /* C has left the place that dS1 goes to */
            if (what == WALK) hh_bulk_store(slice_of<D>(x, ci, h, column), s.dS[side], D * SLICE_STRIDE * 2);
            hh_bulk_store_wait<1>();
        }
        if (w < 4) {
            hh_mbarrier_wait(&s.full[stage], (int)(at / STAGES) & 1);
            step<D>(part, s.dS[(side + 1) % 3], s.dS[side], s.stage[stage].ZK, what == WALK_A ? NULL : s.stage[stage].C,
                    s.stage[stage].last[0], w);
            decay *= s.stage[stage].last[0];
            hh_bulk_publish();
        }
    }
    if (sends) hh_bulk_store_wait<0>();
    __syncthreads();
    *count = base + end - begin;
    return decay;
}

/* The barriers of a block, before its first walk. */
template <int D> static __device__ __forceinline__ void init_barriers(scan_shared<D> &s) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) hh_mbarrier_init(&s.full[i], 1);
        hh_mbarrier_publish();
    }
    __syncthreads();
}

/* The walk proper, through a span of the tile, or through a window. */
template <int D> static __global__ void __launch_bounds__(THREADS) scan(gdn_bwd x) {
    extern __shared__ __align__(128) char shared[];
    scan_shared<D> &s = *(scan_shared<D> *)shared;
    const int64_t h = blockIdx.y;
    const int column = blockIdx.z * COLUMNS, w = threadIdx.x / 32;
    const bool cut = x.window_chunks > 0;
    const int64_t lo = cut ? x.first + blockIdx.x * x.window_chunks : max(x.first, x.span_chunk[blockIdx.x]);
    int64_t end = min(x.last, cut ? lo + x.window_chunks : x.span_chunk[blockIdx.x + 1]);
    int64_t count = 0;
    init_barriers<D>(s);
    while (end > lo) {
        const int64_t span = x.chunk[end - 1].span, begin = max(lo, x.span_chunk[span]);
        const bool begun_before = begin > x.span_chunk[span], goes_on = end < x.span_chunk[span + 1] && end < x.last;
        const float *from = cut && goes_on        ? (const float *)(window_of(x, blockIdx.x, h) + at_end(D))
                            : cut && begun_before ? (const float *)(window_of(x, blockIdx.x, h) + at_given(D))
                                                  : gdn_dS_from(x, span, end, h);
        float *to = begun_before && begin > x.first ? NULL : gdn_dS_to(x, span, begin, h);
        float part[D / 64][2][2][4];
        if (w < 4) load_part<D>(part, from, column, w);
        walk_chunks<D>(part, &count, s, x, begin, end, h, column, WALK);
        if (to && w < 4) store_part<D>(to, part, column, w);
        end = begin;
    }
}

/* A and C of a window, if the span of its first chunk began before it. */
template <int D> static __global__ void __launch_bounds__(THREADS) scan_window(gdn_bwd x) {
    extern __shared__ __align__(128) char shared[];
    scan_shared<D> &s = *(scan_shared<D> *)shared;
    const int64_t h = blockIdx.y, begin = x.first + blockIdx.x * x.window_chunks, span = x.chunk[begin].span;
    const int64_t behind = min(x.last, begin + x.window_chunks), end = min(behind, x.span_chunk[span + 1]);
    const int column = blockIdx.z / 2 * COLUMNS, w = threadIdx.x / 32;
    const walk what = blockIdx.z % 2 ? WALK_A : WALK_C;
    const bool goes_on = end < x.span_chunk[span + 1] && end < x.last;
    char *window = window_of(x, blockIdx.x, h);
    if (begin == x.span_chunk[span] || (what == WALK_A && !goes_on)) return;
    float part[D / 64][2][2][4];
    int64_t count = 0;
    init_barriers<D>(s);
    if (w < 4) load_part<D>(part, goes_on ? NULL : gdn_dS_from(x, span, end, h), column, w);
#pragma unroll
    for (int e = 0; e < D / 4; e++)
        if (what == WALK_A && scan_row<D>(w, e / 2) == column + scan_column(e / 2) + e % 2) ((float *)part)[e] = 1;
    if (!goes_on && w < 4) store_part<D>((float *)(window + at_given(D)), part, column, w);
    const float decay = walk_chunks<D>(part, &count, s, x, begin, end, h, column, what);
    if (w == 4) return;
    if (what == WALK_C) {
        store_part<D>((float *)(window + at_C(D)), part, column, w);
        return;
    }
    if (threadIdx.x == 0 && column == 0) *(float *)(window + at_decay(D)) = decay;
#pragma unroll
    for (int e = 0; e < D / 8; e++) {
        const int i = scan_row<D>(w, e), j = column + scan_column(e);
        const float *a = (const float *)part + e * 2;
        *(uint32_t *)((hh_bf16 *)window + i * D + j) =
            hh_pack_bf16((i == j ? decay : 0) - a[0], (i == j + 1 ? decay : 0) - a[1]);
    }
}

/* The dS at every window's end, for some columns of a head. */
template <int D> static __global__ void __launch_bounds__(HH_GDN_THREADS) combine(gdn_bwd x, int64_t n_windows) {
    extern __shared__ __align__(128) char shared[];
    scan_shared<D> &s = *(scan_shared<D> *)shared;
    const int64_t h = blockIdx.y;
    const int column = blockIdx.z * COLUMNS, w = threadIdx.x / 32;
    float part[D / 64][2][2][4], C[D / 64][2][2][4];
    for (int64_t i = n_windows - 1; i > 0; i--) {
        const int64_t begin = x.first + i * x.window_chunks, span = x.chunk[begin].span;
        const int64_t end = min(x.last, begin + x.window_chunks);
        if (begin == x.span_chunk[span]) continue; /* nothing goes over to the window before */
        char *window = window_of(x, i, h);
        load_part<D>(C, (const float *)(window + at_C(D)), column, w);
        if (end < x.span_chunk[span + 1] && end < x.last) {
            load_part<D>(part, (const float *)(window + at_end(D)), column, w);
            for (int e = threadIdx.x; e < D * D / 8; e += HH_GDN_THREADS)
                hh_copy_async(s.stage[0].ZK + e / (D / 8) * HH_GDN_STRIDE(D) + e % (D / 8) * 8,
                              (const hh_bf16 *)window + e * 8, true);
            hh_copy_commit();
            store_bf16<D>(s.dS[0], part, w);
            hh_copy_wait<0>();
            __syncthreads();
            float product[D / 64][2][2][4];
            multiply_dS<D>(product, s.stage[0].ZK, s.dS[0], w);
            const float decay = *(const float *)(window + at_decay(D));
#pragma unroll
            for (int e = 0; e < D / 4; e++) ((float *)C)[e] += decay * ((float *)part)[e] - ((float *)product)[e];
            __syncthreads();
        }
        store_part<D>((float *)(window_of(x, i - 1, h) + at_end(D)), C, column, w);
    }
}

template <int D> static void launch(hh_backend *be, const gdn_bwd *x) {
    const unsigned heads = (unsigned)x->heads, slices = D / COLUMNS;
    const dim3 block(THREADS);
    const size_t shared = sizeof(scan_shared<D>);
    const int64_t n = x->window_chunks ? hh_ceil_div(x->last - x->first, x->window_chunks) : 1;
    gdn_bwd whole = *x;
    whole.window_chunks = 0;
    if (n < 2) {
        hh_cuda_launch(be, "gdn_bwd", scan<D>, dim3((unsigned)x->n_spans, heads, slices), block, shared, whole);
        return;
    }
    hh_cuda_launch(be, "gdn_bwd", scan_window<D>, dim3((unsigned)n, heads, 2 * slices), block, shared, *x);
    hh_cuda_launch(be, "gdn_bwd", combine<D>, dim3(1, heads, slices), dim3(HH_GDN_THREADS), shared, *x, n);
    hh_cuda_launch(be, "gdn_bwd", scan<D>, dim3((unsigned)n, heads, slices), block, shared, *x);
}

int64_t hh_gdn_bwd_window;

/* Two walks of a window's length and a step of `combine` (about six of a walk's, for it waits for memory) a window,
 * instead of one walk through the longest span: worth it for long ones, as long as all blocks run at once. */
int64_t gdn_bwd_choose_window(hh_backend *be, const hh_span *span, int64_t n_spans, int64_t heads, int64_t D) {
    const int64_t resident = D == 64 ? 3 : 1, at_once = hh_cuda_of(be)->n_sms * resident / (heads * (D / COLUMNS) * 2);
    int64_t chunks = 0, longest = 0, n = 1;
    for (int64_t s = 0; s < n_spans; s++) {
        const int64_t c = hh_gdn_span_chunks(span[s]);
        chunks += c;
        if (c > longest) longest = c;
    }
    if (hh_gdn_bwd_window) return hh_gdn_bwd_window;
    while (n < at_once && 3 * n * n < chunks) n++;
    const int64_t window = hh_ceil_div(chunks, n);
    return n > 1 && 10 * longest > 13 * (2 * window + 6 * n) ? window : 0;
}

void gdn_bwd_scan(hh_backend *be, const gdn_bwd *x) {
    if (x->D == 64)
        launch<64>(be, x);
    else
        launch<128>(be, x);
}
