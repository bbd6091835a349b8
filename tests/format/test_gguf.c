/* GGUF: what is well formed is read, what lies about its sizes is refused with file, key or tensor, and numbers. */
#include "support/gguf_image.h"
#include "support/support.h"
#include "base/progress.h"
#include "format/gguf.h"

#include <string.h>

static hh_error err;
static hh_gguf *g;

/* From an exact heap copy, so that a sanitizer sees a read behind the end. Releases the image. */
static void *image;
static hh_code parse(hh_buf *b) {
    hh_gguf_free(g);
    hh_free(image);
    g = NULL;
    image = hh_alloc(b->len);
    memcpy(image, b->data, b->len);
    hh_code code = hh_gguf_parse(&g, "F.gguf", image, b->len, &err);
    hh_buf_release(b);
    return code;
}

/* One tensor, `data` bytes of data. */
static hh_code parse_tensor(int rank, const uint64_t *dim, uint32_t type, uint64_t offset, size_t data) {
    hh_buf b = {0};
    gguf_header(&b, 3, 1, 0);
    gguf_tensor(&b, "w", rank, dim, type, offset);
    gguf_data(&b, 32, data);
    return parse(&b);
}

#define DIMS(...)                                                                                                      \
    (const uint64_t[]) {                                                                                               \
        __VA_ARGS__                                                                                                    \
    }

static void metadata_of_every_type_is_read(void **state) {
    (void)state;
    static const size_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    static const char *const names[] = {"u8",   "i8", "u16", "i16", "u32", "i32", "f32",
                                        "bool", "",   "",    "u64", "i64", "f64"};
    hh_buf b = {0};
    gguf_header(&b, 3, 0, 14);
    for (int t = 0; t <= G_F64; t++) {
        if (t == G_STRING || t == G_ARRAY) continue;
        gguf_text(&b, names[t]);
        gguf_number(&b, 4, (uint64_t)t);
        gguf_number(&b, bytes[t],
                    t == G_BOOL  ? 1
                    : t == G_F32 ? 0xbfc00000
                    : t == G_F64 ? 0xbff8000000000000
                                 : UINT64_MAX);
    }
    gguf_key_string(&b, "text", "a\tb");
    gguf_text(&b, "words");
    gguf_number(&b, 4, G_ARRAY);
    gguf_number(&b, 4, G_STRING);
    gguf_number(&b, 8, 3);
    gguf_text(&b, "one");
    gguf_text(&b, "");
    gguf_text(&b, "three");
    gguf_text(&b, "numbers");
    gguf_number(&b, 4, G_ARRAY);
    gguf_number(&b, 4, G_I16);
    gguf_number(&b, 8, 2);
    gguf_number(&b, 2, 0xfffe);
    gguf_number(&b, 2, 7);
    assert_ok(parse(&b));
    int64_t i, n;
    double x;
    bool yes = false;
    const char *s;
    size_t len;
    assert_true(hh_gguf_int(g, "u8", &i) && i == 255);
    assert_true(hh_gguf_int(g, "i8", &i) && i == -1);
    assert_true(hh_gguf_int(g, "u16", &i) && i == 65535);
    assert_true(hh_gguf_int(g, "u32", &i) && i == UINT32_MAX);
    assert_true(hh_gguf_int(g, "i64", &i) && i == -1);
    assert_true(hh_gguf_int(g, "bool", &i) && i == 1);
    assert_false(hh_gguf_int(g, "u64", &i)); /* does not fit */
    assert_false(hh_gguf_int(g, "f32", &i));
    assert_true(hh_gguf_float(g, "f32", &x) && x < -1.4 && x > -1.6);
    assert_true(hh_gguf_float(g, "f64", &x) && x < -1.4 && x > -1.6);
    assert_true(hh_gguf_float(g, "i32", &x) && x < -0.9);
    assert_true(hh_gguf_bool(g, "bool", &yes) && yes);
    assert_false(hh_gguf_bool(g, "u8", &yes));
    assert_true(hh_gguf_string(g, "text", &s, &len) && len == 3 && memcmp(s, "a\tb", 3) == 0);
    assert_false(hh_gguf_string(g, "words", &s, &len));
    assert_true(hh_gguf_array_count(g, "words", &n) && n == 3);
    assert_true(hh_gguf_array_string(g, "words", 2, &s, &len) && len == 5 && memcmp(s, "three", 5) == 0);
    assert_true(hh_gguf_array_string(g, "words", 1, &s, &len) && len == 0);
    assert_false(hh_gguf_array_string(g, "words", 3, &s, &len));
    assert_true(hh_gguf_array_int(g, "numbers", 0, &i) && i == -2);
    assert_false(hh_gguf_array_int(g, "u8", 0, &i));
    assert_false(hh_gguf_has(g, "none"));
    hh_buf shown = {0};
    for (int64_t k = 0; k < hh_gguf_key_count(g); k++) {
        hh_gguf_render(g, k, &shown);
        hh_buf_puts(&shown, "\n");
    }
    assert_non_null(strstr(shown.data, "string 'a?b'\nstring[3] 'one', '', 'three'\ni16[2] -2, 7\n"));
    hh_buf_release(&shown);
}

