/* RMSNorm, l2 norm and head norm in vectors; equations and tags in ops/rmsnorm.h, l2norm.h, headnorm.h. All three bring
 * groups of D numbers to a length and differ in what they multiply by. */
#include "ops/headnorm.h"
#include "ops/l2norm.h"
#include "ops/rmsnorm.h"
#include "ops/simd/rows.h"

#include <math.h>

typedef struct norm {
    hh_tensor y, r, x, dx, dy, dweight, weight; /* weight: a factor for every row and group */
    const float *w, *gamma;                     /* for every element of a group; for every group */
    int64_t n, groups;
    double eps;
    float scale;
    bool accumulate;
} norm;

static float sum_squares(const float *x, int64_t n) {
    return hh_vdot(x, x, n);
}

/* y = factor x w */
static void scale_group(float *y, const float *x, float factor, const float *w, int64_t n) {
    for (int64_t i = 0; i < n; i += HH_VW) {
        hh_vf v = hh_vload_upto(x + i, n - i) * factor;
        if (w) v *= hh_vload_upto(w + i, n - i);
        hh_vstore_upto(y + i, v, n - i);
    }
}

static void rmsnorm_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const norm *c = context;
    (void)partial;
    for (int64_t t = lo; t < hi; t++)
        for (int64_t h = 0; h < c->groups; h++) {
            const float *x = hh_row(c->x, t) + h * c->n;
            const float r = (float)(1 / sqrt((double)sum_squares(x, c->n) / (double)c->n + c->eps)); /* F1 */
            if (c->r.data) hh_row(c->r, t)[h] = r;
            scale_group(hh_row(c->y, t) + h * c->n, x, r, c->w, c->n); /* F2 */
        }
}

void HH_SIMD_NAME(rmsnorm_fwd)(hh_backend *be, hh_tensor y, hh_tensor rstd, hh_tensor x, hh_tensor w, double eps) {
    const norm c = {.y = y, .r = rstd, .x = x, .w = w.data, .n = hh_last_dim(x), .groups = hh_groups(x), .eps = eps};
    HH_ASSERT(hh_is_real_like(y, x) && (hh_is_absent(w) || hh_is_real_vector(w, c.n)));
    HH_ASSERT(hh_is_absent(rstd) || hh_is_real_per_group(rstd, x));
    hh_over_rows(be, x.dim[0], c.n * c.groups, rmsnorm_rows, &c);
}

static void rmsnorm_bwd_group(const norm *c, float *dx, const float *dy, const float *x, float r, float *dw) {
    const int64_t n = c->n;
    hh_vf sum = {0};
    for (int64_t i = 0; i < n; i += HH_VW) {
        hh_vf g = hh_vload_upto(dy + i, n - i);
        const hh_vf unit = hh_vload_upto(x + i, n - i) * r;                                    /* B1 */
        if (dw) hh_vstore_upto(dw + i, hh_vfma(g, unit, hh_vload_upto(dw + i, n - i)), n - i); /* B3 */
        if (c->w) g *= hh_vload_upto(c->w + i, n - i);
        sum = hh_vfma(g, unit, sum);
    }
    const float mean = hh_vsum(sum) / (float)n;
    for (int64_t i = 0; i < n; i += HH_VW) {
        hh_vf g = hh_vload_upto(dy + i, n - i);
        if (c->w) g *= hh_vload_upto(c->w + i, n - i);
        hh_vf d = r * (g - hh_vload_upto(x + i, n - i) * r * mean); /* B2 */
        if (c->accumulate) d += hh_vload_upto(dx + i, n - i);
        hh_vstore_upto(dx + i, d, n - i);
    }
}

static void rmsnorm_bwd_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const norm *c = context;
    for (int64_t t = lo; t < hi; t++)
        for (int64_t h = 0; h < c->groups; h++)
            rmsnorm_bwd_group(c, hh_row(c->dx, t) + h * c->n, hh_row(c->dy, t) + h * c->n, hh_row(c->x, t) + h * c->n,
                              hh_row(c->r, t)[h], partial);
}

