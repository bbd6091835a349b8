/* hydrahead eval: needle tasks, choice items, perplexity and answers, several models side by side. */
#include "base/env.h"
#include "base/filemap.h"
#include "cli/cli.h"
#include "data/corpus.h"
#include "eval/generate.h"
#include "eval/perplexity.h"
#include "eval/ruler.h"
#include "eval/score_choice.h"
#include "eval/summary.h"
#include "format/json.h"
#include "report/report.h"
#include "tensor/backend.h"

#include <stdio.h>
#include <string.h>

static hh_cli_common common = {.dtype = "auto", .seed = 42};
static const char *tasks = "niah_single_1,niah_single_2,niah_single_3,niah_multikey_1,niah_multikey_2,niah_multikey_3,"
                           "niah_multivalue,niah_multiquery";
static const char *lengths = "1024,4096", *json_file, *html_file, *haystack, *summary_file, *rope, *kv = "auto";
static int64_t samples = 16, length, limit, max_new = 128;
static hh_words files;
static bool items, anywhere;

static const hh_option options[] = {
    {.name = "tasks",
     .kind = HH_OPTION_STRING,
     .value = &tasks,
     .argument = "LIST",
     .help = "ruler: task names with commas between; beside RULER's eight there is niah_book, with keys and values "
             "that needle training never uses"},
    {.name = "lengths",
     .kind = HH_OPTION_STRING,
     .value = &lengths,
     .argument = "LIST",
     .help = "ruler: tokens of prompt and answer, with commas between"},
    {.name = "samples",
     .letter = 'n',
     .kind = HH_OPTION_INT,
     .value = &samples,
     .argument = "N",
     .min = 1,
     .max = 1e6,
     .help = "ruler: samples of each task and length"},
    {.name = "haystack",
     .kind = HH_OPTION_STRING,
     .value = &haystack,
     .argument = "FILE",
     .help = "ruler: text for essay haystacks, plain or .gz (default: the shipped book excerpt)"},
    {.name = "haystack-anywhere",
     .kind = HH_OPTION_FLAG,
     .value = &anywhere,
     .help = "ruler: every sample's essay begins at a place of its own, so that the error bar has the text in it; "
             "RULER's all begin at the first word"},
    {.name = "file",
     .letter = 'f',
     .kind = HH_OPTION_LIST,
     .value = &files,
     .argument = "FILE",
     .help = "choice, generate: a JSONL file; perplexity: a text, plain or .gz"},
    {.name = "length",
     .letter = 'l',
     .kind = HH_OPTION_INT,
     .value = &length,
     .argument = "N",
     .min = 0,
     .max = 1e8,
     .help =
         "choice, perplexity: tokens of a context or window; 0 is the model's own length (perplexity: at most 2048)"},
    {.name = "limit",
     .kind = HH_OPTION_INT,
     .value = &limit,
     .argument = "N",
     .min = 0,
     .max = 1e9,
     .help = "at most the first N items, windows or prompts of a file; 0 is all"},
    {.name = "max-new",
     .kind = HH_OPTION_INT,
     .value = &max_new,
     .argument = "N",
     .min = 1,
     .max = 1e6,
     .help = "generate: tokens of an answer at most"},
    {.name = "items",
     .kind = HH_OPTION_FLAG,
     .value = &items,
     .help = "choice: write every item's log-likelihoods into the JSON file too"},
    {.name = "json",
     .letter = 'o',
     .kind = HH_OPTION_STRING,
     .value = &json_file,
     .argument = "FILE",
     .help = "write results here; a ruler evaluation that was stopped goes on from FILE.partial"},
    {.name = "html",
     .kind = HH_OPTION_STRING,
     .value = &html_file,
     .argument = "FILE",
     .help = "write a page here (default: beside the JSON file)"},
    {.name = "summary",
     .kind = HH_OPTION_STRING,
     .value = &summary_file,
     .argument = "FILE",
     .help = "ruler, choice, perplexity: add the figures to this file, which gathers those of many runs"},
    {.name = "rope-scaling",
     .kind = HH_OPTION_STRING,
     .value = &rope,
     .argument = "KIND:F",
     .help = "stretch the positions of all models: yarn:4 or linear:4 for four times their own length"},
    {.name = "kv",
     .kind = HH_OPTION_STRING,
     .value = &kv,
     .argument = "LIST",
     .help = "types of the KV cache, auto, f32, bf16 or q8_0, with commas between: every model is measured with each; "
             "auto is bf16, or f32 with --dtype f32"},
    HH_CLI_COMMON_OPTIONS(common),
    {0}};

