/* The linear map on the GPU: what the CPU computes, for any number of tokens, parts, types and strides, and the same bits
 * every time. */
#include "cuda/twin.h"

static hh_precision precision;

/* A map on both sides. */
typedef struct map {
    both w[HH_MAX_PARTS], bias[HH_MAX_PARTS];
    hh_linear cpu, gpu;
} map;

static void add_part(map *m, hh_dtype dtype, int64_t rows, int64_t k, int64_t pad, bool bias) {
    int p = m->cpu.n_parts;
    m->w[p] = twin_tensor(dtype, 2, rows, k, 0, pad, 1 / sqrt((double)k), 0);
    m->bias[p] = (both){HH_NONE, HH_NONE};
    if (bias) m->bias[p] = twin_real(1, rows, 0, 0, 1, 0);
    for (int side = 0; side < 2; side++) {
        hh_linear *l = side ? &m->gpu : &m->cpu;
        l->part[p].w = side ? m->w[p].gpu : m->w[p].cpu;
        l->part[p].bias = side ? m->bias[p].gpu : m->bias[p].cpu;
        l->n_parts++;
        l->n += rows;
        l->k = k;
    }
}

/* F1, B1, B2 and B3 of one map; gradients go to a map of the same shape. */
static void compare(map *m, const map *gradient, int64_t tokens, int64_t pad) {
    const hh_ops *c = tw.cpu->ops, *g = tw.gpu->ops;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        both x = twin_act(2, tokens, m->cpu.k, 0, pad), y = twin_act(2, tokens, m->cpu.n, 0, pad);
        c->linear_fwd(tw.cpu, y.cpu, x.cpu, &m->cpu, accumulate);
        g->linear_fwd(tw.gpu, y.gpu, x.gpu, &m->gpu, accumulate);
        assert_twins(y);
        both logits = twin_tensor(HH_DTYPE_F32, 2, tokens, m->cpu.n, 0, 0, 1, 0);
        c->linear_fwd(tw.cpu, logits.cpu, x.cpu, &m->cpu, accumulate);
        g->linear_fwd(tw.gpu, logits.gpu, x.gpu, &m->gpu, accumulate);
        assert_twins(logits);
        both dy = twin_act(2, tokens, m->cpu.n, 0, pad), dx = twin_act(2, tokens, m->cpu.k, 0, pad);
        c->linear_bwd_input(tw.cpu, dx.cpu, dy.cpu, &m->cpu, accumulate);
        g->linear_bwd_input(tw.gpu, dx.gpu, dy.gpu, &m->gpu, accumulate);
        assert_twins(dx);
        c->linear_bwd_weight(tw.cpu, &gradient->cpu, dy.cpu, x.cpu);
        g->linear_bwd_weight(tw.gpu, &gradient->gpu, dy.gpu, x.gpu);
        for (int p = 0; p < gradient->cpu.n_parts; p++) {
            if (gradient->cpu.part[p].w.data) assert_twins(gradient->w[p]);
            if (gradient->cpu.part[p].bias.data) assert_twins(gradient->bias[p]);
        }
    }
}

static void one_shape(int64_t tokens, int64_t k, int64_t n, hh_dtype dtype, int64_t pad, bool bias) {
    map m = {0}, d = {0};
    add_part(&m, dtype, n, k, pad, bias);
    add_part(&d, HH_DTYPE_F32, n, k, 0, bias);
    compare(&m, &d, tokens, pad);
    twin_reset();
}

static void any_shape_is_what_the_cpu_computes(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    for (int f32 = 0; f32 < 2; f32++) {
        hh_dtype dtype = f32 ? HH_DTYPE_F32 : HH_DTYPE_BF16;
        one_shape(at_most(256, 32), at_most(576, 64), at_most(960, 96), dtype, 0, false);
        one_shape(130, at_most(576, 72), 200, dtype, 8, true);
        one_shape(67, 100, 52, dtype, 4, true);
        one_shape(33, 35, 17, dtype, 3, false);
        one_shape(19, at_most(2048, 128), 129, dtype, 0, true);
        /* Of one number alone the error is as large as the number where its terms cancel, as they do in what quick draws. */
        if (!quick()) one_shape(1, 1, 1, dtype, 0, true);
    }
    for (int f32 = 0; f32 < 2; f32++) {
        one_shape(1, 1, 5, f32 ? HH_DTYPE_F32 : HH_DTYPE_BF16, 0, true);
        one_shape(5, 1, 1, f32 ? HH_DTYPE_F32 : HH_DTYPE_BF16, 0, true);
    }
    twin_close();
}

