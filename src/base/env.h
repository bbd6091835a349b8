/* Environment variables: the only place that reads them, once, when first asked.
 *
 *   HYDRAHEAD_CHECK=nan          what the model computes is looked through for NaN and infinities, op by op
 *   HYDRAHEAD_CHECK=cpu          every operation runs twice, on the device and on the CPU, and the first that differs is named
 *   HYDRAHEAD_CHECK=cuda         the GPU is waited for after every operation, so that a fault names the one that made it; what
 *                                operations take of scratch, and what products write, starts as NaN
 *   HYDRAHEAD_TRACE=FILE         every operation with its shapes and its time, as a Chrome trace; not with HYDRAHEAD_CHECK=cpu
 *   HYDRAHEAD_DEVICE=NAME        where to compute when --device does not say: "cpu", "cuda", "cuda:N"
 *   HYDRAHEAD_ISA=NAME           CPU kernels: "reference", "avx2", "avx512", "avx512_vnni" instead of the best this processor has
 *   HYDRAHEAD_MODELS=DIR         where the shipped model's directory, nano/, is
 *   HYDRAHEAD_FAIL_ALLOC=N       builds with HOSTILE=1 only: the Nth allocation that may fail does, and every later one
 *   OMPI_COMM_WORLD_SIZE, PMI_SIZE, or SLURM_NTASKS beside PMIX_RANK
 *                                left by mpirun and srun: how many processes they have started
 *   NO_COLOR                     set and not empty: no colours (https://no-color.org); TERM=dumb: nothing is redrawn either
 */
#ifndef HH_BASE_ENV_H
#define HH_BASE_ENV_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct hh_env {
    bool check_nan, check_cpu, check_cuda;
    const char *trace;  /* NULL: none */
    const char *device; /* NULL: not said */
    const char *isa;    /* NULL: the best there is */
    const char *models; /* NULL: not said */
    int64_t fail_alloc; /* 0: never */
    int64_t processes;  /* started together by a launcher; 0: none has started this one */
    bool no_color, dumb_terminal;
} hh_env;

/* Values that make no sense are ignored here; hh_env_check is for saying so. */
const hh_env *hh_env_get(void);
/* HH_EINVAL with a sentence when a variable's value is not one of the above; cli/ asks before anything else. */
hh_code hh_env_check(hh_error *err);
/* Are colours wanted on this file descriptor (a terminal, and nobody said no)? */
bool hh_color_wanted(int fd);

#endif
