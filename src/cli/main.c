/* The program: finds the verb, and shows what the verbs' own tables say (help, man pages, shell completion, examples).
 */
#include "cli/cli.h"
#include "base/env.h"
#include "base/progress.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct verb {
    const char *name;
    hh_verb_fn *run;
} verb;

static const verb verbs[] = {
#define HH_VERB(name) {#name, hh_cmd_##name},
#include "cli/verbs.def"
#undef HH_VERB
};
enum { N_VERBS = sizeof verbs / sizeof verbs[0] };

/* What hh_cli_parse prints of a table when a verb is called with --help. */
static enum {
    SHOW_HELP,
    SHOW_MAN,
    SHOW_SUMMARY,
    SHOW_ROFF_SUMMARY,
    SHOW_OPTIONS,
    SHOW_TABLE,
    SHOW_EXAMPLES
} show = SHOW_HELP;

/* "verb, summary", then a line an option, "name, letter, argument, choices, help" behind a tab, all between tabs. */
static void add_table(hh_buf *text, const hh_command *c) {
    hh_buf_printf(text, "%s\t%s\n", c->verb, c->summary);
    for (const hh_option *o = c->options; o->name; o++) {
        const char letter[] = {o->letter, 0}, *argument = o->kind == HH_OPTION_FLAG ? "" : "WORD";
        if (o->argument) argument = o->argument;
        hh_buf_printf(text, "\t%s\t%s\t%s\t%s\t", o->name, letter, argument, o->choices ? o->choices : "");
        for (const char *h = o->help; *h; h++) hh_buf_add(text, *h == '\n' || *h == '\t' ? " " : h, 1);
        hh_buf_puts(text, "\n");
    }
}

static void print_table(const hh_command *c) {
    hh_buf text = {0};
    switch (show) {
    case SHOW_HELP:
        hh_command_help(c, &text);
        break;
    case SHOW_MAN:
        hh_command_man(c, &text);
        break;
    case SHOW_SUMMARY:
        hh_buf_printf(&text, "  %-10s %s\n", c->verb, c->summary);
        break;
    case SHOW_ROFF_SUMMARY:
        hh_buf_printf(&text, ".TP\n.BR hydrahead\\-%s (1)\n%s\n", c->verb, c->summary);
        break;
    case SHOW_OPTIONS:
        for (const hh_option *o = c->options; o->name; o++) hh_buf_printf(&text, "--%s\n", o->name);
        hh_buf_puts(&text, "--help\n");
        break;
    case SHOW_TABLE:
        add_table(&text, c);
        break;
    case SHOW_EXAMPLES:
        hh_buf_printf(&text, "%s\n", c->example ? c->example : "");
        break;
    }
    fputs(text.data, stdout);
    hh_buf_release(&text);
}

bool hh_cli_parse(const hh_command *c, int argc, char **argv, hh_words *words, int *code) {
    hh_error err = {0};
    bool help;
    *code = 0;
    if (hh_options_parse(c, argc, argv, words, &help, &err) != HH_OK) {
        *code = hh_cli_fail(&err);
        return false;
    }
    if (!help) {
        for (const hh_option *o = c->options; o->name; o++)
            if (strcmp(o->name, "quiet") == 0 && o->kind == HH_OPTION_FLAG)
                hh_progress_silence(*(const bool *)o->value);
        return true;
    }
    print_table(c);
    *code = hh_cli_done();
    return false;
}

int hh_cli_fail(const hh_error *err) {
    fflush(stdout);
    fprintf(stderr, "hydrahead: %s\n", err->text);
    return err->code == HH_EINVAL ? 2 : 1;
}

int hh_cli_done(void) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    fprintf(stderr, "hydrahead: standard output could not be written: %s\n",
            errno ? strerror(errno) : "some of it was lost before the end");
    return 1;
}

static const verb *find_verb(const char *name) {
    for (int i = 0; i < N_VERBS; i++)
        if (strcmp(verbs[i].name, name) == 0) return &verbs[i];
    return NULL;
}

static int show_verb(const verb *v) {
    char help[] = "--help";
    return v->run(1, (char *[]){help, NULL});
}

static int fail_verb(const char *name) {
    const char *best = NULL;
    int nearest = 3;
    for (int i = 0; i < N_VERBS; i++) {
        const int d = hh_word_distance(name, verbs[i].name);
        if (d < nearest && 2 * (size_t)d < strlen(name)) nearest = d, best = verbs[i].name;
    }
    if (!strcmp(name, "nano") || access(name, F_OK) == 0)
        fprintf(stderr,
                "hydrahead: '%s' stands where a verb should; for a model: hydrahead run %s; `hydrahead help` lists "
                "all verbs\n",
                name, name);
    else if (best)
        fprintf(stderr, "hydrahead: there is no verb '%s'; did you mean %s? `hydrahead help` lists all\n", name, best);
    else
        fprintf(stderr, "hydrahead: there is no verb '%s'; `hydrahead help` lists them\n", name);
    return 2;
}

