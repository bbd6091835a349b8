/* Softmax attention on the GPU against the CPU: prefill, prefill in chunks, decode, backward. */
#include "cuda/twin.h"

#define MAX_SPANS 64

/* One problem. Span s has n[s] queries from position pos[s] on. */
typedef struct problem {
    int64_t Hq, G, D;
    int32_t kv_of_q[32];
    int64_t n_spans, n[MAX_SPANS], pos[MAX_SPANS];
    int64_t gap;      /* rows between spans */
    int64_t pad;      /* of every row, in elements */
    double log_scale; /* base, or 0 */
    hh_dtype kv_dtype;
} problem;

typedef struct operands {
    int64_t T;
    both q, o, lse;
    hh_span span[MAX_SPANS];
    hh_kv cpu[MAX_SPANS], gpu[MAX_SPANS];
} operands;

static int64_t lay_spans(const problem *p, hh_span *span) {
    int64_t at = 0;
    for (int64_t s = 0; s < p->n_spans; s++) {
        span[s] = (hh_span){at, at + p->n[s], p->pos[s]};
        at += p->n[s] + p->gap;
    }
    return at;
}

/* A cache with a few rows behind the span's keys, which are NaN on the GPU. */
static both make_cache(const problem *p, int64_t n_keys) {
    both b = twin_tensor(p->kv_dtype, 3, n_keys + 5, p->G, p->D, hh_dtype_is_quantised(p->kv_dtype) ? 0 : p->pad, 1, 0);
    hh_arena_reset(&tw.staging, 0);
    const size_t at = hh_dtype_bytes(p->kv_dtype, n_keys * b.gpu.stride),
                 bytes = hh_dtype_bytes(p->kv_dtype, 5 * b.gpu.stride);
    void *nan = hh_arena_alloc(&tw.staging, bytes);
    memset(nan, 0xff, bytes);
    tw.gpu->to_device(tw.gpu, (char *)b.gpu.data + at, nan, bytes);
    b.cpu.dim[0] = b.gpu.dim[0] = n_keys;
    return b;
}

static operands make_operands(const problem *p) {
    operands x;
    x.T = lay_spans(p, x.span);
    x.q = twin_act(3, x.T, p->Hq, p->D, p->pad);
    x.o = twin_act(3, x.T, p->Hq, p->D, p->pad);
    x.lse = twin_real(2, x.T, p->Hq, 0, 1, 0);
    for (int64_t s = 0; s < p->n_spans; s++) {
        both k = make_cache(p, p->pos[s] + p->n[s]), v = make_cache(p, p->pos[s] + p->n[s]);
        x.cpu[s] = (hh_kv){k.cpu, v.cpu};
        x.gpu[s] = (hh_kv){k.gpu, v.gpu};
    }
    return x;
}

static void check_forward(const problem *p) {
    operands x = make_operands(p);
    tw.cpu->ops->attention_fwd(tw.cpu, x.o.cpu, x.lse.cpu, x.q.cpu, x.cpu, x.span, p->n_spans, p->kv_of_q,
                               p->log_scale);
    tw.gpu->ops->attention_fwd(tw.gpu, x.o.gpu, x.lse.gpu, x.q.gpu, x.gpu, x.span, p->n_spans, p->kv_of_q,
                               p->log_scale);
    assert_twins(x.o);
    assert_twins(x.lse);
    /* Once more, without lse and to other memory: the same bits. */
    both again = x.o;
    const size_t bytes = hh_dtype_bytes(x.o.gpu.dtype, x.T * x.o.gpu.stride);
    again.gpu.data = hh_arena_alloc(&tw.device, bytes);
    hh_arena_reset(&tw.staging, 0);
    char *a = hh_arena_alloc(&tw.staging, bytes), *b = hh_arena_alloc(&tw.staging, bytes);
    tw.gpu->to_host(tw.gpu, a, x.o.gpu.data, bytes);
    tw.gpu->to_device(tw.gpu, again.gpu.data, a, bytes);
    tw.gpu->ops->attention_fwd(tw.gpu, again.gpu, HH_NONE, x.q.gpu, x.gpu, x.span, p->n_spans, p->kv_of_q,
                               p->log_scale);
    tw.gpu->to_host(tw.gpu, b, again.gpu.data, bytes);
    assert_memory_equal(a, b, bytes);
    twin_reset();
}