static const hh_command command = {
    .verb = "eval",
    .summary = "needle tasks, choice items, perplexity, answers; several models side by side",
    .words = "ruler|choice|perplexity|generate [NAME=]MODEL [[NAME=]MODEL ...]",
    .description =
        "ruler: RULER's needle tasks with its own wording and random draws; the score is the share of "
        "values found in greedy answers. "
        "Essays are book text, so that figures are not comparable with published ones.\n\n"
        "choice: items of {\"query\", \"choices\", \"gold\"}, {\"context_options\", \"continuation\", "
        "\"gold\"} or {\"context\", \"continuation\"} by "
        "log-likelihood: acc, acc_norm (a character), acc_bytes (a byte), or greedy match and perplexity, "
        "as lm-evaluation-harness defines them.\n\n"
        "perplexity: of a text in windows that do not overlap; the first token of each is not scored.\n\n"
        "generate: greedy answers to {\"prompt\"} lines; with {\"answers\"}, the share found in the text.\n\n"
        "Results are kept under the model's path, or under NAME.",
    .example = "hydrahead eval ruler nano --tasks niah_single_2,niah_book --lengths 256 --samples 4\n"
               "hydrahead eval perplexity nano --file models/nano/text_valid.txt.gz --length 256 --limit 20\n"
               "hydrahead eval ruler nano --tasks niah_book --lengths 256 --samples 8 --kv auto,q8_0",
    .options = options,
    .min_words = 2,
    .max_words = -1};

/* "dir/arc_easy.jsonl" -> "arc_easy". */
static char *stem(const char *path) {
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    size_t len = strcspn(name, ".");
    return hh_sprintf("%.*s", (int)(len ? len : strlen(name)), name);
}

static hh_code write_page(const hh_buf *page, hh_error *err) {
    char *path = html_file ? hh_strdup(html_file) : json_file ? hh_results_beside(json_file, ".html") : NULL;
    hh_code code = path ? hh_file_write(path, page->data, page->len, err) : HH_OK;
    if (code == HH_OK && path) fprintf(stderr, "report: %s\n", path);
    hh_free(path);
    return code;
}

/* What all measures but ruler show: one table, here and on the page; results are taken. */
static hh_code show(const hh_cells *t, const char *title, json_t *results, const char *measure, const hh_subject *s,
                    int64_t n, hh_error *err) {
    hh_buf text = {0}, page = {0};
    hh_cells_print(t, false, &text);
    fputs(text.data, stdout);
    hh_page_begin(&page, title, "hydrahead eval");
    hh_cells_print(t, true, &page);
    hh_page_end(&page);
    hh_code code = HH_OK;
    if (json_file) code = hh_json_write(json_file, json_incref(results), 12, err);
    if (code == HH_OK && summary_file) code = hh_summary_add(summary_file, measure, results, s, n, err);
    if (code == HH_OK) code = write_page(&page, err);
    json_decref(results);
    hh_buf_release(&text);
    hh_buf_release(&page);
    return code;
}

static hh_code show_ruler(const hh_ruler_result *r, hh_error *err) {
    hh_buf text = {0}, page = {0};
    hh_ruler_table(r, &text);
    fputs(text.data, stdout);
    for (int64_t i = 0; i < r->n_subjects * r->options.n_tasks * r->options.n_lengths; i++)
        if (r->cell[i].why) fprintf(stderr, "skipped: %s\n", r->cell[i].why);
    if (r->n_resumed) fprintf(stderr, "%lld samples were taken from %s\n", (long long)r->n_resumed, r->options.partial);
    hh_ruler_page(r, "What the models find", &page);
    hh_code code = HH_OK;
    json_t *results = hh_ruler_json(r);
    if (json_file) code = hh_json_write(json_file, json_incref(results), 12, err);
    if (code == HH_OK && summary_file)
        code = hh_summary_add(summary_file, "ruler", results, r->subject, r->n_subjects, err);
    json_decref(results);
    if (code == HH_OK) code = write_page(&page, err);
    if (code == HH_OK && r->options.partial) remove(r->options.partial);
    hh_buf_release(&text);
    hh_buf_release(&page);
    return code;
}