static void few_tokens_are_what_the_cpu_computes(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    const int64_t tokens[] = {1, 7, 8, 16, 17};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i += quick() ? 3 : 1) {
        one_shape(tokens[i], 576, at_most(964, 36), i % 2 ? HH_DTYPE_F32 : HH_DTYPE_BF16, 0, i % 2);
        one_shape(tokens[i], 2056, 67, i % 2 ? HH_DTYPE_BF16 : HH_DTYPE_F32, 8, true);
        one_shape(tokens[i], 40, 9, HH_DTYPE_BF16, 1, false);
    }
    twin_close();
}

static void a_vocabulary_is_what_the_cpu_computes(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    one_shape(3, 576, at_most(49152, 1024), HH_DTYPE_BF16, 0, false);
    one_shape(20, 64, at_most(49152, 1024), HH_DTYPE_F32, 0, false);
    twin_close();
}

/* Parts of two types, with and without biases, one without rows; a gradient that is not wanted. */
static void parts_stand_beside_each_other(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    const int64_t tokens[] = {1, 5, 16, 90};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i += quick() ? 3 : 1) {
        map m = {0}, d = {0};
        const int64_t rows[] = {64, 8, 0, 9, 100, 3};
        for (int p = 0; p < 6; p++) {
            add_part(&m, p % 3 == 0 ? HH_DTYPE_BF16 : HH_DTYPE_F32, rows[p], 136, p == 4 ? 8 : 0, p % 2 == 1);
            add_part(&d, HH_DTYPE_F32, rows[p], 136, 0, p % 2 == 1);
        }
        d.cpu.part[1].w.data = d.gpu.part[1].w.data = NULL;
        compare(&m, &d, tokens[i], 8);
        twin_reset();
    }
    twin_close();
}

/* Weights that scratch cannot hold converted are converted in blocks. */
static void scratch_may_be_small(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    size_t size = tw.gpu->scratch.size;
    tw.gpu->scratch.size = (size_t)5 << (quick() ? 17 : 20);
    const int64_t k = at_most(512, 64);
    for (int i = 0; i < 2; i++) {
        map m = {0}, d = {0};
        add_part(&m, i ? HH_DTYPE_BF16 : HH_DTYPE_F32, 3000, k, 0, true);
        add_part(&m, HH_DTYPE_F32, 70, k, 0, false);
        add_part(&d, HH_DTYPE_F32, 3000, k, 0, false);
        add_part(&d, HH_DTYPE_F32, 70, k, 0, false);
        compare(&m, &d, 40, 0);
        twin_reset();
    }
    tw.gpu->scratch.size = size;
    twin_close();
}

static void read_back(void *out, hh_tensor t) {
    hh_error err = {0};
    assert_int_equal(tw.gpu->sync(tw.gpu, &err), HH_OK);
    tw.gpu->to_host(tw.gpu, out, t.data, hh_tensor_bytes(t));
}

static void two_runs_have_the_same_bits(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    const int64_t tokens[] = {1, 16, 300, 5000};
    for (size_t i = 0; i < (quick() ? 2 : sizeof tokens / sizeof *tokens); i++) {
        map m = {0}, d[2];
        memset(d, 0, sizeof d);
        const hh_ops *g = tw.gpu->ops;
        char *bytes[2][3];
        add_part(&m, HH_DTYPE_F32, 576, 1536, 0, true);
        both x = twin_act(2, tokens[i], 1536, 0, 0), dy = twin_act(2, tokens[i], 576, 0, 0);
        for (int run = 0; run < 2; run++) {
            tw.rng = hh_rng_seeded(7);
            add_part(&d[run], HH_DTYPE_F32, 576, 1536, 0, true);
            both y = twin_act(2, tokens[i], 576, 0, 0), dx = twin_act(2, tokens[i], 1536, 0, 0);
            g->linear_fwd(tw.gpu, y.gpu, x.gpu, &m.gpu, true);
            g->linear_bwd_input(tw.gpu, dx.gpu, dy.gpu, &m.gpu, true);
            g->linear_bwd_weight(tw.gpu, &d[run].gpu, dy.gpu, x.gpu);
            hh_tensor out[3] = {y.gpu, dx.gpu, d[run].w[0].gpu};
            for (int o = 0; o < 3; o++) {
                bytes[run][o] = hh_arena_alloc(&tw.host, hh_tensor_bytes(out[o]));
                read_back(bytes[run][o], out[o]);
                if (run) assert_memory_equal(bytes[0][o], bytes[1][o], hh_tensor_bytes(out[o]));
            }
        }
        twin_reset();
    }
    twin_close();
}

