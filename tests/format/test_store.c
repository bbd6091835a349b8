/* Checkpoint directories: which files are read, and what is said when one is missing. */
#include "support/support.h"
#include "format/safetensors.h"
#include "format/store.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static hh_error err;

static const char *make_folder(const char *name) {
    const char *path = temp_path(name);
    assert_ok(hh_make_directory(path, &err));
    return path;
}

static void write_tensor(const char *dir, const char *file, const char *tensor, float value) {
    char path[512];
    const hh_named_tensor t = {.name = tensor, .t = hh_tensor_1d(&value, HH_DTYPE_F32, 1)};
    snprintf(path, sizeof path, "%s/%s", dir, file);
    assert_ok(hh_safetensors_write(path, &t, 1, &err));
}

static void write_text(const char *dir, const char *file, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    assert_ok(hh_file_write(path, text, strlen(text), &err));
}

#define INDEX "model.safetensors.index.json"

static float value_of(const hh_store *s, const char *name) {
    float v = 0;
    const hh_named_tensor *t = hh_store_find(s, name);
    assert_non_null(t);
    memcpy(&v, t->t.data, sizeof v);
    return v;
}

static void the_shipped_model_opens(void **state) {
    (void)state;
    hh_store *s;
    assert_ok(hh_store_open(&s, "models/nano", &err));
    assert_int_equal(hh_store_get_kind(s), HH_STORE_SAFETENSORS);
    assert_null(hh_store_gguf(s));
    const hh_named_tensor *e = hh_store_find(s, "model.embed_tokens.weight");
    assert_non_null(e);
    assert_int_equal(e->t.rank, 2);
    assert_string_equal(e->file, "models/nano/model.safetensors");
    assert_null(hh_store_find(s, "no.such.tensor"));
    for (int64_t i = 0; i < hh_store_count(s); i++)
        assert_ptr_equal(hh_store_find(s, hh_store_at(s, i)->name), hh_store_at(s, i));
    hh_store_close(s);
    assert_ok(hh_store_open(&s, "models/nano/model.safetensors", &err)); /* the file alone */
    hh_store_close(s);
}

static void shards_are_read_through_their_index(void **state) {
    (void)state;
    const char *dir = make_folder("sharded");
    hh_store *s;
    write_tensor(dir, "one.safetensors", "a", 1);
    write_tensor(dir, "two.safetensors", "b", 2);
    write_text(dir, "stray.safetensors", "not a checkpoint at all"); /* not in the map: not read */
    write_text(dir, INDEX,
               "{\"metadata\": {\"total_size\": 8}, \"weight_map\": {\"b\": \"two.safetensors\", "
               "\"a\": \"one.safetensors\"}}");
    assert_ok(hh_store_open(&s, dir, &err));
    assert_int_equal(hh_store_count(s), 2);
    assert_true(value_of(s, "a") > 0.5F && value_of(s, "b") > 1.5F);
    hh_store_close(s);
}

/* KiB of files that this process has in memory. */
static long resident_of_files(void) {
    char line[128];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssFile: %ld", &kib) == 1) break;
    if (f) fclose(f);
    return kib;
}

static double sum_of(const hh_tensor *t) {
    double sum = 0;
    for (int64_t i = 0; i < t->dim[0]; i++) sum += ((const float *)t->data)[i];
    return sum;
}

/* Its neighbours stay, also where a page is shared; what is given back is there again when it is looked at. */
static void a_tensor_that_was_copied_gives_its_memory_back(void **state) {
    (void)state;
    enum { N = 2 << 20 }; /* 8 MiB each */
    hh_store *s;
    float *x = hh_alloc(N * sizeof *x);
    for (int i = 0; i < N; i++) x[i] = (float)(i % 7);
    const hh_tensor t = hh_tensor_1d(x, HH_DTYPE_F32, N - 1);
    const hh_named_tensor three[] = {{.name = "a", .t = t}, {.name = "b", .t = t}, {.name = "c", .t = t}};
    const char *path = temp_path("large.safetensors");
    assert_ok(hh_safetensors_write(path, three, 3, &err));
    assert_ok(hh_store_open(&s, path, &err));
    const double sum = sum_of(&t);
    for (int i = 0; i < 3; i++) assert_near(sum_of(&hh_store_find(s, three[i].name)->t), sum, 0);
    const long before = resident_of_files();
    hh_store_forget(s, &hh_store_find(s, "b")->t);
    const long after = resident_of_files();
    assert_true(before < 0 || (before - after > 7 << 10 && before - after <= 8 << 10));
    for (int i = 0; i < 3; i++) assert_near(sum_of(&hh_store_find(s, three[i].name)->t), sum, 0);
    hh_store_forget(s, &t); /* not of a file: stays as it is */
    assert_near(sum_of(&t), sum, 0);
    hh_store_close(s);
    hh_free(x);
}

