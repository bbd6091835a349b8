/* The chunk of Gated DeltaNet that forward and backward share, for one head and at most 64 tokens.
 *
 * Equations of ops/gdn.h with one change: A0 is never formed. With M = N * E (strictly lower) the product Bm R is the
 * solution of (I + M) V^ = beta * R, because E is a scaling of rows and columns, so the triangular inverse becomes a
 * substitution by blocks of 16 rows, mostly matrix products; its transpose serves the backward.
 *
 * All matrices are copied into scratch with rows padded to whole panels and to an odd number of cache lines.
 */
#ifndef HH_OPS_SIMD_GDN_H
#define HH_OPS_SIMD_GDN_H

#include "ops/gdn.h"
#include "ops/simd/panel.h"

#define HH_GDN_LDN   (HH_GDN_CHUNK + 16) /* row length of [n, n] matrices */
#define HH_GDN_SOLVE 16                  /* rows of a diagonal block */
#define HH_GDN_ROWS  12                  /* rows of a block of triangular products */
#define HH_GDN_SMALL (1 << 15)           /* elements of all states times tokens that one thread does alone */

typedef struct hh_gdn_chunk {
    int64_t n, D, cols, ld;         /* cols: D in whole panels; ld: row length of [., D] matrices */
    float *Q, *K, *V, *KT, *R, *Vh; /* [n, D]; KT is K^T [D, n]; R = V - e^G K S0 */
    float *E, *KK, *M, *P;          /* [n, n]; E and P with their diagonal, M strictly lower, zeros above */
    float *KS;                      /* K S0 */
    float beta[HH_GDN_CHUNK], into[HH_GDN_CHUNK], out[HH_GDN_CHUNK]; /* e^G, e^{G_n - G} */
    float last;                                                      /* e^{G_n} */
} hh_gdn_chunk;

static inline float *hh_gdn_rows(hh_arena *a, int64_t rows, int64_t ld) {
    return hh_arena_alloc(a, sizeof(float) * (size_t)(rows * ld));
}

static inline void hh_gdn_chunk_place(hh_gdn_chunk *c, hh_arena *a, int64_t D) {
    const int64_t n = HH_GDN_CHUNK, ld = hh_panel_ld(D);
    c->D = D, c->cols = hh_panel_round(D), c->ld = ld;
    c->Q = hh_gdn_rows(a, n, ld), c->K = hh_gdn_rows(a, n, ld), c->V = hh_gdn_rows(a, n, ld);
    c->R = hh_gdn_rows(a, n, ld), c->Vh = hh_gdn_rows(a, n, ld), c->KS = hh_gdn_rows(a, n, ld);
    c->KT = hh_gdn_rows(a, D, HH_GDN_LDN);
    c->E = hh_gdn_rows(a, n, HH_GDN_LDN), c->KK = hh_gdn_rows(a, n, HH_GDN_LDN);
    c->M = hh_gdn_rows(a, n, HH_GDN_LDN), c->P = hh_gdn_rows(a, n, HH_GDN_LDN);
}

/* Rows [0, n) of width D into a padded matrix; columns behind D and rows behind n, up to a whole panel, are zero. */
static inline void hh_gdn_load(float *y, int64_t ld, const float *x, int64_t stride, int64_t n, int64_t D,
                               int64_t cols) {
    for (int64_t i = 0; i < n; i++) {
        memcpy(y + i * ld, x + i * stride, sizeof(float) * (size_t)D);
        for (int64_t d = D; d < cols; d++) y[i * ld + d] = 0;
    }
    const int64_t rows = hh_panel_round(n) < HH_GDN_CHUNK ? hh_panel_round(n) : HH_GDN_CHUNK;
    for (int64_t i = n; i < rows; i++) memset(y + i * ld, 0, sizeof(float) * (size_t)cols);
}

static inline void hh_gdn_store(float *y, int64_t stride, const float *x, int64_t ld, int64_t n, int64_t D) {
    for (int64_t i = 0; i < n; i++) memcpy(y + i * stride, x + i * ld, sizeof(float) * (size_t)D);
}

/* The state [D, D] of a head into padded rows and back. */
static inline void hh_gdn_load_state(float *y, int64_t ld, const float *S, int64_t D, int64_t cols) {
    for (int64_t i = 0; i < D; i++) {
        memcpy(y + i * ld, S + i * D, sizeof(float) * (size_t)D);
        for (int64_t d = D; d < cols; d++) y[i * ld + d] = 0;
    }
}

