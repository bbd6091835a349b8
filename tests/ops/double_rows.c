/* Gradients of the ops that treat every row by itself: norms, gates, activations, rotary embedding, short convolution.
 */
#include "support/gradcheck.h"

#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { T = 5, H = 3, D = 6 };
#define TOLERANCE 1e-10

static hh_backend *be;

static hh_tensor heads(uint64_t seed) {
    hh_tensor t = guarded_3d(HH_DTYPE_REAL, T, H, D, 4);
    if (seed) fill_normal(t, seed, 1.0);
    return t;
}
static hh_tensor matrix(uint64_t seed) {
    hh_tensor t = guarded_2d(HH_DTYPE_REAL, T, H, 3);
    if (seed) fill_normal(t, seed, 1.0);
    return t;
}
static hh_tensor vector(int64_t n, uint64_t seed) {
    hh_tensor t = guarded_1d(HH_DTYPE_REAL, n);
    fill_value(t, 0.0);
    if (seed) fill_normal(t, seed, 1.0);
    return t;
}

static void assign(hh_tensor y, hh_tensor x) {
    for (int64_t i = 0, n = hh_tensor_count(x); i < n; i++) *tensor_at(y, i) = *tensor_at(x, i);
}

/* The tensors of one op, and its forward as a scalar: <y, dy> (+ <y2, dy2>). */
typedef struct problem {
    hh_tensor x, z, w, w2, y, y2, r, dy, dy2, cos, sin;
    const hh_span *span;
    int64_t n_spans;
} problem;

static double rmsnorm_loss(void *context) {
    problem *p = context;
    be->ops->rmsnorm_fwd(be, p->y, p->r, p->x, p->w, 1e-2);
    return tensor_dot(p->y, p->dy);
}

static void rmsnorm_gradients(void **state) {
    (void)state;
    problem p = {.x = heads(1), .w = vector(D, 2), .y = heads(0), .r = matrix(0), .dy = heads(3)};
    hh_tensor dx = heads(0), dw = vector(D, 0);
    rmsnorm_loss(&p);
    be->ops->rmsnorm_bwd(be, dx, dw, p.dy, p.x, p.w, p.r, false);
    gradcheck("rmsnorm dx", rmsnorm_loss, &p, p.x, dx, 0, TOLERANCE);
    gradcheck("rmsnorm dw", rmsnorm_loss, &p, p.w, dw, 0, TOLERANCE);

    hh_tensor twice = guarded_copy(dx); /* accumulation, and no weight */
    be->ops->rmsnorm_bwd(be, twice, HH_NONE, p.dy, p.x, p.w, p.r, true);
    for (int64_t i = 0; i < T * H * D; i++) *tensor_at(twice, i) -= *tensor_at(dx, i);
    check_close(twice, dx, 1e-14, "rmsnorm dx accumulated");
    p.w = HH_NONE;
    rmsnorm_loss(&p);
    assign(dx, p.dy);
    be->ops->rmsnorm_bwd(be, dx, HH_NONE, dx, p.x, p.w, p.r, false);
    gradcheck("rmsnorm dx without weight, in place", rmsnorm_loss, &p, p.x, dx, 0, TOLERANCE);
    guarded_release();
}

static double l2norm_loss(void *context) {
    problem *p = context;
    be->ops->l2norm_fwd(be, p->y, p->r, p->x, 0.375);
    return tensor_dot(p->y, p->dy);
}

static void l2norm_gradients(void **state) {
    (void)state;
    problem p = {.x = heads(1), .y = heads(0), .r = matrix(0), .dy = heads(3)};
    hh_tensor dx = heads(0);
    l2norm_loss(&p);
    be->ops->l2norm_bwd(be, dx, p.dy, p.y, p.r, 0.375);
    gradcheck("l2norm dx", l2norm_loss, &p, p.x, dx, 0, TOLERANCE);

    fill_value(p.x, 0.0); /* y = 0, and the gradient is 1000 scale dy */
    l2norm_loss(&p);
    be->ops->l2norm_bwd(be, dx, p.dy, p.y, p.r, 0.375);
    for (int64_t i = 0; i < T * H * D; i++) {
        assert_true(*tensor_at(p.y, i) == 0);
        assert_true(fabs(*tensor_at(dx, i) - 375.0 * *tensor_at(p.dy, i)) < 1e-9);
    }
    guarded_release();
}

static double headnorm_loss(void *context) {
    problem *p = context;
    be->ops->headnorm_fwd(be, p->y, p->r, p->x, p->w, p->z, 1e-2);
    return tensor_dot(p->y, p->dy);
}

