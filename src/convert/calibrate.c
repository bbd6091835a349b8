/* gamma from the teacher's own head outputs on calibration text; see migrate.h. */
#include "base/progress.h"
#include "convert/migrate.h"
#include "data/corpus.h"
#include "model/forward.h"
#include "tensor/mirror.h"

#include <inttypes.h>
#include <math.h>

#define BATCH_TOKENS 2048

typedef struct sums {
    hh_backend *be;
    int64_t n_heads, head_dim;
    hh_tensor one;  /* [H] of a layer and batch, where the model lives */
    hh_real *host;  /* [H] the same */
    double *square; /* [L*H] sum over tokens of the mean square of a head's output */
} sums;

/* A dense layer's heads stand in their original order. */
static void add_squares(void *context, hh_point point, int64_t layer, hh_tensor t) {
    sums *s = context;
    if (point != HH_POINT_HEAD_OUTPUT) return;
    s->be->ops->head_dot(s->be, s->one, t, t, HH_NONE);
    hh_tensor_to_host(s->be, s->host, s->one);
    for (int64_t h = 0; h < s->n_heads; h++)
        s->square[layer * s->n_heads + h] += (double)s->host[h] / (double)s->head_dim;
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
    hh_run *r = NULL;
    hh_arena arena = {0};
    hh_backend *be = teacher->be;
    hh_code code = be->arena_init(be, &arena, "run", (size_t)c->n_heads * sizeof(hh_real) + HH_ARENA_ALIGN, err);
    if (code == HH_OK) code = hh_run_new(&r, teacher, max_spans * length, max_spans, HH_RUN_INFERENCE, err);
    if (code == HH_OK) {
        sums s = {be,
                  c->n_heads,
                  c->head_dim,
                  hh_tensor_place_1d(&arena, HH_DTYPE_REAL, c->n_heads),
                  hh_alloc((size_t)c->n_heads * sizeof(hh_real)),
                  gamma};
        for (int64_t i = 0; i < heads; i++) gamma[i] = 0;
        hh_run_set_tap(r, (hh_tap){add_squares, &s});
        code = run_text(r, ids, n, length, max_spans, err);
        if (code == HH_OK) code = be->sync(be, err);
        hh_free(s.host);
    }
    hh_run_free(r);
    if (arena.base) be->arena_release(be, &arena);
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

hh_code hh_calibrate_on_text(const hh_model *teacher, const hh_tokenizer *t, const char *file, int64_t *n,
                             double *gamma, hh_error *err) {
    hh_ids ids = {0};
    char *text = NULL;
    size_t len = 0;
    const size_t most = (size_t)*n * 16; /* bytes; no text has tokens that long on average */
    hh_code code = file ? hh_text_read(file, &text, &len, err) : hh_text_shipped(false, &text, &len, err);
    if (code == HH_OK) code = hh_tokenizer_encode(t, text, len < most ? len : most, HH_ENCODE_PLAIN, &ids, err);
    if (code == HH_OK && !ids.len)
        code = hh_fail(err, HH_EINVAL, "%s: the calibration text is empty", file ? file : "the shipped excerpt");
    if (ids.len < *n) *n = ids.len;
    const int64_t native = teacher->config.max_position;
    if (code == HH_OK)
        code = hh_calibrate_gamma(teacher, ids.data, *n, native > 0 && native < 1024 ? native : 1024, gamma, err);
    hh_ids_release(&ids);
    hh_free(text);
    return code;
}
