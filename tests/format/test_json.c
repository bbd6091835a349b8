/* JSON fields: read when they are right, refused with file, field and value when they are not. */
#include "support/support.h"
#include "format/json.h"

#include <string.h>

static hh_error err;

static hh_code parse(json_t **out, const char *text) {
    return hh_json_parse(out, "F.json", text, strlen(text), &err);
}

static void fields_are_read_and_defaults_kept(void **state) {
    (void)state;
    json_t *json;
    assert_ok(
        parse(&json, "{\"i\": 3, \"x\": 2, \"y\": 0.5, \"b\": true, \"s\": \"text\", \"n\": null, \"o\": {\"i\": 4}}"));
    hh_json_object o = {.json = json, .path = "F.json", .within = ""}, sub;
    int64_t i = 7;
    double x = 7;
    bool b = false;
    const char *s = "default";
    assert_ok(hh_json_int(o, "absent", 0, 1, &i, &err));
    assert_ok(hh_json_int(o, "n", 0, 1, &i, &err)); /* null is absent */
    assert_int_equal(i, 7);
    assert_ok(hh_json_string(o, "n", &s, &err));
    assert_string_equal(s, "default");
    assert_ok(hh_json_int(o, "i", 3, 3, &i, &err));
    assert_int_equal(i, 3);
    assert_ok(hh_json_number(o, "x", 0, 2, &x, &err)); /* a whole number is a number */
    assert_true(x > 1.9 && x < 2.1);
    assert_ok(hh_json_number(o, "y", 0, 1, &x, &err));
    assert_ok(hh_json_bool(o, "b", &b, &err));
    assert_true(b);
    assert_ok(hh_json_string(o, "s", &s, &err));
    assert_string_equal(s, "text");
    assert_ok(hh_json_sub(&sub, o, "o", "o.", &err));
    assert_ok(hh_json_int(sub, "i", 0, 9, &i, &err));
    assert_int_equal(i, 4);
    assert_refused(hh_json_int(sub, "i", 5, 9, &i, &err), HH_EFORMAT, "F.json", "'o.i'", "4", "5", "9");
    assert_ok(hh_json_sub(&sub, o, "absent", "absent.", &err));
    assert_null(sub.json);
    assert_ok(hh_json_int(sub, "i", 0, 9, &i, &err));
    json_decref(json);
}

static void wrong_fields_are_named(void **state) {
    (void)state;
    json_t *json;
    assert_ok(parse(&json, "{\"i\": 3.5, \"s\": 1, \"b\": 0, \"o\": [], \"x\": \"1\", \"n\": null}"));
    hh_json_object o = {.json = json, .path = "F.json", .within = "top."}, sub;
    int64_t i;
    double x;
    bool b;
    const char *s;
    assert_refused(hh_json_int(o, "i", 0, 9, &i, &err), HH_EFORMAT, "F.json", "'top.i'", "3.5", "integer");
    assert_refused(hh_json_int(o, "s", 2, 9, &i, &err), HH_EFORMAT, "'top.s'", "from 2 to 9");
    assert_refused(hh_json_number(o, "x", 0, 9, &x, &err), HH_EFORMAT, "'top.x'", "number");
    assert_refused(hh_json_bool(o, "b", &b, &err), HH_EFORMAT, "'top.b'", "true or false");
    assert_refused(hh_json_string(o, "s", &s, &err), HH_EFORMAT, "'top.s'", "string");
    assert_refused(hh_json_sub(&sub, o, "o", "o.", &err), HH_EFORMAT, "'top.o'", "object");
    assert_refused(hh_json_need(o, "absent", &err), HH_EFORMAT, "'top.absent'", "missing");
    assert_refused(hh_json_need(o, "n", &err), HH_EFORMAT, "'top.n'", "null");
    json_decref(json);
}

static void text_is_checked(void **state) {
    (void)state;
    json_t *json;
    static const char *const texts[] = {"",
                                        "[1]",
                                        "{\"a\": 1, \"a\": 2}",
                                        "{\"a\": \"\xc3\"}",
                                        "{} {}",
                                        "{\"a\": 1e400}",
                                        "{\"a\": 9223372036854775808}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_refused(parse(&json, texts[i]), HH_EFORMAT, "F.json");
        assert_null(json);
    }
    /* 64 levels are read, brackets in strings are none */
    char deep[200] = "{\"a\": ";
    for (int i = 0; i < 63; i++) strcat(deep, "[");
    for (int i = 0; i < 63; i++) strcat(deep, "]");
    strcat(deep, "}");
    assert_ok(parse(&json, deep));
    json_decref(json);
    memmove(deep + 7, deep + 6, strlen(deep + 6) + 1);
    assert_refused(parse(&json, deep), HH_EFORMAT, "nested");
    char text[400] = "{\"a\": \"\\\"";
    for (int i = 0; i < 300; i++) strcat(text, "[");
    strcat(text, "\"}");
    assert_ok(parse(&json, text));
    json_decref(json);
}

static void files_have_a_size_limit(void **state) {
    (void)state;
    json_t *json;
    const char *path = temp_text("large.json", "{\"a\": \"0123456789\"}");
    assert_ok(hh_json_read(&json, path, 100, &err));
    json_decref(json);
    assert_int_not_equal(hh_json_read(&json, path, 10, &err), HH_OK);
    assert_non_null(strstr(err.text, "large.json"));
    assert_refused(hh_json_read(&json, temp_path("absent.json"), 10, &err), HH_EIO, "absent.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_read_and_defaults_kept),
        cmocka_unit_test(wrong_fields_are_named),
        cmocka_unit_test(text_is_checked),
        cmocka_unit_test(files_have_a_size_limit),
    };
    return cmocka_run_group_tests_name("format: JSON", tests, NULL, NULL);
}
