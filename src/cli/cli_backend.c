/* The backend that a verb's common options ask for; see cli.h. */
#include "base/env.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "ops/trace.h"
#include "ops/twice.h"
#include "tensor/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "cpu" is -1, "cuda" 0, "cuda:N" N. */
static hh_code parse_device(const char *name, int *out, hh_error *err) {
    *out = -1;
    if (!strcmp(name, "cpu")) return HH_OK;
    *out = 0;
    if (!strcmp(name, "cuda")) return HH_OK;
    char *end = NULL;
    long n = !strncmp(name, "cuda:", 5) && name[5] >= '0' && name[5] <= '9' ? strtol(name + 5, &end, 10) : -1;
    if (n < 0 || n > 4095 || *end)
        return hh_fail(err, HH_EINVAL, "there is no device '%s'; it is cpu, cuda, or cuda:N for GPU number N", name);
    *out = (int)n;
    return HH_OK;
}

hh_code hh_cli_backend(const hh_cli_common *c, hh_backend **out, hh_error *err) {
    const hh_precision precision = strcmp(c->dtype, "f32") == 0 ? HH_PRECISION_F32 : HH_PRECISION_AUTO;
    const char *name = c->device ? c->device : hh_env_get()->device;
    int device = -1;
    if (name) HH_TRY(parse_device(name, &device, err));
    hh_code code = device >= 0 ? hh_cuda_open(out, device, precision, err)
                               : hh_cpu_open(out, (int)c->threads, precision, hh_env_get()->isa, err);
    if (code == HH_OK && hh_env_get()->check_cpu) code = hh_check_twice(*out, err);
    if (code == HH_OK && hh_env_get()->trace) code = hh_trace_begin(*out, hh_env_get()->trace, err);
    return code;
}

hh_dtype hh_cli_kv_dtype(const char *word, const hh_backend *be) {
    return !strcmp(word, "auto") ? be->activation : !strcmp(word, "bf16") ? HH_DTYPE_BF16 : HH_DTYPE_F32;
}

/* "cuda" is the GPU of the process's number on its host. */
static void choose_gpu(hh_cli_common *c, const hh_comm *group) {
    static char own[16];
    const char *name = c->device ? c->device : hh_env_get()->device;
    if (group->size == 1 || !name || strcmp(name, "cuda") != 0) return;
    snprintf(own, sizeof own, "cuda:%d", (int)group->local_rank);
    c->device = own;
}

hh_code hh_cli_comm(hh_cli_common *c, hh_comm *out, hh_error *err) {
    HH_TRY(hh_comm_open(out, err));
    choose_gpu(c, out);
    if (out->rank)
        hh_progress_silence(true);
    else if (out->bound && c->threads == 0 && !c->device && !c->quiet)
        fprintf(stderr,
                "hydrahead: the launcher leaves each process %d of this machine's processors; mpirun --bind-to none "
                "gives them all\n",
                out->n_threads);
    if (c->threads == 0) c->threads = out->n_threads;
    return HH_OK;
}
