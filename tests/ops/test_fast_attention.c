/* The fast attention kernels against the reference: widths, groups, packed spans, caches of every type, single tokens.
 */
#include "support/gradcheck.h"

#include "ops/attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static hh_backend *reference, *fast;

enum { MAX_SPANS = 6 };

typedef struct problem {
    int64_t T, Hq, G, D, n_spans;
    hh_span span[MAX_SPANS];
    int32_t kv_of_q[16];
    hh_kv kv[MAX_SPANS];
    hh_tensor q, k, v;
    double base;
} problem;

/* Unequal groups; with more than two KV heads, head 1 has no reader. */
static problem make(int64_t Hq, int64_t G, int64_t D, const hh_span *span, int64_t n_spans) {
    problem p = {.T = span[n_spans - 1].hi, .Hq = Hq, .G = G, .D = D, .n_spans = n_spans, .base = 30};
    memcpy(p.span, span, sizeof *span * (size_t)n_spans);
    for (int64_t h = 0; h < Hq; h++) p.kv_of_q[h] = (int32_t)(h * h % G == 1 && G > 2 ? 0 : h * h % G);
    p.q = guarded_3d(HH_DTYPE_REAL, p.T, Hq, D, 3);
    fill_normal(p.q, 1, 1.5);
    return p;
}

/* A cache of its own for every span, longer than need be. */
static void make_caches(problem *p, hh_dtype type) {
    for (int64_t s = 0; s < p->n_spans; s++) {
        if (p->span[s].lo == p->span[s].hi) continue; /* nobody reads the cache of an empty span */
        const int64_t n = p->span[s].pos + p->span[s].hi - p->span[s].lo + 3;
        const int64_t gap = hh_dtype_is_quantised(type) ? 0 : 5;
        p->kv[s].k = guarded_3d(type, n, p->G, p->D, gap), p->kv[s].v = guarded_3d(type, n, p->G, p->D, gap);
        fill_quantised(p->kv[s].k, 10 + (uint64_t)s, 1.0), fill_quantised(p->kv[s].v, 20 + (uint64_t)s, 1.0);
    }
}

/* Without the log-sum-exp of a backward, products may be of integers of 14 bits. */
static void compare_once(problem *p, bool inference, const char *what) {
    hh_tensor o[2], lse[2];
    for (int i = 0; i < 2; i++) {
        hh_backend *be = i ? fast : reference;
        o[i] = guarded_3d(HH_DTYPE_REAL, p->T, p->Hq, p->D, 2), lse[i] = guarded_2d(HH_DTYPE_REAL, p->T, p->Hq, 1);
        be->ops->attention_fwd(be, o[i], inference ? HH_NONE : lse[i], p->q, p->kv, p->span, p->n_spans, p->kv_of_q,
                               p->base);
        assert_int_equal(be->scratch.used, 0);
    }
    check_close(o[1], o[0], inference && fast->precision != HH_PRECISION_F32 ? 5e-4 : 1e-5, what);
    if (!inference) check_close(lse[1], lse[0], 1e-5, what);
}

/* As tokens of a prompt, and as tokens being decoded. */
static void compare(problem *p, const char *what) {
    compare_once(p, false, what);
    compare_once(p, true, what);
    fast->precision = HH_PRECISION_F32;
    compare_once(p, true, what);
    fast->precision = HH_PRECISION_AUTO;
    fast->decoding = true;
    compare_once(p, false, what);
    compare_once(p, true, what);
    fast->decoding = false;
    guarded_release();
}

static void widths_and_groups(void **state) {
    (void)state;
    const hh_span span[5] = {{0, 0, 9}, {0, 1, 0}, {1, 40, 0}, {40, 55, 130}, {55, 260, 7}};
    const int64_t D[] = {5, 32, 40, 64, 96, 128};
    for (size_t i = 0; i < sizeof D / sizeof *D; i++) {
        problem p = make(5, 3, D[i], span, 5);
        make_caches(&p, HH_DTYPE_REAL);
        compare(&p, "attention of some width");
    }
    for (int64_t heads = 1; heads <= 9; heads += 2) {
        problem p = make(heads, 1, 32, span, 5);
        p.base = 0;
        make_caches(&p, HH_DTYPE_REAL);
        compare(&p, "attention of some group");
    }
}

