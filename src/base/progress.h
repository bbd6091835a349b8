/* Progress on stderr for anything over two seconds: what, how far, how fast, time left. On a terminal one line that is redrawn;
 * elsewhere a line every ten seconds. NO_COLOR and non-terminals are respected. Also the one place that knows of Ctrl-C. */
#ifndef HH_BASE_PROGRESS_H
#define HH_BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct hh_progress {
    const char *what, *unit; /* "distil", "tokens" */
    double total;            /* 0: unknown */
    double done, start, shown;
    char note[128];          /* shown at the end of the line: "loss 2.31" */
    bool quiet;
} hh_progress;

void hh_progress_begin(hh_progress *p, const char *what, const char *unit, double total);
void hh_progress_update(hh_progress *p, double done, const char *note); /* cheap: draws at most ten times a second; note may be NULL */
void hh_progress_end(hh_progress *p);                                   /* clears the line; prints what took how long */
void hh_progress_silence(bool quiet);                                   /* for tests and --quiet */

double hh_now(void); /* seconds, monotonic */

/* The first Ctrl-C (or SIGTERM) asks for a clean end, the second kills. cli/ installs it; long loops look. */
void hh_interrupt_install(void);
bool hh_interrupted(void);

#endif
