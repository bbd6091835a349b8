/* Times Gated DeltaNet's forward on the GPU beside its floor, the bytes that must move: chunked over whole sequences, and
 * the decode step. Also how far the chunked form is from the recurrent one, which keeps everything in float32. Prints a
 * line a case, then the same as CSV.
 *
 *     build-cuda/bench/cuda/bench_gdn [WORD [1|2|3]]     only cases with WORD in their name; chunks by gdn_wide.cu, by
 *                                                        gdn_chain.cu, or only prepared */
#include "cuda/timing.h"
#include "ops/cuda/gdn_fwd.cuh"

#include <cmath>
#include <string>
#include <vector>

#define MOST_SPANS 64
#define LAYERS     12 /* of the decode step: their states together are larger than the L2 cache from 8 sequences on */

typedef struct gdn_case {
    const char *name;
    int64_t heads, D, n_spans, length; /* length 1: the decode step */
    bool saved;
} gdn_case;

static const gdn_case cases[] = {
    {"16 heads D128 1x2K", 16, 128, 1, 2048, false},        {"16 heads D128 1x8K", 16, 128, 1, 8192, false},
    {"16 heads D128 1x16K", 16, 128, 1, 16384, false},      {"16 heads D128 1x32K", 16, 128, 1, 32768, false},
    {"16 heads D128 1x32K saved", 16, 128, 1, 32768, true}, {"16 heads D128 8x4K saved", 16, 128, 8, 4096, true},
    {"7 heads D64 32x2K", 7, 64, 32, 2048, false},          {"7 heads D64 32x2K saved", 7, 64, 32, 2048, true},
    {"7 heads D64 1x32K", 7, 64, 1, 32768, false},          {"decode 16 heads D128 B1", 16, 128, 1, 1, false},
    {"decode 16 heads D128 B4", 16, 128, 4, 1, false},      {"decode 16 heads D128 B16", 16, 128, 16, 1, false},
    {"decode 16 heads D128 B32", 16, 128, 32, 1, false},    {"decode 16 heads D128 B64", 16, 128, 64, 1, false},
    {"decode 7 heads D64 B64", 7, 64, 64, 1, false},
};

static __global__ void shape_gates_kernel(float *g, float *beta, int64_t n) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        g[i] = -0.05f * fabsf(g[i]);
        beta[i] = 1 / (1 + expf(-beta[i]));
    }
}

typedef struct inputs {
    hh_tensor q, k, v, g, beta, o, saved, state[LAYERS][MOST_SPANS];
    hh_span span[MOST_SPANS];
} inputs;

static hh_tensor heads_of(int64_t T, const gdn_case *c, double scale) {
    return hh_tensor_split(bench_matrix(HH_DTYPE_BF16, T, c->heads * c->D, scale), c->heads);
}

static void set_up(inputs *x, hh_backend *be, const gdn_case *c) {
    const int64_t T = c->n_spans * c->length;
    x->q = heads_of(T, c, 1), x->k = heads_of(T, c, 1), x->v = heads_of(T, c, 1), x->o = heads_of(T, c, 0);
    x->g = bench_matrix(HH_DTYPE_F32, T, c->heads, 1), x->beta = bench_matrix(HH_DTYPE_F32, T, c->heads, 1);
    hh_tensor r = bench_matrix(HH_DTYPE_F32, T, c->heads, 0);
    be->ops->l2norm_fwd(be, x->q, r, x->q, 1 / sqrt((double)c->D));
    be->ops->l2norm_fwd(be, x->k, r, x->k, 1);
    hh_error err;
    be->sync(be, &err);
    shape_gates_kernel<<<1024, 256>>>((float *)x->g.data, (float *)x->beta.data, T * c->heads);
    cudaDeviceSynchronize();
    for (int64_t s = 0; s < c->n_spans; s++) x->span[s] = {s * c->length, (s + 1) * c->length, 0};
    for (int l = 0; l < (c->length == 1 ? LAYERS : 1); l++)
        for (int64_t s = 0; s < c->n_spans; s++) {
            hh_tensor all = bench_matrix(HH_DTYPE_F32, c->heads, c->D * c->D, 0.1);
            x->state[l][s] = hh_tensor_3d(all.data, HH_DTYPE_F32, c->heads, c->D, c->D);
        }
    x->saved = HH_NONE;
    if (c->saved) {
        const int64_t chunks = hh_gdn_chunk_count(x->span, c->n_spans);
        x->saved = hh_tensor_split(bench_matrix(HH_DTYPE_BF16, chunks, c->heads * c->D * c->D, 0), c->heads);
    }
}