static void check_backward(const problem *p) {
    hh_span span[MAX_SPANS];
    const int64_t T = lay_spans(p, span);
    both q = twin_act(3, T, p->Hq, p->D, p->pad), o = twin_act(3, T, p->Hq, p->D, p->pad);
    both k = twin_act(3, T, p->G, p->D, p->pad), v = twin_act(3, T, p->G, p->D, p->pad);
    both g = twin_act(3, T, p->Hq, p->D, p->pad), dq = twin_act(3, T, p->Hq, p->D, p->pad);
    both dk = twin_act(3, T, p->G, p->D, p->pad), dv = twin_act(3, T, p->G, p->D, p->pad);
    both lse = twin_real(2, T, p->Hq, 0, 1, 0);
    hh_kv kv[MAX_SPANS];
    for (int64_t s = 0; s < p->n_spans; s++)
        kv[s] = (hh_kv){hh_tensor_rows(k.cpu, span[s].lo, span[s].hi), hh_tensor_rows(v.cpu, span[s].lo, span[s].hi)};
    tw.cpu->ops->attention_fwd(tw.cpu, o.cpu, lse.cpu, q.cpu, kv, span, p->n_spans, p->kv_of_q, p->log_scale);
    twin_upload(o);
    twin_upload(lse);
    tw.cpu->ops->attention_bwd(tw.cpu, dq.cpu, dk.cpu, dv.cpu, g.cpu, q.cpu, k.cpu, v.cpu, o.cpu, lse.cpu, span,
                               p->n_spans, p->kv_of_q, p->log_scale);
    const size_t bytes = hh_dtype_bytes(dk.gpu.dtype, T * dk.gpu.stride);
    char *first = NULL;
    for (int run = 0; run < 2; run++) {
        tw.gpu->ops->attention_bwd(tw.gpu, dq.gpu, dk.gpu, dv.gpu, g.gpu, q.gpu, k.gpu, v.gpu, o.gpu, lse.gpu, span,
                                   p->n_spans, p->kv_of_q, p->log_scale);
        if (!run) {
            assert_twins(dq);
            assert_twins(dk);
            assert_twins(dv);
            hh_arena_reset(&tw.staging, 0);
            first = hh_arena_alloc(&tw.staging, bytes);
            tw.gpu->to_host(tw.gpu, first, dk.gpu.data, bytes);
        }
    }
    char *second = hh_arena_alloc(&tw.staging, bytes);
    tw.gpu->to_host(tw.gpu, second, dk.gpu.data, bytes);
    assert_memory_equal(first, second, bytes);
    twin_reset();
}

/* Grouped heads of unequal size; a KV head that nobody reads. */
#define IRREGULAR .Hq = 7, .G = 4, .kv_of_q = {0, 0, 0, 1, 3, 3, 1}

