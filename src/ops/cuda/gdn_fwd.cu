/* Gated DeltaNet's forward: the op, and its chunked form on tensor cores.
 *
 * First a token-parallel kernel: Bm and P of every chunk, which need no state. Then the chain, chunk by chunk: columns of
 * the state are independent of one another, so a head is cut into groups of 16 columns, as many to a block as leave no
 * multiprocessor idle. How it is cut changes no bit of the result, nor does where a sequence is cut between two calls.
 */
#include "ops/cuda/gdn_chunk.cuh"
#include "ops/cuda/gdn_fwd.cuh"

/* What the first kernel leaves of a chunk and head. */
typedef struct prepared {
    hh_bf16 Bm[HH_GDN_CHUNK * HH_GDN_CHUNK], P[HH_GDN_CHUNK * HH_GDN_CHUNK];
    float into[HH_GDN_CHUNK], out[HH_GDN_CHUNK]; /* e^G, e^{G_n - G} */
} prepared;

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
    float A0[HH_GDN_CHUNK * HH_GDN_SQUARE], work[32 * HH_GDN_SQUARE];
    float G[HH_GDN_CHUNK], beta[HH_GDN_CHUNK];
    hh_bf16 Q[HH_GDN_CHUNK * HH_GDN_STRIDE(D)], K[HH_GDN_CHUNK * HH_GDN_STRIDE(D)];
};

/* A block has one chunk of one head. Bound by shared memory in the merges of the inverse. */
template <int D>
static __global__ void __launch_bounds__(HH_GDN_THREADS) gdn_fwd_prepare_kernel(hh_gdn_io io, prepared *out) {
    extern __shared__ __align__(16) unsigned char shared[];
    prepare_shared<D> &x = *(prepare_shared<D> *)shared;
    int64_t t;
    const int64_t c = blockIdx.x, s = find_chunk(&t, io, c), h = io.first_head + blockIdx.y, left = io.span[s].hi - t;
    const int n = left < HH_GDN_CHUNK ? (int)left : HH_GDN_CHUNK, w = threadIdx.x / 32;
    if (n == 1) return; /* the step's */
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
    prepared *y = out + c * io.n_heads + blockIdx.y;
    if (threadIdx.x < HH_GDN_CHUNK) {
        y->into[threadIdx.x] = exp2f(x.G[threadIdx.x]);
        y->out[threadIdx.x] = exp2f(x.G[HH_GDN_CHUNK - 1] - x.G[threadIdx.x]);
    }
    float acc[4][2][4];
    hh_gdn_lower_product<D>(acc, x.K, x.K, w);
    hh_gdn_store_N(x.A0, acc, x.beta, w);
    hh_gdn_lower_product<D>(acc, x.Q, x.K, w);
    hh_gdn_store_P(y->P, HH_GDN_CHUNK, acc, x.G, w); /* F7 */
    __syncthreads();
    hh_gdn_invert(x.A0, x.work);                             /* F5 */
    hh_gdn_store_Bm(y->Bm, HH_GDN_CHUNK, x.A0, x.G, x.beta); /* F6 */
}

/* A chunk's inputs in shared memory. */
template <int D, int COLUMNS> struct chain_stage {
    hh_bf16 K[HH_GDN_CHUNK * HH_GDN_STRIDE(D)], Q[HH_GDN_CHUNK * HH_GDN_STRIDE(D)];
    hh_bf16 Bm[HH_GDN_CHUNK * HH_GDN_STRIDE(HH_GDN_CHUNK)], P[HH_GDN_CHUNK * HH_GDN_STRIDE(HH_GDN_CHUNK)];
    hh_bf16 V[HH_GDN_CHUNK * HH_GDN_STRIDE(COLUMNS)];
    float into[HH_GDN_CHUNK], out[HH_GDN_CHUNK];
};

/* What the warps of a group hand each other, fragments in registers' order: fragment, lane, register. One warp alone
 * hands nothing. */
template <int D, int WARPS> struct chain_exchange {
    uint4 S[WARPS > 1 ? D / 16 : 1][32];
    uint4 R[WARPS > 1 ? 4 : 1][32], V[WARPS > 1 ? 4 : 1][32], decayed[WARPS > 1 ? 4 : 1][32];
};

template <int D, int WARPS, int GROUPS, int STAGES> struct chain_shared {
    chain_stage<D, 16 * GROUPS> stage[STAGES];
    chain_exchange<D, WARPS> exchange[WARPS > 1 ? GROUPS : 1];
    hh_bf16 turn[WARPS * GROUPS][16 * HH_GDN_STRIDE(16)];
};

