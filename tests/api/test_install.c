/* What `make install` gives: a library of which only the interface is seen, found by pkg-config, with which the examples
 * are built and run; and completion that shells can read. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

static hh_buf out, errors;

static int run(const char *line) {
    return run_line(line, 120, &out, &errors);
}

#define assert_run(line)                                                                                               \
    do {                                                                                                               \
        const int code = run(line);                                                                                    \
        if (code) fail_msg("%s: exit %d\n%s%s", line, code, out.data, errors.data);                                    \
    } while (0)

static int install(void **state) {
    (void)state;
    return run("HYDRAHEAD=\"$HYDRAHEAD\" tools/install.sh '' \"$TMP\"/usr");
}

static int release(void **state) {
    (void)state;
    hh_buf_release(&out);
    hh_buf_release(&errors);
    return 0;
}

/* A library with a sanitizer in it serves only programs that have it as well. */
static bool is_sanitised(void) {
    if (run("nm -D \"$TMP\"/usr/lib/libhydrahead.so | grep -q '__[a-z]*san_'") != 0) return false;
    print_message("skipped: this library serves only programs that are built with its sanitizer\n");
    return true;
}

static void test_only_the_interface_is_exported(void **state) {
    (void)state;
    assert_run("nm -D --defined-only \"$TMP\"/usr/lib/libhydrahead.so | awk '{print $3}' | sort > \"$TMP\"/exported");
    assert_run("tr '\\n' ' ' < include/hydrahead.h | sed 's/HH_API /\\nHH_API /g' | grep '^HH_API [a-z]' | "
               "sed 's/(.*//; s/.*[ *]//' | sort > \"$TMP\"/declared");
    assert_run("diff \"$TMP\"/exported \"$TMP\"/declared && test $(wc -l < \"$TMP\"/declared) -gt 25");
    assert_run("readelf -d \"$TMP\"/usr/lib/libhydrahead.so | grep 'SONAME.*libhydrahead.so.1'");
    /* of the static one every name that a program could meet begins alike (a sanitizer adds its own) */
    assert_run("! nm -g --defined-only \"$TMP\"/usr/lib/libhydrahead.a | awk 'NF == 3 {print $3}' | "
               "grep -vE '^(__odr_asan\\.)?hh_'");
}

static void test_examples_are_built_and_run(void **state) {
    (void)state;
    if (is_sanitised()) skip();
    static const char *const lines[] = {
        "complete nano 'The grass is green.' 12",
        "logprobs nano 'The grass is green.' | grep perplexity",
        "batch nano 'The grass is green.' 8 | grep -c green | grep 4",
        "complete /nowhere 2>&1 | grep '^complete: .*nowhere'",
    };
    assert_run(
        "for e in complete dialogue logprobs batch; do cc -std=c11 -Wall -Wextra -Werror examples/$e.c "
        "$(PKG_CONFIG_PATH=\"$TMP\"/usr/lib/pkgconfig pkg-config --cflags --libs hydrahead) -lm -o \"$TMP\"/$e && "
        "test $(wc -l < examples/$e.c) -lt 100 || exit 1; done");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char line[200];
        snprintf(line, sizeof line, "export LD_LIBRARY_PATH=\"$TMP\"/usr/lib; \"$TMP\"/%s", lines[i]);
        assert_run(line);
    }
    assert_run("cc -std=c11 examples/complete.c $(PKG_CONFIG_PATH=\"$TMP\"/usr/lib/pkgconfig pkg-config --static "
               "--cflags --libs hydrahead | sed 's|-lhydrahead|-l:libhydrahead.a|') -o \"$TMP\"/static && "
               "\"$TMP\"/static nano 'The grass' 4");
}

/* The second turn knows the first, and a second run both. */
static void test_the_chat_reuses_what_it_read(void **state) {
    (void)state;
    if (is_sanitised()) skip();
    if (!have("models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")) {
        print_message("models/smollm2 is not there; `make models` fetches it\n");
        skip();
    }
    assert_run(
        "export LD_LIBRARY_PATH=\"$TMP\"/usr/lib; seq 1 60 | tr '\\n' ' ' > \"$TMP\"/turn && echo '. Say only yes.' "
        ">> \"$TMP\"/turn && \"$TMP\"/dialogue models/smollm2/*.gguf \"$TMP\"/cache < \"$TMP\"/turn 2> \"$TMP\"/first "
        "&& "
        "\"$TMP\"/dialogue models/smollm2/*.gguf \"$TMP\"/cache < \"$TMP\"/turn 2> \"$TMP\"/second");
    assert_run("grep '^.0 of' \"$TMP\"/first && grep '^.[1-9][0-9]* of' \"$TMP\"/second");
}

static void test_shells_read_the_completion(void **state) {
    (void)state;
    assert_run("bash -n \"$TMP\"/usr/share/bash-completion/completions/hydrahead");
    assert_run("grep -- '--temperature' \"$TMP\"/usr/share/zsh/site-functions/_hydrahead && "
               "grep -- '-l temperature' \"$TMP\"/usr/share/fish/vendor_completions.d/hydrahead.fish");
    assert_run("! command -v zsh || zsh -n \"$TMP\"/usr/share/zsh/site-functions/_hydrahead");
    assert_run("! command -v fish || fish -n \"$TMP\"/usr/share/fish/vendor_completions.d/hydrahead.fish");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_the_interface_is_exported),
        cmocka_unit_test(test_examples_are_built_and_run),
        cmocka_unit_test(test_the_chat_reuses_what_it_read),
        cmocka_unit_test(test_shells_read_the_completion),
    };
    return cmocka_run_group_tests_name("install", tests, install, release);
}