static void run(inputs *x, hh_backend *be, const gdn_case *c, int layer, hh_gdn_mode mode) {
    be->ops->gdn_fwd(be, x->o, x->saved, x->q, x->k, x->v, x->g, x->beta, x->state[layer], x->span, c->n_spans, mode);
}

/* The last rows of o. */
static std::vector<float> last_rows(inputs *x, hh_backend *be, const gdn_case *c) {
    const int64_t rows = c->length < 64 ? c->length : 64, n = rows * c->heads * c->D, T = x->o.dim[0];
    std::vector<hh_bf16> raw((size_t)n);
    std::vector<float> y((size_t)n);
    be->to_host(be, raw.data(), (hh_bf16 *)x->o.data + (T - rows) * x->o.stride, (size_t)n * sizeof(hh_bf16));
    for (int64_t i = 0; i < n; i++) y[(size_t)i] = __bfloat162float(raw[(size_t)i]);
    return y;
}

/* ||chunked - recurrent|| / ||recurrent||, both from no state. */
static double error_of(inputs *x, hh_backend *be, const gdn_case *c) {
    be->ops->gdn_fwd(be, x->o, HH_NONE, x->q, x->k, x->v, x->g, x->beta, NULL, x->span, c->n_spans, HH_GDN_CHUNKED);
    std::vector<float> a = last_rows(x, be, c);
    be->ops->gdn_fwd(be, x->o, HH_NONE, x->q, x->k, x->v, x->g, x->beta, NULL, x->span, c->n_spans, HH_GDN_RECURRENT);
    std::vector<float> b = last_rows(x, be, c);
    double difference = 0, size = 0;
    for (size_t i = 0; i < a.size(); i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}

int main(int argc, char **argv) {
    hh_backend *be = bench_open(HH_PRECISION_AUTO);
    if (argc > 2) hh_gdn_chunked_path = atoi(argv[2]);
    std::vector<std::string> csv;
    char line[256];
    printf("%-28s %10s %10s %8s %9s\n", "case", "us", "floor us", "share", "error");
    for (const gdn_case &c : cases) {
        if (argc > 1 && !strstr(c.name, argv[1])) continue;
        static inputs x;
        set_up(&x, be, &c);
        const bool decode = c.length == 1;
        const double T = (double)(c.n_spans * c.length), heads = (double)c.heads, D = (double)c.D;
        double bytes = T * heads * (4 * D * 2 + 8) + 2.0 * (double)c.n_spans * heads * D * D * 4;
        if (c.saved) bytes += (double)x.saved.dim[0] * heads * D * D * 2;
        const hh_gdn_mode mode = decode ? HH_GDN_RECURRENT : HH_GDN_CHUNKED;
        const double error = decode ? 0 : error_of(&x, be, &c);
        for (int l = 0; decode && l < LAYERS; l++) run(&x, be, &c, l, mode);
        const double us =
            bench_time(be, decode ? 10 * LAYERS : 10, [&](int i) { run(&x, be, &c, decode ? i % LAYERS : 0, mode); });
        const double floor_us = bytes / BENCH_TOP_GBS * 1e-3;
        printf("%-28s %10.2f %10.2f %7.1f%% %9.2g\n", c.name, us, floor_us, 100 * floor_us / us, error);
        fflush(stdout);
        snprintf(line, sizeof line, "gdn_fwd,%s,%.2f,%.2f,%.3g", c.name, us, floor_us, error);
        csv.push_back(line);
    }
    printf("\nop,case,us,floor_us,error\n");
    for (const std::string &l : csv) printf("%s\n", l.c_str());
    hh_error err;
    return be->sync(be, &err) == HH_OK ? 0 : (fprintf(stderr, "%s\n", err.text), 1);
}
