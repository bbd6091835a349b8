/* Gated DeltaNet backward in vectors, chunk after chunk from the end of a span; a head of a span is one item of work.
 * Equations of ops/gdn.h in the form of ops/simd/gdn.h, without A0:
 *   X = (I + M)^-T dV^;  dR = beta * X;  dM = -strictlower(X V^^T);  dN = dM * E
 *   Y = dO V^^T * P + dM * M below the diagonal;  dbeta_i = X_i . R_i + sum_j dN_ij k_i . k_j */
#include "ops/simd/gdn.h"

#include "base/parallel.h"
#include "ops/shape.h"

typedef struct bwd_call {
    hh_backend *be;
    hh_tensor dq, dk, dv, dg, dbeta, do_, saved, q, k, v, g, beta;
    const hh_tensor *dstate;
    const hh_span *span;
    const int64_t *first_chunk;
} bwd_call;

typedef struct bwd_chunk {
    hh_gdn_chunk c;
    float *S, *dS, *ST, *dST; /* [D, D] in padded rows; transposes of both */
    float *dO, *X, *work;     /* [n, D] */
    float *dQ, *dK, *VT;      /* [n, D]; V^^T [D, n] */
    float *dP, *dM;           /* [n, n]; dO V^^T, then D' = E * dO V^^T; dM, then beta_i dN_ij */
    float dbeta[HH_GDN_CHUNK], behind[HH_GDN_CHUNK], before[HH_GDN_CHUNK]; /* terms of dg that stand behind, before m */
    float rows[HH_GDN_CHUNK], cols[HH_GDN_CHUNK + HH_PANEL];               /* sums of Y */
} bwd_chunk;

static void place(bwd_chunk *b, hh_arena *a, int64_t D) {
    hh_gdn_chunk_place(&b->c, a, D);
    const int64_t ld = b->c.ld, n = HH_GDN_CHUNK;
    b->S = hh_gdn_rows(a, D, ld), b->dS = hh_gdn_rows(a, D, ld);
    b->ST = hh_gdn_rows(a, ld, ld), b->dST = hh_gdn_rows(a, ld, ld);
    b->dO = hh_gdn_rows(a, n, ld), b->X = hh_gdn_rows(a, n, ld), b->work = hh_gdn_rows(a, n, ld);
    b->dQ = hh_gdn_rows(a, n, ld), b->dK = hh_gdn_rows(a, n, ld), b->VT = hh_gdn_rows(a, D, HH_GDN_LDN);
    b->dP = hh_gdn_rows(a, n, HH_GDN_LDN), b->dM = hh_gdn_rows(a, n, HH_GDN_LDN);
}

/* B5: X, from dV^ = P^T dO + e^{G_n - G} * (K dS1). */
static void solve_backward(bwd_chunk *b) {
    const hh_gdn_chunk *c = &b->c;
    hh_gdn_product(b->X, c->ld, 0, 1, hh_rows_of(c->K, c->ld), b->dS, c->ld, c->n, c->cols, c->D);
    hh_gdn_scale_rows(b->X, b->X, c->out, c->ld, c->n, c->cols);
    hh_gdn_lower_transposed(c, b->X, 1, c->P, b->dO);
    hh_gdn_solve_transposed(c, b->X);
}

/* B6, B9 and B10: everything [n, n]. */
static void triangle_grad(bwd_chunk *b) {
    const hh_gdn_chunk *c = &b->c;
    const int64_t n = c->n, width = hh_panel_round(n);
    hh_transpose(b->VT, HH_GDN_LDN, c->Vh, c->ld, (int)width, (int)c->D);
    hh_gdn_inner(c, b->dP, b->dO, b->VT);
    hh_gdn_inner(c, b->dM, b->X, b->VT);
    memset(b->cols, 0, sizeof b->cols);
    for (int64_t i = 0; i < n; i++) {
        hh_vf through_keys = {0}, row = {0};
        const hh_vi last = hh_vset_int((int32_t)i);
        for (int64_t j = 0; j < width; j += HH_VW) {
            const int64_t at = i * HH_GDN_LDN + j;
            hh_vf dp = {0}, dn = {0};
            if (j <= i) {
                const hh_vi column = hh_viota() + (int32_t)j, below = column < last;
                const hh_vf e = hh_vload(c->E + at), dpv = hh_vload(b->dP + at);
                const hh_vf dm = hh_vselect(below, -hh_vload(b->dM + at), (hh_vf){0});
                const hh_vf y = hh_vselect(below, dpv * hh_vload(c->P + at), (hh_vf){0}) + dm * hh_vload(c->M + at);
                row += y;
                hh_vstore(b->cols + j, hh_vload(b->cols + j) + y); /* B10 */
                dp = hh_vselect(column <= last, e * dpv, (hh_vf){0});
                dn = dm * e;
                through_keys = hh_vfma(dn, hh_vselect(below, hh_vload(c->KK + at), (hh_vf){0}), through_keys);
                dn *= c->beta[i];
            }
            hh_vstore(b->dP + at, dp);
            hh_vstore(b->dM + at, dn); /* B6 */
        }
        b->rows[i] = hh_vsum(row);
        b->dbeta[i] = hh_vsum(through_keys) + hh_vdot(b->X + i * c->ld, c->R + i * c->ld, c->D); /* B9 */
    }
}

