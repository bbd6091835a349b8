/* The reference of softmax attention: one query at a time, one pass over its keys; see attention.h. */
#include "ops/attention.h"
#include "ops/shape.h"

#include <tgmath.h>

/* Row j of KV head g as hh_real: in place, or converted into `buffer`. */
static const hh_real *kv_row(hh_tensor t, int64_t j, int64_t g, hh_real *buffer) {
    const int64_t D = t.dim[2];
    if (t.dtype == HH_DTYPE_REAL) return hh_row(t, j) + g * D;
    hh_dequantise(t.dtype, (const char *)t.data + hh_dtype_bytes(t.dtype, j * t.stride + g * D), D, buffer);
    return buffer;
}

static hh_real dot(const hh_real *a, const hh_real *b, int64_t n) {
    hh_real sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Online softmax: o holds sum_j exp(z_j - top) v_j and is rescaled when a larger logit comes. */
static hh_real attend(hh_real *o, const hh_real *q, hh_real c, hh_kv kv, int64_t g, int64_t n_keys) {
    const int64_t D = kv.k.dim[2];
    hh_real buffer[HH_MAX_HEAD_DIM], top = -INFINITY, sum = 0;
    for (int64_t d = 0; d < D; d++) o[d] = 0;
    for (int64_t j = 0; j < n_keys; j++) {
        const hh_real z = c * dot(q, kv_row(kv.k, j, g, buffer), D); /* F2 */
        if (z > top) {
            const hh_real shrink = exp(top - z);
            for (int64_t d = 0; d < D; d++) o[d] *= shrink;
            sum *= shrink;
            top = z;
        }
        const hh_real p = exp(z - top), *v = kv_row(kv.v, j, g, buffer);
        for (int64_t d = 0; d < D; d++) o[d] += p * v[d];
        sum += p;
    }
    for (int64_t d = 0; d < D; d++) o[d] /= sum; /* F4 */
    return top + log(sum);                       /* F3 */
}

void hh_attention_fwd_reference(hh_backend *be, hh_tensor o, hh_tensor lse, hh_tensor q, const hh_kv *kv,
                                const hh_span *span, int64_t n_spans, const int32_t *kv_of_q, double log_scale_base) {
    (void)be;
    const int64_t T = q.dim[0], Hq = q.dim[1], D = q.dim[2];
    HH_ASSERT(hh_is_real_heads(q, T, Hq, D) && hh_is_real_like(o, q) && D <= HH_MAX_HEAD_DIM);
    HH_ASSERT(hh_is_absent(lse) || hh_is_real_matrix(lse, T, Hq));
    HH_ASSERT(hh_are_spans(span, n_spans, T));
    for (int64_t s = 0; s < n_spans; s++) {
        HH_ASSERT(span[s].lo == span[s].hi || kv[s].k.dim[0] >= span[s].pos + span[s].hi - span[s].lo);
        for (int64_t t = span[s].lo; t < span[s].hi; t++) {
            const int64_t position = span[s].pos + t - span[s].lo;
            const hh_real c = (hh_real)hh_attention_scale(D, log_scale_base, position); /* F1 */
            for (int64_t h = 0; h < Hq; h++) {
                HH_ASSERT(kv_of_q[h] >= 0 && kv_of_q[h] < kv[s].k.dim[1]);
                const hh_real l =
                    attend(hh_row(o, t) + h * D, hh_row(q, t) + h * D, c, kv[s], kv_of_q[h], position + 1);
                if (lse.data) hh_row(lse, t)[h] = l;
            }
        }
    }
}

void hh_attention_bwd_reference(hh_backend *be, hh_tensor dq, hh_tensor dk, hh_tensor dv, hh_tensor do_, hh_tensor q,
                                hh_tensor k, hh_tensor v, hh_tensor o, hh_tensor lse, const hh_span *span,
                                int64_t n_spans, const int32_t *kv_of_q, double log_scale_base) {
    (void)be;
    const int64_t T = q.dim[0], Hq = q.dim[1], D = q.dim[2], G = k.dim[1];
    HH_ASSERT(hh_is_real_heads(q, T, Hq, D) && hh_is_real_like(o, q) && hh_is_real_like(dq, q) &&
              hh_is_real_like(do_, q));
    HH_ASSERT(hh_is_real_heads(k, T, G, D) && hh_is_real_like(v, k) && hh_is_real_like(dk, k) &&
              hh_is_real_like(dv, k));
    HH_ASSERT(hh_is_real_matrix(lse, T, Hq) && hh_are_spans(span, n_spans, T));
    for (int64_t s = 0; s < n_spans; s++) {
        HH_ASSERT(span[s].pos == 0);
        for (int64_t t = span[s].lo; t < span[s].hi; t++)
            for (int64_t i = 0; i < G * D; i++) hh_row(dk, t)[i] = hh_row(dv, t)[i] = 0;
        for (int64_t t = span[s].lo; t < span[s].hi; t++)
            for (int64_t h = 0; h < Hq; h++) {
                const int64_t at = h * D, of = kv_of_q[h] * D;
                const hh_real c = (hh_real)hh_attention_scale(D, log_scale_base, t - span[s].lo);
                const hh_real *qt = hh_row(q, t) + at, *dot_ = hh_row(do_, t) + at;
                const hh_real delta = dot(dot_, hh_row(o, t) + at, D); /* B1 */
                hh_real *dqt = hh_row(dq, t) + at;
                for (int64_t d = 0; d < D; d++) dqt[d] = 0;
                for (int64_t j = span[s].lo; j <= t; j++) {
                    const hh_real *kj = hh_row(k, j) + of, *vj = hh_row(v, j) + of;
                    hh_real *dkj = hh_row(dk, j) + of, *dvj = hh_row(dv, j) + of;
                    const hh_real p = exp(c * dot(qt, kj, D) - hh_row(lse, t)[h]);
                    const hh_real dz = p * (dot(dot_, vj, D) - delta); /* B2 */
                    for (int64_t d = 0; d < D; d++) {
                        dqt[d] += c * dz * kj[d]; /* B3 */
                        dkj[d] += c * dz * qt[d]; /* B4 */
                        dvj[d] += p * dot_[d];
                    }
                }
            }
    }
}
