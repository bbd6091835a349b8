/* Shared by the pieces of a page; see markup.h. */
#include "report/markup.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void hh_markup_escape(hh_buf *out, const char *text) {
    for (const char *p = text ? text : ""; *p; p++) {
        switch (*p) {
        case '&':
            hh_buf_puts(out, "&amp;");
            break;
        case '<':
            hh_buf_puts(out, "&lt;");
            break;
        case '>':
            hh_buf_puts(out, "&gt;");
            break;
        case '"':
            hh_buf_puts(out, "&quot;");
            break;
        default:
            hh_buf_add(out, p, 1);
        }
    }
}

const char *hh_markup_number(double x, char text[32]) {
    if (x == 0) x = 0; /* -0 */
    if (fabs(x) >= 1000 && fabs(x) < 1e7)
        snprintf(text, 32, "%.0f", x);
    else
        snprintf(text, 32, "%.3g", x);
    return text;
}

int hh_markup_ticks(double lo, double hi, int max, double *tick) {
    double span = hi - lo;
    if (!(span > 0) || !isfinite(span)) {
        tick[0] = lo;
        return 1;
    }
    double power = pow(10, floor(log10(span / max)) - 1), step = power;
    static const double round[] = {1, 2, 5};
    for (int i = 0; span / step > max - 1 + 1e-9; i++) step = power * round[i % 3] * pow(10, i / 3);
    int n = 0;
    for (double k = ceil(lo / step - 1e-9); k * step <= hi + 1e-9 * span && n < max; k++) tick[n++] = k * step;
    return n;
}

hh_scale hh_markup_scale(const hh_heatmap *m) {
    double lo = m->lo, hi = m->hi;
    if (!(lo < hi)) {
        lo = INFINITY;
        hi = -INFINITY;
        for (int64_t i = 0; i < m->rows * m->cols; i++) {
            if (!isfinite(m->value[i])) continue;
            lo = fmin(lo, m->value[i]);
            hi = fmax(hi, m->value[i]);
        }
        if (lo > hi) lo = 0, hi = 1;
        if (lo > 0) lo = 0; /* colours show amounts */
        if (hi <= lo) hi = lo < 0 ? 0 : lo + 1;
    }
    /* Noise below zero is not a second direction. */
    bool diverging = lo < -0.1 * hi;
    if (diverging) {
        hi = fmax(hi, -lo);
        lo = -hi;
    }
    return (hh_scale){lo, hi, diverging};
}

int hh_markup_level(const hh_scale *s, double value) {
    double x = (value - s->lo) / (s->hi - s->lo);
    if (!(x > 0)) return 0;
    return x >= 1 ? HH_LEVELS - 1 : (int)lround(x * (HH_LEVELS - 1));
}

unsigned hh_markup_color(bool diverging, bool dark, int level) {
    static const unsigned anchors[2][2][5] = {
        {{0xeef2f8, 0xb5d2f3, 0x6da6e6, 0x2b6cc0, 0x0f3a78}, {0x1d2530, 0x1c4272, 0x2767b3, 0x5aa0ee, 0xc9e4ff}},
        {{0x9c3f08, 0xe9a56b, 0xf2f1ee, 0x84b3ea, 0x174f9e}, {0xffb878, 0xa4571f, 0x242930, 0x2a64b0, 0x93c8ff}},
    };
    const unsigned *a = anchors[diverging][dark];
    int at = level * 4 / (HH_LEVELS - 1);
    if (at > 3) at = 3;
    double t = level * 4.0 / (HH_LEVELS - 1) - at;
    unsigned color = 0;
    for (int shift = 16; shift >= 0; shift -= 8) {
        double x = a[at] >> shift & 255, y = a[at + 1] >> shift & 255;
        color = color << 8 | (unsigned)lround(x + (y - x) * t);
    }
    return color;
}

const char *hh_markup_label(const char *const *label, int64_t i, char text[32]) {
    if (label) return label[i] ? label[i] : "";
    snprintf(text, 32, "%lld", (long long)i);
    return text;
}

int64_t hh_markup_length(const char *text) {
    int64_t n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}
