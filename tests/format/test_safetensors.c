/* safetensors: everything a damaged or hostile file may hold is refused with file, tensor and numbers; what the format
 * allows is read; what is written is read back. */
#include "support/support.h"
#include "format/safetensors.h"

#include <string.h>

static hh_error err;

typedef struct seen {
    int n;
    char names[8][64];
    hh_tensor t[8];
} seen;

static hh_code remember(void *context, const char *name, hh_tensor t, hh_error *e) {
    (void)e;
    seen *s = context;
    if (s->n < 8) {
        snprintf(s->names[s->n], sizeof s->names[0], "%s", name);
        s->t[s->n] = t;
    }
    s->n++;
    return HH_OK;
}

/* A file image: header length, header, n bytes of data. `length` < 0: the header's own. */
static size_t make_image(char *out, const char *header, size_t header_len, int64_t length, size_t n_data) {
    uint64_t v = length < 0 ? header_len : (uint64_t)length;
    for (int i = 0; i < 8; i++) out[i] = (char)(v >> (8 * i));
    memcpy(out + 8, header, header_len);
    for (size_t i = 0; i < n_data; i++) out[8 + header_len + i] = (char)(i + 1);
    return 8 + header_len + n_data;
}

/* An exact heap copy, so that a sanitizer sees the first byte read behind the end. */
static hh_code parse_bytes(const char *image, size_t size, seen *s) {
    char *copy = hh_alloc(size);
    memcpy(copy, image, size);
    memset(s, 0, sizeof *s);
    hh_code code = hh_safetensors_parse("F.safetensors", copy, size, remember, s, &err);
    hh_free(copy);
    return code;
}

static hh_code parse(const char *header, size_t n_data) {
    static char image[4096];
    seen s;
    return parse_bytes(image, make_image(image, header, strlen(header), -1, n_data), &s);
}

#define ENTRY(name, dtype, shape, offsets)                                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void header_lengths_are_checked(void **state) {
    (void)state;
    char image[64];
    seen s;
    assert_refused(parse_bytes("", 0, &s), HH_EFORMAT, "F.safetensors", "0 bytes");
    assert_refused(parse_bytes("\2\0\0", 3, &s), HH_EFORMAT, "F.safetensors", "3 bytes");
    assert_refused(parse_bytes(image, make_image(image, "{}", 2, 0, 0), &s), HH_EFORMAT, "length is 0");
    assert_refused(parse_bytes(image, make_image(image, "{}", 2, 3, 0), &s), HH_EFORMAT, "3 bytes", "2 after");
    assert_refused(parse_bytes(image, make_image(image, "{}", 2, 100000001, 0), &s), HH_EFORMAT, "100000001");
    assert_refused(parse_bytes(image, make_image(image, "{}", 2, INT64_MAX, 0), &s), HH_EFORMAT, "F.safetensors");
}

static void headers_that_are_not_json_are_refused(void **state) {
    (void)state;
    char image[64];
    seen s;
    assert_refused(parse("{\"a\":", 0), HH_EFORMAT, "F.safetensors", "JSON");
    assert_refused(parse("[]", 0), HH_EFORMAT, "F.safetensors", "object");
    assert_refused(parse("{} x", 0), HH_EFORMAT, "F.safetensors", "JSON");
    assert_refused(parse("{\"a\xff\":1}", 0), HH_EFORMAT, "F.safetensors", "JSON");
    assert_refused(parse_bytes(image, make_image(image, "{}\0\0", 4, -1, 0), &s), HH_EFORMAT, "JSON");
    char deep[2000];
    memset(deep, '[', sizeof deep - 1);
    memcpy(deep, "{\"a\":", 5);
    deep[sizeof deep - 1] = 0;
    assert_refused(parse(deep, 0), HH_EFORMAT, "F.safetensors", "nested");
}

