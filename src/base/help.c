/* Option tables as text: `--help` for a terminal of 80 columns, and a man page in roff's man macros; see options.h. */
#include "base/options.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 80 };

/* How much of a word that is longer than a line goes onto this one: up to its last comma or bar that has room. */
static size_t cut_word(const char *word, size_t n, size_t room) {
    for (size_t i = n < room ? n : room; i > 1; i--)
        if (word[i - 1] == ',' || word[i - 1] == '|') return i;
    return n;
}

/* Words of text filled into lines; `column` is where the cursor stands, later lines start at `indent`. A newline in the
 * text is a blank, a blank line a new paragraph. */
static void fill(hh_buf *out, const char *text, size_t column, size_t indent) {
    bool first = true;
    while (*text) {
        size_t blank = strspn(text, " \n");
        bool paragraph =
            !first && memchr(text, '\n', blank) && strstr(text, "\n\n") && strstr(text, "\n\n") < text + blank;
        text += blank;
        size_t n = strcspn(text, " \n");
        if (!n) break;
        if (paragraph || (!first && column + 1 + n > WIDTH)) {
            hh_buf_printf(out, "%s\n%*s", paragraph ? "\n" : "", (int)indent, "");
            column = indent;
        } else if (!first) {
            hh_buf_puts(out, " ");
            column++;
        }
        for (size_t part; column + n > WIDTH && (part = cut_word(text, n, WIDTH - column)) < n;
             n -= part, text += part) {
            hh_buf_add(out, text, part);
            hh_buf_printf(out, "\n%*s", (int)indent, "");
            column = indent;
        }
        hh_buf_add(out, text, n);
        column += n;
        text += n;
        first = false;
    }
    hh_buf_puts(out, "\n");
}

/* "default: 4", "default: fa|gdn ..."; "" when the value says nothing. */
static void default_text(const hh_option *o, char *out, size_t size) {
    *out = 0;
    switch (o->kind) {
    case HH_OPTION_INT:
        snprintf(out, size, "default: %lld", (long long)*(const int64_t *)o->value);
        break;
    case HH_OPTION_FLOAT:
        snprintf(out, size, "default: %.10g", *(const double *)o->value);
        break;
    case HH_OPTION_STRING:
    case HH_OPTION_CHOICE: {
        const char *text = *(const char *const *)o->value;
        if (text && *text) snprintf(out, size, "default: %s", text);
        break;
    }
    case HH_OPTION_LIST:
        snprintf(out, size, "may be given again");
        break;
    case HH_OPTION_FLAG:
        break;
    }
}

/* A choice between few words shows them where others show "N" or "FILE"; many are listed in the text. */
static bool shows_choices(const hh_option *o) {
    return o->kind == HH_OPTION_CHOICE && !o->argument && strlen(o->choices) <= 40;
}

static const char *argument_text(const hh_option *o) {
    if (shows_choices(o)) return o->choices;
    return o->argument ? o->argument : "WORD";
}

static void option_help(const hh_option *o, hh_buf *out) {
    char letter[8] = "    ", note[300];
    if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
    default_text(o, note, sizeof note);
    bool takes = o->kind != HH_OPTION_FLAG;
    char *head = hh_sprintf("  %s--%s%s%s", letter, o->name, takes ? " " : "", takes ? argument_text(o) : "");
    hh_buf text = {0};
    hh_buf_puts(&text, o->help);
    if (o->kind == HH_OPTION_CHOICE && !shows_choices(o)) hh_buf_printf(&text, " (%s)", o->choices);
    if (*note) hh_buf_printf(&text, " (%s)", note);
    size_t column = strlen(head), indent = 28;
    hh_buf_puts(out, head);
    if (column + 2 > indent) {
        hh_buf_printf(out, "\n%*s", (int)indent, "");
    } else {
        hh_buf_printf(out, "%*s", (int)(indent - column), "");
    }
    fill(out, text.data, indent, indent);
    hh_buf_release(&text);
    hh_free(head);
}

