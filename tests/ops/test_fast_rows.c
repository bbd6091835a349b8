/* The fast versions of the row ops against the reference: odd widths, strided rows, in place, few and many rows. */
#include "support/gradcheck.h"

#include "ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define TOLERANCE 1e-5 /* sums over thousands of rows in float */

static hh_backend *both[2]; /* reference, fast */

typedef struct shape {
    int64_t T, H, D;
} shape;
static const shape shapes[] = {{1, 1, 2}, {3, 2, 6}, {7, 3, 32}, {65, 5, 40}, {700, 9, 64}, {2, 17, 130}};

static hh_tensor heads(shape s, uint64_t seed) {
    hh_tensor t = guarded_3d(HH_DTYPE_REAL, s.T, s.H, s.D, 3);
    if (seed) fill_normal(t, seed, 1.5);
    return t;
}
static hh_tensor matrix(shape s, uint64_t seed) {
    hh_tensor t = guarded_2d(HH_DTYPE_REAL, s.T, s.H, 5);
    if (seed) fill_normal(t, seed, 1.5);
    return t;
}
static hh_tensor vector(int64_t n, uint64_t seed) {
    hh_tensor t = guarded_1d(HH_DTYPE_REAL, n);
    fill_normal(t, seed, 1.0);
    return t;
}

/* Runs `body` for both backends at every shape; body puts its outputs into out, which are then compared. */
enum { MAX_OUT = 5 };
typedef int body_fn(hh_backend *be, shape s, hh_tensor *out);

static void compare(body_fn *body, const char *what) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        hh_tensor out[2][MAX_OUT];
        int n = 0;
        for (int b = 0; b < 2; b++) {
            n = body(both[b], shapes[i], out[b]);
            assert_int_equal(both[b]->scratch.used, 0);
        }
        for (int o = 0; o < n; o++) check_close(out[1][o], out[0][o], TOLERANCE, what);
        guarded_release();
    }
}

static int rmsnorm(hh_backend *be, shape s, hh_tensor *out) {
    hh_tensor x = heads(s, 1), w = vector(s.D, 2), y = heads(s, 0), r = matrix(s, 0);
    be->ops->rmsnorm_fwd(be, y, r, x, w, 1e-5);
    hh_tensor dx = heads(s, 4), dw = vector(s.D, 5), in_place = heads(s, 3);
    be->ops->rmsnorm_bwd(be, dx, dw, in_place, x, w, r, true);
    be->ops->rmsnorm_bwd(be, in_place, HH_NONE, in_place, x, HH_NONE, r, false);
    out[0] = y, out[1] = r, out[2] = dx, out[3] = dw, out[4] = in_place;
    return 5;
}

static int rmsnorm_of_a_stream(hh_backend *be, shape s, hh_tensor *out) {
    hh_tensor x = guarded_2d(HH_DTYPE_REAL, s.T, s.H * s.D, 0), r = guarded_1d(HH_DTYPE_REAL, s.T),
              w = vector(s.H * s.D, 2);
    fill_normal(x, 1, 2.0);
    be->ops->rmsnorm_fwd(be, x, r, x, w, 1e-6);
    out[0] = x, out[1] = r;
    return 2;
}

static int l2norm(hh_backend *be, shape s, hh_tensor *out) {
    hh_tensor x = heads(s, 1), y = heads(s, 0), r = matrix(s, 0), dx = heads(s, 3);
    be->ops->l2norm_fwd(be, y, r, x, 0.125);
    be->ops->l2norm_bwd(be, dx, dx, y, r, 0.125);
    out[0] = y, out[1] = r, out[2] = dx;
    return 3;
}

static int headnorm(hh_backend *be, shape s, hh_tensor *out) {
    hh_tensor o = heads(s, 1), gamma = vector(s.H, 2), weight = matrix(s, 6), y = heads(s, 0), r = matrix(s, 0);
    be->ops->headnorm_fwd(be, y, r, o, gamma, weight, 1e-5);
    hh_tensor do_ = heads(s, 0), dgamma = vector(s.H, 7), dweight = matrix(s, 0), dy = heads(s, 3);
    be->ops->headnorm_bwd(be, do_, dgamma, dweight, dy, o, gamma, weight, r);
    out[0] = y, out[1] = r, out[2] = do_, out[3] = dgamma, out[4] = dweight;
    return 5;
}

static int headnorm_plain(hh_backend *be, shape s, hh_tensor *out) {
    hh_tensor o = heads(s, 1), r = matrix(s, 0), dy = heads(s, 3), y = heads(s, 0);
    be->ops->headnorm_fwd(be, y, r, o, HH_NONE, HH_NONE, 1e-5);
    be->ops->headnorm_bwd(be, dy, HH_NONE, HH_NONE, dy, o, HH_NONE, HH_NONE, r);
    out[0] = y, out[1] = dy;
    return 2;
}

static int sigmoid_gate(hh_backend *be, shape s, hh_tensor *out) {
    hh_tensor x = heads(s, 1), z = heads(s, 2), dy = heads(s, 3), dz = heads(s, 0);
    fill_normal(z, 2, 20.0);
    be->ops->sigmoid_gate_bwd(be, dy, dz, dy, x, z);
    be->ops->sigmoid_gate_fwd(be, x, x, z);
    out[0] = x, out[1] = dy, out[2] = dz;
    return 3;
}