static const problem prefill[] = {
    {IRREGULAR, .D = 64, .n_spans = 1, .n = {200}},
    {IRREGULAR, .D = 128, .n_spans = 3, .n = {1, 130, 67}, .gap = 2, .pad = 16},
    {IRREGULAR, .D = 32, .n_spans = 4, .n = {33, 0, 64, 129}, .log_scale = 64},
    {IRREGULAR, .D = 96, .n_spans = 2, .n = {150, 40}, .pad = 3, .log_scale = 32},
    {IRREGULAR, .D = 128, .n_spans = 2, .n = {257, 5}, .pad = 1, .log_scale = 100},
    {.Hq = 3, .G = 1, .D = 64, .n_spans = 2, .n = {300, 2}, .pad = 5},
    {.Hq = 2, .G = 2, .kv_of_q = {1, 0}, .D = 256, .n_spans = 2, .n = {70, 9}, .log_scale = 16},
    {.Hq = 2, .G = 1, .D = 16, .n_spans = 2, .n = {40, 9}},
};
static const problem chunks[] = {
    {IRREGULAR, .D = 64, .n_spans = 2, .n = {100, 31}, .pos = {300, 77}, .log_scale = 64},
    {IRREGULAR, .D = 128, .n_spans = 2, .n = {64, 129}, .pos = {64, 1}, .gap = 1},
    {IRREGULAR, .D = 96, .n_spans = 1, .n = {20}, .pos = {1000}},
    {IRREGULAR, .D = 128, .n_spans = 3, .n = {2, 1, 40}, .pos = {129, 500, 0}, .log_scale = 64},
};
static const problem decode[] = {
    {IRREGULAR, .D = 64, .n_spans = 3, .n = {1, 1, 1}, .pos = {0, 700, 16}, .log_scale = 64},
    {IRREGULAR, .D = 128, .n_spans = 2, .n = {1, 1}, .pos = {5000, 255}, .gap = 1, .pad = 8},
    {IRREGULAR, .D = 32, .n_spans = 2, .n = {1, 1}, .pos = {99, 1}, .pad = 2},
    {IRREGULAR, .D = 96, .n_spans = 1, .n = {1}, .pos = {2047}},
    {.Hq = 12, .G = 1, .D = 64, .n_spans = 2, .n = {1, 1}, .pos = {1000, 3}},
    {.Hq = 12, .G = 1, .D = 32, .n_spans = 1, .n = {1}, .pos = {300}},
    {.Hq = 12, .G = 1, .D = 96, .n_spans = 1, .n = {1}, .pos = {300}},
    {.Hq = 20, .G = 1, .D = 128, .n_spans = 1, .n = {1}, .pos = {600}},
    {.Hq = 2, .G = 1, .D = 256, .n_spans = 1, .n = {1}, .pos = {300}},
};

/* Quick: shorter spans, most of all for the plain kernels, which are the same for all widths; in float32, where there are
 * no others, every other problem. */
static void each(const problem *p, size_t n, void (*check)(const problem *), hh_dtype kv_dtype) {
    const bool f32 = tw.gpu->activation == HH_DTYPE_F32;
    for (size_t i = 0; i < n; i += quick() && f32 ? 2 : 1) {
        problem x = p[i];
        const bool plain = f32 || x.D % 32 || x.D > 128;
        for (int64_t s = 0; s < x.n_spans; s++)
            x.n[s] = at_most(x.n[s], plain ? 24 : 140), x.pos[s] = at_most(x.pos[s], plain ? 150 : 300);
        x.kv_dtype = kv_dtype;
        if (hh_dtype_is_quantised(kv_dtype) && x.D % 32) continue;
        check(&x);
    }
}
#define EACH(list, check, kv_dtype) each(list, sizeof list / sizeof *list, check, kv_dtype)

static void forward_of_prefill_chunks_and_decode(hh_precision precision) {
    if (!twin_open(precision)) skip();
    const hh_dtype act = tw.gpu->activation;
    EACH(prefill, check_forward, act);
    EACH(chunks, check_forward, act);
    EACH(decode, check_forward, act);
    for (int i = 0; i < 3; i++) {
        const hh_dtype cache = (hh_dtype[]){HH_DTYPE_F32, HH_DTYPE_BF16, HH_DTYPE_Q8_0}[i];
        if (cache == act) continue;
        EACH(chunks, check_forward, cache);
        EACH(decode, check_forward, cache);
    }
    twin_close();
}
static void forward_bf16(void **unused) {
    (void)unused;
    forward_of_prefill_chunks_and_decode(HH_PRECISION_AUTO);
}
static void forward_f32(void **unused) {
    (void)unused;
    forward_of_prefill_chunks_and_decode(HH_PRECISION_F32);
}