static hh_code parse_tasks(hh_needle_task **out, int64_t *n, hh_error *err) {
    hh_words words;
    HH_TRY(hh_parse_word_list(tasks, &words));
    hh_code code = words.n ? HH_OK : hh_fail(err, HH_EINVAL, "--tasks: no task is named");
    *out = hh_alloc((size_t)words.n * sizeof **out);
    *n = words.n;
    for (int64_t i = 0; i < words.n && code == HH_OK; i++) {
        code = hh_needle_task_parse(words.word[i], &(*out)[i], err);
    }
    hh_words_release(&words);
    return code;
}

static hh_code run_ruler(const hh_subject *s, int64_t n, hh_error *err) {
    hh_needle_task *task = NULL;
    int64_t *list = NULL;
    char *text = NULL, *partial = json_file ? hh_sprintf("%s.partial", json_file) : NULL;
    hh_ruler_result r;
    hh_ruler_options o = {.n_samples = samples,
                          .seed = (uint32_t)common.seed,
                          .haystack_name = haystack,
                          .anywhere = anywhere,
                          .partial = partial};
    hh_code code =
        common.seed <= UINT32_MAX
            ? HH_OK
            : hh_fail(err, HH_EINVAL, "--seed: RULER's seeds have 32 bits; %lld is too large", (long long)common.seed);
    if (code == HH_OK) code = parse_tasks(&task, &o.n_tasks, err);
    if (code == HH_OK) code = hh_parse_int_list("lengths", lengths, &list, &o.n_lengths, err);
    if (code == HH_OK && o.n_lengths == 0) code = hh_fail(err, HH_EINVAL, "--lengths: no length is given");
    if (code == HH_OK && haystack) code = hh_text_read(haystack, &text, &o.haystack_len, err);
    o.task = task;
    o.length = list;
    o.haystack = text;
    if (code == HH_OK) code = hh_eval_ruler(&r, s, n, &o, err);
    if (code == HH_OK) {
        code = show_ruler(&r, err);
        hh_ruler_result_release(&r);
    }
    hh_free(task);
    hh_free(list);
    hh_free(text);
    hh_free(partial);
    return code;
}

static void add_rate(hh_cells *t, const char *file, const char *what, const hh_choice_result *r, int64_t n,
                     size_t offset, int digits) {
    hh_cells_add(t, "%s", file);
    hh_cells_add(t, "%s", what);
    hh_cells_add(t, "%lld", (long long)r->n);
    for (int64_t i = 0; i < n; i++) {
        const hh_rate *rate = (const hh_rate *)((const char *)&r[i] + offset);
        hh_cells_add(t, "%.*f +- %.*f", digits, rate->value, digits, rate->error);
    }
}

/* One file for all models: rows of the table, entries of the results. */
static hh_code choice_file(const hh_subject *s, int64_t n, const char *path, hh_cells *t, json_t *models, json_t *lists,
                           hh_error *err) {
    hh_choice_set set;
    HH_TRY(hh_choice_read(&set, path, limit, err));
    hh_choice_result *r = hh_alloc((size_t)n * sizeof *r);
    char *name = stem(path);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < n && code == HH_OK; i++) {
        code = hh_eval_choice(&r[i], &s[i], &set, &(hh_choice_options){.max_length = length}, err);
        if (code != HH_OK) break;
        json_object_set_new(json_object_get(models, s[i].name), name, hh_choice_json(&r[i]));
        if (items) json_object_set_new(json_object_get(lists, s[i].name), name, hh_choice_items_json(&r[i], &set));
        if (r[i].n_truncated)
            fprintf(stderr, "%s: %lld of %lld contexts were cut on the left to the length of %s\n", name,
                    (long long)r[i].n_truncated, (long long)r[i].n, s[i].name);
    }
    if (code == HH_OK) {
        add_rate(t, name, "acc", r, n, offsetof(hh_choice_result, acc), 4);
        if (set.kind == HH_CHOICE_MULTIPLE) {
            add_rate(t, name, "acc_norm", r, n, offsetof(hh_choice_result, acc_norm), 4);
            add_rate(t, name, "acc_bytes", r, n, offsetof(hh_choice_result, acc_bytes), 4);
        }
        if (set.kind == HH_CHOICE_CONTINUATION)
            add_rate(t, name, "perplexity", r, n, offsetof(hh_choice_result, perplexity), 3);
    }
    for (int64_t i = 0; i < n; i++) hh_choice_result_release(&r[i]);
    hh_free(r);
    hh_free(name);
    hh_choice_release(&set);
    return code;
}

