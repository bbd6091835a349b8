/* hydrahead demo: the whole job on the shipped model, live. */
#include "base/env.h"
#include "base/filemap.h"
#include "cli/cli.h"
#include "demo/demo.h"

#include <stdio.h>
#include <unistd.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static hh_demo_options o;
static bool json;

static const hh_option options[] = {{.name = "out",
                                     .letter = 'o',
                                     .kind = HH_OPTION_STRING,
                                     .value = &o.out_dir,
                                     .argument = "DIR",
                                     .help = "folder of the report, the plans, both hybrids and summary.json"},
                                    {.name = "samples",
                                     .letter = 'n',
                                     .kind = HH_OPTION_INT,
                                     .value = &o.samples,
                                     .argument = "N",
                                     .min = 1,
                                     .max = 10000,
                                     .help = "needles at each length"},
                                    {.name = "heads",
                                     .kind = HH_OPTION_INT,
                                     .value = &o.heads,
                                     .argument = "N",
                                     .min = 1,
                                     .max = 16,
                                     .help = "heads that keep full attention"},
                                    {.name = "align-steps",
                                     .kind = HH_OPTION_INT,
                                     .value = &o.align_steps,
                                     .argument = "N",
                                     .min = 1,
                                     .max = 1e6,
                                     .help = "steps of alignment"},
                                    {.name = "distill-steps",
                                     .kind = HH_OPTION_INT,
                                     .value = &o.distill_steps,
                                     .argument = "N",
                                     .min = 1,
                                     .max = 1e6,
                                     .help = "steps of distillation"},
                                    {.name = "rounds",
                                     .kind = HH_OPTION_INT,
                                     .value = &o.rounds,
                                     .argument = "N",
                                     .min = 1,
                                     .max = 20,
                                     .help = "of distillation at most: each doubles the steps, while the hybrid finds "
                                             "less than its teacher at the trained length"},
                                    HH_CLI_JSON_OPTION(json),
                                    HH_CLI_COMMON_OPTIONS(common),
                                    {0}};
static const hh_command command = {
    .verb = "demo",
    .summary = "the whole job on the shipped model, in minutes, on this machine",
    .words = "",
    .description = "Finds the heads of the small teacher `nano` that retrieval depends "
                   "on, keeps full attention in four of its 32 heads, turns the others "
                   "into Gated DeltaNet, trains the hybrid back to the teacher, and "
                   "looks for needles at 1, 4 and 16 times the trained length: "
                   "for the teacher, for this hybrid, and for a control that keeps as "
                   "many other heads and trains on the same batches. Ends with "
                   "the path of a report.",
    .example = "hydrahead demo --samples 1 --align-steps 1 --distill-steps 1 --rounds 1 --out demo-out",
    .options = options,
    .min_words = 0,
    .max_words = 0};

static void say(const char *text) {
    FILE *to = json ? stderr : stdout;
    fprintf(to, "%s\n", text);
    fflush(to);
}

static hh_code print_result(const hh_demo *d, hh_error *err) {
    char *path = hh_path_join(o.out_dir, json ? "summary.json" : "report.html");
    hh_buf text = {0};
    hh_code code = HH_OK;
    if (json) {
        code = hh_file_read(path, (size_t)1 << 24, &text, err);
    } else {
        hh_demo_table(d, false, &text);
        hh_buf_puts(&text, "\n");
        hh_demo_sentences(d, &text);
        hh_buf_printf(&text, "%.0f seconds. Report: %s\n", d->seconds, path);
    }
    if (code == HH_OK) fputs(text.data, stdout);
    hh_buf_release(&text);
    hh_free(path);
    return code;
}

int hh_cmd_demo(int argc, char **argv) {
    hh_words words;
    int code;
    hh_error err = {0};
    o = hh_demo_defaults();
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_words_release(&words);
    o.seed = (uint64_t)common.seed;
    o.color = hh_color_wanted(STDOUT_FILENO);
    hh_backend *be = NULL;
    hh_demo d = {.be = NULL};
    hh_code failed = hh_cli_backend(&common, &be, &err);
    if (failed == HH_OK) failed = hh_demo_run(&d, be, &o, say, &err);
    if (failed == HH_OK) failed = hh_demo_write(&d, &err);
    if (failed == HH_OK) failed = print_result(&d, &err);
    hh_demo_release(&d);
    hh_backend_close(be);
    return failed != HH_OK ? hh_cli_fail(&err) : hh_cli_done();
}