static void backward_bf16(void **unused) {
    (void)unused;
    if (!twin_open(HH_PRECISION_AUTO)) skip();
    EACH(prefill, check_backward, HH_DTYPE_BF16);
    twin_close();
}
static void backward_f32(void **unused) {
    (void)unused;
    if (!twin_open(HH_PRECISION_F32)) skip();
    EACH(prefill, check_backward, HH_DTYPE_F32);
    twin_close();
}

static void many_spans(void **unused) {
    (void)unused;
    if (!twin_open(HH_PRECISION_AUTO)) skip();
    problem p = {.Hq = 6, .G = 2, .kv_of_q = {0, 0, 0, 1, 1, 1}, .D = 64, .kv_dtype = HH_DTYPE_BF16};
    p.n_spans = at_most(MAX_SPANS, 9);
    for (int64_t s = 0; s < p.n_spans; s++) p.n[s] = 1 + 7 * s % 40;
    check_forward(&p);
    check_backward(&p);
    for (int64_t s = 0; s < p.n_spans; s++) p.n[s] = 1, p.pos[s] = 31 * s;
    check_forward(&p);
    twin_close();
}

/* Large logits: one key takes all, on either side of a tile's border. */
static void sharp_rows(void **unused) {
    (void)unused;
    if (!twin_open(HH_PRECISION_AUTO)) skip();
    const int64_t T = 192, D = 64;
    const int32_t kv_of_q[1] = {0};
    const hh_span span = {0, T, 0};
    both q = twin_tensor(HH_DTYPE_BF16, 3, T, 1, D, 0, 30, 0), k = twin_tensor(HH_DTYPE_BF16, 3, T, 1, D, 0, 30, 0);
    both v = twin_act(3, T, 1, D, 0), o = twin_act(3, T, 1, D, 0);
    hh_kv cpu = {k.cpu, v.cpu}, gpu = {k.gpu, v.gpu};
    tw.cpu->ops->attention_fwd(tw.cpu, o.cpu, HH_NONE, q.cpu, &cpu, &span, 1, kv_of_q, 0);
    tw.gpu->ops->attention_fwd(tw.gpu, o.gpu, HH_NONE, q.gpu, &gpu, &span, 1, kv_of_q, 0);
    assert_twins(o);
    twin_close();
}

/* A recorded decode step stays right while contexts grow, also over a power of two. */
static void recorded_decode(void **unused) {
    (void)unused;
    if (!twin_open(HH_PRECISION_AUTO)) skip();
    problem p = {
        IRREGULAR, .D = 64, .n_spans = 2, .n = {1, 1}, .pos = {600, 9}, .log_scale = 64, .kv_dtype = HH_DTYPE_BF16};
    operands x = make_operands(&p);
    for (int64_t pos = 505; pos < 520; pos += quick() ? 3 : 1) {
        x.span[0].pos = pos;
        tw.cpu->ops->attention_fwd(tw.cpu, x.o.cpu, x.lse.cpu, x.q.cpu, x.cpu, x.span, 2, p.kv_of_q, p.log_scale);
        do {
            hh_backend_record_begin(tw.gpu, &x, 1);
            tw.gpu->ops->attention_fwd(tw.gpu, x.o.gpu, x.lse.gpu, x.q.gpu, x.gpu, x.span, 2, p.kv_of_q, p.log_scale);
        } while (hh_backend_record_end(tw.gpu));
        assert_twins(x.o);
        assert_twins(x.lse);
    }
    hh_backend_record_drop(tw.gpu, &x);
    twin_close();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_bf16),    cmocka_unit_test(forward_f32), cmocka_unit_test(backward_bf16),
        cmocka_unit_test(backward_f32),    cmocka_unit_test(many_spans),  cmocka_unit_test(sharp_rows),
        cmocka_unit_test(recorded_decode),
    };
    return cmocka_run_group_tests_name("cuda attention", tests, NULL, NULL);
}
