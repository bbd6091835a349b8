/* Gated DeltaNet forward in vectors: chunks for prefill and training, one pass over the state for single tokens. A head
 * of a span is one item of work; its state stays in the cache while its chunks go by. Tags: ops/gdn.h, ops/simd/gdn.h.
 */
#include "ops/simd/gdn.h"

#include "base/parallel.h"
#include "ops/shape.h"

#include <math.h>

typedef struct fwd_call {
    hh_backend *be;
    hh_tensor o, saved, q, k, v, g, beta;
    const hh_tensor *state;
    const hh_span *span;
    const int64_t *first_chunk; /* of every span */
    hh_gdn_mode mode;
} fwd_call;

/* Columns [d, d + vectors) of the state: S'^T k and S^T q in one pass, then the update while it is in the first cache.
 */
static inline __attribute__((always_inline)) void step_columns(const int vectors, float *o, float *S, int64_t ld,
                                                               int64_t D, const float *q, const float *k,
                                                               const float *v, float keep, float beta, float kq) {
    hh_vf a[4], b[4];
#pragma GCC unroll 4
    for (int l = 0; l < vectors; l++) a[l] = b[l] = (hh_vf){0};
    for (int64_t i = 0; i < D; i++) {
        const hh_vf ki = hh_vset(k[i]), qi = hh_vset(q[i]);
#pragma GCC unroll 4
        for (int l = 0; l < vectors; l++) {
            const hh_vf s = hh_vload(S + i * ld + l * HH_VW);
            a[l] = hh_vfma(s, ki, a[l]);
            b[l] = hh_vfma(s, qi, b[l]);
        }
    }
#pragma GCC unroll 4
    for (int l = 0; l < vectors; l++) {
        a[l] = hh_vload(v + l * HH_VW) - keep * a[l];                             /* F1: u */
        hh_vstore(o + l * HH_VW, hh_vfma(hh_vset(beta * kq), a[l], keep * b[l])); /* F3 */
    }
    for (int64_t i = 0; i < D; i++) {
        const hh_vf w = hh_vset(beta * k[i]);
#pragma GCC unroll 4
        for (int l = 0; l < vectors; l++) {
            float *s = S + i * ld + l * HH_VW;
            hh_vstore(s, hh_vfma(w, a[l], keep * hh_vload(s))); /* F2 */
        }
    }
}

/* What does not fill a vector. */
static void step_column(float *o, float *S, int64_t ld, int64_t D, const float *q, const float *k, const float *v,
                        float keep, float beta, float kq) {
    float a = 0, b = 0;
    for (int64_t i = 0; i < D; i++) a += S[i * ld] * k[i], b += S[i * ld] * q[i];
    a = *v - keep * a;
    *o = keep * b + beta * kq * a;
    for (int64_t i = 0; i < D; i++) S[i * ld] = keep * S[i * ld] + beta * k[i] * a;
}

static void step(float *o, float *S, int64_t ld, const hh_gdn_piece *x, int64_t t) {
    const int64_t D = x->D;
    const float *q = x->q + t * x->q_stride, *k = x->k + t * x->k_stride, *v = x->v + t * x->v_stride;
    const float keep = expf(x->g[t * x->g_stride]), beta = x->beta[t * x->beta_stride], kq = hh_vdot(k, q, D);
    int64_t d = 0;
    for (; d + 4 * HH_VW <= D; d += 4 * HH_VW) step_columns(4, o + d, S + d, ld, D, q, k, v + d, keep, beta, kq);
    for (; d + HH_VW <= D; d += HH_VW) step_columns(1, o + d, S + d, ld, D, q, k, v + d, keep, beta, kq);
    for (; d < D; d++) step_column(o + d, S + d, ld, D, q, k, v + d, keep, beta, kq);
}

static void chunk_fwd(hh_gdn_chunk *c, float *o, int64_t o_stride, float *S, const hh_gdn_piece *x) {
    hh_gdn_prepare(c, x, S);
    const int64_t n = c->n, ld = c->ld;
    float *O = c->R; /* R has done its work */
    hh_gdn_product(O, ld, 0, 1, hh_rows_of(c->Q, ld), S, ld, n, c->cols, c->D);
    hh_gdn_scale_rows(O, O, c->into, ld, n, c->cols);
    hh_gdn_lower(c, O, 1, c->P, c->Vh); /* F7 */
    hh_gdn_store(o, o_stride, O, ld, n, c->D);
    hh_gdn_scale_rows(c->Vh, c->Vh, c->out, ld, n, c->cols);
    hh_gdn_product(S, ld, c->last, 1, hh_columns_of(c->K, ld), c->Vh, ld, c->D, c->cols, n); /* F8 */
}