static void tensors_are_row_major_and_in_place(void **state) {
    (void)state;
    hh_buf b = {0};
    gguf_header(&b, 2, 2, 1);
    gguf_key_u32(&b, "general.alignment", 64);
    gguf_tensor(&b, "a", 2, DIMS(32, 3), 8, 0); /* Q8_0: 3 rows of one block */
    gguf_tensor(&b, "b", 1, DIMS(2), 0, 128);
    gguf_data(&b, 64, 136);
    assert_ok(parse(&b));
    assert_int_equal(hh_gguf_tensor_count(g), 2);
    hh_tensor a = hh_gguf_tensor(g, 0)->t, v = hh_gguf_tensor(g, 1)->t;
    assert_int_equal(a.dtype, HH_DTYPE_Q8_0);
    assert_int_equal(a.dim[0], 3);
    assert_int_equal(a.dim[1], 32);
    assert_int_equal(*(unsigned char *)a.data, 1);
    assert_int_equal(*(unsigned char *)v.data, 129);
}

static void sizes_that_lie_are_refused(void **state) {
    (void)state;
    hh_buf b = {0};
    gguf_header(&b, 3, 0, UINT64_MAX);
    assert_refused(parse(&b), HH_EFORMAT, "F.gguf", "18446744073709551615 keys");
    gguf_header(&b, 3, UINT64_MAX / 2, 0);
    assert_refused(parse(&b), HH_EFORMAT, "F.gguf", "9223372036854775807 tensors");
    gguf_header(&b, 3, 0, 1);
    gguf_number(&b, 8, UINT64_MAX - 3); /* a key longer than the file */
    hh_buf_puts(&b, "name and some more");
    assert_refused(parse(&b), HH_EFORMAT, "F.gguf", "18446744073709551612");
    gguf_header(&b, 3, 0, 1);
    gguf_text(&b, "long");
    gguf_number(&b, 4, G_STRING);
    gguf_number(&b, 8, 1000);
    assert_refused(parse(&b), HH_EFORMAT, "F.gguf", "claims 1000 bytes", "has 0 left");
    gguf_header(&b, 3, 0, 1);
    gguf_text(&b, "many");
    gguf_number(&b, 4, G_ARRAY);
    gguf_number(&b, 4, G_U64);
    gguf_number(&b, 8, (uint64_t)1 << 61); /* times 8 is 0 in 64 bits */
    assert_refused(parse(&b), HH_EFORMAT, "'many'", "longer than the file");
    gguf_header(&b, 3, 0, 1);
    gguf_text(&b, "strings");
    gguf_number(&b, 4, G_ARRAY);
    gguf_number(&b, 4, G_STRING);
    gguf_number(&b, 8, 2);
    gguf_text(&b, "only one, though long enough");
    assert_refused(parse(&b), HH_EFORMAT, "F.gguf", "truncated");
}

