/* Command-line options as tables. One table feeds parsing, `--help`, the man page and the docs test.
 *
 * A verb's command describes its words; hh_options_parse fills the variables the table points at. Both `--name value`
 * and
 * `--name=value` are taken; `--` ends options; an unknown option is refused with the nearest known one.
 */
#ifndef HH_BASE_OPTIONS_H
#define HH_BASE_OPTIONS_H

#include "base/memory.h"

typedef enum hh_option_kind {
    HH_OPTION_FLAG,   /* bool *   */
    HH_OPTION_INT,    /* int64_t *, with [min, max] */
    HH_OPTION_FLOAT,  /* double *, with [min, max] */
    HH_OPTION_STRING, /* const char ** */
    HH_OPTION_LIST,   /* hh_words *: may be given several times */
    HH_OPTION_CHOICE, /* const char **: one of `choices`, separated by '|' */
} hh_option_kind;

typedef struct hh_words {
    const char **word;
    int64_t n;
} hh_words;

typedef struct hh_option {
    const char *name; /* "threads" for --threads; NULL ends the table */
    char letter;      /* 'o' for -o, or 0 */
    hh_option_kind kind;
    void *value;          /* its initial content is the default and is printed by --help */
    const char *argument; /* "N", "FILE", ... */
    const char *help;     /* one sentence */
    double min, max;      /* INT, FLOAT: both 0: any */
    const char *choices;  /* CHOICE */
} hh_option;

typedef struct hh_command {
    const char *verb;        /* "probe" */
    const char *summary;     /* one line for the list of verbs */
    const char *words;       /* "MODEL [MODEL ...]" */
    const char *description; /* paragraphs for --help and the man page */
    const char *
        example; /* command lines, one a line, that work as they stand from the repository's root; the tests run them */
    const hh_option *options;
    int min_words, max_words; /* max -1: any number */
} hh_command;

/* Parses argv after the verb. HH_EINVAL with a sentence on bad words. *help is set (and nothing else checked) when
 * --help or -h is there. */
hh_code hh_options_parse(const hh_command *c, int argc, char **argv, hh_words *words, bool *help, hh_error *err);
void hh_words_release(hh_words *w);
void hh_command_help(const hh_command *c, hh_buf *out); /* plain text, 80 columns */
void hh_command_man(const hh_command *c, hh_buf *out);  /* roff */

/* An option that other words of the line make useless, unless `used`; `why` also says what to do. */
typedef struct hh_option_use {
    const char *option; /* without dashes; NULL ends the list */
    bool used;
    const char *why;
} hh_option_use;

/* HH_EINVAL, "--NAME has no effect WHERE: WHY", for the first option of the list that is on the line and not used. */
hh_code hh_options_check_use(const hh_command *c, int argc, char **argv, const hh_option_use *use, const char *where,
                             hh_error *err);

/* Edit distance of two short names, for "did you mean". */
int hh_word_distance(const char *a, const char *b);

/* "1024,4096" -> numbers; "a,b" -> words. The error names the option. */
hh_code hh_parse_int_list(const char *option, const char *text, int64_t **out, int64_t *n, hh_error *err);
hh_code hh_parse_word_list(const char *text, hh_words *out); /* words point into one block owned by out */

#endif
