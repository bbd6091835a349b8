/* Times softmax attention on the GPU beside its floor: products at the rate of a large one, or bytes at the rate of a
 * copy (docs/SPEED.md). A case is recorded once with few and once with many calls; the difference is the time of calls
 * without the launch. Prints a line a case, then the same as CSV.
 *
 *     build-cuda/bench/cuda/bench_attention [WORD]     only cases with WORD in their name */
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FLOPS_PER_S 787e12
#define BYTES_PER_S 4.2e12
#define MEMORY      ((size_t)6 << 30)

typedef enum kind { FORWARD, BACKWARD, DECODE } kind;

typedef struct shape {
    const char *name;
    kind kind;
    int64_t heads, kv_heads, width, n_spans, length;
    hh_dtype cache;
} shape;

typedef struct bench {
    hh_backend *be;
    hh_arena memory;
    hh_tensor q, o, lse, k, v, g, dq, dk, dv;
    hh_span span[64];
    hh_kv kv[64];
    int32_t kv_of_q[64];
} bench;

static void die(const hh_error *err) {
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A tensor of normal-like values in [-1, 1]: a block of them again and again. */
static hh_tensor make(bench *b, hh_dtype type, int64_t rows, int64_t heads, int64_t width) {
    enum { BLOCK = 1 << 20 };
    static hh_real values[BLOCK];
    static char raw[BLOCK * sizeof(hh_real)];
    uint32_t x = 12345;
    for (int i = 0; i < BLOCK; i++) {
        x = x * 1664525u + 1013904223u;
        values[i] = (hh_real)((double)(x >> 8) / (1 << 23) - 1);
    }
    hh_quantise(type, values, BLOCK, raw);
    hh_tensor t = hh_tensor_place_3d(&b->memory, type, rows, heads, width);
    const size_t all = hh_tensor_bytes(t), block = hh_dtype_bytes(type, BLOCK);
    for (size_t at = 0; at < all; at += block)
        b->be->to_device(b->be, (char *)t.data + at, raw, all - at < block ? all - at : block);
    return t;
}

static void set_up(bench *b, const shape *s) {
    hh_arena_reset(&b->memory, 0);
    const hh_dtype act = b->be->activation;
    const bool decode = s->kind == DECODE;
    const int64_t T = decode ? s->n_spans : s->n_spans * s->length;
    b->q = make(b, act, T, s->heads, s->width);
    b->o = make(b, act, T, s->heads, s->width);
    b->lse = hh_tensor_place_2d(&b->memory, HH_DTYPE_F32, T, s->heads);
    b->k = make(b, s->cache, s->n_spans * s->length, s->kv_heads, s->width);
    b->v = make(b, s->cache, s->n_spans * s->length, s->kv_heads, s->width);
    if (s->kind == BACKWARD) {
        b->g = make(b, act, T, s->heads, s->width);
        b->dq = make(b, act, T, s->heads, s->width);
        b->dk = make(b, act, T, s->kv_heads, s->width);
        b->dv = make(b, act, T, s->kv_heads, s->width);
    }
    for (int64_t i = 0; i < s->n_spans; i++) {
        b->span[i] = decode ? (hh_span){i, i + 1, s->length - 1} : (hh_span){i * s->length, (i + 1) * s->length, 0};
        b->kv[i] = (hh_kv){hh_tensor_rows(b->k, i * s->length, (i + 1) * s->length),
                           hh_tensor_rows(b->v, i * s->length, (i + 1) * s->length)};
    }
    for (int64_t h = 0; h < s->heads; h++) b->kv_of_q[h] = (int32_t)(h / (s->heads / s->kv_heads));
}

static void call(bench *b, const shape *s, bool backward) {
    const hh_ops *op = b->be->ops;
    if (backward)
        op->attention_bwd(b->be, b->dq, b->dk, b->dv, b->g, b->q, b->k, b->v, b->o, b->lse, b->span, s->n_spans,
                          b->kv_of_q, 0);
    else
        op->attention_fwd(b->be, b->o, b->lse, b->q, b->kv, b->span, s->n_spans, b->kv_of_q, 0);
}

/* Seconds of n recorded calls. */
static double seconds_of(bench *b, const shape *s, bool backward, int n) {
    hh_error err = {0};
    double best = INFINITY;
    for (int run = 0; run < 5; run++) {
        if (b->be->sync(b->be, &err) != HH_OK) die(&err);
        const double start = now();
        do {
            hh_backend_record_begin(b->be, b, (uint64_t)n);
            for (int i = 0; i < n; i++) call(b, s, backward);
        } while (hh_backend_record_end(b->be));
        if (b->be->sync(b->be, &err) != HH_OK) die(&err);
        if (run > 1) best = fmin(best, now() - start);
    }
    hh_backend_record_drop(b->be, b);
    return best;
}

static double time_of(bench *b, const shape *s, bool backward) {
    int n = 1;
    while (n < 64 && seconds_of(b, s, backward, n) < 3e-3) n *= 4;
    return (seconds_of(b, s, backward, 3 * n) - seconds_of(b, s, backward, n)) / (2 * n);
}

int main(int argc, char **argv) {
    static const shape shapes[] = {
        {"fwd 16 heads D128 32K", FORWARD, 16, 16, 128, 1, 32768, HH_DTYPE_BF16},
        {"fwd+bwd 16 heads D128 32K", BACKWARD, 16, 16, 128, 1, 32768, HH_DTYPE_BF16},
        {"fwd 16/8 heads D128 4K", FORWARD, 16, 8, 128, 1, 4096, HH_DTYPE_BF16},
        {"fwd+bwd 16/8 heads D128 8x2K", BACKWARD, 16, 8, 128, 8, 2048, HH_DTYPE_BF16},
        {"fwd 9 heads D64 8K", FORWARD, 9, 9, 64, 1, 8192, HH_DTYPE_BF16},
        {"fwd+bwd 9 heads D64 8K", BACKWARD, 9, 9, 64, 1, 8192, HH_DTYPE_BF16},
        {"fwd+bwd 9/3 heads D64 32x2K", BACKWARD, 9, 3, 64, 32, 2048, HH_DTYPE_BF16},
        {"fwd 2 heads D128 128K", FORWARD, 2, 2, 128, 1, 131072, HH_DTYPE_BF16},
        {"decode 16/8 heads D128 128K", DECODE, 16, 8, 128, 1, 131072, HH_DTYPE_BF16},
        {"decode 2/1 heads D128 128K", DECODE, 2, 1, 128, 1, 131072, HH_DTYPE_BF16},
        {"decode 2/1 heads D128 512K", DECODE, 2, 1, 128, 1, 524288, HH_DTYPE_BF16},
        {"decode 2/1 heads D128 512K q8_0", DECODE, 2, 1, 128, 1, 524288, HH_DTYPE_Q8_0},
        {"decode 3/1 heads D64 128K", DECODE, 3, 1, 64, 1, 131072, HH_DTYPE_BF16},
        {"decode 16/8 heads D128 4K batch 64", DECODE, 16, 8, 128, 64, 4096, HH_DTYPE_BF16},
    };
    const int n = (int)(sizeof shapes / sizeof *shapes);
    double us[sizeof shapes / sizeof *shapes] = {0}, floor_us[sizeof shapes / sizeof *shapes] = {0};
    static bench b;
    hh_error err = {0};
    if (hh_cuda_open(&b.be, 0, HH_PRECISION_AUTO, &err) != HH_OK) die(&err);
    if (b.be->arena_init(b.be, &b.memory, "benchmark", MEMORY, &err) != HH_OK) die(&err);
    for (int i = 0; i < n; i++) {
        const shape *s = &shapes[i];
        if (argc > 1 && !strstr(s->name, argv[1])) continue;
        set_up(&b, s);
        double t = time_of(&b, s, false);
        if (s->kind == BACKWARD) t += time_of(&b, s, true);
        const double pairs = (double)s->n_spans * (double)s->length * (double)s->length / 2;
        const double flops = (s->kind == BACKWARD ? 14 : 4) * (double)(s->heads * s->width) * pairs;
        const double bytes = 2 * (double)hh_tensor_bytes(b.k);
        const bool decode = s->kind == DECODE;
        us[i] = 1e6 * t;
        floor_us[i] = 1e6 * (decode ? bytes / BYTES_PER_S : flops / FLOPS_PER_S);
        printf("%-36s %10.1f us  floor %9.1f us  %5.1f %%  %7.1f %s\n", s->name, us[i], floor_us[i],
               100 * floor_us[i] / us[i], decode ? bytes / t * 1e-9 : flops / t * 1e-12, decode ? "GB/s" : "TFLOP/s");
        fflush(stdout);
    }
    printf("case,us,floor_us,share\n");
    for (int i = 0; i < n; i++)
        if (us[i] > 0) printf("%s,%.1f,%.1f,%.3f\n", shapes[i].name, us[i], floor_us[i], floor_us[i] / us[i]);
    b.be->arena_release(b.be, &b.memory);
    hh_backend_close(b.be);
    return 0;
}
