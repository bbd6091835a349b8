/* Random numbers: those of Python are Python's, ours repeat and have the right distribution. */
#include "base/rng.h"
#include "support/support.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The next word of a golden line. */
static const char *next_word(char **line) {
    char *word = strsep(line, " \n");
    assert_non_null(word);
    return word;
}

static void expect_int(char **line, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    assert_string_equal(text, next_word(line));
}

static void expect_unsigned(char **line, uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    assert_string_equal(text, next_word(line));
}

static void check_line(char *line) {
    hh_mt m;
    int64_t drawn[300];
    char text[40];
    hh_mt_seed(&m, strtoull(next_word(&line), NULL, 10));
    snprintf(text, sizeof text, "%.17g", hh_mt_random(&m));
    assert_string_equal(text, next_word(&line));
    for (int i = 0; i < 3; i++) expect_int(&line, hh_mt_randint(&m, 1000000, 9999999));
    for (int i = 0; i < 3; i++) expect_int(&line, hh_mt_below(&m, 97));
    static const int bits[] = {1, 32, 33, 64};
    for (int i = 0; i < 4; i++) expect_unsigned(&line, hh_mt_getrandbits(&m, bits[i]));
    static const int64_t samples[][2] = {{100, 5}, {100, 30}, {21, 5}, {22, 5}, {100000, 300}};
    for (int s = 0; s < 5; s++) {
        hh_mt_sample(&m, samples[s][0], samples[s][1], drawn);
        for (int64_t i = 0; i < samples[s][1]; i++) expect_int(&line, drawn[i]);
    }
    for (int64_t i = 0; i < 50; i++) drawn[i] = i;
    hh_mt_shuffle(&m, drawn, 50);
    for (int i = 0; i < 50; i++) expect_int(&line, drawn[i]);
    hh_mt_uuid4(&m, text);
    assert_string_equal(text, next_word(&line));
}

static void test_python_draws(void **state) {
    (void)state;
    hh_buf golden = read_whole("tests/base/golden/random.txt");
    char *rest = golden.data;
    int lines = 0;
    for (char *line; (line = strsep(&rest, "\n")) && *line; lines++) check_line(line);
    assert_int_equal(lines, 8);
    hh_buf_release(&golden);
}

/* The first output of xoshiro256** for the state {1, 2, 3, 4} of its authors' test. */
static void test_xoshiro_is_xoshiro(void **state) {
    (void)state;
    hh_rng r = {{1, 2, 3, 4}};
    assert_true(hh_rng_u64(&r) == 11520);
    assert_true(hh_rng_u64(&r) == 0);
    assert_true(hh_rng_u64(&r) == 1509978240);
}

static void test_same_seed_same_draws(void **state) {
    (void)state;
    hh_rng a = hh_rng_seeded(7), b = hh_rng_seeded(7), c = hh_rng_seeded(8);
    hh_rng s = hh_rng_stream(7, 0), t = hh_rng_stream(7, 1);
    int same_seed = 0, other_seed = 0, other_stream = 0;
    for (int i = 0; i < 100; i++) {
        uint64_t x = hh_rng_u64(&a);
        same_seed += x == hh_rng_u64(&b);
        other_seed += x == hh_rng_u64(&c);
        other_stream += hh_rng_u64(&s) == hh_rng_u64(&t);
    }
    assert_int_equal(same_seed, 100);
    assert_int_equal(other_seed, 0);
    assert_int_equal(other_stream, 0);
    /* The state is a value: saved and put back, it goes on. */
    hh_rng saved = a;
    uint64_t next = hh_rng_u64(&a);
    assert_true(hh_rng_u64(&saved) == next);
}

static void test_distributions(void **state) {
    (void)state;
    enum { N = 200000 };
    hh_rng r = hh_rng_seeded(1);
    double sum = 0, square = 0, uniform = 0;
    int64_t count[7] = {0};
    for (int i = 0; i < N; i++) {
        double x = hh_rng_normal(&r), u = hh_rng_uniform(&r);
        assert_true(isfinite(x) && u >= 0 && u < 1);
        sum += x;
        square += x * x;
        uniform += u;
        count[hh_rng_below(&r, 7)]++;
    }
    /* Five standard errors: a right generator fails once in two million. */
    assert_true(fabs(sum / N) < 5 / sqrt(N));
    assert_true(fabs(square / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(uniform / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
    for (int i = 0; i < 7; i++) assert_true(fabs((double)count[i] / N - 1.0 / 7) < 5 * sqrt(6.0 / 49 / N));
    int64_t large = INT64_MAX;
    for (int i = 0; i < 1000; i++) {
        int64_t x = hh_rng_below(&r, large);
        assert_true(x >= 0 && x < large);
    }
}

static void test_shuffle_is_a_permutation(void **state) {
    (void)state;
    hh_rng r = hh_rng_seeded(3);
    int64_t a[100], moved = 0;
    bool seen[100] = {false};
    for (int64_t i = 0; i < 100; i++) a[i] = i;
    hh_rng_shuffle(&r, a, 100);
    for (int64_t i = 0; i < 100; i++) {
        assert_false(seen[a[i]]);
        seen[a[i]] = true;
        moved += a[i] != i;
    }
    assert_true(moved > 80);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_python_draws),
        cmocka_unit_test(test_xoshiro_is_xoshiro),
        cmocka_unit_test(test_same_seed_same_draws),
        cmocka_unit_test(test_distributions),
        cmocka_unit_test(test_shuffle_is_a_permutation),
    };
    return cmocka_run_group_tests_name("base/rng", tests, NULL, NULL);
}
