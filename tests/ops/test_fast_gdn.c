/* The fast Gated DeltaNet against the reference's recurrent form: widths, lengths, packed spans, extreme gates, cuts.
 */
#include "support/gradcheck.h"

#include "ops/gdn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { MAX_SPANS = 5 };

static hh_backend *reference, *fast;

typedef struct inputs {
    int64_t T, H, D, n_spans;
    const hh_span *span;
    hh_tensor q, k, v, g, beta, do_, start[MAX_SPANS], dfinal[MAX_SPANS];
} inputs;

typedef struct outputs {
    hh_tensor o, saved, dq, dk, dv, dg, dbeta, state[MAX_SPANS], dstate[MAX_SPANS];
} outputs;

static hh_tensor heads(const inputs *p, uint64_t seed) {
    hh_tensor t = guarded_3d(HH_DTYPE_REAL, p->T, p->H, p->D, 3);
    if (seed) fill_normal(t, seed, 1.0);
    return t;
}
static hh_tensor gates(const inputs *p) {
    return guarded_2d(HH_DTYPE_REAL, p->T, p->H, 1);
}

static inputs make(int64_t H, int64_t D, const hh_span *span, int64_t n_spans, double decay, double strength) {
    inputs p = {.T = span[n_spans - 1].hi, .H = H, .D = D, .n_spans = n_spans, .span = span};
    p.q = heads(&p, 1), p.k = heads(&p, 2), p.v = heads(&p, 3), p.do_ = heads(&p, 4), p.g = gates(&p),
    p.beta = gates(&p);
    hh_tensor r = gates(&p);
    reference->ops->l2norm_fwd(reference, p.k, r, p.k, 1.0);
    reference->ops->l2norm_fwd(reference, p.q, r, p.q, 1.0);
    fill_normal(p.g, 5, 1.0), fill_normal(p.beta, 6, 1.0);
    for (int64_t i = 0; i < p.T * H; i++) {
        *tensor_at(p.g, i) = (hh_real)(-decay * (1 + 0.5 * tanh((double)*tensor_at(p.g, i))));
        *tensor_at(p.beta, i) = (hh_real)(strength * (1 + 0.1 * tanh((double)*tensor_at(p.beta, i))) / 1.1);
    }
    for (int64_t s = 0; s < n_spans; s++) {
        p.start[s] = guarded_3d(HH_DTYPE_REAL, H, D, D, 0), p.dfinal[s] = guarded_3d(HH_DTYPE_REAL, H, D, D, 0);
        fill_normal(p.start[s], 10 + (uint64_t)s, 0.3), fill_normal(p.dfinal[s], 20 + (uint64_t)s, 0.3);
    }
    return p;
}

static outputs run(hh_backend *be, const inputs *p, hh_gdn_mode mode) {
    outputs r = {
        .o = heads(p, 0), .dq = heads(p, 0), .dk = heads(p, 0), .dv = heads(p, 0), .dg = gates(p), .dbeta = gates(p)};
    r.saved = guarded_3d(HH_DTYPE_REAL, hh_gdn_chunk_count(p->span, p->n_spans), p->H, p->D * p->D, 0);
    for (int64_t s = 0; s < p->n_spans; s++)
        r.state[s] = guarded_copy(p->start[s]), r.dstate[s] = guarded_copy(p->dfinal[s]);
    be->ops->gdn_fwd(be, r.o, r.saved, p->q, p->k, p->v, p->g, p->beta, r.state, p->span, p->n_spans, mode);
    be->ops->gdn_bwd(be, r.dq, r.dk, r.dv, r.dg, r.dbeta, p->do_, r.saved, p->q, p->k, p->v, p->g, p->beta, r.dstate,
                     p->span, p->n_spans, mode);
    assert_int_equal(be->scratch.used, 0);
    return r;
}

static void compare(const inputs *p, double tolerance, const char *what) {
    outputs a = run(fast, p, HH_GDN_CHUNKED), b = run(reference, p, HH_GDN_RECURRENT);
    check_close(a.o, b.o, tolerance, what), check_close(a.saved, b.saved, tolerance, what);
    check_close(a.dq, b.dq, tolerance, what), check_close(a.dk, b.dk, tolerance, what);
    check_close(a.dv, b.dv, tolerance, what), check_close(a.dg, b.dg, tolerance, what);
    check_close(a.dbeta, b.dbeta, tolerance, what);
    for (int64_t s = 0; s < p->n_spans; s++) {
        check_close(a.state[s], b.state[s], tolerance, what);
        check_close(a.dstate[s], b.dstate[s], tolerance, what);
    }
    guarded_release();
}

