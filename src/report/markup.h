/* What the pieces of a page share: escaping, numbers for people, scales and their ticks. Inside report/ only. */
#ifndef HH_REPORT_MARKUP_H
#define HH_REPORT_MARKUP_H

#include "report/report.h"

void hh_markup_escape(hh_buf *out, const char *text); /* for element text and quoted attributes; NULL is "" */
/* Three significant digits: "0.125", "1.2e-05", "4096"; never "-0". */
const char *hh_markup_number(double x, char text[32]);

/* At most `max` round values (1, 2 or 5 times a power of ten) inside [lo, hi]; returns how many. */
int hh_markup_ticks(double lo, double hi, int max, double *tick);

/* The colour level of a value, 0 .. HH_LEVELS-1. Maps with values of both signs are centred on zero. */
enum { HH_LEVELS = 21 };
typedef struct hh_scale {
    double lo, hi;
    bool diverging;
} hh_scale;
hh_scale hh_markup_scale(const hh_heatmap *m);
int hh_markup_level(const hh_scale *s, double value);
/* The colour of a level as 0xrrggbb. */
unsigned hh_markup_color(bool diverging, bool dark, int level);

/* Labels: the given one, or the number. */
const char *hh_markup_label(const char *const *label, int64_t i, char text[32]);
/* Characters (not bytes) of UTF-8 text. */
int64_t hh_markup_length(const char *text);

#endif
