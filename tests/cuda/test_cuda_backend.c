/* The CUDA backend itself: opening, memory, copies, errors in words. */
#include "cuda/twin.h"

static void copies_come_back(void **unused) {
    (void)unused;
    if (!twin_open(HH_PRECISION_AUTO)) skip();
    both x = twin_act(2, 37, 64, 0, 16);
    assert_true(twin_error(x) == 0);
    both r = twin_real(1, 1000, 0, 0, 1, 0);
    assert_true(twin_error(r) == 0);
    twin_close();
}

static void too_much_memory_is_refused_with_numbers(void **unused) {
    (void)unused;
    if (!twin_open(HH_PRECISION_AUTO)) skip();
    hh_error err = {0};
    hh_arena a;
    assert_int_equal(tw.gpu->arena_init(tw.gpu, &a, "run", (size_t)1 << 50, &err), HH_ENOMEM);
    assert_non_null(strstr(err.text, "GiB free"));
    twin_close();
}

static void a_gpu_that_is_not_there_is_an_error(void **unused) {
    (void)unused;
    hh_backend *be;
    hh_error err = {0};
    assert_int_not_equal(hh_cuda_open(&be, 4095, HH_PRECISION_AUTO, &err), HH_OK);
    assert_true(strlen(err.text) > 0);
    assert_null(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_come_back),
        cmocka_unit_test(too_much_memory_is_refused_with_numbers),
        cmocka_unit_test(a_gpu_that_is_not_there_is_an_error),
    };
    return cmocka_run_group_tests_name("cuda backend", tests, NULL, NULL);
}
