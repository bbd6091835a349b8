/* The chunked form, one head and one chunk at a time; see gdn_chunk.h. Matrices carry strides for both indices, so that
 * a transpose is a view and every line reads like its equation. */
#include "ops/gdn_chunk.h"

#include <tgmath.h>

typedef struct matrix {
    hh_real *at;
    int64_t row, col; /* strides */
} matrix;

static matrix transpose(matrix a) {
    return (matrix){a.at, a.col, a.row};
}
static hh_real *cell(matrix a, int64_t i, int64_t j) {
    return a.at + i * a.row + j * a.col;
}
static matrix dense(hh_arena *a, int64_t rows, int64_t cols) {
    return (matrix){hh_arena_alloc(a, sizeof(hh_real) * (size_t)(rows * cols)), cols, 1};
}
/* An input, never written. */
static matrix view(const hh_real *at, int64_t stride) {
    return (matrix){(hh_real *)(uintptr_t)at, stride, 1};
}

/* c [m,n] = keep c + a [m,k] b [k,n] */
static void product(matrix c, hh_real keep, matrix a, matrix b, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            hh_real sum = 0;
            for (int64_t l = 0; l < k; l++) sum += *cell(a, i, l) * *cell(b, l, j);
            *cell(c, i, j) = keep != 0 ? keep * *cell(c, i, j) + sum : sum;
        }
}

static void scale_rows(matrix a, const hh_real *factor, int64_t m, int64_t n) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) *cell(a, i, j) *= factor[i];
}

static hh_real dot_rows(matrix a, matrix b, int64_t i, int64_t n) {
    hh_real sum = 0;
    for (int64_t j = 0; j < n; j++) sum += *cell(a, i, j) * *cell(b, i, j);
    return sum;
}

/* What forward and backward have in common, F4-F6. */
typedef struct chunk {
    int64_t n, D;
    matrix Q, K, V;                                                    /* [n,D] inputs */
    matrix E, KK, A0, Bm;                                              /* [n,n]; KK = K K^T below the diagonal */
    matrix KS, R, Vh;                                                  /* [n,D]; KS = K S0 */
    matrix P;                                                          /* [n,n] */
    hh_real beta[HH_GDN_CHUNK], into[HH_GDN_CHUNK], out[HH_GDN_CHUNK]; /* e^G, e^{G_n - G} */
    hh_real last;                                                      /* e^{G_n} */
} chunk;

static void gates_of(chunk *c, const hh_gdn_piece *x) {
    hh_real G[HH_GDN_CHUNK], sum = 0;
    for (int64_t i = 0; i < c->n; i++) {
        G[i] = sum += x->g[i * x->g_stride];
        c->beta[i] = x->beta[i * x->beta_stride];
    }
    for (int64_t i = 0; i < c->n; i++) {
        c->into[i] = exp(G[i]);
        c->out[i] = exp(sum - G[i]);
        for (int64_t j = 0; j < c->n; j++) *cell(c->E, i, j) = j <= i ? exp(G[i] - G[j]) : 0; /* F4 */
    }
    c->last = exp(sum);
}

/* A0 = (I + N)^-1 by forward substitution, row by row. */
static void invert(chunk *c) {
    for (int64_t i = 0; i < c->n; i++) {
        for (int64_t j = 0; j < c->n; j++) *cell(c->A0, i, j) = i == j;
        for (int64_t m = 0; m < i; m++) {
            const hh_real N = c->beta[i] * *cell(c->KK, i, m); /* F5 */
            for (int64_t j = 0; j <= m; j++) *cell(c->A0, i, j) -= N * *cell(c->A0, m, j);
        }
    }
}