static json_t *object_for_each(const hh_subject *s, int64_t n) {
    json_t *o = json_object();
    for (int64_t i = 0; i < n; i++) json_object_set_new(o, s[i].name, json_object());
    return o;
}

static void add_names(hh_cells *t, const hh_subject *s, int64_t n) {
    for (int64_t i = 0; i < n; i++) hh_cells_add(t, "%s", s[i].name);
}

static hh_code run_choice(const hh_subject *s, int64_t n, hh_error *err) {
    hh_cells t = {.cols = 3 + n};
    json_t *models = object_for_each(s, n), *lists = items ? object_for_each(s, n) : NULL;
    hh_cells_add(&t, "file");
    hh_cells_add(&t, "measure");
    hh_cells_add(&t, "items");
    add_names(&t, s, n);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < files.n && code == HH_OK; i++)
        code = choice_file(s, n, files.word[i], &t, models, lists, err);
    json_t *results = json_pack("{s:o}", "models", models);
    if (items) json_object_set_new(results, "items", lists);
    if (code == HH_OK)
        code = show(&t, "Choice items", results, "choice", s, n, err);
    else
        json_decref(results);
    hh_cells_release(&t);
    return code;
}

static hh_code run_perplexity(const hh_subject *s, int64_t n, hh_error *err) {
    hh_cells t = {.cols = 4 + n};
    json_t *models = object_for_each(s, n);
    hh_cells_add(&t, "text");
    hh_cells_add(&t, "length");
    hh_cells_add(&t, "windows");
    hh_cells_add(&t, "tokens");
    add_names(&t, s, n);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < files.n && code == HH_OK; i++) {
        char *text = NULL, *name = stem(files.word[i]);
        size_t len = 0;
        hh_perplexity p;
        code = hh_text_read(files.word[i], &text, &len, err);
        for (int64_t k = 0; k < n && code == HH_OK; k++) {
            code = hh_eval_perplexity(&p, &s[k], text, len, length, limit, err);
            if (code != HH_OK) {
                hh_fail_in(err, "%s", files.word[i]);
                break;
            }
            if (k == 0) {
                hh_cells_add(&t, "%s", name);
                hh_cells_add(&t, "%lld", (long long)p.length);
                hh_cells_add(&t, "%lld", (long long)p.n_windows);
                hh_cells_add(&t, "%lld", (long long)p.n_tokens);
            }
            hh_cells_add(&t, "%.4f +- %.4f", p.perplexity, p.perplexity * p.nll_error);
            json_t *o = json_object_get(models, s[k].name);
            if (files.n == 1)
                json_object_update_new(o, hh_perplexity_json(&p));
            else
                json_object_set_new(o, name, hh_perplexity_json(&p));
        }
        hh_free(text);
        hh_free(name);
    }
    json_t *results = json_pack("{s:o}", "models", models);
    if (code == HH_OK)
        code = show(&t, "Perplexity", results, "perplexity", s, n, err);
    else
        json_decref(results);
    hh_cells_release(&t);
    return code;
}

