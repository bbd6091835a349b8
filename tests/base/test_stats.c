/* Statistics on small samples whose answers are known. */
#include "base/stats.h"
#include "support/support.h"

#include <math.h>

static void test_means_and_errors(void **state) {
    (void)state;
    const double x[] = {2, 4, 4, 4, 5, 5, 7, 9};
    assert_near(hh_mean(x, 8), 5, 1e-12);
    assert_near(hh_deviation(x, 8), sqrt(32.0 / 7), 1e-12);
    assert_near(hh_standard_error(x, 8), sqrt(32.0 / 7 / 8), 1e-12);
    assert_near(hh_mean(x, 0), 0, 0);
    assert_near(hh_standard_error(x, 1), 0, 0);
}

static void test_ranks_share_ties(void **state) {
    (void)state;
    const double x[] = {10, 20, 20, 5, NAN};
    double rank[5];
    hh_ranks(x, 5, rank);
    const double expected[] = {3, 4.5, 4.5, 2, 1};
    for (int i = 0; i < 5; i++) assert_near(rank[i], expected[i], 0);
    int64_t order[5];
    hh_order_falling(x, 5, order);
    const int64_t falling[] = {1, 2, 0, 3, 4};
    for (int i = 0; i < 5; i++) assert_int_equal(order[i], falling[i]);
}

static void test_spearman(void **state) {
    (void)state;
    const double x[] = {1, 2, 3, 4, 5}, up[] = {1, 8, 27, 64, 125}, down[] = {5, 4, 3, 2, 1}, flat[] = {1, 1, 1, 1, 1};
    assert_near(hh_spearman(x, up, 5), 1, 1e-12);
    assert_near(hh_spearman(x, down, 5), -1, 1e-12);
    assert_near(hh_spearman(x, flat, 5), 0, 0);
    assert_near(hh_spearman(x, up, 1), 0, 0);
    /* scipy.stats.spearmanr([106,100,86,101,99,103,97,113,112,110], [7,27,2,50,28,29,20,12,6,17]) */
    const double iq[] = {106, 100, 86, 101, 99, 103, 97, 113, 112, 110}, tv[] = {7, 27, 2, 50, 28, 29, 20, 12, 6, 17};
    assert_near(hh_spearman(iq, tv, 10), -0.17575757575757575, 1e-12);
}

static void test_top_sets(void **state) {
    (void)state;
    const double x[] = {9, 8, 7, 1, 0}, y[] = {9, 0, 7, 8, 1};
    assert_near(hh_top_jaccard(x, y, 5, 1), 1, 0);
    assert_near(hh_top_jaccard(x, y, 5, 2), 1.0 / 3, 1e-12);
    assert_near(hh_top_jaccard(x, y, 5, 5), 1, 0);
    assert_near(hh_top_jaccard(x, y, 5, 99), 1, 0);
    assert_near(hh_top_jaccard(x, y, 5, 0), 1, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_means_and_errors),
        cmocka_unit_test(test_ranks_share_ties),
        cmocka_unit_test(test_spearman),
        cmocka_unit_test(test_top_sets),
    };
    return cmocka_run_group_tests_name("base/stats", tests, NULL, NULL);
}
