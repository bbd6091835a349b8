/* The reference of Gated DeltaNet: the recurrent form token by token, and the walk over spans, heads and chunks that
 * both forms share; see gdn.h. */
#include "ops/gdn.h"
#include "ops/gdn_chunk.h"
#include "ops/shape.h"

#include <string.h>
#include <tgmath.h>

/* u of token i, and S' in place of S. */
static void decay_and_predict(hh_real *u, hh_real *S, const hh_gdn_piece *x, int64_t i) {
    const hh_real *k = x->k + i * x->k_stride, *v = x->v + i * x->v_stride, keep = exp(x->g[i * x->g_stride]);
    for (int64_t b = 0; b < x->D; b++) u[b] = v[b];
    for (int64_t a = 0; a < x->D; a++)
        for (int64_t b = 0; b < x->D; b++) {
            S[a * x->D + b] *= keep;
            u[b] -= S[a * x->D + b] * k[a]; /* F1 */
        }
}

static void write_state(hh_real *S, const hh_real *u, const hh_gdn_piece *x, int64_t i) {
    const hh_real *k = x->k + i * x->k_stride, beta = x->beta[i * x->beta_stride];
    for (int64_t a = 0; a < x->D; a++)
        for (int64_t b = 0; b < x->D; b++) S[a * x->D + b] += beta * k[a] * u[b]; /* F2 */
}

static void recurrent_fwd(hh_real *o, int64_t o_stride, hh_real *S, const hh_gdn_piece *x) {
    hh_real u[HH_GDN_MAX_DIM];
    for (int64_t i = 0; i < x->n; i++) {
        const hh_real *q = x->q + i * x->q_stride;
        hh_real *out = o + i * o_stride;
        decay_and_predict(u, S, x, i);
        write_state(S, u, x, i);
        for (int64_t b = 0; b < x->D; b++) out[b] = 0;
        for (int64_t a = 0; a < x->D; a++)
            for (int64_t b = 0; b < x->D; b++) out[b] += S[a * x->D + b] * q[a]; /* F3 */
    }
}

/* One token backwards. before: S' of the token; after: S. dS is that of `after` and becomes that of the state before.
 */
static void token_bwd(const hh_gdn_piece_grad *d, hh_real *dS, const hh_real *before, const hh_real *after,
                      const hh_real *u, const hh_gdn_piece *x, int64_t i) {
    const int64_t D = x->D;
    const hh_real *q = x->q + i * x->q_stride, *k = x->k + i * x->k_stride, *grad = d->do_ + i * d->do_stride;
    const hh_real beta = x->beta[i * x->beta_stride], keep = exp(x->g[i * x->g_stride]);
    hh_real *dq = d->dq + i * d->dq_stride, *dk = d->dk + i * d->dk_stride, *du = d->dv + i * d->dv_stride;
    hh_real dbeta = 0, dg = 0;
    for (int64_t b = 0; b < D; b++) du[b] = 0;
    for (int64_t a = 0; a < D; a++) {
        dq[a] = 0;
        for (int64_t b = 0; b < D; b++) {
            dq[a] += after[a * D + b] * grad[b];
            dS[a * D + b] += q[a] * grad[b]; /* B1 */
            du[b] += dS[a * D + b] * k[a];
        }
    }
    for (int64_t b = 0; b < D; b++) {
        dbeta += du[b] * u[b];
        du[b] *= beta; /* B2 */
    }
    for (int64_t a = 0; a < D; a++) {
        dk[a] = 0;
        for (int64_t b = 0; b < D; b++) {
            dk[a] += dS[a * D + b] * beta * u[b] - before[a * D + b] * du[b];
            const hh_real decayed = dS[a * D + b] - k[a] * du[b]; /* B3 */
            dg += decayed * before[a * D + b];
            dS[a * D + b] = keep * decayed; /* B4 */
        }
    }
    d->dbeta[i * d->dbeta_stride] = dbeta;
    d->dg[i * d->dg_stride] = dg;
}