static __device__ __forceinline__ void put(uint4 *to, const uint32_t a[4]) {
    to[threadIdx.x & 31] = make_uint4(a[0], a[1], a[2], a[3]);
}
static __device__ __forceinline__ void take(uint32_t a[4], const uint4 *from) {
    uint4 v = from[threadIdx.x & 31];
    a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
}

template <int D, int COLUMNS>
static __device__ __forceinline__ void load_stage(chain_stage<D, COLUMNS> *x, const hh_gdn_io &io, const prepared *y,
                                                  int64_t t, int n, int64_t h, int64_t column) {
    hh_gdn_copy_tile<D>(x->K, (const hh_bf16 *)io.k + t * io.k_stride + h * D, io.k_stride, n);
    hh_gdn_copy_tile<COLUMNS>(x->V, (const hh_bf16 *)io.v + t * io.v_stride + h * D + column, io.v_stride, n);
    hh_gdn_copy_tile<HH_GDN_CHUNK>(x->Bm, y->Bm, HH_GDN_CHUNK, HH_GDN_CHUNK);
    for (int i = threadIdx.x; i < 2 * HH_GDN_CHUNK / 4; i += blockDim.x)
        hh_copy_async(x->into + 4 * i, y->into + 4 * i, true); /* into and out */
    hh_gdn_copy_tile<D>(x->Q, (const hh_bf16 *)io.q + t * io.q_stride + h * D, io.q_stride, n);
    hh_gdn_copy_tile<HH_GDN_CHUNK>(x->P, y->P, HH_GDN_CHUNK, HH_GDN_CHUNK);
}

/* acc [16 columns of the state, 16 tokens] = S^T X^T, X the 16 rows of a tile [64, D] at `rows`. */
template <int D>
static __device__ __forceinline__ void times_state(float acc[2][4], const uint32_t S[D / 16][4], const hh_bf16 *rows) {
#pragma unroll
    for (int i = 0; i < 8; i++) acc[i / 4][i % 4] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t b[4];
        hh_load_b_transposed(b, rows + 16 * k, HH_GDN_STRIDE(D));
        hh_mma_pair(acc, S[k], b);
    }
}

/* Sixteen rows of sixteen columns, from this warp's corner of shared memory to rows `stride` apart; n of them. */
static __device__ __forceinline__ void store_rows(hh_bf16 *to, int64_t stride, int64_t n, hh_bf16 *turn,
                                                  const uint32_t a[4]) {
    const int lane = threadIdx.x & 31;
    hh_store_transposed(turn, HH_GDN_STRIDE(16), a);
    __syncwarp();
    if (lane / 2 < n)
        *(uint4 *)(to + lane / 2 * stride + lane % 2 * 8) =
            *(const uint4 *)(turn + lane / 2 * HH_GDN_STRIDE(16) + lane % 2 * 8);
    __syncwarp();
}

/* A block has GROUPS x 16 columns of one head's state in one span. Everything is transposed, so that the state and what
 * comes of it are A operands: WARPS warps share a group; each keeps D / WARPS rows of the state (columns of S^T) in
 * float32 and computes 64 / WARPS tokens; with one warp nothing but inputs passes through shared memory. Chunks arrive
 * STAGES deep. Bound by the latency of the chain K S, Bm R, K^T V^ with few heads, else by tensor cores. */