/* All chunks of one head of one span. */
static void run_head(void *context, int64_t index, int thread) {
    const fwd_call *c = context;
    const int64_t heads = c->q.dim[1], D = c->q.dim[2], s = index / heads, h = index % heads;
    const hh_span span = c->span[s];
    hh_arena *a = &c->be->thread_scratch[thread];
    const size_t mark = a->used;
    float *S = c->state ? hh_row(c->state[s], h) : NULL, *work = S;
    int64_t ld = D;
    const bool single = c->mode == HH_GDN_RECURRENT || span.hi - span.lo <= 1;
    hh_gdn_chunk *chunk = NULL;
    if (!single) {
        chunk = hh_arena_alloc(a, sizeof *chunk);
        hh_gdn_chunk_place(chunk, a, D);
        ld = chunk->ld;
    }
    if (!single || !S) {
        work = hh_gdn_rows(a, D, ld);
        if (S)
            hh_gdn_load_state(work, ld, S, D, hh_panel_round(D));
        else
            memset(work, 0, sizeof(float) * (size_t)(D * ld));
    }
    for (int64_t t = span.lo, i = c->first_chunk[s]; t < span.hi; t += HH_GDN_CHUNK, i++) {
        const int64_t n = span.hi - t < HH_GDN_CHUNK ? span.hi - t : HH_GDN_CHUNK;
        const hh_gdn_piece x = hh_gdn_piece_of(c->q, c->k, c->v, c->g, c->beta, t, n, h);
        if (c->saved.data) hh_gdn_store(hh_row(c->saved, i) + h * D * D, D, work, ld, D, D);
        if (single || n == 1)
            for (int64_t l = 0; l < n; l++) step(hh_row(c->o, t + l) + h * D, work, ld, &x, l);
        else
            chunk_fwd(chunk, hh_row(c->o, t) + h * D, c->o.stride, work, &x);
    }
    if (S && work != S) hh_gdn_store(S, D, work, ld, D, D);
    hh_arena_reset(a, mark);
}

void HH_SIMD_NAME(gdn_fwd)(hh_backend *be, hh_tensor o, hh_tensor saved, hh_tensor q, hh_tensor k, hh_tensor v,
                           hh_tensor g, hh_tensor beta, const hh_tensor *state, const hh_span *span, int64_t n_spans,
                           hh_gdn_mode mode) {
    const int64_t T = q.dim[0], heads = q.dim[1], D = q.dim[2];
    HH_ASSERT(hh_is_real_heads(q, T, heads, D) && hh_is_real_like(k, q) && hh_is_real_like(v, q) &&
              hh_is_real_like(o, q));
    HH_ASSERT(hh_is_real_matrix(g, T, heads) && hh_is_real_like(beta, g) && D <= HH_GDN_MAX_DIM);
    HH_ASSERT(hh_are_spans(span, n_spans, T));
    HH_ASSERT(hh_is_absent(saved) || saved.dim[0] >= hh_gdn_chunk_count(span, n_spans));
    const size_t mark = be->scratch.used;
    int64_t *first = hh_arena_alloc(&be->scratch, sizeof *first * (size_t)(n_spans + 1)), chunks = 0, work = 0;
    for (int64_t s = 0; s < n_spans; s++) {
        HH_ASSERT(!state || hh_is_real_heads(state[s], heads, D, D));
        first[s] = chunks;
        chunks += hh_gdn_span_chunks(span[s]);
        work += (span[s].hi - span[s].lo) * heads * D * D;
    }
    fwd_call c = {.be = be,
                  .o = o,
                  .saved = saved,
                  .q = q,
                  .k = k,
                  .v = v,
                  .g = g,
                  .beta = beta,
                  .state = state,
                  .span = span,
                  .first_chunk = first,
                  .mode = mode};
    hh_parallel_for(work < HH_GDN_SMALL ? 1 : be->n_threads, n_spans * heads, run_head, &c);
    hh_arena_reset(&be->scratch, mark);
}