static void shapes_are_checked(void **state) {
    (void)state;
    assert_refused(parse("{" ENTRY("w", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4), HH_EFORMAT, "'w'",
                   "overflows");
    assert_refused(parse("{" ENTRY("w", "F32", "[4611686018427387904]", "[0,4]") "}", 4), HH_EFORMAT, "'w'",
                   "overflows");
    assert_refused(parse("{" ENTRY("w", "F32", "[0,4294967296,4294967296]", "[0,0]") "}", 0), HH_EFORMAT, "overflows");
    assert_refused(parse("{" ENTRY("w", "F32", "[4294967296,4294967296,0]", "[0,0]") "}", 0), HH_EFORMAT, "overflows");
    assert_refused(parse("{" ENTRY("w", "F32", "[-1]", "[0,4]") "}", 4), HH_EFORMAT, "'w'", "-1");
    assert_refused(parse("{" ENTRY("w", "F32", "[1.0]", "[0,4]") "}", 4), HH_EFORMAT, "'w'", "shape");
    assert_refused(parse("{" ENTRY("w", "F32", "1", "[0,4]") "}", 4), HH_EFORMAT, "'w'", "shape");
    assert_refused(parse("{" ENTRY("w", "F32", "[1,1,1,1,1]", "[0,4]") "}", 4), HH_EUNSUPPORTED, "'w'", "5 dimensions");
    assert_refused(parse("{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4), HH_EFORMAT, "'w'", "shape");
}

#define BLOCKS(type) "{\"__metadata__\":{\"blocks.w\":\"" type "\"},"

static void blocks_are_checked(void **state) {
    (void)state;
    static char image[4096];
    seen s;
    const char *good = "{\"__metadata__\":{\"blocks.w\":\"q8_0\",\"blocks.v\":\"q4_0\"}," ENTRY(
        "w", "U8", "[3,68]", "[0,204]") "," ENTRY("v", "U8", "[2,18]", "[204,240]") "}";
    assert_ok(parse_bytes(image, make_image(image, good, strlen(good), -1, 240), &s));
    assert_int_equal(s.n, 2);
    assert_true(s.t[0].dtype == HH_DTYPE_Q8_0 && s.t[0].rank == 2 && s.t[0].dim[0] == 3 && s.t[0].dim[1] == 64);
    assert_true(s.t[1].dtype == HH_DTYPE_Q4_0 && s.t[1].dim[0] == 2 && s.t[1].dim[1] == 32 && s.t[1].stride == 32);
    assert_refused(parse_bytes(image, make_image(image, good, strlen(good), -1, 239), &s), HH_EFORMAT, "'v'",
                   "truncated");
    assert_refused(parse(BLOCKS("q8_0") ENTRY("w", "U8", "[2,33]", "[0,66]") "}", 66), HH_EFORMAT, "'w'", "33 bytes",
                   "34");
    assert_refused(parse(BLOCKS("q8_0") ENTRY("w", "U8", "[2,34]", "[0,34]") "}", 34), HH_EFORMAT, "'w'", "need 68");
    assert_refused(parse(BLOCKS("q8_0") ENTRY("w", "U8", "[68]", "[0,68]") "}", 68), HH_EFORMAT, "'w'", "matrix");
    assert_refused(parse(BLOCKS("q8_0") ENTRY("w", "F32", "[1,34]", "[0,136]") "}", 136), HH_EFORMAT, "'w'", "F32");
    assert_refused(parse(BLOCKS("q9_0") ENTRY("w", "U8", "[1,34]", "[0,34]") "}", 34), HH_EUNSUPPORTED, "'w'", "q9_0");
    assert_refused(parse(BLOCKS("bf16") ENTRY("w", "U8", "[1,34]", "[0,34]") "}", 34), HH_EUNSUPPORTED, "'w'", "bf16");
    assert_refused(parse(BLOCKS("q8_0") ENTRY("x", "F32", "[1]", "[0,4]") "}", 4), HH_EFORMAT, "blocks.w", "not there");
    assert_refused(parse(BLOCKS("q4_0") ENTRY("w", "U8", "[0,9223372036854775800]", "[0,0]") "}", 0), HH_EFORMAT,
                   "'w'");
    assert_refused(parse("{" ENTRY("w", "U8", "[1,34]", "[0,34]") "}", 34), HH_EUNSUPPORTED, "'w'", "U8");
}

static void offsets_are_checked(void **state) {
    (void)state;
    assert_refused(parse("{" ENTRY("w", "F32", "[1]", "[4,0]") "}", 4), HH_EFORMAT, "'w'", "reversed", "[4, 0]");
    assert_refused(parse("{" ENTRY("w", "F32", "[1]", "[-4,0]") "}", 4), HH_EFORMAT, "'w'", "-4");
    assert_refused(parse("{" ENTRY("w", "F32", "[1]", "[0,8]") "}", 8), HH_EFORMAT, "'w'", "8 bytes", "need 4");
    assert_refused(parse("{" ENTRY("w", "F32", "[2]", "[0,8]") "}", 7), HH_EFORMAT, "'w'", "byte 8", "7 bytes",
                   "truncated");
    assert_refused(parse("{" ENTRY("w", "F32", "[1]", "[9223372036854775800,9223372036854775804]") "}", 4), HH_EFORMAT,
                   "'w'");
    assert_refused(parse("{" ENTRY("w", "F32", "[1]", "[0]") "}", 4), HH_EFORMAT, "'w'", "data_offsets");
    assert_refused(parse("{" ENTRY("w", "F32", "[1]", "[0,4,8]") "}", 4), HH_EFORMAT, "'w'", "data_offsets");
    assert_refused(parse("{" ENTRY("w", "F32", "[1]", "[0,18446744073709551616]") "}", 4), HH_EFORMAT, "F.safetensors");
}

static void data_must_be_tiled(void **state) {
    (void)state;
    assert_refused(parse("{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("b", "F32", "[1]", "[8,12]") "}", 12),
                   HH_EFORMAT, "'b'", "hole", "8", "4");
    assert_refused(parse("{" ENTRY("a", "F32", "[1]", "[4,8]") "}", 8), HH_EFORMAT, "'a'", "hole");
    assert_refused(parse("{" ENTRY("a", "F32", "[2]", "[0,8]") "," ENTRY("b", "F32", "[1]", "[4,8]") "}", 8),
                   HH_EFORMAT, "'b'", "overlap");
    assert_refused(parse("{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("b", "F32", "[1]", "[0,4]") "}", 4),
                   HH_EFORMAT, "'b'", "overlap");
    assert_refused(parse("{" ENTRY("a", "F32", "[1]", "[0,4]") "}", 5), HH_EFORMAT, "F.safetensors", "1 bytes follow");
    assert_refused(parse("{}", 3), HH_EFORMAT, "3 bytes follow");
}

static void names_and_types_are_checked(void **state) {
    (void)state;
    assert_refused(parse("{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("a", "F32", "[1]", "[4,8]") "}", 8),
                   HH_EFORMAT, "F.safetensors", "duplicate");
    assert_refused(parse("{" ENTRY("w", "F31", "[1]", "[0,4]") "}", 4), HH_EFORMAT, "'w'", "'F31'");
    assert_refused(parse("{" ENTRY("w", "F8_E4M3", "[1]", "[0,1]") "}", 1), HH_EUNSUPPORTED, "'w'", "'F8_E4M3'");
    assert_refused(parse("{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4), HH_EFORMAT, "'w'", "dtype");
    assert_refused(parse("{\"w\":[]}", 0), HH_EFORMAT, "'w'");
    assert_refused(parse("{\"__metadata__\":{\"a\":1}}", 0), HH_EFORMAT, "__metadata__", "'a'");
    assert_refused(parse("{\"__metadata__\":3}", 0), HH_EFORMAT, "__metadata__");
    /* a name cannot smuggle terminal codes into the message */
    assert_refused(parse("{" ENTRY("\\u001b[31m", "F31", "[1]", "[0,4]") "}", 4), HH_EFORMAT, "'?[31m'");
}

static void what_the_format_allows_is_read(void **state) {
    (void)state;
    char image[1024];
    seen s;
    const char *header = " \n{\"__metadata__\":{\"format\":\"pt\"}," ENTRY("late", "BF16", "[3]", "[4,10]") "," ENTRY(
        "empty", "F32", "[2,0]", "[4,4]") "," ENTRY("scalar", "F32", "[]", "[0,4]") "} \t ";
    size_t size = make_image(image, header, strlen(header), -1, 10);
    memset(&s, 0, sizeof s);
    assert_ok(hh_safetensors_parse("F", image, size, remember, &s, &err));
    assert_int_equal(s.n, 3); /* in the order of their data */
    assert_string_equal(s.names[0], "scalar");
    assert_int_equal(s.t[0].rank, 0);
    assert_int_equal(hh_tensor_count(s.t[0]), 1);
    assert_ptr_equal(s.t[0].data, image + size - 10);
    assert_string_equal(s.names[1], "empty");
    assert_int_equal(s.t[1].rank, 2);
    assert_int_equal(hh_tensor_count(s.t[1]), 0);
    assert_string_equal(s.names[2], "late");
    assert_int_equal(s.t[2].dtype, HH_DTYPE_BF16);
    assert_ptr_equal(s.t[2].data, image + size - 6);
    size = make_image(image, "{}", 2, -1, 0); /* no tensors at all */
    assert_ok(hh_safetensors_parse("F", image, size, remember, &s, &err));
}

static void every_cut_of_a_file_is_refused(void **state) {
    (void)state;
    char image[512];
    seen s;
    const char *header = "{" ENTRY("a", "F32", "[2,2]", "[0,16]") "," ENTRY("b", "I64", "[1]", "[16,24]") "}";
    size_t size = make_image(image, header, strlen(header), -1, 24);
    for (size_t n = 0; n < size; n++) assert_refused(parse_bytes(image, n, &s), HH_EFORMAT, "F.safetensors");
    assert_int_equal(parse_bytes(image, size, &s), HH_OK);
}

static void what_is_written_is_read_back(void **state) {
    (void)state;
    float a[6] = {1, 2, 3, 4, 5, 6}, b[1] = {-0.5F};
    double d[2] = {0.5, 1e10};
    uint16_t h[3] = {0x3f80, 0x4000, 0xff81};
    int64_t l[1] = {-7};
    const hh_named_tensor tensors[] = {
        {.name = "z.weight", .t = hh_tensor_2d(a, HH_DTYPE_F32, 2, 3)},
        {.name = "half", .t = hh_tensor_1d(h, HH_DTYPE_BF16, 3)},
        {.name = "double \"quoted\" \xc3\xa9", .t = hh_tensor_1d(d, HH_DTYPE_F64, 2)},
        {.name = "empty", .t = hh_tensor_2d(a, HH_DTYPE_F32, 0, 3)},
        {.name = "whole", .t = hh_tensor_1d(l, HH_DTYPE_I64, 1)},
        {.name = "one", .t = hh_tensor_1d(b, HH_DTYPE_F32, 1)},
    };
    const char *path = temp_path("written.safetensors"), *again = temp_path("again.safetensors");
    seen s;
    memset(&s, 0, sizeof s);
    assert_ok(hh_safetensors_write(path, tensors, 6, &err));
    hh_buf file = read_whole(path);
    assert_ok(hh_safetensors_parse(path, file.data, file.len, remember, &s, &err));
    assert_int_equal(s.n, 6);
    for (int i = 0; i < 6; i++) { /* in the order given */
        const hh_tensor *t = &tensors[i].t;
        if (hh_tensor_count(*t) == 0) continue;
        assert_string_equal(s.names[i], tensors[i].name);
        assert_int_equal(s.t[i].rank, t->rank);
        assert_memory_equal(s.t[i].dim, t->dim, sizeof t->dim);
        if (t->dtype != HH_DTYPE_F64) assert_memory_equal(s.t[i].data, t->data, hh_tensor_bytes(*t));
    }
    float narrowed[2];
    memcpy(narrowed, s.t[2].data, sizeof narrowed);
    assert_int_equal(s.t[2].dtype, HH_DTYPE_F32);
    assert_true(narrowed[0] > 0.49F && narrowed[1] > 9e9F);
    assert_ok(hh_safetensors_write(again, tensors, 6, &err)); /* the same bytes, whenever it is written */
    hh_buf second = read_whole(again);
    assert_int_equal(second.len, file.len);
    assert_memory_equal(second.data, file.data, file.len);
    hh_buf_release(&file);
    hh_buf_release(&second);
}

static void writing_refuses_what_cannot_be_read_back(void **state) {
    (void)state;
    float a[1] = {1};
    const hh_named_tensor twice[] = {{.name = "a", .t = hh_tensor_1d(a, HH_DTYPE_F32, 1)},
                                     {.name = "a", .t = hh_tensor_1d(a, HH_DTYPE_F32, 1)}};
    const hh_named_tensor bytes[] = {{.name = "\xff", .t = hh_tensor_1d(a, HH_DTYPE_F32, 1)}};
    const char *path = temp_path("refused.safetensors");
    assert_refused(hh_safetensors_write(path, twice, 2, &err), HH_EINVAL, "'a'");
    assert_refused(hh_safetensors_write(path, bytes, 1, &err), HH_EINVAL, "UTF-8");
    assert_false(hh_file_exists(path));
    assert_refused(hh_safetensors_write("/nowhere/x.safetensors", twice, 1, &err), HH_EIO, "/nowhere");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_lengths_are_checked),
        cmocka_unit_test(headers_that_are_not_json_are_refused),
        cmocka_unit_test(shapes_are_checked),
        cmocka_unit_test(blocks_are_checked),
        cmocka_unit_test(offsets_are_checked),
        cmocka_unit_test(data_must_be_tiled),
        cmocka_unit_test(names_and_types_are_checked),
        cmocka_unit_test(what_the_format_allows_is_read),
        cmocka_unit_test(every_cut_of_a_file_is_refused),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(writing_refuses_what_cannot_be_read_back),
    };
    return cmocka_run_group_tests_name("format: safetensors", tests, NULL, NULL);
}
