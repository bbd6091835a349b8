/* The backend that a verb's common options ask for; see cli.h. */
#include "base/env.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "ops/ops.h"
#include "tensor/comm.h"

#include <stdio.h>
#include <string.h>

hh_code hh_cli_backend(const hh_cli_common *c, hh_backend **out, hh_error *err) {
    hh_precision precision = strcmp(c->dtype, "f32") == 0 ? HH_PRECISION_F32 : HH_PRECISION_AUTO;
    return hh_cpu_open(out, (int)c->threads, precision, hh_env_get()->isa, err);
}

hh_code hh_cli_comm(hh_cli_common *c, hh_comm *out, hh_error *err) {
    HH_TRY(hh_comm_open(out, err));
    if (out->rank)
        hh_progress_silence(true);
    else if (out->bound && c->threads == 0 && !c->quiet)
        fprintf(stderr,
                "hydrahead: the launcher leaves each process %d of this machine's processors; mpirun --bind-to none "
                "gives them all\n",
                out->n_threads);
    if (c->threads == 0) c->threads = out->n_threads;
    return HH_OK;
}
