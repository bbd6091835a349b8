/* What the files of Gated DeltaNet's backward share: its arguments on the card, and the walk over chunks.
 *
 * Chunks of all spans stand in one row, those of a span behind each other, as in `saved`. The work of a chunk and head
 * that needs no other chunk is token-parallel (prepare, finish); between the two, dS runs backwards through the chunks
 * (scan). A tile is a run of chunks whose scratch fits; tiles go from the last to the first, and the span that a tile's
 * edge cuts hands its dS over in `carry`.
 */
#ifndef HH_OPS_CUDA_GDN_BWD_CUH
#define HH_OPS_CUDA_GDN_BWD_CUH

#include "ops/cuda/gdn_chunk.cuh"

#define GDN_N HH_GDN_CHUNK

typedef struct gdn_bwd_chunk {
    int64_t t; /* its first token */
    int32_t n; /* tokens */
    int32_t span;
} gdn_bwd_chunk;

/* A tensor of the op: rows are tokens (chunks for `saved`). */
typedef struct gdn_rows {
    void *at;
    int64_t stride;
} gdn_rows;

typedef struct gdn_bwd {
    gdn_rows dq, dk, dv, dg, dbeta, do_, saved, q, k, v, g, beta;
    int64_t heads, D;
    const hh_tensor *dstate;      /* [n_spans] or NULL, as the op has it */
    const gdn_bwd_chunk *chunk;   /* of all spans */
    const int64_t *span_chunk;    /* [n_spans + 1]: the first chunk of every span */
    int64_t n_spans, first, last; /* chunks [first, last) are the tile's */
    float *carry[2];              /* [h,D,D]: dS at the tile's end and before it, when that cuts a span */
    char *scratch;                /* [chunks of the tile, heads] of scratch_bytes each */
    int64_t scratch_bytes;
    char *windows;                       /* of scan, [windows of the tile, heads] of window_bytes each */
    int64_t window_bytes, window_chunks; /* chunks in a window; 0: spans are not cut */
} gdn_bwd;

/* The tile [first, last). */
typedef void gdn_bwd_tile_fn(hh_backend *be, const gdn_bwd *x);

gdn_bwd_tile_fn gdn_bwd_tile_plain;
int64_t gdn_bwd_scratch_plain(int64_t D); /* bytes a chunk and head */

/* On tensor cores, for bf16 and D = 64 or 128, with rows that may be read 16 bytes at a time. With Z = A0 beta K and
 * Q' = e^G (Q - lower(Q K^T) Z), B5 and B12 become
 *     dS0 = e^{G_n} (dS1 - (Z^T K) dS1) + Q'^T dO
 * so that the chain through the chunks is one product a chunk, and nothing in it but a factor depends on the gates.
 * prepare makes the two [D,D] factors, scan walks and leaves dS1 of every chunk in the second one's place, finish
 * computes all gradients of a chunk from S0, dS1 and its tokens. */
gdn_bwd_tile_fn gdn_bwd_prepare, gdn_bwd_scan, gdn_bwd_finish;

extern "C" int64_t hh_gdn_bwd_window; /* for tests: chunks in a window; 0 chooses */
int64_t gdn_bwd_choose_window(hh_backend *be, const hh_span *span, int64_t n_spans, int64_t heads, int64_t D);
int64_t gdn_bwd_window_bytes(int64_t D);

/* Scratch of a chunk and head, laid out as it is wanted in shared memory: A0 [64,64] and Z^T K [D,D] in rows of
 * HH_GDN_STRIDE(their width), behind that e^{G_n}; Q'^T dO, then dS1, 32 columns at a time, [D/32,D,32] in rows of
 * HH_GDN_STRIDE(32). Offsets in bytes. */
#define GDN_BWD_COLUMNS 32
static inline __host__ __device__ int64_t gdn_bwd_at_ZK() {
    return GDN_N * HH_GDN_STRIDE(GDN_N) * 2;
}
static inline __host__ __device__ int64_t gdn_bwd_at_dS(int64_t D) {
    return gdn_bwd_at_ZK() + D * HH_GDN_STRIDE(D) * 2 + 16;
}
static inline __host__ __device__ int64_t gdn_bwd_scratch_fast(int64_t D) {
    return (gdn_bwd_at_dS(D) + D / GDN_BWD_COLUMNS * D * HH_GDN_STRIDE(GDN_BWD_COLUMNS) * 2 + 255) / 256 * 256;
}

/* The row of token t and head h, and the saved state of a chunk and head. */
template <typename T> static __device__ __forceinline__ T *gdn_row(gdn_rows r, int64_t t, int64_t h, int64_t width) {
    return (T *)r.at + t * r.stride + h * width;
}

static __device__ __forceinline__ char *gdn_bwd_scratch_of(const gdn_bwd &x, int64_t c, int64_t h) {
    return x.scratch + ((c - x.first) * x.heads + h) * x.scratch_bytes;
}

/* dS [D,D] of head h behind chunk `end`, the last of span s inside the tile; NULL: zeros. */
static __device__ __forceinline__ const float *gdn_dS_from(const gdn_bwd &x, int64_t s, int64_t end, int64_t h) {
    if (end < x.span_chunk[s + 1]) return x.carry[0] + h * x.D * x.D;
    return x.dstate ? (const float *)x.dstate[s].data + h * x.dstate[s].stride : NULL;
}
/* Where it goes from before chunk `begin`, the first of span s inside the tile; NULL: nowhere. */
static __device__ __forceinline__ float *gdn_dS_to(const gdn_bwd &x, int64_t s, int64_t begin, int64_t h) {
    if (begin > x.span_chunk[s]) return x.carry[1] + h * x.D * x.D;
    return x.dstate ? (float *)x.dstate[s].data + h * x.dstate[s].stride : NULL;
}

#endif
