/* A page: head with style and script, words, tables. Style sheet and script are small and inline: the file can be
 * mailed. Colours of maps and curves are classes, so that light and dark are the browser's choice. */
#include "report/markup.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char style[] =
    ":root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6470;--paper:#fff;--line:#d9dee5;--mark:#d6246a;"
    "--k0:#1f66c1;--k1:#c2570c;--k2:#1a7f4b;--k3:#8a3ffc;--k4:#b3261e;--k5:#5b6470;--on:#fff}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4b1;--paper:#14181d;--line:#333b45;--mark:#"
    "ff7bb0;"
    "--k0:#6db1ff;--k1:#ffa057;--k2:#5fd394;--k3:#c8a2ff;--k4:#ff8a80;--k5:#9aa4b1;--on:#0c1116}}"
    "*{box-sizing:border-box}"
    "body{margin:0 auto;padding:24px 16px 48px;max-width:860px;background:var(--paper);color:var(--ink);"
    "font:16px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,sans-serif}"
    "h1{font-size:1.7em;line-height:1.2;margin:0}h2{font-size:1.2em;margin:2em 0 .5em}p{margin:.6em 0}"
    ".sub{color:var(--soft);margin:.3em 0 1.5em}figure{margin:1.4em 0}figcaption{font-weight:600;margin-bottom:.4em}"
    /* what is wider than the page has a shade at the side where there is more */
    ".wide{overflow-x:auto;-webkit-overflow-scrolling:touch;background:"
    "linear-gradient(90deg,var(--paper) 12px,transparent) 0 0/40px 100% no-repeat local,"
    "linear-gradient(270deg,var(--paper) 12px,transparent) 100% 0/40px 100% no-repeat local,"
    "linear-gradient(90deg,#8886,transparent) 0 0/10px 100% no-repeat,"
    "linear-gradient(270deg,#8886,transparent) 100% 0/10px 100% no-repeat}svg{display:block}"
    "svg text{fill:var(--soft);font:12px system-ui,-apple-system,\"Segoe UI\",Roboto,sans-serif}"
    "svg text.axis{fill:var(--ink)}svg text.lo{fill:var(--ink)}svg text.hi{fill:var(--on)}"
    ".blank{fill:none;stroke:var(--line)}.mark{fill:none;stroke:var(--mark);stroke-width:2.5;pointer-events:none}"
    ".cell:hover,.cell:focus{stroke:var(--ink);stroke-width:1.5;outline:none}"
    ".grid{stroke:var(--line)}.curve{fill:none;stroke-width:2;stroke-linejoin:round}.dot{stroke:none}"
    ".hit{fill:transparent}.legend{display:flex;flex-wrap:wrap;gap:.2em "
    "1.2em;font-size:.85em;color:var(--soft);margin-top:.4em}"
    ".legend svg{display:inline-block;vertical-align:-2px;margin-right:.4em}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:.3em .8em;border-bottom:1px solid "
    "var(--line);text-align:left;white-space:nowrap}th{color:var(--soft);font-weight:600}.n{text-align:right}"
    "@media(max-width:480px){table{font-size:.85em}th,td{padding:.35em .45em}}"
    "pre{overflow-x:auto;padding:.8em;border:1px solid var(--line);border-radius:6px;font-size:.85em}"
    "#tip{position:absolute;z-index:9;max-width:min(320px,90vw);padding:.35em "
    ".7em;border-radius:6px;background:var(--ink);"
    "color:var(--paper);font-size:.85em;white-space:pre-line;pointer-events:none}";

/* Moves the tool tips of SVG (which phones do not show) to one box that follows pointer, finger and keyboard. */
static const char script[] =
    "(function(){var tip=document.createElement('div');tip.id='tip';tip.hidden=true;document.body.appendChild(tip);"
    "document.querySelectorAll('svg title').forEach(function(t){var "
    "e=t.parentNode;e.setAttribute('data-tip',t.textContent);"
    "e.setAttribute('aria-label',t.textContent);t.remove()});"
    "function show(ev){var e=ev.target.closest?ev.target.closest('[data-tip]'):null;if(!e){tip.hidden=true;return}"
    "tip.textContent=e.getAttribute('data-tip');tip.hidden=false;var "
    "r=e.getBoundingClientRect(),b=tip.getBoundingClientRect();"
    "var x=Math.max(4,Math.min(r.left+r.width/2-b.width/2,document.documentElement.clientWidth-b.width-4));"
    "var y=r.top-b.height-6;if(y<0)y=r.bottom+6;tip.style.left=(x+scrollX)+'px';tip.style.top=(y+scrollY)+'px'}"
    "['pointerover','click','focusin'].forEach(function(n){document.addEventListener(n,show)});"
    "document.addEventListener('scroll',function(){tip.hidden=true},true)})();";

