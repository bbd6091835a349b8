/* Files: what a reader sees is whole, and a refusal names the path. */
#include "base/filemap.h"
#include "support/support.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_mapped_and_read(void **state) {
    (void)state;
    hh_error err = {0};
    const char *path = temp_text("words", "four words of text");
    hh_filemap m;
    assert_ok(hh_filemap_open(&m, path, &err));
    assert_int_equal(m.size, 18);
    assert_memory_equal(m.data, "four words of text", 18);
    hh_filemap_close(&m);
    hh_filemap_close(&m);
    hh_buf b = {0};
    assert_ok(hh_file_read(path, 18, &b, &err));
    assert_string_equal(b.data, "four words of text");
    assert_refused(hh_file_read(path, 17, &b, &err), HH_EFORMAT, path, "18", "17");
    hh_buf_release(&b);
}

static void test_empty_file(void **state) {
    (void)state;
    hh_error err = {0};
    const char *path = temp_file("empty", "", 0);
    hh_filemap m;
    assert_ok(hh_filemap_open(&m, path, &err));
    assert_null(m.data);
    assert_int_equal(m.size, 0);
    hh_filemap_close(&m);
    hh_buf b = {0};
    hh_buf_puts(&b, "old");
    assert_ok(hh_file_read(path, 100, &b, &err));
    assert_string_equal(b.data, "");
    hh_buf_release(&b);
}

static void test_only_regular_files(void **state) {
    (void)state;
    hh_error err = {0};
    hh_filemap m;
    hh_buf b = {0};
    assert_refused(hh_filemap_open(&m, temp_path("absent"), &err), HH_EIO, "absent", "No such file");
    assert_refused(hh_filemap_open(&m, temp_folder(), &err), HH_EIO, temp_folder(), "directory");
    const char *fifo = temp_path("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_refused(hh_filemap_open(&m, fifo, &err), HH_EIO, fifo, "regular"); /* and does not wait for a writer */
    assert_refused(hh_file_read(fifo, 10, &b, &err), HH_EIO, fifo, "regular");
    assert_refused(hh_filemap_open(&m, "/dev/zero", &err), HH_EIO, "/dev/zero", "regular");
}

static int count_entries(const char *folder) {
    DIR *d = opendir(folder);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void expect_content(const char *path, const char *text) {
    hh_buf b = read_whole(path);
    assert_string_equal(b.data, text);
    hh_buf_release(&b);
}

/* Until the commit readers see the old file; an abandoned or failed writer leaves nothing behind. */
static void test_old_file_or_new_one(void **state) {
    (void)state;
    hh_error err = {0};
    const char *folder = temp_path("atomic");
    assert_ok(hh_make_directory(folder, &err));
    char *path = hh_path_join(folder, "f");
    assert_ok(hh_file_write(path, "old", 3, &err));
    hh_file_writer *w;
    assert_ok(hh_file_writer_open(&w, path, &err));
    assert_ok(hh_file_writer_add(w, "ne", 2, &err));
    expect_content(path, "old");
    assert_ok(hh_file_writer_add(w, "w", 1, &err));
    assert_ok(hh_file_writer_commit(w, &err));
    expect_content(path, "new");
    assert_ok(hh_file_writer_open(&w, path, &err));
    assert_ok(hh_file_writer_add(w, "never", 5, &err));
    hh_file_writer_abandon(w);
    hh_file_writer_abandon(NULL);
    expect_content(path, "new");
    assert_int_equal(count_entries(folder), 1);
    assert_refused(hh_file_write(folder, "x", 1, &err), HH_EIO, folder, "directory");
    char *lost = hh_path_join(folder, "no/such/file");
    assert_refused(hh_file_write(lost, "x", 1, &err), HH_EIO, lost);
    hh_free(lost);
    hh_free(path);
}

static void test_full_disk_keeps_the_old_file(void **state) {
    (void)state;
    hh_error err = {0};
    if (!have("/dev/full")) skip();
    assert_refused(hh_file_write("/dev/full", "x", 1, &err), HH_EIO, "/dev/full", "No space left");
    assert_ok(hh_file_write("/dev/null", "x", 1, &err)); /* a device is written to, not replaced */
    struct stat st;
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
}

static void test_symbolic_link_is_kept(void **state) {
    (void)state;
    hh_error err = {0};
    const char *target = temp_text("target", "old"), *link = temp_path("link");
    assert_int_equal(symlink(target, link), 0);
    assert_ok(hh_file_write(link, "new", 3, &err));
    expect_content(target, "new");
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
}

static void test_directories_and_paths(void **state) {
    (void)state;
    hh_error err = {0};
    const char *deep = temp_path("a/b//c/");
    assert_ok(hh_make_directory(deep, &err));
    assert_ok(hh_make_directory(deep, &err));
    assert_true(hh_is_directory(deep));
    const char *file = temp_text("plain", "x");
    char *below = hh_path_join(file, "sub");
    assert_refused(hh_make_directory(below, &err), HH_EIO, file);
    hh_free(below);
    assert_refused(hh_make_directory("", &err), HH_EINVAL, "empty");
    assert_true(hh_file_exists(file));
    assert_false(hh_is_directory(file));
    static const char *const joined[][3] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    for (size_t i = 0; i < sizeof joined / sizeof joined[0]; i++) {
        char *p = hh_path_join(joined[i][0], joined[i][1]);
        assert_string_equal(p, joined[i][2]);
        hh_free(p);
    }
}

/* Values of the reference implementation of XXH64. */
static void test_checksum_is_xxh64(void **state) {
    (void)state;
    assert_true(hh_hash64("", 0, 0) == UINT64_C(0xef46db3751d8e999));
    assert_true(hh_hash64("abc", 3, 0) == UINT64_C(0x44bc2cf5ad770999));
    const char *text = "The quick brown fox jumps over the lazy dog";
    assert_true(hh_hash64(text, strlen(text), 0) == UINT64_C(0x0b242d361fda71bc));
    assert_true(hh_hash64("abc", 3, 1) != hh_hash64("abc", 3, 0));
    /* Every byte counts. */
    char bytes[100] = {0};
    uint64_t zero = hh_hash64(bytes, sizeof bytes, 0);
    for (int i = 0; i < 100; i++) {
        bytes[i] = 1;
        assert_true(hh_hash64(bytes, sizeof bytes, 0) != zero);
        bytes[i] = 0;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mapped_and_read),
        cmocka_unit_test(test_empty_file),
        cmocka_unit_test(test_only_regular_files),
        cmocka_unit_test(test_old_file_or_new_one),
        cmocka_unit_test(test_full_disk_keeps_the_old_file),
        cmocka_unit_test(test_symbolic_link_is_kept),
        cmocka_unit_test(test_directories_and_paths),
        cmocka_unit_test(test_checksum_is_xxh64),
    };
    return cmocka_run_group_tests_name("base/files", tests, NULL, NULL);
}
