/* See support.h. */
#include "support/support.h"

#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void check_refusal(const char *call, hh_code code, hh_code expected, const hh_error *err, const char *const *words) {
    if (code == HH_OK) fail_msg("%s succeeded, a refusal was expected", call);
    if (code != expected)
        fail_msg("%s: refused as '%s', expected '%s': %s", call, hh_code_name(code), hh_code_name(expected), err->text);
    if (err->code != code) fail_msg("%s: the error's code differs from what was returned: %s", call, err->text);
    for (; *words; words++)
        if (!strstr(err->text, *words)) fail_msg("%s: '%s' is missing in: %s", call, *words, err->text);
}

void check_near(const char *what, double a, double b, double tolerance) {
    if (!(fabs(a - b) <= tolerance)) fail_msg("%s is %.17g, expected %.17g within %g", what, a, b, tolerance);
}

/* HYDRAHEAD_TESTS=PATTERN runs the tests whose names match, HYDRAHEAD_SKIP=PATTERN all but those ('*' and '?'). */
__attribute__((constructor)) static void choose_tests(void) {
    cmocka_set_test_filter(getenv("HYDRAHEAD_TESTS"));
    cmocka_set_skip_filter(getenv("HYDRAHEAD_SKIP"));
}

static char folder[200];
static char *paths[4096];
static int n_paths;

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *where) {
    (void)st, (void)type, (void)where;
    return remove(path);
}

static void remove_folder(void) {
    for (int i = 0; i < n_paths; i++) hh_free(paths[i]);
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *temp_folder(void) {
    if (*folder) return folder;
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/hydrahead-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) {
        perror(folder);
        abort();
    }
    atexit(remove_folder);
    return folder;
}

const char *temp_path(const char *name) {
    HH_ASSERT(n_paths < 4096);
    return paths[n_paths++] = hh_path_join(temp_folder(), name);
}

const char *temp_file(const char *name, const void *data, size_t size) {
    hh_error err = {0};
    const char *path = temp_path(name);
    assert_ok(hh_file_write(path, data, size, &err));
    return path;
}

const char *temp_text(const char *name, const char *text) {
    return temp_file(name, text, strlen(text));
}

hh_buf read_whole(const char *path) {
    hh_error err = {0};
    hh_buf b = {0};
    assert_ok(hh_file_read(path, (size_t)1 << 30, &b, &err));
    return b;
}

bool aborts(void (*call)(void)) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        signal(SIGABRT, SIG_DFL);
        call();
        _exit(0);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

int have(const char *path) {
    if (hh_file_exists(path)) return 1;
    print_message("skipped: %s is absent\n", path);
    return 0;
}

const char *program_path(void) {
    const char *path = getenv("HYDRAHEAD");
    return path && *path ? path : "build/hydrahead";
}

/* Whoever gives programs more time than usual gives it to those that they start too. */
static int longest(int seconds) {
    const char *given = getenv("TEST_SECONDS");
    const int all = given ? atoi(given) : 0;
    return all > seconds ? all : seconds;
}

/* The child: its own process group, so that timeout(1) ends everything that the line started. */
static void run_child(const char *line, int seconds, const char *out, const char *errors) {
    char limit[32];
    char *bin = realpath(program_path(), NULL);
    char *slash = bin ? strrchr(bin, '/') : NULL;
    if (slash) *slash = 0;
    const char *old = getenv("PATH");
    char *path = hh_sprintf("%s:%s", bin ? bin : ".", old ? old : "/usr/bin:/bin");
    snprintf(limit, sizeof limit, "%d", longest(seconds));
    setenv("PATH", path, 1);
    setenv("TMP", temp_folder(), 1);
    setenv("HYDRAHEAD", program_path(), 0);
    setenv("NO_COLOR", "1", 1);
    if (!freopen("/dev/null", "r", stdin) || !freopen(out, "w", stdout) || !freopen(errors, "w", stderr)) _exit(127);
    execlp("timeout", "timeout", "-k", "5", limit, "sh", "-c", line, (char *)NULL);
    _exit(127);
}

static void take_output(const char *path, hh_buf *out) {
    hh_error err = {0};
    if (out) assert_ok(hh_file_read(path, (size_t)64 << 20, out, &err));
}

int run_line(const char *line, int seconds, hh_buf *out, hh_buf *errors) {
    char *out_path = hh_path_join(temp_folder(), ".stdout"), *err_path = hh_path_join(temp_folder(), ".stderr");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) run_child(line, seconds, out_path, err_path);
    int status = -1;
    if (child > 0) waitpid(child, &status, 0);
    take_output(out_path, out);
    take_output(err_path, errors);
    hh_free(out_path);
    hh_free(err_path);
    if (child < 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