/* B11. */
static void decay_grad(const bwd_chunk *b, float *dg, int64_t stride, double along_state) {
    const hh_gdn_chunk *c = &b->c;
    double before[HH_GDN_CHUNK], behind = 0, across = 0;
    for (int64_t i = 0; i < c->n; i++) {
        before[i] = along_state;
        along_state += (double)b->before[i];
    }
    for (int64_t i = c->n - 1; i >= 0; i--) {
        across += (double)b->rows[i] - (double)b->cols[i]; /* sum of Y over rows >= i and columns < i */
        behind += (double)b->behind[i];
        dg[i * stride] = (float)(before[i] + behind + across);
    }
}

static double along(const bwd_chunk *b) {
    double sum = 0;
    for (int64_t i = 0; i < b->c.D; i++) sum += (double)hh_vdot(b->S + i * b->c.ld, b->dS + i * b->c.ld, b->c.D);
    return sum * (double)b->c.last;
}

/* B7 and B8, and the terms of dg that are products of rows. X becomes e^G * dR, dO becomes e^G * dO. */
static void rows_grad(bwd_chunk *b, float *dv, int64_t dv_stride) {
    const hh_gdn_chunk *c = &b->c;
    const int64_t n = c->n, ld = c->ld, D = c->D, cols = c->cols;
    hh_transpose(b->ST, ld, b->S, ld, (int)D, (int)cols);
    hh_transpose(b->dST, ld, b->dS, ld, (int)D, (int)cols);
    for (int64_t i = 0; i < D; i++)
        for (int64_t d = D; d < cols; d++) b->ST[i * ld + d] = b->dST[i * ld + d] = 0;
    hh_gdn_scale_rows(b->X, b->X, c->beta, ld, n, cols);
    hh_gdn_store(dv, dv_stride, b->X, ld, n, D); /* B5 */
    hh_gdn_scale_rows(b->X, b->X, c->into, ld, n, cols);
    hh_gdn_scale_rows(b->dO, b->dO, c->into, ld, n, cols);
    hh_gdn_product(b->dQ, ld, 0, 1, hh_rows_of(b->dO, ld), b->ST, ld, n, cols, D);
    hh_gdn_product(b->dK, ld, 0, 1, hh_rows_of(c->Vh, ld), b->dST, ld, n, cols, D);
    hh_gdn_scale_rows(b->dK, b->dK, c->out, ld, n, cols);
    for (int64_t i = 0; i < n; i++) {
        b->before[i] = hh_vdot(b->dK + i * ld, c->K + i * ld, D);
        b->behind[i] = hh_vdot(b->dQ + i * ld, c->Q + i * ld, D) - hh_vdot(c->KS + i * ld, b->X + i * ld, D);
    }
    hh_gdn_product(b->dK, ld, 1, -1, hh_rows_of(b->X, ld), b->ST, ld, n, cols, D);
    hh_gdn_lower(c, b->dQ, 1, b->dP, c->K);            /* B7 */
    hh_gdn_lower_transposed(c, b->dK, 1, b->dP, c->Q); /* B8 */
    hh_gdn_lower(c, b->dK, 1, b->dM, c->K);
    hh_gdn_lower_transposed(c, b->dK, 1, b->dM, c->K);
}

static void chunk_bwd(bwd_chunk *b, const hh_gdn_piece *x, const hh_gdn_piece_grad *d, const float *S0) {
    hh_gdn_chunk *c = &b->c;
    const int64_t D = c->D, ld = c->ld;
    hh_gdn_load_state(b->S, ld, S0, D, c->cols);
    hh_gdn_prepare(c, x, b->S);
    const int64_t n = c->n;
    for (int64_t i = n; i < hh_panel_round(n); i++) memset(c->Vh + i * ld, 0, sizeof(float) * (size_t)c->cols);
    hh_gdn_load(b->dO, ld, d->do_, d->do_stride, n, D, c->cols);
    solve_backward(b);
    triangle_grad(b);
    const double along_state = along(b);
    rows_grad(b, d->dv, d->dv_stride);
    decay_grad(b, d->dg, d->dg_stride, along_state);
    for (int64_t i = 0; i < n; i++) d->dbeta[i * d->dbeta_stride] = b->dbeta[i];
    hh_gdn_store(d->dq, d->dq_stride, b->dQ, ld, n, D);
    hh_gdn_store(d->dk, d->dk_stride, b->dK, ld, n, D);
    hh_gdn_product(b->dS, ld, c->last, 1, hh_columns_of(c->Q, ld), b->dO, ld, D, c->cols, n);
    hh_gdn_product(b->dS, ld, 1, -1, hh_columns_of(c->K, ld), b->X, ld, D, c->cols, n); /* B12 */
}

