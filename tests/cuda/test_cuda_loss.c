/* The two heads on the GPU: what the CPU computes, for any choice of outputs, targets and weights, and the same bits every
 * time. */
#include "cuda/twin.h"

static hh_precision precision;

/* One problem: a student's head and a teacher's. */
typedef struct problem {
    int64_t T, C, Ct, V;
    both x, xt, w, wt, dx, dw, nll, kl;
    hh_linear cpu[3], gpu[3]; /* w, wt, dw */
    int32_t *target, *argmax[2];
    float *weight;
} problem;

static hh_linear map_of(hh_tensor w) {
    hh_linear l = {.n_parts = 1, .n = w.dim[0], .k = w.dim[1]};
    l.part[0].w = w;
    return l;
}

/* A third of the targets are ignored, and half of the weights are 0. */
static problem make_problem(int64_t T, int64_t C, int64_t Ct, int64_t V, hh_dtype weights) {
    problem p = {.T = T, .C = C, .Ct = Ct, .V = V};
    p.x = twin_act(2, T, C, 0, 8);
    p.xt = twin_act(2, T, Ct, 0, 0);
    p.w = twin_tensor(weights, 2, V, C, 0, 0, 2 / sqrt((double)C), 0);
    p.wt = twin_tensor(HH_DTYPE_BF16, 2, V, Ct, 0, 0, 2 / sqrt((double)Ct), 0);
    p.dx = twin_act(2, T, C, 0, 8);
    p.dw = twin_real(2, V, C, 0, 1e-3, 0);
    p.nll = twin_real(1, T, 0, 0, 1, 0);
    p.kl = twin_real(1, T, 0, 0, 1, 0);
    both *of[3] = {&p.w, &p.wt, &p.dw};
    for (int i = 0; i < 3; i++) p.cpu[i] = map_of(of[i]->cpu), p.gpu[i] = map_of(of[i]->gpu);
    p.target = hh_arena_alloc(&tw.host, (size_t)T * sizeof *p.target);
    p.weight = hh_arena_alloc(&tw.host, (size_t)T * sizeof *p.weight);
    for (int i = 0; i < 2; i++) p.argmax[i] = hh_arena_alloc(&tw.host, (size_t)T * sizeof **p.argmax);
    for (int64_t t = 0; t < T; t++) {
        p.target[t] = hh_rng_below(&tw.rng, 3) ? (int32_t)hh_rng_below(&tw.rng, V) : -1;
        p.weight[t] = hh_rng_below(&tw.rng, 2) ? (float)(0.5 + hh_rng_uniform(&tw.rng)) : 0;
    }
    return p;
}

static void ce(problem *p, bool argmax, bool nll, bool dx, bool dw, const int32_t *target, double scale) {
    tw.cpu->ops->ce_head(tw.cpu, nll ? p->nll.cpu : HH_NONE, argmax ? p->argmax[0] : NULL, dx ? p->dx.cpu : HH_NONE,
                         dw ? &p->cpu[2] : NULL, p->x.cpu, &p->cpu[0], target, scale);
    tw.gpu->ops->ce_head(tw.gpu, nll ? p->nll.gpu : HH_NONE, argmax ? p->argmax[1] : NULL, dx ? p->dx.gpu : HH_NONE,
                         dw ? &p->gpu[2] : NULL, p->x.gpu, &p->gpu[0], target, scale);
}

static void kl(problem *p, bool nll, bool dx, bool dw, const int32_t *target, const float *weight, double scale,
               double ce_weight) {
    tw.cpu->ops->kl_head(tw.cpu, p->kl.cpu, nll ? p->nll.cpu : HH_NONE, dx ? p->dx.cpu : HH_NONE,
                         dw ? &p->cpu[2] : NULL, p->x.cpu, &p->cpu[0], p->xt.cpu, &p->cpu[1], target, weight, scale,
                         ce_weight);
    tw.gpu->ops->kl_head(tw.gpu, p->kl.gpu, nll ? p->nll.gpu : HH_NONE, dx ? p->dx.gpu : HH_NONE,
                         dw ? &p->gpu[2] : NULL, p->x.gpu, &p->gpu[0], p->xt.gpu, &p->gpu[1], target, weight, scale,
                         ce_weight);
}