static void add_palette(hh_buf *out, bool dark) {
    for (int diverging = 0; diverging < 2; diverging++)
        for (int level = 0; level < HH_LEVELS; level++)
            hh_buf_printf(out, ".%c%d{fill:#%06x}", diverging ? 'd' : 's', level,
                          hh_markup_color(diverging, dark, level));
}

void hh_page_begin(hh_buf *out, const char *title, const char *subtitle) {
    hh_buf_puts(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>");
    hh_markup_escape(out, title);
    hh_buf_puts(out, "</title>\n<style>");
    hh_buf_puts(out, style);
    add_palette(out, false);
    hh_buf_puts(out, "@media(prefers-color-scheme:dark){");
    add_palette(out, true);
    hh_buf_puts(out, "}</style>\n</head>\n<body>\n<h1>");
    hh_markup_escape(out, title);
    hh_buf_puts(out, "</h1>\n");
    if (!subtitle || !*subtitle) return;
    hh_buf_puts(out, "<p class=\"sub\">");
    hh_markup_escape(out, subtitle);
    hh_buf_puts(out, "</p>\n");
}

static void add_element(hh_buf *out, const char *name, const char *text) {
    hh_buf_printf(out, "<%s>", name);
    hh_markup_escape(out, text);
    hh_buf_printf(out, "</%s>\n", name);
}

void hh_page_heading(hh_buf *out, const char *text) {
    add_element(out, "h2", text);
}

void hh_page_paragraph(hh_buf *out, const char *text) {
    add_element(out, "p", text);
}

void hh_page_end(hh_buf *out) {
    hh_buf_printf(out, "<script>%s</script>\n</body>\n</html>\n", script);
}

/* A column whose cells below the heading all begin like numbers (or say "-" or nothing) is aligned to the right. */
static bool is_numeric(const char *const *cell, int64_t rows, int64_t cols, int64_t c) {
    bool any = false;
    for (int64_t r = 1; r < rows; r++) {
        const char *text = cell[r * cols + c];
        if (!text || !*text || strcmp(text, "-") == 0) continue;
        if (!isdigit((unsigned char)text[strspn(text, "+-.~<> ")])) return false;
        any = true;
    }
    return any;
}

/* Text of a cell, in which "+-" is one sign. */
static void add_cell(hh_buf *out, const char *text) {
    const char *sign = text ? strstr(text, " +- ") : NULL;
    if (!sign) {
        hh_markup_escape(out, text);
        return;
    }
    char *before = hh_sprintf("%.*s", (int)(sign - text), text);
    hh_markup_escape(out, before);
    hh_buf_puts(out, " &plusmn; ");
    hh_markup_escape(out, sign + 4);
    hh_free(before);
}

void hh_page_table(hh_buf *out, const char *const *cell, int64_t rows, int64_t cols) {
    hh_buf_puts(out, "<figure class=\"wide\"><table>\n");
    bool *numeric = hh_alloc((size_t)cols);
    for (int64_t c = 0; c < cols; c++) numeric[c] = is_numeric(cell, rows, cols, c);
    for (int64_t r = 0; r < rows; r++) {
        hh_buf_puts(out, "<tr>");
        for (int64_t c = 0; c < cols; c++) {
            hh_buf_printf(out, "<%s%s>", r ? "td" : "th", numeric[c] ? " class=\"n\"" : "");
            add_cell(out, cell[r * cols + c]);
        }
        hh_buf_puts(out, "\n");
    }
    hh_buf_puts(out, "</table></figure>\n");
    hh_free(numeric);
}
