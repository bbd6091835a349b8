/* What the files of Gated DeltaNet's forward share: its arguments on the card.
 *
 * The step (gdn_step.cu) goes token by token in float32 for every type and head width: decode, verification, and the last
 * token of a span when it is a chunk by itself. Chunks of heads 64 or 128 wide in bf16 go to tensor cores: what needs no
 * state is prepared for all at once (gdn_fwd.cu), then columns of the state, which are independent of one another, run
 * through the chunks sixteen at a time: many heads or spans in gdn_wide.cu, few in gdn_chain.cu. Both take every sum in
 * the same order: which of them runs changes no bit, nor does where a sequence is cut between two calls.
 *
 * There everything is transposed: S^T, R^T and V^^T are A operands and pass from product to product as fragments.
 */
#ifndef HH_OPS_CUDA_GDN_FWD_CUH
#define HH_OPS_CUDA_GDN_FWD_CUH

#include "ops/cuda/gdn_chunk.cuh"

typedef struct hh_gdn_io {
    const void *q, *k, *v; /* activations: rows are tokens, heads D apart */
    void *o, *saved;       /* saved may be NULL */
    const float *g, *beta;
    int64_t q_stride, k_stride, v_stride, o_stride, g_stride, beta_stride, saved_stride;
    const hh_span *span;    /* [n_spans] */
    const hh_tensor *state; /* [n_spans], or NULL */
    float *spare;           /* [n_spans, heads of this call, D, D]: states between two kernels where `state` is NULL */
    int64_t n_spans, first_head;
    int32_t D, n_heads;
} hh_gdn_io;

/* Which tokens of its spans the step takes. */
typedef enum hh_gdn_part {
    HH_GDN_WHOLE,
    HH_GDN_LAST_TOKEN, /* the last one, where it is a chunk by itself */
} hh_gdn_part;

/* Heads [first_head, first_head + n_heads) of all spans by F1-F3. */
void hh_gdn_step(hh_backend *be, const hh_gdn_io *x, hh_dtype dtype, hh_gdn_part part);

/* Where head h (counted from first_head) of span s keeps its state; NULL: nowhere. */
static __device__ __forceinline__ float *hh_gdn_state(const hh_gdn_io &x, int64_t s, int64_t h) {
    if (x.state) return (float *)x.state[s].data + (x.first_head + h) * x.state[s].stride;
    return x.spare ? x.spare + (s * x.n_heads + h) * x.D * x.D : NULL;
}

/* Chunks of the spans before span s, the same in every lane of the warp. */
static __device__ __forceinline__ int64_t hh_gdn_chunks_before(const hh_gdn_io &x, int64_t s) {
    int64_t n = 0;
    for (int64_t i = threadIdx.x & 31; i < s; i += 32)
        n += (x.span[i].hi - x.span[i].lo + HH_GDN_CHUNK - 1) / HH_GDN_CHUNK;
    for (int o = 16; o; o >>= 1) n += __shfl_xor_sync(0xffffffffu, n, o);
    return n;
}

/* Does this span end with a chunk of one token? */
static __host__ __device__ __forceinline__ bool hh_gdn_has_last_token(hh_span span) {
    return (span.hi - span.lo) % HH_GDN_CHUNK == 1;
}

/* Where the tokens end that go in chunks of more than one. */
static __host__ __device__ __forceinline__ int64_t hh_gdn_chunks_end(hh_span span) {
    return hh_gdn_has_last_token(span) ? span.hi - 1 : span.hi;
}

/* What is prepared of a chunk and head, as it is wanted in shared memory: swizzled tiles with zeros behind the chunk's
 * end, and nothing above the diagonals. K and Q are copied here so that one copy of whole lines brings a chunk. */
template <int D> struct __align__(128) hh_gdn_prepared {
    hh_bf16 K[HH_GDN_CHUNK * D], Q[HH_GDN_CHUNK * D];
    hh_bf16 Bm[HH_GDN_CHUNK * HH_GDN_CHUNK], P[HH_GDN_CHUNK * HH_GDN_CHUNK];
    float into[HH_GDN_CHUNK], out[HH_GDN_CHUNK]; /* e^G, e^{G_n - G} */
};

/* All chunks of more than one token from what was prepared, [chunks, n_heads]. */
void hh_gdn_wide(hh_backend *be, const hh_gdn_io *x, const void *from);
void hh_gdn_chain(hh_backend *be, const hh_gdn_io *x, const void *from);
extern int hh_gdn_chunked_path; /* for benchmarks: 1 wide, 2 chain, 3 neither; 0 chooses */