/* C [m, cols] = keep C + scale A [m, k] B [k, cols] */
static inline void hh_gdn_product(float *C, int64_t ldc, float keep, float scale, hh_factor a, const float *B,
                                  int64_t ldb, int64_t m, int64_t cols, int64_t k) {
    for (int64_t j = 0; j < cols; j += HH_PANEL) hh_panel_product(C + j, ldc, keep, scale, a, B + j, ldb, m, k);
}

/* C = keep C + L B with L lower triangular, or its transpose; zeros of L inside diagonal blocks are read. */
static inline void hh_gdn_lower(const hh_gdn_chunk *c, float *C, float keep, const float *L, const float *B) {
    for (int64_t i = 0; i < c->n; i += HH_GDN_ROWS) {
        const int64_t end = i + HH_GDN_ROWS < c->n ? i + HH_GDN_ROWS : c->n;
        hh_gdn_product(C + i * c->ld, c->ld, keep, 1, hh_rows_of(L + i * HH_GDN_LDN, HH_GDN_LDN), B, c->ld, end - i,
                       c->cols, end);
    }
}
static inline void hh_gdn_lower_transposed(const hh_gdn_chunk *c, float *C, float keep, const float *L,
                                           const float *B) {
    for (int64_t i = 0; i < c->n; i += HH_GDN_ROWS) {
        const int64_t end = i + HH_GDN_ROWS < c->n ? i + HH_GDN_ROWS : c->n;
        hh_gdn_product(C + i * c->ld, c->ld, keep, 1, hh_factor_from(hh_columns_of(L, HH_GDN_LDN), i, i), B + i * c->ld,
                       c->ld, end - i, c->cols, c->n - i);
    }
}

/* C [n, n] = A [n, D] B^T on and below the diagonal, given B^T [D, n]; what stands above is not to be read. */
static inline void hh_gdn_inner(const hh_gdn_chunk *c, float *C, const float *A, const float *BT) {
    for (int64_t j = 0; j < c->n; j += HH_PANEL)
        hh_panel_product(C + j * HH_GDN_LDN + j, HH_GDN_LDN, 0, 1, hh_rows_of(A + j * c->ld, c->ld), BT + j, HH_GDN_LDN,
                         c->n - j, c->D);
}

static inline __attribute__((always_inline)) void gdn_subtract(const int vectors, float *x, hh_factor w,
                                                               const float *from, int64_t ld, int64_t k) {
    hh_vf acc[8];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) acc[v] = hh_vload(x + v * HH_VW);
    for (int64_t l = 0; l < k; l++) {
        const hh_vf s = hh_vset(-w.at[l * w.col]);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) acc[v] = hh_vfma(s, hh_vload(from + l * ld + v * HH_VW), acc[v]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) hh_vstore(x + v * HH_VW, acc[v]);
}

/* x [cols] -= sum_l w_l from_l: one row of a substitution. */
static inline void hh_gdn_subtract(float *x, hh_factor w, const float *from, int64_t ld, int64_t cols, int64_t k) {
    int64_t j = 0;
    for (; j + 8 * HH_VW <= cols; j += 8 * HH_VW) gdn_subtract(8, x + j, w, from + j, ld, k);
    for (; j + 4 * HH_VW <= cols; j += 4 * HH_VW) gdn_subtract(4, x + j, w, from + j, ld, k);
    for (; j < cols; j += 2 * HH_VW) gdn_subtract(2, x + j, w, from + j, ld, k);
}

/* X <- (I + M)^-1 X */
static inline void hh_gdn_solve(const hh_gdn_chunk *c, float *X) {
    for (int64_t b = 0; b < c->n; b += HH_GDN_SOLVE) {
        const int64_t end = b + HH_GDN_SOLVE < c->n ? b + HH_GDN_SOLVE : c->n;
        const float *M = c->M + b * HH_GDN_LDN;
        if (b) hh_gdn_product(X + b * c->ld, c->ld, 1, -1, hh_rows_of(M, HH_GDN_LDN), X, c->ld, end - b, c->cols, b);
        for (int64_t i = b + 1; i < end; i++)
            hh_gdn_subtract(X + i * c->ld, hh_rows_of(c->M + i * HH_GDN_LDN + b, HH_GDN_LDN), X + b * c->ld, c->ld,
                            c->cols, i - b);
    }
}

