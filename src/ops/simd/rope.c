/* The rotary embedding in vectors; equations in ops/rope.h. */
#include "ops/rope.h"
#include "ops/simd/rows.h"

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
