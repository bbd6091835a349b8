/* Progress on stderr for anything over two seconds: what, how far, how fast, time left. On a terminal one line that is
 * redrawn; elsewhere a line every ten seconds. NO_COLOR and non-terminals are respected. Also the one place that knows
 * of Ctrl-C. */
#ifndef HH_BASE_PROGRESS_H
#define HH_BASE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hh_progress {
    const char *what, *unit; /* "distil", "tokens" */
    double total;            /* 0: unknown */
    double done, start, shown;
    char note[128]; /* shown at the end of the line: "loss 2.31" */
    bool quiet;
} hh_progress;

void hh_progress_begin(hh_progress *p, const char *what, const char *unit, double total);
void hh_progress_update(hh_progress *p, double done,
                        const char *note); /* cheap: draws at most ten times a second; note NULL keeps the last */
void hh_progress_end(hh_progress *p);      /* clears the line; prints what took how long */
void hh_progress_silence(bool quiet);      /* for tests and --quiet */

/* The line as it would be shown at time `now`, at most size - 1 bytes: "distil  41 % of 2.0M tokens, 5.1k tokens/s, 3
 * min 51 s left, loss 2.31". */
void hh_progress_line(const hh_progress *p, double now, char *out, size_t size);
/* "0.4 s", "12 s", "3 min 51 s", "2 h 05 min": for people. */
void hh_duration_text(double seconds, char *out, size_t size);
/* 950, "5.1k", "2.0M", "3.2G": for people. */
void hh_count_text(double n, char *out, size_t size);

double hh_now(void); /* seconds, monotonic */

/* The first Ctrl-C (or SIGTERM) asks for a clean end, the second kills. cli/ installs it; long loops look. */
void hh_interrupt_install(void);
bool hh_interrupted(void);
/* While held, hh_interrupted stays false and the wish is known here alone: for who finishes what is under way first. */
void hh_interrupt_hold(bool hold);
bool hh_interrupt_asked(void);
void hh_interrupt_reset(void); /* the wish was served, a later one is a new one: for dialogues and tests */

#endif
