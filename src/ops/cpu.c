/* The CPU backend: chooses at run time the kernels that the processor can run, over the reference table. */
#include "base/parallel.h"
#include "ops/ops.h"

#include <string.h>
#ifdef HH_HAVE_neon
#include <sys/auxv.h>
#endif

/* What the backend owns. */
typedef struct cpu {
    hh_backend backend;
    hh_ops ops;
} cpu;

typedef struct isa {
    const char *name;
    bool (*supported)(void);
    void (*override)(hh_ops *ops);
} isa;

/* hh_override_<isa>: simd/override.c. */
#ifdef HH_HAVE_avx512
void hh_override_avx512(hh_ops *ops);
static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("fma");
}
#endif

#ifdef HH_HAVE_avx512_vnni
void hh_override_avx512_vnni(hh_ops *ops);
static bool has_avx512_vnni(void) {
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}
#endif

#ifdef HH_HAVE_avx2
void hh_override_avx2(hh_ops *ops);
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
#endif

#ifdef HH_HAVE_neon
void hh_override_neon_dotprod(hh_ops *ops);
static bool has_neon_dotprod(void) {
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}
void hh_override_neon(hh_ops *ops);
static bool has_neon(void) {
    return true;
}
#endif

static bool has_reference(void) {
    return true;
}
static void override_nothing(hh_ops *ops) {
    (void)ops;
}

/* Best first. */
static const isa isas[] = {
#ifdef HH_HAVE_avx512_vnni
    {"avx512_vnni", has_avx512_vnni, hh_override_avx512_vnni},
#endif
#ifdef HH_HAVE_avx512
    {"avx512", has_avx512, hh_override_avx512},
#endif
#ifdef HH_HAVE_avx2
    {"avx2", has_avx2, hh_override_avx2},
#endif
#ifdef HH_HAVE_neon
    {"neon_dotprod", has_neon_dotprod, hh_override_neon_dotprod},
    {"neon", has_neon, hh_override_neon},
#endif
    {"reference", has_reference, override_nothing},
};

#define N_ISAS ((int)(sizeof isas / sizeof isas[0]))

static hh_code choose_isa(const isa **out, const char *name, hh_error *err) {
    for (int i = 0; i < N_ISAS; i++) {
        if (name && strcmp(isas[i].name, name) != 0) continue;
        if (!isas[i].supported()) {
            if (!name) continue;
            return hh_fail(
                err, HH_EUNSUPPORTED,
                "this processor cannot run the %s kernels; leave the instruction set out to take the best it "
                "has",
                name);
        }
        *out = &isas[i];
        return HH_OK;
    }
    return hh_fail(err, HH_EUNSUPPORTED,
                   "this build has no kernels called '%s'; leave the instruction set out to take "
                   "the best there is",
                   name);
}

static void copy_bytes(hh_backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    memcpy(dst, src, bytes);
}

static hh_code init_arena(hh_backend *be, hh_arena *out, const char *name, size_t bytes, hh_error *err) {
    (void)be;
    return hh_arena_init(out, name, bytes, err);
}

static void release_arena(hh_backend *be, hh_arena *a) {
    (void)be;
    hh_arena_release(a);
}

static hh_code sync_nothing(hh_backend *be, hh_error *err) {
    (void)be;
    (void)err;
    return HH_OK;
}

static void close_cpu(hh_backend *be) {
    cpu *c = be->impl;
    hh_arena_release(&be->scratch);
    for (int i = 0; i < be->n_threads; i++) hh_arena_release(&be->thread_scratch[i]);
    hh_free(be->thread_scratch);
    hh_free(c);
}

hh_code hh_cpu_open(hh_backend **out, int n_threads, hh_precision precision, const char *isa_name, hh_error *err) {
    const isa *chosen = NULL;
    *out = NULL;
    HH_TRY(choose_isa(&chosen, isa_name, err));
    if (n_threads <= 0) n_threads = hh_cpu_count();

    cpu *c = hh_alloc(sizeof *c);
    c->ops = hh_ops_reference;
    chosen->override(&c->ops);
    hh_backend *be = &c->backend;
    *be = (hh_backend){
        .name = "cpu",
        .isa = chosen->name,
        .ops = &c->ops,
        .host_memory = true,
        .activation = HH_DTYPE_REAL,
        .layer = -1,
        .pass_tokens = 512,
        .decode_tokens = 6,
        .n_threads = n_threads,
        .precision = precision,
        .impl = c,
        .to_device = copy_bytes,
        .to_host = copy_bytes,
        .arena_init = init_arena,
        .host_arena_init = init_arena,
        .arena_release = release_arena,
        .host_arena_release = release_arena,
        .sync = sync_nothing,
        .close = close_cpu,
    };
    be->thread_scratch = hh_alloc((size_t)n_threads * sizeof *be->thread_scratch);
    hh_code code;
    HH_TRY_GOTO(code, hh_arena_init(&be->scratch, "scratch", HH_SCRATCH_BYTES, err), failed);
    for (int i = 0; i < n_threads; i++)
        HH_TRY_GOTO(code, hh_arena_init(&be->thread_scratch[i], "thread scratch", HH_THREAD_SCRATCH_BYTES, err),
                    failed);
    *out = be;
    return HH_OK;
failed:
    close_cpu(be);
    return code;
}

#ifndef HH_HAVE_NCCL
hh_code hh_cuda_comm(hh_comm *c, hh_backend *be, hh_error *err) {
    (void)be;
    if (c->size == 1) return HH_OK;
    return hh_fail(err, HH_EUNSUPPORTED,
                   "this build cannot train on several GPUs; build with `make MPI=1 CUDA=1`, or start one process");
}
#endif

#ifndef HH_HAVE_CUDA
hh_code hh_cuda_open(hh_backend **out, int device, hh_precision precision, hh_error *err) {
    (void)device;
    (void)precision;
    *out = NULL;
    return hh_fail(err, HH_EUNSUPPORTED, "this build has no CUDA backend; build with `make CUDA=1`");
}
#endif
