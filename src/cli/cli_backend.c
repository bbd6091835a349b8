/* The backend that a verb's common options ask for; see cli.h. */
#include "base/env.h"
#include "cli/cli.h"
#include "ops/ops.h"

#include <string.h>

hh_code hh_cli_backend(const hh_cli_common *c, hh_backend **out, hh_error *err) {
    hh_precision precision = strcmp(c->dtype, "f32") == 0 ? HH_PRECISION_F32 : HH_PRECISION_AUTO;
    return hh_cpu_open(out, (int)c->threads, precision, hh_env_get()->isa, err);
}
