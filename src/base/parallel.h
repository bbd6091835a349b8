/* Parallel loops on the CPU: a pool of threads behind one function, so that no other file knows how threads are made. */
#ifndef HH_BASE_PARALLEL_H
#define HH_BASE_PARALLEL_H

#include <stdint.h>

/* The body of a loop: item i, run by thread `thread` of [0, n_threads). */
typedef void hh_loop_body(void *context, int64_t i, int thread);

/* Runs body(context, i, thread) for i in [0, n) on at most n_threads threads, each item once, in any order.
 * Items are handed out one by one, so they should be of some tens of microseconds. n_threads 1 runs in place, and so
 * does a loop inside of an item (with the item's thread) or one that meets another thread's loop (as thread 0). */
void hh_parallel_for(int n_threads, int64_t n, hh_loop_body *body, void *context);

/* Libraries that make threads of their own (by OpenMP) keep to the calling thread from here on; hh_parallel_for is not affected. */
void hh_parallel_tame_libraries(void);

/* Processors that this process may run on (affinity respected), at least 1. */
int hh_cpu_count(void);

#endif
