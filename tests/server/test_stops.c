/* Text on its way to a client: stop strings end it at the same place however it comes, and it is always UTF-8. */
#include "support/support.h"

#include "server/stream_text.h"

#include <string.h>

/* What is given out of `text`, taken `piece` bytes at a time. */
static hh_buf stream(const char *const *stop, int n_stops, const char *text, size_t piece) {
    hh_stream_text t = {.stop = stop, .n_stops = n_stops};
    hh_buf out = {0};
    const size_t n = strlen(text);
    bool stopped = false;
    hh_buf_puts(&out, "");
    for (size_t at = 0; at < n && !stopped; at += piece)
        stopped = hh_stream_text_add(&t, text + at, n - at < piece ? n - at : piece, &out);
    if (!stopped) hh_stream_text_end(&t, &out);
    hh_stream_text_release(&t);
    return out;
}

static void check(const char *const *stop, int n_stops, const char *text, const char *expected) {
    for (size_t piece = 1; piece <= strlen(text); piece++) {
        hh_buf out = stream(stop, n_stops, text, piece);
        assert_string_equal(out.data, expected);
        hh_buf_release(&out);
    }
}

static void test_the_stop_string_that_is_complete_first_ends_the_text(void **state) {
    (void)state;
    check((const char *const[]){"END"}, 1, "some ENDING", "some ");
    check((const char *const[]){"END"}, 1, "some EN", "some EN");
    check((const char *const[]){"abc", "b"}, 2, "xabcy", "xa");
    check((const char *const[]){"b", "abc"}, 2, "xabcy", "xa");
    check((const char *const[]){"c", "abc", "bc"}, 3, "xabcy", "x"); /* that end together: the longest */
    check((const char *const[]){"aab"}, 1, "aaaab", "aa");
}

static void test_what_is_given_out_is_utf8(void **state) {
    (void)state;
    check(NULL, 0, "a\xc3\xa9\xf0\x9f\x98\x80z", "a\xc3\xa9\xf0\x9f\x98\x80z");
    check(NULL, 0, "a\xe2\x82z\xff", "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd");
    check((const char *const[]){"\xc3\xa9"}, 1, "a\xc3\xa8\xc3\xa9", "a\xc3\xa8");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_stop_string_that_is_complete_first_ends_the_text),
        cmocka_unit_test(test_what_is_given_out_is_utf8),
    };
    return cmocka_run_group_tests_name("server: stop strings", tests, NULL, NULL);
}
