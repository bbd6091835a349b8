/* Gated DeltaNet in double: the recurrent oracle's gradients against differences, and the chunked form against the
 * oracle in everything: outputs, states, gradients, any cut, packed spans, extreme gates. */
#include "support/gradcheck.h"

#include "ops/gdn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

enum { H = 2, D = 5, MAX_SPANS = 80 };

static hh_backend *be;

/* One packed batch with everything that goes in and comes out. */
typedef struct problem {
    int64_t T, n_spans;
    const hh_span *span;
    hh_gdn_mode mode;
    hh_tensor q, k, v, g, beta, o, saved, do_;
    hh_tensor dq, dk, dv, dg, dbeta;
    hh_tensor start[MAX_SPANS], state[MAX_SPANS];   /* initial and final */
    hh_tensor dfinal[MAX_SPANS], dstate[MAX_SPANS]; /* gradient of the final and of the initial */
} problem;

static hh_tensor heads(int64_t T, uint64_t seed) {
    hh_tensor t = guarded_3d(HH_DTYPE_REAL, T, H, D, 3);
    if (seed) fill_normal(t, seed, 1.0);
    return t;
}

static hh_tensor gates(int64_t T) {
    return guarded_2d(HH_DTYPE_REAL, T, H, 1);
}

static hh_tensor state_of(uint64_t seed) {
    hh_tensor t = guarded_3d(HH_DTYPE_REAL, H, D, D, 0);
    fill_normal(t, seed, 0.5);
    return t;
}

static void assign(hh_tensor y, hh_tensor x) {
    for (int64_t i = 0, n = hh_tensor_count(x); i < n; i++) *tensor_at(y, i) = *tensor_at(x, i);
}

static void make_unit(hh_tensor k) {
    for (int64_t t = 0; t < k.dim[0]; t++)
        for (int64_t h = 0; h < H; h++) {
            hh_real *row = hh_row(k, t) + h * D;
            double sum = 1e-6;
            for (int64_t d = 0; d < D; d++) sum += row[d] * row[d];
            for (int64_t d = 0; d < D; d++) row[d] /= sqrt(sum);
        }
}

static problem make(int64_t T, const hh_span *span, int64_t n_spans, double decay, double strength) {
    problem p = {.T = T,
                 .n_spans = n_spans,
                 .span = span,
                 .q = heads(T, 1),
                 .k = heads(T, 2),
                 .v = heads(T, 3),
                 .g = gates(T),
                 .beta = gates(T),
                 .o = heads(T, 0),
                 .do_ = heads(T, 4),
                 .dq = heads(T, 0),
                 .dk = heads(T, 0),
                 .dv = heads(T, 0),
                 .dg = gates(T),
                 .dbeta = gates(T)};
    make_unit(p.k);
    fill_normal(p.g, 5, 1.0), fill_normal(p.beta, 6, 1.0);
    for (int64_t i = 0; i < T * H; i++) {
        *tensor_at(p.g, i) = -decay * (1 + 0.5 * tanh(*tensor_at(p.g, i)));
        *tensor_at(p.beta, i) = strength * (1 + 0.1 * tanh(*tensor_at(p.beta, i))) / 1.1;
    }
    int64_t chunks = hh_gdn_chunk_count(span, n_spans);
    p.saved = guarded_3d(HH_DTYPE_REAL, chunks, H, D * D, 0);
    for (int64_t s = 0; s < n_spans; s++) {
        p.start[s] = state_of(100 + (uint64_t)s), p.dfinal[s] = state_of(200 + (uint64_t)s);
        p.state[s] = state_of(1), p.dstate[s] = state_of(1);
    }
    return p;
}

static void forward(problem *p, hh_gdn_mode mode) {
    for (int64_t s = 0; s < p->n_spans; s++) assign(p->state[s], p->start[s]);
    be->ops->gdn_fwd(be, p->o, p->saved, p->q, p->k, p->v, p->g, p->beta, p->state, p->span, p->n_spans, mode);
}

static void backward(problem *p, hh_gdn_mode mode) {
    for (int64_t s = 0; s < p->n_spans; s++) assign(p->dstate[s], p->dfinal[s]);
    be->ops->gdn_bwd(be, p->dq, p->dk, p->dv, p->dg, p->dbeta, p->do_, p->saved, p->q, p->k, p->v, p->g, p->beta,
                     p->dstate, p->span, p->n_spans, mode);
}