static void headnorm_gradients(void **state) {
    (void)state;
    problem p = {.x = heads(1), .w = vector(H, 2), .z = matrix(4), .y = heads(0), .r = matrix(0), .dy = heads(3)};
    hh_tensor dx = heads(0), dgamma = vector(H, 0), dweight = matrix(0);
    headnorm_loss(&p);
    be->ops->headnorm_bwd(be, dx, dgamma, dweight, p.dy, p.x, p.w, p.z, p.r);
    gradcheck("headnorm do", headnorm_loss, &p, p.x, dx, 0, TOLERANCE);
    gradcheck("headnorm dgamma", headnorm_loss, &p, p.w, dgamma, 0, TOLERANCE);
    gradcheck("headnorm dweight", headnorm_loss, &p, p.z, dweight, 0, TOLERANCE);
    p.w = p.z = HH_NONE;
    headnorm_loss(&p);
    be->ops->headnorm_bwd(be, dx, HH_NONE, HH_NONE, p.dy, p.x, p.w, p.z, p.r);
    gradcheck("headnorm do, plain", headnorm_loss, &p, p.x, dx, 0, TOLERANCE);
    guarded_release();
}

static double head_weight_loss(void *context) {
    problem *p = context;
    be->ops->head_weight_fwd(be, p->y, p->z);
    return tensor_dot(p->y, p->dy);
}

static void head_weight_gradients(void **state) {
    (void)state;
    problem p = {.z = matrix(4), .y = matrix(0), .dy = matrix(3)};
    hh_tensor dz = matrix(0);
    head_weight_loss(&p);
    be->ops->head_weight_bwd(be, dz, p.dy, p.y);
    gradcheck("head_weight dz", head_weight_loss, &p, p.z, dz, 0, TOLERANCE);
    guarded_release();
}

static double gates_loss(void *context) {
    problem *p = context;
    be->ops->gdn_gates_fwd(be, p->y, p->y2, p->x, p->z, p->w, p->w2, 2.0);
    return tensor_dot(p->y, p->dy) + tensor_dot(p->y2, p->dy2);
}

/* log_rate and bias set the decay a token: about 1e-7, 1, and 20. */
static void gates_at(double log_rate, double bias) {
    problem p = {.x = matrix(1),
                 .z = matrix(2),
                 .w = vector(H, 0),
                 .w2 = vector(H, 0),
                 .y = matrix(0),
                 .y2 = matrix(0),
                 .dy = matrix(3),
                 .dy2 = matrix(4)};
    fill_value(p.w, log_rate);
    fill_value(p.w2, bias);
    hh_tensor da = matrix(0), db = matrix(0), dA = vector(H, 0), ddt = vector(H, 0);
    gates_loss(&p);
    be->ops->gdn_gates_bwd(be, da, db, dA, ddt, p.dy, p.dy2, p.x, p.z, p.w, p.w2, 2.0);
    p.dy2 = matrix(0), fill_value(p.dy2, 0.0); /* apart, so that the larger does not hide the smaller */
    gradcheck("gates da", gates_loss, &p, p.x, da, 0, TOLERANCE);
    gradcheck("gates dA_log", gates_loss, &p, p.w, dA, 0, TOLERANCE);
    gradcheck("gates ddt_bias", gates_loss, &p, p.w2, ddt, 0, TOLERANCE);
    p.dy2 = matrix(4), fill_value(p.dy, 0.0);
    gradcheck("gates db", gates_loss, &p, p.z, db, 0, TOLERANCE);
    guarded_release();
}

static void gates_gradients(void **state) {
    (void)state;
    gates_at(0.0, 0.0);
    gates_at(-2.0, -14.0);
    gates_at(2.77, 0.8);
}

static double sigmoid_gate_loss(void *context) {
    problem *p = context;
    be->ops->sigmoid_gate_fwd(be, p->y, p->x, p->z);
    return tensor_dot(p->y, p->dy);
}

static double swiglu_loss(void *context) {
    problem *p = context;
    be->ops->swiglu_fwd(be, p->y, p->x, p->z);
    return tensor_dot(p->y, p->dy);
}

static void activation_gradients(void **state) {
    (void)state;
    problem p = {.x = heads(1), .z = heads(2), .y = heads(0), .dy = heads(3)};
    hh_tensor dx = heads(0), dz = heads(0);
    be->ops->sigmoid_gate_bwd(be, dx, dz, p.dy, p.x, p.z);
    gradcheck("sigmoid gate dx", sigmoid_gate_loss, &p, p.x, dx, 0, TOLERANCE);
    gradcheck("sigmoid gate dz", sigmoid_gate_loss, &p, p.z, dz, 0, TOLERANCE);
    be->ops->swiglu_bwd(be, dx, dz, p.dy, p.x, p.z);
    gradcheck("swiglu dgate", swiglu_loss, &p, p.x, dx, 0, TOLERANCE);
    gradcheck("swiglu dup", swiglu_loss, &p, p.z, dz, 0, TOLERANCE);
    hh_tensor gate = guarded_copy(p.x), up = guarded_copy(p.z);
    be->ops->swiglu_bwd(be, gate, up, p.dy, gate, up);
    check_close(gate, dx, 0.0, "swiglu dgate in place");
    check_close(up, dz, 0.0, "swiglu dup in place");
    guarded_release();
}

static double rope_loss(void *context) {
    problem *p = context;
    assign(p->y, p->x);
    be->ops->rope(be, p->y, p->cos, p->sin, false);
    return tensor_dot(p->y, p->dy);
}

