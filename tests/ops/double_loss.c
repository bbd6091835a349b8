/* The losses' gradients against differences in double precision. */
#include "ops/ops.h"
#include "support/gradcheck.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { T = 9, C = 7, V = 37, CT = 5 };

typedef struct problem {
    hh_backend *be;
    hh_tensor x, xt, nll, kl;
    hh_linear w, wt;
    const int32_t *target;
    const float *row_weight;
    double scale, ce_weight;
} problem;

static hh_linear make_head(int64_t k, uint64_t seed) {
    hh_linear w = {.n_parts = 1, .n = V, .k = k};
    w.part[0].w = guarded_2d(HH_DTYPE_REAL, V, k, 0);
    fill_normal(w.part[0].w, seed, 0.7);
    return w;
}

static hh_linear make_gradient(const hh_linear *w) {
    hh_linear dw = *w;
    dw.part[0].w = guarded_copy(w->part[0].w);
    fill_value(dw.part[0].w, 0);
    return dw;
}

static problem make_problem(hh_backend *be) {
    static const int32_t target[T] = {3, -1, 0, 36, -1, 5, 5, -1, 11};
    static const float row_weight[T] = {1, 0, 0.5f, 0, 2, 1, 0, 0, 1};
    problem p = {.be = be, .target = target, .row_weight = row_weight, .scale = 0.3, .ce_weight = 0.7};
    p.x = guarded_2d(HH_DTYPE_REAL, T, C, 2);
    p.xt = guarded_2d(HH_DTYPE_REAL, T, CT, 0);
    fill_normal(p.x, 1, 1);
    fill_normal(p.xt, 2, 1);
    p.w = make_head(C, 3);
    p.wt = make_head(CT, 4);
    p.nll = guarded_1d(HH_DTYPE_REAL, T);
    p.kl = guarded_1d(HH_DTYPE_REAL, T);
    return p;
}

static double sum(hh_tensor t) {
    double s = 0;
    for (int64_t i = 0; i < hh_tensor_count(t); i++) s += (double)*tensor_at(t, i);
    return s;
}

static double ce_loss(void *context) {
    problem *p = context;
    p->be->ops->ce_head(p->be, p->nll, NULL, HH_NONE, NULL, p->x, &p->w, p->target, 0);
    return p->scale * sum(p->nll);
}

static double kl_loss(void *context) {
    problem *p = context;
    p->be->ops->kl_head(p->be, p->kl, p->nll, HH_NONE, NULL, p->x, &p->w, p->xt, &p->wt, p->target, p->row_weight, 0,
                        0);
    return p->scale * (sum(p->kl) + p->ce_weight * sum(p->nll));
}

static void cross_entropy_gradients(void **state) {
    (void)state;
    hh_backend *be = open_backend(NULL, 2);
    problem p = make_problem(be);
    hh_tensor dx = guarded_2d(HH_DTYPE_REAL, T, C, 1);
    hh_linear dw = make_gradient(&p.w);
    be->ops->ce_head(be, HH_NONE, NULL, dx, &dw, p.x, &p.w, p.target, p.scale);
    gradcheck("dx", ce_loss, &p, p.x, dx, 0, 1e-11);
    gradcheck("dW", ce_loss, &p, p.w.part[0].w, dw.part[0].w, 0, 1e-11);
    for (int64_t c = 0; c < C; c++) assert_true(hh_row(dx, 1)[c] == 0); /* an ignored row */
    guarded_release();
    hh_backend_close(be);
}

static void divergence_gradients(void **state) {
    (void)state;
    hh_backend *be = open_backend(NULL, 2);
    problem p = make_problem(be);
    hh_tensor dx = guarded_2d(HH_DTYPE_REAL, T, C, 1);
    for (int variant = 0; variant < 4; variant++) {
        if (variant == 1) p.row_weight = NULL;
        if (variant == 2) p.target = NULL;
        if (variant == 3) p = make_problem(be), p.ce_weight = 0; /* rows with a target but no weight */
        hh_linear dw = make_gradient(&p.w);
        be->ops->kl_head(be, HH_NONE, HH_NONE, dx, &dw, p.x, &p.w, p.xt, &p.wt, p.target, p.row_weight, p.scale,
                         p.ce_weight);
        gradcheck("dx", kl_loss, &p, p.x, dx, 0, 1e-10);
        gradcheck("dW", kl_loss, &p, p.w.part[0].w, dw.part[0].w, 0, 1e-10);
    }
    guarded_release();
    hh_backend_close(be);
}

static void divergence_from_itself_is_zero(void **state) {
    (void)state;
    hh_backend *be = open_backend(NULL, 1);
    problem p = make_problem(be);
    be->ops->kl_head(be, p.kl, p.nll, HH_NONE, NULL, p.x, &p.w, p.x, &p.w, NULL, NULL, 0, 0);
    for (int64_t t = 0; t < T; t++) {
        assert_true(fabs((double)*tensor_at(p.kl, t)) < 1e-15);
        assert_true(*tensor_at(p.nll, t) == 0); /* no targets */
    }
    guarded_release();
    hh_backend_close(be);
}

typedef struct mse_problem {
    hh_backend *be;
    hh_tensor y, target, loss;
} mse_problem;

static double squared_error(void *context) {
    mse_problem *p = context;
    fill_value(p->loss, 0);
    p->be->ops->mse(p->be, p->loss, HH_NONE, p->y, p->target, 0.4);
    return (double)*tensor_at(p->loss, 0);
}

static void squared_error_gradient(void **state) {
    (void)state;
    hh_backend *be = open_backend(NULL, 2);
    mse_problem p = {.be = be, .y = guarded_2d(HH_DTYPE_REAL, 5, 11, 3), .target = guarded_2d(HH_DTYPE_REAL, 5, 11, 0)};
    p.loss = guarded_1d(HH_DTYPE_REAL, 1);
    hh_tensor dy = guarded_2d(HH_DTYPE_REAL, 5, 11, 4);
    fill_normal(p.y, 1, 1);
    fill_normal(p.target, 2, 1);
    fill_value(p.loss, 100);
    be->ops->mse(be, p.loss, dy, p.y, p.target, 0.4);
    double added = (double)*tensor_at(p.loss, 0) - 100;
    assert_true(fabs(added - squared_error(&p)) < 1e-12);
    gradcheck("dy", squared_error, &p, p.y, dy, 0, 1e-11);
    guarded_release();
    hh_backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy_gradients),
        cmocka_unit_test(divergence_gradients),
        cmocka_unit_test(divergence_from_itself_is_zero),
        cmocka_unit_test(squared_error_gradient),
    };
    return cmocka_run_group_tests_name("losses in double", tests, NULL, NULL);
}