static void caches_of_every_type(void **state) {
    (void)state;
    const hh_dtype type[] = {HH_DTYPE_F32, HH_DTYPE_BF16, HH_DTYPE_F16, HH_DTYPE_Q8_0};
    const hh_span span[3] = {{0, 33, 100}, {33, 34, 200}, {34, 36, 0}};
    for (size_t i = 0; i < sizeof type / sizeof *type; i++) {
        problem p = make(4, 2, 64, span, 3);
        make_caches(&p, type[i]);
        compare(&p, hh_dtype_name(type[i]));
    }
}

/* Single tokens at short and long positions: pieces of the context are merged. */
static void single_tokens(void **state) {
    (void)state;
    const hh_span span[6] = {{0, 1, 0}, {1, 2, 6}, {2, 3, 511}, {3, 4, 512}, {4, 5, 1600}, {5, 6, 70}};
    const int64_t D[] = {20, 64, 128};
    for (size_t i = 0; i < sizeof D / sizeof *D; i++) {
        problem p = make(7, 3, D[i], span, 6);
        make_caches(&p, HH_DTYPE_REAL);
        compare(&p, "attention of single tokens");
    }
}

/* Large logits: nothing overflows, and the largest wins. */
static void large_logits(void **state) {
    (void)state;
    const hh_span span = {0, 70, 0};
    problem p = make(2, 1, 32, &span, 1);
    fill_normal(p.q, 3, 300.0);
    make_caches(&p, HH_DTYPE_REAL);
    hh_tensor o = guarded_3d(HH_DTYPE_REAL, 70, 2, 32, 0);
    fast->ops->attention_fwd(fast, o, HH_NONE, p.q, p.kv, p.span, 1, p.kv_of_q, p.base);
    for (int64_t i = 0; i < hh_tensor_count(o); i++) assert_true(isfinite(*tensor_at(o, i)));
    guarded_release();
}

/* Any cut into pieces gives the same bits, as do other numbers of threads; and whatever a cache holds behind a piece. */
static void pieces_give_the_same_bits(void **state) {
    (void)state;
    const int64_t D[] = {40, 64, 128};
    const hh_span whole = {0, 150, 0};
    for (size_t i = 0; i < sizeof D / sizeof *D; i++) {
        problem p = make(3, 1, D[i], &whole, 1);
        make_caches(&p, HH_DTYPE_REAL);
        hh_tensor once = guarded_3d(HH_DTYPE_REAL, 150, 3, D[i], 0);
        fast->ops->attention_fwd(fast, once, HH_NONE, p.q, p.kv, &whole, 1, p.kv_of_q, p.base);
        for (int64_t cut = 149; cut > 0; cut -= quick() ? 37 : 4) {
            hh_tensor o = guarded_3d(HH_DTYPE_REAL, 150, 3, D[i], 0);
            const hh_span two[2] = {{0, cut, 0}, {cut, 150, cut}};
            const hh_kv kv[2] = {p.kv[0], p.kv[0]};
            fast->ops->attention_fwd(fast, o, HH_NONE, p.q, kv, two, 2, p.kv_of_q, p.base);
            check_close(o, once, 0, "attention in two pieces");
        }
        for (int64_t cut = 149; cut > 0; cut -= quick() ? 37 : 7) {
            hh_tensor o = guarded_3d(HH_DTYPE_REAL, cut, 3, D[i], 0);
            fill_value(hh_tensor_rows(p.kv[0].k, cut, 153), NAN), fill_value(hh_tensor_rows(p.kv[0].v, cut, 153), NAN);
            const hh_span first = {0, cut, 0};
            fast->ops->attention_fwd(fast, o, HH_NONE, hh_tensor_rows(p.q, 0, cut), p.kv, &first, 1, p.kv_of_q, p.base);
            check_close(o, hh_tensor_rows(once, 0, cut), 0, "attention in front of numbers that are none");
        }
        guarded_release();
    }
}

