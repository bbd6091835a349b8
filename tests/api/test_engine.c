/* The engine: what it says of itself, text and tokens, snapshots on disk, saved sequences, errors; and that it prints
 * nothing. */
#include "api/contexts.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { N = 400 };

static int32_t ids[N];

static void test_it_says_what_it_is(void **state) {
    (void)state;
    assert_string_equal(hh_version(), HH_VERSION);
    assert_int_equal(hh_api_version(), HH_API_VERSION);
    hh_engine *dense = open_engine("nano", (hh_engine_options){0});
    hh_engine *hybrid = open_engine("hybrid_default", (hh_engine_options){0});
    const hh_engine_info d = hh_engine_get_info(dense), h = hh_engine_get_info(hybrid);
    assert_string_equal(d.family, "qwen3");
    assert_non_null(strstr(d.backend, "cpu ("));
    assert_false(d.hybrid);
    assert_int_equal(d.n_kept_heads, d.n_layers * d.n_heads);
    assert_true(d.cache_bytes_per_token > 0 && d.state_bytes < 1 && d.weight_bytes > 0 && d.native_context > 0);
    assert_true(h.hybrid && h.n_kept_heads < h.n_layers * h.n_heads && h.state_bytes > 0);
    assert_true(hh_engine_sequence_bytes(dense, 8192) > hh_engine_sequence_bytes(dense, 4096));
    hh_engine_close(dense);
    hh_engine_close(hybrid);
}

static void test_text_becomes_tokens_and_text_again(void **state) {
    (void)state;
    static const char text[] = "The grass is green. \xc3\xa9\xf0\x9f\x8c\xb1";
    hh_engine *e = open_engine("nano", (hh_engine_options){0});
    int32_t *tokens;
    char *again;
    int64_t n;
    size_t len;
    assert_ok(hh_engine_tokenize(e, text, strlen(text), false, &tokens, &n, &err));
    assert_true(n > 0);
    assert_ok(hh_engine_detokenize(e, tokens, n, false, &again, &len, &err));
    assert_int_equal(len, strlen(text));
    assert_string_equal(again, text);
    hh_memory_free(again);
    hh_memory_free(tokens);
    assert_ok(hh_engine_tokenize(e, "", 0, false, &tokens, &n, &err));
    assert_int_equal(n, 0);
    assert_ok(hh_engine_detokenize(e, tokens, 0, false, &again, &len, &err));
    assert_string_equal(again, "");
    hh_memory_free(again);
    hh_memory_free(tokens);
    const int32_t none = 1 << 30;
    assert_refused(hh_engine_detokenize(e, &none, 1, true, &again, &len, &err), HH_EINVAL, "1073741824");
    const int32_t *end = hh_engine_end_tokens(e, &n);
    assert_true(n > 0 && end[0] >= 0);
    hh_engine_close(e);
}

static int warnings;
static void count_warnings(void *context, hh_log_level level, const char *sentence) {
    assert_ptr_equal(context, &warnings);
    assert_true(strlen(sentence) > 0);
    warnings += level == HH_LOG_WARNING;
}

static void test_a_model_without_a_tokenizer_takes_tokens(void **state) {
    (void)state;
    warnings = 0;
    hh_engine *e = open_engine("hybrid_default", (hh_engine_options){.log = count_warnings, .log_context = &warnings});
    int32_t *tokens;
    int64_t n;
    assert_int_equal(warnings, 1);
    assert_true(hh_engine_tokenize(e, "a", 1, false, &tokens, &n, &err) != HH_OK);
    assert_true(strlen(err.text) > 0);
    hh_engine_close(e);
}

/* -- on disk -- */

static void write_all(hh_engine *e) {
    for (bool done = false; !done;) assert_ok(hh_engine_write_snapshot(e, &done, &err));
}

/* Flips a bit of every snapshot's payload. */
static void damage_all(const char *dir) {
    DIR *d = opendir(dir);
    for (struct dirent *f; (f = readdir(d));) {
        if (!strstr(f->d_name, ".snap")) continue;
        char path[600];
        snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        fseek(file, -9, SEEK_END);
        const int c = fgetc(file);
        fseek(file, -9, SEEK_END);
        fputc(c ^ 1, file);
        fclose(file);
    }
    closedir(d);
}

