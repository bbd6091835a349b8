/* The linear map's gradients against differences in double precision. */
#include "ops/ops.h"
#include "support/gradcheck.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

typedef struct problem {
    hh_backend *be;
    hh_tensor x, y, dy;
    hh_linear w;
} problem;

static double loss(void *context) {
    problem *p = context;
    fill_value(p->y, 0.25);
    p->be->ops->linear_fwd(p->be, p->y, p->x, &p->w, true);
    return tensor_dot(p->y, p->dy);
}

/* Three parts, the middle one without a bias. */
static problem make_problem(hh_backend *be, int64_t T, int64_t K) {
    const int64_t rows[] = {3, 21, 2};
    problem p = {.be = be, .w = {.n_parts = 3, .n = 26, .k = K}};
    for (int i = 0; i < 3; i++) {
        p.w.part[i].w = guarded_2d(HH_DTYPE_REAL, rows[i], K, 0);
        fill_normal(p.w.part[i].w, 10 + (uint64_t)i, 0.5);
        if (i == 1) continue;
        p.w.part[i].bias = guarded_1d(HH_DTYPE_REAL, rows[i]);
        fill_normal(p.w.part[i].bias, 20 + (uint64_t)i, 0.5);
    }
    p.x = guarded_2d(HH_DTYPE_REAL, T, K, 3);
    p.y = guarded_2d(HH_DTYPE_REAL, T, 26, 5);
    p.dy = guarded_2d(HH_DTYPE_REAL, T, 26, 1);
    fill_normal(p.x, 1, 1);
    fill_normal(p.dy, 2, 1);
    return p;
}

static void gradients_equal_differences(void **state) {
    (void)state;
    hh_backend *be = open_backend(NULL, 2);
    for (int64_t T = 1; T <= 7; T += 3) {
        problem p = make_problem(be, T, 13);
        hh_tensor dx = guarded_2d(HH_DTYPE_REAL, T, 13, 2);
        be->ops->linear_bwd_input(be, dx, p.dy, &p.w, false);
        gradcheck("dx", loss, &p, p.x, dx, 0, 1e-11);

        hh_linear dw = p.w;
        for (int i = 0; i < 3; i++) {
            dw.part[i].w = guarded_copy(p.w.part[i].w);
            fill_value(dw.part[i].w, 0);
            if (!dw.part[i].bias.data) continue;
            dw.part[i].bias = guarded_copy(p.w.part[i].bias);
            fill_value(dw.part[i].bias, 0);
        }
        be->ops->linear_bwd_weight(be, &dw, p.dy, p.x);
        for (int i = 0; i < 3; i++) {
            gradcheck("dW", loss, &p, p.w.part[i].w, dw.part[i].w, 0, 1e-11);
            if (dw.part[i].bias.data) gradcheck("dbias", loss, &p, p.w.part[i].bias, dw.part[i].bias, 0, 1e-11);
        }
        guarded_release();
    }
    hh_backend_close(be);
}

static void accumulating_adds_to_what_was_there(void **state) {
    (void)state;
    hh_backend *be = open_backend(NULL, 1);
    problem p = make_problem(be, 5, 9);
    hh_tensor once = guarded_2d(HH_DTYPE_REAL, 5, 9, 0), twice = guarded_2d(HH_DTYPE_REAL, 5, 9, 0);
    be->ops->linear_bwd_input(be, once, p.dy, &p.w, false);
    fill_value(twice, 0);
    be->ops->linear_bwd_input(be, twice, p.dy, &p.w, true);
    be->ops->linear_bwd_input(be, twice, p.dy, &p.w, true);
    for (int64_t i = 0; i < 45; i++) *tensor_at(once, i) *= 2;
    check_close(twice, once, 1e-14, "dx accumulated twice");
    guarded_release();
    hh_backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_differences),
        cmocka_unit_test(accumulating_adds_to_what_was_there),
    };
    return cmocka_run_group_tests_name("linear map in double", tests, NULL, NULL);
}
