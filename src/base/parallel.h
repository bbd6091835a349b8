/* Parallel loops on the CPU: OpenMP behind one function, so that no other file knows how threads are made. */
#ifndef HH_BASE_PARALLEL_H
#define HH_BASE_PARALLEL_H

#include <stdint.h>

/* The body of a loop: item i, run by thread `thread` of [0, n_threads). */
typedef void hh_loop_body(void *context, int64_t i, int thread);

/* Runs body(context, i, thread) for i in [0, n) on at most n_threads threads, each item once, in any order.
 * Items are handed out one by one, so they should be of some tens of microseconds. n_threads 1 runs in place. */
void hh_parallel_for(int n_threads, int64_t n, hh_loop_body *body, void *context);

/* Libraries that make threads of their own keep to the calling thread from here on; hh_parallel_for is not affected. */
void hh_parallel_tame_libraries(void);

/* GNU's OpenMP lets idle threads spin for about a millisecond, which wastes whole processors as soon as anything else
 * runs on the machine (measured there: training steps twice as slow). How long is read from the environment when the
 * library is loaded, before main, so this starts the program once more with a short spin, unless the user has said
 * something about it. The first thing main does; returns when there is nothing to do or it cannot be done. */
void hh_parallel_short_spin(char **argv);

/* Processors that this process may run on (affinity respected), at least 1. */
int hh_cpu_count(void);

#endif
