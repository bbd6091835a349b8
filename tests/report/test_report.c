/* Pages and terminal pictures: self-contained, escaped, every number reachable, nothing wider than a terminal. */
#include "report/report.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int count(const char *text, const char *word) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, word)); p += strlen(word)) n++;
    return n;
}

static const double values[6] = {0.25, -0.5, 1, NAN, 0, 0.125};
static const bool marked[6] = {false, true, false, true, false, false};
static const char *const notes[6] = {"receiver 0.2", NULL, "", NULL, NULL, "x < y"};
static const char *const rows[2] = {"a&b", "<script>"};
static const hh_heatmap map = {.title = "Heads of <nano>",
                               .row_axis = "layer",
                               .col_axis = "head",
                               .rows = 2,
                               .cols = 3,
                               .value = values,
                               .row_label = rows,
                               .note = notes,
                               .marked = marked,
                               .mark_label = "kept"};

static hh_buf make_page(void) {
    static const double x[4] = {256, 1024, NAN, 4096}, y[4] = {1, 0.5, 0.1, NAN}, e[4] = {0.01, 0.1, 0, 0};
    static const hh_curve curve[2] = {{.name = "teacher", .x = x, .y = y, .n = 4, .error = e},
                                      {.name = "none", .x = x, .y = y, .n = 0}};
    static const char *const cells[6] = {"model", "256", "a \"quoted\" name", "0.98 ± 0.02", "other", NULL};
    hh_buf b = {0};
    hh_page_begin(&b, "A report & more", "nano");
    hh_page_heading(&b, "Heads");
    hh_page_paragraph(&b, "1 < 2");
    hh_page_heatmap(&b, &map);
    hh_page_chart(&b, "Accuracy", "tokens", "found", true, curve, 2);
    hh_page_table(&b, cells, 3, 2);
    hh_page_end(&b);
    return b;
}

static void test_page_needs_nothing_else(void **state) {
    (void)state;
    hh_buf b = make_page();
    static const char *const outside[] = {"http", "src=", "url(", "@import", "<link"};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) assert_null(strstr(b.data, outside[i]));
    assert_memory_equal(b.data, "<!doctype html>", 15);
    assert_non_null(strstr(b.data, "name=\"viewport\""));
    assert_non_null(strstr(b.data, "prefers-color-scheme:dark"));
    hh_buf_release(&b);
}

static void test_elements_are_closed_and_text_is_escaped(void **state) {
    (void)state;
    hh_buf b = make_page();
    static const char *const names[] = {"svg", "figure", "figcaption", "text", "title", "div", "span", "table", "pre"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char open[32], close[32];
        snprintf(open, sizeof open, "<%s", names[i]);
        snprintf(close, sizeof close, "</%s>", names[i]);
        assert_int_equal(count(b.data, open), count(b.data, close));
    }
    assert_int_equal(count(b.data, "<script>"), 1); /* the page's own */
    assert_non_null(strstr(b.data, "&lt;script&gt;"));
    assert_non_null(strstr(b.data, "a&amp;b"));
    assert_non_null(strstr(b.data, "a &quot;quoted&quot; name"));
    assert_non_null(strstr(b.data, "1 &lt; 2"));
    assert_null(strstr(b.data, "nan\""));
    assert_null(strstr(b.data, "inf"));
    hh_buf_release(&b);
}

static void test_every_number_has_a_tip(void **state) {
    (void)state;
    hh_buf b = make_page();
    assert_non_null(strstr(b.data, "<title>layer a&amp;b, head 0: 0.25\nreceiver 0.2</title>"));
    assert_non_null(strstr(b.data, "<title>layer a&amp;b, head 1: -0.5 (kept)</title>"));
    assert_non_null(strstr(b.data, "<title>layer &lt;script&gt;, head 0: no value (kept)</title>"));
    assert_non_null(strstr(b.data, ": 0.125\nx &lt; y</title>"));
    assert_int_equal(count(b.data, "class=\"mark\""), 3); /* two cells and the legend */
    assert_non_null(strstr(b.data, "<title>teacher\n1024 tokens: 0.5 ± 0.1</title>"));
    hh_buf_release(&b);
}

