/* gamma from the teacher's own head outputs on calibration text; see migrate.h. */
#include "base/progress.h"
#include "convert/migrate.h"
#include "model/forward.h"

#include <inttypes.h>
#include <math.h>

#define BATCH_TOKENS 2048

typedef struct sums {
    int64_t n_heads;
    double *square; /* [L*H] sum over tokens of the mean square of a head's output */
} sums;

static void add_squares(void *context, hh_point point, int64_t layer, hh_tensor t) {
    sums *s = context;
    if (point != HH_POINT_HEAD_OUTPUT) return;
    int64_t d = t.dim[2];
    for (int64_t r = 0; r < t.dim[0]; r++)
        for (int64_t h = 0; h < s->n_heads; h++) { /* a dense layer's heads stand in their original order */
            const hh_real *o = hh_row(t, r) + h * d;
            double square = 0;
            for (int64_t i = 0; i < d; i++) square += (double)o[i] * (double)o[i];
            s->square[layer * s->n_heads + h] += square / (double)d;
        }
}

static hh_code run_text(hh_run *r, const int32_t *ids, int64_t n, int64_t length, int64_t max_spans, hh_error *err) {
    hh_span *span = hh_alloc((size_t)max_spans * sizeof *span);
    hh_progress progress;
    hh_progress_begin(&progress, "calibrate", "tokens", (double)n);
    hh_code code = HH_OK;
    for (int64_t at = 0; at < n && code == HH_OK;) {
        hh_batch b = {.ids = ids + at, .span = span};
        while (b.n_spans < max_spans && at + b.n_tokens < n) {
            int64_t left = n - at - b.n_tokens, take = left < length ? left : length;
            span[b.n_spans++] = (hh_span){b.n_tokens, b.n_tokens + take, 0};
            b.n_tokens += take;
        }
        hh_tensor final;
        code = hh_forward(r, &b, &final, err);
        at += b.n_tokens;
        hh_progress_update(&progress, (double)at, NULL);
    }
    hh_progress_end(&progress);
    hh_free(span);
    return code == HH_ECANCELLED ? hh_fail(err, code, "calibration was interrupted") : code;
}

hh_code hh_calibrate_gamma(const hh_model *teacher, const int32_t *ids, int64_t n, int64_t length, double *gamma,
                           hh_error *err) {
    const hh_config *c = &teacher->config;
    if (n < 1 || length < 1) return hh_fail(err, HH_EINVAL, "the calibration text is empty");
    if (length > n) length = n;
    int64_t max_spans = length < BATCH_TOKENS ? BATCH_TOKENS / length : 1, heads = c->n_layers * c->n_heads;
    hh_run *r;
    HH_TRY(hh_run_new(&r, teacher, max_spans * length, max_spans, HH_RUN_INFERENCE, err));
    sums s = {c->n_heads, gamma};
    for (int64_t i = 0; i < heads; i++) gamma[i] = 0;
    hh_run_set_tap(r, (hh_tap){add_squares, &s});
    hh_code code = run_text(r, ids, n, length, max_spans, err);
    hh_run_free(r);
    for (int64_t i = 0; i < heads && code == HH_OK; i++) {
        gamma[i] = sqrt(gamma[i] / (double)n);
        if (!isfinite(gamma[i]))
            return hh_fail(err, HH_ENONFINITE,
                           "calibration: head %" PRId64 " of layer %" PRId64
                           " has outputs of root mean square %g; is the teacher whole?",
                           i % c->n_heads, i / c->n_heads, gamma[i]);
    }
    return code;
}
