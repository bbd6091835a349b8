/* Softmax attention, causal, with grouped key/value heads. q [T,Hq,D], o [T,Hq,D]; query head i reads KV head
 * kv_of_q[i] of k, v [n,G,D]; groups may be of unequal size, and a KV head may have no reader.
 *
 *   F1  c_t = s_t / sqrt(D),  s_t = ln(t + a) / ln(a) when a = log_scale_base > 0, else 1;  t: the query's position
 *   F2  z_tj = c_t q_t . k_j                                for 0 <= j <= t
 *   F3  lse_t = ln sum_j exp(z_tj)                          [T,Hq], or HH_NONE
 *   F4  o_t = sum_j exp(z_tj - lse_t) v_j
 *   B1  delta_t = do_t . o_t
 *   B2  p_tj = exp(z_tj - lse_t);  dz_tj = p_tj (do_t . v_j - delta_t)
 *   B3  dq_t = c_t sum_j dz_tj k_j
 *   B4  dk_j = sum_t c_t dz_tj q_t,  dv_j = sum_t p_tj do_t      over the queries of all heads of the group
 *
 * Forward: kv[s] holds span s's keys from position 0 to at least pos + (hi - lo): the cache, in HH_DTYPE_REAL, F32,
 * F16, BF16 or Q8_0, rows strided or not (Q8_0: dense, D a multiple of 32), the span's own keys already in it; or for
 * pos 0 views of the projections. Backward: k, v are rows of the batch, spans start at position 0, dq, dk, dv are
 * overwritten (inside spans). Scores are never stored for more than a tile.
 */
#ifndef HH_OPS_ATTENTION_H
#define HH_OPS_ATTENTION_H

#include "ops/ops.h"

#include <math.h>

#define HH_MAX_HEAD_DIM 512

/* F1, in double: the same number on every backend. */
static inline double hh_attention_scale(int64_t head_dim, double log_scale_base, int64_t position) {
    const double c = 1 / sqrt((double)head_dim), a = log_scale_base;
    return a > 0 ? c * log((double)position + a) / log(a) : c;
}

#endif
