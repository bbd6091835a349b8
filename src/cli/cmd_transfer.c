/* hydrahead transfer: probe, select, convert and the training stages, as one recipe says.
 *
 * A recipe's objects hold the options of the verbs of the same names, so a recipe can do what the verbs can, and nothing else needs
 * to know what their options are. Each verb runs in a child process (its option table is static), its command line is shown, and what
 * it leaves on disk is what the next one reads. A verb whose result stands is not run again; training continues by itself.
 */
#include "base/env.h"
#include "base/filemap.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "format/json.h"
#include "format/recipe.h"
#include "model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static const char *recipe_path = "fast", *out_dir = "";
static hh_words data;

static const hh_option options[] = {
    {.name = "recipe",
     .letter = 'r',
     .kind = HH_OPTION_STRING,
     .value = &recipe_path,
     .argument = "FILE",
     .help = "a recipe file, or the name of a shipped one: nano, fast, paper, paper-optimized"},
    {.name = "data",
     .letter = 'd',
     .kind = HH_OPTION_LIST,
     .value = &data,
     .argument = "FILE[=W]",
     .help = "text for all training stages, with its weight in the mixture; without any, the shipped book excerpt"},
    {.name = "out",
     .letter = 'o',
     .kind = HH_OPTION_STRING,
     .value = &out_dir,
     .argument = "DIR",
     .help = "where everything goes; the same command again continues there"},
    HH_CLI_COMMON_OPTIONS(common),
    {0}};
static const hh_command command = {
    .verb = "transfer",
    .summary = "probe, select, convert and train by one recipe, resumable as a whole",
    .words = "MODEL",
    .description = "Runs the verbs of a recipe one after another and shows each command line. DIR/probe holds "
                   "heads.json and heads.html, DIR/plan.json "
                   "the plan, DIR/hybrid the converted model, DIR/1-align, DIR/2-distill, ... the training stages; the "
                   "last is the result.\n\nA recipe is a "
                   "JSON object: \"probe\", \"select\" and \"convert\" hold options of these verbs, \"train\" is a "
                   "list of stages with options of train. "
                   "A \"probe\" of null keeps DIR/probe/heads.json as you put it there.",
    .example = "hydrahead transfer nano --recipe tests/cli/golden/tiny_recipe.json --out nano-transfer",
    .options = options,
    .min_words = 1,
    .max_words = 1};

typedef struct line {
    char **word; /* NULL ends it */
    int n;
} line;

static void add(line *l, const char *word) {
    l->word = hh_realloc(l->word, (size_t)(l->n + 2) * sizeof *l->word);
    l->word[l->n++] = hh_strdup(word);
    l->word[l->n] = NULL;
}

static void add_option(line *l, const char *name, const char *value) {
    char *option = hh_sprintf("--%s", name);
    add(l, option);
    if (value) add(l, value);
    hh_free(option);
}

static void release_line(line *l) {
    for (int i = 0; i < l->n; i++) hh_free(l->word[i]);
    hh_free(l->word);
    *l = (line){.n = 0};
}

static void take_option(void *context, const char *name, const char *value) {
    add_option(context, name, value);
}

static void add_common(line *l) {
    char number[32];
    snprintf(number, sizeof number, "%" PRId64, common.threads);
    if (common.device) add_option(l, "device", common.device);
    if (common.threads) add_option(l, "threads", number);
    snprintf(number, sizeof number, "%" PRId64, common.seed);
    if (common.seed) add_option(l, "seed", number);
    if (strcmp(common.dtype, "auto")) add_option(l, "dtype", common.dtype);
    if (common.quiet) add_option(l, "quiet", NULL);
}

static void show(const line *l) {
    fputs("hydrahead", stderr);
    for (int i = 0; i < l->n; i++) fprintf(stderr, strpbrk(l->word[i], " '\"$*") ? " '%s'" : " %s", l->word[i]);
    fputc('\n', stderr);
}

