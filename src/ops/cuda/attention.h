/* Softmax attention on the card: what its kernels are given, and who serves which shape. Equations: ops/attention.h.
 *
 *   attention.cu         the two ops: spans and heads as lists, operands made fit for the tiles, choice of the kernel
 *   attention_plain.cu   float32 arithmetic, any shape: verification, and what the others do not take
 *   attention_fwd.cu     tiles on tensor cores, forward
 *   attention_bwd.cu     the same, backward: dk and dv in one kernel, dq in another, neither with atomics
 *   attention_{fwd,bwd}_wgmma.cu  the same with warpgroup products (sm_90a; widths 64 and 128)
 *   attention_decode.cu  one query a span against a long cache: the context is split over the card
 */
#ifndef HH_OPS_CUDA_ATTENTION_H
#define HH_OPS_CUDA_ATTENTION_H

#include "ops/cuda/cuda.h"

#include <cuda_fp16.h>

extern "C" {
#include "ops/attention.h"
}

/* One span. Positions of its keys count from 0, those of its queries from pos. */
typedef struct hh_attention_span {
    const char *k, *v;          /* key 0 */
    int64_t k_stride, v_stride; /* elements from key to key */
    int64_t lo, pos;            /* first row of q; its position */
    int32_t n;                  /* queries */
    int32_t first;              /* tiles (of queries or keys, as the kernel cuts them) of the spans before it */
} hh_attention_span;

/* One query head: columns (in heads) where it is found in q, in o, do, dq and lse, and in k and v. */
typedef struct hh_attention_head {
    int32_t q, o, kv, unused;
} hh_attention_head;

/* One KV head and those of the list of heads that read it. */
typedef struct hh_attention_group {
    int32_t kv, dkv; /* column in k and v; in dk and dv */
    int32_t first, n;
} hh_attention_group;

typedef struct hh_attention_args {
    const void *q;
    void *o;
    float *lse; /* or NULL */
    int64_t q_stride, o_stride, lse_stride;
    const hh_attention_span *span;
    const hh_attention_head *head;
    int32_t n_spans, n_heads, head_dim;
    int32_t kv_dtype;
    double c, base, inverse_log_base; /* F1; base 0: no log-scale */
    /* Backward. */
    const void *do_;
    const float *delta; /* [T,Hq] */
    const float *scale; /* c_t by position */
    void *dq, *dk, *dv;
    int64_t do_stride, dq_stride, dk_stride, dv_stride, delta_stride;
    const hh_attention_group *group;
    int32_t n_groups, unused;
} hh_attention_args;

/* The span that tile `tile` belongs to: the last one whose first is not behind it. Empty spans own no tile. */
static __device__ __forceinline__ const hh_attention_span *hh_attention_find(const hh_attention_args &a, int tile) {
    int lo = 0, hi = a.n_spans;
    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        if (a.span[mid].first <= tile)
            lo = mid;
        else
            hi = mid;
    }
    return a.span + lo;
}

/* Element i of a matrix of any type that a cache may have. */
static __device__ __forceinline__ float hh_attention_load(const char *p, int dtype, int64_t i) {
    switch (dtype) {
    case HH_DTYPE_F32:
        return ((const float *)p)[i];
    case HH_DTYPE_BF16:
        return __bfloat162float(((const hh_bf16 *)p)[i]);
    case HH_DTYPE_F16:
        return __half2float(((const __half *)p)[i]);
    default: { /* Q8_0 */
        const char *block = p + i / 32 * 34;
        return __half2float(*(const __half *)block) * (float)((const signed char *)block)[2 + i % 32];
    }
    }
}

/* c_t of F1. */
static __device__ __forceinline__ float hh_attention_scale_at(const hh_attention_args &a, int64_t position) {
    return (float)(a.base > 0 ? a.c * log((double)position + a.base) * a.inverse_log_base : a.c);
}

/* Tiles of `rows` that each span has: fills first, returns their number. */
static inline int64_t hh_attention_cut(hh_attention_span *span, int64_t n_spans, int64_t rows) {
    int64_t n = 0;
    for (int64_t s = 0; s < n_spans; s++) {
        span[s].first = (int32_t)n;
        n += hh_ceil_div(span[s].n, rows);
    }
    HH_ASSERT(n < INT32_MAX);
    return n;
}

/* attention_plain.cu. `span` is the host's list, cut here; args->span is set. */
void hh_attention_plain_fwd(hh_backend *be, hh_attention_args *a, hh_dtype type, hh_attention_span *span);
void hh_attention_plain_bwd(hh_backend *be, hh_attention_args *a, hh_dtype type, hh_attention_span *span);
/* B1 into delta [T,Hq], for every row. */
void hh_attention_delta(hh_backend *be, float *delta, hh_tensor do_, hh_tensor o);

/* attention_fwd.cu, attention_bwd.cu: bf16, head widths 32, 64, 96 and 128, rows on 16-byte boundaries. */
bool hh_attention_tiles_take(int64_t head_dim);
void hh_attention_tiles_fwd(hh_backend *be, hh_attention_args *a, hh_attention_span *span);
void hh_attention_tiles_bwd(hh_backend *be, hh_attention_args *a, hh_attention_span *span);
/* a->scale: c_t of the positions that the spans have. */
void hh_attention_fill_scales(hh_backend *be, hh_attention_args *a, const hh_attention_span *span);

/* attention_fwd_wgmma.cu, attention_bwd_wgmma.cu: the same operands; needs the card and a build for it. */
bool hh_attention_wgmma_takes(hh_backend *be, int64_t head_dim);
void hh_attention_wgmma_fwd(hh_backend *be, hh_attention_args *a, hh_attention_span *span);
void hh_attention_wgmma_bwd(hh_backend *be, hh_attention_args *a, hh_attention_span *span);

/* attention_decode.cu: spans of one query, bf16 queries, keys and values bf16, F16, F32 or Q8_0 in aligned rows. */
void hh_attention_decode(hh_backend *be, hh_attention_args *a, hh_attention_span *span,
                         const hh_attention_group *group);

#endif
