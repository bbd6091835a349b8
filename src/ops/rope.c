/* The reference of the rotary embedding; see rope.h. */
#include "ops/rope.h"
#include "ops/shape.h"

#include <math.h>

void hh_rope_table_reference(hh_backend *be, hh_tensor cos_, hh_tensor sin_, const double *inv_freq, double factor,
                             const hh_span *span, int64_t n_spans) {
    (void)be;
    const int64_t half = cos_.dim[1];
    HH_ASSERT(hh_is_real_matrix(cos_, cos_.dim[0], half) && hh_is_real_like(sin_, cos_));
    HH_ASSERT(hh_are_spans(span, n_spans, cos_.dim[0]));
    for (int64_t s = 0; s < n_spans; s++)
        for (int64_t t = span[s].lo; t < span[s].hi; t++) {
            const double position = (double)(span[s].pos + t - span[s].lo);
            for (int64_t i = 0; i < half; i++) { /* F1 */
                hh_row(cos_, t)[i] = (hh_real)(factor * cos(position * inv_freq[i]));
                hh_row(sin_, t)[i] = (hh_real)(factor * sin(position * inv_freq[i]));
            }
        }
}

void hh_rope_reference(hh_backend *be, hh_tensor x, hh_tensor cos_, hh_tensor sin_, bool inverse) {
    (void)be;
    const int64_t half = cos_.dim[1];
    HH_ASSERT(hh_is_real_heads(x, cos_.dim[0], hh_groups(x), 2 * half));
    HH_ASSERT(hh_is_real_matrix(cos_, x.dim[0], half) && hh_is_real_like(sin_, cos_));
    for (int64_t t = 0; t < x.dim[0]; t++)
        for (int64_t h = 0; h < x.dim[1]; h++) {
            hh_real *u = hh_row(x, t) + h * 2 * half, *v = u + half;
            for (int64_t i = 0; i < half; i++) {
                const hh_real c = hh_row(cos_, t)[i], s = inverse ? -hh_row(sin_, t)[i] : hh_row(sin_, t)[i]; /* B1 */
                const hh_real a = u[i], b = v[i];
                u[i] = a * c - b * s; /* F2 */
                v[i] = b * c + a * s;
            }
        }
}
