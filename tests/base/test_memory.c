/* Errors, allocation, arenas, buffers. */
#include "base/memory.h"
#include "support/support.h"

#include <string.h>

static void test_error_sentences(void **state) {
    (void)state;
    hh_error err = {0};
    assert_int_equal(hh_fail(&err, HH_EFORMAT, "%s: %d bytes", "a.bin", 3), HH_EFORMAT);
    assert_string_equal(err.text, "a.bin: 3 bytes");
    assert_int_equal(hh_fail_in(&err, "layer %d", 2), HH_EFORMAT);
    assert_string_equal(err.text, "layer 2: a.bin: 3 bytes");
    /* A sentence that is too long is cut, never written past its end. */
    char longer[2000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    hh_fail(&err, HH_EIO, "%s", longer);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    hh_fail_in(&err, "prefix");
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_memory_equal(err.text, "prefix: x", 9);
    assert_string_equal(hh_code_name(HH_ENONFINITE), "nonfinite");
}

static void test_overflow_is_noticed(void **state) {
    (void)state;
    size_t r;
    assert_false(hh_mul_overflows(SIZE_MAX / 2, 2, &r));
    assert_true(hh_mul_overflows(SIZE_MAX / 2 + 1, 2, &r));
    hh_error err = {0};
    void *p = &r;
    assert_refused(hh_alloc_checked(&p, SIZE_MAX / 4, 8, "weights", &err), HH_ENOMEM, "weights", "8 bytes");
    assert_null(p);
    assert_refused(hh_alloc_checked(&p, (size_t)1 << 62, 1, "weights", &err), HH_ENOMEM, "weights");
    hh_arena a;
    assert_refused(hh_arena_init(&a, "model", (size_t)1 << 62, &err), HH_ENOMEM, "model", "GiB", "hydrahead plan");
    assert_refused(hh_arena_init(&a, "model", SIZE_MAX, &err), HH_ENOMEM, "model");
}

static void test_allocation_is_zeroed(void **state) {
    (void)state;
    hh_error err = {0};
    unsigned char *p = hh_alloc(1000);
    for (int i = 0; i < 1000; i++) assert_int_equal(p[i], 0);
    hh_free(p);
    hh_free(hh_alloc(0));
    hh_free(NULL);
    void *q;
    assert_ok(hh_alloc_checked(&q, 10, 10, "q", &err));
    for (int i = 0; i < 100; i++) assert_int_equal(((unsigned char *)q)[i], 0);
    hh_free(q);
    char *s = hh_sprintf("%d-%s", 7, "x");
    assert_string_equal(s, "7-x");
    hh_free(s);
}

/* A structure is placed twice: what the counting arena says is what the real one uses. */
static void place(hh_arena *a, char **x, char **y) {
    *x = hh_arena_alloc(a, 100);
    *y = hh_arena_alloc(a, 1);
}

static void test_arena_counts_what_it_places(void **state) {
    (void)state;
    hh_error err = {0};
    hh_arena counting, real;
    char *x, *y;
    hh_arena_init_counting(&counting, "run");
    place(&counting, &x, &y);
    assert_null(x);
    assert_null(y);
    assert_ok(hh_arena_init(&real, "run", counting.used, &err));
    place(&real, &x, &y);
    assert_int_equal(real.used, counting.used);
    assert_int_equal((uintptr_t)x % HH_ARENA_ALIGN, 0);
    assert_int_equal((uintptr_t)y % HH_ARENA_ALIGN, 0);
    assert_true(y - x >= 100);
    memset(x, 1, 100);
    *y = 2;
    size_t mark = 0;
    hh_arena_reset(&real, mark);
    assert_ptr_equal(hh_arena_alloc(&real, 8), x);
    assert_int_equal(real.peak, counting.used);
    hh_arena_release(&real);
    assert_null(real.base);
    hh_arena_release(&real);
}

static void overfill_arena(void) {
    hh_error err;
    hh_arena a;
    if (hh_arena_init(&a, "small", 4096, &err) == HH_OK) hh_arena_alloc(&a, 4097);
}

static void allocate_under_guard(void) {
    hh_guard_begin();
    hh_alloc(1);
}

static void end_guard_twice(void) {
    hh_guard_begin();
    hh_guard_end();
    hh_guard_end();
}

static void test_bugs_stop_the_program(void **state) {
    (void)state;
    assert_true(aborts(overfill_arena));
    assert_true(aborts(allocate_under_guard));
    assert_true(aborts(end_guard_twice));
    hh_guard_begin();
    hh_guard_end();
    hh_free(hh_alloc(1));
}

static void test_buffer_grows_and_ends_with_nul(void **state) {
    (void)state;
    hh_buf b = {0};
    for (int i = 0; i < 1000; i++) hh_buf_printf(&b, "%d,", i);
    hh_buf_add(&b, "a\0b", 3);
    hh_buf_puts(&b, "end");
    assert_int_equal(b.len, 10 * 2 + 90 * 3 + 900 * 4 + 6);
    assert_int_equal(b.data[b.len], 0);
    assert_memory_equal(b.data, "0,1,2,", 6);
    assert_memory_equal(b.data + b.len - 6, "a\0bend", 6);
    hh_buf_clear(&b);
    assert_string_equal(b.data, "");
    hh_buf_release(&b);
    hh_buf_release(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_sentences),       cmocka_unit_test(test_overflow_is_noticed),
        cmocka_unit_test(test_allocation_is_zeroed),  cmocka_unit_test(test_arena_counts_what_it_places),
        cmocka_unit_test(test_bugs_stop_the_program), cmocka_unit_test(test_buffer_grows_and_ends_with_nul),
    };
    return cmocka_run_group_tests_name("base/memory", tests, NULL, NULL);
}
