/* The gated delta rule's backward on the GPU beside its floor, the larger of: tokens, gradients and chunk states once
 * through memory; the products of B5-B12 at the speed of a large product. `error` is the largest relative distance of a
 * gradient from that of float32 arithmetic on the same bf16 inputs, at 2048 tokens. CSV on stdout;
 * bench/peers/fla_gdn.py prints the peer's times. */
#include "cuda/timing.h"

extern "C" {
#include "ops/gdn.h"
}

#include <cmath>

static __global__ void set_gates(float *g, float *beta, int64_t n, float decay) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        g[i] = -decay * (0.5f + fabsf(g[i]));
        beta[i] = 2 / (1 + expf(-beta[i]));
    }
}

static hh_tensor heads_of(hh_dtype dtype, int64_t T, int64_t H, int64_t D, double scale) {
    return hh_tensor_split(bench_matrix(dtype, T, H * D, scale), H);
}

typedef struct problem {
    int64_t T, H, D, n_spans;
    hh_span *span;
    hh_tensor q, k, v, do_, saved, g, beta, dq, dk, dv, dg, dbeta;
} problem;

static problem make(int64_t spans, int64_t length, int64_t H, int64_t D, double decay) {
    problem p = {};
    p.T = spans * length, p.H = H, p.D = D, p.n_spans = spans;
    p.span = (hh_span *)hh_alloc((size_t)spans * sizeof *p.span);
    for (int64_t s = 0; s < spans; s++) p.span[s].lo = s * length, p.span[s].hi = (s + 1) * length;
    const hh_dtype b = HH_DTYPE_BF16;
    p.q = heads_of(b, p.T, H, D, 1 / (double)D), p.k = heads_of(b, p.T, H, D, 1 / sqrt((double)D));
    p.v = heads_of(b, p.T, H, D, 1), p.do_ = heads_of(b, p.T, H, D, 1);
    p.dq = heads_of(b, p.T, H, D, 0), p.dk = heads_of(b, p.T, H, D, 0), p.dv = heads_of(b, p.T, H, D, 0);
    p.saved = hh_tensor_split(bench_matrix(b, hh_gdn_chunk_count(p.span, spans), H * D * D, 0.1), H);
    p.g = bench_matrix(HH_DTYPE_F32, p.T, H, 1), p.beta = bench_matrix(HH_DTYPE_F32, p.T, H, 1);
    p.dg = bench_matrix(HH_DTYPE_F32, p.T, H, 0), p.dbeta = bench_matrix(HH_DTYPE_F32, p.T, H, 0);
    set_gates<<<256, 256>>>((float *)p.g.data, (float *)p.beta.data, p.T * H, (float)decay);
    cudaDeviceSynchronize();
    return p;
}

static void release(problem *p) {
    hh_tensor all[] = {p->q, p->k, p->v, p->do_, p->saved, p->g, p->beta, p->dq, p->dk, p->dv, p->dg, p->dbeta};
    for (hh_tensor t : all) cudaFree(t.data);
    hh_free(p->span);
}

static void run(hh_backend *be, const problem *p) {
    be->ops->gdn_bwd(be, p->dq, p->dk, p->dv, p->dg, p->dbeta, p->do_, p->saved, p->q, p->k, p->v, p->g, p->beta, NULL,
                     p->span, p->n_spans, HH_GDN_CHUNKED);
}

static float *to_host(hh_backend *be, hh_tensor t) {
    const int64_t n = hh_tensor_count(t);
    float *x = (float *)hh_alloc((size_t)n * sizeof *x);
    char *raw = (char *)hh_alloc(hh_tensor_bytes(t));
    be->to_host(be, raw, t.data, hh_tensor_bytes(t));
    hh_dequantise_float(t.dtype, raw, n, x);
    hh_free(raw);
    return x;
}

static double distance(hh_backend *be, hh_tensor a, hh_tensor b) {
    float *x = to_host(be, a), *y = to_host(be, b);
    double difference = 0, size = 0;
    for (int64_t i = 0, n = hh_tensor_count(a); i < n; i++) {
        difference += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        size += (double)y[i] * y[i];
    }
    hh_free(x);
    hh_free(y);
    return sqrt(difference / size);
}