static void widths_and_packed_spans(void **state) {
    (void)state;
    const hh_span span[5] = {{0, 0, 0}, {0, 1, 0}, {1, 70, 0}, {70, 133, 0}, {133, 261, 64}};
    const int64_t D[] = {5, 16, 32, 64, 96, 128};
    for (size_t i = 0; i < sizeof D / sizeof *D; i++) {
        inputs p = make(2, D[i], span, 5, 0.05, 0.9);
        compare(&p, 1e-5, "gdn of some width");
    }
}

static void lengths(void **state) {
    (void)state;
    const int64_t T[] = {1, 2, 3, 15, 16, 17, 31, 33, 47, 48, 63, 64, 65, 66, 127, 129};
    for (size_t i = 0; i < sizeof T / sizeof *T; i++) {
        const hh_span span = {0, T[i], 0};
        inputs p = make(3, 32, &span, 1, 0.05, 0.9);
        compare(&p, 1e-5, "gdn of some length");
    }
}

static void extreme_gates(void **state) {
    (void)state;
    const double decays[] = {0, 1e-6, 2, 20}, strengths[] = {0, 1e-4, 1, 2};
    const hh_span span = {0, 100, 0};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            inputs p = make(1, 32, &span, 1, decays[i], strengths[j]);
            compare(&p, 5e-5, "gdn with extreme gates");
        }
}

/* Single tokens and whole sequences in recurrent mode. */
static void recurrent_mode(void **state) {
    (void)state;
    const hh_span span[3] = {{0, 1, 9}, {1, 2, 3}, {2, 20, 0}};
    const int64_t D[] = {5, 32, 64, 96, 128};
    for (size_t i = 0; i < sizeof D / sizeof *D; i++) {
        inputs p = make(2, D[i], span, 3, 0.05, 0.9);
        hh_tensor o[2];
        for (int b = 0; b < 2; b++) {
            hh_backend *be = b ? fast : reference;
            hh_tensor S[3];
            for (int s = 0; s < 3; s++) S[s] = guarded_copy(p.start[s]);
            o[b] = heads(&p, 0);
            be->ops->gdn_fwd(be, o[b], HH_NONE, p.q, p.k, p.v, p.g, p.beta, S, span, 3, HH_GDN_RECURRENT);
        }
        check_close(o[1], o[0], 2e-6, "gdn token by token");
        guarded_release();
    }
}

/* A prefix cut at a multiple of 64 gives the same bits, also when one token follows. */
static void cuts_at_chunks_give_the_same_bits(void **state) {
    (void)state;
    for (int64_t T = 129; T <= 150; T += 21) {
        const hh_span whole = {0, T, 0};
        inputs p = make(2, 64, &whole, 1, 0.05, 0.9);
        hh_tensor S[2], o[2];
        for (int i = 0; i < 2; i++) {
            const hh_span piece[2] = {{0, i ? 128 : T, 0}, {128, T, 128}};
            S[i] = guarded_copy(p.start[0]), o[i] = heads(&p, 0);
            for (int s = 0; s <= i; s++)
                fast->ops->gdn_fwd(fast, o[i], HH_NONE, p.q, p.k, p.v, p.g, p.beta, &S[i], &piece[s], 1,
                                   HH_GDN_CHUNKED);
        }
        check_close(o[1], o[0], 0, "gdn cut at a chunk"), check_close(S[1], S[0], 0, "its state");
        guarded_release();
    }
}

static void slow_decay_stays_finite(void **state) {
    (void)state;
    const hh_span span = {0, quick() ? 10000 : 100000, 0};
    inputs p = make(1, 16, &span, 1, 1e-6, 1.99);
    hh_tensor o = heads(&p, 0);
    fast->ops->gdn_fwd(fast, o, HH_NONE, p.q, p.k, p.v, p.g, p.beta, NULL, &span, 1, HH_GDN_CHUNKED);
    for (int64_t i = 0; i < hh_tensor_count(o); i++) assert_true(isfinite(*tensor_at(o, i)));
    guarded_release();
}

static int run_all(const char *isa, int n_threads, const char *name) {
    fast = open_backend(isa, n_threads);
    if (!fast) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widths_and_packed_spans),
        cmocka_unit_test(lengths),
        cmocka_unit_test(extreme_gates),
        cmocka_unit_test(recurrent_mode),
        cmocka_unit_test(cuts_at_chunks_give_the_same_bits),
        cmocka_unit_test(slow_decay_stays_finite),
    };
    int failed = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    hh_backend_close(fast);
    return failed;
}

int main(void) {
    reference = open_backend("reference", 1);
    const int failed = run_every_isa(run_all, "gated delta rule");
    hh_backend_close(reference);
    return failed;
}
