/* Option tables: parsing; see options.h. How they are shown is in help.c. */
#include "base/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hh_words_release(hh_words *w) {
    hh_free(w->word);
    *w = (hh_words){0};
}

static void add_word(hh_words *w, const char *word) {
    w->word = hh_realloc(w->word, (size_t)(w->n + 1) * sizeof *w->word);
    w->word[w->n++] = word;
}

int hh_word_distance(const char *a, const char *b) {
    enum { MAX = 40 };
    int row[MAX + 1];
    size_t n = strlen(b);
    if (n > MAX || strlen(a) > MAX) return MAX;
    for (size_t j = 0; j <= n; j++) row[j] = (int)j;
    for (int i = 1; *a; a++, i++) {
        int diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            int change = diagonal + (*a != b[j - 1]), shorter = row[j] + 1, longer = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = change < shorter ? change : shorter;
            if (longer < row[j]) row[j] = longer;
        }
    }
    return row[n];
}

/* "ctx" of "context": its letters in their order, from the first on. */
static bool shortens(const char *name, const char *of) {
    if (*name != *of || strlen(name) < 3) return false;
    for (; *name && *of; of++) name += *name == *of;
    return !*name;
}

/* How far an option is from a name that is none: 4 and more is another thing. The beginning of its name, its letters, and
 * the same first word ("max-tokens", "max-new") are near; a short name has little to be recognised by. */
static int distance_to(const char *name, const char *option) {
    const size_t first = strcspn(name, "-_") + 1;
    if (strncmp(option, name, strlen(name)) == 0) return 1;
    if (shortens(name, option)) return 2;
    const int d = hh_word_distance(name, option);
    if (2 * (size_t)d < strlen(name)) return d;
    return first < strlen(name) && strncmp(option, name, first - 1) == 0 && option[first - 1] == '-' ? 3 : 4;
}

static hh_code fail_unknown(const hh_command *c, const char *name, bool letter, hh_error *err) {
    const hh_option *best = NULL;
    int nearest = 4;
    for (const hh_option *o = c->options; o->name && !letter; o++) {
        const int d = distance_to(name, o->name);
        if (d < nearest) nearest = d, best = o;
    }
    const char *dashes = letter ? "-" : "--";
    if (best)
        return hh_fail(err, HH_EINVAL, "%s has no option %s%s; did you mean --%s?", c->verb, dashes, name, best->name);
    return hh_fail(err, HH_EINVAL, "%s has no option %s%s; `hydrahead %s --help` lists them", c->verb, dashes, name,
                   c->verb);
}

static hh_code fail_range(const hh_option *o, const char *text, hh_error *err) {
    if (o->min == 0 && o->max == 0)
        return hh_fail(err, HH_EINVAL, "--%s %s: %s is needed", o->name, text,
                       o->kind == HH_OPTION_INT ? "a whole number" : "a number");
    if (o->max >= 1e15)
        return hh_fail(err, HH_EINVAL, "--%s %s: a%s number of at least %.10g is needed", o->name, text,
                       o->kind == HH_OPTION_INT ? " whole" : "", o->min);
    return hh_fail(err, HH_EINVAL, "--%s %s: a%s number from %.15g to %.15g is needed", o->name, text,
                   o->kind == HH_OPTION_INT ? " whole" : "", o->min, o->max);
}

static bool in_range(const hh_option *o, double x) {
    return (o->min == 0 && o->max == 0) || (x >= o->min && x <= o->max);
}

/* strtoll and strtod take leading blanks; a value that starts with one was quoted by mistake. */
static bool starts_number(const char *s) {
    return *s && !strchr(" \t\n\v\f\r", *s);
}

static hh_code set_number(const hh_option *o, const char *text, hh_error *err) {
    char *end;
    errno = 0;
    if (o->kind == HH_OPTION_INT) {
        long long n = strtoll(text, &end, 10);
        if (!starts_number(text) || *end || errno || !in_range(o, (double)n)) return fail_range(o, text, err);
        *(int64_t *)o->value = n;
    } else {
        double x = strtod(text, &end);
        if (!starts_number(text) || *end || !isfinite(x) || !in_range(o, x)) return fail_range(o, text, err);
        *(double *)o->value = x;
    }
    return HH_OK;
}

