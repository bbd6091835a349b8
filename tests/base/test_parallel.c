/* The parallel loop: each item once, whatever the number of threads. */
#include "base/parallel.h"
#include "support/support.h"

#include <stdatomic.h>

enum { N = 1000, THREADS = 4 };
static atomic_int seen[N];
static atomic_int bad_thread;

static void visit(void *context, int64_t i, int thread) {
    atomic_fetch_add(&seen[i], *(int *)context);
    if (thread < 0 || thread >= THREADS) atomic_store(&bad_thread, 1);
}

static void test_each_item_once(void **state) {
    (void)state;
    int one = 1;
    for (int threads = 0; threads <= THREADS; threads++) {
        for (int i = 0; i < N; i++) atomic_store(&seen[i], 0);
        hh_parallel_for(threads, N, visit, &one);
        for (int i = 0; i < N; i++) assert_int_equal(atomic_load(&seen[i]), 1);
    }
    assert_int_equal(atomic_load(&bad_thread), 0);
    hh_parallel_for(THREADS, 0, visit, &one);
    assert_int_equal(atomic_load(&seen[0]), 1);
    assert_true(hh_cpu_count() >= 1);
}

static void visit_within(void *context, int64_t i, int thread) {
    (void)i;
    hh_parallel_for(THREADS, N, visit, context);
    if (thread < 0 || thread >= THREADS) atomic_store(&bad_thread, 1);
}

/* Loops inside of loops, and thousands of small ones in a row. */
static void test_nested_and_many(void **state) {
    (void)state;
    int one = 1;
    for (int i = 0; i < N; i++) atomic_store(&seen[i], 0);
    hh_parallel_for(THREADS, 7, visit_within, &one);
    for (int i = 0; i < N; i++) assert_int_equal(atomic_load(&seen[i]), 7);
    for (int i = 0; i < N; i++) atomic_store(&seen[i], 0);
    for (int loop = 0; loop < 3000; loop++) hh_parallel_for(2 + loop % 3, 2 + loop % 5, visit, &one);
    int64_t sum = 0;
    for (int i = 0; i < N; i++) sum += atomic_load(&seen[i]);
    assert_int_equal(sum, 3000 * 4);
    assert_int_equal(atomic_load(&bad_thread), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_item_once), cmocka_unit_test(test_nested_and_many)};
    return cmocka_run_group_tests_name("base/parallel", tests, NULL, NULL);
}