/* Nothing happens, and nothing is written. */
static void no_tokens_are_no_work(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    map m = {0}, d = {0};
    add_part(&m, HH_DTYPE_BF16, 24, 16, 0, true);
    add_part(&d, HH_DTYPE_F32, 24, 16, 0, true);
    both x = twin_act(2, 1, 16, 0, 0), y = twin_act(2, 1, 24, 0, 0);
    tw.gpu->ops->linear_fwd(tw.gpu, hh_tensor_rows(y.gpu, 0, 0), hh_tensor_rows(x.gpu, 0, 0), &m.gpu, false);
    tw.gpu->ops->linear_bwd_input(tw.gpu, hh_tensor_rows(x.gpu, 0, 0), hh_tensor_rows(y.gpu, 0, 0), &m.gpu, false);
    tw.gpu->ops->linear_bwd_weight(tw.gpu, &d.gpu, hh_tensor_rows(y.gpu, 0, 0), hh_tensor_rows(x.gpu, 0, 0));
    assert_true(twin_error(x) == 0 && twin_error(y) == 0 && twin_error(d.w[0]) == 0 && twin_error(d.bias[0]) == 0);
    twin_close();
}

/* A recorded product gives what the product gave, with what its input holds then. */
static void products_can_be_recorded(void **unused) {
    (void)unused;
    if (!twin_open(precision)) skip();
    const int64_t tokens[] = {2, 40};
    for (int i = 0; i < 2; i++) {
        map m = {0};
        add_part(&m, HH_DTYPE_BF16, 200, 64, 0, true);
        add_part(&m, HH_DTYPE_F32, 40, 64, 0, false);
        both y = twin_act(2, tokens[i], 240, 0, 0), x = twin_act(2, tokens[i], 64, 0, 0);
        for (int time = 0; time < 4; time++) {
            both fresh = twin_act(2, tokens[i], 64, 0, 0);
            memcpy(x.cpu.data, fresh.cpu.data, hh_tensor_bytes(x.cpu));
            twin_upload(x);
            do {
                hh_backend_record_begin(tw.gpu, &m, (uint64_t)i);
                tw.gpu->ops->linear_fwd(tw.gpu, y.gpu, x.gpu, &m.gpu, false);
            } while (hh_backend_record_end(tw.gpu));
            tw.cpu->ops->linear_fwd(tw.cpu, y.cpu, x.cpu, &m.cpu, false);
            assert_twins(y);
        }
        hh_backend_record_drop(tw.gpu, &m);
        twin_reset();
    }
    twin_close();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_shape_is_what_the_cpu_computes),
        cmocka_unit_test(few_tokens_are_what_the_cpu_computes),
        cmocka_unit_test(a_vocabulary_is_what_the_cpu_computes),
        cmocka_unit_test(parts_stand_beside_each_other),
        cmocka_unit_test(scratch_may_be_small),
        cmocka_unit_test(two_runs_have_the_same_bits),
        cmocka_unit_test(no_tokens_are_no_work),
        cmocka_unit_test(products_can_be_recorded),
    };
    precision = HH_PRECISION_AUTO;
    int failed = cmocka_run_group_tests_name("cuda products in bf16", tests, NULL, NULL);
    precision = HH_PRECISION_F32;
    return failed + cmocka_run_group_tests_name("cuda products in float32", tests, NULL, NULL);
}