static void test_long_curves_are_thinned_with_their_peaks(void **state) {
    (void)state;
    enum { N = 100000 };
    double *x = hh_alloc(N * sizeof *x), *y = hh_alloc(N * sizeof *y);
    for (int i = 0; i < N; i++) x[i] = i, y[i] = 1;
    y[54321] = 9; /* one step of a hundred thousand */
    hh_curve c = {.name = "loss", .x = x, .y = y, .n = N};
    hh_buf b = {0};
    hh_page_chart(&b, "Loss", "step", "loss", false, &c, 1);
    assert_true(b.len < 40000);
    assert_non_null(strstr(b.data, " 12.0")); /* the top of the frame: the peak is drawn */
    hh_buf_release(&b);
    hh_free(x);
    hh_free(y);
}

static void test_maps_of_nothing(void **state) {
    (void)state;
    double blank[2] = {NAN, INFINITY}, same[2] = {0, 0};
    hh_heatmap m = {.title = "t", .rows = 1, .cols = 2, .value = blank};
    hh_buf b = {0};
    hh_page_heatmap(&b, &m);
    hh_terminal_heatmap(&b, &m, true);
    m.value = same;
    hh_page_heatmap(&b, &m);
    hh_terminal_heatmap(&b, &m, false);
    m.rows = m.cols = 0;
    hh_page_heatmap(&b, &m);
    hh_terminal_heatmap(&b, &m, false);
    hh_page_chart(&b, "t", "x", "y", true, NULL, 0);
    assert_null(strstr(b.data, "nan"));
    hh_buf_release(&b);
}

static void check_lines_fit(const char *text, int64_t columns) {
    for (const char *line = text; *line;) {
        int64_t width = 0;
        for (; *line && *line != '\n'; line++) width += (*line & 0xc0) != 0x80;
        assert_true(width <= columns);
        line += *line == '\n';
    }
}

static void test_terminal_map(void **state) {
    (void)state;
    hh_buf b = {0};
    double wide[2 * 64];
    for (int i = 0; i < 128; i++) wide[i] = i;
    hh_heatmap m = {.title = "Wide", .row_axis = "layer", .col_axis = "head", .rows = 2, .cols = 64, .value = wide};
    hh_terminal_heatmap(&b, &m, false);
    assert_null(strchr(b.data, '\033'));
    check_lines_fit(b.data, 80);
    assert_int_equal(count(b.data, "    1 "), 2); /* two blocks of columns, each with both rows */
    hh_buf_clear(&b);
    hh_terminal_heatmap(&b, &map, false);
    assert_int_equal(count(b.data, "["), 3);
    assert_non_null(strstr(b.data, "kept"));
    hh_buf_clear(&b);
    hh_terminal_heatmap(&b, &map, true);
    assert_non_null(strstr(b.data, "\033[48;5;"));
    /* Every colour is taken back before its line ends. */
    assert_int_equal(count(b.data, "\033[48;5;"), count(b.data, "\033[0m"));
    hh_buf_release(&b);
}

static void test_terminal_table(void **state) {
    (void)state;
    static const char *const cells[6] = {"model", "256", "a ± b", "0.98", "x", NULL};
    hh_buf b = {0};
    hh_terminal_table(&b, cells, 3, 2);
    assert_string_equal(b.data, "model   256\na ± b  0.98\nx          \n");
    hh_buf_release(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_needs_nothing_else), cmocka_unit_test(test_elements_are_closed_and_text_is_escaped),
        cmocka_unit_test(test_every_number_has_a_tip),  cmocka_unit_test(test_long_curves_are_thinned_with_their_peaks),
        cmocka_unit_test(test_maps_of_nothing),         cmocka_unit_test(test_terminal_map),
        cmocka_unit_test(test_terminal_table),
    };
    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