/* The oracle: all states of the chunk are recomputed from S0 and kept in scratch. */
static void recurrent_bwd(hh_arena *a, const hh_gdn_piece_grad *d, hh_real *dS, const hh_real *S0,
                          const hh_gdn_piece *x) {
    const int64_t n = x->n, D = x->D;
    const size_t mark = a->used, bytes = sizeof(hh_real) * (size_t)(D * D);
    hh_real *states = hh_arena_alloc(a, bytes * (size_t)(n + 1)), *before = hh_arena_alloc(a, bytes);
    hh_real *u = hh_arena_alloc(a, sizeof(hh_real) * (size_t)D);
    memcpy(states, S0, bytes);
    for (int64_t i = 0; i < n; i++) {
        hh_real *S = states + (i + 1) * D * D;
        memcpy(S, S - D * D, bytes);
        decay_and_predict(u, S, x, i);
        write_state(S, u, x, i);
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        memcpy(before, states + i * D * D, bytes);
        decay_and_predict(u, before, x, i);
        token_bwd(d, dS, before, states + (i + 1) * D * D, u, x, i);
    }
    hh_arena_reset(a, mark);
}

hh_gdn_piece hh_gdn_piece_of(hh_tensor q, hh_tensor k, hh_tensor v, hh_tensor g, hh_tensor beta, int64_t t, int64_t n,
                             int64_t h) {
    const int64_t D = q.dim[2];
    return (hh_gdn_piece){.n = n,
                          .D = D,
                          .q = hh_row(q, t) + h * D,
                          .k = hh_row(k, t) + h * D,
                          .v = hh_row(v, t) + h * D,
                          .g = hh_row(g, t) + h,
                          .beta = hh_row(beta, t) + h,
                          .q_stride = q.stride,
                          .k_stride = k.stride,
                          .v_stride = v.stride,
                          .g_stride = g.stride,
                          .beta_stride = beta.stride};
}

static void check_inputs(hh_tensor q, hh_tensor k, hh_tensor v, hh_tensor g, hh_tensor beta, const hh_span *span,
                         int64_t n_spans) {
    const int64_t T = q.dim[0], heads = q.dim[1];
    HH_ASSERT(hh_is_real_heads(q, T, heads, q.dim[2]) && hh_is_real_like(k, q) && hh_is_real_like(v, q));
    HH_ASSERT(hh_is_real_matrix(g, T, heads) && hh_is_real_like(beta, g) && q.dim[2] <= HH_GDN_MAX_DIM);
    HH_ASSERT(hh_are_spans(span, n_spans, T));
}

void hh_gdn_fwd_reference(hh_backend *be, hh_tensor o, hh_tensor saved, hh_tensor q, hh_tensor k, hh_tensor v,
                          hh_tensor g, hh_tensor beta, const hh_tensor *state, const hh_span *span, int64_t n_spans,
                          hh_gdn_mode mode) {
    const int64_t heads = q.dim[1], D = q.dim[2];
    check_inputs(q, k, v, g, beta, span, n_spans);
    HH_ASSERT(hh_is_real_like(o, q) && (hh_is_absent(saved) || saved.dim[0] >= hh_gdn_chunk_count(span, n_spans)));
    hh_arena *a = &be->scratch;
    const size_t mark = a->used, bytes = sizeof(hh_real) * (size_t)(D * D);
    hh_real *zero_start = hh_arena_alloc(a, bytes);
    int64_t first_chunk = 0;
    for (int64_t s = 0; s < n_spans; first_chunk += hh_gdn_span_chunks(span[s]), s++) {
        HH_ASSERT(!state || hh_is_real_heads(state[s], heads, D, D));
        for (int64_t h = 0; h < heads; h++) {
            hh_real *S = state ? hh_row(state[s], h) : memset(zero_start, 0, bytes);
            for (int64_t t = span[s].lo, c = first_chunk; t < span[s].hi; t += HH_GDN_CHUNK, c++) {
                const int64_t n = span[s].hi - t < HH_GDN_CHUNK ? span[s].hi - t : HH_GDN_CHUNK;
                const hh_gdn_piece x = hh_gdn_piece_of(q, k, v, g, beta, t, n, h);
                if (saved.data) memcpy(hh_row(saved, c) + h * D * D, S, bytes);
                if (mode == HH_GDN_RECURRENT || n == 1)
                    recurrent_fwd(hh_row(o, t) + h * D, o.stride, S, &x);
                else
                    hh_gdn_chunk_fwd(a, hh_row(o, t) + h * D, o.stride, S, &x);
            }
        }
    }
    hh_arena_reset(a, mark);
}