static void what_is_missing_is_named(void **state) {
    (void)state;
    const char *dir = make_folder("missing");
    hh_store *s;
    assert_refused(hh_store_open(&s, dir, &err), HH_EIO, dir, "model.safetensors");
    assert_refused(hh_store_open(&s, temp_path("no such folder"), &err), HH_EIO, "no such folder");
    write_tensor(dir, "one.safetensors", "a", 1);
    write_text(dir, INDEX, "{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"two.safetensors\"}}");
    assert_refused(hh_store_open(&s, dir, &err), HH_EIO, "two.safetensors", "missing");
    write_text(dir, INDEX, "{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"one.safetensors\"}}");
    assert_refused(hh_store_open(&s, dir, &err), HH_EFORMAT, "'b'", "one.safetensors", INDEX);
    write_text(dir, INDEX, "{\"metadata\": {}}");
    assert_refused(hh_store_open(&s, dir, &err), HH_EFORMAT, INDEX, "weight_map");
    write_text(dir, INDEX, "{\"weight_map\": [1]}");
    assert_refused(hh_store_open(&s, dir, &err), HH_EFORMAT, INDEX, "weight_map");
    write_text(dir, INDEX, "{\"weight_map\": {\"a\": 3}}");
    assert_refused(hh_store_open(&s, dir, &err), HH_EFORMAT, INDEX, "'a'");
}

static void paths_that_leave_the_directory_are_refused(void **state) {
    (void)state;
    const char *dir = make_folder("escape");
    static const char *const paths[] = {"../one.safetensors", "/etc/passwd", "x/../../one.safetensors", "..", ""};
    hh_store *s;
    write_tensor(temp_folder(), "one.safetensors", "a", 1);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"weight_map\": {\"a\": \"%s\"}}", paths[i]);
        write_text(dir, INDEX, text);
        assert_refused(hh_store_open(&s, dir, &err), HH_EFORMAT, INDEX, "'a'", "inside the directory");
    }
    write_tensor(dir, "..one.safetensors", "a", 1); /* an odd name is not an escape */
    write_text(dir, INDEX, "{\"weight_map\": {\"a\": \"..one.safetensors\"}}");
    assert_ok(hh_store_open(&s, dir, &err));
    hh_store_close(s);
}

static void an_index_decides_between_two_shards(void **state) {
    (void)state;
    const char *dir = make_folder("twice");
    hh_store *s;
    float x[2] = {5, 6};
    char path[512];
    const hh_named_tensor both[] = {{.name = "a", .t = hh_tensor_1d(x, HH_DTYPE_F32, 1)},
                                    {.name = "b", .t = hh_tensor_1d(x + 1, HH_DTYPE_F32, 1)}};
    write_tensor(dir, "one.safetensors", "a", 1);
    snprintf(path, sizeof path, "%s/two.safetensors", dir);
    assert_ok(hh_safetensors_write(path, both, 2, &err));
    write_text(dir, INDEX, "{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"two.safetensors\"}}");
    assert_ok(hh_store_open(&s, dir, &err));
    assert_int_equal(hh_store_count(s), 2);
    assert_true(value_of(s, "a") < 1.5F && value_of(s, "b") > 5.5F);
    hh_store_close(s);
}

static void tensors_are_aligned_for_their_type(void **state) {
    (void)state;
    float f[2] = {1, 2};
    uint16_t h[1] = {0x3f80};
    const hh_named_tensor odd[] = {{.name = "h", .t = hh_tensor_1d(h, HH_DTYPE_BF16, 1)},
                                   {.name = "f", .t = hh_tensor_1d(f, HH_DTYPE_F32, 2)}};
    hh_store *s;
    const char *path = temp_path("odd.safetensors");
    assert_ok(hh_safetensors_write(path, odd, 2, &err));
    assert_ok(hh_store_open(&s, path, &err));
    const hh_named_tensor *t = hh_store_find(s, "f");
    assert_int_equal((uintptr_t)t->t.data % sizeof(float), 0);
    assert_memory_equal(t->t.data, f, sizeof f);
    hh_store_close(s);
}

static void a_truncated_file_names_itself(void **state) {
    (void)state;
    hh_store *s;
    hh_buf whole = read_whole("models/nano/model.safetensors");
    const char *path = temp_file("cut.safetensors", whole.data, whole.len - 1);
    assert_refused(hh_store_open(&s, path, &err), HH_EFORMAT, "cut.safetensors", "tensor", "truncated");
    hh_buf_release(&whole);
    path = temp_file("short.gguf", "GGUF", 4);
    assert_refused(hh_store_open(&s, path, &err), HH_EFORMAT, "short.gguf", "truncated");
    path = temp_file("empty.safetensors", "", 0);
    assert_refused(hh_store_open(&s, path, &err), HH_EFORMAT, "empty.safetensors");
    hh_store_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shipped_model_opens),
        cmocka_unit_test(shards_are_read_through_their_index),
        cmocka_unit_test(a_tensor_that_was_copied_gives_its_memory_back),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(paths_that_leave_the_directory_are_refused),
        cmocka_unit_test(an_index_decides_between_two_shards),
        cmocka_unit_test(tensors_are_aligned_for_their_type),
        cmocka_unit_test(a_truncated_file_names_itself),
    };
    return cmocka_run_group_tests_name("format: stores", tests, NULL, NULL);
}
