/* Environment variables; see env.h. */
#include "base/env.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static hh_env env;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* NULL also for a variable that is empty: `NAME= command` switches it off. */
static const char *read_variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool is(const char *value, const char *word) {
    return value && strcmp(value, word) == 0;
}

static int64_t parse_count(const char *value) {
    if (!value) return 0;
    char *end;
    long long n = strtoll(value, &end, 10);
    return *end || n < 0 ? -1 : n;
}

static int64_t count_processes(void) {
    const char *n = read_variable("OMPI_COMM_WORLD_SIZE");
    if (!n) n = read_variable("PMI_SIZE");
    if (!n && read_variable("PMIX_RANK")) n = read_variable("SLURM_NTASKS");
    int64_t count = parse_count(n);
    return count > 0 ? count : 0;
}

static void load(void) {
    env.check_nan = is(read_variable("HYDRAHEAD_CHECK"), "nan");
    env.check_cpu = is(read_variable("HYDRAHEAD_CHECK"), "cpu");
    env.check_cuda = is(read_variable("HYDRAHEAD_CHECK"), "cuda");
    env.trace = read_variable("HYDRAHEAD_TRACE");
    env.device = read_variable("HYDRAHEAD_DEVICE");
    env.isa = read_variable("HYDRAHEAD_ISA");
    env.models = read_variable("HYDRAHEAD_MODELS");
    int64_t n = parse_count(read_variable("HYDRAHEAD_FAIL_ALLOC"));
    env.fail_alloc = n > 0 ? n : 0;
    env.processes = count_processes();
    env.no_color = read_variable("NO_COLOR") != NULL;
    env.dumb_terminal = is(read_variable("TERM"), "dumb");
}

const hh_env *hh_env_get(void) {
    pthread_once(&once, load);
    return &env;
}

hh_code hh_env_check(hh_error *err) {
    const char *check = read_variable("HYDRAHEAD_CHECK");
    if (check && !is(check, "nan") && !is(check, "cpu") && !is(check, "cuda"))
        return hh_fail(err, HH_EINVAL, "HYDRAHEAD_CHECK=%s: it may be nan, cpu or cuda", check);
    if (is(check, "cpu") && read_variable("HYDRAHEAD_TRACE"))
        return hh_fail(err, HH_EINVAL,
                       "HYDRAHEAD_CHECK=cpu computes everything twice; leave HYDRAHEAD_TRACE out beside it");
    const char *fail_alloc = read_variable("HYDRAHEAD_FAIL_ALLOC");
    if (parse_count(fail_alloc) < 0)
        return hh_fail(err, HH_EINVAL, "HYDRAHEAD_FAIL_ALLOC=%s: a count is needed", fail_alloc);
    return HH_OK;
}

bool hh_color_wanted(int fd) {
    return isatty(fd) && !hh_env_get()->no_color && !hh_env_get()->dumb_terminal;
}