void hh_gdn_bwd_reference(hh_backend *be, hh_tensor dq, hh_tensor dk, hh_tensor dv, hh_tensor dg, hh_tensor dbeta,
                          hh_tensor do_, hh_tensor saved, hh_tensor q, hh_tensor k, hh_tensor v, hh_tensor g,
                          hh_tensor beta, const hh_tensor *dstate, const hh_span *span, int64_t n_spans,
                          hh_gdn_mode mode) {
    const int64_t heads = q.dim[1], D = q.dim[2];
    check_inputs(q, k, v, g, beta, span, n_spans);
    HH_ASSERT(hh_is_real_like(dq, q) && hh_is_real_like(dk, q) && hh_is_real_like(dv, q) && hh_is_real_like(do_, q));
    HH_ASSERT(hh_is_real_like(dg, g) && hh_is_real_like(dbeta, g));
    HH_ASSERT(saved.data || !hh_gdn_chunk_count(span, n_spans));
    hh_arena *a = &be->scratch;
    const size_t mark = a->used, bytes = sizeof(hh_real) * (size_t)(D * D);
    hh_real *zero_end = hh_arena_alloc(a, bytes);
    int64_t end_chunk = 0;
    for (int64_t s = 0; s < n_spans; s++) {
        HH_ASSERT(!dstate || hh_is_real_heads(dstate[s], heads, D, D));
        const int64_t chunks = hh_gdn_span_chunks(span[s]);
        end_chunk += chunks;
        for (int64_t h = 0; h < heads; h++) {
            hh_real *dS = dstate ? hh_row(dstate[s], h) : memset(zero_end, 0, bytes);
            for (int64_t c = chunks - 1; c >= 0; c--) {
                const int64_t t = span[s].lo + c * HH_GDN_CHUNK, left = span[s].hi - t;
                const hh_gdn_piece x =
                    hh_gdn_piece_of(q, k, v, g, beta, t, left < HH_GDN_CHUNK ? left : HH_GDN_CHUNK, h);
                const hh_gdn_piece_grad d = {.dq = hh_row(dq, t) + h * D,
                                             .dk = hh_row(dk, t) + h * D,
                                             .dv = hh_row(dv, t) + h * D,
                                             .dg = hh_row(dg, t) + h,
                                             .dbeta = hh_row(dbeta, t) + h,
                                             .do_ = hh_row(do_, t) + h * D,
                                             .dq_stride = dq.stride,
                                             .dk_stride = dk.stride,
                                             .dv_stride = dv.stride,
                                             .dg_stride = dg.stride,
                                             .dbeta_stride = dbeta.stride,
                                             .do_stride = do_.stride};
                const hh_real *S0 = hh_row(saved, end_chunk - chunks + c) + h * D * D;
                if (mode == HH_GDN_RECURRENT)
                    recurrent_bwd(a, &d, dS, S0, &x);
                else
                    hh_gdn_chunk_bwd(a, &d, dS, S0, &x);
            }
        }
    }
    hh_arena_reset(a, mark);
}