static double loss(void *context) {
    problem *p = context;
    forward(p, p->mode);
    double sum = tensor_dot(p->o, p->do_);
    for (int64_t s = 0; s < p->n_spans; s++) sum += tensor_dot(p->state[s], p->dfinal[s]);
    return sum;
}

static void check_gradients(problem *p, hh_gdn_mode mode, int64_t samples, double decay_tolerance) {
    p->mode = mode;
    loss(p);
    backward(p, mode);
    gradcheck("gdn dq", loss, p, p->q, p->dq, samples, 1e-10);
    gradcheck("gdn dk", loss, p, p->k, p->dk, samples, 1e-10);
    gradcheck("gdn dv", loss, p, p->v, p->dv, samples, 1e-10);
    gradcheck("gdn dg", loss, p, p->g, p->dg, samples, decay_tolerance);
    gradcheck("gdn dbeta", loss, p, p->beta, p->dbeta, samples, 1e-10);
    for (int64_t s = 0; s < p->n_spans; s++)
        gradcheck("gdn dstate", loss, p, p->start[s], p->dstate[s], samples, decay_tolerance);
}

static void gradients_of_both_forms(void **state) {
    (void)state;
    const hh_span span[3] = {{0, 7, 0}, {7, 8, 0}, {8, 12, 0}};
    for (int mode = 0; mode < 2; mode++) {
        problem p = make(12, span, 3, 0.1, 0.8);
        check_gradients(&p, (hh_gdn_mode)mode, 0, 1e-10);
        guarded_release();
    }
    const hh_span long_span = {0, 70, 0};
    problem p = make(70, &long_span, 1, 0.1, 0.8);
    check_gradients(&p, HH_GDN_CHUNKED, 12, 1e-10);
    guarded_release();
}

/* Everything that `a` computed equals what `b` computed. */
static void check_equal(const problem *a, const problem *b, double tolerance, const char *what) {
    check_close(a->o, b->o, tolerance, what);
    check_close(a->dq, b->dq, tolerance, what), check_close(a->dk, b->dk, tolerance, what);
    check_close(a->dv, b->dv, tolerance, what), check_close(a->dg, b->dg, tolerance, what);
    check_close(a->dbeta, b->dbeta, tolerance, what);
    for (int64_t s = 0; s < a->n_spans; s++) {
        check_close(a->state[s], b->state[s], tolerance, what);
        check_close(a->dstate[s], b->dstate[s], tolerance, what);
    }
}

/* A second problem with the same inputs. */
static void compare_forms(problem *a, double tolerance, const char *what) {
    problem b = make(a->T, a->span, a->n_spans, 1, 1);
    assign(b.q, a->q), assign(b.k, a->k), assign(b.v, a->v), assign(b.g, a->g), assign(b.beta, a->beta);
    forward(a, HH_GDN_CHUNKED), backward(a, HH_GDN_CHUNKED);
    forward(&b, HH_GDN_RECURRENT), backward(&b, HH_GDN_RECURRENT);
    check_equal(a, &b, tolerance, what);
}

static void chunked_equals_recurrent(void **state) {
    (void)state;
    const int64_t lengths[] = {1, 2, 63, 64, 65, 130};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const hh_span span = {0, lengths[i], 0};
        problem p = make(lengths[i], &span, 1, 0.05, 0.9);
        compare_forms(&p, 2e-14, "chunked against recurrent");
        guarded_release();
    }
}

/* Decays from nothing to 20 a token (a chunk then sums to -1280), write strengths near 0 and near 2. */
static void extreme_gates(void **state) {
    (void)state;
    const double decays[] = {0, 1e-9, 2, 20}, strengths[] = {0, 1e-6, 1, 2};
    const hh_span span = {0, 70, 0};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            problem p = make(70, &span, 1, decays[i], strengths[j]);
            compare_forms(&p, 1e-12, "chunked against recurrent at extreme gates");
            guarded_release();
        }
    /* At 20 a token dg is 1e-6 of the loss, and the state hardly counts: differences resolve no more, the oracle above
     * does. */
    const double gradient_decays[] = {0, 20};
    for (int i = 0; i < 2; i++)
        for (int mode = 0; mode < 2; mode++) {
            const hh_span few = {0, 6, 0};
            problem p = make(6, &few, 1, gradient_decays[i], 1.9);
            check_gradients(&p, (hh_gdn_mode)mode, 0, i ? 1e-7 : 1e-10);
            guarded_release();
        }
}

