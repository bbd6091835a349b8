/* .npy: header and data as NumPy's format description has them. */
#include "support/support.h"
#include "format/npy.h"

#include <string.h>

static hh_error err;

static void a_matrix_is_written_in_numpy_s_format(void **state) {
    (void)state;
    const hh_real x[6] = {.5, 1, 2.5, 3, 4.5, 5};
    const int64_t dim[] = {3, 2};
    const char *path = temp_path("x.npy");
    hh_file_writer *w;
    assert_ok(hh_npy_begin(&w, path, 2, dim, &err));
    for (int r = 0; r < 3; r++) assert_ok(hh_npy_add(w, x + 2 * r, 2, &err));
    assert_ok(hh_file_writer_commit(w, &err));
    hh_buf file = read_whole(path);
    const unsigned char *p = (const unsigned char *)file.data;
    assert_memory_equal(p, "\x93NUMPY\x01\x00", 8);
    size_t header = (size_t)p[8] | (size_t)p[9] << 8, at = 10 + header;
    assert_int_equal(at % 64, 0);
    assert_int_equal(p[at - 1], '\n');
    assert_non_null(strstr(file.data + 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }"));
    assert_int_equal(file.len, at + 6 * sizeof(float));
    float y[6];
    const float expected[6] = {0.5F, 1, 2.5F, 3, 4.5F, 5};
    memcpy(y, p + at, sizeof y);
    assert_memory_equal(y, expected, sizeof y);
    hh_buf_release(&file);
}

static void a_vector_s_shape_has_its_comma(void **state) {
    (void)state;
    hh_real x[2000] = {0};
    const int64_t dim[] = {2000};
    const char *path = temp_path("v.npy");
    hh_file_writer *w;
    assert_ok(hh_npy_begin(&w, path, 1, dim, &err));
    assert_ok(hh_npy_add(w, x, 1500, &err));
    assert_false(hh_file_exists(path)); /* nothing is there before the end */
    assert_ok(hh_npy_add(w, x, 500, &err));
    assert_ok(hh_file_writer_commit(w, &err));
    hh_buf file = read_whole(path);
    assert_non_null(strstr(file.data + 10, "'shape': (2000,), }"));
    hh_buf_release(&file);
    assert_refused(hh_npy_begin(&w, "/nowhere/v.npy", 1, dim, &err), HH_EIO, "/nowhere");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_matrix_is_written_in_numpy_s_format),
        cmocka_unit_test(a_vector_s_shape_has_its_comma),
    };
    return cmocka_run_group_tests_name("format: npy", tests, NULL, NULL);
}