static void test_a_restart_goes_on_where_it_was(void **state) {
    (void)state;
    fill_ids(ids, 0, 0, N);
    for (int m = 0; m < 2; m++) {
        const char *name = all_models[m], *dir = temp_path(name);
        const hh_engine_options o = {.cache_dir = dir, .log = count_warnings, .log_context = &warnings};
        hh_engine *e = open_engine(name, o);
        hh_sequence *s = new_sequence(e, N);
        check_prompt(name, e, s, ids, 300, 0);
        write_all(e);
        assert_true(hh_engine_get_stats(e).snapshot_disk_bytes > 0);
        hh_sequence_free(s);
        hh_engine_close(e);

        e = open_engine(name, o);
        s = new_sequence(e, N);
        check_prompt(name, e, s, ids, 300, 300);
        check_prompt(name, e, s, ids, 380, 256);
        hh_sequence_free(s);
        hh_engine_close(e);

        damage_all(dir);
        warnings = 0;
        e = open_engine(name, o);
        s = new_sequence(e, N);
        const int before = warnings;
        check_prompt(name, e, s, ids, 300, 0);
        assert_true(hh_engine_get_stats(e).snapshots_refused > 0 && warnings > before);
        hh_sequence_free(s);
        hh_engine_close(e);
    }
}

static void check_damage(hh_sequence *s, const char *path, size_t at, hh_code expected) {
    hh_buf file = read_whole(path);
    const char *copy = temp_path("damaged.seq");
    file.data[at < file.len ? at : file.len - 1] ^= 4;
    assert_ok(hh_file_write(copy, file.data, file.len, &err));
    assert_refused(hh_sequence_load(s, copy, &err), expected, "damaged");
    assert_ok(hh_file_write(copy, file.data, file.len / 2, &err));
    assert_true(hh_sequence_load(s, copy, &err) == HH_EFORMAT);
    hh_buf_release(&file);
}

static void test_a_sequence_is_saved_and_goes_on(void **state) {
    (void)state;
    const char *path = temp_path("one.seq");
    fill_ids(ids, 0, 0, N);
    for (int m = 0; m < 2; m++) {
        hh_engine *e = open_engine(all_models[m], (hh_engine_options){.cache_bytes = SIZE_MAX});
        hh_engine *other = open_engine(all_models[2], (hh_engine_options){0});
        hh_engine *wider = open_engine(all_models[m], (hh_engine_options){.kv = kv_type ? "bf16" : "f32"});
        hh_sequence *s = new_sequence(e, N), *t = new_sequence(e, N), *small = new_sequence(e, 100),
                    *stranger = new_sequence(other, N), *changed = new_sequence(wider, N);
        assert_refused(hh_sequence_save(s, path, &err), HH_EINVAL, "nothing");
        assert_ok(hh_sequence_prompt(s, ids, 256, &err));
        assert_ok(hh_sequence_save(s, path, &err));
        assert_ok(hh_sequence_load(t, path, &err));
        assert_memory_equal(hh_sequence_logits(t), hh_sequence_logits(s), logits_bytes(e));
        check_prompt(all_models[m], e, t, ids, 300, 256);
        const int32_t next = 7;
        assert_ok(hh_sequence_load(t, path, &err));
        assert_ok(hh_sequences_step(&s, &next, 1, NULL, &err));
        assert_ok(hh_sequences_step(&t, &next, 1, NULL, &err));
        assert_memory_equal(hh_sequence_logits(t), hh_sequence_logits(s), logits_bytes(e));
        assert_refused(hh_sequence_load(small, path, &err), HH_EINVAL, "256", "100");
        assert_refused(hh_sequence_load(stranger, path, &err), HH_EUNSUPPORTED, "another model");
        assert_refused(hh_sequence_load(changed, path, &err), HH_EUNSUPPORTED, "other settings");
        check_damage(t, path, 20, HH_EFORMAT);       /* head */
        check_damage(t, path, 200, HH_EFORMAT);      /* tokens */
        check_damage(t, path, SIZE_MAX, HH_EFORMAT); /* logits */
        assert_true(hh_sequence_load(t, temp_path("absent"), &err) == HH_EIO);
        hh_sequence_free(s);
        hh_sequence_free(t);
        hh_sequence_free(small);
        hh_sequence_free(stranger);
        hh_sequence_free(changed);
        hh_engine_close(wider);
        hh_engine_close(e);
        hh_engine_close(other);
    }
}

/* Snapshots and saved sequences hold caches of any type as they are: what is restored gives the bits of reading everything. */
static void test_caches_of_other_types_are_kept_too(void **state) {
    hh_engine *wide = open_engine("nano", (hh_engine_options){.kv = "f32"}),
              *narrow = open_engine("nano", (hh_engine_options){.kv = "q8_0"});
    assert_near(hh_engine_get_info(narrow).cache_bytes_per_token,
                hh_engine_get_info(wide).cache_bytes_per_token * 34 / 128, 1e-6);
    hh_engine_close(narrow);
    hh_engine_close(wide);
    static const char *const types[] = {"f32", "q8_0"};
    for (int i = 0; i < 2; i++) {
        kv_type = types[i];
        test_a_restart_goes_on_where_it_was(state);
        test_a_sequence_is_saved_and_goes_on(state);
    }
    kv_type = NULL;
}