static void prepare(chunk *c, hh_arena *a, const hh_gdn_piece *x, const hh_real *S0) {
    const int64_t n = c->n = x->n, D = c->D = x->D;
    HH_ASSERT(n >= 1 && n <= HH_GDN_CHUNK);
    c->Q = view(x->q, x->q_stride), c->K = view(x->k, x->k_stride), c->V = view(x->v, x->v_stride);
    c->E = dense(a, n, n), c->KK = dense(a, n, n), c->A0 = dense(a, n, n), c->Bm = dense(a, n, n),
    c->P = dense(a, n, n);
    c->KS = dense(a, n, D), c->R = dense(a, n, D), c->Vh = dense(a, n, D);
    gates_of(c, x);
    product(c->KK, 0, c->K, transpose(c->K), n, n, D);
    invert(c);
    product(c->KS, 0, c->K, view(S0, D), n, D, D);
    product(c->P, 0, c->Q, transpose(c->K), n, n, D);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t d = 0; d < D; d++) *cell(c->R, i, d) = *cell(c->V, i, d) - c->into[i] * *cell(c->KS, i, d);
        for (int64_t j = 0; j < n; j++) {
            *cell(c->Bm, i, j) = *cell(c->A0, i, j) * *cell(c->E, i, j) * c->beta[j];
            *cell(c->P, i, j) *= *cell(c->E, i, j); /* F7 */
        }
    }
    product(c->Vh, 0, c->Bm, c->R, n, D, n); /* F6 */
}

void hh_gdn_chunk_fwd(hh_arena *a, hh_real *o, int64_t o_stride, hh_real *S, const hh_gdn_piece *x) {
    const size_t mark = a->used;
    chunk c;
    prepare(&c, a, x, S);
    const int64_t n = c.n, D = c.D;
    matrix O = view(o, o_stride), state = view(S, D);
    product(O, 0, c.Q, state, n, D, D);
    scale_rows(O, c.into, n, D);
    product(O, 1, c.P, c.Vh, n, D, n); /* F7 */
    scale_rows(c.Vh, c.out, n, D);
    product(state, c.last, transpose(c.K), c.Vh, D, D, n); /* F8 */
    hh_arena_reset(a, mark);
}

/* The n by n gradients of a chunk. */
typedef struct chunk_grad {
    matrix dVh, dR;             /* [n,D] */
    matrix dB, dN, Dp, Y, work; /* [n,n] */
} chunk_grad;

/* B5 and B6. */
static void triangle_grad(chunk_grad *b, hh_arena *a, const chunk *c, matrix dO, matrix dS) {
    const int64_t n = c->n, D = c->D;
    b->dVh = dense(a, n, D), b->dR = dense(a, n, D);
    b->dB = dense(a, n, n), b->dN = dense(a, n, n), b->Dp = dense(a, n, n), b->Y = dense(a, n, n),
    b->work = dense(a, n, n);
    product(b->dVh, 0, c->K, dS, n, D, D);
    scale_rows(b->dVh, c->out, n, D);
    product(b->dVh, 1, transpose(c->P), dO, n, D, n);
    product(b->dR, 0, transpose(c->Bm), b->dVh, n, D, n); /* B5 */
    product(b->dB, 0, b->dVh, transpose(c->R), n, n, D);
    product(b->Dp, 0, dO, transpose(c->Vh), n, n, D);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            if (j > i) *cell(b->dB, i, j) = 0;
            *cell(b->Y, i, j) = *cell(b->Dp, i, j) * *cell(c->P, i, j) + *cell(b->dB, i, j) * *cell(c->Bm, i, j);
            *cell(b->Dp, i, j) *= *cell(c->E, i, j);
            *cell(b->work, i, j) = *cell(b->dB, i, j) * *cell(c->E, i, j) * c->beta[j];
        }
    matrix half = dense(a, n, n);
    product(half, 0, transpose(c->A0), b->work, n, n, n);
    product(b->dN, 0, half, transpose(c->A0), n, n, n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) *cell(b->dN, i, j) = j < i ? -*cell(b->dN, i, j) : 0; /* B6 */
}

