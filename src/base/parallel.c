/* OpenMP parallel-for; see parallel.h. */
#include "base/parallel.h"
#include "base/env.h"

#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

void hh_parallel_for(int n_threads, int64_t n, hh_loop_body *body, void *context) {
    if (n_threads <= 1 || n <= 1) {
        for (int64_t i = 0; i < n; i++) body(context, i, 0);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_threads)
    for (int64_t i = 0; i < n; i++) body(context, i, omp_get_thread_num());
}

void hh_parallel_tame_libraries(void) {
    omp_set_num_threads(1);
}

void hh_parallel_short_spin(char **argv) {
    if (hh_env_get()->says_spinning) return;
    if (setenv("GOMP_SPINCOUNT", "10000", 0) == 0) execv("/proc/self/exe", argv);
}

int hh_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int n = CPU_COUNT(&set);
        if (n > 0) return n;
    }
    return 1;
}