static hh_code set_choice(const hh_option *o, const char *text, hh_error *err) {
    size_t n = strlen(text);
    for (const char *c = o->choices; n; c++) {
        size_t length = strcspn(c, "|");
        if (length == n && memcmp(c, text, n) == 0) {
            *(const char **)o->value = text;
            return HH_OK;
        }
        c += length;
        if (!*c) break;
    }
    return hh_fail(err, HH_EINVAL, "--%s %s: it may be %s", o->name, text, o->choices);
}

static hh_code set_value(const hh_option *o, const char *text, hh_error *err) {
    switch (o->kind) {
    case HH_OPTION_FLAG:
        *(bool *)o->value = true;
        return HH_OK;
    case HH_OPTION_INT:
    case HH_OPTION_FLOAT:
        return set_number(o, text, err);
    case HH_OPTION_STRING:
        *(const char **)o->value = text;
        return HH_OK;
    case HH_OPTION_LIST:
        add_word(o->value, text);
        return HH_OK;
    case HH_OPTION_CHOICE:
        return set_choice(o, text, err);
    }
    HH_ASSERT(!"an option of a known kind");
    return HH_EINVAL;
}

/* One step of walking a command line: an option with its value, a word, or "--". */
typedef struct item {
    const hh_option *option; /* NULL: a word */
    const char *text;        /* the word, or the option's value, or NULL when the line ends before it */
    bool has_equals, unknown, letter, ends_options, help;
    const char *name; /* as written, for errors; points into name_copy for --name=value */
    char name_copy[64];
    int used; /* arguments taken */
} item;

static const hh_option *find_option(const hh_command *c, const char *name, char letter) {
    for (const hh_option *o = c->options; o->name; o++)
        if (name ? strcmp(o->name, name) == 0 : (o->letter && o->letter == letter)) return o;
    return NULL;
}

static void take_item(const hh_command *c, int argc, char **argv, int at, item *it) {
    const char *arg = argv[at], *value = NULL;
    *it = (item){.text = arg, .used = 1};
    if (arg[0] != '-' || !arg[1]) return; /* a word; "-" is one too */
    if (arg[1] == '-') {
        const char *equals = strchr(arg, '=');
        snprintf(it->name_copy, sizeof it->name_copy, "%.*s", equals ? (int)(equals - arg - 2) : 63, arg + 2);
        it->ends_options = !arg[2];
        it->has_equals = equals != NULL;
        it->option = find_option(c, it->name_copy, 0);
        value = equals ? equals + 1 : NULL;
    } else {
        snprintf(it->name_copy, sizeof it->name_copy, "%c", arg[1]);
        it->letter = true;
        it->option = find_option(c, NULL, arg[1]);
        value = arg[2] ? arg + 2 : NULL;
        it->has_equals = value != NULL;
    }
    it->name = it->name_copy;
    it->help = !it->option && (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0);
    it->unknown = !it->option && !it->help && !it->ends_options;
    if (it->option && it->option->kind != HH_OPTION_FLAG && !value) {
        value = at + 1 < argc ? argv[at + 1] : NULL;
        it->used = 2;
    }
    it->text = value;
}

static hh_code check_words(const hh_command *c, const hh_words *words, hh_error *err) {
    if (words->n < c->min_words)
        return hh_fail(err, HH_EINVAL, "something is missing: hydrahead %s%s%s; `hydrahead %s --help` says more",
                       c->verb, *c->words ? " " : "", c->words, c->verb);
    if (c->max_words >= 0 && words->n > c->max_words)
        return hh_fail(err, HH_EINVAL, "'%s' is one word too many: hydrahead %s%s%s; %s", words->word[c->max_words],
                       c->verb, *c->words ? " " : "", c->words,
                       c->max_words > c->min_words ? "a text of several words stands in quotes"
                                                   : "options tell the rest, see --help");
    return HH_OK;
}