/* X <- (I + M)^-T X */
static inline void hh_gdn_solve_transposed(const hh_gdn_chunk *c, float *X) {
    for (int64_t b = (c->n - 1) / HH_GDN_SOLVE * HH_GDN_SOLVE; b >= 0; b -= HH_GDN_SOLVE) {
        const int64_t end = b + HH_GDN_SOLVE < c->n ? b + HH_GDN_SOLVE : c->n;
        if (end < c->n)
            hh_gdn_product(X + b * c->ld, c->ld, 1, -1, hh_factor_from(hh_columns_of(c->M, HH_GDN_LDN), b, end),
                           X + end * c->ld, c->ld, end - b, c->cols, c->n - end);
        for (int64_t i = end - 2; i >= b; i--)
            hh_gdn_subtract(X + i * c->ld, hh_factor_from(hh_columns_of(c->M, HH_GDN_LDN), i, i + 1),
                            X + (i + 1) * c->ld, c->ld, c->cols, end - 1 - i);
    }
}

static inline void hh_gdn_decays(hh_gdn_chunk *c, const hh_gdn_piece *x) {
    float G[HH_GDN_CHUNK + HH_VW] = {0}, sum = 0;
    for (int64_t i = 0; i < c->n; i++) {
        G[i] = sum += x->g[i * x->g_stride];
        c->beta[i] = x->beta[i * x->beta_stride];
    }
    for (int64_t i = 0; i < c->n; i += HH_VW) {
        float e[2 * HH_VW];
        hh_vstore(e, hh_vexp(hh_vload(G + i)));
        hh_vstore(e + HH_VW, hh_vexp(sum - hh_vload(G + i)));
        for (int64_t l = 0; l < HH_VW && i + l < c->n; l++) c->into[i + l] = e[l], c->out[i + l] = e[HH_VW + l];
    }
    c->last = c->into[c->n - 1];
    const int64_t width = hh_panel_round(c->n);
    for (int64_t i = 0; i < c->n; i++)
        for (int64_t j = 0; j < width; j += HH_VW) { /* F4 */
            hh_vf e = {0};
            if (j <= i) {
                const hh_vi at = hh_viota() + (int32_t)j, keep = at <= hh_vset_int((int32_t)i);
                e = hh_vselect(keep, hh_vexp(hh_vselect(keep, G[i] - hh_vload(G + j), (hh_vf){0})), (hh_vf){0});
            }
            hh_vstore(c->E + i * HH_GDN_LDN + j, e);
        }
}

/* y_i = factor_i x_i for n rows; y may be x. */
static inline void hh_gdn_scale_rows(float *y, const float *x, const float *factor, int64_t ld, int64_t n,
                                     int64_t cols) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < cols; d += HH_VW) hh_vstore(y + i * ld + d, factor[i] * hh_vload(x + i * ld + d));
}

/* F4-F6 and P, from S0 in padded rows. */
static inline void hh_gdn_prepare(hh_gdn_chunk *c, const hh_gdn_piece *x, const float *S0) {
    const int64_t n = c->n = x->n, D = c->D, ld = c->ld, cols = c->cols, width = hh_panel_round(n);
    hh_gdn_load(c->Q, ld, x->q, x->q_stride, n, D, cols);
    hh_gdn_load(c->K, ld, x->k, x->k_stride, n, D, cols);
    hh_gdn_load(c->V, ld, x->v, x->v_stride, n, D, cols);
    hh_transpose(c->KT, HH_GDN_LDN, c->K, ld, (int)width, (int)D);
    hh_gdn_decays(c, x);
    hh_gdn_inner(c, c->KK, c->K, c->KT);
    hh_gdn_inner(c, c->P, c->Q, c->KT);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j += HH_VW) {
            const int64_t at = i * HH_GDN_LDN + j;
            const hh_vi column = hh_viota() + (int32_t)j, row = hh_vset_int((int32_t)i);
            const hh_vf e = hh_vload(c->E + at);
            hh_vstore(c->M + at, hh_vselect(column < row, c->beta[i] * e * hh_vload(c->KK + at), (hh_vf){0})); /* F5 */
            hh_vstore(c->P + at, hh_vselect(column <= row, e * hh_vload(c->P + at), (hh_vf){0}));              /* F7 */
        }
    hh_gdn_product(c->KS, ld, 0, 1, hh_rows_of(c->K, ld), S0, ld, n, cols, D);
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < cols; d += HH_VW) {
            const hh_vf r = hh_vload(c->V + i * ld + d) - c->into[i] * hh_vload(c->KS + i * ld + d);
            hh_vstore(c->R + i * ld + d, r);
            hh_vstore(c->Vh + i * ld + d, c->beta[i] * r);
        }
    hh_gdn_solve(c, c->Vh); /* F6 */
}

#endif
