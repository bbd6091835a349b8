/* The rotary embedding in vectors; equations in ops/rope.h. */
#include "ops/rope.h"
#include "ops/simd/rows.h"

#include <math.h>

typedef struct table {
    hh_tensor cos, sin;
    const double *inv_freq;
    double factor;
    hh_span span;
} table;

#define COST 40 /* a sine and a cosine in double against a copy */

static void table_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const table *c = context;
    (void)partial;
    for (int64_t t = lo; t < hi; t++) {
        const double position = (double)(c->span.pos + t);
        float *cosine = hh_row(c->cos, c->span.lo + t), *sine = hh_row(c->sin, c->span.lo + t);
        for (int64_t i = 0; i < c->cos.dim[1]; i++) { /* F1 */
            cosine[i] = (float)(c->factor * cos(position * c->inv_freq[i]));
            sine[i] = (float)(c->factor * sin(position * c->inv_freq[i]));
        }
    }
}

void HH_SIMD_NAME(rope_table)(hh_backend *be, hh_tensor cos_, hh_tensor sin_, const double *inv_freq, double factor,
                              const hh_span *span, int64_t n_spans) {
    HH_ASSERT(hh_is_real_matrix(cos_, cos_.dim[0], cos_.dim[1]) && hh_is_real_like(sin_, cos_));
    HH_ASSERT(hh_are_spans(span, n_spans, cos_.dim[0]));
    table c = {.cos = cos_, .sin = sin_, .inv_freq = inv_freq, .factor = factor};
    for (int64_t s = 0; s < n_spans; s++) {
        c.span = span[s];
        hh_over_rows(be, span[s].hi - span[s].lo, COST * cos_.dim[1], table_rows, &c);
    }
}

typedef struct turn {
    hh_tensor x, cos, sin;
    int64_t half;
    float sign;
} turn;

static void turn_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const turn *c = context;
    (void)partial;
    for (int64_t t = lo; t < hi; t++)
        for (int64_t h = 0; h < c->x.dim[1]; h++) {
            float *u = hh_row(c->x, t) + h * 2 * c->half, *v = u + c->half;
            for (int64_t i = 0; i < c->half; i += HH_VW) {
                const int64_t left = c->half - i;
                const hh_vf a = hh_vload_upto(u + i, left), b = hh_vload_upto(v + i, left);
                const hh_vf cosine = hh_vload_upto(hh_row(c->cos, t) + i, left);
                const hh_vf sine = hh_vload_upto(hh_row(c->sin, t) + i, left) * c->sign; /* B1 */
                hh_vstore_upto(u + i, a * cosine - b * sine, left);                      /* F2 */
                hh_vstore_upto(v + i, b * cosine + a * sine, left);
            }
        }
}

void HH_SIMD_NAME(rope)(hh_backend *be, hh_tensor x, hh_tensor cos_, hh_tensor sin_, bool inverse) {
    const turn c = {.x = x, .cos = cos_, .sin = sin_, .half = cos_.dim[1], .sign = inverse ? -1 : 1};
    HH_ASSERT(hh_is_real_heads(x, cos_.dim[0], hh_groups(x), 2 * c.half));
    HH_ASSERT(hh_is_real_matrix(cos_, x.dim[0], c.half) && hh_is_real_like(sin_, cos_));
    hh_over_rows(be, x.dim[0], hh_tensor_row_count(x), turn_rows, &c);
}
