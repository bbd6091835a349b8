/* Progress lines and Ctrl-C; see progress.h. */
#include "base/progress.h"
#include "base/env.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static atomic_bool silent;

double hh_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void hh_progress_silence(bool quiet) {
    atomic_store(&silent, quiet);
}

void hh_duration_text(double seconds, char *out, size_t size) {
    if (!(seconds >= 0) || seconds > 1e9)
        snprintf(out, size, "unknown");
    else if (seconds < 9.95)
        snprintf(out, size, "%.1f s", seconds);
    else if (seconds < 59.5)
        snprintf(out, size, "%.0f s", seconds);
    else if (seconds < 3599.5) {
        long s = lround(seconds);
        snprintf(out, size, "%ld min %02ld s", s / 60, s % 60);
    } else {
        long m = lround(seconds / 60);
        snprintf(out, size, "%ld h %02ld min", m / 60, m % 60);
    }
}

void hh_count_text(double n, char *out, size_t size) {
    static const char *const unit[] = {"", "k", "M", "G", "T", "P"};
    int u = 0;
    while (fabs(n) >= 999.5 && u < 5) n /= 1000, u++;
    bool whole = u == 0 && (n == floor(n) || fabs(n) >= 99.95);
    snprintf(out, size, "%.*f%s", whole || fabs(n) >= 99.95 ? 0 : 1, n, unit[u]);
}

/* snprintf at the end of what out holds already. */
static void append(char *out, size_t size, const char *text) {
    size_t n = strlen(out);
    if (n + 1 < size) snprintf(out + n, size - n, "%s", text);
}

void hh_progress_line(const hh_progress *p, double now, char *out, size_t size) {
    char a[32], part[160];
    double seconds = now - p->start, rate = seconds > 0 ? p->done / seconds : 0;
    hh_count_text(p->total > 0 ? p->total : p->done, a, sizeof a);
    snprintf(out, size, "%s  ", p->what);
    if (p->total > 0) {
        snprintf(part, sizeof part, "%.0f %% of ", floor(100 * fmin(1, fmax(0, p->done / p->total))));
        append(out, size, part);
    }
    snprintf(part, sizeof part, "%s %s", a, p->unit);
    append(out, size, part);
    if (rate > 0) {
        hh_count_text(rate, a, sizeof a);
        snprintf(part, sizeof part, ", %s %s/s", a, p->unit);
        append(out, size, part);
        if (p->total > p->done) {
            hh_duration_text((p->total - p->done) / rate, a, sizeof a);
            snprintf(part, sizeof part, ", %s left", a);
            append(out, size, part);
        }
    }
    if (p->note[0]) {
        append(out, size, ", ");
        append(out, size, p->note);
    }
}

/* A terminal redraws one line; TERM=dumb and everything that is not a terminal get lines of their own. */
static bool redraws(void) {
    return isatty(STDERR_FILENO) && !hh_env_get()->dumb_terminal;
}

static void draw(hh_progress *p, double now) {
    char line[512];
    hh_progress_line(p, now, line, sizeof line);
    p->shown = now;
    if (!redraws()) {
        fprintf(stderr, "%s\n", line);
        return;
    }
    struct winsize w;
    int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 10 ? w.ws_col - 1 : 79;
    fprintf(stderr, "\r\033[K%.*s", width, line);
    fflush(stderr);
}

void hh_progress_begin(hh_progress *p, const char *what, const char *unit, double total) {
    double now = hh_now();
    *p = (hh_progress){.what = what, .unit = unit, .total = total, .start = now, .shown = now};
    p->quiet = atomic_load(&silent);
}

void hh_progress_update(hh_progress *p, double done, const char *note) {
    p->done = done;
    if (note) snprintf(p->note, sizeof p->note, "%s", note);
    if (p->quiet) return;
    double now = hh_now();
    /* The first line comes late, so that short work shows none. */
    double wait = redraws() ? (p->shown > p->start ? 0.1 : 0.5) : 10;
    if (now - p->shown >= wait) draw(p, now);
}

void hh_progress_end(hh_progress *p) {
    if (p->quiet) return;
    double now = hh_now();
    if (redraws() && p->shown > p->start) fputs("\r\033[K", stderr);
    if (now - p->start < 2) return;
    char count[32], time[32];
    hh_count_text(p->done, count, sizeof count);
    hh_duration_text(now - p->start, time, sizeof time);
    fprintf(stderr, "%s  %s %s in %s%s%s\n", p->what, count, p->unit, time, p->note[0] ? ", " : "", p->note);
}

static atomic_int interrupts;
static atomic_bool held;

static void on_signal(int number) {
    if (atomic_fetch_add(&interrupts, 1) == 0) return;
    signal(number, SIG_DFL);
    raise(number);
}

void hh_interrupt_install(void) {
    /* oneDNN's products keep the stack pointer in a buffer of theirs; a frame put there by the system destroys the heap. */
    static char signal_stack[1 << 16]; /* the registers alone take 11 KiB where there is AMX */
    sigaltstack(&(stack_t){.ss_sp = signal_stack, .ss_size = sizeof signal_stack}, NULL);
    /* No SA_RESTART: a read that waits for words ends too. */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool hh_interrupted(void) {
    return !atomic_load(&held) && hh_interrupt_asked();
}

bool hh_interrupt_asked(void) {
    return atomic_load(&interrupts) > 0;
}

void hh_interrupt_hold(bool hold) {
    atomic_store(&held, hold);
}

void hh_interrupt_reset(void) {
    atomic_store(&interrupts, 0);
}