static void rope_turns_and_turns_back(void **state) {
    (void)state;
    const double inv_freq[D / 2] = {1.0, 0.1, 1e-3};
    const hh_span span[3] = {{0, 2, 100000}, {2, 2, 0}, {2, T, 7}};
    problem p = {.x = heads(1),
                 .y = heads(0),
                 .dy = heads(3),
                 .cos = guarded_2d(HH_DTYPE_REAL, T, D / 2, 1),
                 .sin = guarded_2d(HH_DTYPE_REAL, T, D / 2, 1)};
    be->ops->rope_table(be, p.cos, p.sin, inv_freq, 1.25, span, 3);
    assert_true(fabs(hh_row(p.cos, 1)[1] - 1.25 * cos(10000.1)) < 1e-10);
    assert_true(fabs(hh_row(p.sin, 3)[2] - 1.25 * sin(0.008)) < 1e-14);
    hh_tensor dx = heads(0);
    assign(dx, p.dy);
    be->ops->rope(be, dx, p.cos, p.sin, true);
    gradcheck("rope dx", rope_loss, &p, p.x, dx, 0, TOLERANCE);

    be->ops->rope_table(be, p.cos, p.sin, inv_freq, 1.0, span, 3);
    rope_loss(&p);
    be->ops->rope(be, p.y, p.cos, p.sin, true);
    check_close(p.y, p.x, 1e-15, "rope and back");
    guarded_release();
}

static double conv_loss(void *context) {
    problem *p = context;
    be->ops->conv_fwd(be, p->y, p->x, p->w, NULL, p->span, p->n_spans);
    return tensor_dot(p->y, p->dy);
}

static void conv_gradients(void **state) {
    (void)state;
    const hh_span span[4] = {{0, 1, 0}, {1, 1, 0}, {1, 8, 0}, {8, 10, 0}};
    problem p = {.x = guarded_2d(HH_DTYPE_REAL, 10, H, 2),
                 .y = guarded_2d(HH_DTYPE_REAL, 10, H, 0),
                 .dy = guarded_2d(HH_DTYPE_REAL, 10, H, 1),
                 .w = guarded_2d(HH_DTYPE_REAL, H, 4, 0),
                 .span = span,
                 .n_spans = 4};
    fill_normal(p.x, 1, 1.0), fill_normal(p.dy, 2, 1.0), fill_normal(p.w, 3, 1.0);
    hh_tensor dx = guarded_2d(HH_DTYPE_REAL, 10, H, 3), dw = guarded_2d(HH_DTYPE_REAL, H, 4, 0);
    fill_value(dw, 0.0);
    be->ops->conv_bwd(be, dx, dw, p.dy, p.x, p.w, span, 4);
    gradcheck("conv dx", conv_loss, &p, p.x, dx, 0, TOLERANCE);
    gradcheck("conv dw", conv_loss, &p, p.w, dw, 0, TOLERANCE);
    guarded_release();
}

/* A sequence cut anywhere, its tail handed on, gives the same outputs and the same last tail. */
static void conv_is_the_same_in_pieces(void **state) {
    (void)state;
    enum { N = 9 };
    hh_tensor x = guarded_2d(HH_DTYPE_REAL, N, H, 0), w = guarded_2d(HH_DTYPE_REAL, H, 4, 0);
    fill_normal(x, 1, 1.0), fill_normal(w, 2, 1.0);
    hh_tensor whole = guarded_2d(HH_DTYPE_REAL, N, H, 0), tail = guarded_2d(HH_DTYPE_REAL, 3, H, 0);
    fill_value(tail, 0.0);
    be->ops->conv_fwd(be, whole, x, w, &tail, &(hh_span){0, N, 0}, 1);
    for (int64_t cut = 0; cut <= N; cut++) {
        hh_tensor y = guarded_2d(HH_DTYPE_REAL, N, H, 1), t = guarded_2d(HH_DTYPE_REAL, 3, H, 2);
        fill_value(t, 0.0);
        be->ops->conv_fwd(be, y, x, w, &t, &(hh_span){0, cut, 0}, 1);
        be->ops->conv_fwd(be, y, x, w, &t, &(hh_span){cut, N, cut}, 1);
        check_close(y, whole, 0.0, "conv in two pieces");
        check_close(t, tail, 0.0, "the tail of conv in two pieces");
    }
    guarded_release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_gradients),
        cmocka_unit_test(l2norm_gradients),
        cmocka_unit_test(headnorm_gradients),
        cmocka_unit_test(head_weight_gradients),
        cmocka_unit_test(gates_gradients),
        cmocka_unit_test(activation_gradients),
        cmocka_unit_test(rope_turns_and_turns_back),
        cmocka_unit_test(conv_gradients),
        cmocka_unit_test(conv_is_the_same_in_pieces),
    };
    be = open_backend("reference", 1);
    int failed = cmocka_run_group_tests_name("row ops in double", tests, NULL, NULL);
    hh_backend_close(be);
    return failed;
}
