/* Gated DeltaNet's backward on the GPU against the CPU's: widths, lengths, packed spans, decays and write strengths at
 * their extremes, repeated and zero keys, strides, and the same bits twice. */
#include "cuda/twin.h"
#include "ops/gdn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { MAX_SPANS = 8 };

extern int64_t hh_gdn_bwd_window; /* ops/cuda/gdn_bwd.cuh */

typedef enum keys { KEYS_RANDOM, KEYS_REPEATED, KEYS_SOME_ZERO } keys;

typedef struct problem {
    int64_t heads, D, pad, n_spans;
    hh_span span[MAX_SPANS];
    double decay, strength;
    keys keys;
    bool dstate;
} problem;

/* Packed spans of these lengths. */
static problem packed(int64_t heads, int64_t D, int64_t n_spans, const int64_t *length) {
    problem p = {.heads = heads, .D = D, .n_spans = n_spans, .decay = 0.05, .strength = 0.9, .dstate = true};
    for (int64_t s = 0, at = 0; s < n_spans; at += length[s], s++) p.span[s] = (hh_span){at, at + length[s], 0};
    return p;
}

typedef struct tensors {
    int64_t T, chunks;
    both q, k, v, do_, g, beta, saved, dq, dk, dv, dg, dbeta, dstate[MAX_SPANS];
} tensors;

static void scale_head(hh_real *x, int64_t D, double length) {
    double sum = 0;
    for (int64_t d = 0; d < D; d++) sum += (double)x[d] * (double)x[d];
    for (int64_t d = 0; d < D; d++) x[d] = (hh_real)((double)x[d] * length / sqrt(sum));
}

static void shape_inputs(const tensors *t, const problem *p) {
    for (int64_t i = 0; i < t->T; i++)
        for (int64_t h = 0; h < p->heads; h++) {
            hh_real *k = hh_row(t->k.cpu, i) + h * p->D;
            if (p->keys == KEYS_REPEATED && i) memcpy(k, k - t->k.cpu.stride, (size_t)p->D * sizeof *k);
            scale_head(k, p->D, 1);
            if (p->keys == KEYS_SOME_ZERO && i % 5 < 3) memset(k, 0, (size_t)p->D * sizeof *k);
            scale_head(hh_row(t->q.cpu, i) + h * p->D, p->D, 1 / sqrt((double)p->D));
            hh_real *g = hh_row(t->g.cpu, i) + h, *beta = hh_row(t->beta.cpu, i) + h;
            *g = (hh_real)(-p->decay * (1 + 0.5 * tanh((double)*g)));
            *beta = (hh_real)(p->strength * (1 + 0.1 * tanh((double)*beta)) / 1.1);
        }
    twin_upload(t->q), twin_upload(t->k), twin_upload(t->g), twin_upload(t->beta);
}

static tensors make(const problem *p) {
    tensors t = {.T = p->span[p->n_spans - 1].hi, .chunks = hh_gdn_chunk_count(p->span, p->n_spans)};
    const int64_t T = t.T, H = p->heads, D = p->D;
    both *wide[] = {&t.q, &t.k, &t.v, &t.do_, &t.dq, &t.dk, &t.dv};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) *wide[i] = twin_act(3, T, H, D, p->pad);
    both *narrow[] = {&t.g, &t.beta, &t.dg, &t.dbeta};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        *narrow[i] = twin_tensor(HH_DTYPE_F32, 2, T, H, 1, p->pad ? 1 : 0, 1, 0);
    shape_inputs(&t, p);
    t.saved = twin_act(3, t.chunks, H, D * D, 0);
    both o = twin_act(3, T, H, D, 0);
    hh_tensor start[MAX_SPANS];
    for (int64_t s = 0; s < p->n_spans; s++) {
        start[s] = twin_real(3, H, D, D, 0.3, 0).cpu;
        t.dstate[s] = twin_real(3, H, D, D, 0.3, 0);
    }
    tw.cpu->ops->gdn_fwd(tw.cpu, o.cpu, t.saved.cpu, t.q.cpu, t.k.cpu, t.v.cpu, t.g.cpu, t.beta.cpu, start, p->span,
                         p->n_spans, HH_GDN_CHUNKED);
    twin_upload(t.saved);
    return t;
}

static void run_on_gpu(const tensors *t, const problem *p, hh_gdn_mode mode) {
    hh_tensor dstate[MAX_SPANS];
    for (int64_t s = 0; s < p->n_spans; s++) dstate[s] = t->dstate[s].gpu;
    tw.gpu->ops->gdn_bwd(tw.gpu, t->dq.gpu, t->dk.gpu, t->dv.gpu, t->dg.gpu, t->dbeta.gpu, t->do_.gpu, t->saved.gpu,
                         t->q.gpu, t->k.gpu, t->v.gpu, t->g.gpu, t->beta.gpu, p->dstate ? dstate : NULL, p->span,
                         p->n_spans, mode);
}