/* Runs one verb to its end in a child, which inherits Ctrl-C. */
static hh_code run_verb(hh_verb_fn *verb, const line *l, hh_error *err) {
    if (hh_interrupted()) return hh_fail(err, HH_ECANCELLED, "interrupted; the same command continues");
    show(l);
    fflush(stdout);
    fflush(stderr);
    pid_t child = fork();
    if (child < 0) return hh_fail(err, HH_EIO, "the system refuses a new process");
    if (child == 0) {
        int code = verb(l->n - 1, l->word + 1);
        fflush(stdout);
        _exit(code);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return HH_OK;
    if (hh_interrupted())
        return hh_fail(err, HH_ECANCELLED, "interrupted in %s; the same command continues", l->word[0]);
    const bool bad_words = WIFEXITED(status) && WEXITSTATUS(status) == 2;
    return hh_fail(err, bad_words ? HH_EINVAL : HH_EIO,
                   "%s ended with %s %d; what was done before stands in %s, and the same command continues", l->word[0],
                   WIFEXITED(status) ? "exit code" : "signal",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), out_dir);
}

static bool stands(const char *dir, const char *name) {
    char *path = hh_path_join(dir, name);
    bool there = hh_file_exists(path);
    hh_free(path);
    return there;
}

typedef struct paths {
    char *probe, *heads, *plan, *hybrid;
} paths;

static hh_code probe_step(const char *model, const json_t *recipe, const paths *p, hh_error *err) {
    if (hh_file_exists(p->heads)) return HH_OK;
    if (json_is_null(json_object_get(recipe, "probe")))
        return hh_fail(err, HH_EINVAL, "%s: \"probe\" is null and %s is not there; put the scores of a probe there",
                       recipe_path, p->heads);
    line l = {.n = 0};
    add(&l, "probe");
    add(&l, model);
    hh_recipe_options(json_object_get(recipe, "probe"), take_option, &l);
    add_option(&l, "out", p->probe);
    add_common(&l);
    hh_code code = run_verb(hh_cmd_probe, &l, err);
    release_line(&l);
    return code;
}

static hh_code select_step(const json_t *recipe, const paths *p, hh_error *err) {
    if (hh_file_exists(p->plan)) return HH_OK;
    line l = {.n = 0};
    add(&l, "select");
    add(&l, p->heads);
    hh_recipe_options(json_object_get(recipe, "select"), take_option, &l);
    add_option(&l, "out", p->plan);
    add_common(&l);
    hh_code code = run_verb(hh_cmd_select, &l, err);
    release_line(&l);
    return code;
}

static hh_code convert_step(const char *model, const json_t *recipe, const paths *p, hh_error *err) {
    if (stands(p->hybrid, "model.safetensors") && stands(p->hybrid, "config.json")) return HH_OK;
    line l = {.n = 0};
    add(&l, "convert");
    add(&l, model);
    hh_recipe_options(json_object_get(recipe, "convert"), take_option, &l);
    add_option(&l, "plan", p->plan);
    add_option(&l, "out", p->hybrid);
    add_option(&l, "force", NULL); /* what an interrupted run has left */
    add_common(&l);
    hh_code code = run_verb(hh_cmd_convert, &l, err);
    release_line(&l);
    return code;
}

/* One stage; `student` is the directory it starts from, and is replaced by the one it leaves. */
static hh_code train_step(const char *model, const json_t *stage, size_t index, char **student, hh_error *err) {
    const char *name = json_string_value(json_object_get(stage, "stage"));
    char *folder = hh_sprintf("%zu-%s", index + 1, name), *dir = hh_path_join(out_dir, folder);
    line l = {.n = 0};
    add(&l, "train");
    add(&l, *student);
    hh_recipe_options(stage, take_option, &l);
    if (!strcmp(name, "align") || !strcmp(name, "distill")) add_option(&l, "teacher", model);
    for (int64_t i = 0; i < data.n; i++) add_option(&l, "data", data.word[i]);
    add_option(&l, "out", dir);
    add_common(&l);
    hh_code code = run_verb(hh_cmd_train, &l, err);
    release_line(&l);
    hh_free(folder);
    hh_free(*student);
    *student = dir;
    return code;
}