template <int D, int WARPS, int GROUPS, int STAGES>
static __global__ void __launch_bounds__(32 * WARPS * GROUPS) gdn_fwd_chain_kernel(hh_gdn_io io, const prepared *from) {
    constexpr int TOKENS = 4 / WARPS, ROWS = D / 16 / WARPS, COLUMNS = 16 * GROUPS; /* in sixteens, but COLUMNS */
    extern __shared__ __align__(16) unsigned char shared[];
    chain_shared<D, WARPS, GROUPS, STAGES> &sh = *(chain_shared<D, WARPS, GROUPS, STAGES> *)shared;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = warp / WARPS, w = warp % WARPS;
    const int r = lane / 4, c2 = 2 * (lane & 3);
    const int64_t s = blockIdx.x / (D / COLUMNS), column = blockIdx.x % (D / COLUMNS) * COLUMNS;
    const int64_t h = io.first_head + blockIdx.y, own = column + 16 * group; /* this group's first column */
    const hh_span span = io.span[s];
    const int64_t end = hh_gdn_has_last_token(span) ? span.hi - 1 : span.hi, n_before = hh_gdn_chunks_before(io, s);
    const int64_t n_chunks = (end - span.lo + HH_GDN_CHUNK - 1) / HH_GDN_CHUNK;
    if (n_chunks <= 0) return;
    chain_exchange<D, WARPS> *exchange = &sh.exchange[WARPS > 1 ? group : 0];
    hh_bf16 *turn = sh.turn[warp];
    auto load = [&](int64_t chunk) {
        int64_t t = span.lo + chunk * HH_GDN_CHUNK, left = end - t;
        if (chunk < n_chunks)
            load_stage<D, COLUMNS>(&sh.stage[chunk % STAGES], io, from + (n_before + chunk) * io.n_heads + blockIdx.y,
                                   t, left < HH_GDN_CHUNK ? (int)left : HH_GDN_CHUNK, h, column);
        hh_copy_commit();
    };
    auto meet = [&]() {
        if (WARPS > 1) hh_barrier(1 + group, 32 * WARPS);
    };
    for (int i = 0; i < STAGES - 1; i++) load(i);

    float *state = hh_gdn_state(io, s, blockIdx.y);
    float S[ROWS][2][4];      /* S^T: (column r or r + 8, row c2 or c2 + 1) of sixteen rows of the state */
    uint32_t S_in[D / 16][4]; /* all of S^T as it was at the chunk's start, in bf16 */
    const int first_row = 16 * ROWS * w;
#pragma unroll
    for (int i = 0; i < ROWS * 8; i++) {
        int64_t row = first_row + 16 * (i / 8) + 8 * (i / 4 % 2) + c2 + (i & 1), col = own + r + 8 * (i / 2 % 2);
        S[i / 8][i / 4 % 2][i % 4] = io.state ? state[row * D + col] : 0;
    }
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        const int64_t t = span.lo + chunk * HH_GDN_CHUNK;
        const chain_stage<D, COLUMNS> &x = sh.stage[chunk % STAGES];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            uint32_t a[4];
            hh_pack_fragment(a, S[i]);
            if (WARPS > 1)
                put(exchange->S[ROWS * w + i], a);
            else
                for (int e = 0; e < 4; e++) S_in[i][e] = a[e];
            if (io.saved)
                store_rows((hh_bf16 *)io.saved + (n_before + chunk) * io.saved_stride +
                               (h * D + first_row + 16 * i) * D + own,
                           D, 16, turn, a);
        }
        hh_copy_wait<STAGES - 2>();
        __syncthreads();
        load(chunk + STAGES - 1);
        if (WARPS > 1)
#pragma unroll
            for (int i = 0; i < D / 16; i++) take(S_in[i], exchange->S[i]);

        uint32_t R[4][4], Vh[4][4], decayed[4][4]; /* of all tokens with one warp, else this warp's come first */
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            const int token = 16 * (TOKENS * w + i);
            float acc[2][4];
            uint32_t v[4];
            times_state<D>(acc, S_in, x.K + token * HH_GDN_STRIDE(D));
            hh_load_a_transposed(v, x.V + token * HH_GDN_STRIDE(COLUMNS) + 16 * group, HH_GDN_STRIDE(COLUMNS));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float2 into = *(const float2 *)(x.into + token + 8 * half + c2);
                acc[half][0] = hh_low_bf16(v[2 * half]) - into.x * acc[half][0];
                acc[half][1] = hh_high_bf16(v[2 * half]) - into.y * acc[half][1];
                acc[half][2] = hh_low_bf16(v[2 * half + 1]) - into.x * acc[half][2];
                acc[half][3] = hh_high_bf16(v[2 * half + 1]) - into.y * acc[half][3];
            }
            hh_pack_fragment(R[i], acc); /* R^T of F6 */
            if (WARPS > 1) put(exchange->R[TOKENS * w + i], R[i]);
        }
        meet();
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            const int block = TOKENS * w + i;
            float acc[2][4] = {};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (j > block) break;
                uint32_t a[4], b[4];
                if (WARPS > 1) take(a, exchange->R[j]);
                hh_load_b_transposed(b, x.Bm + 16 * block * HH_GDN_STRIDE(HH_GDN_CHUNK) + 16 * j,
                                     HH_GDN_STRIDE(HH_GDN_CHUNK));
                hh_mma_pair(acc, WARPS > 1 ? a : R[j], b); /* F6 */
            }
            hh_pack_fragment(Vh[i], acc);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float2 out = *(const float2 *)(x.out + 16 * block + 8 * half + c2);
                acc[half][0] *= out.x, acc[half][1] *= out.y, acc[half][2] *= out.x, acc[half][3] *= out.y;
            }
            hh_pack_fragment(decayed[i], acc);
            if (WARPS > 1) put(exchange->V[block], Vh[i]), put(exchange->decayed[block], decayed[i]);
        }
        meet();
        const float last = x.into[HH_GDN_CHUNK - 1];
