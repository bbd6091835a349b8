/* Element types: half-precision conversions over all values, names and sizes. */
#include "support/support.h"
#include "tensor/dtype.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static void bf16_widens_exactly(void **state) {
    (void)state;
    for (uint32_t x = 0; x < 65536; x++) {
        /* NaN payloads and subnormals too */
        assert_int_equal(bits_of(hh_bf16_to_float((uint16_t)x)), x << 16);
    }
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t x = 0; x < 65536; x++) {
        float f = hh_bf16_to_float((uint16_t)x);
        if (isnan(f)) {
            assert_true(isnan(hh_bf16_to_float(hh_bf16_from_float(f))));
            continue;
        }
        assert_int_equal(hh_bf16_from_float(f), x);
        if (isinf(f)) continue;
        uint32_t up = x + 1; /* the neighbour away from zero */
        float half, below, above;
        uint32_t u = x << 16 | 0x8000, lo = u - 1, hi = u + 1;
        memcpy(&half, &u, 4);
        memcpy(&below, &lo, 4);
        memcpy(&above, &hi, 4);
        assert_int_equal(hh_bf16_from_float(half), x % 2 ? up : x);
        assert_int_equal(hh_bf16_from_float(below), x);
        assert_int_equal(hh_bf16_from_float(above), up);
    }
    uint32_t quiet = 0x7f800001; /* a NaN whose payload is all in the bits that are dropped */
    float nan;
    memcpy(&nan, &quiet, 4);
    assert_true(isnan(hh_bf16_to_float(hh_bf16_from_float(nan))));
}

static double f16_value(uint32_t x) {
    double m = x & 1023, sign = x & 0x8000 ? -1 : 1;
    int e = x >> 10 & 31;
    if (e == 31) return m > 0 ? NAN : sign * INFINITY;
    return sign * (e ? ldexp(1024 + m, e - 25) : ldexp(m, -24));
}

static void f16_converts_exactly_both_ways(void **state) {
    (void)state;
    for (uint32_t x = 0; x < 65536; x++) {
        double v = f16_value(x);
        float f = hh_f16_to_float((uint16_t)x);
        if (isnan(v)) {
            assert_true(isnan(f) && isnan(hh_f16_to_float(hh_f16_from_float(f))));
            continue;
        }
        assert_true((double)f >= v && (double)f <= v);
        assert_int_equal(hh_f16_from_float(f), x);
        if ((x & 0x7fff) >= 0x7bff) continue;
        double next = f16_value(x + 1); /* away from zero; the middle goes to the even one */
        assert_int_equal(hh_f16_from_float((float)((v + next) / 2)), x % 2 ? x + 1 : x);
        assert_int_equal(hh_f16_from_float((float)(v + (next - v) * 0.499)), x);
        assert_int_equal(hh_f16_from_float((float)(v + (next - v) * 0.501)), x + 1);
    }
    assert_int_equal(hh_f16_from_float(65519), 0x7bff); /* the largest number */
    assert_int_equal(hh_f16_from_float(65520), 0x7c00); /* infinity */
    assert_int_equal(hh_f16_from_float(-1e30F), 0xfc00);
    assert_int_equal(hh_f16_from_float(1e-10F), 0);
}

static void a_name_stands_for_one_type(void **state) {
    (void)state;
    for (int t = 0; t < HH_DTYPE_COUNT; t++) {
        for (int other = 0; other < t; other++)
            assert_string_not_equal(hh_dtype_name((hh_dtype)t), hh_dtype_name((hh_dtype)other));
        assert_int_equal(hh_dtype_is_quantised((hh_dtype)t), hh_dtype_block((hh_dtype)t) > 1);
    }
    assert_int_equal(hh_dtype_bytes(HH_DTYPE_Q4_K, 512), 288);
    assert_int_equal(hh_dtype_bytes(HH_DTYPE_BF16, 3), 6);
    assert_int_equal(hh_dtype_bytes(HH_DTYPE_Q8_0, 0), 0);
}

static void rows_of_any_alignment_convert(void **state) {
    (void)state;
    unsigned char raw[64];
    float got[3];
    const float f[3] = {1.5F, -2, 0.25F};
    const double d[3] = {1.5, -2, 0.25};
    const int32_t i[3] = {7, -8, 9};
    const int64_t l[3] = {7, -8, 9};
    memcpy(raw + 1, f, sizeof f);
    hh_dequantise_float(HH_DTYPE_F32, raw + 1, 3, got);
    assert_memory_equal(got, f, sizeof f);
    memcpy(raw + 3, d, sizeof d);
    hh_dequantise_float(HH_DTYPE_F64, raw + 3, 3, got);
    assert_memory_equal(got, f, sizeof f);
    memcpy(raw + 1, i, sizeof i);
    hh_dequantise_float(HH_DTYPE_I32, raw + 1, 3, got);
    assert_true(got[0] > 6.9F && got[1] < -7.9F && got[2] > 8.9F);
    memcpy(raw + 1, l, sizeof l);
    hh_dequantise_float(HH_DTYPE_I64, raw + 1, 3, got);
    assert_true(got[0] > 6.9F && got[1] < -7.9F && got[2] > 8.9F);
    hh_dequantise_float(HH_DTYPE_F32, NULL, 0, got); /* nothing at all */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_widens_exactly),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(f16_converts_exactly_both_ways),
        cmocka_unit_test(a_name_stands_for_one_type),
        cmocka_unit_test(rows_of_any_alignment_convert),
    };
    return cmocka_run_group_tests_name("tensor: element types", tests, NULL, NULL);
}