/* -- what makes no sense -- */

static void test_bad_words_are_refused(void **state) {
    (void)state;
    hh_engine *e;
    assert_true(hh_engine_open(&e, "models/there-is-none", NULL, &err) != HH_OK);
    assert_null(e);
    assert_non_null(strstr(err.text, "there-is-none"));
    assert_refused(hh_engine_open(&e, NULL, NULL, &err), HH_EINVAL, "path");
    assert_refused(hh_engine_open(&e, "nano", &(hh_engine_options){.device = "tpu"}, &err), HH_EINVAL, "tpu");
    assert_refused(hh_engine_open(&e, "nano", &(hh_engine_options){.dtype = "f8"}, &err), HH_EINVAL, "f8");
    assert_refused(hh_engine_open(&e, "nano", &(hh_engine_options){.kv = "q2"}, &err), HH_EINVAL, "q2");
    assert_refused(hh_engine_open(&e, model_path("qwen2_gqa1_tied"), &(hh_engine_options){.kv = "q8_0"}, &err),
                   HH_EUNSUPPORTED, "q8_0");
    assert_refused(hh_engine_open(&e, "nano", &(hh_engine_options){.rope = "wide:4"}, &err), HH_EINVAL, "wide:4");
    assert_refused(hh_engine_open(&e, "nano", &(hh_engine_options){.threads = -1}, &err), HH_EINVAL, "-1");
    assert_refused(hh_engine_open(&e, "nano", &(hh_engine_options){.chunk = -1}, &err), HH_EINVAL, "-1");

    e = open_engine("nano", (hh_engine_options){0});
    hh_sequence *s;
    assert_refused(hh_sequence_new(&s, e, 0, &err), HH_EINVAL, "0");
    s = new_sequence(e, 100);
    fill_ids(ids, 0, 0, N);
    assert_ok(hh_sequence_prompt(s, ids, 80, &err));
    assert_refused(hh_sequence_prompt(s, ids, 101, &err), HH_EINVAL, "101", "100");
    assert_refused(hh_sequence_prompt(s, ids, 0, &err), HH_EINVAL, "0");
    ids[3] = -5;
    assert_refused(hh_sequence_prompt(s, ids, 10, &err), HH_EINVAL, "-5");
    assert_int_equal(hh_sequence_length(s), 80); /* nothing has happened */
    assert_non_null(hh_sequence_logits(s));
    float *scores;
    assert_refused(hh_sequence_score(s, ids, 10, 0, &scores, NULL, NULL, &err), HH_EINVAL, "-5");
    assert_refused(hh_sequence_score(s, ids, 3, 2, &scores, NULL, NULL, &err), HH_EINVAL, "2");
    hh_sequence_free(s);
    hh_engine_close(e);
    hh_engine_close(NULL);
    hh_sequence_free(NULL);
}

/* A whole life with both output streams in a file, which stays empty. */
static void test_nothing_is_printed(void **state) {
    (void)state;
    const char *path = temp_text("printed", "");
    const int file = open(path, O_WRONLY), out = dup(STDOUT_FILENO), errors = dup(STDERR_FILENO);
    fflush(stdout);
    fflush(stderr);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    hh_engine *e, *none;
    hh_sequence *s = NULL;
    hh_code code = hh_engine_open(&e, "nano", NULL, &err);
    fill_ids(ids, 0, 0, N);
    if (code == HH_OK) code = hh_sequence_new(&s, e, N, &err);
    if (code == HH_OK) code = hh_sequence_prompt(s, ids, 300, &err);
    if (code == HH_OK) code = hh_sequences_step(&s, ids, 1, NULL, &err);
    hh_sequence_free(s);
    hh_engine_close(e);
    const hh_code refused = hh_engine_open(&none, "models/there-is-none", NULL, &err);
    fflush(stdout);
    fflush(stderr);
    dup2(out, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    close(file);
    close(out);
    close(errors);
    assert_int_equal(code, HH_OK);
    assert_int_not_equal(refused, HH_OK);
    hh_buf printed = read_whole(path);
    assert_int_equal(printed.len, 0);
    hh_buf_release(&printed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_says_what_it_is),
        cmocka_unit_test(test_text_becomes_tokens_and_text_again),
        cmocka_unit_test(test_a_model_without_a_tokenizer_takes_tokens),
        cmocka_unit_test(test_a_restart_goes_on_where_it_was),
        cmocka_unit_test(test_a_sequence_is_saved_and_goes_on),
        cmocka_unit_test(test_caches_of_other_types_are_kept_too),
        cmocka_unit_test(test_bad_words_are_refused),
        cmocka_unit_test(test_nothing_is_printed),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
