/* What the GPU benchmarks share: the card, tensors with numbers in them, time of a call. */
#ifndef HH_BENCH_CUDA_TIMING_H
#define HH_BENCH_CUDA_TIMING_H

#include "ops/cuda/cuda.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#define BENCH_TOP_TFLOPS 790.0  /* a bf16 product of 8192 x 8192 x 8192 on one H200 */
#define BENCH_TOP_GBS    4200.0 /* a copy on the same */

static hh_backend *bench_open(hh_precision precision) {
    hh_error err = {};
    hh_backend *be;
    if (hh_cuda_open(&be, 0, precision, &err) == HH_OK) return be;
    fprintf(stderr, "skipped: %s\n", err.text);
    exit(0);
}

/* Bytes on the card, never given back. */
static void *bench_bytes(size_t bytes) {
    void *p = NULL;
    if (cudaMalloc(&p, bytes) == cudaSuccess) return p;
    fprintf(stderr, "no %.1f GiB on the GPU\n", (double)bytes / (1 << 30));
    exit(1);
}

template <typename T> static __global__ void bench_fill_kernel(T *p, int64_t n, float scale, uint32_t seed) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t h = ((uint64_t)i + seed * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
        h = (h ^ (h >> 29)) * 0x94d049bb133111ebull;
        hh_store(p + i, scale * 3.46f * ((float)(h >> 40) / (float)(1 << 24) - 0.5f)); /* of variance scale^2 */
    }
}

/* A dense matrix of random numbers of variance scale^2. */
static hh_tensor bench_matrix(hh_dtype dtype, int64_t rows, int64_t cols, double scale) {
    static uint32_t seed;
    hh_tensor t = hh_tensor_2d(bench_bytes(hh_dtype_bytes(dtype, rows * cols)), dtype, rows, cols);
    if (dtype == HH_DTYPE_BF16)
        bench_fill_kernel<<<1024, 256>>>((hh_bf16 *)t.data, rows * cols, (float)scale, ++seed);
    else
        bench_fill_kernel<<<1024, 256>>>((float *)t.data, rows * cols, (float)scale, ++seed);
    cudaDeviceSynchronize();
    return t;
}

/* The linear map of one matrix. */
static inline hh_linear bench_linear(hh_tensor w) {
    hh_linear l = {};
    l.n_parts = 1;
    l.n = w.dim[0];
    l.k = w.dim[1];
    l.part[0].w = w;
    return l;
}

/* Microseconds of body(i), i = 0 .. n-1 in one graph: the median of some replays. */
template <typename F> static double bench_time(hh_backend *be, int n, F body) {
    hh_cuda *c = hh_cuda_of(be);
    hh_error err = {};
    cudaGraph_t graph;
    cudaGraphExec_t run;
    cudaEvent_t from, to;
    body(0); /* libraries load what they need, lists reach the card */
    if (be->sync(be, &err) != HH_OK || cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal)) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    for (int i = 0; i < n; i++) body(i);
    if (cudaStreamEndCapture(c->stream, &graph) || cudaGraphInstantiate(&run, graph, 0)) {
        fprintf(stderr, "no graph: %s\n", cudaGetErrorString(cudaGetLastError()));
        exit(1);
    }
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    float ms[9];
    int times = 0;
    for (float all = 0; times < 9 && (times < 3 || all < 100); times++) {
        if (!times) cudaGraphLaunch(run, c->stream);
        cudaEventRecord(from, c->stream);
        cudaGraphLaunch(run, c->stream);
        cudaEventRecord(to, c->stream);
        cudaEventSynchronize(to);
        cudaEventElapsedTime(&ms[times], from, to);
        all += ms[times];
    }
    std::sort(ms, ms + times);
    cudaGraphExecDestroy(run);
    cudaGraphDestroy(graph);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return (double)ms[times / 2] * 1000 / n;
}

#endif
