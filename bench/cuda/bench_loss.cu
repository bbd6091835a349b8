/* The heads on the GPU: loss and gradients of a batch, beside the floor of their products: 6 d V FLOP a token for
 * cross-entropy, 8 d V for KL (2 d V more a hidden width of the teacher's). `tiles` varies the tile and its parts. CSV on
 * stdout; bench/peers/torch_heads.py prints the same lines for torch. */
#include "cuda/timing.h"
#include "ops/cuda/products.h"

static void print_line(const char *model, const char *what, int64_t T, int64_t C, int64_t V, int products, double us) {
    double flop = 2.0 * products * (double)T * (double)C * (double)V;
    printf("ours,%s,%s,%lld,%lld,%lld,%lld,%lld,%.0f,%.1f,%.2f\n", model, what, (long long)T, (long long)C,
           (long long)V, (long long)hh_cuda_head_tile, (long long)hh_cuda_head_part, us, 1e-6 * flop / us,
           1e-6 * flop / us / BENCH_TOP_TFLOPS);
    fflush(stdout);
}

static void run(hh_backend *be, const char *model, int64_t T, int64_t C, int64_t V, bool tiles) {
    hh_tensor x = bench_matrix(HH_DTYPE_BF16, T, C, 1), xt = bench_matrix(HH_DTYPE_BF16, T, C, 1), dx = x;
    hh_tensor w = bench_matrix(HH_DTYPE_F32, V, C, 0.05), wt = bench_matrix(HH_DTYPE_BF16, V, C, 0.05);
    hh_tensor dw = bench_matrix(HH_DTYPE_F32, V, C, 0);
    hh_tensor loss[2];
    for (int i = 0; i < 2; i++) loss[i] = hh_tensor_1d(bench_bytes((size_t)T * 4), HH_DTYPE_F32, T);
    dx.data = bench_bytes(hh_tensor_bytes(x));
    hh_linear l = bench_linear(w), lt = bench_linear(wt), d = bench_linear(dw);
    int32_t *target = (int32_t *)hh_alloc((size_t)T * sizeof *target);
    for (int64_t t = 0; t < T; t++) target[t] = (int32_t)(t * 7919 % V);
    auto kl = [&](int) {
        be->ops->kl_head(be, loss[0], HH_NONE, dx, &d, x, &l, xt, &lt, NULL, NULL, 1.0 / (double)T, 0);
    };
    auto ce = [&](int) { be->ops->ce_head(be, loss[1], NULL, dx, &d, x, &l, target, 1.0 / (double)T); };
    auto nll = [&](int) { be->ops->ce_head(be, loss[1], NULL, HH_NONE, NULL, x, &lt, target, 0); };
    const int64_t tile[] = {1024, 2048, 4096, 8192}, part[] = {128, 256, 512, 1024, 2048, 4096};
    for (int i = 0; tiles && i < 4; i++)
        for (int j = 0; j < 6 && part[j] <= tile[i]; j++) {
            hh_cuda_head_tile = tile[i];
            hh_cuda_head_part = part[j];
            print_line(model, "kl", T, C, V, 4, bench_time(be, 1, kl));
        }
    if (!tiles) {
        print_line(model, "kl", T, C, V, 4, bench_time(be, 1, kl));
        hh_cuda_of(be)->arch -= 10; /* no clusters */
        print_line(model, "kl-plain-rows", T, C, V, 4, bench_time(be, 1, kl));
        hh_cuda_of(be)->arch += 10;
        print_line(model, "ce", T, C, V, 3, bench_time(be, 1, ce));
        print_line(model, "nll", T, C, V, 1, bench_time(be, 1, nll));
    }
    void *gone[] = {x.data, xt.data, dx.data, w.data, wt.data, dw.data, loss[0].data, loss[1].data};
    for (void *p : gone) cudaFree(p);
    hh_free(target);
}

int main(int argc, char **argv) {
    hh_backend *be = bench_open(HH_PRECISION_AUTO);
    bool tiles = argc > 1 && !strcmp(argv[1], "tiles");
    printf("who,model,what,tokens,width,vocabulary,tile,part,us,tflops,share\n");
    run(be, "smollm2", tiles ? 16384 : 65536, 576, 49152, tiles);
    run(be, "qwen3", 8192, 2048, 151936, tiles);
    hh_error err = {};
    if (be->sync(be, &err) != HH_OK) fprintf(stderr, "%s\n", err.text);
    hh_backend_close(be);
    return err.code != HH_OK;
}