/* Gradients of packed spans that start at position 0. */
static void compare_backward(problem *p, const char *what) {
    hh_tensor k = guarded_3d(HH_DTYPE_REAL, p->T, p->G, p->D, 5), v = guarded_3d(HH_DTYPE_REAL, p->T, p->G, p->D, 1);
    hh_tensor do_ = guarded_3d(HH_DTYPE_REAL, p->T, p->Hq, p->D, 2),
              o = guarded_3d(HH_DTYPE_REAL, p->T, p->Hq, p->D, 0);
    hh_tensor lse = guarded_2d(HH_DTYPE_REAL, p->T, p->Hq, 3), dq[2], dk[2], dv[2];
    fill_normal(k, 2, 1.0), fill_normal(v, 3, 1.0), fill_normal(do_, 4, 1.0);
    for (int64_t s = 0; s < p->n_spans; s++)
        p->kv[s] =
            (hh_kv){hh_tensor_rows(k, p->span[s].lo, p->span[s].hi), hh_tensor_rows(v, p->span[s].lo, p->span[s].hi)};
    reference->ops->attention_fwd(reference, o, lse, p->q, p->kv, p->span, p->n_spans, p->kv_of_q, p->base);
    for (int i = 0; i < 2; i++) {
        hh_backend *be = i ? fast : reference;
        dq[i] = guarded_3d(HH_DTYPE_REAL, p->T, p->Hq, p->D, 1), dk[i] = guarded_3d(HH_DTYPE_REAL, p->T, p->G, p->D, 2);
        dv[i] = guarded_3d(HH_DTYPE_REAL, p->T, p->G, p->D, 3);
        be->ops->attention_bwd(be, dq[i], dk[i], dv[i], do_, p->q, k, v, o, lse, p->span, p->n_spans, p->kv_of_q,
                               p->base);
        assert_int_equal(be->scratch.used, 0);
    }
    check_close(dq[1], dq[0], 1e-5, what), check_close(dk[1], dk[0], 1e-5, what), check_close(dv[1], dv[0], 1e-5, what);
    guarded_release();
}

static void gradients(void **state) {
    (void)state;
    const hh_span span[5] = {{0, 1, 0}, {1, 1, 0}, {1, 40, 0}, {40, 55, 0}, {55, 260, 0}};
    const int64_t D[] = {5, 32, 40, 64, 96, 128};
    for (size_t i = 0; i < sizeof D / sizeof *D; i++) {
        problem p = make(5, 3, D[i], span, 5);
        compare_backward(&p, "attention gradients of some width");
    }
    for (int64_t heads = 1; heads <= 9; heads += 4) {
        problem p = make(heads, 1, 32, &span[4], 1);
        p.T = 260, p.base = 0;
        p.span[0] = (hh_span){0, 260, 0};
        compare_backward(&p, "attention gradients of some group");
    }
}

static int run_all(const char *isa, int n_threads, const char *name) {
    fast = open_backend(isa, n_threads);
    if (!fast) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widths_and_groups), cmocka_unit_test(caches_of_every_type),
        cmocka_unit_test(single_tokens),     cmocka_unit_test(large_logits),
        cmocka_unit_test(gradients),         cmocka_unit_test(pieces_give_the_same_bits),
    };
    int failed = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    hh_backend_close(fast);
    return failed;
}

int main(void) {
    reference = open_backend("reference", 1);
    const int failed = run_every_isa(run_all, "attention");
    hh_backend_close(reference);
    return failed;
}