/* acc [16 columns of the state, 16 tokens] = S^T X^T; X, 16 rows, has been loaded to `b`. Even and odd
 * steps are summed apart: half the latency. */
template <int D>
static __device__ __forceinline__ void hh_gdn_times_state(float acc[2][4], const uint32_t S[D / 16][4],
                                                          const uint32_t b[D / 16][4]) {
    float odd[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) acc[i / 4][i % 4] = odd[i / 4][i % 4] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) hh_mma_pair(k % 2 ? odd : acc, S[k], b[k]);
#pragma unroll
    for (int i = 0; i < 8; i++) acc[i / 4][i % 4] += odd[i / 4][i % 4];
}
template <int D>
static __device__ __forceinline__ void hh_gdn_load_rows(uint32_t b[D / 16][4], const hh_bf16 *tile, int row) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) hh_gdn_load_b_transposed(b[k], tile, row, 16 * k);
}

/* Sixteen tokens' sixteen columns of v on their way to a corner of shared memory [16, HH_GDN_STRIDE(16)], by one warp;
 * zeros for tokens from n on. */
static __device__ __forceinline__ void hh_gdn_copy_v(hh_bf16 *corner, const hh_bf16 *v, int64_t stride, int64_t n) {
    const int row = (threadIdx.x & 31) / 2, column = threadIdx.x % 2 * 8;
    const bool valid = row < n;
    hh_copy_async(corner + row * HH_GDN_STRIDE(16) + column, v + (valid ? row : 0) * stride + column, valid);
}

/* R^T of F6 as a fragment, from (K S0)^T of sixteen tokens, V^T and e^G at the first of them. */
static __device__ __forceinline__ void hh_gdn_pack_R(uint32_t R[4], const float KS[2][4], const uint32_t v[4],
                                                     const float *into) {
    float x[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float2 e = *(const float2 *)(into + 8 * half + 2 * (threadIdx.x & 3));
        x[half][0] = hh_low_bf16(v[2 * half]) - e.x * KS[half][0];
        x[half][1] = hh_high_bf16(v[2 * half]) - e.y * KS[half][1];
        x[half][2] = hh_low_bf16(v[2 * half + 1]) - e.x * KS[half][2];
        x[half][3] = hh_high_bf16(v[2 * half + 1]) - e.y * KS[half][3];
    }
    hh_pack_fragment(R, x);
}

/* Every token's column times its factor. */
static __device__ __forceinline__ void hh_gdn_scale_tokens(float acc[2][4], const float *factor) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float2 e = *(const float2 *)(factor + 8 * half + 2 * (threadIdx.x & 3));
        acc[half][0] *= e.x, acc[half][1] *= e.y, acc[half][2] *= e.x, acc[half][3] *= e.y;
    }
}

/* Sixteen rows of the state's sixteen columns from `column` on, as S^T in float32. */
static __device__ __forceinline__ void hh_gdn_load_state(float S[2][4], const float *state, int64_t D, int64_t row,
                                                         int64_t column) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 8; i++)
        S[i / 4][i % 4] =
            state ? state[(row + 8 * (i / 4) + 2 * (lane & 3) + (i & 1)) * D + column + lane / 4 + 8 * (i / 2 % 2)] : 0;
}
static __device__ __forceinline__ void hh_gdn_store_state(float *state, const float S[2][4], int64_t D, int64_t row,
                                                          int64_t column) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 8; i++)
        state[(row + 8 * (i / 4) + 2 * (lane & 3) + (i & 1)) * D + column + lane / 4 + 8 * (i / 2 % 2)] =
            S[i / 4][i % 4];
}

/* Sixteen rows of sixteen columns, from this warp's corner of shared memory to rows `stride` apart; n of them. */
static __device__ __forceinline__ void hh_gdn_store_rows(hh_bf16 *to, int64_t stride, int64_t n, hh_bf16 *turn,
                                                         const uint32_t a[4]) {
    const int lane = threadIdx.x & 31;
    hh_store_transposed(turn, HH_GDN_STRIDE(16), a);
    __syncwarp();
    if (lane / 2 < n)
        *(uint4 *)(to + lane / 2 * stride + lane % 2 * 8) =
            *(const uint4 *)(turn + lane / 2 * HH_GDN_STRIDE(16) + lane % 2 * 8);
    __syncwarp();
}

#endif
