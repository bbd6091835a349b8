/* Products of the model's shapes on the GPU: TFLOP/s of long ones, GB/s of those of a few tokens (`long`, `short`). Also
 * `candidates`: what the library would have chosen second, third, ...; `plans`: what a new shape costs; `check`: the
 * candidate kernel beside the one in use. CSV on stdout; bench/peers/torch_products.py prints the same lines for torch. */
#include "cuda/timing.h"
#include "kernels/matvec_early.cuh"
#include "ops/cuda/products.h"

typedef struct shape {
    const char *model, *name;
    int64_t tokens, k, n;
} shape;

static const shape shapes[] = {
    {"smollm2", "in", 65536, 576, 960},       {"smollm2", "in-hybrid", 65536, 576, 2000},
    {"smollm2", "out", 65536, 576, 576},      {"smollm2", "gate_up", 65536, 576, 3072},
    {"smollm2", "down", 65536, 1536, 576},    {"smollm2", "head", 4096, 576, 49152},
    {"qwen3", "in", 16384, 2048, 4096},       {"qwen3", "in-hybrid", 16384, 2048, 8256},
    {"qwen3", "gate_up", 16384, 2048, 12288}, {"qwen3", "down", 16384, 6144, 2048},
    {"qwen3", "head", 1024, 2048, 151936},    {"cube", "8192", 8192, 8192, 8192},
};

static void print_long(const shape *s, const char *what, double us) {
    double tflops = 2e-6 * (double)s->tokens * (double)s->k * (double)s->n / us;
    double bytes = 2.0 * ((double)s->tokens * (double)(s->k + s->n) + (double)s->k * (double)s->n);
    double floor = std::max(2e-6 * (double)s->tokens * (double)s->k * (double)s->n / BENCH_TOP_TFLOPS,
                            bytes / BENCH_TOP_GBS / 1000);
    printf("ours,%s,%s,%s,%lld,%lld,%lld,%.1f,%.0f,%.2f\n", s->model, s->name, what, (long long)s->tokens,
           (long long)s->k, (long long)s->n, us, tflops, floor / us);
    fflush(stdout);
}

static void run_long(hh_backend *be) {
    hh_dtype act = be->activation;
    for (const shape &s : shapes) {
        hh_tensor x = bench_matrix(act, s.tokens, s.k, 1), y = bench_matrix(act, s.tokens, s.n, 1);
        hh_tensor wide = bench_matrix(HH_DTYPE_BF16, s.n, s.k, 0.03),
                  master = bench_matrix(HH_DTYPE_F32, s.n, s.k, 0.03);
        hh_linear w = bench_linear(wide), m = bench_linear(master);
        int n = (double)s.tokens * (double)s.k * (double)s.n > 1e11 ? 5 : 10;
        print_long(&s, "fwd", bench_time(be, n, [&](int) { be->ops->linear_fwd(be, y, x, &w, false); }));
        print_long(&s, "fwd-f32-weights", bench_time(be, n, [&](int) { be->ops->linear_fwd(be, y, x, &m, false); }));
        print_long(&s, "fwd-add", bench_time(be, n, [&](int) { be->ops->linear_fwd(be, y, x, &w, true); }));
        print_long(&s, "bwd_input", bench_time(be, n, [&](int) { be->ops->linear_bwd_input(be, x, y, &w, false); }));
        print_long(&s, "bwd_weight", bench_time(be, n, [&](int) { be->ops->linear_bwd_weight(be, &m, y, x); }));
        cudaFree(x.data), cudaFree(y.data), cudaFree(wide.data), cudaFree(master.data);
    }
}

static const shape short_shapes[] = {
    {"smollm2", "in", 0, 576, 960},       {"smollm2", "gate_up", 0, 576, 3072}, {"smollm2", "down", 0, 1536, 576},
    {"smollm2", "head", 0, 576, 49152},   {"qwen3", "in", 0, 2048, 4096},       {"qwen3", "out", 0, 2048, 2048},
    {"qwen3", "gate_up", 0, 2048, 12288}, {"qwen3", "down", 0, 6144, 2048},     {"qwen3", "head", 0, 2048, 151936},
};

