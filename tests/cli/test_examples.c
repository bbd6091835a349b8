/* Every example of every verb's help runs as it stands, in the order of the verbs: a later one may use what an earlier
 * one wrote. They run in a copy of the repository's root made of links, so that nothing is left behind. */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* `hydrahead demo` has a command of its own, `make demo`; its example runs only when HYDRAHEAD_TEST_DEMO is set. */
static bool is_left_out(const char *verb) {
    return strcmp(verb, "demo") == 0 && !getenv("HYDRAHEAD_TEST_DEMO");
}

static int n_run, n_failed;

static void run_example(const char *example) {
    hh_buf out = {0}, errors = {0};
    char *line = hh_sprintf("cd \"$TMP/root\" && %s", example);
    int code = run_line(line, 180, &out, &errors);
    n_run++;
    if (code != 0) {
        n_failed++;
        print_error("exit %d of: %s\n%s\n", code, example, errors.data);
    }
    if (strstr(out.data, "\033")) {
        n_failed++;
        print_error("colours although NO_COLOR is set: %s\n", example);
    }
    hh_free(line);
    hh_buf_release(&out);
    hh_buf_release(&errors);
}

static void run_examples_of(const char *verb) {
    char line[200];
    hh_buf examples = {0};
    snprintf(line, sizeof line, "hydrahead help --examples %s", verb);
    assert_int_equal(run_line(line, 60, &examples, NULL), 0);
    for (char *rest = examples.data, *example; (example = strsep(&rest, "\n"));)
        if (*example) run_example(example);
    hh_buf_release(&examples);
}

static void test_examples_run(void **state) {
    (void)state;
    hh_buf verbs = {0};
    assert_int_equal(
        run_line("mkdir \"$TMP/root\" && for f in \"$PWD\"/*; do ln -s \"$f\" \"$TMP/root/\"; done", 60, NULL, NULL),
        0);
    assert_int_equal(run_line("hydrahead help --verbs", 60, &verbs, NULL), 0);
    for (char *rest = verbs.data, *verb; (verb = strsep(&rest, "\n")) && *verb;)
        if (!is_left_out(verb)) run_examples_of(verb);
    hh_buf_release(&verbs);
    print_message("%d example lines ran\n", n_run);
    assert_true(n_run > 0);
    assert_int_equal(n_failed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_examples_run)};
    return cmocka_run_group_tests_name("cli/examples", tests, NULL, NULL);
}