/* The same tensor in float32. */
static hh_tensor widened(hh_backend *be, hh_tensor t) {
    float *x = to_host(be, t);
    hh_tensor w = t;
    w.dtype = HH_DTYPE_F32;
    w.data = bench_bytes(hh_tensor_bytes(w));
    be->to_device(be, w.data, x, hh_tensor_bytes(w));
    hh_free(x);
    return w;
}

static double error_of(hh_backend *be, int64_t H, int64_t D, double decay) {
    problem p = make(1, 2048, H, D, decay), f = p;
    hh_error err = {};
    hh_backend *exact;
    if (hh_cuda_open(&exact, 0, HH_PRECISION_F32, &err) != HH_OK) return NAN;
    hh_tensor *in[] = {&f.q, &f.k, &f.v, &f.do_, &f.saved, &f.dq, &f.dk, &f.dv};
    for (hh_tensor *t : in) *t = widened(be, *t);
    f.dg.data = bench_bytes(hh_tensor_bytes(f.dg)), f.dbeta.data = bench_bytes(hh_tensor_bytes(f.dbeta));
    run(be, &p);
    run(exact, &f);
    double worst = 0;
    const hh_tensor out[][2] = {{p.dq, f.dq}, {p.dk, f.dk}, {p.dv, f.dv}, {p.dg, f.dg}, {p.dbeta, f.dbeta}};
    if (be->sync(be, &err) != HH_OK || exact->sync(exact, &err) != HH_OK) return NAN;
    for (auto &o : out) worst = fmax(worst, distance(be, o[0], o[1]));
    hh_backend_close(exact);
    return worst;
}

static void measure(hh_backend *be, const char *what, int64_t spans, int64_t length, int64_t H, int64_t D,
                    double decay) {
    problem p = make(spans, length, H, D, decay);
    const double us = bench_time(be, 8, [&](int) { run(be, &p); });
    const double chunks = (double)hh_gdn_chunk_count(p.span, spans) * (double)H, n = HH_GDN_CHUNK, d = (double)D;
    const double bytes = 7 * (double)(p.T * H) * d * 2 + chunks * d * d * 2;
    const double flop = 2 * chunks * (7 * n * d * d + 5 * n * n * d);
    const double floor_us = fmax(bytes / BENCH_TOP_GBS * 1e-3, flop / BENCH_TOP_TFLOPS * 1e-6);
    printf("ours,%s,%lld,%lld,%lld,%lld,%g,%.1f,%.1f,%.2f,%.1f,%.1e\n", what, (long long)spans, (long long)length,
           (long long)H, (long long)D, decay, us, floor_us, floor_us / us, flop / us * 1e-6, error_of(be, H, D, decay));
    fflush(stdout);
    release(&p);
}

int main(int argc, char **argv) {
    hh_backend *be = bench_open(HH_PRECISION_AUTO);
    if (argc > 1) { /* one call, for a profiler */
        const int64_t D = atoll(argv[1]);
        problem p = D == 64 ? make(32, 2048, 7, 64, 0.05) : make(1, 8192, 16, D, 0.05);
        run(be, &p);
    } else {
        printf("who,what,spans,tokens,heads,width,decay,us,floor_us,share,tflops,error\n");
        measure(be, "gdn_bwd", 1, 8192, 16, 128, 0.05);
        measure(be, "gdn_bwd", 1, 32768, 16, 128, 0.05);
        measure(be, "gdn_bwd", 1, 32768, 16, 128, 1e-3);
        measure(be, "gdn_bwd", 1, 32768, 4, 128, 0.05);
        measure(be, "gdn_bwd", 32, 2048, 7, 64, 0.05);
        measure(be, "gdn_bwd", 1, 65536, 7, 64, 0.05);
    }
    hh_error err = {};
    if (be->sync(be, &err) != HH_OK) fprintf(stderr, "%s\n", err.text);
    hh_backend_close(be);
    return err.code != HH_OK;
}
