/* Pictures where people look: one self-contained HTML page (inline SVG and CSS, no network, light and dark, readable on
 * a phone), and compact tables and heat maps for the terminal. A page is built up in a buffer; pieces may come in any
 * order. */
#ifndef HH_REPORT_REPORT_H
#define HH_REPORT_REPORT_H

#include "base/memory.h"

#include <stdbool.h>

void hh_page_begin(hh_buf *out, const char *title, const char *subtitle);
void hh_page_heading(hh_buf *out, const char *text);
void hh_page_paragraph(hh_buf *out, const char *text); /* escaped */
void hh_page_end(hh_buf *out);

/* A matrix of cells; value[r*cols + c], NaN is left blank. Hover (and tap) shows "row, column: value" and the cell's
 * note if there is one. */
typedef struct hh_heatmap {
    const char *title, *row_axis, *col_axis;
    int64_t rows, cols;
    const double *value;
    const char *const *row_label, *const *col_label; /* NULL: numbers */
    const char *const *note;                         /* [rows*cols] or NULL */
    const bool *marked;                              /* [rows*cols] drawn with a frame, or NULL */
    const char *mark_label;                          /* what a frame means ("kept"), for the legend; or NULL */
    double lo, hi;                                   /* colour scale; equal: taken from the values */
} hh_heatmap;
void hh_page_heatmap(hh_buf *out, const hh_heatmap *m);
void hh_terminal_heatmap(hh_buf *out, const hh_heatmap *m, bool color);

typedef struct hh_curve {
    const char *name;
    const double *x, *y;
    int64_t n;
    const double *error; /* [n] standard errors, drawn as whiskers; or NULL */
} hh_curve;
/* Values that are not finite are gaps; curves of thousands of points are thinned to what a screen can show, extremes
 * kept. */
void hh_page_chart(hh_buf *out, const char *title, const char *x_axis, const char *y_axis, bool log_x,
                   const hh_curve *curve, int64_t n_curves);

/* A table of text cells, cell[r*cols + c]; row 0 is the heading. */
void hh_page_table(hh_buf *out, const char *const *cell, int64_t rows, int64_t cols);
void hh_terminal_table(hh_buf *out, const char *const *cell, int64_t rows,
                       int64_t cols); /* first column left, others right aligned */

#endif
