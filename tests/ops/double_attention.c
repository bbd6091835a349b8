/* Softmax attention in double: against the definition, gradients, caches, packed spans. */
#include "support/gradcheck.h"

#include "ops/attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { T = 13, HQ = 5, G = 3, D = 6 };

/* Unequal groups; KV head 1 has no reader. */
static const int32_t kv_of_q[HQ] = {0, 2, 2, 0, 2};
static const hh_span packed[4] = {{0, 1, 0}, {1, 1, 0}, {1, 9, 0}, {9, T, 0}};

static hh_backend *be;

static hh_tensor heads(int64_t rows, int64_t n, uint64_t seed) {
    hh_tensor t = guarded_3d(HH_DTYPE_REAL, rows, n, D, 5);
    if (seed) fill_normal(t, seed, 1.0);
    return t;
}

typedef struct problem {
    hh_tensor q, k, v, o, lse, do_;
    double base;
} problem;

static void run(const problem *p, const hh_span *span, int64_t n_spans) {
    hh_kv kv[4];
    for (int64_t s = 0; s < n_spans; s++)
        kv[s] = (hh_kv){hh_tensor_rows(p->k, span[s].lo, span[s].hi), hh_tensor_rows(p->v, span[s].lo, span[s].hi)};
    be->ops->attention_fwd(be, p->o, p->lse, p->q, kv, span, n_spans, kv_of_q, p->base);
}

static problem make(double base) {
    problem p = {.q = heads(T, HQ, 1),
                 .k = heads(T, G, 2),
                 .v = heads(T, G, 3),
                 .o = heads(T, HQ, 0),
                 .lse = guarded_2d(HH_DTYPE_REAL, T, HQ, 2),
                 .do_ = heads(T, HQ, 4),
                 .base = base};
    run(&p, packed, 4);
    return p;
}

static void equals_the_definition(void **state) {
    (void)state;
    problem p = make(20.0);
    for (int64_t s = 0; s < 4; s++)
        for (int64_t t = packed[s].lo; t < packed[s].hi; t++)
            for (int64_t h = 0; h < HQ; h++) {
                const double scale = log((double)(t - packed[s].lo) + 20) / log(20) / sqrt(D);
                double weight[T], sum = 0;
                for (int64_t j = packed[s].lo; j <= t; j++) {
                    double z = 0;
                    for (int64_t d = 0; d < D; d++) z += hh_row(p.q, t)[h * D + d] * hh_row(p.k, j)[kv_of_q[h] * D + d];
                    sum += weight[j] = exp(scale * z);
                }
                assert_true(fabs(hh_row(p.lse, t)[h] - log(sum)) < 1e-13);
                for (int64_t d = 0; d < D; d++) {
                    double o = 0;
                    for (int64_t j = packed[s].lo; j <= t; j++)
                        o += weight[j] / sum * hh_row(p.v, j)[kv_of_q[h] * D + d];
                    assert_true(fabs(hh_row(p.o, t)[h * D + d] - o) < 1e-13);
                }
            }
    guarded_release();
}

static double loss(void *context) {
    problem *p = context;
    run(p, packed, 4);
    return tensor_dot(p->o, p->do_);
}

static void gradients(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        problem p = make(i ? 20.0 : 0.0f);
        hh_tensor dq = heads(T, HQ, 0), dk = heads(T, G, 0), dv = heads(T, G, 0);
        be->ops->attention_bwd(be, dq, dk, dv, p.do_, p.q, p.k, p.v, p.o, p.lse, packed, 4, kv_of_q, p.base);
        gradcheck("attention dq", loss, &p, p.q, dq, 0, 1e-10);
        gradcheck("attention dk", loss, &p, p.k, dk, 0, 1e-10);
        gradcheck("attention dv", loss, &p, p.v, dv, 0, 1e-10);
        guarded_release();
    }
}

/* Rows [lo, hi) of a longer sequence against a cache that holds all its keys: the same as in one pass. */
static void pieces_equal_one_pass(void **state) {
    (void)state;
    problem p = make(20.0);
    const hh_span whole = {0, T, 0};
    run(&p, &whole, 1);
    for (int64_t cut = 1; cut < T; cut++) {
        hh_tensor o = heads(T, HQ, 0);
        const hh_kv kv[2] = {{p.k, p.v}, {p.k, p.v}};
        const hh_span span[2] = {{0, cut, 0}, {cut, T, cut}};
        be->ops->attention_fwd(be, o, HH_NONE, p.q, kv, span, 2, kv_of_q, 20.0);
        check_close(o, p.o, 0.0, "attention in two pieces");
    }
    guarded_release();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_the_definition), cmocka_unit_test(gradients),
                                       cmocka_unit_test(pieces_equal_one_pass)};
    be = open_backend("reference", 1);
    int failed = cmocka_run_group_tests_name("attention in double", tests, NULL, NULL);
    hh_backend_close(be);
    return failed;
}
