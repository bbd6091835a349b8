/* Receiver and sender scores equal brute force, one patched forward a head, to 1e-9 in double precision. */
#include "support/support.h"

#include "probe/brute_force.h"
#include "support/gradcheck.h"

#define TOLERANCE 1e-9

static void random_models(void **state) {
    (void)state;
    hh_backend *be = open_exact();
    compare_random_models(be, TOLERANCE);
    hh_backend_close(be);
}

static void shipped_model(void **state) {
    (void)state;
    hh_backend *be = open_exact();
    compare_nano(be, 2, TOLERANCE);
    hh_backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_models), cmocka_unit_test(shipped_model)};
    return cmocka_run_group_tests_name("probe, double", tests, NULL, NULL);
}
