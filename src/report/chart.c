/* Line charts as inline SVG: a small frame that a phone shows whole, points with tips, curves told apart by colour and
 * dashes. */
#include "report/markup.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 480, HEIGHT = 270, LEFT = 52, RIGHT = 24, TOP = 12, BOTTOM = 42 };
enum { MAX_SHOWN = 500, MAX_DOTS = 40, MAX_TICKS = 8, COLORS = 6 };

typedef struct axes {
    double x_lo, x_hi, y_lo, y_hi;
    bool log_x;
} axes;

static bool shown(const axes *a, const hh_curve *c, int64_t i) {
    return isfinite(c->x[i]) && isfinite(c->y[i]) && (!a->log_x || c->x[i] > 0);
}

static axes find_axes(const hh_curve *curve, int64_t n_curves, bool log_x) {
    axes a = {INFINITY, -INFINITY, INFINITY, -INFINITY, log_x};
    for (int64_t k = 0; k < n_curves; k++) {
        const hh_curve *c = &curve[k];
        for (int64_t i = 0; i < c->n; i++) {
            if (!shown(&a, c, i)) continue;
            double e = c->error && isfinite(c->error[i]) ? c->error[i] : 0;
            a.x_lo = fmin(a.x_lo, c->x[i]);
            a.x_hi = fmax(a.x_hi, c->x[i]);
            a.y_lo = fmin(a.y_lo, c->y[i] - e);
            a.y_hi = fmax(a.y_hi, c->y[i] + e);
        }
    }
    if (a.x_lo > a.x_hi) a.x_lo = log_x ? 1 : 0, a.x_hi = log_x ? 10 : 1, a.y_lo = 0, a.y_hi = 1;
    if (a.x_lo == a.x_hi) a.x_hi = log_x ? a.x_lo * 2 : a.x_lo + 1;
    /* Zero belongs in the picture unless the curve is far above it. */
    if (a.y_lo >= 0 && a.y_lo < 0.5 * a.y_hi) a.y_lo = 0;
    if (a.y_lo == a.y_hi) a.y_hi = a.y_lo + (a.y_lo != 0 ? fabs(a.y_lo) : 1);
    return a;
}

static double place_x(const axes *a, double x) {
    double t = a->log_x ? log(x / a->x_lo) / log(a->x_hi / a->x_lo) : (x - a->x_lo) / (a->x_hi - a->x_lo);
    return LEFT + t * (WIDTH - LEFT - RIGHT);
}

static double place_y(const axes *a, double y) {
    return HEIGHT - BOTTOM - (y - a->y_lo) / (a->y_hi - a->y_lo) * (HEIGHT - BOTTOM - TOP);
}

/* Ticks of a logarithmic axis: the points themselves when they are few (context lengths), else powers. */
static int log_ticks(const axes *a, const hh_curve *curve, int64_t n_curves, double *tick) {
    if (n_curves && curve[0].n <= MAX_TICKS) {
        int n = 0;
        for (int64_t i = 0; i < curve[0].n; i++)
            if (shown(a, &curve[0], i)) tick[n++] = curve[0].x[i];
        return n;
    }
    int n = hh_markup_ticks(log10(a->x_lo), log10(a->x_hi), MAX_TICKS, tick);
    for (int i = 0; i < n; i++) tick[i] = pow(10, tick[i]);
    return n;
}

static void add_text(hh_buf *out, double x, double y, const char *anchor, const char *text) {
    hh_buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    hh_markup_escape(out, text);
    hh_buf_puts(out, "</text>");
}

static void add_frame(hh_buf *out, const axes *a, const char *x_axis, const char *y_axis, const hh_curve *curve,
                      int64_t n_curves) {
    double tick[MAX_TICKS];
    char text[32];
    int n = hh_markup_ticks(a->y_lo, a->y_hi, 6, tick);
    for (int i = 0; i < n; i++) {
        double y = place_y(a, tick[i]);
        hh_buf_printf(out, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT, WIDTH - RIGHT, y,
                      y);
        add_text(out, LEFT - 6, y + 4, "end", hh_markup_number(tick[i], text));
    }
    n = a->log_x ? log_ticks(a, curve, n_curves, tick) : hh_markup_ticks(a->x_lo, a->x_hi, 6, tick);
    for (int i = 0; i < n; i++) {
        double x = place_x(a, tick[i]);
        hh_buf_printf(out, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>", x, x, HEIGHT - BOTTOM,
                      HEIGHT - BOTTOM + 4);
        add_text(out, x, HEIGHT - BOTTOM + 18, "middle", hh_markup_number(tick[i], text));
    }
    hh_buf_printf(out, "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (LEFT + WIDTH - RIGHT) / 2,
                  HEIGHT - 6);
    hh_markup_escape(out, x_axis);
    hh_buf_printf(out, "</text><text class=\"axis\" transform=\"translate(13 %d)rotate(-90)\" text-anchor=\"middle\">",
                  (TOP + HEIGHT - BOTTOM) / 2);
    hh_markup_escape(out, y_axis);
    hh_buf_puts(out, "</text>\n");
}

