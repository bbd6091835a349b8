/* Fast rows of the losses: softmax of a row of logits in vectors. The tiles around them are those of ops/loss.c. */
#include "ops/loss.h"
#include "ops/simd/simd.h"

#include <math.h>

/* The first index of the largest element. */
static int64_t find_largest(const float *z, int64_t n, float *value) {
    hh_vf top = hh_vset(-INFINITY);
    int64_t i = 0;
    for (; i + HH_VW <= n; i += HH_VW) top = hh_vmax(hh_vload(z + i), top);
    float most = hh_vmax_of(top);
    for (; i < n; i++) most = z[i] > most ? z[i] : most;
    *value = most;
    hh_vf wanted = hh_vset(most);
    for (i = 0; i + HH_VW <= n; i += HH_VW) {
        hh_vi equal = hh_vload(z + i) == wanted;
        if (hh_vany(equal)) break;
    }
    while (i < n && z[i] != most) i++;
    return i < n ? i : 0;
}

/* log sum exp; z is left as it is. */
static float log_sum_exp(const float *z, int64_t n, float most) {
    hh_vf s0 = {0}, s1 = {0}, top = hh_vset(most);
    int64_t i = 0;
    for (; i + 2 * HH_VW <= n; i += 2 * HH_VW) {
        s0 += hh_vexp(hh_vload(z + i) - top);
        s1 += hh_vexp(hh_vload(z + i + HH_VW) - top);
    }
    float s = hh_vsum(s0 + s1);
    for (; i < n; i++) s += expf(z[i] - most);
    return most + logf(s);
}

static void ce_row(float *z, int64_t V, int32_t target, float scale, float *nll, int32_t *argmax) {
    float most;
    int64_t best = find_largest(z, V, &most);
    if (argmax) *argmax = (int32_t)best;
    if (target < 0 && scale == 0) {
        *nll = 0;
        return;
    }
    float lse = log_sum_exp(z, V, most);
    *nll = target >= 0 ? lse - z[target] : 0; /* F1 */
    if (scale == 0) return;
    int64_t i = 0;
    for (; i + HH_VW <= V; i += HH_VW) hh_vstore(z + i, scale * hh_vexp(hh_vload(z + i) - lse)); /* B1 */
    for (; i < V; i++) z[i] = scale * expf(z[i] - lse);
    z[target] -= scale;
}

static void kl_row(float *z, const float *zt, int64_t V, int32_t target, float kl_scale, float ce_scale, float *kl,
                   float *nll) {
    float most, most_t;
    find_largest(z, V, &most);
    find_largest(zt, V, &most_t);
    float lse = log_sum_exp(z, V, most), lse_t = log_sum_exp(zt, V, most_t);
    *nll = target >= 0 ? lse - z[target] : 0; /* F1 */
    bool gradient = kl_scale != 0 || ce_scale != 0;
    hh_vf sum = {0};
    float both = kl_scale + ce_scale, rest = 0;
    int64_t i = 0;
    for (; i + HH_VW <= V; i += HH_VW) {
        hh_vf log_p = hh_vload(z + i) - lse, log_pt = hh_vload(zt + i) - lse_t, pt = hh_vexp(log_pt);
        sum = hh_vfma(pt, log_pt - log_p, sum);                                /* F2 */
        if (gradient) hh_vstore(z + i, both * hh_vexp(log_p) - kl_scale * pt); /* B2 */
    }
    for (; i < V; i++) {
        float log_p = z[i] - lse, log_pt = zt[i] - lse_t, pt = expf(log_pt);
        rest += pt * (log_pt - log_p);
        if (gradient) z[i] = both * expf(log_p) - kl_scale * pt;
    }
    if (gradient && target >= 0) z[target] -= ce_scale;
    *kl = hh_vsum(sum) + rest;
}

static const hh_loss_rows rows = {.ce = ce_row, .kl = kl_row};

void HH_SIMD_NAME(ce_head)(hh_backend *be, hh_tensor nll, int32_t *argmax, hh_tensor dx, const hh_linear *dw,
                           hh_tensor x, const hh_linear *w, const int32_t *target, double scale) {
    hh_ce_head_by(be, nll, argmax, dx, dw, x, w, target, scale, &rows);
}

void HH_SIMD_NAME(kl_head)(hh_backend *be, hh_tensor kl, hh_tensor nll, hh_tensor dx, const hh_linear *dw, hh_tensor x,
                           const hh_linear *w, hh_tensor xt, const hh_linear *wt, const int32_t *target,
                           const float *row_weight, double scale, double ce_weight) {
    hh_kl_head_by(be, kl, nll, dx, dw, x, w, xt, wt, target, row_weight, scale, ce_weight, &rows);
}
