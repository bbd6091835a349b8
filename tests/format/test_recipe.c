/* Recipes: what is no recipe is refused before anything runs, with file and member; options come as they are written. */
#include "support/support.h"

#include "format/recipe.h"

#include <string.h>

static hh_code parse(json_t **out, const char *text, hh_error *err) {
    return hh_recipe_parse(out, "r.json", text, strlen(text), err);
}

static void refuse(const char *text, const char *word) {
    hh_error err = {0};
    json_t *r = NULL;
    assert_refused(parse(&r, text, &err), HH_EFORMAT, "r.json", word);
    assert_null(r);
}

static void test_what_is_no_recipe_is_refused(void **state) {
    (void)state;
    refuse("[]", "object");
    refuse("{\"probe\": {}, \"select\": {}, \"convert\": {}}", "train");
    refuse("{\"select\": {}, \"convert\": {}, \"train\": []}", "probe");
    refuse("{\"probe\": 1, \"select\": {}, \"convert\": {}, \"train\": []}", "probe");
    refuse("{\"probe\": null, \"select\": {}, \"convert\": {}, \"train\": [{}]}", "stage");
    refuse("{\"probe\": null, \"select\": {}, \"convert\": {}, \"train\": [3]}", "train");
    refuse("{\"probe\": null, \"select\": {\"\": 1}, \"convert\": {}, \"train\": []}", "select");
    refuse("{\"probe\": null, \"select\": {\"--out\": \"x\"}, \"convert\": {}, \"train\": []}", "option");
    refuse("{\"probe\": null, \"select\": {}, \"convert\": {\"gate-bias\": [1]}, \"train\": []}", "gate-bias");
}

static void add_word(void *context, const char *name, const char *value) {
    hh_buf_printf(context, "--%s%s%s ", name, value ? " " : "", value ? value : "");
}

static void test_options_as_they_are_written(void **state) {
    (void)state;
    hh_error err = {0};
    json_t *r;
    assert_ok(
        parse(&r,
              "{\"probe\": null, \"select\": {}, \"convert\": {}, \"train\": [{\"stage\": \"align\", \"tokens\": "
              "3e8, \"lr\": 0.25, \"clip\": 1e300, \"steps\": 7, \"json\": true, \"quiet\": false, \"out\": null}]}",
              &err));
    hh_buf words = {0};
    hh_recipe_options(json_array_get(json_object_get(r, "train"), 0), add_word, &words);
    assert_string_equal(words.data,
                        "--stage align --tokens 300000000 --lr 0.25 --clip 1.0000000000000001e+300 --steps 7 --json ");
    hh_buf_release(&words);
    json_decref(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_no_recipe_is_refused),
        cmocka_unit_test(test_options_as_they_are_written),
    };
    return cmocka_run_group_tests_name("format: recipes", tests, NULL, NULL);
}