static int list_verbs(void) {
    puts("hydrahead finds the attention heads that retrieval depends on, keeps full attention\n"
         "only there, and turns the others into Gated DeltaNet.\n\n"
         "Usage: hydrahead VERB [words] [options]\n\nVerbs:");
    int code = 0;
    show = SHOW_SUMMARY;
    for (int i = 0; i < N_VERBS; i++) code |= show_verb(&verbs[i]);
    puts("\n`hydrahead VERB --help` says more about one, `hydrahead help --man VERB` is its man page.");
    return code | hh_cli_done();
}

/* The program's own man page; the verbs have theirs. */
static int print_main_page(void) {
    puts(".TH HYDRAHEAD 1 \"\" hydrahead \"hydrahead manual\"\n.SH NAME\nhydrahead \\- full attention only where "
         "retrieval "
         "needs it\n.SH SYNOPSIS\n.B hydrahead\n\\fIVERB\\fR [\\fIwords\\fR] [\\fIoptions\\fR]\n.SH DESCRIPTION\n"
         "Takes a pretrained Transformer, finds the attention heads that retrieval depends on by causal intervention,\n"
         "keeps full attention only there, turns the others into Gated DeltaNet, trains the hybrid back to its "
         "teacher,\n"
         "and measures both.\n.SH VERBS");
    show = SHOW_ROFF_SUMMARY;
    int code = 0;
    for (int i = 0; i < N_VERBS; i++) code |= show_verb(&verbs[i]);
    puts(".SH ENVIRONMENT\n.TP\nHYDRAHEAD_CHECK=nan\nlooks through every result for values that are not finite, and "
         "names the "
         "first; =cpu computes every operation twice, on the device and on the CPU, and names the first "
         "that differs; =cuda waits for the GPU after every operation, so that a fault names it.\n.TP\n"
         "HYDRAHEAD_TRACE\na file for every operation with its shapes and its time, as a Chrome trace.\n.TP\n"
         "HYDRAHEAD_DEVICE\nwhere to compute when --device does not say: cpu, cuda, or "
         "cuda:N.\n.TP\nHYDRAHEAD_ISA\nreference, avx2, avx512 or avx512_vnni: CPU kernels instead of the best there "
         "are.\n.TP\n"
         "HYDRAHEAD_MODELS\nthe directory that holds nano, the shipped model.\n.TP\nNO_COLOR\nno colours in the "
         "terminal.\n"
         ".SH EXIT STATUS\n0 done, 1 the work failed, 2 bad words on the command line.");
    return code | hh_cli_done();
}

static int print_version(void) {
    puts("hydrahead " HH_VERSION);
    return hh_cli_done();
}

/* help [--man|--options|--table|--examples] [VERB]; --verbs prints the bare names, for scripts and completion. */
static int run_help(int argc, char **argv) {
    const char *name = NULL;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--man") == 0)
            show = SHOW_MAN;
        else if (strcmp(argv[i], "--options") == 0)
            show = SHOW_OPTIONS;
        else if (strcmp(argv[i], "--table") == 0)
            show = SHOW_TABLE;
        else if (strcmp(argv[i], "--examples") == 0)
            show = SHOW_EXAMPLES;
        else if (strcmp(argv[i], "--verbs") == 0) {
            for (int v = 0; v < N_VERBS; v++) puts(verbs[v].name);
            return hh_cli_done();
        } else if (argv[i][0] == '-' || name) {
            fprintf(stderr, "hydrahead: help takes one verb, and --man, --options, --table, --examples or --verbs\n");
            return 2;
        } else {
            name = argv[i];
        }
    }
    if (!name) return show == SHOW_MAN ? print_main_page() : list_verbs();
    const verb *v = find_verb(name);
    return v ? show_verb(v) : fail_verb(name);
}

int main(int argc, char **argv) {
    hh_error err = {0};
    if (hh_env_check(&err) != HH_OK) return hh_cli_fail(&err);
    if (argc < 2) return list_verbs() ? 1 : 2;
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return run_help(argc - 2, argv + 2);
    if (strcmp(name, "version") == 0 || strcmp(name, "--version") == 0) return print_version();
    const verb *v = find_verb(name);
    if (!v) return fail_verb(name);
    if (hh_env_get()->processes > 1 && v->run != hh_cmd_train) {
        fprintf(stderr, "hydrahead: %s is work for one process; start it without the launcher\n", name);
        return 2;
    }
    hh_interrupt_install();
    return v->run(argc - 2, argv + 2);
}
