/* What the files of Gated DeltaNet's forward share: its arguments on the card.
 *
 * Two ways compute it. The step (gdn_step.cu) goes token by token in float32 for every type and head width: decode,
 * verification, and the last token of a span when it is a chunk by itself. The chain (gdn_fwd.cu) goes chunk by chunk on
 * tensor cores: bf16 and heads 64 or 128 wide.
 */
#ifndef HH_OPS_CUDA_GDN_FWD_CUH
#define HH_OPS_CUDA_GDN_FWD_CUH

#include "ops/cuda/cuda.h"

extern "C" {
#include "ops/gdn.h"
}

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

#endif