static hh_code use_item(const hh_command *c, const item *it, hh_words *words, hh_error *err) {
    if (it->unknown) return fail_unknown(c, it->name, it->letter, err);
    if (!it->option) {
        add_word(words, it->text);
        return HH_OK;
    }
    if (it->option->kind == HH_OPTION_FLAG && it->has_equals)
        return hh_fail(err, HH_EINVAL, "--%s takes no value", it->option->name);
    if (it->option->kind != HH_OPTION_FLAG && !it->text)
        return hh_fail(err, HH_EINVAL, "--%s needs a value: --%s %s", it->option->name, it->option->name,
                       it->option->argument);
    return set_value(it->option, it->text, err);
}

hh_code hh_options_parse(const hh_command *c, int argc, char **argv, hh_words *words, bool *help, hh_error *err) {
    *words = (hh_words){0};
    *help = false;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || (strcmp(argv[i], "-h") == 0 && !find_option(c, NULL, 'h'))) *help = true;
    if (*help) return HH_OK;
    hh_code code = HH_OK;
    bool only_words = false;
    for (int i = 0; code == HH_OK && i < argc;) {
        item it;
        take_item(c, argc, argv, i, &it);
        if (only_words) {
            add_word(words, argv[i++]);
        } else {
            only_words = it.ends_options;
            if (!only_words) code = use_item(c, &it, words, err);
            i += it.used;
        }
    }
    if (code == HH_OK) code = check_words(c, words, err);
    if (code != HH_OK) hh_words_release(words);
    return code;
}

static bool is_given(const hh_command *c, const hh_option *option, int argc, char **argv) {
    for (int i = 0; i < argc;) {
        item it;
        take_item(c, argc, argv, i, &it);
        if (it.ends_options) return false;
        if (it.option == option) return true;
        i += it.used;
    }
    return false;
}

hh_code hh_options_check_use(const hh_command *c, int argc, char **argv, const hh_option_use *use, const char *where,
                             hh_error *err) {
    for (; use->option; use++) {
        const hh_option *option = find_option(c, use->option, 0);
        HH_ASSERT(option);
        if (!use->used && is_given(c, option, argc, argv))
            return hh_fail(err, HH_EINVAL, "--%s has no effect %s: %s", use->option, where, use->why);
    }
    return HH_OK;
}

hh_code hh_parse_int_list(const char *option, const char *text, int64_t **out, int64_t *n, hh_error *err) {
    int64_t count = 1;
    for (const char *p = text; *p; p++) count += *p == ',';
    int64_t *list = hh_alloc((size_t)count * sizeof *list);
    *out = NULL;
    *n = 0;
    const char *p = text;
    for (int64_t i = 0; i < count; i++, p++) {
        char *end;
        errno = 0;
        list[i] = strtoll(p, &end, 10);
        if (!starts_number(p) || end == p || errno || (*end && *end != ',')) {
            hh_free(list);
            return hh_fail(err, HH_EINVAL, "--%s %s: whole numbers with commas between them are needed", option, text);
        }
        p = end;
    }
    *out = list;
    *n = count;
    return HH_OK;
}

hh_code hh_parse_word_list(const char *text, hh_words *out) {
    size_t count = 1, length = strlen(text) + 1;
    for (const char *p = text; *p; p++) count += *p == ',';
    char *block = hh_alloc(count * sizeof(char *) + length); /* the pointers, then the text they point into */
    char *copy = memcpy(block + count * sizeof(char *), text, length);
    *out = (hh_words){.word = (const char **)(void *)block};
    for (char *p = copy; p;) {
        char *comma = strchr(p, ',');
        if (comma) *comma++ = 0;
        if (*p) out->word[out->n++] = p;
        p = comma;
    }
    return HH_OK;
}