static void add_point(hh_buf *out, const axes *a, const hh_curve *c, int64_t i, bool *pen_down) {
    if (!shown(a, c, i)) {
        *pen_down = false;
        return;
    }
    hh_buf_printf(out, "%c%.1f %.1f", *pen_down ? 'L' : 'M', place_x(a, c->x[i]), place_y(a, c->y[i]));
    *pen_down = true;
}

/* Of each run of points that fall into one column the lowest and the highest are drawn, in their order. */
static void add_path(hh_buf *out, const axes *a, const hh_curve *c) {
    int64_t buckets = c->n > MAX_SHOWN ? MAX_SHOWN / 2 : c->n;
    bool pen_down = false;
    for (int64_t b = 0; b < buckets; b++) {
        int64_t from = c->n * b / buckets, to = c->n * (b + 1) / buckets, low = from, high = from;
        for (int64_t i = from; i < to; i++) {
            if (!(c->y[i] >= c->y[low])) low = i;
            if (!(c->y[i] <= c->y[high])) high = i;
        }
        add_point(out, a, c, low < high ? low : high, &pen_down);
        if (low != high) add_point(out, a, c, low < high ? high : low, &pen_down);
    }
}

static void add_dots(hh_buf *out, const axes *a, const char *x_axis, const hh_curve *c, int64_t k) {
    char x[32], y[32];
    int64_t step = (c->n + MAX_DOTS - 1) / MAX_DOTS;
    for (int64_t i = 0; i < c->n; i += step ? step : 1) {
        if (!shown(a, c, i)) continue;
        double px = place_x(a, c->x[i]), py = place_y(a, c->y[i]);
        if (c->error && c->error[i] > 0)
            hh_buf_printf(out, "<line style=\"stroke:var(--k%lld)\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>",
                          (long long)k % COLORS, px, px, place_y(a, c->y[i] - c->error[i]),
                          place_y(a, c->y[i] + c->error[i]));
        if (step == 1)
            hh_buf_printf(out, "<circle class=\"dot\" style=\"fill:var(--k%lld)\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>",
                          (long long)k % COLORS, px, py);
        hh_buf_printf(out, "<circle class=\"hit\" cx=\"%.1f\" cy=\"%.1f\" r=\"9\"><title>", px, py);
        hh_markup_escape(out, c->name);
        hh_buf_printf(out, "\n%s ", hh_markup_number(c->x[i], x));
        hh_markup_escape(out, x_axis);
        hh_buf_printf(out, ": %s", hh_markup_number(c->y[i], y));
        if (c->error && isfinite(c->error[i])) hh_buf_printf(out, " ± %s", hh_markup_number(c->error[i], y));
        hh_buf_puts(out, "</title></circle>");
    }
}

/* Dashes help who cannot tell the colours; on a noisy curve they only add noise. */
static const char *dash(const hh_curve *c, int64_t k) {
    static const char *const pattern[] = {"none", "6 3", "2 3", "9 3 2 3"};
    return pattern[c->n > MAX_DOTS ? 0 : k % 4];
}

static void add_legend(hh_buf *out, const hh_curve *curve, int64_t n_curves) {
    hh_buf_puts(out, "<div class=\"legend\">");
    for (int64_t k = 0; k < n_curves; k++) {
        hh_buf_printf(out,
                      "<span><svg width=\"26\" height=\"10\" aria-hidden=\"true\"><path class=\"curve\" "
                      "style=\"stroke:var(--k%lld);stroke-dasharray:%s\" d=\"M0 5H26\"/></svg>",
                      (long long)k % COLORS, dash(&curve[k], k));
        hh_markup_escape(out, curve[k].name);
        hh_buf_puts(out, "</span>");
    }
    hh_buf_puts(out, "</div>");
}

void hh_page_chart(hh_buf *out, const char *title, const char *x_axis, const char *y_axis, bool log_x,
                   const hh_curve *curve, int64_t n_curves) {
    axes a = find_axes(curve, n_curves, log_x);
    hh_buf_puts(out, "<figure><figcaption>");
    hh_markup_escape(out, title);
    hh_buf_printf(out,
                  "</figcaption>\n<svg viewBox=\"0 0 %d %d\" style=\"width:100%%;max-width:600px\" role=\"img\" "
                  "aria-label=\"",
                  WIDTH, HEIGHT);
    hh_markup_escape(out, title);
    hh_buf_puts(out, "\">\n");
    add_frame(out, &a, x_axis, y_axis, curve, n_curves);
    for (int64_t k = 0; k < n_curves; k++) {
        hh_buf_printf(out, "<path class=\"curve\" style=\"stroke:var(--k%lld);stroke-dasharray:%s\" d=\"",
                      (long long)k % COLORS, dash(&curve[k], k));
        add_path(out, &a, &curve[k]);
        hh_buf_puts(out, "\"/>\n");
    }
    for (int64_t k = 0; k < n_curves; k++) add_dots(out, &a, x_axis, &curve[k], k);
    hh_buf_puts(out, "\n</svg>\n");
    add_legend(out, curve, n_curves);
    hh_buf_puts(out, "</figure>\n");
}
