/* A pool of threads; see parallel.h. Not OpenMP's: at the end of its loops all threads meet, so that beside other busy programs
 * a small loop waits for a thread that got no processor, and decoding on two threads was five times slower than on one. Here
 * the caller waits for items in hand alone. OpenMP is known to this file for the sake of libraries that use it. */
#include "base/parallel.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { SPINS = 4000 }; /* some 50 us */

/* One loop at a time. Workers may touch the fields of a loop only between adding themselves to `inside` and taking
 * themselves off again, and only when they see it open in between; the caller changes them only while it is closed and
 * nobody is inside. So a worker that the system has put aside holds nobody up unless it has an item in hand. */
static struct {
    pthread_mutex_t caller; /* held for the length of a loop */
    int n_workers;
    atomic_uint generation; /* moves with every loop: what workers wait for */
    atomic_int open, inside, sleepers;
    pthread_mutex_t sleep;
    pthread_cond_t wake;
    /* the loop */
    hh_loop_body *body;
    void *context;
    int64_t n;
    int n_threads;
    atomic_llong next;
} pool = {.caller = PTHREAD_MUTEX_INITIALIZER, .sleep = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static _Thread_local int in_loop = -1; /* this thread's number while it runs an item */

static void relax(int i) {
    if (i % 1024 == 1023) sched_yield();
#if defined(__x86_64__)
    else
        __builtin_ia32_pause();
#elif defined(__aarch64__)
    else
        __asm__ volatile("yield");
#endif
}

static void run_items(int thread) {
    in_loop = thread;
    for (;;) {
        const int64_t i = atomic_fetch_add(&pool.next, 1);
        if (i >= pool.n) break;
        pool.body(pool.context, i, thread);
    }
    in_loop = -1;
}

/* Returns the new generation. Waits awake for about as long as the gap between two ops, then asleep. */
static unsigned wait_for_loop(unsigned seen) {
    unsigned now;
    for (int i = 0; i < SPINS; i++) {
        if ((now = atomic_load(&pool.generation)) != seen) return now;
        relax(i);
    }
    pthread_mutex_lock(&pool.sleep);
    atomic_fetch_add(&pool.sleepers, 1);
    while ((now = atomic_load(&pool.generation)) == seen) pthread_cond_wait(&pool.wake, &pool.sleep);
    atomic_fetch_sub(&pool.sleepers, 1);
    pthread_mutex_unlock(&pool.sleep);
    return now;
}

static void *work(void *number) {
    const int thread = (int)(intptr_t)number;
    for (unsigned seen = 0;;) {
        seen = wait_for_loop(seen);
        atomic_fetch_add(&pool.inside, 1);
        if (atomic_load(&pool.open) && thread < pool.n_threads) run_items(thread);
        atomic_fetch_sub(&pool.inside, 1);
    }
    return NULL;
}

/* A forked child has this thread alone. */
static void forget_workers(void) {
    pool.n_workers = 0;
    atomic_store(&pool.inside, 0);
    atomic_store(&pool.sleepers, 0);
    pthread_mutex_init(&pool.caller, NULL);
    pthread_mutex_init(&pool.sleep, NULL);
    pthread_cond_init(&pool.wake, NULL);
}

/* Signals are for the threads that the program made itself. A thread that the system refuses is done without. */
static void add_workers(int n) {
    if (pool.n_workers >= n) return;
    static bool told;
    if (!told) pthread_atfork(NULL, NULL, forget_workers);
    told = true;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_t id;
    while (pool.n_workers < n && pthread_create(&id, &detached, work, (void *)(intptr_t)(pool.n_workers + 1)) == 0)
        pool.n_workers++;
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void hh_parallel_for(int n_threads, int64_t n, hh_loop_body *body, void *context) {
    /* Inside of an item, or while another thread has the pool, the loop runs in place. */
    if (n_threads <= 1 || n <= 1 || in_loop >= 0 || pthread_mutex_trylock(&pool.caller) != 0) {
        const int thread = in_loop >= 0 ? in_loop : 0;
        for (int64_t i = 0; i < n; i++) body(context, i, thread);
        return;
    }
    add_workers(n_threads - 1);
    pool.body = body;
    pool.context = context;
    pool.n = n;
    pool.n_threads = n_threads;
    atomic_store(&pool.next, 0);
    atomic_store(&pool.open, 1);
    atomic_fetch_add(&pool.generation, 1);
    if (atomic_load(&pool.sleepers) > 0) {
        pthread_mutex_lock(&pool.sleep);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.sleep);
    }
    run_items(0);
    atomic_store(&pool.open, 0);
    for (int i = 0; atomic_load(&pool.inside) > 0; i++) relax(i);
    pthread_mutex_unlock(&pool.caller);
}

void hh_parallel_tame_libraries(void) {
    omp_set_num_threads(1);
}

int hh_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int n = CPU_COUNT(&set);
        if (n > 0) return n;
    }
    return 1;
}
