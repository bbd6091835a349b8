/* The row-wise ops on the GPU: time, and share of what a copy of the same bytes would take on the same card. CSV on stdout;
 * bench/peers/torch_rows.py prints the same lines for torch. Shapes: SmolLM2's training batch (65,536 tokens, width 576,
 * heads of 64), Qwen3-1.7B's prefill (16,384 and 2,048 tokens, width 2,048, heads of 128). */
#include "cuda/timing.h"

extern "C" {
#include "ops/mixer_inputs.h"
}

#include <chrono>
#include <cmath>

static double copy_gbs; /* of the card, read and written bytes together */

static void print_line(const char *op, const char *shape, double bytes, double us) {
    printf("ours,%s,%s,%.1f,%.0f,%.2f\n", op, shape, us, 1e-3 * bytes / us, 1e-3 * bytes / us / copy_gbs);
    fflush(stdout);
}

static void measure_copy(hh_backend *be) {
    const int64_t n = (int64_t)1 << 29;
    hh_tensor x = bench_matrix(HH_DTYPE_BF16, 1, n, 1), y = bench_matrix(HH_DTYPE_BF16, 1, n, 1);
    double driver = bench_time(be, 1, [&](int) {
        cudaMemcpyAsync(y.data, x.data, (size_t)n * 2, cudaMemcpyDeviceToDevice, hh_cuda_of(be)->stream);
    });
    double own = bench_time(be, 1, [&](int) { be->ops->copy(be, y, x); });
    copy_gbs = 1e-3 * 4 * (double)n / (own < driver ? own : driver); /* the driver's is slow inside a graph */
    print_line("memcpy", "1 GiB", 4.0 * (double)n, driver);
    print_line("copy", "1 GiB", 4.0 * (double)n, own);
    cudaFree(x.data);
    cudaFree(y.data);
}

static void *marked[64];
static int n_marked;
static hh_tensor take(hh_dtype dtype, int64_t rows, int64_t cols, double scale) {
    hh_tensor t = bench_matrix(dtype, rows, cols, scale);
    marked[n_marked++] = t.data;
    return t;
}
static void give_back_all(void) {
    while (n_marked) cudaFree(marked[--n_marked]);
}
static hh_tensor vector_of(hh_tensor t) {
    return hh_tensor_1d(t.data, t.dtype, hh_tensor_count(t));
}

static void run_norms(hh_backend *be, int64_t T, int64_t C, int n) {
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)T, (long long)C);
    const double one = 2.0 * (double)T * (double)C; /* bytes of one bf16 matrix */
    hh_tensor x = take(HH_DTYPE_BF16, T, C, 1), y = take(HH_DTYPE_BF16, T, C, 1), dy = take(HH_DTYPE_BF16, T, C, 1);
    hh_tensor w = vector_of(take(HH_DTYPE_F32, 1, C, 1)), dw = vector_of(take(HH_DTYPE_F32, 1, C, 1));
    hh_tensor rstd = vector_of(take(HH_DTYPE_F32, 1, T, 1));
    auto fwd = [&](int) { be->ops->rmsnorm_fwd(be, y, rstd, x, w, 1e-6); };
    auto bwd = [&](int) { be->ops->rmsnorm_bwd(be, y, dw, dy, x, w, rstd, true); };
    auto axpy = [&](int) { be->ops->axpy(be, y, 1, x); };
    print_line("rmsnorm_fwd", shape, 2 * one, bench_time(be, n, fwd));
    print_line("rmsnorm_bwd", shape, 4 * one, bench_time(be, n, bwd));
    print_line("axpy", shape, 3 * one, bench_time(be, n, axpy));
    auto add = [&](int) { be->ops->add_rmsnorm_fwd(be, y, rstd, x, dy, w, 1e-6); };
    print_line("add_rmsnorm_fwd", shape, 4 * one, bench_time(be, n, add));
    hh_tensor loss = vector_of(take(HH_DTYPE_F32, 1, 1, 0));
    auto mse = [&](int) { be->ops->mse(be, loss, dy, y, x, 1e-9); };
    print_line("mse", shape, 3 * one, bench_time(be, n, mse));
    give_back_all();
}