static void shapes_are_checked(void **state) {
    (void)state;
    const uint64_t big = (uint64_t)1 << 33;
    assert_refused(parse_tensor(2, DIMS(big, big), 0, 0, 32), HH_EFORMAT, "'w'", "overflows");
    assert_refused(parse_tensor(4, DIMS(0, big, big, 1), 0, 0, 32), HH_EFORMAT, "'w'", "overflows");
    assert_refused(parse_tensor(1, DIMS(UINT64_MAX), 0, 0, 32), HH_EFORMAT, "'w'", "overflows");
    assert_refused(parse_tensor(1, DIMS((uint64_t)1 << 62), 0, 0, 32), HH_EFORMAT, "'w'", "overflows");
    assert_refused(parse_tensor(5, DIMS(1, 1, 1, 1, 1), 0, 0, 32), HH_EFORMAT, "'w'", "5 dimensions");
    assert_refused(parse_tensor(1, DIMS(33), 8, 0, 68), HH_EFORMAT, "'w'", "33", "32", "q8_0");
    assert_refused(parse_tensor(1, DIMS(256), 16, 0, 68), HH_EUNSUPPORTED, "'w'", "IQ2_XXS");
    assert_refused(parse_tensor(1, DIMS(1), 4, 0, 68), HH_EFORMAT, "'w'", "type 4");
    assert_refused(parse_tensor(1, DIMS(1), 1000, 0, 68), HH_EFORMAT, "'w'", "type 1000");
}

static void data_lies_inside_the_file_and_aligned(void **state) {
    (void)state;
    assert_refused(parse_tensor(1, DIMS(16), 0, 0, 63), HH_EFORMAT, "'w'", "[0, 64)", "has 63", "truncated");
    assert_refused(parse_tensor(1, DIMS(2), 0, 4, 32), HH_EFORMAT, "'w'", "offset 4");
    assert_refused(parse_tensor(1, DIMS(2), 0, 32, 64), HH_EFORMAT, "'w'", "offset 32");
    assert_refused(parse_tensor(1, DIMS(2), 0, UINT64_MAX, 64), HH_EFORMAT, "'w'", "offset");
    assert_ok(parse_tensor(1, DIMS(16), 0, 0, 64));
    assert_ok(parse_tensor(1, DIMS(0), 0, 0, 0));
}

static void the_alignment_key_is_checked(void **state) {
    (void)state;
    static const uint32_t bad[] = {0, 1, 4, 24, 0xffffffff};
    hh_buf b = {0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        gguf_header(&b, 3, 0, 1);
        gguf_key_u32(&b, "general.alignment", bad[i]);
        assert_refused(parse(&b), HH_EFORMAT, "F.gguf", "'general.alignment'");
    }
    gguf_header(&b, 3, 0, 1);
    gguf_key_string(&b, "general.alignment", "32");
    assert_refused(parse(&b), HH_EFORMAT, "'general.alignment'", "u32");
}

static void names_are_used_once(void **state) {
    (void)state;
    hh_buf b = {0};
    gguf_header(&b, 3, 0, 2);
    gguf_key_u32(&b, "k", 1);
    gguf_key_u32(&b, "k", 2);
    assert_refused(parse(&b), HH_EFORMAT, "F.gguf", "'k'", "twice");
    gguf_header(&b, 3, 2, 0);
    gguf_tensor(&b, "w", 1, DIMS(8), 0, 0);
    gguf_tensor(&b, "w", 1, DIMS(8), 0, 32);
    gguf_data(&b, 32, 64);
    assert_refused(parse(&b), HH_EFORMAT, "F.gguf", "'w'", "twice");
    gguf_header(&b, 3, 0, 1);
    gguf_key_u32(&b, "", 1);
    assert_refused(parse(&b), HH_EFORMAT, "F.gguf", "not a name");
}