/* g = 0: S = S (I - beta k k^T) + beta v k^T, the delta rule, written the other way round. */
static void no_decay_is_the_delta_rule(void **state) {
    (void)state;
    const hh_span span = {0, 100, 0};
    problem p = make(100, &span, 1, 0, 0.9);
    forward(&p, HH_GDN_CHUNKED);
    for (int64_t h = 0; h < H; h++) {
        double S[D][D]; /* [v][k] */
        for (int64_t a = 0; a < D; a++)
            for (int64_t b = 0; b < D; b++) S[b][a] = hh_row(p.start[0], h)[a * D + b];
        for (int64_t t = 0; t < 100; t++) {
            const hh_real *k = hh_row(p.k, t) + h * D, *v = hh_row(p.v, t) + h * D, *q = hh_row(p.q, t) + h * D;
            for (int64_t b = 0; b < D; b++) {
                double read = 0, out = 0;
                for (int64_t a = 0; a < D; a++) read += S[b][a] * k[a];
                for (int64_t a = 0; a < D; a++) S[b][a] += hh_row(p.beta, t)[h] * (v[b] - read) * k[a];
                for (int64_t a = 0; a < D; a++) out += S[b][a] * q[a];
                assert_true(fabs(out - hh_row(p.o, t)[h * D + b]) < 1e-12);
            }
        }
    }
    guarded_release();
}

static void zero_keys_leave_the_state_alone(void **state) {
    (void)state;
    const hh_span span = {0, 65, 0};
    problem p = make(65, &span, 1, 0.1, 1.0);
    fill_value(p.k, 0.0);
    compare_forms(&p, 1e-13, "zero keys");
    guarded_release();
    problem few = make(5, &(hh_span){0, 5, 0}, 1, 0.1, 1.0);
    fill_value(few.k, 0.0);
    check_gradients(&few, HH_GDN_CHUNKED, 0, 1e-10);
    guarded_release();
}

static hh_tensor rows(hh_tensor t, hh_span span) {
    return hh_tensor_rows(t, span.lo, span.hi);
}

/* One sequence, cut: every piece is a span of its own that starts from the state the piece before it left, forwards,
 * and from the state gradient of the piece behind it, backwards. */
static void run_in_pieces(problem *p, const hh_span *piece, int64_t n) {
    hh_tensor S = p->state[0], dS = p->dstate[0], saved[MAX_SPANS * 2];
    assign(S, p->start[0]), assign(dS, p->dfinal[0]);
    assert_true(n <= MAX_SPANS * 2);
    for (int64_t i = 0; i < n; i++) {
        const hh_span r = piece[i], own = {0, r.hi - r.lo, r.lo};
        saved[i] = guarded_3d(HH_DTYPE_REAL, hh_gdn_span_chunks(own), H, D * D, 0);
        be->ops->gdn_fwd(be, rows(p->o, r), saved[i], rows(p->q, r), rows(p->k, r), rows(p->v, r), rows(p->g, r),
                         rows(p->beta, r), &S, &own, 1, HH_GDN_CHUNKED);
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        const hh_span r = piece[i], own = {0, r.hi - r.lo, r.lo};
        be->ops->gdn_bwd(be, rows(p->dq, r), rows(p->dk, r), rows(p->dv, r), rows(p->dg, r), rows(p->dbeta, r),
                         rows(p->do_, r), saved[i], rows(p->q, r), rows(p->k, r), rows(p->v, r), rows(p->g, r),
                         rows(p->beta, r), &dS, &own, 1, HH_GDN_CHUNKED);
    }
}

