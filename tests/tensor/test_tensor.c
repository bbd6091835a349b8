/* Tensors as values: shapes, views, placing; and the communicator of one process. */
#include "support/support.h"
#include "tensor/comm.h"
#include "tensor/tensor.h"

static void fill(hh_real *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = (hh_real)i;
}

static void assert_value(hh_real x, double expected) {
    assert_true(x >= expected && x <= expected);
}

static void views_share_the_data(void **state) {
    (void)state;
    hh_real x[24];
    fill(x, 24);
    hh_tensor t = hh_tensor_2d(x, HH_DTYPE_REAL, 4, 6);
    assert_int_equal(hh_tensor_count(t), 24);
    assert_int_equal(hh_tensor_row_count(t), 6);
    hh_tensor rows = hh_tensor_rows(t, 1, 3);
    assert_int_equal(rows.dim[0], 2);
    assert_value(hh_row(rows, 1)[0], 12);
    assert_true(hh_tensor_is_dense(rows));
    hh_tensor columns = hh_tensor_columns(t, 2, 6);
    assert_false(hh_tensor_is_dense(columns));
    assert_int_equal(hh_tensor_count(columns), 16);
    assert_value(hh_row(columns, 3)[0], 20);
    hh_tensor heads = hh_tensor_split(columns, 2); /* [4, 2, 2] with rows of 6 */
    assert_int_equal(heads.rank, 3);
    assert_int_equal(heads.dim[2], 2);
    assert_value(hh_row(heads, 2)[3], 17);
    hh_tensor joined = hh_tensor_join(heads);
    assert_int_equal(joined.dim[1], 4);
    assert_value(hh_row(hh_tensor_rows(joined, 3, 4), 0)[1], 21);
    assert_true(hh_tensor_is_dense(hh_tensor_rows(columns, 0, 1))); /* one row has no gaps */
}

static void quantised_rows_move_by_whole_blocks(void **state) {
    (void)state;
    char data[4 * 2 * 34];
    hh_tensor t = hh_tensor_2d(data, HH_DTYPE_Q8_0, 4, 64);
    assert_int_equal(hh_tensor_bytes(t), sizeof data);
    assert_ptr_equal(hh_tensor_rows(t, 3, 4).data, data + 3 * 2 * 34);
}

static void counting_and_placing_agree(void **state) {
    (void)state;
    hh_error err;
    hh_arena count, real;
    hh_arena_init_counting(&count, "test");
    hh_tensor a = hh_tensor_place_3d(&count, HH_DTYPE_REAL, 2, 3, 5);
    assert_null(a.data);
    assert_int_equal(hh_tensor_count(a), 30);
    hh_tensor_place_1d(&count, HH_DTYPE_BF16, 7);
    hh_tensor_place_2d(&count, HH_DTYPE_Q4_1, 2, 32);
    assert_ok(hh_arena_init(&real, "test", count.used, &err));
    a = hh_tensor_place_3d(&real, HH_DTYPE_REAL, 2, 3, 5);
    assert_non_null(a.data);
    hh_tensor_place_1d(&real, HH_DTYPE_BF16, 7);
    hh_tensor_place_2d(&real, HH_DTYPE_Q4_1, 2, 32);
    assert_int_equal(real.used, count.used);
    hh_arena_release(&real);
}

static void one_process_adds_up_to_itself(void **state) {
    (void)state;
    hh_error err;
    hh_real x[5];
    fill(x, 5);
    hh_comm c = hh_comm_single();
    assert_int_equal(c.rank, 0);
    assert_int_equal(c.size, 1);
    assert_ok(hh_comm_reduce_scatter(&c, hh_tensor_1d(x, HH_DTYPE_REAL, 5), &err));
    assert_ok(hh_comm_all_gather(&c, hh_tensor_1d(x, HH_DTYPE_REAL, 5), &err));
    for (int i = 0; i < 5; i++) assert_value(x[i], i);
    double sum = 3;
    assert_ok(hh_comm_sum(&c, &sum, 1, &err));
    assert_true(sum == 3);
    assert_int_equal(hh_comm_agree(&c, HH_ECANCELLED, &err), HH_ECANCELLED);
    hh_comm_close(&c);
    hh_comm_close(NULL);
}

static void slices_are_whole_and_even(void **state) {
    (void)state;
    const int64_t counts[] = {0, 1, 15, 16, 17, 1000, 99991, INT64_MAX / 8};
    for (int64_t size = 1; size < 9; size++)
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            const int64_t n = counts[k];
            assert_int_equal(hh_comm_cut(n, 0, size), 0);
            assert_int_equal(hh_comm_cut(n, size, size), n);
            for (int64_t r = 0; r < size; r++) {
                const int64_t length = hh_comm_cut(n, r + 1, size) - hh_comm_cut(n, r, size);
                assert_true(length >= 0 && length <= n / size + 32);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_share_the_data),       cmocka_unit_test(quantised_rows_move_by_whole_blocks),
        cmocka_unit_test(counting_and_placing_agree), cmocka_unit_test(one_process_adds_up_to_itself),
        cmocka_unit_test(slices_are_whole_and_even),
    };
    return cmocka_run_group_tests_name("tensor: views and placing", tests, NULL, NULL);
}
