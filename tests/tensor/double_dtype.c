/* The verification build: conversions keep what double can hold, and agree with the float build's numbers. */
#include "support/support.h"
#include "tensor/dtype.h"

#include <math.h>
#include <string.h>

static void doubles_survive(void **state) {
    (void)state;
    const double x[3] = {1.0 / 3, -1e-300, 1e300};
    hh_real y[3];
    unsigned char raw[sizeof x + 1];
    memcpy(raw + 1, x, sizeof x);
    hh_dequantise(HH_DTYPE_F64, raw + 1, 3, y);
    assert_memory_equal(x, y, sizeof x);
    hh_quantise(HH_DTYPE_F64, y, 3, raw);
    assert_memory_equal(x, raw, sizeof x);
}

static void every_stored_type_widens_to_the_float_s_value(void **state) {
    (void)state;
    enum { N = 768 };
    for (int t = 0; t < HH_DTYPE_COUNT; t++) {
        if (t == HH_DTYPE_F64) continue;
        size_t bytes = hh_dtype_bytes((hh_dtype)t, N);
        uint8_t *raw = hh_alloc(bytes);
        for (size_t i = 0; i < bytes; i++) raw[i] = (uint8_t)(i * 37 % 61); /* small exponents: no NaN */
        float *f = hh_alloc(N * sizeof *f);
        hh_real *d = hh_alloc(N * sizeof *d);
        hh_dequantise_float((hh_dtype)t, raw, N, f);
        hh_dequantise((hh_dtype)t, raw, N, d);
        for (int i = 0; i < N; i++)
            if ((float)d[i] < f[i] || (float)d[i] > f[i])
                fail_msg("%s: value %d is %g in double, %g in float", hh_dtype_name((hh_dtype)t), i, d[i],
                         (double)f[i]);
        hh_free(raw);
        hh_free(f);
        hh_free(d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_survive),
        cmocka_unit_test(every_stored_type_widens_to_the_float_s_value),
    };
    return cmocka_run_group_tests_name("tensor: element types in double", tests, NULL, NULL);
}
