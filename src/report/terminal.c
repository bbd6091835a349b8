/* The same tables and heat maps in a terminal: aligned text, and cells as coloured blanks or, without colour, as a ramp
 * of signs. */
#include "report/markup.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 80 };

static void pad(hh_buf *out, int64_t n) {
    for (; n > 0; n--) hh_buf_puts(out, " ");
}

void hh_terminal_table(hh_buf *out, const char *const *cell, int64_t rows, int64_t cols) {
    int64_t *width = hh_alloc((size_t)cols * sizeof *width);
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t n = cell[i] ? hh_markup_length(cell[i]) : 0;
        if (n > width[i % cols]) width[i % cols] = n;
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            const char *text = cell[r * cols + c] ? cell[r * cols + c] : "";
            int64_t space = width[c] - hh_markup_length(text);
            if (c) hh_buf_puts(out, "  ");
            if (c) pad(out, space);
            hh_buf_puts(out, text);
            if (!c && cols > 1) pad(out, space);
        }
        hh_buf_puts(out, "\n");
    }
    hh_free(width);
}

/* The nearest of xterm's 6x6x6 cube; every terminal of the last twenty years has it. */
static int cube_color(unsigned rgb) {
    int index = 0;
    for (int shift = 16; shift >= 0; shift -= 8) {
        int x = (int)(rgb >> shift & 255);
        index = index * 6 + (x < 48 ? 0 : x < 115 ? 1 : (x - 35) / 40);
    }
    return 16 + index;
}

static void add_cell(hh_buf *out, const hh_heatmap *m, const hh_scale *s, int64_t at, bool color) {
    static const char ramp[] = ".:-=+*%@#";
    double value = m->value[at];
    bool marked = m->marked && m->marked[at];
    int level = hh_markup_level(s, value);
    if (isnan(value)) {
        hh_buf_puts(out, marked ? "[]" : "  ");
    } else if (color) {
        int strong = s->diverging ? level < 5 || level > HH_LEVELS - 6 : level > HH_LEVELS / 2;
        hh_buf_printf(out, "\033[48;5;%d;38;5;%dm%s\033[0m", cube_color(hh_markup_color(s->diverging, false, level)),
                      strong ? 231 : 16, marked ? "[]" : "  ");
    } else {
        /* Amounts only: of a centred scale the size, with a minus before what is below zero. */
        int size = s->diverging ? level > HH_LEVELS / 2 ? level - HH_LEVELS / 2 : HH_LEVELS / 2 - level : level;
        int top = s->diverging ? HH_LEVELS / 2 : HH_LEVELS - 1;
        char sign = ramp[size * 8 / top];
        char before = marked ? '[' : s->diverging && level < HH_LEVELS / 2 ? '-' : ' ';
        hh_buf_printf(out, "%c%c", before, sign);
    }
}

static void add_row(hh_buf *out, const hh_heatmap *m, const hh_scale *s, int64_t r, int64_t lo, int64_t hi,
                    int64_t label_width, bool color) {
    char text[32];
    const char *label = hh_markup_label(m->row_label, r, text);
    pad(out, label_width - hh_markup_length(label));
    hh_buf_puts(out, label);
    hh_buf_puts(out, " ");
    for (int64_t c = lo; c < hi; c++) add_cell(out, m, s, r * m->cols + c, color);
    hh_buf_puts(out, "\n");
}

/* Column labels stand over their cells, as many as have room. */
static void add_column_labels(hh_buf *out, const hh_heatmap *m, int64_t lo, int64_t hi, int64_t label_width) {
    char text[32];
    int64_t at = 0;
    pad(out, label_width + 1);
    for (int64_t c = lo; c < hi; c++) {
        const char *label = hh_markup_label(m->col_label, c, text);
        int64_t column = 2 * (c - lo), n = hh_markup_length(label);
        if (column < at || (column == at && at && n > 1)) continue;
        if (column + n > 2 * (hi - lo) + 8) break;
        pad(out, column - at + (n == 1));
        hh_buf_puts(out, label);
        at = column + n + (n == 1);
    }
    hh_buf_puts(out, "\n");
}

void hh_terminal_heatmap(hh_buf *out, const hh_heatmap *m, bool color) {
    char text[32], lo_text[32], hi_text[32];
    hh_scale s = hh_markup_scale(m);
    int64_t label_width = m->row_axis ? hh_markup_length(m->row_axis) : 0;
    for (int64_t r = 0; r < m->rows; r++) {
        int64_t n = hh_markup_length(hh_markup_label(m->row_label, r, text));
        if (n > label_width) label_width = n;
    }
    int64_t block = (WIDTH - label_width - 1) / 2;
    if (block < 8) block = 8;
    if (m->title) hh_buf_printf(out, "%s\n", m->title);
    for (int64_t lo = 0; lo < m->cols; lo += block) {
        int64_t hi = lo + block < m->cols ? lo + block : m->cols;
        if (m->row_axis || m->col_axis) {
            const char *axis = m->row_axis ? m->row_axis : "";
            pad(out, label_width - hh_markup_length(axis));
            hh_buf_printf(out, "%s  %s\n", axis, m->col_axis ? m->col_axis : "");
        }
        add_column_labels(out, m, lo, hi, label_width);
        for (int64_t r = 0; r < m->rows; r++) add_row(out, m, &s, r, lo, hi, label_width, color);
    }
    hh_buf_printf(out, "%s ", hh_markup_number(s.lo, lo_text));
    if (color) {
        for (int i = 0; i < HH_LEVELS; i += 2)
            hh_buf_printf(out, "\033[48;5;%dm \033[0m", cube_color(hh_markup_color(s.diverging, false, i)));
    } else {
        hh_buf_puts(out, s.diverging ? "-# ... .: ... #" : ".:-=+*%@#");
    }
    hh_buf_printf(out, " %s", hh_markup_number(s.hi, hi_text));
    if (m->marked && m->mark_label) hh_buf_printf(out, "   %s %s", color ? "[]" : "[", m->mark_label);
    hh_buf_puts(out, "\n");
}