static hh_code run_generate(const hh_subject *s, int64_t n, hh_error *err) {
    hh_prompts p;
    if (files.n != 1) return hh_fail(err, HH_EINVAL, "eval generate: one --file of prompts");
    HH_TRY(hh_prompts_read(&p, files.word[0], limit, err));
    hh_cells t = {.cols = 4};
    hh_cells_add(&t, "model");
    hh_cells_add(&t, "prompts");
    hh_cells_add(&t, "score");
    hh_cells_add(&t, "cut off");
    json_t *models = json_object();
    hh_code code = HH_OK;
    for (int64_t i = 0; i < n && code == HH_OK; i++) {
        json_t *o;
        code = hh_eval_generate(&o, &s[i], &p, max_new, err);
        if (code != HH_OK) break;
        json_object_set_new(models, s[i].name, o);
        const json_t *score = json_object_get(o, "score"), *entry;
        hh_cells_add(&t, "%s", s[i].name);
        hh_cells_add(&t, "%lld", (long long)p.n);
        if (score)
            hh_cells_add(&t, "%.3f +- %.3f", json_real_value(score),
                         json_real_value(json_object_get(o, "score_stderr")));
        else
            hh_cells_add(&t, "no answers given");
        hh_cells_add(&t, "%lld", (long long)json_integer_value(json_object_get(o, "truncated")));
        size_t k;
        json_array_foreach(json_object_get(o, "outputs"), k, entry) {
            const char *text = json_string_value(json_object_get(entry, "text"));
            if (!json_file) printf("--- %s, prompt %zu\n%s\n", s[i].name, k + 1, text ? text : "(not UTF-8)");
        }
    }
    json_t *results = json_pack("{s:o}", "models", models);
    if (code == HH_OK)
        code = show(&t, "Answers", results, "generate", s, n, err);
    else
        json_decref(results);
    hh_cells_release(&t);
    hh_prompts_release(&p);
    return code;
}

typedef hh_code measure_fn(const hh_subject *s, int64_t n, hh_error *err);
static const struct {
    const char *name;
    measure_fn *run;
    bool wants_file;
} measures[] = {{"ruler", run_ruler, false},
                {"choice", run_choice, true},
                {"perplexity", run_perplexity, true},
                {"generate", run_generate, true}};

static hh_code find_measure(const char *name, measure_fn **run, hh_error *err) {
    for (size_t i = 0; i < sizeof measures / sizeof *measures; i++) {
        if (strcmp(measures[i].name, name)) continue;
        *run = measures[i].run;
        if (measures[i].wants_file && files.n == 0)
            return hh_fail(err, HH_EINVAL, "eval %s: --file FILE is needed", name);
        return HH_OK;
    }
    return hh_fail(err, HH_EINVAL, "eval: '%s' is not a measure; there are ruler, choice, perplexity and generate",
                   name);
}

static hh_code check_use(int argc, char **argv, const char *measure, measure_fn *run, hh_error *err) {
    const bool ruler = run == run_ruler, choice = run == run_choice, generate = run == run_generate;
    static const char of_ruler[] = "only ruler draws prompts of its own; this measure reads --file";
    char where[64];
    snprintf(where, sizeof where, "in eval %s", measure);
    const hh_option_use of_measure[] = {
        {"tasks", ruler, of_ruler},
        {"lengths", ruler, of_ruler},
        {"samples", ruler, of_ruler},
        {"haystack", ruler, of_ruler},
        {"haystack-anywhere", ruler, of_ruler},
        {"file", !ruler, "it draws prompts of its own; --haystack FILE is the text around the needles"},
        {"length", choice || run == run_perplexity, ruler ? "it has --lengths" : "a prompt is read whole"},
        {"limit", !ruler, "it has --samples"},
        {"max-new", generate, "only generate writes answers of any length"},
        {"items", choice, "only choice has items"},
        {"summary", !generate, "answers have no place in a summary; --json FILE holds them"},
        {0}};
    static const char no_text[] = "none has a text around its needles; niah_single_2 has";
    const bool text = !ruler || hh_needle_tasks_read_text(tasks);
    const hh_option_use of_tasks[] = {{"haystack", text, no_text}, {"haystack-anywhere", text, no_text}, {0}};
    const hh_option_use of_json[] = {{"items", json_file, "they are written into that file"}, {0}};
    HH_TRY(hh_options_check_use(&command, argc, argv, of_measure, where, err));
    HH_TRY(hh_options_check_use(&command, argc, argv, of_tasks, "with these --tasks", err));
    return hh_options_check_use(&command, argc, argv, of_json, "without --json FILE", err);
}

