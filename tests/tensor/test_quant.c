/* Block formats against the golden vectors of tools/make_block_golden.py. */
#include "support/support.h"
#include "tensor/dtype.h"

#include <math.h>
#include <string.h>

#define GOLDEN "tests/tensor/golden/blocks.bin"

typedef void check_record(const char *name, const uint8_t *blocks, uint32_t n_bytes, const float *values, uint32_t n);

static int each_record(check_record *check) {
    hh_buf file = read_whole(GOLDEN);
    int seen = 0;
    for (size_t at = 0; at < file.len; seen++) {
        char name[9] = {0};
        uint32_t size[2];
        memcpy(name, file.data + at, 8);
        memcpy(size, file.data + at + 8, 8);
        float *values = hh_alloc(size[1] * sizeof *values);
        const uint8_t *blocks = (const uint8_t *)file.data + at + 16;
        memcpy(values, blocks + size[0], size[1] * sizeof *values);
        check(name, blocks, size[0], values, size[1]);
        at += 16 + size[0] + size[1] * sizeof *values;
        hh_free(values);
    }
    hh_buf_release(&file);
    return seen;
}

static hh_dtype type_called(const char *name) {
    for (int t = 0; t < HH_DTYPE_COUNT; t++)
        if (!strcmp(hh_dtype_name((hh_dtype)t), name)) return (hh_dtype)t;
    fail_msg("no type is called %s", name);
    return HH_DTYPE_COUNT;
}

static void check_reading(const char *name, const uint8_t *blocks, uint32_t n_bytes, const float *values, uint32_t n) {
    if (strncmp(name, "to ", 3) == 0) return;
    const hh_dtype t = type_called(name);
    assert_int_equal(hh_dtype_bytes(t, n), n_bytes);
    uint8_t *copy = hh_alloc(n_bytes + 1);
    float *got = hh_alloc(n * sizeof *got);
    memcpy(copy + 1, blocks, n_bytes); /* blocks may stand at any address */
    hh_dequantise_float(t, copy + 1, n, got);
    for (uint32_t i = 0; i < n; i++)
        if (got[i] < values[i] || got[i] > values[i])
            fail_msg("%s: value %u is %.9g, ggml has %.9g", name, i, (double)got[i], (double)values[i]);
    hh_free(copy);
    hh_free(got);
}

static void check_writing(const char *name, const uint8_t *blocks, uint32_t n_bytes, const float *values, uint32_t n) {
    if (strncmp(name, "to ", 3) != 0) return;
    const hh_dtype t = type_called(name + 3);
    uint8_t *got = hh_alloc(n_bytes);
    hh_real *x = hh_alloc(n * sizeof *x);
    for (uint32_t i = 0; i < n; i++) x[i] = values[i];
    hh_quantise(t, x, n, got);
    for (uint32_t i = 0; i < n_bytes; i++)
        if (got[i] != blocks[i]) fail_msg("%s: byte %u is %d, ggml has %d", name, i, got[i], blocks[i]);
    hh_free(got);
    hh_free(x);
}

static void every_block_format_reads_as_in_ggml(void **state) {
    (void)state;
    assert_int_equal(each_record(check_reading), 11);
}

static void quantising_gives_ggml_s_blocks(void **state) {
    (void)state;
    assert_int_equal(each_record(check_writing), 11);
}

static void values_that_are_not_numbers_stay_inside_the_block(void **state) {
    (void)state;
    static const hh_dtype types[] = {HH_DTYPE_Q8_0, HH_DTYPE_Q4_0, HH_DTYPE_Q4_1};
    for (int k = 0; k < 3; k++) {
        hh_real x[64];
        uint8_t out[2 * 34];
        for (int i = 0; i < 64; i++) x[i] = (hh_real)(i % 5 - 2);
        x[3] = (hh_real)NAN;
        x[9] = (hh_real)INFINITY;
        float back[64];
        hh_quantise(types[k], x, 64, out);
        hh_dequantise_float(types[k], out, 64, back);
        for (int i = 32; i < 64; i++) assert_true(fabs((double)back[i] - (double)x[i]) < 0.3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_format_reads_as_in_ggml),
        cmocka_unit_test(quantising_gives_ggml_s_blocks),
        cmocka_unit_test(values_that_are_not_numbers_stay_inside_the_block),
    };
    return cmocka_run_group_tests_name("tensor: block formats", tests, NULL, NULL);
}