/* Heads [T,h,D] as columns of a projection whose rows are `wide` numbers apart. */
static void run_heads(hh_backend *be, int64_t T, int64_t h, int64_t D, int64_t wide, int n) {
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lldx%lld of %lld", (long long)T, (long long)h, (long long)D, (long long)wide);
    const double one = 2.0 * (double)T * (double)(h * D);
    hh_tensor all = take(HH_DTYPE_BF16, T, wide, 1);
    hh_tensor x = hh_tensor_split(hh_tensor_columns(all, 0, h * D), h);
    hh_tensor y = hh_tensor_split(take(HH_DTYPE_BF16, T, h * D, 1), h),
              dy = hh_tensor_split(take(HH_DTYPE_BF16, T, h * D, 1), h);
    hh_tensor r = take(HH_DTYPE_F32, T, h, 1), w = vector_of(take(HH_DTYPE_F32, 1, D, 1)),
              dw = vector_of(take(HH_DTYPE_F32, 1, D, 1));
    hh_tensor cosine = take(HH_DTYPE_F32, T, D / 2, 1), sine = take(HH_DTYPE_F32, T, D / 2, 1);
    hh_tensor gamma = vector_of(take(HH_DTYPE_F32, 1, h, 1)), dgamma = vector_of(take(HH_DTYPE_F32, 1, h, 1));
    auto norm = [&](int) { be->ops->rmsnorm_fwd(be, y, r, x, w, 1e-6); };
    auto norm_bwd = [&](int) { be->ops->rmsnorm_bwd(be, x, dw, dy, y, w, r, false); };
    auto rope = [&](int) { be->ops->rope(be, x, cosine, sine, false); };
    auto l2 = [&](int) { be->ops->l2norm_fwd(be, y, r, x, 0.125); };
    auto l2_bwd = [&](int) { be->ops->l2norm_bwd(be, x, dy, y, r, 0.125); };
    auto head = [&](int) { be->ops->headnorm_fwd(be, y, r, x, gamma, HH_NONE, 1e-6); };
    auto head_bwd = [&](int) { be->ops->headnorm_bwd(be, x, dgamma, HH_NONE, dy, y, gamma, HH_NONE, r); };
    auto gate = [&](int) { be->ops->sigmoid_gate_fwd(be, y, dy, x); };
    auto gate_bwd = [&](int) { be->ops->sigmoid_gate_bwd(be, dy, x, dy, y, x); };
    print_line("rmsnorm_fwd", shape, 2 * one, bench_time(be, n, norm));
    print_line("rmsnorm_bwd", shape, 3 * one, bench_time(be, n, norm_bwd));
    print_line("rope", shape, 2 * one + 4.0 * (double)(T * D), bench_time(be, n, rope));
    print_line("l2norm_fwd", shape, 2 * one, bench_time(be, n, l2));
    print_line("l2norm_bwd", shape, 3 * one, bench_time(be, n, l2_bwd));
    print_line("headnorm_fwd", shape, 2 * one, bench_time(be, n, head));
    print_line("headnorm_bwd", shape, 3 * one, bench_time(be, n, head_bwd));
    print_line("sigmoid_gate_fwd", shape, 3 * one, bench_time(be, n, gate));
    print_line("sigmoid_gate_bwd", shape, 5 * one, bench_time(be, n, gate_bwd));
    hh_tensor taps = take(HH_DTYPE_F32, h * D, 4, 1), dtaps = take(HH_DTYPE_F32, h * D, 4, 0);
    hh_tensor flat_x = hh_tensor_join(x), flat_y = hh_tensor_join(y), flat_dy = hh_tensor_join(dy);
    const hh_span span = {0, T, 0};
    auto conv = [&](int) { be->ops->conv_fwd(be, flat_y, flat_x, taps, NULL, &span, 1); };
    auto conv_bwd = [&](int) { be->ops->conv_bwd(be, flat_x, dtaps, flat_dy, flat_y, taps, &span, 1); };
    print_line("conv_fwd", shape, 2 * one, bench_time(be, n, conv));
    print_line("conv_bwd", shape, 3 * one, bench_time(be, n, conv_bwd));
    if (wide >= h * D + 2 * h) {
        hh_tensor a = hh_tensor_columns(all, wide - 2 * h, wide - h), b = hh_tensor_columns(all, wide - h, wide);
        hh_tensor g = take(HH_DTYPE_F32, T, h, 1), beta = take(HH_DTYPE_F32, T, h, 1);
        auto gates = [&](int) { be->ops->gdn_gates_fwd(be, g, beta, a, b, gamma, gamma, 1); };
        auto gates_bwd = [&](int) { be->ops->gdn_gates_bwd(be, a, b, dgamma, dgamma, g, beta, a, b, gamma, gamma, 1); };
        print_line("gdn_gates_fwd", shape, 12.0 * (double)(T * h), bench_time(be, n, gates));
        print_line("gdn_gates_bwd", shape, 16.0 * (double)(T * h), bench_time(be, n, gates_bwd));
    }
    give_back_all();
}