/* No file is written twice, nor over one that is read. */
static hh_code check_outputs(hh_error *err) {
    const struct {
        const char *option, *path;
    } out[] = {{"json", json_file}, {"html", html_file}, {"summary", summary_file}};
    for (int i = 0; i < 3; i++) {
        if (!out[i].path) continue;
        HH_TRY(hh_file_check_target(out[i].path, err));
        for (int64_t k = 0; k < files.n; k++)
            if (hh_same_file(out[i].path, files.word[k]))
                return hh_fail(err, HH_EINVAL, "--%s %s is a --file that eval reads; name another", out[i].option,
                               out[i].path);
        for (int k = 0; k < i; k++)
            if (out[k].path && hh_same_target(out[i].path, out[k].path))
                return hh_fail(err, HH_EINVAL, "--%s and --%s both name %s; one would overwrite the other",
                               out[k].option, out[i].option, out[i].path);
    }
    return HH_OK;
}

/* Every model with every type of cache of --kv, the models still owned by `s`. A type that is not "auto" is part of the
 * name that results are kept under. */
static hh_code pair_with_caches(hh_subject **out, int64_t *n_out, const hh_subject *s, int64_t n, const hh_words *types,
                                hh_error *err) {
    if (!types->n) return hh_fail(err, HH_EINVAL, "--kv: no type is named");
    hh_subject *pair = *out = hh_alloc((size_t)(n * types->n) * sizeof *pair);
    *n_out = n * types->n;
    for (int64_t i = 0; i < n * types->n; i++) {
        const char *type = types->word[i % types->n];
        const hh_subject *model = &s[i / types->n];
        pair[i] = (hh_subject){.model = model->model, .tokenizer = model->tokenizer, .kv = type};
        pair[i].own_name = strcmp(type, "auto") ? hh_sprintf("%s, kv %s", model->name, type) : hh_strdup(model->name);
        pair[i].name = pair[i].own_name;
        hh_dtype known;
        HH_TRY(hh_subject_kv(&pair[i], &known, err));
        for (int64_t j = 0; j < i; j++)
            if (!strcmp(pair[j].name, pair[i].name)) return hh_fail(err, HH_EINVAL, "--kv: '%s' is named twice", type);
    }
    return HH_OK;
}

static hh_code run_with_caches(measure_fn *run, const hh_subject *s, int64_t n, hh_error *err) {
    hh_words types;
    hh_subject *pair = NULL;
    int64_t pairs = 0;
    HH_TRY(hh_parse_word_list(kv, &types));
    hh_code code = pair_with_caches(&pair, &pairs, s, n, &types, err);
    if (code == HH_OK) code = run(pair, pairs, err);
    for (int64_t i = 0; i < pairs; i++) hh_free(pair[i].own_name);
    hh_free(pair);
    hh_words_release(&types);
    return code;
}

int hh_cmd_eval(int argc, char **argv) {
    hh_error err = {0};
    hh_words words;
    int exit_code;
    if (!hh_cli_parse(&command, argc, argv, &words, &exit_code)) return exit_code;
    measure_fn *run = NULL;
    hh_backend *be = NULL;
    hh_subject *s = NULL;
    hh_words names = {words.word + 1, words.n - 1};
    hh_code code = find_measure(words.word[0], &run, &err);
    if (code == HH_OK) code = check_use(argc, argv, words.word[0], run, &err);
    if (code == HH_OK) code = check_outputs(&err);
    if (code == HH_OK) code = hh_cli_backend(&common, &be, &err);
    if (code == HH_OK && summary_file && run == run_perplexity && files.n != 1)
        code = hh_fail(&err, HH_EINVAL, "eval perplexity: a --summary holds one text's perplexity; give one --file");
    if (code == HH_OK) code = hh_subjects_open(&s, be, &names, rope, &err);
    if (code == HH_OK) code = run_with_caches(run, s, names.n, &err);
    hh_subjects_close(s, names.n);
    hh_backend_close(be);
    hh_words_release(&words);
    return code == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
