/* Head weights of fusion "gate" in vectors; equations and tags in ops/headnorm.h. */
#include "ops/headnorm.h"
#include "ops/simd/rows.h"

typedef struct softmax {
    hh_tensor weight, z, dz, dweight;
    int64_t n;
} softmax;

#define COST 4

static void forward_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const softmax *c = context;
    (void)partial;
    for (int64_t t = lo; t < hi; t++) {
        const float *z = hh_row(c->z, t);
        float *w = hh_row(c->weight, t), top = z[0], sum = 0;
        for (int64_t h = 1; h < c->n; h++) top = z[h] > top ? z[h] : top;
        for (int64_t h = 0; h < c->n; h += HH_VW)
            hh_vstore_upto(w + h, hh_vexp(hh_vload_upto(z + h, c->n - h) - top), c->n - h);
        for (int64_t h = 0; h < c->n; h++) sum += w[h];
        for (int64_t h = 0; h < c->n; h++) w[h] *= (float)c->n / sum; /* F3 */
    }
}

void HH_SIMD_NAME(head_weight_fwd)(hh_backend *be, hh_tensor weight, hh_tensor z) {
    HH_ASSERT(hh_is_real_matrix(z, z.dim[0], z.dim[1]) && hh_is_real_like(weight, z));
    const softmax c = {.weight = weight, .z = z, .n = z.dim[1]};
    hh_over_rows(be, z.dim[0], COST * c.n, forward_rows, &c);
}

static void backward_rows(const void *context, int64_t lo, int64_t hi, float *partial) {
    const softmax *c = context;
    (void)partial;
    for (int64_t t = lo; t < hi; t++) {
        const float *w = hh_row(c->weight, t), *grad = hh_row(c->dweight, t);
        const float mean = hh_vdot(w, grad, c->n) / (float)c->n;
        for (int64_t h = 0; h < c->n; h++) hh_row(c->dz, t)[h] = w[h] * (grad[h] - mean); /* B5 */
    }
}

void HH_SIMD_NAME(head_weight_bwd)(hh_backend *be, hh_tensor dz, hh_tensor dweight, hh_tensor weight) {
    HH_ASSERT(hh_is_real_matrix(weight, weight.dim[0], weight.dim[1]));
    HH_ASSERT(hh_is_real_like(dz, weight) && hh_is_real_like(dweight, weight));
    const softmax c = {.weight = weight, .dz = dz, .dweight = dweight, .n = weight.dim[1]};
    hh_over_rows(be, weight.dim[0], 2 * c.n, backward_rows, &c);
}