void HH_SIMD_NAME(rmsnorm_bwd)(hh_backend *be, hh_tensor dx, hh_tensor dw, hh_tensor dy, hh_tensor x, hh_tensor w,
                               hh_tensor rstd, bool accumulate) {
    const norm c = {.dx = dx,
                    .dy = dy,
                    .x = x,
                    .r = rstd,
                    .w = w.data,
                    .n = hh_last_dim(x),
                    .groups = hh_groups(x),
                    .accumulate = accumulate};
    HH_ASSERT(hh_is_real_like(dx, x) && hh_is_real_like(dy, x) && hh_is_real_per_group(rstd, x));
    HH_ASSERT(hh_is_absent(w) || hh_is_real_vector(w, c.n));
    HH_ASSERT(hh_is_absent(dw) || hh_is_real_vector(dw, c.n));
    if (dw.data)
        hh_over_rows_summing(be, x.dim[0], 2 * c.n * c.groups, c.n, dw.data, rmsnorm_bwd_rows, &c);
    else
        hh_over_rows(be, x.dim[0], 2 * c.n * c.groups, rmsnorm_bwd_rows, &c);
}

static void l2norm_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const norm *c = context;
    (void)partial;
    for (int64_t t = lo; t < hi; t++)
        for (int64_t h = 0; h < c->groups; h++) {
            const float *x = hh_row(c->x, t) + h * c->n;
            const float r = (float)(1 / sqrt((double)sum_squares(x, c->n) + HH_L2NORM_EPS)); /* F1 */
            hh_row(c->r, t)[h] = r;
            scale_group(hh_row(c->y, t) + h * c->n, x, c->scale * r, NULL, c->n); /* F2 */
        }
}

void HH_SIMD_NAME(l2norm_fwd)(hh_backend *be, hh_tensor y, hh_tensor r, hh_tensor x, double scale) {
    const norm c = {.y = y, .r = r, .x = x, .n = hh_last_dim(x), .groups = hh_groups(x), .scale = (float)scale};
    HH_ASSERT(hh_is_real_like(y, x) && hh_is_real_per_group(r, x));
    hh_over_rows(be, x.dim[0], c.n * c.groups, l2norm_rows, &c);
}

/* dx = factor (dy - along x) */
static void project_group(float *dx, const float *dy, const float *x, float factor, float along, int64_t n) {
    for (int64_t i = 0; i < n; i += HH_VW) {
        const hh_vf d = hh_vload_upto(dy + i, n - i) - along * hh_vload_upto(x + i, n - i);
        hh_vstore_upto(dx + i, factor * d, n - i);
    }
}

static void l2norm_bwd_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const norm *c = context;
    (void)partial;
    const float unscale = 1 / (c->scale * c->scale);
    for (int64_t t = lo; t < hi; t++)
        for (int64_t h = 0; h < c->groups; h++) {
            const float *y = hh_row(c->y, t) + h * c->n, *dy = hh_row(c->dy, t) + h * c->n;
            project_group(hh_row(c->dx, t) + h * c->n, dy, y, c->scale * hh_row(c->r, t)[h],
                          unscale * hh_vdot(y, dy, c->n), c->n); /* B1 */
        }
}

void HH_SIMD_NAME(l2norm_bwd)(hh_backend *be, hh_tensor dx, hh_tensor dy, hh_tensor y, hh_tensor r, double scale) {
    const norm c = {
        .dx = dx, .dy = dy, .y = y, .r = r, .n = hh_last_dim(y), .groups = hh_groups(y), .scale = (float)scale};
    HH_ASSERT(hh_is_real_like(dx, y) && hh_is_real_like(dy, y) && hh_is_real_per_group(r, y));
    hh_over_rows(be, y.dim[0], 2 * c.n * c.groups, l2norm_bwd_rows, &c);
}