/* All inputs of a GDN mixer at once, beside the same step by step. */
static void run_inputs(hh_backend *be, int64_t T, int64_t h, int64_t D, bool norm, int n) {
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lldx%lld%s", (long long)T, (long long)h, (long long)D, norm ? " normed" : "");
    const int64_t N = h * D, columns = (3 * N + 2 * h + 7) / 8 * 8;
    hh_tensor all = take(HH_DTYPE_BF16, T, columns, 1);
    hh_mixer_inputs in = {};
    in.n_paths = 3;
    in.cos = take(HH_DTYPE_F32, T, D / 2, 1);
    in.sin = take(HH_DTYPE_F32, T, D / 2, 1);
    in.eps = 1e-6;
    for (int i = 0; i < 3; i++) {
        hh_mixer_path *p = &in.path[i];
        p->x = hh_tensor_split(hh_tensor_columns(all, i * N, i * N + N), h);
        p->y = p->conv = hh_tensor_split(take(HH_DTYPE_BF16, T, N, 1), h);
        p->taps = take(HH_DTYPE_F32, N, 4, 1);
        if (i == 2) continue;
        if (norm) p->norm = vector_of(take(HH_DTYPE_F32, 1, D, 1));
        p->rotate = true;
        p->r = take(HH_DTYPE_F32, T, h, 1);
        p->scale = 1;
    }
    in.g = take(HH_DTYPE_F32, T, h, 1);
    in.beta = take(HH_DTYPE_F32, T, h, 1);
    in.a = hh_tensor_columns(all, 3 * N, 3 * N + h);
    in.b = hh_tensor_columns(all, 3 * N + h, 3 * N + 2 * h);
    in.A_log = vector_of(take(HH_DTYPE_F32, 1, h, 1));
    in.dt_bias = in.A_log;
    const hh_span span = {0, T, 0};
    const double bytes = 12.0 * (double)(T * N) + 8.0 * (double)(T * D) + 12.0 * (double)(T * h);
    print_line("mixer_inputs_fwd", shape, bytes,
               bench_time(be, n, [&](int) { be->ops->mixer_inputs_fwd(be, &in, &span, 1); }));
    print_line("mixer_inputs_fwd by steps", shape, bytes,
               bench_time(be, n, [&](int) { hh_mixer_inputs_by_steps(be, &in, &span, 1); }));
    give_back_all();
}

static void run_swiglu(hh_backend *be, int64_t T, int64_t F, int n) {
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)T, (long long)F);
    const double one = 2.0 * (double)T * (double)F;
    hh_tensor both = take(HH_DTYPE_BF16, T, 2 * F, 1), d = take(HH_DTYPE_BF16, T, 2 * F, 1),
              y = take(HH_DTYPE_BF16, T, F, 1);
    hh_tensor gate = hh_tensor_columns(both, 0, F), up = hh_tensor_columns(both, F, 2 * F);
    hh_tensor dgate = hh_tensor_columns(d, 0, F), dup = hh_tensor_columns(d, F, 2 * F);
    auto fwd = [&](int) { be->ops->swiglu_fwd(be, y, gate, up); };
    auto bwd = [&](int) { be->ops->swiglu_bwd(be, dgate, dup, y, gate, up); };
    print_line("swiglu_fwd", shape, 3 * one, bench_time(be, n, fwd));
    print_line("swiglu_bwd", shape, 5 * one, bench_time(be, n, bwd));
    give_back_all();
}