static void run_on_cpu(const tensors *t, const problem *p, hh_gdn_mode mode) {
    hh_tensor dstate[MAX_SPANS];
    for (int64_t s = 0; s < p->n_spans; s++) dstate[s] = t->dstate[s].cpu;
    tw.cpu->ops->gdn_bwd(tw.cpu, t->dq.cpu, t->dk.cpu, t->dv.cpu, t->dg.cpu, t->dbeta.cpu, t->do_.cpu, t->saved.cpu,
                         t->q.cpu, t->k.cpu, t->v.cpu, t->g.cpu, t->beta.cpu, p->dstate ? dstate : NULL, p->span,
                         p->n_spans, mode);
}

#define assert_close_to_cpu(b, tolerance, what)                                                                        \
    do {                                                                                                               \
        double e = twin_error(b);                                                                                      \
        if (!(e <= (tolerance)))                                                                                       \
            fail_msg("%s, width %d: %s is %.3g away from the CPU's, %.3g allowed", what, (int)p.D, #b, e,              \
                     (double)(tolerance));                                                                             \
    } while (0)

static void compare(problem p, double tolerance, const char *what) {
    tensors t = make(&p);
    run_on_gpu(&t, &p, HH_GDN_CHUNKED);
    run_on_cpu(&t, &p, HH_GDN_RECURRENT);
    assert_close_to_cpu(t.dq, tolerance, what);
    assert_close_to_cpu(t.dk, tolerance, what);
    assert_close_to_cpu(t.dv, tolerance, what);
    assert_close_to_cpu(t.dg, tolerance, what);
    assert_close_to_cpu(t.dbeta, tolerance, what);
    for (int64_t s = 0; s < p.n_spans && p.dstate; s++) assert_close_to_cpu(t.dstate[s], tolerance, what);
    twin_reset();
}

static double mild(void) {
    return tw.gpu->activation == HH_DTYPE_BF16 ? 1.5e-2 : 1e-5;
}

static const hh_precision precisions[] = {HH_PRECISION_AUTO, HH_PRECISION_F32};

static void widths_and_packed_spans(void **unused) {
    (void)unused;
    const int64_t D[] = {5, 16, 32, 64, 96, 128, 200, 256}, length[] = {0, 1, 65, 63, 64, 130};
    for (int i = 0; i < 2; i++) {
        if (!twin_open(precisions[i])) skip();
        for (size_t w = 0; w < sizeof D / sizeof *D; w++) {
            if (quick() && (D[w] % 32 || D[w] > (i ? 64 : 128))) continue;
            compare(packed(at_most(2, 1), D[w], at_most(6, 3), length), mild(), "some width");
        }
        twin_close();
    }
}

static void lengths(void **unused) {
    (void)unused;
    const int64_t T[] = {1, 2, 15, 16, 17, 48, 63, 64, 65, 127, 129};
    for (int i = 0; i < 2; i++) {
        if (!twin_open(precisions[i])) skip();
        for (size_t n = 0; n < sizeof T / sizeof *T; n += quick() ? 3 : 1)
            for (int64_t D = 64; D <= at_most(128, i ? 64 : 128); D += 64)
                compare(packed(at_most(3, 1), D, 1, &T[n]), mild(), "some length");
        twin_close();
    }
}

/* A sequence long enough to be cut into windows that run at once, beside short ones; quick: it is cut all the same. */
static void a_long_sequence(void **unused) {
    (void)unused;
    const int64_t length[] = {70, at_most(9000, 450), 1};
    hh_gdn_bwd_window = quick() ? 3 : 0;
    const double decay[] = {1e-3, 1};
    for (int i = 0; i < at_most(2, 1); i++) {
        if (!twin_open(precisions[i])) skip();
        for (int d = 0; d < at_most(2, 1); d++) {
            problem p = packed(1, 64, 3, length);
            p.decay = decay[d];
            compare(p, mild(), "a long sequence");
            p.D = 128, p.dstate = false;
            compare(p, mild(), "a long sequence without a gradient of its state");
        }
        twin_close();
    }
    hh_gdn_bwd_window = 0;
}

/* Near a decay of -20 a token what reaches g is e^-20 of what reaches the rest: relative error all the same. */
static void extreme_gates(void **unused) {
    (void)unused;
    const double decays[] = {0, 1e-6, 2, 20}, strengths[] = {0, 1e-4, 1, 2};
    const int64_t length[] = {100, 64};
    for (int i = 0; i < 2; i++) {
        if (!twin_open(precisions[i])) skip();
        for (int d = 0; d < 4; d += quick() ? 3 : 1)
            for (int b = quick() ? 3 : 0; b < 4; b++)
                for (int64_t D = 64; D <= 128; D += 64) {
                    problem p = packed(1, D, 2, length);
                    p.decay = decays[d], p.strength = strengths[b];
                    compare(p, tw.gpu->activation == HH_DTYPE_BF16 ? 2e-2 : 2e-4, "extreme gates");
                }
        twin_close();
    }
}