void hh_command_help(const hh_command *c, hh_buf *out) {
    hh_buf_printf(out, "hydrahead %s: ", c->verb);
    fill(out, c->summary, strlen("hydrahead : ") + strlen(c->verb), 2);
    hh_buf_printf(out, "\nUsage: hydrahead %s%s%s [options]\n\n", c->verb, *c->words ? " " : "", c->words);
    if (c->description && *c->description) {
        fill(out, c->description, 0, 0);
        hh_buf_puts(out, "\n");
    }
    hh_buf_puts(out, "Options:\n");
    for (const hh_option *o = c->options; o->name; o++) option_help(o, out);
    hh_buf_printf(out, "  -h, --help%*sthis text\n", 28 - 12, "");
    if (!c->example || !*c->example) return;
    hh_buf_puts(out, "\nExample:\n");
    for (const char *p = c->example; *p;) {
        size_t n = strcspn(p, "\n");
        hh_buf_printf(out, "  %.*s\n", (int)n, p);
        p += n + (p[n] == '\n');
    }
}

/* Text for roff: what would be a request or an escape is made harmless, a hyphen stays one. */
static void roff(hh_buf *out, const char *text, size_t n) {
    bool line_start = true;
    for (size_t i = 0; i < n; i++) {
        if (line_start && (text[i] == '.' || text[i] == '\'')) hh_buf_puts(out, "\\&");
        if (text[i] == '\\')
            hh_buf_puts(out, "\\e");
        else if (text[i] == '-')
            hh_buf_puts(out, "\\-");
        else
            hh_buf_add(out, text + i, 1);
        line_start = text[i] == '\n';
    }
}

static void roff_text(hh_buf *out, const char *text) {
    roff(out, text, strlen(text));
}

static void roff_paragraphs(hh_buf *out, const char *text) {
    for (const char *p = text; *p;) {
        const char *end = strstr(p, "\n\n");
        size_t n = end ? (size_t)(end - p) : strlen(p);
        roff(out, p, n);
        hh_buf_puts(out, "\n");
        p += n;
        while (*p == '\n') p++;
        if (*p) hh_buf_puts(out, ".PP\n");
    }
}

static void roff_option(hh_buf *out, const hh_option *o) {
    char note[300];
    default_text(o, note, sizeof note);
    hh_buf_puts(out, ".TP\n\\fB");
    if (o->letter) hh_buf_printf(out, "\\-%c\\fR, \\fB", o->letter);
    hh_buf_puts(out, "\\-\\-");
    roff_text(out, o->name);
    hh_buf_puts(out, "\\fR");
    if (o->kind != HH_OPTION_FLAG) {
        hh_buf_puts(out, " \\fI");
        roff_text(out, argument_text(o));
        hh_buf_puts(out, "\\fR");
    }
    hh_buf_puts(out, "\n");
    roff_text(out, o->help);
    if (o->kind == HH_OPTION_CHOICE && !shows_choices(o)) {
        hh_buf_puts(out, " (");
        roff_text(out, o->choices);
        hh_buf_puts(out, ")");
    }
    if (*note) {
        hh_buf_puts(out, " (");
        roff_text(out, note);
        hh_buf_puts(out, ")");
    }
    hh_buf_puts(out, "\n");
}

void hh_command_man(const hh_command *c, hh_buf *out) {
    char upper[64];
    snprintf(upper, sizeof upper, "%s", c->verb);
    for (char *p = upper; *p; p++) *p = (char)toupper((unsigned char)*p);
    hh_buf_printf(out, ".TH HYDRAHEAD\\-%s 1 \"\" hydrahead \"hydrahead manual\"\n.SH NAME\nhydrahead\\-%s \\- ", upper,
                  c->verb);
    roff_text(out, c->summary);
    hh_buf_printf(out, "\n.SH SYNOPSIS\n.B hydrahead %s\n", c->verb);
    if (*c->words) {
        roff_text(out, c->words);
        hh_buf_puts(out, "\n");
    }
    hh_buf_puts(out, "[\\fIoptions\\fR]\n");
    if (c->description && *c->description) {
        hh_buf_puts(out, ".SH DESCRIPTION\n");
        roff_paragraphs(out, c->description);
    }
    hh_buf_puts(out, ".SH OPTIONS\n");
    for (const hh_option *o = c->options; o->name; o++) roff_option(out, o);
    hh_buf_puts(out, ".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nA text like this one.\n");
    if (c->example && *c->example) {
        hh_buf_puts(out, ".SH EXAMPLES\n.EX\n");
        roff_text(out, c->example);
        hh_buf_puts(out, "\n.EE\n");
    }
    hh_buf_puts(out, ".SH EXIT STATUS\n0 done, 1 the work failed, 2 bad words on the command line.\n");
}
