/* Rotary frequencies and the scalings that checkpoints ask for, as transformers' modeling_rope_utils computes them.
 *
 *   default   f_i = theta^(-2i/D)
 *   linear    f_i / factor
 *   llama3    wave length w = 2 pi / f: w < N/high: f;  w > N/low: f / factor;  between:
 *             (1 - s) f / factor + s f,  s = (N/w - low) / (high - low);   N = original_max_position
 *   yarn      r_i f / factor + (1 - r_i) f,  r_i = clamp((i - lo) / (hi - lo), 0, 1); lo and hi are the dimensions that
 * turn beta_fast and beta_slow times within N positions: d(n) = D ln(N / (2 pi n)) / (2 ln theta) Everything is double,
 * then used as such: transformers' float32 differs in the eighth digit. */
#include "model/config.h"

#include <math.h>

#define TWO_PI 6.283185307179586476925286766559

static double scale_llama3(const hh_rope_config *r, double f) {
    double n = (double)r->original_max_position, wave = TWO_PI / f;
    if (wave < n / r->high_freq_factor) return f;
    if (wave > n / r->low_freq_factor) return f / r->factor;
    double s = (n / wave - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - s) * f / r->factor + s * f;
}

/* The (fractional) dimension that turns n times within the original length. */
static double turning_dimension(const hh_config *c, double n) {
    const hh_rope_config *r = &c->rope;
    return (double)c->head_dim * log((double)r->original_max_position / (n * TWO_PI)) / (2 * log(r->theta));
}

static void scale_yarn(const hh_config *c, double *f) {
    const hh_rope_config *r = &c->rope;
    double lo = turning_dimension(c, r->beta_fast), hi = turning_dimension(c, r->beta_slow);
    if (r->truncate) {
        lo = floor(lo);
        hi = ceil(hi);
    }
    lo = fmax(lo, 0);
    hi = fmin(hi, (double)(c->head_dim - 1));
    if (lo == hi) hi += 0.001;
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        double ramp = fmin(fmax(((double)i - lo) / (hi - lo), 0), 1);
        f[i] = f[i] / r->factor * ramp + f[i] * (1 - ramp);
    }
}

static double yarn_mscale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_attention_factor(const hh_rope_config *r) {
    if (r->attention_factor > 0) return r->attention_factor;
    if (r->mscale != 0 && r->mscale_all_dim != 0)
        return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    return yarn_mscale(r->factor, 1);
}

void hh_rope_frequencies(const hh_config *c, double *inv_freq, double *factor) {
    const hh_rope_config *r = &c->rope;
    *factor = 1;
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        double f = pow(r->theta, -2 * (double)i / (double)c->head_dim);
        if (r->kind == HH_ROPE_LINEAR) f /= r->factor;
        if (r->kind == HH_ROPE_LLAMA3) f = scale_llama3(r, f);
        inv_freq[i] = f;
    }
    if (r->kind == HH_ROPE_YARN) {
        scale_yarn(c, inv_freq);
        *factor = yarn_attention_factor(r);
    }
}
