/* Snapshots: what was read once is not read again, and changes no bit of what follows; memory and files are bounded and
 * trusted only when they are whole. */
#include "support/support.h"
#include "support/zoo.h"

#include "base/filemap.h"
#include "session/snapshots.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define N 230

static hh_backend *be;
static hh_model *model;
static hh_run *run;
static int32_t ids[N], other[N]; /* `other` leaves `ids` at token 140 */
static hh_error err;

static void open_model(const char *name) {
    model = zoo_open(be, name, HH_LOAD_STORED);
    assert_ok(hh_run_new(&run, model, 64, 1, HH_RUN_INFERENCE, &err));
    for (int32_t i = 0; i < N; i++) ids[i] = other[i] = (int32_t)((i * 37 + i * i) % model->config.vocab);
    for (int32_t i = 140; i < N; i++) other[i] = (int32_t)((i * 11 + 5) % model->config.vocab);
}

static void close_model(void) {
    hh_run_free(run);
    hh_model_close(model);
}

static hh_cache *new_cache(void) {
    hh_cache *c;
    assert_ok(hh_cache_new(&c, model, N, HH_DTYPE_F32, &err));
    return c;
}

/* Reads tokens up to n in chunks of 64, saving at the ends of chunks and at n when asked; the last token's logits. */
static hh_real *read_tokens(hh_cache *c, const int32_t *tokens, int64_t n, hh_snapshots *save) {
    hh_real *logits = hh_alloc((size_t)model->config.vocab * sizeof *logits);
    while (c->length < n) {
        int64_t at = c->length, hi = (at / 64 + 1) * 64 < n ? (at / 64 + 1) * 64 : n;
        const hh_span span = {0, hi - at, at};
        hh_batch b = {.n_tokens = hi - at, .n_spans = 1, .ids = tokens + at, .span = &span, .cache = &c};
        hh_tensor final;
        assert_ok(hh_forward(run, &b, &final, &err));
        if (hi == n)
            hh_logits(run, hh_tensor_rows(final, n - at - 1, n - at), NULL, 1,
                      hh_tensor_2d(logits, HH_DTYPE_REAL, 1, model->config.vocab));
        if (save && hi % 64 == 0) hh_snapshots_add(save, c, tokens, NULL);
        if (save && hi == n) hh_snapshots_add(save, c, tokens, logits);
    }
    return logits;
}

static void assert_same(const hh_real *a, const hh_real *b) {
    assert_memory_equal(a, b, (size_t)model->config.vocab * sizeof *a);
}

static hh_snapshots *new_store(size_t bytes, const char *dir) {
    hh_snapshots *s;
    assert_ok(hh_snapshots_new(
        &s, model, &(hh_snapshots_options){.max_bytes = bytes, .dir = dir, .kv_dtype = HH_DTYPE_F32}, &err));
    return s;
}

/* Restores for `tokens`, checks how much was there, reads the rest, and compares with a cold reading. */
static void check_restored(hh_snapshots *s, const int32_t *tokens, int64_t n, int64_t expected) {
    hh_cache *cold = new_cache(), *warm = new_cache();
    hh_real *want = read_tokens(cold, tokens, n, NULL), *kept = hh_alloc((size_t)model->config.vocab * sizeof *kept);
    int64_t length;
    hh_snapshots_restore(s, warm, tokens, n, kept, &length);
    assert_int_equal(length, expected);
    assert_int_equal(warm->length, length);
    hh_real *got = length == n ? kept : read_tokens(warm, tokens, n, NULL);
    assert_same(got, want);
    if (got != kept) hh_free(got);
    hh_free(kept);
    hh_free(want);
    hh_cache_free(cold, be);
    hh_cache_free(warm, be);
}

static void fill(hh_snapshots *s) {
    hh_cache *c = new_cache();
    hh_free(read_tokens(c, ids, 200, s));
    hh_cache_free(c, be);
}

static void what_was_read_is_not_read_again(void **state) {
    (void)state;
    open_model("hybrid_gate_everything");
    hh_snapshots *s = new_store((size_t)1 << 30, NULL);
    check_restored(s, ids, 200, 0);
    fill(s);
    check_restored(s, ids, 200, 200);   /* the same prompt: its logits were kept */
    check_restored(s, ids, 210, 192);   /* a longer one: from the last multiple of 64 */
    check_restored(s, ids, 192, 128);   /* a shorter one that ends where no logits are */
    check_restored(s, other, 200, 128); /* an edit at token 140 */
    check_restored(s, ids, 64, 0);
    check_restored(s, ids, 30, 0);
    int64_t n = hh_snapshots_get_stats(s).n;
    assert_int_equal(n, 4);
    fill(s); /* again: nothing new */
    assert_int_equal(hh_snapshots_get_stats(s).n, n);
    hh_cache *c = new_cache();
    hh_free(read_tokens(c, other, 150, s)); /* a branch: only its own end is new */
    assert_int_equal(hh_snapshots_get_stats(s).n, n + 1);
    hh_cache_free(c, be);
    hh_snapshots_free(s);
    close_model();
}

static void a_dense_model_restores_any_multiple_of_64(void **state) {
    (void)state;
    open_model("qwen3_gqa2");
    hh_snapshots *s = new_store((size_t)1 << 30, NULL);
    hh_cache *c = new_cache();
    hh_free(read_tokens(c, ids, 192, NULL));
    hh_snapshots_add(s, c, ids, NULL); /* one snapshot, at 192 */
    assert_int_equal(hh_snapshots_get_stats(s).n, 1);
    check_restored(s, ids, 230, 192);
    check_restored(s, ids, 150, 128);
    check_restored(s, ids, 128, 64);
    check_restored(s, other, 200, 128);
    hh_cache_free(c, be);
    hh_snapshots_free(s);
    close_model();
}