static void assert_same(const problem *p) {
    assert_twins(p->nll);
    assert_twins(p->kl);
    assert_twins(p->dx);
    assert_twins(p->dw);
}

/* Also the gradient alone, without what dW held before. */
static void assert_gradient_of_weights(problem *p) {
    for (int64_t i = 0; i < p->V * p->C; i++) ((hh_real *)p->dw.cpu.data)[i] = 0;
    twin_upload(p->dw);
    kl(p, true, true, true, p->target, p->weight, 1.0 / (double)p->T, 0.5);
    assert_same(p);
}

static const struct {
    int64_t T, C, Ct, V;
    hh_dtype weights;
} shapes[] = {
    {37, 64, 64, 1000, HH_DTYPE_F32},    {1, 64, 96, 999, HH_DTYPE_BF16},  {130, 100, 64, 4101, HH_DTYPE_F32},
    {300, 576, 576, 3000, HH_DTYPE_F32}, {20, 35, 17, 130, HH_DTYPE_BF16},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static problem shaped(int i, hh_dtype weights) {
    return make_problem(at_most(shapes[i].T, 30), at_most(shapes[i].C, 100), at_most(shapes[i].Ct, 100), shapes[i].V,
                        weights);
}

static void cross_entropy_is_the_cpus(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    for (int i = 0; i < N_SHAPES; i++) {
        problem p = shaped(i, shapes[i].weights);
        ce(&p, false, true, true, true, p.target, 1.0 / (double)p.T);
        assert_same(&p);
        ce(&p, false, true, false, true, p.target, 0.7);
        assert_same(&p);
        ce(&p, false, false, true, false, p.target, -2);
        assert_same(&p);
        for (int64_t t = 0; t < p.T; t++) p.target[t] = (int32_t)(t % p.V); /* all count */
        ce(&p, false, true, true, true, p.target, 1);
        assert_same(&p);
        for (int64_t t = 0; t < p.T; t++) p.target[t] = -1; /* none does */
        ce(&p, false, true, true, true, p.target, 1);
        assert_same(&p);
        twin_reset();
    }
    twin_close();
}

static void greedy_tokens_are_the_cpus(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    for (int i = 0; i < N_SHAPES; i++) {
        /* Weights of the operands' own type, so that both sides order the same logits. */
        hh_dtype weights = precision == HH_PRECISION_F32 ? HH_DTYPE_F32 : HH_DTYPE_BF16;
        problem p = shaped(i, weights);
        ce(&p, true, true, false, false, p.target, 0);
        assert_twins(p.nll);
        assert_memory_equal(p.argmax[0], p.argmax[1], (size_t)p.T * sizeof(int32_t));
        ce(&p, true, false, false, false, NULL, 0);
        assert_memory_equal(p.argmax[0], p.argmax[1], (size_t)p.T * sizeof(int32_t));
        twin_reset();
    }
    twin_close();
}

static void divergence_is_the_cpus(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    for (int i = 0; i < N_SHAPES; i++) {
        problem p = shaped(i, shapes[i].weights);
        double scale = 1.0 / (double)p.T;
        kl(&p, true, true, true, p.target, p.weight, scale, 0.5);
        assert_same(&p);
        kl(&p, true, true, true, p.target, p.weight, scale, 0);
        assert_same(&p);
        kl(&p, false, true, true, NULL, NULL, scale, 0);
        assert_same(&p);
        kl(&p, false, true, false, NULL, p.weight, 3, 0);
        assert_same(&p);
        kl(&p, true, false, false, p.target, p.weight, 0, 0);
        assert_same(&p);
        assert_gradient_of_weights(&p);
        memset(p.weight, 0, (size_t)p.T * sizeof *p.weight); /* nothing counts */
        kl(&p, false, true, true, NULL, p.weight, scale, 0);
        assert_same(&p);
        twin_reset();
    }
    twin_close();
}

/* Little scratch: several tiles, each of several parts, and weights converted again and again. */
static void tiles_do_not_show(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    size_t size = tw.gpu->scratch.size;
    const size_t small[] = {(size_t)12 << 20, (size_t)20 << 20};
    const int64_t less = quick() ? 8 : 1;
    for (int i = 0; i < 2; i++) {
        tw.gpu->scratch.size = small[i] / (size_t)less;
        problem p = make_problem(700 / less, 128, 128, (i ? 6000 : 30000) / less, HH_DTYPE_F32);
        const double scale = 1.0 / (double)p.T;
        kl(&p, true, true, true, p.target, p.weight, scale, 0.5);
        assert_same(&p);
        kl(&p, true, true, true, NULL, NULL, scale, 0);
        assert_same(&p);
        ce(&p, false, true, true, true, p.target, scale);
        assert_same(&p);
        ce(&p, false, true, false, false, p.target, 0);
        assert_same(&p);
        twin_reset();
    }
    tw.gpu->scratch.size = size;
    twin_close();
}

static void a_real_vocabulary_is_the_cpus(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    problem p = make_problem(at_most(40, 30), at_most(576, 32), at_most(576, 32), 49152, HH_DTYPE_F32);
    kl(&p, true, true, true, p.target, p.weight, 1.0 / 40, 0.1);
    assert_same(&p);
    twin_close();
}

/* Rows of bf16 that a cluster of eight blocks holds, of one head and of both, and that none does. */
static void wide_vocabularies_are_the_cpus(void **unused) {
    (void)unused;
    if (precision == HH_PRECISION_F32 || !twin_open(precision)) skip();
    const int64_t V[] = {90000, 170000, 330000};
    for (int i = 0; i < 3; i++) {
        problem p = make_problem(30, 16, 16, V[i], HH_DTYPE_BF16);
        p.target[0] = (int32_t)(V[i] - 1);
        ce(&p, false, true, true, true, p.target, 0.3);
        assert_same(&p);
        kl(&p, true, true, true, p.target, NULL, 0.3, 0.1);
        assert_same(&p);
        twin_reset();
    }
    twin_close();
}

static void two_runs_have_the_same_bits(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    const int64_t T = at_most(2500, 60), C = at_most(576, 64);
    char *bytes[2][4];
    for (int run = 0; run < 2; run++) {
        tw.rng = hh_rng_seeded(3);
        problem p = make_problem(T, C, C, 5000, HH_DTYPE_F32);
        tw.gpu->ops->kl_head(tw.gpu, p.kl.gpu, p.nll.gpu, p.dx.gpu, &p.gpu[2], p.x.gpu, &p.gpu[0], p.xt.gpu, &p.gpu[1],
                             p.target, NULL, 1e-3, 0.5);
        hh_tensor out[4] = {p.kl.gpu, p.nll.gpu, p.dw.gpu, hh_tensor_1d(p.dx.gpu.data, p.dx.gpu.dtype, (C + 8) * T)};
        hh_error err = {0};
        assert_int_equal(tw.gpu->sync(tw.gpu, &err), HH_OK);
        for (int o = 0; o < 4; o++) {
            size_t n = hh_tensor_bytes(out[o]);
            bytes[run][o] = hh_arena_alloc(&tw.host, n);
            tw.gpu->to_host(tw.gpu, bytes[run][o], out[o].data, n);
            if (run) assert_memory_equal(bytes[0][o], bytes[1][o], n);
        }
    }
    twin_close();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy_is_the_cpus),     cmocka_unit_test(greedy_tokens_are_the_cpus),
        cmocka_unit_test(divergence_is_the_cpus),        cmocka_unit_test(tiles_do_not_show),
        cmocka_unit_test(a_real_vocabulary_is_the_cpus), cmocka_unit_test(wide_vocabularies_are_the_cpus),
        cmocka_unit_test(two_runs_have_the_same_bits),
    };
    precision = HH_PRECISION_AUTO;
    int failed = cmocka_run_group_tests_name("cuda heads in bf16", tests, NULL, NULL);
    precision = HH_PRECISION_F32;
    return failed + cmocka_run_group_tests_name("cuda heads in float32", tests, NULL, NULL);
}
