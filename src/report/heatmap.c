/* A heat map as inline SVG: cells are classes of colour levels, each with its numbers as a tip. */
#include "report/markup.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct layout {
    int64_t cell_w, cell_h; /* pixels */
    int64_t left, top;      /* where the cells begin */
    int64_t width, height;
    bool numbers; /* values are written into the cells */
} layout;

static int64_t longest_label(const char *const *label, int64_t n) {
    int64_t longest = 0;
    char text[32];
    for (int64_t i = 0; i < n; i++) {
        int64_t length = hh_markup_length(hh_markup_label(label, i, text));
        if (length > longest) longest = length;
    }
    return longest;
}

static layout lay_out(const hh_heatmap *m) {
    layout l = {0};
    l.cell_w = m->cols <= 8 ? 44 : m->cols <= 16 ? 36 : m->cols <= 32 ? 20 : m->cols <= 64 ? 13 : 9;
    l.cell_h = l.cell_w > 28 ? 28 : l.cell_w;
    l.numbers = l.cell_w >= 36;
    l.left = 14 + 7 * longest_label(m->row_label, m->rows) + (m->row_axis ? 18 : 0);
    l.top = 20 + (m->col_axis ? 18 : 0);
    l.width = l.left + m->cols * l.cell_w + 4;
    l.height = l.top + m->rows * l.cell_h + 4;
    return l;
}

static void add_axes(hh_buf *out, const hh_heatmap *m, const layout *l) {
    char text[32];
    int64_t middle_x = l->left + m->cols * l->cell_w / 2, middle_y = l->top + m->rows * l->cell_h / 2;
    if (m->col_axis) {
        hh_buf_printf(out, "<text class=\"axis\" x=\"%lld\" y=\"13\" text-anchor=\"middle\">", (long long)middle_x);
        hh_markup_escape(out, m->col_axis);
        hh_buf_puts(out, "</text>");
    }
    if (m->row_axis) {
        hh_buf_printf(out, "<text class=\"axis\" transform=\"translate(13 %lld)rotate(-90)\" text-anchor=\"middle\">",
                      (long long)middle_y);
        hh_markup_escape(out, m->row_axis);
        hh_buf_puts(out, "</text>");
    }
    /* Labels that would run into each other are left out. */
    int64_t every = 1 + 7 * (longest_label(m->col_label, m->cols) + 1) / l->cell_w;
    if (7 * longest_label(m->col_label, m->cols) < l->cell_w) every = 1;
    for (int64_t c = 0; c < m->cols; c += every) {
        hh_buf_printf(out, "<text x=\"%lld\" y=\"%lld\" text-anchor=\"middle\">",
                      (long long)(l->left + c * l->cell_w + l->cell_w / 2), (long long)(l->top - 6));
        hh_markup_escape(out, hh_markup_label(m->col_label, c, text));
        hh_buf_puts(out, "</text>");
    }
    every = l->cell_h < 12 ? 2 : 1;
    for (int64_t r = 0; r < m->rows; r += every) {
        hh_buf_printf(out, "<text x=\"%lld\" y=\"%lld\" text-anchor=\"end\">", (long long)(l->left - 6),
                      (long long)(l->top + r * l->cell_h + l->cell_h / 2 + 4));
        hh_markup_escape(out, hh_markup_label(m->row_label, r, text));
        hh_buf_puts(out, "</text>");
    }
    hh_buf_puts(out, "\n");
}

/* "layer 3, head 1: 0.52 (kept)", then the note on its own line. */
static void add_tip(hh_buf *out, const hh_heatmap *m, int64_t r, int64_t c) {
    char text[32];
    int64_t at = r * m->cols + c;
    hh_buf_puts(out, "<title>");
    for (int side = 0; side < 2; side++) {
        const char *axis = side ? m->col_axis : m->row_axis;
        if (side) hh_buf_puts(out, ", ");
        if (axis) {
            hh_markup_escape(out, axis);
            hh_buf_puts(out, " ");
        }
        hh_markup_escape(out, side ? hh_markup_label(m->col_label, c, text) : hh_markup_label(m->row_label, r, text));
    }
    hh_buf_printf(out, ": %s", isnan(m->value[at]) ? "no value" : hh_markup_number(m->value[at], text));
    if (m->marked && m->marked[at] && m->mark_label) {
        hh_buf_puts(out, " (");
        hh_markup_escape(out, m->mark_label);
        hh_buf_puts(out, ")");
    }
    if (m->note && m->note[at] && *m->note[at]) {
        hh_buf_puts(out, "\n");
        hh_markup_escape(out, m->note[at]);
    }
    hh_buf_puts(out, "</title>");
}

/* A number short enough for a cell: two decimals, without those that say nothing. */
static const char *cell_number(double value, char text[32]) {
    if (fabs(value) >= 1000) return hh_markup_number(value, text);
    snprintf(text, 32, fabs(value) < 99.5 ? "%.2f" : "%.0f", value);
    char *point = strchr(text, '.');
    size_t n = strlen(text);
    while (point && (text[n - 1] == '0' || text[n - 1] == '.')) {
        text[--n] = 0;
        if (text + n == point) break;
    }
    return strcmp(text, "-0") == 0 ? "0" : text;
}