static void memory_is_bounded(void **state) {
    (void)state;
    open_model("hybrid_gate_everything");
    hh_snapshots *s = new_store((size_t)1 << 30, NULL);
    fill(s);
    size_t all = hh_snapshots_get_stats(s).bytes;
    hh_snapshots_free(s);
    for (size_t bytes = 0; bytes <= all; bytes += all / 7) {
        s = new_store(bytes, NULL);
        fill(s);
        hh_cache *c = new_cache();
        hh_free(read_tokens(c, other, 200, s));
        assert_true(hh_snapshots_get_stats(s).bytes <= bytes);
        int64_t length;
        hh_snapshots_restore(s, c, other, 200, NULL, &length); /* whatever is left, it is right */
        check_restored(s, other, 200, length);
        hh_cache_free(c, be);
        hh_snapshots_free(s);
    }
    close_model();
}

/* Calls f on every snapshot file. */
static int64_t each_file(const char *dir, void (*f)(const char *path)) {
    int64_t n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));) {
        if (!strstr(e->d_name, ".snap")) continue;
        char *path = hh_path_join(dir, e->d_name);
        if (f) f(path);
        hh_free(path);
        n++;
    }
    closedir(d);
    return n;
}

static void write_all(hh_snapshots *s) {
    for (bool done = false; !done;) assert_ok(hh_snapshots_write(s, &done, &err));
}

static void damage(const char *path) {
    FILE *f = fopen(path, "r+b");
    fseek(f, -9, SEEK_END);
    int c = fgetc(f);
    fseek(f, -9, SEEK_END);
    fputc(c ^ 1, f);
    fclose(f);
}

static void cut(const char *path) {
    assert_int_equal(truncate(path, 1000), 0);
}

static void damage_head(const char *path) {
    FILE *f = fopen(path, "r+b");
    fseek(f, 40, SEEK_SET);
    fputc(0x5a, f);
    fclose(f);
}

static void files_outlive_the_program(void **state) {
    (void)state;
    const char *dir = temp_path("snapshots");
    open_model("hybrid_gate_everything");
    hh_snapshots *s = new_store((size_t)1 << 30, dir);
    fill(s);
    write_all(s);
    assert_int_equal(each_file(dir, NULL), 4);
    hh_snapshots_free(s);

    s = new_store((size_t)1 << 30, dir); /* a restart */
    assert_int_equal(hh_snapshots_get_stats(s).n, 4);
    assert_int_equal(hh_snapshots_get_stats(s).bytes, 0);
    check_restored(s, ids, 200, 200);
    check_restored(s, ids, 220, 192);
    hh_snapshots_free(s);

    /* caches of another type, as another model would be: not seen, not touched */
    hh_snapshots *foreign;
    assert_ok(hh_snapshots_new(
        &foreign, model, &(hh_snapshots_options){.max_bytes = (size_t)1 << 30, .dir = dir, .kv_dtype = HH_DTYPE_BF16},
        &err));
    assert_int_equal(hh_snapshots_get_stats(foreign).n, 0);
    hh_snapshots_free(foreign);
    assert_int_equal(each_file(dir, NULL), 4);

    /* memory for little: payloads go and come again from disk */
    size_t one = 40000;
    s = new_store(one, dir);
    check_restored(s, ids, 100, 64);
    hh_snapshots_free(s);
    close_model();
}

static void what_is_damaged_is_computed_again(void **state) {
    (void)state;
    static void (*const harm[])(const char *) = {damage, cut, damage_head};
    open_model("hybrid_gate_everything");
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "damaged%d", i);
        const char *dir = temp_path(name);
        hh_snapshots *s = new_store((size_t)1 << 30, dir);
        fill(s);
        write_all(s);
        hh_snapshots_free(s);
        each_file(dir, harm[i]);
        s = new_store((size_t)1 << 30, dir);
        check_restored(s, ids, 200, 0);
        assert_true(hh_snapshots_get_stats(s).refused > 0);
        assert_true(strlen(hh_snapshots_get_stats(s).last_refusal) > 0);
        fill(s);
        write_all(s);
        check_restored(s, ids, 200, 200);
        hh_snapshots_free(s);
        s = new_store((size_t)1 << 30, dir); /* written anew, and whole */
        check_restored(s, ids, 200, 200);
        hh_snapshots_free(s);
    }
    close_model();
}

static void disk_is_bounded(void **state) {
    (void)state;
    const char *dir = temp_path("bounded");
    open_model("hybrid_gate_everything");
    hh_snapshots *s;
    assert_ok(hh_snapshots_new(
        &s, model,
        &(hh_snapshots_options){
            .max_bytes = (size_t)1 << 30, .dir = dir, .max_disk_bytes = 100000, .kv_dtype = HH_DTYPE_F32},
        &err));
    fill(s);
    write_all(s);
    assert_true(hh_snapshots_get_stats(s).disk_bytes <= 100000);
    check_restored(s, ids, 200, 200);
    hh_snapshots_free(s);
    close_model();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_read_is_not_read_again),
        cmocka_unit_test(a_dense_model_restores_any_multiple_of_64),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(files_outlive_the_program),
        cmocka_unit_test(what_is_damaged_is_computed_again),
        cmocka_unit_test(disk_is_bounded),
    };
    be = zoo_backend();
    return cmocka_run_group_tests_name("snapshots", tests, NULL, NULL);
}
