/* Opening a backend by its name; see device.h. */
#include "ops/device.h"

#include "base/env.h"
#include "ops/trace.h"
#include "ops/twice.h"

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

hh_code hh_device_open(hh_backend **out, const char *name, const char *dtype, int n_threads, hh_error *err) {
    const bool f32 = dtype && !strcmp(dtype, "f32");
    const hh_precision precision = f32 ? HH_PRECISION_F32 : HH_PRECISION_AUTO;
    int device = -1;
    *out = NULL;
    if (dtype && !f32 && strcmp(dtype, "auto") != 0)
        return hh_fail(err, HH_EINVAL, "there is no dtype '%s'; it is auto or f32", dtype);
    if (!name) name = hh_env_get()->device;
    if (name) HH_TRY(parse_device(name, &device, err));
    hh_code code = device >= 0 ? hh_cuda_open(out, device, precision, err)
                               : hh_cpu_open(out, n_threads, precision, hh_env_get()->isa, err);
    if (code == HH_OK && hh_env_get()->check_cpu) code = hh_check_twice(*out, err);
    if (code == HH_OK && hh_env_get()->trace) code = hh_trace_begin(*out, hh_env_get()->trace, err);
    return code;
}
