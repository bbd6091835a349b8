/* Times the linear map, the losses and the optimizer beside their floors: every case says how many operations and bytes
 * it cannot do without, and the floor is the time these would take at the rates measured in the same run. bench_ops
 * [--only WORD] [--threads N] [--json]      `make bench` runs it */
#include "ops/ops.h"

#include "base/options.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "ops/gemm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct bench {
    hh_backend *be;
    double flops_per_s, bytes_per_s; /* measured: a large float32 product; a copy through memory */
    double seconds;                  /* a case's share of time */
    const char *only;                /* cases whose op has this in its name; NULL: all */
    bool json;
    hh_arena memory; /* of the present case */
} bench;

enum { MEMORY = 1 << 30 };

static bool wants(const bench *b, const char *op) {
    return !b->only || strstr(op, b->only);
}

/* With one thread processor time, which a busy machine disturbs less. */
static double clock_of(const bench *b) {
    struct timespec t;
    clock_gettime(b->be->n_threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double fastest(const bench *b, double seconds, void (*body)(void *context), void *context) {
    double best = INFINITY, end = hh_now() + seconds;
    for (int i = 0; i < 3 || hh_now() < end; i++) {
        double start = clock_of(b);
        body(context);
        best = fmin(best, clock_of(b) - start);
    }
    return best;
}

static void run_case(bench *b, const char *op, const char *shape, double flops, double bytes,
                     void (*body)(void *context), void *context) {
    double t = fastest(b, b->seconds, body, context);
    double floor = fmax(flops / b->flops_per_s, bytes / b->bytes_per_s);
    const char *bound = flops / b->flops_per_s > bytes / b->bytes_per_s ? "operations" : "bytes";
    if (b->json)
        printf("{\"op\": \"%s\", \"shape\": \"%s\", \"us\": %.2f, \"floor_us\": %.2f, \"bound\": \"%s\", \"share\": "
               "%.3f}\n",
               op, shape, t * 1e6, floor * 1e6, bound, floor / t);
    else
        printf("%-18s %-34s %10.1f us  floor %10.1f us of %-10s  %5.1f %%\n", op, shape, t * 1e6, floor * 1e6, bound,
               100 * floor / t);
    fflush(stdout);
    hh_arena_reset(&b->memory, 0);
}

static hh_tensor make_tensor(bench *b, int64_t rows, int64_t cols) {
    hh_tensor t = hh_tensor_place_2d(&b->memory, HH_DTYPE_REAL, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        ((hh_real *)t.data)[i] = (hh_real)((double)(i * 7919 % 1000) / 500.0 - 1.0);
    return t;
}

static hh_tensor make_weights(bench *b, hh_dtype type, int64_t rows, int64_t cols) {
    hh_tensor t = hh_tensor_place_2d(&b->memory, type, rows, cols);
    hh_real *row = hh_alloc((size_t)cols * sizeof *row);
    size_t bytes = hh_dtype_bytes(type, cols);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < cols; i++) row[i] = (hh_real)((double)((r * cols + i) * 7919 % 1000) / 500.0 - 1.0);
        if (type == HH_DTYPE_Q5_0 || type == HH_DTYPE_Q5_1 || type == HH_DTYPE_Q4_K || type == HH_DTYPE_Q5_K ||
            type == HH_DTYPE_Q6_K)
            memset((char *)t.data + (size_t)r * bytes, 0x11, bytes); /* small scales: 0x1111 is 0.0006 in f16 */
        else
            hh_quantise(type, row, cols, (char *)t.data + (size_t)r * bytes);
    }
    hh_free(row);
    return t;
}

typedef struct product {
    bench *b;
    float *a;
    int64_t n;
} product;

/* One product a thread in turn: what oneDNN reaches with all operands in cache. */
static void run_product(void *context) {
    product *p = context;
    hh_gemm_f32(false, true, p->n, p->n, p->n, p->a, p->n, p->a + p->n * p->n, p->n, p->a + 2 * p->n * p->n, p->n,
                false);
}

static void run_copy(void *context) {
    product *p = context;
    hh_tensor x = hh_tensor_1d(p->a, HH_DTYPE_REAL, p->n), y = hh_tensor_1d(p->a + p->n, HH_DTYPE_REAL, p->n);
    p->b->be->ops->copy(p->b->be, y, x);
}

static void measure_rates(bench *b) {
    product p = {.b = b, .n = 512};
    p.a = make_tensor(b, (2 + b->be->n_threads) * p.n, p.n).data;
    b->flops_per_s = 2.0 * b->be->n_threads * (double)(p.n * p.n * p.n) / fastest(b, 2 * b->seconds, run_product, &p);
    p.n = (int64_t)32 << 20;
    hh_arena_reset(&b->memory, 0);
    p.a = make_tensor(b, 2, p.n).data;
    b->bytes_per_s = 2.0 * (double)p.n * sizeof(hh_real) / fastest(b, 2 * b->seconds, run_copy, &p);
    hh_arena_reset(&b->memory, 0);
    if (b->json)
        printf("{\"isa\": \"%s\", \"threads\": %d, \"gflops\": %.1f, \"gbytes\": %.1f}\n", b->be->isa, b->be->n_threads,
               b->flops_per_s * 1e-9, b->bytes_per_s * 1e-9);
    else
        printf("%s kernels, %d threads; measured here: %.0f GFLOP/s float32, %.1f GB/s copied\n", b->be->isa,
               b->be->n_threads, b->flops_per_s * 1e-9, b->bytes_per_s * 1e-9);
}

typedef struct linear_case {
    bench *b;
    hh_linear w;
    hh_tensor x, y;
} linear_case;

static void forward(void *p) {
    linear_case *c = p;
    c->b->be->decoding = c->x.dim[0] <= 8;
    c->b->be->ops->linear_fwd(c->b->be, c->y, c->x, &c->w, false);
    c->b->be->decoding = false;
}

static void backward_input(void *p) {
    linear_case *c = p;
    c->b->be->ops->linear_bwd_input(c->b->be, c->x, c->y, &c->w, false);
}

static void backward_weight(void *p) {
    linear_case *c = p;
    c->b->be->ops->linear_bwd_weight(c->b->be, &c->w, c->y, c->x);
}

static void run_linear(bench *b, const char *op, void (*body)(void *), hh_dtype type, int64_t T, int64_t N, int64_t K) {
    if (!wants(b, op)) return;
    linear_case c = {.b = b, .x = make_tensor(b, T, K), .y = make_tensor(b, T, N)};
    c.w = (hh_linear){.n_parts = 1, .n = N, .k = K, .part[0].w = make_weights(b, type, N, K)};
    char shape[64];
    snprintf(shape, sizeof shape, "%s T %d N %d K %d", hh_dtype_name(type), (int)T, (int)N, (int)K);
    double bytes = (double)hh_tensor_bytes(c.w.part[0].w) + (double)((T * N + T * K) * (int64_t)sizeof(hh_real));
    run_case(b, op, shape, 2.0 * (double)(T * N * K), bytes, body, &c);
}

static void bench_linear(bench *b) {
    static const hh_dtype types[] = {HH_DTYPE_F32,  HH_DTYPE_BF16, HH_DTYPE_F16,  HH_DTYPE_Q8_0,
                                     HH_DTYPE_Q4_0, HH_DTYPE_Q4_1, HH_DTYPE_Q5_0, HH_DTYPE_Q5_1,
                                     HH_DTYPE_Q4_K, HH_DTYPE_Q5_K, HH_DTYPE_Q6_K};
    const int n_types = sizeof types / sizeof types[0];
    for (int i = 0; i < n_types; i++) {
        int64_t k = hh_dtype_block(types[i]) == 256 ? 512 : 576;
        run_linear(b, "linear_fwd", forward, types[i], 512, 1536, k);
        run_linear(b, "linear_fwd", forward, types[i], 1, 49152, k);
        run_linear(b, "linear_fwd", forward, types[i], 1, 1536, k);
        run_linear(b, "linear_fwd", forward, types[i], 4, 1536, k);
        run_linear(b, "linear_fwd", forward, types[i], 6, 1536, k);
        run_linear(b, "linear_fwd", forward, types[i], 8, 1536, k);
    }
    run_linear(b, "linear_fwd", forward, HH_DTYPE_F32, 512, 576, 1536);
    run_linear(b, "linear_fwd", forward, HH_DTYPE_F32, 2048, 576, 576);
    run_linear(b, "linear_bwd_input", backward_input, HH_DTYPE_F32, 2048, 1536, 576);
    run_linear(b, "linear_bwd_input", backward_input, HH_DTYPE_F32, 2048, 576, 1536);
    run_linear(b, "linear_bwd_input", backward_input, HH_DTYPE_Q4_1, 2048, 1536, 576);
    run_linear(b, "linear_bwd_weight", backward_weight, HH_DTYPE_F32, 2048, 1536, 576);
    run_linear(b, "linear_bwd_weight", backward_weight, HH_DTYPE_F32, 2048, 576, 1536);
}

typedef struct loss_case {
    bench *b;
    hh_linear w;
    hh_tensor x, dx, nll, p, m, v, grad;
    int32_t *target;
} loss_case;

static void cross_entropy(void *p) {
    loss_case *c = p;
    c->b->be->ops->ce_head(c->b->be, c->nll, NULL, c->dx, NULL, c->x, &c->w, c->target, 1e-3);
}

static void divergence(void *p) {
    loss_case *c = p;
    c->b->be->ops->kl_head(c->b->be, c->nll, HH_NONE, c->dx, NULL, c->x, &c->w, c->x, &c->w, NULL, NULL, 1e-3, 0);
}

static void adamw(void *p) {
    loss_case *c = p;
    c->b->be->ops->adamw(c->b->be, c->p, c->m, c->v, c->grad, 1e-4, 0.9, 0.95, 1e-8, 0, 1, 10);
}

static void sum_squares(void *p) {
    loss_case *c = p;
    double sum = 0;
    c->b->be->ops->sum_squares(c->b->be, &sum, c->grad);
}

static void run_head(bench *b, const char *op, void (*body)(void *), int products, int64_t T, int64_t V, int64_t C) {
    if (!wants(b, op)) return;
    loss_case c = {.b = b, .x = make_tensor(b, T, C), .dx = make_tensor(b, T, C), .nll = make_tensor(b, 1, T)};
    c.w = (hh_linear){.n_parts = 1, .n = V, .k = C, .part[0].w = make_weights(b, HH_DTYPE_F32, V, C)};
    c.target = hh_arena_alloc(&b->memory, (size_t)T * sizeof *c.target);
    for (int64_t t = 0; t < T; t++) c.target[t] = (int32_t)(t % V);
    char shape[64];
    snprintf(shape, sizeof shape, "T %d V %d C %d", (int)T, (int)V, (int)C);
    run_case(b, op, shape, 2.0 * products * (double)(T * V * C), (double)(V * C * (int64_t)sizeof(hh_real)), body, &c);
}

static void run_flat(bench *b, const char *op, void (*body)(void *), int arrays, int64_t n) {
    if (!wants(b, op)) return;
    loss_case c = {.b = b, .p = make_tensor(b, 1, n), .m = make_tensor(b, 1, n), .v = make_tensor(b, 1, n)};
    c.grad = make_tensor(b, 1, n);
    b->be->ops->fill(b->be, c.v, 0.5);
    char shape[64];
    snprintf(shape, sizeof shape, "%d numbers", (int)n);
    run_case(b, op, shape, 0, (double)(arrays * n * (int64_t)sizeof(hh_real)), body, &c);
}

static void bench_losses(bench *b) {
    run_head(b, "ce_head", cross_entropy, 2, 256, 49152, 576);
    run_head(b, "kl_head", divergence, 3, 256, 49152, 576);
    run_head(b, "kl_head", divergence, 3, 2048, 1024, 256);
    run_flat(b, "adamw", adamw, 7, 8 << 20);
    run_flat(b, "sum_squares", sum_squares, 1, 16 << 20);
}

int main(int argc, char **argv) {
    int64_t threads = 0;
    const char *isa = NULL;
    bench b = {.seconds = 0.1};
    const hh_option options[] = {
        {.name = "threads",
         .kind = HH_OPTION_INT,
         .value = &threads,
         .argument = "N",
         .help = "threads; 0 takes all processors",
         .max = 1024},
        {.name = "isa",
         .kind = HH_OPTION_STRING,
         .value = &isa,
         .argument = "NAME",
         .help = "kernels: reference, avx2, avx512"},
        {.name = "seconds",
         .kind = HH_OPTION_FLOAT,
         .value = &b.seconds,
         .argument = "S",
         .help = "time for each case",
         .min = 0.001,
         .max = 60},
        {.name = "only",
         .kind = HH_OPTION_STRING,
         .value = &b.only,
         .argument = "WORD",
         .help = "ops with this in their name"},
        {.name = "json", .kind = HH_OPTION_FLAG, .value = &b.json, .help = "a JSON object a line"},
        {0},
    };
    const hh_command command = {.verb = "bench_ops", .summary = "time the ops", .words = "", .options = options};
    hh_words words = {0};
    bool help = false;
    hh_error err = {0};
    hh_code code = hh_options_parse(&command, argc - 1, argv + 1, &words, &help, &err);
    if (code == HH_OK && !help) code = hh_cpu_open(&b.be, (int)threads, HH_PRECISION_AUTO, isa, &err);
    if (code == HH_OK && !help) code = hh_arena_init(&b.memory, "benchmark", MEMORY, &err);
    if (code != HH_OK) {
        fprintf(stderr, "bench_ops: %s\n", err.text);
        return code == HH_EINVAL ? 2 : 1;
    }
    if (help) {
        hh_buf text = {0};
        hh_command_help(&command, &text);
        fputs(text.data, stdout);
        hh_buf_release(&text);
        return 0;
    }
    measure_rates(&b);
    bench_linear(&b);
    bench_losses(&b);
    hh_arena_release(&b.memory);
    hh_backend_close(b.be);
    hh_words_release(&words);
    return 0;
}
