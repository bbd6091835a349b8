/* Gated DeltaNet: the gated delta rule on q (already scaled by 1/sqrt(D)), k (unit length), v [T,h,D] with log-decay g
 * <= 0 and write strength beta [T,h]. Every head keeps a state S [D,D], first index k, second v; a span's state is
 * [h,D,D].
 *
 * One token (the recurrent form: decode, and the oracle):
 *   F1  S' = e^g S;  u = v - S'^T k
 *   F2  S = S' + beta k u^T
 *   F3  o = S^T q
 *   B1  dS += q do^T;  dq = S do
 *   B2  de = dS^T k;  dbeta = de . u;  du = beta de;  dv = du
 *   B3  dk = dS (beta u) - S' du;  dS' = dS - k du^T
 *   B4  dg = <dS', S'>;  dS <- e^g dS'
 *
 * A chunk of n <= 64 tokens at once (training, prefill), G the inclusive sum of g in the chunk, rows i, columns j:
 *   F4  E_ij = e^{G_i - G_j} for i >= j, else 0          the difference first: exponents are never positive
 *   F5  N_ij = beta_i k_i . k_j for i > j;  A0 = (I + N)^-1, unit lower triangular, free of gates
 *   F6  Bm = A0 * E * beta_j;  R = V - e^G * (K S0);  V^ = Bm R
 *   F7  P = E * (Q K^T);  O = e^G * (Q S0) + P V^
 *   F8  S1 = e^{G_n} S0 + K^T (e^{G_n - G} * V^)
 *   B5  dV^ = P^T dO + e^{G_n - G} * (K dS1);  dR = Bm^T dV^;  dV = dR
 *   B6  dB = lower(dV^ R^T);  dN = -strictlower(A0^T (dB * E * beta_j) A0^T);  D' = E * (dO V^^T)
 *   B7  dQ = e^G * (dO S0^T) + D' K
 *   B8  dK = D'^T Q + e^{G_n - G} * (V^ dS1^T) - e^G * (dR S0^T) + beta_i sum_j dN_ij k_j + sum_i dN_ij beta_i k_i
 *   B9  dbeta_j = sum_i dB_ij A0_ij E_ij + sum_m dN_jm k_j . k_m
 *   B10 Y_ij = (dO V^^T * P + dB * Bm)_ij for i > j: what each decay factor E_ij, i != j, contributes
 *   B11 dg_m = sum_{i >= m > j} Y_ij + sum_{i >= m} e^{G_i} ((dO S0^T)_i . q_i - (K S0)_i . dR_i)
 *              + sum_{i < m} e^{G_n - G_i} (V^ dS1^T)_i . k_i + e^{G_n} <S0, dS1>
 *       the gradient through the sums G, written so that nothing cancels: with strong decay the terms on the diagonal
 *       would be all there is, and twice, with opposite signs
 *   B12 dS0 = e^{G_n} dS1 + Q^T (e^G * dO) - K^T (e^G * dR)
 *
 * Chunks are counted from a span's own start; a chunk of one token is always computed by F1-F3, so that a prefix cut at
 * multiples of 64 gives the same bits whether the next token comes with it or alone. `state` may be NULL (zeros before
 * every span, the final states are dropped), and so may `dstate`. `saved` [chunks, h, D, D] is filled in both modes.
 * A backward in mode RECURRENT runs B1-B4 token by token, recomputing the states of a chunk from `saved`.
 */
#ifndef HH_OPS_GDN_H
#define HH_OPS_GDN_H

#include "ops/ops.h"

#define HH_GDN_MAX_DIM 256

/* Chunks of one span, and of all: the first dimension of `saved`. Span s's chunks stand behind those of spans before
 * it. */
static inline int64_t hh_gdn_span_chunks(hh_span span) {
    return (span.hi - span.lo + HH_GDN_CHUNK - 1) / HH_GDN_CHUNK;
}

static inline int64_t hh_gdn_chunk_count(const hh_span *span, int64_t n_spans) {
    int64_t n = 0;
    for (int64_t s = 0; s < n_spans; s++) n += hh_gdn_span_chunks(span[s]);
    return n;
}

/* One head's n tokens: rows of width D, `stride` elements apart; gates likewise. The unit that gdn_chunk.h works on. */
typedef struct hh_gdn_piece {
    int64_t n, D;
    const hh_real *q, *k, *v, *g, *beta;
    int64_t q_stride, k_stride, v_stride, g_stride, beta_stride;
} hh_gdn_piece;

/* Head h's part of n tokens from t on. */
hh_gdn_piece hh_gdn_piece_of(hh_tensor q, hh_tensor k, hh_tensor v, hh_tensor g, hh_tensor beta, int64_t t, int64_t n,
                             int64_t h);

/* Gradients of a piece's inputs and of its output. */
typedef struct hh_gdn_piece_grad {
    hh_real *dq, *dk, *dv, *dg, *dbeta;
    const hh_real *do_;
    int64_t dq_stride, dk_stride, dv_stride, dg_stride, dbeta_stride, do_stride;
} hh_gdn_piece_grad;

#endif