static void other_versions_and_values_are_refused(void **state) {
    (void)state;
    hh_buf b = {0};
    gguf_header(&b, 1, 0, 0);
    assert_refused(parse(&b), HH_EUNSUPPORTED, "F.gguf", "version 1");
    gguf_header(&b, 4, 0, 0);
    assert_refused(parse(&b), HH_EUNSUPPORTED, "F.gguf", "version 4");
    gguf_header(&b, 0x03000000, 0, 0);
    assert_refused(parse(&b), HH_EUNSUPPORTED, "F.gguf", "big-endian");
    hh_buf_puts(&b, "GGUX............");
    assert_refused(parse(&b), HH_EFORMAT, "F.gguf", "GGUF");
    gguf_header(&b, 3, 0, 1);
    gguf_text(&b, "k");
    gguf_number(&b, 4, 13);
    gguf_number(&b, 4, 0);
    assert_refused(parse(&b), HH_EFORMAT, "'k'", "type 13");
    gguf_header(&b, 3, 0, 1);
    gguf_text(&b, "k");
    gguf_number(&b, 4, G_BOOL);
    gguf_number(&b, 1, 2);
    assert_refused(parse(&b), HH_EFORMAT, "'k'", "bool");
    gguf_header(&b, 3, 0, 1);
    gguf_text(&b, "k");
    gguf_number(&b, 4, G_ARRAY);
    gguf_number(&b, 4, G_ARRAY);
    gguf_number(&b, 8, 0);
    assert_refused(parse(&b), HH_EUNSUPPORTED, "'k'", "array of arrays");
}

static void every_cut_of_a_file_is_refused(void **state) {
    (void)state;
    hh_buf whole = {0};
    gguf_header(&whole, 3, 1, 2);
    gguf_key_u32(&whole, "number", 1);
    gguf_key_string(&whole, "text", "some text");
    gguf_tensor(&whole, "w", 2, DIMS(4, 2), 0, 0);
    gguf_data(&whole, 32, 32);
    for (size_t n = 0; n < whole.len; n++) {
        hh_buf cut = {0};
        hh_buf_add(&cut, whole.data, n);
        assert_refused(parse(&cut), HH_EFORMAT, "F.gguf");
    }
    assert_ok(parse(&whole));
}

static void large_vocabularies_load_fast(void **state) {
    (void)state;
    enum { N = 200000 };
    hh_buf b = {0};
    char token[32];
    const char *s;
    size_t len;
    gguf_header(&b, 3, 0, 1);
    gguf_text(&b, "tokenizer.ggml.tokens");
    gguf_number(&b, 4, G_ARRAY);
    gguf_number(&b, 4, G_STRING);
    gguf_number(&b, 8, N);
    for (int i = 0; i < N; i++) {
        snprintf(token, sizeof token, "token %d", i);
        gguf_text(&b, token);
    }
    double start = hh_now();
    assert_ok(parse(&b));
    for (int i = 0; i < N; i += 7) assert_true(hh_gguf_array_string(g, "tokenizer.ggml.tokens", i, &s, &len));
    assert_true(hh_now() - start < 5); /* a search for each element would take minutes */
}

static int release(void **state) {
    (void)state;
    hh_gguf_free(g);
    hh_gguf_free(NULL);
    hh_free(image);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_of_every_type_is_read),
        cmocka_unit_test(tensors_are_row_major_and_in_place),
        cmocka_unit_test(sizes_that_lie_are_refused),
        cmocka_unit_test(shapes_are_checked),
        cmocka_unit_test(data_lies_inside_the_file_and_aligned),
        cmocka_unit_test(the_alignment_key_is_checked),
        cmocka_unit_test(names_are_used_once),
        cmocka_unit_test(other_versions_and_values_are_refused),
        cmocka_unit_test(every_cut_of_a_file_is_refused),
        cmocka_unit_test(large_vocabularies_load_fast),
    };
    return cmocka_run_group_tests_name("format: GGUF", tests, NULL, release);
}