static void any_cut_equals_one_pass(void **state) {
    (void)state;
    enum { N = 131 };
    const hh_span whole = {0, N, 0};
    for (int64_t cut = 0; cut <= N; cut++) {
        problem a = make(N, &whole, 1, 0.05, 0.9), b = make(N, &whole, 1, 0.05, 0.9);
        forward(&a, HH_GDN_CHUNKED), backward(&a, HH_GDN_CHUNKED);
        const hh_span two[2] = {{0, cut, 0}, {cut, N, cut}};
        run_in_pieces(&b, two, 2);
        check_equal(&b, &a, 1e-13, "cut in two");
        guarded_release();
    }
    const int64_t lengths[] = {1, 2, 3, 63, 64, 65};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        problem a = make(N, &whole, 1, 0.05, 0.9), b = make(N, &whole, 1, 0.05, 0.9);
        forward(&a, HH_GDN_CHUNKED), backward(&a, HH_GDN_CHUNKED);
        hh_span piece[N];
        int64_t n = 0;
        for (int64_t at = 0; at < N; at += lengths[i], n++)
            piece[n] = (hh_span){at, at + lengths[i] < N ? at + lengths[i] : N, at};
        run_in_pieces(&b, piece, n);
        check_equal(&b, &a, 1e-13, "pieces of one length");
        guarded_release();
    }
}

/* What a span computes does not depend on its neighbours: bit for bit the same as alone. */
static void packed_spans_do_not_leak(void **state) {
    (void)state;
    const hh_span span[5] = {{0, 0, 0}, {0, 66, 0}, {66, 67, 0}, {67, 67, 0}, {67, 150, 0}};
    problem p = make(150, span, 5, 0.1, 0.9);
    forward(&p, HH_GDN_CHUNKED), backward(&p, HH_GDN_CHUNKED);
    for (int64_t s = 0; s < 5; s++) {
        const hh_span r = span[s], own = {0, r.hi - r.lo, 0};
        problem a = make(own.hi, &own, 1, 0.1, 0.9);
        assign(a.q, rows(p.q, r)), assign(a.k, rows(p.k, r)), assign(a.v, rows(p.v, r)), assign(a.g, rows(p.g, r));
        assign(a.beta, rows(p.beta, r)), assign(a.do_, rows(p.do_, r));
        assign(a.start[0], p.start[s]), assign(a.dfinal[0], p.dfinal[s]);
        forward(&a, HH_GDN_CHUNKED), backward(&a, HH_GDN_CHUNKED);
        check_close(rows(p.o, r), a.o, 0, "packed o"), check_close(rows(p.dk, r), a.dk, 0, "packed dk");
        check_close(rows(p.dg, r), a.dg, 0, "packed dg"), check_close(p.state[s], a.state[0], 0, "packed state");
        check_close(p.dstate[s], a.dstate[0], 0, "packed dstate");
    }
    guarded_release();
}

static void slow_decay_stays_finite(void **state) {
    (void)state;
    enum { N = 100000 };
    const hh_span span = {0, N, 0};
    problem p = {.T = N,
                 .q = heads(N, 1),
                 .k = heads(N, 2),
                 .v = heads(N, 3),
                 .g = gates(N),
                 .beta = gates(N),
                 .o = heads(N, 0)};
    make_unit(p.k);
    fill_value(p.g, -1e-5), fill_value(p.beta, 1.99);
    be->ops->gdn_fwd(be, p.o, HH_NONE, p.q, p.k, p.v, p.g, p.beta, NULL, &span, 1, HH_GDN_CHUNKED);
    for (int64_t i = 0; i < hh_tensor_count(p.o); i++) assert_true(isfinite(*tensor_at(p.o, i)));
    guarded_release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_both_forms),
        cmocka_unit_test(chunked_equals_recurrent),
        cmocka_unit_test(extreme_gates),
        cmocka_unit_test(no_decay_is_the_delta_rule),
        cmocka_unit_test(zero_keys_leave_the_state_alone),
        cmocka_unit_test(any_cut_equals_one_pass),
        cmocka_unit_test(packed_spans_do_not_leak),
        cmocka_unit_test(slow_decay_stays_finite),
    };
    be = open_backend("reference", 1);
    int failed = cmocka_run_group_tests_name("gated delta rule in double", tests, NULL, NULL);
    hh_backend_close(be);
    return failed;
}
