/* Times of attention, Gated DeltaNet and the row ops against what the processor could do: share of the floating-point
 * peak (measured here by a loop of fused multiply-adds), or of the measured copy bandwidth.
 *   bench_mixers [part of a case's name]       one line a case: name, time, rate, floor, share */
#include "ops/attention.h"
#include "ops/gdn.h"

#include "base/parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static hh_backend *be;
static hh_arena memory;
static double peak_flops, peak_bytes; /* a second */
static const char *only;

/* With one thread the time it had the processor, so that other programs count less. */
static double now(void) {
    struct timespec t;
    clock_gettime(be->n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef void case_fn(void *context);

/* The best of several runs, at least 0.3 s of them. */
static double seconds(case_fn *f, void *context) {
    double best = 1e30;
    f(context);
    for (double start = now(); now() - start < 0.3;) {
        const double t = now();
        f(context);
        const double d = now() - t;
        if (d < best) best = d;
    }
    return best;
}

static void report(const char *name, double flops, double bytes, case_fn *f, void *context) {
    if (only && !strstr(name, only)) return;
    const double t = seconds(f, context), floor_f = flops / peak_flops, floor_b = bytes / peak_bytes;
    const double least = floor_f > floor_b ? floor_f : floor_b;
    printf("%-44s %9.1f us  %7.1f GFLOP/s  %6.1f GB/s  floor %9.1f us  share %3.0f %%\n", name, t * 1e6,
           flops / t * 1e-9, bytes / t * 1e-9, least * 1e6, 100 * least / t);
    fflush(stdout);
}

/* Chains of multiply-adds in registers; compiled for the processor at hand by function attributes would be better, so
 * the figure given by HYDRAHEAD_PEAK_GFLOPS (all threads) is preferred when set. */
static void measure_peaks(void) {
    const char *given = getenv("HYDRAHEAD_PEAK_GFLOPS");
    peak_flops = (given ? atof(given) : 108.0 * be->n_threads) * 1e9;
    const size_t n = (size_t)64 << 20;
    char *a = hh_arena_alloc(&memory, n), *b = hh_arena_alloc(&memory, n);
    memset(a, 1, n), memset(b, 2, n);
    double best = 1e30;
    for (int i = 0; i < 5; i++) {
        const double t = now();
        memcpy(a, b, n);
        const double d = now() - t;
        if (d < best) best = d;
    }
    peak_bytes = 2 * (double)n / best;
    memory.used = 0;
}

static hh_tensor heads(int64_t T, int64_t h, int64_t D) {
    hh_tensor t = hh_tensor_place_3d(&memory, HH_DTYPE_F32, T, h, D);
    for (int64_t i = 0; i < T * h * D; i++) ((float *)t.data)[i] = (float)((i * 2654435761u >> 8 & 1023) - 512) / 512;
    return t;
}

typedef struct attention_case {
    hh_tensor q, k, v, o, lse, dq, dk, dv, do_;
    hh_kv kv[64];
    hh_span span[64];
    int64_t n_spans;
    int32_t kv_of_q[64];
    bool inference; /* behind a cache: no backward follows */
} attention_case;

static void attention_forward(void *context) {
    attention_case *c = context;
    be->decoding = c->q.dim[0] == c->n_spans;
    be->ops->attention_fwd(be, c->o, c->inference ? HH_NONE : c->lse, c->q, c->kv, c->span, c->n_spans, c->kv_of_q, 0);
    be->decoding = false;
}
static void attention_backward(void *context) {
    attention_case *c = context;
    be->ops->attention_bwd(be, c->dq, c->dk, c->dv, c->do_, c->q, c->k, c->v, c->o, c->lse, c->span, c->n_spans,
                           c->kv_of_q, 0);
}

/* n_spans sequences of T tokens; with pos > 0 only the last token (decode) at that position. */
static void bench_attention(int64_t n_spans, int64_t T, int64_t Hq, int64_t G, int64_t D, int64_t pos, hh_dtype type) {
    memory.used = 0;
    attention_case c = {.n_spans = n_spans, .inference = pos > 0};
    const int64_t rows = n_spans * T, keys = pos ? pos + T : rows;
    c.q = heads(rows, Hq, D), c.o = heads(rows, Hq, D), c.dq = heads(rows, Hq, D), c.do_ = heads(rows, Hq, D);
    c.lse = hh_tensor_join(heads(rows, Hq, 1));
    c.k = heads(keys, G, D), c.v = heads(keys, G, D), c.dk = heads(keys, G, D), c.dv = heads(keys, G, D);
    hh_tensor k = c.k, v = c.v;
    if (type != HH_DTYPE_F32) {
        k = hh_tensor_place_3d(&memory, type, keys, G, D), v = hh_tensor_place_3d(&memory, type, keys, G, D);
        hh_quantise(type, c.k.data, keys * G * D, k.data), hh_quantise(type, c.v.data, keys * G * D, v.data);
    }
    for (int64_t h = 0; h < Hq; h++) c.kv_of_q[h] = (int32_t)(h * G / Hq);
    for (int64_t s = 0; s < n_spans; s++) {
        c.span[s] = (hh_span){s * T, (s + 1) * T, pos};
        c.kv[s] =
            pos ? (hh_kv){k, v} : (hh_kv){hh_tensor_rows(k, s * T, s * T + T), hh_tensor_rows(v, s * T, s * T + T)};
    }
    const double pairs = (double)n_spans * (double)Hq * ((double)T * (double)pos + (double)T * (double)(T + 1) / 2);
    const double bytes = (double)keys * (double)(G * D) * 2 * (double)hh_dtype_bytes(type, 32) / 32;
    char name[100];
    snprintf(name, sizeof name, "attention fwd %lldx%lld pos %lld %lld/%lld D%lld %s", (long long)n_spans, (long long)T,
             (long long)pos, (long long)Hq, (long long)G, (long long)D, hh_dtype_name(type));
    report(name, 4 * pairs * (double)D, bytes, attention_forward, &c);
    if (pos) return;
    snprintf(name, sizeof name, "attention bwd %lldx%lld %lld/%lld D%lld", (long long)n_spans, (long long)T,
             (long long)Hq, (long long)G, (long long)D);
    report(name, 10 * pairs * (double)D, bytes, attention_backward, &c);
}

typedef struct gdn_case {
    hh_tensor q, k, v, g, beta, o, saved, dq, dk, dv, dg, dbeta, do_, state[64], dstate[64];
    hh_span span[64];
    int64_t n_spans;
} gdn_case;

static void gdn_forward(void *context) {
    gdn_case *c = context;
    be->ops->gdn_fwd(be, c->o, c->saved, c->q, c->k, c->v, c->g, c->beta, c->state, c->span, c->n_spans,
                     HH_GDN_CHUNKED);
}
static void gdn_backward(void *context) {
    gdn_case *c = context;
    be->ops->gdn_bwd(be, c->dq, c->dk, c->dv, c->dg, c->dbeta, c->do_, c->saved, c->q, c->k, c->v, c->g, c->beta,
                     c->dstate, c->span, c->n_spans, HH_GDN_CHUNKED);
}

static void scale(hh_tensor t, float factor, float shift) {
    for (int64_t i = 0; i < hh_tensor_count(t); i++) ((float *)t.data)[i] = ((float *)t.data)[i] * factor + shift;
}

static void bench_gdn(int64_t n_spans, int64_t T, int64_t H, int64_t D) {
    memory.used = 0;
    gdn_case c = {.n_spans = n_spans};
    const int64_t rows = n_spans * T;
    c.q = heads(rows, H, D), c.k = heads(rows, H, D), c.v = heads(rows, H, D), c.o = heads(rows, H, D);
    c.dq = heads(rows, H, D), c.dk = heads(rows, H, D), c.dv = heads(rows, H, D), c.do_ = heads(rows, H, D);
    c.g = hh_tensor_join(heads(rows, H, 1)), c.beta = hh_tensor_join(heads(rows, H, 1));
    c.dg = hh_tensor_join(heads(rows, H, 1)), c.dbeta = hh_tensor_join(heads(rows, H, 1));
    scale(c.k, 1.7f / (float)D, 0), scale(c.g, 0.04f, -0.05f), scale(c.beta, 0.4f, 0.5f);
    for (int64_t s = 0; s < n_spans; s++) {
        c.span[s] = (hh_span){s * T, (s + 1) * T, 0};
        c.state[s] = heads(H, D, D), c.dstate[s] = heads(H, D, D);
        scale(c.state[s], 0, 0), scale(c.dstate[s], 0, 0);
    }
    c.saved = heads(hh_gdn_chunk_count(c.span, n_spans), H, D * D);
    const double state_bytes = 2.0 * 4 * (double)(n_spans * H * D * D);
    const double token = T == 1 ? 8.0 * (double)(D * D) : 2.0 * (3.0 * (double)(D * D) + 2 * 64.0 * (double)D);
    char name[100];
    snprintf(name, sizeof name, "gdn fwd %lldx%lld %lld heads D%lld", (long long)n_spans, (long long)T, (long long)H,
             (long long)D);
    if (T == 1) c.saved = HH_NONE;
    report(name, token * (double)(rows * H), state_bytes, gdn_forward, &c);
    if (T == 1) return;
    snprintf(name, sizeof name, "gdn bwd %lldx%lld %lld heads D%lld", (long long)n_spans, (long long)T, (long long)H,
             (long long)D);
    report(name, 2.0 * (double)(rows * H) * (7.0 * (double)(D * D) + 5 * 64.0 * (double)D), state_bytes, gdn_backward,
           &c);
}

int main(int argc, char **argv) {
    hh_error err = {0};
    only = argc > 1 ? argv[1] : NULL;
    const char *threads = getenv("HYDRAHEAD_THREADS"), *isa = getenv("HYDRAHEAD_ISA");
    if (hh_cpu_open(&be, threads ? atoi(threads) : 0, HH_PRECISION_AUTO, isa, &err) != HH_OK ||
        hh_arena_init(&memory, "bench", (size_t)3 << 30, &err) != HH_OK) {
        fprintf(stderr, "bench_mixers: %s\n", err.text);
        return 1;
    }
    measure_peaks();
    printf("%s, %d threads, peak %.0f GFLOP/s, copy %.1f GB/s\n", be->isa, be->n_threads, peak_flops * 1e-9,
           peak_bytes * 1e-9);
    bench_attention(16, 256, 4, 1, 32, 0, HH_DTYPE_F32);
    bench_attention(4, 512, 9, 3, 64, 0, HH_DTYPE_F32);
    bench_attention(1, 2048, 9, 3, 64, 0, HH_DTYPE_F32);
    bench_attention(1, 2048, 4, 1, 128, 0, HH_DTYPE_F32);
    bench_attention(1, 512, 9, 3, 64, 8192, HH_DTYPE_F32);
    bench_attention(1, 512, 9, 3, 64, 8192, HH_DTYPE_BF16);
    bench_attention(1, 512, 1, 1, 64, 32768, HH_DTYPE_BF16);
    bench_attention(1, 512, 4, 1, 128, 8192, HH_DTYPE_BF16);
    bench_attention(1, 1, 9, 3, 64, 8192, HH_DTYPE_F32);
    bench_attention(1, 1, 9, 3, 64, 8192, HH_DTYPE_BF16);
    bench_attention(1, 1, 1, 1, 64, 32768, HH_DTYPE_F32);
    bench_attention(1, 1, 4, 1, 128, 8192, HH_DTYPE_F32);
    bench_gdn(16, 256, 4, 32);
    bench_gdn(4, 512, 8, 64);
    bench_gdn(1, 2048, 8, 64);
    bench_gdn(1, 2048, 8, 96);
    bench_gdn(1, 2048, 8, 128);
    bench_gdn(1, 1, 8, 64);
    bench_gdn(1, 1, 240, 64);
    bench_gdn(1, 1, 400, 128);
    bench_gdn(1, 1, 1600, 128);
    hh_backend_close(be);
    return 0;
}
