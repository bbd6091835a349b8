/* Progress lines: what a reader learns from them; Ctrl-C; the environment. */
#include "base/env.h"
#include "base/progress.h"
#include "support/support.h"

#include <signal.h>
#include <ucontext.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void expect_line(hh_progress p, double now, const char *expected) {
    char line[200];
    hh_progress_line(&p, now, line, sizeof line);
    assert_string_equal(line, expected);
}

static void test_line_says_how_far_and_how_long(void **state) {
    (void)state;
    hh_progress p = {.what = "distil", .unit = "tokens", .total = 2e6, .start = 100};
    expect_line(p, 100, "distil  0 % of 2.0M tokens");
    p.done = 500000;
    strcpy(p.note, "loss 2.31");
    /* A quarter in 100 s: three quarters are 300 s. */
    expect_line(p, 200, "distil  25 % of 2.0M tokens, 5.0k tokens/s, 5 min 00 s left, loss 2.31");
    p.done = 2e6;
    expect_line(p, 500, "distil  100 % of 2.0M tokens, 5.0k tokens/s, loss 2.31");
    /* 99.9 % is not yet 100. */
    p.done = 1999999;
    p.note[0] = 0;
    expect_line(p, 500, "distil  99 % of 2.0M tokens, 5.0k tokens/s, 0.0 s left");
    hh_progress unknown = {.what = "read", .unit = "documents", .done = 12, .start = 0};
    expect_line(unknown, 4, "read  12 documents, 3 documents/s");
}

static void test_line_is_cut_not_overrun(void **state) {
    (void)state;
    hh_progress p = {.what = "distil", .unit = "tokens", .total = 100, .done = 50};
    memset(p.note, 'n', sizeof p.note - 1);
    char line[20];
    hh_progress_line(&p, 10, line, sizeof line);
    assert_int_equal(strlen(line), sizeof line - 1);
}

static void test_times_and_counts(void **state) {
    (void)state;
    static const struct {
        double x;
        const char *text;
    } times[] = {{0.04, "0.0 s"},     {9.94, "9.9 s"},        {9.96, "10 s"},       {59.6, "1 min 00 s"},
                 {231, "3 min 51 s"}, {3599.6, "1 h 00 min"}, {7500, "2 h 05 min"}, {-1, "unknown"}},
      counts[] = {{0, "0"},       {7, "7"},         {0.25, "0.2"},    {999, "999"},   {1000, "1.0k"},
                  {5120, "5.1k"}, {123456, "123k"}, {999600, "1.0M"}, {3.2e9, "3.2G"}};
    char text[32];
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        hh_duration_text(times[i].x, text, sizeof text);
        assert_string_equal(text, times[i].text);
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        hh_count_text(counts[i].x, text, sizeof text);
        assert_string_equal(text, counts[i].text);
    }
}

/* Short work and silenced work print nothing: cheap enough for an inner loop. */
static void test_short_work_is_silent(void **state) {
    (void)state;
    const char *path = temp_path("stderr");
    fflush(stderr);
    int kept = dup(2);
    assert_non_null(freopen(path, "w", stderr));
    hh_progress p;
    hh_progress_begin(&p, "probe", "pairs", 1000);
    for (int i = 0; i <= 1000; i++) hh_progress_update(&p, i, NULL);
    hh_progress_end(&p);
    hh_progress_silence(true);
    hh_progress_begin(&p, "probe", "pairs", 1000);
    p.start -= 100;
    p.shown -= 100;
    hh_progress_update(&p, 500, NULL);
    hh_progress_end(&p);
    hh_progress_silence(false);
    fflush(stderr);
    hh_buf nothing = read_whole(path);
    assert_int_equal(nothing.len, 0);
    hh_buf_release(&nothing);
    /* Away from a terminal a line every ten seconds, and a closing one; no escape sequences. */
    hh_progress_begin(&p, "probe", "pairs", 1000);
    p.start -= 11;
    p.shown -= 11;
    hh_progress_update(&p, 500, "kept 12");
    hh_progress_update(&p, 501, NULL);
    hh_progress_end(&p);
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    hh_buf b = read_whole(path);
    assert_non_null(strstr(b.data, "probe  50 % of 1.0k pairs"));
    assert_non_null(strstr(b.data, "probe  501 pairs in 11 s, kept 12\n"));
    int lines = 0;
    for (const char *c = b.data; *c; c++) lines += *c == '\n';
    assert_int_equal(lines, 2);
    assert_null(strchr(b.data, '\033'));
    hh_buf_release(&b);
}

static void test_first_interrupt_asks(void **state) {
    (void)state;
    hh_interrupt_install();
    assert_false(hh_interrupted());
    raise(SIGINT);
    assert_true(hh_interrupted());
    hh_interrupt_reset();
    assert_false(hh_interrupted());
    raise(SIGTERM);
    assert_true(hh_interrupted());
    /* The second one kills. */
    pid_t child = fork();
    if (child == 0) {
        raise(SIGINT);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    hh_interrupt_reset();
}

/* The handler runs on a stack of its own: below the interrupted code's stack pointer lies what belongs to others. */
static ucontext_t main_context, small_context;

static void raise_there(void) {
    raise(SIGINT);
    swapcontext(&small_context, &main_context);
}

static size_t bytes_touched(void) {
    enum { SIZE = 1 << 16 };
    unsigned char *stack = hh_alloc(SIZE);
    memset(stack, 0x5a, SIZE);
    getcontext(&small_context);
    small_context.uc_stack = (stack_t){.ss_sp = stack, .ss_size = SIZE};
    makecontext(&small_context, raise_there, 0);
    swapcontext(&main_context, &small_context);
    size_t clean = 0;
    while (clean < SIZE && stack[clean] == 0x5a) clean++;
    hh_free(stack);
    return SIZE - clean;
}

static void test_the_handler_has_a_stack_of_its_own(void **state) {
    (void)state;
    signal(SIGINT, SIG_IGN);
    const size_t alone = bytes_touched(); /* by raise() itself */
    hh_interrupt_install();
    const size_t handled = bytes_touched();
    assert_true(hh_interrupted());
    hh_interrupt_reset();
    if (handled > alone + 512) fail_msg("a signal wrote %zu bytes below the interrupted code", handled - alone);
}

static void test_environment(void **state) {
    (void)state;
    hh_error err = {0};
    setenv("HYDRAHEAD_CHECK", "", 1);
    assert_ok(hh_env_check(&err));
    setenv("HYDRAHEAD_CHECK", "everything", 1);
    assert_refused(hh_env_check(&err), HH_EINVAL, "HYDRAHEAD_CHECK", "everything", "nan");
    setenv("HYDRAHEAD_CHECK", "nan", 1);
    setenv("HYDRAHEAD_FAIL_ALLOC", "3x", 1);
    assert_refused(hh_env_check(&err), HH_EINVAL, "HYDRAHEAD_FAIL_ALLOC", "3x");
    unsetenv("HYDRAHEAD_FAIL_ALLOC");
    unsetenv("HYDRAHEAD_CHECK");
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    assert_false(hh_color_wanted(pipes[1])); /* not a terminal */
    close(pipes[0]);
    close(pipes[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_says_how_far_and_how_long),
        cmocka_unit_test(test_line_is_cut_not_overrun),
        cmocka_unit_test(test_times_and_counts),
        cmocka_unit_test(test_short_work_is_silent),
        cmocka_unit_test(test_first_interrupt_asks),
        cmocka_unit_test(test_the_handler_has_a_stack_of_its_own),
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests_name("base/progress", tests, NULL, NULL);
}