/* The file, or the shipped recipe of that name: beside the shipped models. */
static hh_code find_recipe(char **out, hh_error *err) {
    *out = NULL;
    if (hh_file_exists(recipe_path) && !hh_is_directory(recipe_path)) {
        *out = hh_strdup(recipe_path);
        return HH_OK;
    }
    char *nano;
    HH_TRY(hh_model_locate(&nano, "nano", err));
    char *path = hh_sprintf("%s/../../recipes/%s.json", nano, recipe_path);
    hh_free(nano);
    if (hh_file_exists(path)) {
        *out = path;
        return HH_OK;
    }
    hh_free(path);
    return hh_fail(err, HH_EIO, "%s: no such recipe; shipped are nano, fast, paper and paper-optimized, or name a file",
                   recipe_path);
}

/* A directory continues one recipe on one model only. */
static hh_code check_begun(const char *model, const json_t *recipe, hh_error *err) {
    char *path = hh_path_join(out_dir, "recipe.json");
    json_t *now = json_pack("{s:s, s:O}", "model", model, "recipe", recipe), *begun = NULL;
    hh_code code = HH_OK;
    if (hh_file_exists(path)) {
        code = hh_json_read(&begun, path, (size_t)1 << 20, err);
        if (code == HH_OK && !json_equal(begun, now))
            code = hh_fail(err, HH_EINVAL, "%s was begun with another model or recipe (see %s); name another --out",
                           out_dir, path);
    } else {
        code = hh_json_write(path, json_incref(now), 0, err);
    }
    json_decref(now);
    json_decref(begun);
    hh_free(path);
    return code;
}

/* A mistyped name must not become what the directory was begun with. */
static hh_code check_model(const char *model, hh_error *err) {
    hh_config *c = hh_alloc(sizeof *c);
    hh_code code = hh_model_read_config(c, model, err);
    hh_free(c);
    return code;
}

static hh_code run_steps(const char *model, const json_t *recipe, const paths *p, hh_error *err) {
    const json_t *train = json_object_get(recipe, "train");
    if (data.n && !json_array_size(train))
        return hh_fail(err, HH_EINVAL, "--data has no effect: %s has no training stage", recipe_path);
    HH_TRY(check_model(model, err));
    HH_TRY(hh_make_directory(out_dir, err));
    HH_TRY(check_begun(model, recipe, err));
    HH_TRY(probe_step(model, recipe, p, err));
    HH_TRY(select_step(recipe, p, err));
    HH_TRY(convert_step(model, recipe, p, err));
    char *student = hh_strdup(p->hybrid);
    hh_code code = HH_OK;
    for (size_t i = 0; i < json_array_size(train) && code == HH_OK; i++)
        code = train_step(model, json_array_get(train, i), i, &student, err);
    if (code == HH_OK) printf("%s\n", student);
    hh_free(student);
    return code;
}

static hh_code transfer(const char *model, hh_error *err) {
    char *file;
    json_t *recipe = NULL;
    if (!*out_dir) return hh_fail(err, HH_EINVAL, "transfer needs --out DIR");
    HH_TRY(hh_cli_check_name(out_dir, err));
    HH_TRY(find_recipe(&file, err));
    recipe_path = file;
    hh_buf text = {0};
    hh_code code = hh_file_read(file, (size_t)1 << 20, &text, err);
    if (code == HH_OK) code = hh_recipe_parse(&recipe, file, text.data, text.len, err);
    hh_buf_release(&text);
    paths p = {.probe = hh_path_join(out_dir, "probe"),
               .plan = hh_path_join(out_dir, "plan.json"),
               .hybrid = hh_path_join(out_dir, "hybrid")};
    p.heads = hh_path_join(p.probe, "heads.json");
    if (code == HH_OK) code = run_steps(model, recipe, &p, err);
    char *const owned[] = {p.probe, p.plan, p.hybrid, p.heads, file};
    for (int i = 0; i < 5; i++) hh_free(owned[i]);
    json_decref(recipe);
    return code;
}

int hh_cmd_transfer(int argc, char **argv) {
    hh_words words;
    int code;
    hh_error err = {0};
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_code done = transfer(words.word[0], &err);
    hh_words_release(&words);
    hh_words_release(&data);
    return done == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
