/* Builds with HOSTILE=1: when memory is refused, at whichever place, a verb ends with exit code 1 and a sentence; it
 * never crashes. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#ifdef HH_HOSTILE
/* Fails the 1st, 2nd, ... checked allocation of the command, later ones in larger strides, until it no longer needs that many. */
static void starve(const char *command, int seconds) {
    for (int n = 1; n < 1000000; n += n < 16 ? 1 : n / 4) {
        hh_buf errors = {0};
        char *line = hh_sprintf("HYDRAHEAD_FAIL_ALLOC=%d %s", n, command);
        int code = run_line(line, seconds, NULL, &errors);
        if (code > 1) fail_msg("exit %d of: %s\n%s", code, line, errors.data);
        if (code == 1 && !strstr(errors.data, "hydrahead: ")) fail_msg("no sentence from: %s", line);
        hh_free(line);
        hh_buf_release(&errors);
        if (code == 0) {
            assert_true(n > 1);
            return;
        }
    }
    fail_msg("%s never succeeds", command);
}
#endif

static void test_refused_memory_is_said(void **state) {
    (void)state;
#ifdef HH_HOSTILE
    starve("hydrahead inspect nano", 30);
    starve("hydrahead tokenize nano --file models/nano/TEXT.md", 30);
    starve("hydrahead logits nano --ids 1,2,3 --out \"$TMP\"/l.npy", 30);
    starve("hydrahead select tests/convert/golden/heads.json --heads 4 --out \"$TMP\"/plan.json", 30);
#else
    print_message("skipped: only builds with HOSTILE=1 have a failing allocator\n");
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused_memory_is_said)};
    return cmocka_run_group_tests_name("cli/hostile", tests, NULL, NULL);
}