#pragma unroll
        for (int i = 0; i < ROWS * 8; i++) S[i / 8][i / 4 % 2][i % 4] *= last;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t b[4];
            if (WARPS > 1) take(decayed[j], exchange->decayed[j]);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                hh_load_b(b, x.K + 16 * j * HH_GDN_STRIDE(D) + first_row + 16 * i, HH_GDN_STRIDE(D));
                hh_mma_pair(S[i], decayed[j], b); /* F8 */
            }
        }
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            const int block = TOKENS * w + i;
            float acc[2][4];
            uint32_t a[4], b[4];
            times_state<D>(acc, S_in, x.Q + 16 * block * HH_GDN_STRIDE(D));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float2 into = *(const float2 *)(x.into + 16 * block + 8 * half + c2);
                acc[half][0] *= into.x, acc[half][1] *= into.y, acc[half][2] *= into.x, acc[half][3] *= into.y;
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (j > block) break;
                if (WARPS > 1) take(a, exchange->V[j]);
                hh_load_b_transposed(b, x.P + 16 * block * HH_GDN_STRIDE(HH_GDN_CHUNK) + 16 * j,
                                     HH_GDN_STRIDE(HH_GDN_CHUNK));
                hh_mma_pair(acc, WARPS > 1 ? a : Vh[j], b); /* F7 */
            }
            hh_pack_fragment(a, acc);
            store_rows((hh_bf16 *)io.o + (t + 16 * block) * io.o_stride + h * D + own, io.o_stride,
                       end - t - 16 * block, turn, a);
        }
    }
    if (!state) return;
#pragma unroll
    for (int i = 0; i < ROWS * 8; i++) {
        int64_t row = first_row + 16 * (i / 8) + 8 * (i / 4 % 2) + c2 + (i & 1), col = own + r + 8 * (i / 2 % 2);
        state[row * D + col] = S[i / 8][i / 4 % 2][i % 4];
    }
}

/* -- the op -- */

template <int D, int WARPS, int GROUPS, int STAGES>
static void launch_chain(hh_backend *be, const hh_gdn_io *io, const prepared *from) {
    typedef chain_shared<D, WARPS, GROUPS, STAGES> memory;
    const dim3 grid((unsigned)(io->n_spans * (D / (16 * GROUPS))), (unsigned)io->n_heads);
    hh_cuda_launch(be, "gdn_fwd", gdn_fwd_chain_kernel<D, WARPS, GROUPS, STAGES>, grid, dim3(32 * WARPS * GROUPS),
                   sizeof(memory), *io, from);
}

template <int D> static void launch_chunked(hh_backend *be, const hh_gdn_io *io, prepared *scratch, int64_t n_chunks) {
    hh_cuda_launch(be, "gdn_fwd", gdn_fwd_prepare_kernel<D>, dim3((unsigned)n_chunks, (unsigned)io->n_heads),
                   dim3(HH_GDN_THREADS), sizeof(prepare_shared<D>), *io, scratch);
    if (io->n_spans * io->n_heads * (D / 64) >= hh_cuda_of(be)->n_sms)
        launch_chain<D, 1, 4, 2>(be, io, scratch);
    else
        launch_chain<D, 4, 1, 3>(be, io, scratch);
}

/* All spans in chunks, as many heads at a time as scratch has room for; then the last tokens. */
static void run_chunked(hh_backend *be, hh_gdn_io *io, int64_t heads, int64_t n_chunks, bool last_tokens) {
    const int64_t D = io->D, spare = io->state || !last_tokens ? 0 : io->n_spans * D * D * (int64_t)sizeof(float);
    const int64_t a_head = n_chunks * (int64_t)sizeof(prepared) + spare;
    int64_t at_once = ((int64_t)hh_cuda_scratch_left(be) - 512) / a_head;
    HH_ASSERT(at_once > 0);
    if (at_once > heads) at_once = heads;
    prepared *scratch = (prepared *)hh_cuda_scratch(be, (size_t)(at_once * n_chunks) * sizeof(prepared));
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