static void add_cell(hh_buf *out, const hh_heatmap *m, const layout *l, const hh_scale *s, int64_t r, int64_t c) {
    char text[32];
    double value = m->value[r * m->cols + c];
    int level = hh_markup_level(s, value);
    long long x = l->left + c * l->cell_w, y = l->top + r * l->cell_h, w = l->cell_w, h = l->cell_h;
    int gap = w > 12 ? 2 : 1;
    hh_buf_printf(out, "<rect class=\"cell ");
    if (isnan(value))
        hh_buf_puts(out, "blank");
    else
        hh_buf_printf(out, "%c%d", s->diverging ? 'd' : 's', level);
    hh_buf_printf(out, "\" x=\"%lld\" y=\"%lld\" width=\"%lld\" height=\"%lld\" rx=\"2\" tabindex=\"-1\">", x, y,
                  w - gap, h - gap);
    add_tip(out, m, r, c);
    hh_buf_puts(out, "</rect>");
    if (l->numbers && !isnan(value)) {
        bool strong = s->diverging ? level < 4 || level > HH_LEVELS - 5 : level > HH_LEVELS / 2 + 1;
        hh_buf_printf(
            out, "<text class=\"%s\" x=\"%lld\" y=\"%lld\" text-anchor=\"middle\" pointer-events=\"none\">%s</text>",
            strong ? "hi" : "lo", x + (w - gap) / 2, y + h / 2 + 3, cell_number(value, text));
    }
}

/* Frames come last, so that no neighbour covers them. */
static void add_frames(hh_buf *out, const hh_heatmap *m, const layout *l) {
    if (!m->marked) return;
    int gap = l->cell_w > 12 ? 2 : 1;
    for (int64_t i = 0; i < m->rows * m->cols; i++) {
        if (!m->marked[i]) continue;
        long long x = l->left + i % m->cols * l->cell_w, y = l->top + i / m->cols * l->cell_h;
        hh_buf_printf(out, "<rect class=\"mark\" x=\"%lld\" y=\"%lld\" width=\"%lld\" height=\"%lld\" rx=\"3\"/>",
                      x - 1, y - 1, (long long)l->cell_w - gap + 2, (long long)l->cell_h - gap + 2);
    }
    hh_buf_puts(out, "\n");
}

static void add_legend(hh_buf *out, const hh_heatmap *m, const hh_scale *s) {
    char text[32];
    hh_buf_printf(out, "<div class=\"legend\"><span>%s ", hh_markup_number(s->lo, text));
    hh_buf_printf(out, "<svg width=\"%d\" height=\"12\" aria-hidden=\"true\">", 6 * HH_LEVELS);
    for (int i = 0; i < HH_LEVELS; i++)
        hh_buf_printf(out, "<rect class=\"%c%d\" x=\"%d\" width=\"6\" height=\"12\"/>", s->diverging ? 'd' : 's', i,
                      6 * i);
    hh_buf_printf(out, "</svg>%s</span>", hh_markup_number(s->hi, text));
    if (m->marked && m->mark_label) {
        hh_buf_puts(out,
                    "<span><svg width=\"14\" height=\"14\" aria-hidden=\"true\"><rect class=\"mark\" x=\"2\" y=\"2\" "
                    "width=\"10\" height=\"10\" rx=\"2\"/></svg>");
        hh_markup_escape(out, m->mark_label);
        hh_buf_puts(out, "</span>");
    }
    hh_buf_puts(out, "</div>");
}

void hh_page_heatmap(hh_buf *out, const hh_heatmap *m) {
    layout l = lay_out(m);
    hh_scale s = hh_markup_scale(m);
    hh_buf_puts(out, "<figure><figcaption>");
    hh_markup_escape(out, m->title);
    /* Shrinks to three quarters on a narrow screen; beyond that it scrolls, so that labels stay readable. */
    hh_buf_printf(
        out,
        "</figcaption>\n<div class=\"wide\"><svg viewBox=\"0 0 %lld %lld\" style=\"width:clamp(%lldpx,100%%,%lldpx)\" "
        "role=\"img\" aria-label=\"",
        (long long)l.width, (long long)l.height, (long long)l.width * 3 / 4, (long long)l.width);
    hh_markup_escape(out, m->title);
    hh_buf_puts(out, "\">\n");
    add_axes(out, m, &l);
    for (int64_t r = 0; r < m->rows; r++) {
        for (int64_t c = 0; c < m->cols; c++) add_cell(out, m, &l, &s, r, c);
        hh_buf_puts(out, "\n");
    }
    add_frames(out, m, &l);
    hh_buf_puts(out, "</svg></div>\n");
    add_legend(out, m, &s);
    hh_buf_puts(out, "</figure>\n");
}