/* ||a - b|| / ||b|| of two tensors of one type on the card. */
static double distance(hh_tensor a, hh_tensor b) {
    size_t n = (size_t)hh_tensor_count(a), bytes = hh_tensor_bytes(a);
    char *host[2];
    double d = 0, size = 0;
    for (int i = 0; i < 2; i++) {
        host[i] = (char *)hh_alloc(bytes);
        cudaMemcpy(host[i], i ? b.data : a.data, bytes, cudaMemcpyDeviceToHost);
    }
    for (size_t i = 0; i < n; i++) {
        float x[2];
        for (int k = 0; k < 2; k++)
            hh_dequantise_float(a.dtype, host[k] + hh_dtype_bytes(a.dtype, (int64_t)i), 1, &x[k]);
        d += ((double)x[0] - x[1]) * ((double)x[0] - x[1]);
        size += (double)x[1] * x[1];
    }
    for (char *h : host) hh_free(h);
    return sqrt(d / size);
}

/* Weights never come from the L2 cache: a call in a row of many, each with its own. The last column is the distance from
 * cuBLASLt's result. */
static void run_short(hh_backend *be) {
    hh_cuda *c = hh_cuda_of(be);
    hh_error err = {};
    for (const shape &s : short_shapes) {
        size_t bytes = (size_t)(s.k * s.n) * 2, all = (size_t)1 << 30;
        int copies = (int)std::max<size_t>(2, std::min<size_t>(all / bytes, 100));
        hh_tensor w = bench_matrix(HH_DTYPE_BF16, s.n * copies, s.k, 0.03);
        for (int64_t tokens : {1, 4, 8, 16}) {
            hh_tensor x = bench_matrix(HH_DTYPE_BF16, tokens, s.k, 1), y[2];
            for (hh_tensor &t : y) t = bench_matrix(HH_DTYPE_BF16, tokens, s.n, 1);
            const char *who[] = {"library", "matvec", "candidate", "candidate-early"};
            for (int way = 0; way < 4; way++) {
                if (way == 1 && s.n * s.k > (int64_t)4 << 20) continue; /* the library's */
                auto body = [&](int i) {
                    hh_tensor wi = hh_tensor_rows(w, i * s.n, (i + 1) * s.n);
                    hh_linear l = bench_linear(wi);
                    if (way == 0) hh_cuda_product(be, "linear_fwd", y[0], x, false, wi, true, NULL, false);
                    if (way == 1) hh_cuda_matvec(be, y[1], x, &l, false);
                    if (way >= 2) run_matvec_early(be, y[1], x, &l, false);
                };
                if (way == 3) c->mode = HH_CUDA_RECORD;
                double us = bench_time(be, copies, body);
                c->mode = HH_CUDA_RUN;
                be->sync(be, &err);
                double moved = 1e-3 * ((double)bytes + 2.0 * (double)tokens * (double)(s.k + s.n));
                printf("ours-%s,%s,%s,short,%lld,%lld,%lld,%.2f,%.0f,%.2f,%.1e\n", who[way], s.model, s.name,
                       (long long)tokens, (long long)s.k, (long long)s.n, us, moved / us, moved / us / BENCH_TOP_GBS,
                       way ? distance(y[1], y[0]) : 0.0);
                fflush(stdout);
            }
            cudaFree(x.data), cudaFree(y[0].data), cudaFree(y[1].data);
        }
        cudaFree(w.data);
    }
}

/* -- candidates of the library -- */

static void describe(cublasLtMatrixLayoutOpaque_t *l, hh_tensor t) {
    cublasLtMatrixLayoutInit(l, t.dtype == HH_DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF, (uint64_t)t.dim[1],
                             (uint64_t)t.dim[0], t.stride);
}

