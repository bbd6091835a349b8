/* The reference of the short convolution; see conv.h. */
#include "ops/conv.h"
#include "ops/shape.h"

#define TAIL (HH_CONV_WIDTH - 1)

/* Input row `t` of a span that starts at row lo: of x, of the tail, or NULL for zeros. */
static const hh_real *input_row(hh_tensor x, const hh_tensor *tail, int64_t lo, int64_t t) {
    if (t >= lo) return hh_row(x, t);
    return tail ? hh_row(*tail, t - lo + TAIL) : NULL;
}

/* Oldest first: row i of the new tail never reads a row that was already replaced. */
static void keep_tail(hh_tensor x, hh_tensor tail, hh_span span) {
    for (int64_t i = 0; i < TAIL; i++) {
        const hh_real *in = input_row(x, &tail, span.lo, span.hi - TAIL + i);
        for (int64_t c = 0; c < x.dim[1]; c++) hh_row(tail, i)[c] = in[c]; /* F2 */
    }
}

void hh_conv_fwd_reference(hh_backend *be, hh_tensor y, hh_tensor x, hh_tensor w, const hh_tensor *tail,
                           const hh_span *span, int64_t n_spans) {
    (void)be;
    const int64_t N = x.dim[1];
    HH_ASSERT(hh_is_real_matrix(x, x.dim[0], N) && hh_is_real_like(y, x) && hh_is_real_matrix(w, N, HH_CONV_WIDTH));
    HH_ASSERT(hh_are_spans(span, n_spans, x.dim[0]) && y.data != x.data);
    for (int64_t s = 0; s < n_spans; s++) {
        HH_ASSERT(!tail || hh_is_real_matrix(tail[s], TAIL, N));
        for (int64_t t = span[s].lo; t < span[s].hi; t++) {
            hh_real *out = hh_row(y, t);
            for (int64_t c = 0; c < N; c++) out[c] = 0;
            for (int64_t j = 0; j < HH_CONV_WIDTH; j++) {
                const hh_real *in = input_row(x, tail ? &tail[s] : NULL, span[s].lo, t - TAIL + j);
                for (int64_t c = 0; in && c < N; c++) out[c] += hh_row(w, c)[j] * in[c]; /* F1 */
            }
        }
        if (tail) keep_tail(x, tail[s], span[s]);
    }
}

void hh_conv_bwd_reference(hh_backend *be, hh_tensor dx, hh_tensor dw, hh_tensor dy, hh_tensor x, hh_tensor w,
                           const hh_span *span, int64_t n_spans) {
    (void)be;
    const int64_t N = x.dim[1];
    HH_ASSERT(hh_is_real_matrix(x, x.dim[0], N) && hh_is_real_like(dx, x) && hh_is_real_like(dy, x));
    HH_ASSERT(hh_is_real_matrix(w, N, HH_CONV_WIDTH) && hh_is_real_matrix(dw, N, HH_CONV_WIDTH));
    HH_ASSERT(hh_are_spans(span, n_spans, x.dim[0]) && dx.data != dy.data);
    for (int64_t s = 0; s < n_spans; s++)
        for (int64_t t = span[s].lo; t < span[s].hi; t++) {
            for (int64_t c = 0; c < N; c++) hh_row(dx, t)[c] = 0;
            for (int64_t j = 0; j < HH_CONV_WIDTH; j++) {
                const int64_t later = t + TAIL - j, earlier = t - TAIL + j;
                for (int64_t c = 0; later < span[s].hi && c < N; c++)
                    hh_row(dx, t)[c] += hh_row(w, c)[j] * hh_row(dy, later)[c]; /* B1 */
                for (int64_t c = 0; earlier >= span[s].lo && c < N; c++)
                    hh_row(dw, c)[j] += hh_row(dy, t)[c] * hh_row(x, earlier)[c]; /* B2 */
            }
        }
}
