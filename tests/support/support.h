/* What every room's tests share: expectations of calls that return a status, temporary files, running the program.
 * Includes cmocka. */
#ifndef HH_TESTS_SUPPORT_SUPPORT_H
#define HH_TESTS_SUPPORT_SUPPORT_H

#include "base/filemap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* The call succeeds, or the test fails with its sentence. Declares nothing: `err` is a variable of the caller. */
#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        if ((call) != HH_OK) fail_msg("%s: %s", #call, err.text);                                                      \
    } while (0)

/* The call fails with this code, and its sentence holds every one of the words (a list that NULL ends is added here).
 */
#define assert_refused(call, expected, ...)                                                                            \
    do {                                                                                                               \
        hh_code refused_code = (call);                                                                                 \
        check_refusal(#call, refused_code, expected, &err, (const char *const[]){__VA_ARGS__, NULL});                  \
    } while (0)
void check_refusal(const char *call, hh_code code, hh_code expected, const hh_error *err, const char *const *words);

/* |a - b| <= tolerance, in double; NaN fails. (cmocka compares floats alone.) */
#define assert_near(a, b, tolerance) check_near(#a, a, b, tolerance)
void check_near(const char *what, double a, double b, double tolerance);

/* A folder that is there until the program ends; one a program. The text is static. */
const char *temp_folder(void);
/* Path of `name` in it, and the same with a file written there; good until the program ends. */
const char *temp_path(const char *name);
const char *temp_file(const char *name, const void *data, size_t size);
const char *temp_text(const char *name, const char *text);

/* A whole file of the repository, for golden data; fails the test when it cannot be read. Release with hh_buf_release.
 */
hh_buf read_whole(const char *path);

/* Does calling this in a child process end in abort()? For what must stop the program: HH_ASSERT, the allocation guard.
 */
bool aborts(void (*call)(void));

/* Is there such a file? A test whose data is not part of the repository says so and skips: `if (!have("x")) skip();` */
int have(const char *path);

/* The program under test: $HYDRAHEAD, or build/hydrahead. */
const char *program_path(void);
/* Runs a line of sh in the repository's root with $HYDRAHEAD, $TMP (the temporary folder) and NO_COLOR set, `hydrahead`
 * on the path, for at most `seconds`, or TEST_SECONDS of the environment where that is more. Returns the exit status (124: it ran too long, 128 + n: killed by signal n); out
 * and errors may be NULL. */
int run_line(const char *line, int seconds, hh_buf *out, hh_buf *errors);

#endif