/* d = a b as hh_cuda_product has it; a line for every candidate. */
static void try_candidates(hh_backend *be, const shape *s, const char *what, hh_tensor d, hh_tensor a, bool a_turned,
                           hh_tensor b, bool b_turned, float beta) {
    hh_cuda *c = hh_cuda_of(be);
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t la, lb, ld;
    cublasLtMatmulPreferenceOpaque_t p;
    cublasLtMatmulHeuristicResult_t r[12];
    cublasOperation_t ta = b_turned ? CUBLAS_OP_T : CUBLAS_OP_N, tb = a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    size_t workspace = HH_CUDA_WORKSPACE_BYTES;
    float one = 1;
    int n = 0;
    cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    describe(&la, b), describe(&lb, a), describe(&ld, d);
    cublasLtMatmulPreferenceInit(&p);
    cublasLtMatmulPreferenceSetAttribute(&p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    cublasLtMatmulAlgoGetHeuristic(c->lt, &product, &la, &lb, &ld, &ld, &p, 12, r, &n);
    for (int i = 0; i < n; i++) {
        int32_t tile = 0, stages = 0, split = 0, id = 0;
        uint32_t scheme = 0, swizzle = 0, custom = 0;
        uint16_t inner = 0, cluster = 0;
        size_t got;
        cublasLtMatmulAlgoConfigGetAttribute(&r[i].algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &got);
        cublasLtMatmulAlgoConfigGetAttribute(&r[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &got);
        cublasLtMatmulAlgoConfigGetAttribute(&r[i].algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, sizeof stages, &got);
        cublasLtMatmulAlgoConfigGetAttribute(&r[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &got);
        cublasLtMatmulAlgoConfigGetAttribute(&r[i].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme,
                                             &got);
        cublasLtMatmulAlgoConfigGetAttribute(&r[i].algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &swizzle, sizeof swizzle,
                                             &got);
        cublasLtMatmulAlgoConfigGetAttribute(&r[i].algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &custom, sizeof custom,
                                             &got);
        cublasLtMatmulAlgoConfigGetAttribute(&r[i].algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &inner, sizeof inner,
                                             &got);
        cublasLtMatmulAlgoConfigGetAttribute(&r[i].algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster,
                                             sizeof cluster, &got);
        double us = bench_time(be, 5, [&](int) {
            cublasLtMatmul(c->lt, &product, &one, b.data, &la, a.data, &lb, &beta, d.data, &ld, d.data, &ld, &r[i].algo,
                           c->workspace, workspace, c->stream);
        });
        printf(
            "candidate,%s,%s,%s,%d,%.1f,%.0f,id %d tile %d stages %d split %d scheme %u swizzle %u custom %u inner %u "
            "cluster %u workspace %zu waves %.2f\n",
            s->model, s->name, what, i, us, 2e-6 * (double)s->tokens * (double)s->k * (double)s->n / us, id, tile,
            stages, split, scheme, swizzle, custom, inner, cluster, r[i].workspaceSize, r[i].wavesCount);
    }
    fflush(stdout);
}

static void run_candidates(hh_backend *be) {
    for (const shape &s : shapes) {
        hh_tensor x = bench_matrix(HH_DTYPE_BF16, s.tokens, s.k, 1), y = bench_matrix(HH_DTYPE_BF16, s.tokens, s.n, 1);
        hh_tensor w = bench_matrix(HH_DTYPE_BF16, s.n, s.k, 0.03), dw = bench_matrix(HH_DTYPE_F32, s.n, s.k, 0.03);
        try_candidates(be, &s, "fwd", y, x, false, w, true, 0);
        try_candidates(be, &s, "bwd_input", x, y, false, w, false, 0);
        try_candidates(be, &s, "bwd_weight", dw, y, true, x, false, 1);
        cudaFree(x.data), cudaFree(y.data), cudaFree(w.data), cudaFree(dw.data);
    }
}

/* The matrix-vector kernel and its candidate on rows, parts and widths of any kind. */
static void run_check(hh_backend *be) {
    hh_cuda *c = hh_cuda_of(be);
    hh_error err = {};
    for (int64_t k : {40, 576, 2056, 6144})
        for (int64_t tokens : {1, 5, 8, 9, 16})
            for (int way = 0; way < 4; way++) {
                hh_linear l = {};
                const int64_t rows[] = {64, 9, 1000, 3};
                l.k = k;
                for (int p = 0; p < 4; p++) {
                    l.part[p].w = bench_matrix(p % 2 ? HH_DTYPE_F32 : HH_DTYPE_BF16, rows[p], k, 0.03);
                    if (p > 1)
                        l.part[p].bias =
                            hh_tensor_1d(bench_matrix(HH_DTYPE_F32, 1, rows[p], 1).data, HH_DTYPE_F32, rows[p]);
                    l.n += rows[p];
                    l.n_parts++;
                }
                hh_tensor x = bench_matrix(HH_DTYPE_BF16, tokens, k + 8, 1), y[2];
                x.dim[1] = k;
                for (hh_tensor &t : y) t = bench_matrix(way / 2 ? HH_DTYPE_F32 : HH_DTYPE_BF16, tokens, l.n, 0);
                hh_cuda_matvec(be, y[0], x, &l, true);
                if (way % 2) c->mode = HH_CUDA_RECORD;
                bool done = run_matvec_early(be, y[1], x, &l, true);
                c->mode = HH_CUDA_RUN;
                be->sync(be, &err);
                double d = distance(y[1], y[0]);
                if (!done || !(d < 4e-3)) printf("WRONG ");
                printf("check,k %lld,tokens %lld,way %d,%.1e %s\n", (long long)k, (long long)tokens, way, d, err.text);
            }
}

/* What the first product of a shape costs on the host. */
static void run_plans(hh_backend *be) {
    hh_tensor x = bench_matrix(HH_DTYPE_BF16, 300, 576, 1), y = bench_matrix(HH_DTYPE_BF16, 300, 960, 1);
    hh_linear w = bench_linear(bench_matrix(HH_DTYPE_BF16, 960, 576, 0.03));
    hh_error err = {};
    for (int64_t tokens = 100; tokens < 300; tokens += 20) {
        double us[2];
        for (int i = 0; i < 2; i++) {
            timespec from, to;
            clock_gettime(CLOCK_MONOTONIC, &from);
            be->ops->linear_fwd(be, hh_tensor_rows(y, 0, tokens), hh_tensor_rows(x, 0, tokens), &w, false);
            clock_gettime(CLOCK_MONOTONIC, &to);
            us[i] = (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) * 1e-3;
            be->sync(be, &err);
        }
        printf("plan,smollm2,in,first and second call on the host,%lld,576,960,%.0f,%.0f,\n", (long long)tokens, us[0],
               us[1]);
    }
}

int main(int argc, char **argv) {
    hh_backend *be = bench_open(HH_PRECISION_AUTO);
    const char *what = argc > 1 ? argv[1] : "all";
    printf("who,model,product,what,tokens,k,n,us,rate,share\n");
    if (!strcmp(what, "all") || !strcmp(what, "long")) run_long(be);
    if (!strcmp(what, "all") || !strcmp(what, "short")) run_short(be);
    if (!strcmp(what, "check")) run_check(be);
    if (!strcmp(what, "plans")) run_plans(be);
    if (!strcmp(what, "candidates")) run_candidates(be);
    hh_error err = {};
    if (be->sync(be, &err) != HH_OK) fprintf(stderr, "%s\n", err.text);
    hh_backend_close(be);
    return err.code != HH_OK;
}
