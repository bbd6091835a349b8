/* The short convolution in vectors across channels; equations and tags in ops/conv.h. */
#include "ops/conv.h"
#include "ops/simd/rows.h"

#define TAIL (HH_CONV_WIDTH - 1)

typedef struct convolution {
    hh_tensor y, x, dx, dy;
    const hh_tensor *tail; /* of this span, or NULL */
    const float *taps;     /* [4, N] */
    hh_span span;
    int64_t n;
} convolution;

static float *load_taps(hh_arena *a, hh_tensor w) {
    const int64_t n = w.dim[0];
    float *taps = hh_arena_alloc(a, sizeof(float) * HH_CONV_WIDTH * (size_t)n);
    for (int64_t c = 0; c < n; c++)
        for (int64_t j = 0; j < HH_CONV_WIDTH; j++) taps[j * n + c] = hh_row(w, c)[j];
    return taps;
}

/* Row t of a span's input, which may stand in the tail; NULL for zeros. */
static const float *input_row(const convolution *c, int64_t t) {
    if (t >= c->span.lo) return hh_row(c->x, t);
    return c->tail ? hh_row(*c->tail, t - c->span.lo + TAIL) : NULL;
}

static void forward_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const convolution *c = context;
    (void)partial;
    for (int64_t t = c->span.lo + lo; t < c->span.lo + hi; t++) {
        const float *in[HH_CONV_WIDTH];
        for (int64_t j = 0; j < HH_CONV_WIDTH; j++) in[j] = input_row(c, t - TAIL + j);
        for (int64_t i = 0; i < c->n; i += HH_VW) {
            hh_vf sum = {0};
            for (int64_t j = 0; j < HH_CONV_WIDTH; j++)
                if (in[j])
                    sum = hh_vfma(hh_vload_upto(c->taps + j * c->n + i, c->n - i), hh_vload_upto(in[j] + i, c->n - i),
                                  sum);
            hh_vstore_upto(hh_row(c->y, t) + i, sum, c->n - i); /* F1 */
        }
    }
}

static void keep_tail(const convolution *c) {
    for (int64_t i = 0; i < TAIL; i++) /* oldest first: no row is read after it was replaced */
        memmove(hh_row(*c->tail, i), input_row(c, c->span.hi - TAIL + i), sizeof(float) * (size_t)c->n); /* F2 */
}

void HH_SIMD_NAME(conv_fwd)(hh_backend *be, hh_tensor y, hh_tensor x, hh_tensor w, const hh_tensor *tail,
                            const hh_span *span, int64_t n_spans) {
    const int64_t n = x.dim[1];
    HH_ASSERT(hh_is_real_matrix(x, x.dim[0], n) && hh_is_real_like(y, x) && hh_is_real_matrix(w, n, HH_CONV_WIDTH));
    HH_ASSERT(hh_are_spans(span, n_spans, x.dim[0]) && y.data != x.data);
    const size_t mark = be->scratch.used;
    convolution c = {.y = y, .x = x, .taps = load_taps(&be->scratch, w), .n = n};
    for (int64_t s = 0; s < n_spans; s++) {
        HH_ASSERT(!tail || hh_is_real_matrix(tail[s], TAIL, n));
        c.span = span[s], c.tail = tail ? &tail[s] : NULL;
        hh_over_rows(be, span[s].hi - span[s].lo, HH_CONV_WIDTH * n, forward_rows, &c);
        if (tail) keep_tail(&c);
    }
    hh_arena_reset(&be->scratch, mark);
}

/* partial: the gradient of the taps, [4, N]. */
static void backward_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const convolution *c = context;
    for (int64_t t = c->span.lo + lo; t < c->span.lo + hi; t++)
        for (int64_t i = 0; i < c->n; i += HH_VW) {
            const int64_t left = c->n - i;
            const hh_vf grad = hh_vload_upto(hh_row(c->dy, t) + i, left);
            hh_vf sum = {0};
            for (int64_t j = 0; j < HH_CONV_WIDTH; j++) {
                const int64_t later = t + TAIL - j;
                const float *in = input_row(c, t - TAIL + j);
                float *p = partial + j * c->n + i;
                if (later < c->span.hi)
                    sum = hh_vfma(hh_vload_upto(c->taps + j * c->n + i, left),
                                  hh_vload_upto(hh_row(c->dy, later) + i, left), sum);
                if (in)
                    hh_vstore_upto(p, hh_vfma(grad, hh_vload_upto(in + i, left), hh_vload_upto(p, left)),
                                   left); /* B2 */
            }
            hh_vstore_upto(hh_row(c->dx, t) + i, sum, left); /* B1 */
        }
}

void HH_SIMD_NAME(conv_bwd)(hh_backend *be, hh_tensor dx, hh_tensor dw, hh_tensor dy, hh_tensor x, hh_tensor w,
                            const hh_span *span, int64_t n_spans) {
    const int64_t n = x.dim[1];
    HH_ASSERT(hh_is_real_matrix(x, x.dim[0], n) && hh_is_real_like(dx, x) && hh_is_real_like(dy, x));
    HH_ASSERT(hh_is_real_matrix(w, n, HH_CONV_WIDTH) && hh_is_real_matrix(dw, n, HH_CONV_WIDTH));
    HH_ASSERT(hh_are_spans(span, n_spans, x.dim[0]) && dx.data != dy.data);
    hh_arena *a = &be->scratch;
    const size_t mark = a->used;
    convolution c = {.dx = dx, .dy = dy, .x = x, .taps = load_taps(a, w), .n = n};
    float *sums = hh_arena_alloc(a, sizeof(float) * HH_CONV_WIDTH * (size_t)n);
    memset(sums, 0, sizeof(float) * HH_CONV_WIDTH * (size_t)n);
    for (int64_t s = 0; s < n_spans; s++) {
        c.span = span[s];
        hh_over_rows_summing(be, span[s].hi - span[s].lo, 2 * HH_CONV_WIDTH * n, HH_CONV_WIDTH * n, sums, backward_rows,
                             &c);
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < HH_CONV_WIDTH; j++) hh_row(dw, i)[j] += sums[j * n + i];
    hh_arena_reset(a, mark);
}