static float head_factor(const norm *c, int64_t t, int64_t h) {
    return (c->gamma ? c->gamma[h] : 1) * (c->weight.data ? hh_row(c->weight, t)[h] : 1);
}

static void headnorm_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const norm *c = context;
    (void)partial;
    for (int64_t t = lo; t < hi; t++)
        for (int64_t h = 0; h < c->groups; h++) {
            const float *o = hh_row(c->x, t) + h * c->n;
            const float r = (float)(1 / sqrt((double)sum_squares(o, c->n) / (double)c->n + c->eps)); /* F1 */
            hh_row(c->r, t)[h] = r;
            scale_group(hh_row(c->y, t) + h * c->n, o, head_factor(c, t, h) * r, NULL, c->n); /* F2 */
        }
}

void HH_SIMD_NAME(headnorm_fwd)(hh_backend *be, hh_tensor y, hh_tensor rstd, hh_tensor o, hh_tensor gamma,
                                hh_tensor weight, double eps) {
    const int64_t T = o.dim[0], H = o.dim[1], D = o.dim[2];
    HH_ASSERT(hh_is_real_heads(o, T, H, D) && hh_is_real_like(y, o) && hh_is_real_matrix(rstd, T, H));
    HH_ASSERT(hh_is_absent(gamma) || hh_is_real_vector(gamma, H));
    HH_ASSERT(hh_is_absent(weight) || hh_is_real_matrix(weight, T, H));
    const norm c = {.y = y, .r = rstd, .x = o, .gamma = gamma.data, .weight = weight, .n = D, .groups = H, .eps = eps};
    hh_over_rows(be, T, H * D, headnorm_rows, &c);
}

static void headnorm_bwd_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const norm *c = context;
    for (int64_t t = lo; t < hi; t++)
        for (int64_t h = 0; h < c->groups; h++) {
            const float *o = hh_row(c->x, t) + h * c->n, *dy = hh_row(c->dy, t) + h * c->n, r = hh_row(c->r, t)[h];
            const float s = r * hh_vdot(dy, o, c->n); /* B1 */
            const float weight = c->weight.data ? hh_row(c->weight, t)[h] : 1;
            project_group(hh_row(c->dx, t) + h * c->n, dy, o, head_factor(c, t, h) * r, r * s / (float)c->n,
                          c->n);                                                              /* B2 */
            if (partial) partial[h] += weight * s;                                            /* B3 */
            if (c->dweight.data) hh_row(c->dweight, t)[h] = (c->gamma ? c->gamma[h] : 1) * s; /* B4 */
        }
}

void HH_SIMD_NAME(headnorm_bwd)(hh_backend *be, hh_tensor do_, hh_tensor dgamma, hh_tensor dweight, hh_tensor dy,
                                hh_tensor o, hh_tensor gamma, hh_tensor weight, hh_tensor rstd) {
    const int64_t T = o.dim[0], H = o.dim[1], D = o.dim[2];
    HH_ASSERT(hh_is_real_heads(o, T, H, D) && hh_is_real_like(do_, o) && hh_is_real_like(dy, o));
    HH_ASSERT(hh_is_real_matrix(rstd, T, H) && (hh_is_absent(gamma) || hh_is_real_vector(gamma, H)));
    HH_ASSERT(hh_is_absent(dgamma) || hh_is_real_vector(dgamma, H));
    HH_ASSERT(hh_is_absent(weight) || hh_is_real_matrix(weight, T, H));
    HH_ASSERT(hh_is_absent(dweight) || hh_is_real_matrix(dweight, T, H));
    const norm c = {.dx = do_,
                    .dy = dy,
                    .x = o,
                    .r = rstd,
                    .gamma = gamma.data,
                    .weight = weight,
                    .dweight = dweight,
                    .n = D,
                    .groups = H};
    if (dgamma.data)
        hh_over_rows_summing(be, T, 2 * H * D, H, dgamma.data, headnorm_bwd_rows, &c);
    else
        hh_over_rows(be, T, 2 * H * D, headnorm_bwd_rows, &c);
}