static void run_parameters(hh_backend *be, int64_t n) {
    hh_tensor p = take(HH_DTYPE_F32, 1, n, 1), m = take(HH_DTYPE_F32, 1, n, 0), v = take(HH_DTYPE_F32, 1, n, 0);
    hh_tensor g = take(HH_DTYPE_F32, 1, n, 1), b = take(HH_DTYPE_BF16, 1, n, 1);
    auto step = [&](int) { be->ops->adamw(be, p, m, v, g, 1e-3, 0.9, 0.95, 1e-8, 0.1, 1, 10); };
    print_line("adamw", "135M", 28.0 * (double)n, bench_time(be, 1, step));
    print_line("copy f32 to bf16", "135M", 6.0 * (double)n, bench_time(be, 1, [&](int) { be->ops->copy(be, b, p); }));
    print_line("fill", "135M", 4.0 * (double)n, bench_time(be, 1, [&](int) { be->ops->fill(be, g, 0); }));
    const hh_dtype types[] = {HH_DTYPE_Q8_0, HH_DTYPE_Q4_0, HH_DTYPE_Q4_1, HH_DTYPE_Q4_K, HH_DTYPE_Q6_K};
    for (hh_dtype type : types) {
        hh_tensor q = hh_tensor_2d(m.data, type, 1, n / 256 * 256),
                  to = hh_tensor_2d(b.data, HH_DTYPE_BF16, 1, n / 256 * 256);
        char name[32];
        snprintf(name, sizeof name, "copy %s to bf16", hh_dtype_name(type));
        print_line(name, "135M", 2.0 * (double)n + (double)hh_tensor_bytes(q),
                   bench_time(be, 1, [&](int) { be->ops->copy(be, to, q); }));
    }
    double sum = 0;
    be->ops->sum_squares(be, &sum, p);
    const auto from = std::chrono::steady_clock::now(); /* it waits: no graph */
    for (int i = 0; i < 10; i++) be->ops->sum_squares(be, &sum, p);
    const double us = std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count() * 1e5;
    print_line("sum_squares", "135M", 4.0 * (double)n, us);
    give_back_all();
}

/* Ids as of text: the k-th most frequent has a share of 1 / k. */
static void run_embedding(hh_backend *be, int64_t T, int64_t V, int64_t C) {
    int32_t *ids = (int32_t *)hh_alloc((size_t)T * sizeof *ids);
    uint64_t h = 1;
    for (int64_t t = 0; t < T; t++) {
        h = h * 6364136223846793005ull + 1442695040888963407ull;
        ids[t] = (int32_t)fmin(exp((double)(h >> 11) * 0x1p-53 * log((double)V)), (double)V - 1) * 7919 % V;
    }
    hh_tensor w = take(HH_DTYPE_F32, V, C, 1), y = take(HH_DTYPE_BF16, T, C, 1);
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)T, (long long)C);
    print_line("embedding_fwd", shape, 6.0 * (double)(T * C),
               bench_time(be, 1, [&](int) { be->ops->embedding_fwd(be, y, w, ids); }));
    print_line("embedding_bwd", shape, 2.0 * (double)(T * C),
               bench_time(be, 1, [&](int) { be->ops->embedding_bwd(be, w, y, ids); }));
    hh_error err = {};
    be->sync(be, &err);
    const auto from = std::chrono::steady_clock::now();
    for (int i = 0; i < 5; i++) be->ops->embedding_bwd(be, w, y, ids);
    be->sync(be, &err);
    const double us = std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count() * 2e5;
    print_line("embedding_bwd with the sort", shape, 2.0 * (double)(T * C), us);
    hh_free(ids);
    give_back_all();
}

int main(void) {
    hh_backend *be = bench_open(HH_PRECISION_AUTO);
    printf("who,op,shape,us,gbs,share\n");
    measure_copy(be);
    run_norms(be, 65536, 576, 2);
    run_norms(be, 16384, 2048, 2);
    run_norms(be, 2048, 2048, 20);
    run_heads(be, 65536, 9, 64, 2048, 2);
    run_heads(be, 65536, 7, 64, 2055, 2);
    run_heads(be, 16384, 16, 128, 8192, 2);
    run_heads(be, 2048, 16, 128, 8192, 20);
    run_inputs(be, 65536, 7, 64, false, 2);
    run_inputs(be, 16384, 14, 128, true, 2);
    run_inputs(be, 2048, 14, 128, true, 20);
    run_inputs(be, 1, 14, 128, true, 20);
    run_swiglu(be, 65536, 1536, 2);
    run_swiglu(be, 16384, 6144, 2);
    run_swiglu(be, 2048, 6144, 20);
    run_parameters(be, 134515008);
    run_embedding(be, 65536, 49152, 576);
    hh_error err = {};
    if (be->sync(be, &err) != HH_OK) fprintf(stderr, "%s\n", err.text);
    hh_backend_close(be);
    return err.code != HH_OK;
}
