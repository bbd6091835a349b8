/* The backend that a verb's common options ask for; see cli.h. */
#include "base/env.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "ops/device.h"
#include "tensor/comm.h"

#include <stdio.h>
#include <string.h>

hh_code hh_cli_check_name(const char *dir, hh_error *err) {
    if (strcmp(dir, "nano")) return HH_OK;
    return hh_fail(err, HH_EINVAL,
                   "--out nano: where a model is asked for, nano is the shipped one; name another directory");
}

hh_code hh_cli_backend(const hh_cli_common *c, hh_backend **out, hh_error *err) {
    return hh_device_open(out, c->device, c->dtype, (int)c->threads, err);
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
