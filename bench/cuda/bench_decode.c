/* Where a token's time goes when a whole model decodes: what the host does before the recorded step is launched, the launch, the GPU,
 * and the rest (logits to the host, a look at them). A CSV line a context.
 *
 *     build-cuda/bench/cuda/bench_decode MODEL CONTEXT ...
 *     ncu --profile-from-start off --graph-profiling node --metrics gpu__time_duration.sum --csv \
 *         build-cuda/bench/cuda/bench_decode MODEL CONTEXT              every kernel of one step */
#include "base/progress.h"
#include "ops/device.h"
#include "session/session.h"

#include <cuda_profiler_api.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 64, WARM = 8 };

/* What the wrappers around recording see of a step, in seconds. */
static struct seen {
    hh_backend_record_begin_fn *begin;
    hh_backend_record_end_fn *end;
    double began, host, launch, gpu;
} seen;

static void record_begin(hh_backend *be, const void *owner, uint64_t key) {
    seen.began = hh_now();
    seen.begin(be, owner, key);
}

static bool record_end(hh_backend *be) {
    hh_error err = {0};
    const double called = hh_now();
    const bool again = seen.end(be);
    const double launched = hh_now();
    if (be->sync(be, &err) != HH_OK) fprintf(stderr, "%s\n", err.text);
    seen.host = called - seen.began;
    seen.launch = launched - called;
    seen.gpu = hh_now() - launched;
    return again;
}

static void check(hh_code code, const hh_error *err) {
    if (code == HH_OK) return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static int rising(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* In microseconds; x is sorted. */
static double median(double *x) {
    qsort(x, STEPS, sizeof *x, rising);
    return x[STEPS / 2] * 1e6;
}

static void measure(hh_backend *be, const hh_model *m, int64_t context) {
    hh_error err = {0};
    hh_session *s;
    const hh_session_options o = {.context = context + WARM + STEPS + 1, .kv_dtype = be->activation};
    check(hh_session_new(&s, m, &o, &err), &err);
    int32_t *ids = hh_alloc((size_t)context * sizeof *ids);
    for (int64_t i = 0; i < context; i++) ids[i] = (int32_t)((i * 7919 + 100) % m->config.vocab);
    check(hh_session_eval(s, ids, context, &err), &err);
    double all[STEPS], host[STEPS], launch[STEPS], gpu[STEPS];
    for (int i = -WARM; i < STEPS; i++) {
        const double start = hh_now();
        check(hh_session_step(s, 100 + i, &err), &err);
        if (i < 0) continue;
        all[i] = hh_now() - start;
        host[i] = seen.host;
        launch[i] = seen.launch;
        gpu[i] = seen.gpu;
    }
    cudaProfilerStart();
    check(hh_session_step(s, 100, &err), &err);
    cudaProfilerStop();
    const double token = median(all), before = median(host), sent = median(launch), worked = median(gpu);
    printf("decode,%s,%" PRId64 ",%.1f,%.1f,%.1f,%.1f,%.1f\n", m->path, context, token, before, sent, worked,
           token - before - sent - worked);
    fflush(stdout);
    hh_session_free(s);
    hh_free(ids);
}

int main(int argc, char **argv) {
    hh_error err = {0};
    hh_backend *be;
    hh_model *m;
    if (argc < 3) {
        fprintf(stderr, "bench_decode MODEL CONTEXT ...\n");
        return 2;
    }
    if (hh_device_open(&be, "cuda", NULL, 0, &err) != HH_OK) {
        fprintf(stderr, "skipped: %s\n", err.text);
        return 0;
    }
    seen.begin = be->record_begin, seen.end = be->record_end;
    be->record_begin = record_begin, be->record_end = record_end;
    hh_progress_silence(true);
    check(hh_model_open(&m, be, argv[1], HH_LOAD_STORED, &err), &err);
    printf("what,model,context,token_us,host_before_us,launch_us,gpu_us,rest_us\n");
    for (int i = 2; i < argc; i++) measure(be, m, atoll(argv[i]));
    hh_model_close(m);
    hh_backend_close(be);
    return 0;
}