/* One key a whole chunk through, written with a strength of 2, makes what bf16 rounds alternate in sign and grow. */
static void repeated_and_zero_keys(void **unused) {
    (void)unused;
    const double strengths[] = {0.9, 2};
    const int64_t length[] = {100, 64};
    for (int i = 0; i < 2; i++) {
        if (!twin_open(precisions[i])) skip();
        for (int kind = KEYS_REPEATED; kind <= KEYS_SOME_ZERO; kind++)
            for (int b = quick() ? 1 : 0; b < 2; b++)
                for (int64_t D = 64; D <= 128; D += 64) {
                    problem p = packed(at_most(2, 1), D, 2, length);
                    p.keys = (keys)kind, p.strength = strengths[b];
                    compare(p,
                            tw.gpu->activation == HH_DTYPE_F32 ? 2e-4
                            : kind == KEYS_REPEATED            ? 1e-1
                                                               : 2e-2,
                            "repeated and zero keys");
                }
        twin_close();
    }
}

/* Rows further apart than dense, by amounts that keep 16-byte alignment and that do not. */
static void strides(void **unused) {
    (void)unused;
    const int64_t pad[] = {8, 3}, length[] = {65, 1, 40};
    for (int i = 0; i < 2; i++) {
        if (!twin_open(precisions[i])) skip();
        for (int s = 0; s < 2; s++)
            for (int64_t D = 32; D <= 128; D *= 2) {
                problem p = packed(3, D, 3, length);
                p.pad = pad[s];
                compare(p, mild(), "rows apart");
            }
        twin_close();
    }
}

static void token_by_token_is_the_same_gradient(void **unused) {
    (void)unused;
    const int64_t length[] = {1, 1, 70};
    for (int i = 0; i < 2; i++) {
        if (!twin_open(precisions[i])) skip();
        problem p = packed(2, 64, 3, length);
        tensors t = make(&p);
        run_on_gpu(&t, &p, HH_GDN_RECURRENT);
        run_on_cpu(&t, &p, HH_GDN_RECURRENT);
        assert_close_to_cpu(t.dk, mild(), "token by token");
        assert_close_to_cpu(t.dg, mild(), "token by token");
        assert_close_to_cpu(t.dstate[2], mild(), "token by token");
        twin_close();
    }
}

static void *bytes_of(hh_tensor t) {
    const size_t bytes = hh_dtype_bytes(t.dtype, t.dim[0] * t.stride);
    void *copy = hh_arena_alloc(&tw.host, bytes);
    tw.gpu->to_host(tw.gpu, copy, t.data, bytes);
    return copy;
}

static void two_runs_give_the_same_bits(void **unused) {
    (void)unused;
    const int64_t length[] = {at_most(9000, 300), at_most(200, 30)};
    if (!twin_open(HH_PRECISION_AUTO)) skip();
    hh_gdn_bwd_window = quick() ? 2 : 0;
    for (int64_t D = 64; D <= 128; D += 64) {
        problem p = packed(1, D, 2, length);
        tensors t = make(&p);
        const both out[] = {t.dq, t.dk, t.dv, t.dg, t.dbeta, t.dstate[0], t.dstate[1]};
        enum { N = sizeof out / sizeof *out };
        void *first[N];
        run_on_gpu(&t, &p, HH_GDN_CHUNKED);
        for (int i = 0; i < N; i++) first[i] = bytes_of(out[i].gpu);
        twin_upload(t.dstate[0]), twin_upload(t.dstate[1]);
        run_on_gpu(&t, &p, HH_GDN_CHUNKED);
        for (int i = 0; i < N; i++)
            assert_memory_equal(first[i], bytes_of(out[i].gpu),
                                hh_dtype_bytes(out[i].gpu.dtype, out[i].gpu.dim[0] * out[i].gpu.stride));
        twin_reset();
    }
    hh_gdn_bwd_window = 0;
    twin_close();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widths_and_packed_spans),
        cmocka_unit_test(lengths),
        cmocka_unit_test(a_long_sequence),
        cmocka_unit_test(extreme_gates),
        cmocka_unit_test(repeated_and_zero_keys),
        cmocka_unit_test(strides),
        cmocka_unit_test(token_by_token_is_the_same_gradient),
        cmocka_unit_test(two_runs_give_the_same_bits),
    };
    return cmocka_run_group_tests_name("cuda gated delta rule, backward", tests, NULL, NULL);
}