static int swiglu(hh_backend *be, shape s, hh_tensor *out) {
    hh_tensor gate = heads(s, 1), up = heads(s, 2), dy = heads(s, 3), y = heads(s, 0);
    be->ops->swiglu_fwd(be, y, gate, up);
    be->ops->swiglu_bwd(be, gate, up, dy, gate, up);
    out[0] = y, out[1] = gate, out[2] = up;
    return 3;
}

static int gates_from(hh_backend *be, shape s, hh_tensor *out, double spread) {
    hh_tensor a = matrix(s, 1), b = matrix(s, 2), A = vector(s.H, 3), dt = vector(s.H, 4), g = matrix(s, 0),
              beta = matrix(s, 0);
    fill_normal(a, 1, spread);
    be->ops->gdn_gates_fwd(be, g, beta, a, b, A, dt, 2.0);
    hh_tensor dg = matrix(s, 5), dbeta = matrix(s, 6), dA = vector(s.H, 7), ddt = vector(s.H, 8);
    be->ops->gdn_gates_bwd(be, dg, dbeta, dA, ddt, dg, dbeta, a, b, A, dt, 2.0);
    out[0] = g, out[1] = dg, out[2] = dbeta, out[3] = dA, out[4] = ddt;
    return 5;
}
static int gates(hh_backend *be, shape s, hh_tensor *out) {
    return gates_from(be, s, out, 1.0);
}
static int gates_in_the_tails(hh_backend *be, shape s, hh_tensor *out) {
    return gates_from(be, s, out, 30.0);
}

static int rope(hh_backend *be, shape s, hh_tensor *out) {
    hh_tensor x = heads(s, 1), y = heads(s, 2), cos = guarded_2d(HH_DTYPE_REAL, s.T, s.D / 2, 1),
              sin = guarded_2d(HH_DTYPE_REAL, s.T, s.D / 2, 2);
    double inv_freq[128];
    for (int64_t i = 0; i < s.D / 2; i++) inv_freq[i] = 1.0 / (double)(1 + i);
    be->ops->rope_table(be, cos, sin, inv_freq, 1.1, &(hh_span){0, s.T, 5}, 1);
    be->ops->rope(be, x, cos, sin, false);
    be->ops->rope(be, y, cos, sin, true);
    out[0] = x, out[1] = y;
    return 2;
}

static int head_weight(hh_backend *be, shape s, hh_tensor *out) {
    hh_tensor z = matrix(s, 1), w = matrix(s, 0), dw = matrix(s, 2);
    be->ops->head_weight_fwd(be, w, z);
    be->ops->head_weight_bwd(be, dw, dw, w);
    out[0] = w, out[1] = dw;
    return 2;
}

/* A first piece with a tail of zeros, an empty one, and the rest as a sequence that goes on. */
static int conv(hh_backend *be, shape s, hh_tensor *out) {
    const hh_span span[3] = {{0, s.T / 3, 0}, {s.T / 3, s.T / 3, 4}, {s.T / 3, s.T, 9}};
    const int64_t n = s.H * s.D;
    hh_tensor x = guarded_2d(HH_DTYPE_REAL, s.T, n, 3), y = guarded_2d(HH_DTYPE_REAL, s.T, n, 2),
              dx = guarded_2d(HH_DTYPE_REAL, s.T, n, 1);
    hh_tensor w = guarded_2d(HH_DTYPE_REAL, n, 4, 0), dw = guarded_2d(HH_DTYPE_REAL, n, 4, 0), tail[3];
    fill_normal(x, 1, 1.0), fill_normal(w, 2, 1.0), fill_normal(dw, 3, 1.0);
    for (int i = 0; i < 3; i++) {
        tail[i] = guarded_2d(HH_DTYPE_REAL, 3, n, 1);
        fill_normal(tail[i], (uint64_t)(4 + i), 1.0);
    }
    be->ops->conv_fwd(be, y, x, w, tail, span, 3);
    be->ops->conv_bwd(be, dx, dw, y, x, w, span, 3);
    out[0] = y, out[1] = dx, out[2] = dw, out[3] = tail[0], out[4] = tail[2];
    return 5;
}

static void rows_equal_the_reference(void **state) {
    (void)state;
    compare(rmsnorm, "rmsnorm");
    compare(rmsnorm_of_a_stream, "rmsnorm of a stream");
    compare(l2norm, "l2norm");
    compare(headnorm, "headnorm");
    compare(headnorm_plain, "headnorm without scales");
    compare(sigmoid_gate, "sigmoid gate");
    compare(swiglu, "swiglu");
    compare(gates, "gates");
    compare(gates_in_the_tails, "gates in the tails");
    compare(rope, "rope");
    compare(head_weight, "head weights");
    compare(conv, "conv");
}

static int run_all(const char *isa, int n_threads, const char *name) {
    both[1] = open_backend(isa, n_threads);
    if (!both[1]) return 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_equal_the_reference)};
    int failed = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    hh_backend_close(both[1]);
    return failed;
}

int main(void) {
    both[0] = open_backend("reference", 1);
    const int failed = run_every_isa(run_all, "row ops");
    hh_backend_close(both[0]);
    return failed;
}
