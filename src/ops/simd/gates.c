/* The gates of Gated DeltaNet in vectors; equations and tags in ops/gates.h. */
#include "ops/gates.h"
#include "ops/simd/rows.h"

#include <math.h>

typedef struct gates {
    hh_tensor g, beta, a, b, da, db, dg, dbeta;
    const float *rate, *bias; /* rate = -exp(A_log) */
    int64_t heads;
    float scale;
} gates;

#define COST 12 /* two exponentials and a logarithm against a copy */

/* max(x, 0) + log(1 + e), e = exp(-|x|) in (0, 1]: log(1 + e) = 2 atanh(s), s = e / (2 + e) <= 1/3. */
static hh_vf softplus(hh_vf x) {
    const hh_vf e = hh_vexp(hh_vmin(x, -x)), s = e / (2.0f + e), q = s * s;
    hh_vf p = hh_vset(2.0f / 15);
    p = hh_vfma(p, q, hh_vset(2.0f / 13));
    p = hh_vfma(p, q, hh_vset(2.0f / 11));
    p = hh_vfma(p, q, hh_vset(2.0f / 9));
    p = hh_vfma(p, q, hh_vset(2.0f / 7));
    p = hh_vfma(p, q, hh_vset(2.0f / 5));
    p = hh_vfma(p, q, hh_vset(2.0f / 3));
    p = hh_vfma(p, q, hh_vset(2.0f));
    return hh_vfma(p, s, hh_vmax((hh_vf){0}, x));
}

static void gate_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const gates *c = context;
    (void)partial;
    for (int64_t t = lo; t < hi; t++)
        for (int64_t h = 0; h < c->heads; h += HH_VW) {
            const int64_t left = c->heads - h;
            const hh_vf x = hh_vload_upto(hh_row(c->a, t) + h, left) + hh_vload_upto(c->bias + h, left);
            hh_vstore_upto(hh_row(c->g, t) + h, hh_vload_upto(c->rate + h, left) * softplus(x), left); /* F1 */
            const hh_vf s = hh_vsigmoid(hh_vload_upto(hh_row(c->b, t) + h, left));
            hh_vstore_upto(hh_row(c->beta, t) + h, c->scale * s, left); /* F2 */
        }
}

static float *rates(hh_arena *a, hh_tensor A_log) {
    float *rate = hh_arena_alloc(a, sizeof(float) * (size_t)A_log.dim[0]);
    for (int64_t h = 0; h < A_log.dim[0]; h++) rate[h] = -expf(((const float *)A_log.data)[h]);
    return rate;
}

void HH_SIMD_NAME(gdn_gates_fwd)(hh_backend *be, hh_tensor g, hh_tensor beta, hh_tensor a, hh_tensor b, hh_tensor A_log,
                                 hh_tensor dt_bias, double beta_scale) {
    const int64_t T = a.dim[0], heads = a.dim[1];
    HH_ASSERT(hh_is_real_matrix(a, T, heads) && hh_is_real_like(b, a) && hh_is_real_like(g, a) &&
              hh_is_real_like(beta, a));
    HH_ASSERT(hh_is_real_vector(A_log, heads) && hh_is_real_vector(dt_bias, heads));
    const size_t mark = be->scratch.used;
    const gates c = {.g = g,
                     .beta = beta,
                     .a = a,
                     .b = b,
                     .rate = rates(&be->scratch, A_log),
                     .bias = dt_bias.data,
                     .heads = heads,
                     .scale = (float)beta_scale};
    hh_over_rows(be, T, heads * COST, gate_rows, &c);
    hh_arena_reset(&be->scratch, mark);
}

/* partial: dA_log, then ddt_bias. */
static void gate_bwd_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const gates *c = context;
    for (int64_t t = lo; t < hi; t++)
        for (int64_t h = 0; h < c->heads; h += HH_VW) {
            const int64_t left = c->heads - h;
            const hh_vf x = hh_vload_upto(hh_row(c->a, t) + h, left) + hh_vload_upto(c->bias + h, left);
            const hh_vf scaled = hh_vload_upto(c->rate + h, left) * hh_vload_upto(hh_row(c->dg, t) + h, left);
            const hh_vf s = hh_vsigmoid(hh_vload_upto(hh_row(c->b, t) + h, left)), d = scaled * hh_vsigmoid(x); /* B1 */
            const hh_vf db = hh_vload_upto(hh_row(c->dbeta, t) + h, left) * c->scale * s * (1.0f - s);          /* B4 */
            float *to_rate = partial + h, *to_bias = partial + c->heads + h;
            hh_vstore_upto(to_rate, hh_vload_upto(to_rate, left) + scaled * softplus(x), left); /* B2 */
            hh_vstore_upto(to_bias, hh_vload_upto(to_bias, left) + d, left);                    /* B3 */
            hh_vstore_upto(hh_row(c->da, t) + h, d, left);
            hh_vstore_upto(hh_row(c->db, t) + h, db, left);
        }
}

void HH_SIMD_NAME(gdn_gates_bwd)(hh_backend *be, hh_tensor da, hh_tensor db, hh_tensor dA_log, hh_tensor ddt_bias,
                                 hh_tensor dg, hh_tensor dbeta, hh_tensor a, hh_tensor b, hh_tensor A_log,
                                 hh_tensor dt_bias, double beta_scale) {
    const int64_t T = a.dim[0], heads = a.dim[1];
    HH_ASSERT(hh_is_real_matrix(a, T, heads) && hh_is_real_like(b, a) && hh_is_real_like(da, a) &&
              hh_is_real_like(db, a));
    HH_ASSERT(hh_is_real_like(dg, a) && hh_is_real_like(dbeta, a));
    HH_ASSERT(hh_is_real_vector(A_log, heads) && hh_is_real_vector(dt_bias, heads));
    HH_ASSERT(hh_is_real_vector(dA_log, heads) && hh_is_real_vector(ddt_bias, heads));
    hh_arena *s = &be->scratch;
    const size_t mark = s->used;
    const gates c = {.da = da,
                     .db = db,
                     .dg = dg,
                     .dbeta = dbeta,
                     .a = a,
                     .b = b,
                     .rate = rates(s, A_log),
                     .bias = dt_bias.data,
                     .heads = heads,
                     .scale = (float)beta_scale};
    float *sums = hh_arena_alloc(s, sizeof(float) * 2 * (size_t)heads);
    memset(sums, 0, sizeof(float) * 2 * (size_t)heads);
    hh_over_rows_summing(be, T, heads * COST, 2 * heads, sums, gate_bwd_rows, &c);
    for (int64_t h = 0; h < heads; h++) {
        ((float *)dA_log.data)[h] += sums[h];
        ((float *)ddt_bias.data)[h] += sums[heads + h];
    }
    hh_arena_reset(s, mark);
}