/* B9-B11. VdS = V^ dS1^T scaled by e^{G_n - G}; QdS = dO S0^T scaled by e^G. */
static void gate_grad(const hh_gdn_piece_grad *d, const chunk *c, const chunk_grad *b, matrix VdS, matrix QdS,
                      hh_real along_state) {
    const int64_t n = c->n, D = c->D;
    hh_real dg[HH_GDN_CHUNK], before = along_state, behind = 0;
    for (int64_t i = 0; i < n; i++) {
        hh_real dbeta = 0, sum = 0;
        for (int64_t j = 0; j < n; j++)
            dbeta +=
                *cell(b->dB, j, i) * *cell(c->A0, j, i) * *cell(c->E, j, i) + *cell(b->dN, i, j) * *cell(c->KK, i, j);
        d->dbeta[i * d->dbeta_stride] = dbeta; /* B9 */
        dg[i] = before;
        before += dot_rows(VdS, c->K, i, D);
        for (int64_t m = 1; m <= i; m++) {
            sum += *cell(b->Y, i, m - 1); /* B10 */
            dg[m] += sum;
        }
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        behind += dot_rows(QdS, c->Q, i, D) - c->into[i] * dot_rows(c->KS, b->dR, i, D);
        d->dg[i * d->dg_stride] = dg[i] + behind; /* B11 */
    }
}

void hh_gdn_chunk_bwd(hh_arena *a, const hh_gdn_piece_grad *d, hh_real *dS, const hh_real *S0, const hh_gdn_piece *x) {
    const size_t mark = a->used;
    chunk c;
    chunk_grad b;
    prepare(&c, a, x, S0);
    const int64_t n = c.n, D = c.D;
    matrix dO = view(d->do_, d->do_stride), dS1 = view(dS, D), S = view(S0, D);
    triangle_grad(&b, a, &c, dO, dS1);

    matrix dQ = view(d->dq, d->dq_stride), dK = view(d->dk, d->dk_stride), dV = view(d->dv, d->dv_stride);
    matrix VdS = dense(a, n, D), work = dense(a, n, D);
    product(dQ, 0, dO, transpose(S), n, D, D);
    scale_rows(dQ, c.into, n, D);
    product(VdS, 0, c.Vh, transpose(dS1), n, D, D);
    scale_rows(VdS, c.out, n, D);
    hh_real along_state = 0;
    for (int64_t i = 0; i < D * D; i++) along_state += c.last * S0[i] * dS[i];
    gate_grad(d, &c, &b, VdS, dQ, along_state);
    product(dQ, 1, b.Dp, c.K, n, D, n); /* B7 */

    product(dK, 0, b.dR, transpose(S), n, D, D);
    for (int64_t i = 0; i < n; i++)
        for (int64_t e = 0; e < D; e++) {
            *cell(dV, i, e) = *cell(b.dR, i, e);
            *cell(dK, i, e) = *cell(VdS, i, e) - c.into[i] * *cell(dK, i, e);
        }
    product(dK, 1, transpose(b.Dp), c.Q, n, D, n);
    scale_rows(b.dN, c.beta, n, n);
    product(dK, 1, b.dN, c.K, n, D, n);
    product(dK, 1, transpose(b.dN), c.K, n, D, n); /* B8 */

    for (int64_t i = 0; i < n; i++)
        for (int64_t e = 0; e < D; e++) {
            *cell(work, i, e) = c.into[i] * *cell(dO, i, e);
            *cell(b.dR, i, e) *= c.into[i];
        }
    for (int64_t i = 0; i < D * D; i++) dS[i] *= c.last;
    product(dS1, 1, transpose(c.Q), work, D, D, n);
    for (int64_t i = 0; i < n * D; i++) b.dR.at[i] = -b.dR.at[i];
    product(dS1, 1, transpose(c.K), b.dR, D, D, n); /* B12 */
    hh_arena_reset(a, mark);
}
