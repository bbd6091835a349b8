/* Gated DeltaNet's forward: the op, and what its chunked form prepares for all chunks at once, because it needs no
 * state; see gdn_fwd.cuh for who computes the rest. */
#include "ops/cuda/gdn_chunk.cuh"
#include "ops/cuda/gdn_fwd.cuh"

/* The span to which chunk c belongs, and the first token of the chunk; the same in every lane of the warp. */
static __device__ __forceinline__ int64_t find_chunk(int64_t *first_token, const hh_gdn_io &io, int64_t c) {
    const int lane = threadIdx.x & 31;
    for (int64_t s = 0, before = 0; s < io.n_spans; s += 32) {
        const hh_span none = {0, 0, 0}, span = s + lane < io.n_spans ? io.span[s + lane] : none;
        const int64_t n = (span.hi - span.lo + HH_GDN_CHUNK - 1) / HH_GDN_CHUNK;
        int64_t sum = n;
        for (int o = 1; o < 32; o *= 2) {
            int64_t less = __shfl_up_sync(0xffffffffu, sum, o);
            if (lane >= o) sum += less;
        }
        const unsigned beyond = __ballot_sync(0xffffffffu, before + sum > c);
        if (beyond) {
            const int there = __ffs((int)beyond) - 1;
            *first_token = __shfl_sync(0xffffffffu, span.lo + (c - before - (sum - n)) * HH_GDN_CHUNK, there);
            return s + there;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    return -1; /* the grid has as many blocks as there are chunks */
}

template <int D> struct prepare_shared {
    float G[HH_GDN_CHUNK], beta[HH_GDN_CHUNK];
    union {
        struct {
            hh_bf16 Q[HH_GDN_CHUNK * HH_GDN_STRIDE(D)], K[HH_GDN_CHUNK * HH_GDN_STRIDE(D)];
        };
        struct { /* when the products are made */
            float A0[HH_GDN_CHUNK * HH_GDN_SQUARE], work[32 * HH_GDN_SQUARE];
        };
    };
};

/* A block has one chunk of one head. Bound by shared memory in the merges of the inverse. */
template <int D>
static __global__ void __launch_bounds__(HH_GDN_THREADS) gdn_fwd_prepare_kernel(hh_gdn_io io, hh_gdn_prepared<D> *out) {
    extern __shared__ __align__(16) unsigned char shared[];
    prepare_shared<D> &x = *(prepare_shared<D> *)shared;
    int64_t t;
    const int64_t c = blockIdx.x, s = find_chunk(&t, io, c), h = io.first_head + blockIdx.y, left = io.span[s].hi - t;
    const int n = left < HH_GDN_CHUNK ? (int)left : HH_GDN_CHUNK;
    const int w = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); /* known to be uniform */
    if (n == 1) return;                                          /* the step's */
    hh_gdn_copy_tile<D>(x.K, (const hh_bf16 *)io.k + t * io.k_stride + h * D, io.k_stride, n);
    hh_gdn_copy_tile<D>(x.Q, (const hh_bf16 *)io.q + t * io.q_stride + h * D, io.q_stride, n);
    hh_copy_commit();
    hh_gdn_sum_gates(x.G, io.g + t * io.g_stride + h, io.g_stride, n);
    if (threadIdx.x >= 64) {
        int i = threadIdx.x - 64;
        x.beta[i] = i < n ? io.beta[(t + i) * io.beta_stride + h] : 0;
    }
    hh_copy_wait<0>();
    __syncthreads();
    hh_gdn_prepared<D> *y = out + c * io.n_heads + blockIdx.y;
    if (threadIdx.x < HH_GDN_CHUNK) {
        y->into[threadIdx.x] = hh_exp2(x.G[threadIdx.x]);
        y->out[threadIdx.x] = hh_exp2(x.G[HH_GDN_CHUNK - 1] - x.G[threadIdx.x]);
    }
    for (int i = threadIdx.x; i < HH_GDN_CHUNK * D / 8; i += HH_GDN_THREADS) {
        int row = i / (D / 8), column = i % (D / 8) * 8, at = row * HH_GDN_STRIDE(D) + column;
        *(uint4 *)(y->K + hh_gdn_swizzled(row, column)) = *(const uint4 *)(x.K + at);
        *(uint4 *)(y->Q + hh_gdn_swizzled(row, column)) = *(const uint4 *)(x.Q + at);
    }
    float acc[4][2][4];
    hh_gdn_lower_product<D>(acc, x.Q, x.K, w);
    hh_gdn_store_P(y->P, acc, x.G, w); /* F7 */
    hh_gdn_lower_product<D>(acc, x.K, x.K, w);
    __syncthreads();
    hh_gdn_store_N(x.A0, acc, x.beta, w);
    __syncthreads();
    hh_gdn_invert(x.A0, x.work);               /* F5 */
    hh_gdn_store_Bm(y->Bm, x.A0, x.G, x.beta); /* F6 */
}

int hh_gdn_chunked_path;

template <int D> static void launch_chunked(hh_backend *be, const hh_gdn_io *io, void *scratch, int64_t n_chunks) {
    hh_cuda_launch(be, "gdn_fwd", gdn_fwd_prepare_kernel<D>, dim3((unsigned)n_chunks, (unsigned)io->n_heads),
                   dim3(HH_GDN_THREADS), sizeof(prepare_shared<D>), *io, (hh_gdn_prepared<D> *)scratch);
    if (hh_gdn_chunked_path == 3) return;
    const bool few = io->n_spans * io->n_heads * (D / 64) < hh_cuda_of(be)->n_sms;
    if (hh_gdn_chunked_path ? hh_gdn_chunked_path == 2 : few && hh_cuda_of(be)->arch >= 90)
        hh_gdn_chain(be, io, scratch);
    else
        hh_gdn_wide(be, io, scratch);
}

/* All spans in chunks, as many heads at a time as scratch has room for; then the last tokens. */
static void run_chunked(hh_backend *be, hh_gdn_io *io, int64_t heads, int64_t n_chunks, bool last_tokens) {
    const int64_t D = io->D, spare = io->state || !last_tokens ? 0 : io->n_spans * D * D * (int64_t)sizeof(float);
    const int64_t chunk = D == 64 ? sizeof(hh_gdn_prepared<64>) : sizeof(hh_gdn_prepared<128>);
    const int64_t a_head = n_chunks * chunk + spare;
    int64_t at_once = ((int64_t)hh_cuda_scratch_left(be) - 512) / a_head;
    HH_ASSERT(at_once > 0);
    if (at_once > heads) at_once = heads;
    void *scratch = hh_cuda_scratch(be, (size_t)(at_once * n_chunks * chunk));
    if (spare) io->spare = (float *)hh_cuda_scratch(be, (size_t)(at_once * spare));
    for (io->first_head = 0; io->first_head < heads; io->first_head += at_once) {
        io->n_heads = (int32_t)(heads - io->first_head < at_once ? heads - io->first_head : at_once);
        if (D == 64)
            launch_chunked<64>(be, io, scratch, n_chunks);
        else
            launch_chunked<128>(be, io, scratch, n_chunks);
        if (last_tokens) hh_gdn_step(be, io, HH_DTYPE_BF16, HH_GDN_LAST_TOKEN);
    }
}

static bool is_heads(hh_tensor t, hh_dtype dtype, hh_tensor like) {
    return t.dtype == dtype && t.rank == 3 && t.dim[0] == like.dim[0] && t.dim[1] == like.dim[1] &&
           t.dim[2] == like.dim[2];
}

extern "C" void hh_gdn_fwd_cuda(hh_backend *be, hh_tensor o, hh_tensor saved, hh_tensor q, hh_tensor k, hh_tensor v,
                                hh_tensor g, hh_tensor beta, const hh_tensor *state, const hh_span *span,
                                int64_t n_spans, hh_gdn_mode mode) {
    const int64_t heads = q.dim[1], D = q.dim[2], n_chunks = hh_gdn_chunk_count(span, n_spans);
    const hh_dtype type = be->activation;
    HH_ASSERT(is_heads(q, type, q) && is_heads(k, type, q) && is_heads(v, type, q) && is_heads(o, type, q));
    HH_ASSERT(hh_is_real_matrix(g, q.dim[0], heads) && hh_is_real_like(beta, g));
    HH_ASSERT(D <= HH_GDN_MAX_DIM && hh_are_spans(span, n_spans, q.dim[0]));
    HH_ASSERT(hh_is_absent(saved) || (saved.dtype == type && saved.dim[0] >= n_chunks));
    bool last_tokens = false, chunks = false;
    for (int64_t s = 0; s < n_spans; s++) {
        HH_ASSERT(!state || hh_is_real_heads(state[s], heads, D, D));
        last_tokens |= hh_gdn_has_last_token(span[s]);
        chunks |= span[s].hi - span[s].lo > 1;
    }
    if (!n_chunks || !heads) return;
    hh_cuda_scratch_begin(be);
    const bool chunked = mode == HH_GDN_CHUNKED && chunks && type == HH_DTYPE_BF16 && (D == 64 || D == 128) &&
                         hh_gdn_is_aligned(q) && hh_gdn_is_aligned(k) && hh_gdn_is_aligned(v) && hh_gdn_is_aligned(o) &&
                         (hh_is_absent(saved) || hh_gdn_is_aligned(saved));
    hh_gdn_io io;
    memset(&io, 0, sizeof io);
    io.q = q.data, io.k = k.data, io.v = v.data, io.o = o.data, io.saved = saved.data;
    io.g = (const float *)g.data, io.beta = (const float *)beta.data;
    io.q_stride = q.stride, io.k_stride = k.stride, io.v_stride = v.stride, io.o_stride = o.stride;
    io.g_stride = g.stride, io.beta_stride = beta.stride, io.saved_stride = saved.stride;
    io.span = hh_cuda_list(be, span, n_spans);
    io.state = hh_cuda_list(be, state, n_spans);
    io.n_spans = n_spans, io.D = (int32_t)D, io.n_heads = (int32_t)heads;
    if (chunked)
        run_chunked(be, &io, heads, n_chunks, last_tokens);
    else
        hh_gdn_step(be, &io, type, HH_GDN_WHOLE);
}