static void run_head(void *context, int64_t index, int thread) {
    const bwd_call *c = context;
    const int64_t heads = c->q.dim[1], D = c->q.dim[2], s = index / heads, h = index % heads;
    const hh_span span = c->span[s];
    hh_arena *a = &c->be->thread_scratch[thread];
    const size_t mark = a->used;
    bwd_chunk *b = hh_arena_alloc(a, sizeof *b);
    place(b, a, D);
    float *dS = c->dstate ? hh_row(c->dstate[s], h) : NULL;
    if (dS)
        hh_gdn_load_state(b->dS, b->c.ld, dS, D, b->c.cols);
    else
        memset(b->dS, 0, sizeof(float) * (size_t)(D * b->c.ld));
    for (int64_t i = hh_gdn_span_chunks(span) - 1; i >= 0; i--) {
        const int64_t t = span.lo + i * HH_GDN_CHUNK, left = span.hi - t;
        const hh_gdn_piece x =
            hh_gdn_piece_of(c->q, c->k, c->v, c->g, c->beta, t, left < HH_GDN_CHUNK ? left : HH_GDN_CHUNK, h);
        const hh_gdn_piece_grad d = {.dq = hh_row(c->dq, t) + h * D,
                                     .dk = hh_row(c->dk, t) + h * D,
                                     .dv = hh_row(c->dv, t) + h * D,
                                     .dg = hh_row(c->dg, t) + h,
                                     .dbeta = hh_row(c->dbeta, t) + h,
                                     .do_ = hh_row(c->do_, t) + h * D,
                                     .dq_stride = c->dq.stride,
                                     .dk_stride = c->dk.stride,
                                     .dv_stride = c->dv.stride,
                                     .dg_stride = c->dg.stride,
                                     .dbeta_stride = c->dbeta.stride,
                                     .do_stride = c->do_.stride};
        chunk_bwd(b, &x, &d, hh_row(c->saved, c->first_chunk[s] + i) + h * D * D);
    }
    if (dS) hh_gdn_store(dS, D, b->dS, b->c.ld, D, D);
    hh_arena_reset(a, mark);
}

/* The token-by-token mode is an oracle and stays with the reference. */
void HH_SIMD_NAME(gdn_bwd)(hh_backend *be, hh_tensor dq, hh_tensor dk, hh_tensor dv, hh_tensor dg, hh_tensor dbeta,
                           hh_tensor do_, hh_tensor saved, hh_tensor q, hh_tensor k, hh_tensor v, hh_tensor g,
                           hh_tensor beta, const hh_tensor *dstate, const hh_span *span, int64_t n_spans,
                           hh_gdn_mode mode) {
    const int64_t T = q.dim[0], heads = q.dim[1], D = q.dim[2];
    if (mode == HH_GDN_RECURRENT) {
        hh_gdn_bwd_reference(be, dq, dk, dv, dg, dbeta, do_, saved, q, k, v, g, beta, dstate, span, n_spans, mode);
        return;
    }
    HH_ASSERT(hh_is_real_heads(q, T, heads, D) && hh_is_real_like(k, q) && hh_is_real_like(v, q) &&
              D <= HH_GDN_MAX_DIM);
    HH_ASSERT(hh_is_real_like(dq, q) && hh_is_real_like(dk, q) && hh_is_real_like(dv, q) && hh_is_real_like(do_, q));
    HH_ASSERT(hh_is_real_matrix(g, T, heads) && hh_is_real_like(beta, g) && hh_is_real_like(dg, g) &&
              hh_is_real_like(dbeta, g));
    HH_ASSERT(hh_are_spans(span, n_spans, T));
    const size_t mark = be->scratch.used;
    int64_t *first = hh_arena_alloc(&be->scratch, sizeof *first * (size_t)(n_spans + 1)), chunks = 0;
    for (int64_t s = 0; s < n_spans; s++) {
        HH_ASSERT(!dstate || hh_is_real_heads(dstate[s], heads, D, D));
        first[s] = chunks;
        chunks += hh_gdn_span_chunks(span[s]);
    }
    HH_ASSERT(!chunks || saved.data);
    bwd_call c = {.be = be,
                  .dq = dq,
                  .dk = dk,
                  .dv = dv,
                  .dg = dg,
                  .dbeta = dbeta,
                  .do_ = do_,
                  .saved = saved,
                  .q = q,
                  .k = k,
                  .v = v,
                  .g = g,
                  .beta = beta,
                  .dstate = dstate,
                  .span = span,
                  .first_chunk = first};
    hh_parallel_for(T * heads * D * D < HH_GDN_SMALL ? 1 : be->n_threads, n_spans * heads, run_head, &c);
    hh_arena_reset(&be->scratch, mark);
}
