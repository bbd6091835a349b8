/* hydrahead probe: which heads matter, as heads.json, a page of heat maps, and a summary in the terminal. */
#include "base/env.h"
#include "base/filemap.h"
#include "base/progress.h"
#include "cli/opened.h"
#include "data/corpus.h"
#include "probe/scores.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static const char *pairs_file, *tasks = "niah_single_1,niah_single_2,niah_single_3,niah_multikey_1,niah_multikey_2";
static const char *corruption = "both", *out_dir = "probe-out", *haystack_file;
static const char *senders = "32";
static int64_t length, samples = 8;
static bool json;

static const hh_option options[] = {
    {.name = "pairs",
     .kind = HH_OPTION_STRING,
     .value = &pairs_file,
     .argument = "FILE",
     .help = "your own counterfactual pairs instead of the tasks: JSONL with prompt, corrupt, answer and, unless the "
             "answer is scored by its "
             "log-probability, wrong"},
    {.name = "tasks",
     .kind = HH_OPTION_STRING,
     .value = &tasks,
     .argument = "A,B",
     .help = "needle tasks to make pairs from"},
    {.name = "corruption",
     .kind = HH_OPTION_CHOICE,
     .value = &corruption,
     .choices = "value|key|both",
     .help = "what is replaced in the corrupt prompt: the needle's value, its key, or each in turn"},
    {.name = "length",
     .kind = HH_OPTION_INT,
     .value = &length,
     .argument = "N",
     .max = 1 << 24,
     .help = "tokens of a needle prompt; 0 is 4096 or the model's native length, whichever is less"},
    {.name = "samples",
     .letter = 'n',
     .kind = HH_OPTION_INT,
     .value = &samples,
     .argument = "N",
     .min = 1,
     .max = 100000,
     .help = "pairs of each task under each corruption"},
    {.name = "senders",
     .kind = HH_OPTION_STRING,
     .value = &senders,
     .argument = "N|all",
     .help = "heads of highest attribution that are scored exactly as senders; 0 leaves senders out"},
    {.name = "haystack",
     .kind = HH_OPTION_STRING,
     .value = &haystack_file,
     .argument = "FILE",
     .help = "text (plain or .gz) for haystacks of prose; the shipped book excerpt if not given"},
    {.name = "out",
     .letter = 'o',
     .kind = HH_OPTION_STRING,
     .value = &out_dir,
     .argument = "DIR",
     .help = "folder of heads.json and heads.html"},
    HH_CLI_JSON_OPTION(json),
    HH_CLI_COMMON_OPTIONS(common),
    {0}};
static const hh_command command = {
    .verb = "probe",
    .summary = "find the heads that retrieval depends on, by causal intervention",
    .words = "MODEL",
    .description =
        "Runs counterfactual pairs of prompts through a dense model: the same text with and without the answer's "
        "evidence. A head's receiver "
        "score says how much of the answer is lost when the head's output is replaced by what it was without the "
        "evidence (its direct "
        "effect); its sender score how much is lost through the heads already known to matter. Scores are exact; a "
        "first-order attribution is given beside them with its rank correlation.\n\nWrites DIR/heads.json for "
        "`hydrahead select` and "
        "DIR/heads.html to look at.",
    .example = "hydrahead probe nano --tasks niah_book --samples 2 --senders 4 --out nano-heads",
    .options = options,
    .min_words = 1,
    .max_words = 1};

#define MAX_CAPABILITIES (2 * HH_NEEDLE_TASKS)

typedef struct pair_list {
    hh_capability capability[MAX_CAPABILITIES];
    hh_pair *pairs[MAX_CAPABILITIES];
    char name[MAX_CAPABILITIES][64];
    int64_t n;
} pair_list;

static void release_pairs(pair_list *p) {
    for (int64_t i = 0; i < p->n; i++) hh_pairs_free(p->pairs[i], p->capability[i].n_pairs);
}

static hh_code make_pairs(pair_list *p, const hh_tokenizer *t, hh_needle_task task, hh_corruption kind,
                          const hh_needle_options *base, hh_error *err) {
    hh_needle_options o = *base;
    o.task = task;
    hh_needles *needles;
    HH_TRY(hh_needles_new(&needles, t, &o, err));
    hh_pair *pairs = hh_alloc(sizeof *pairs * (size_t)samples);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < samples && code == HH_OK; i++) code = hh_pair_from_needles(needles, kind, &pairs[i], err);
    hh_needles_free(needles);
    if (code != HH_OK) {
        hh_pairs_free(pairs, samples);
        return code;
    }
    snprintf(p->name[p->n], sizeof p->name[p->n], "%s/%s", hh_needle_task_name(task),
             kind == HH_CORRUPT_VALUE ? "value" : "key");
    p->pairs[p->n] = pairs;
    p->capability[p->n] = (hh_capability){.name = p->name[p->n], .pair = pairs, .n_pairs = samples};
    p->n++;
    return HH_OK;
}

/* Pairs of every task that fits; one that does not is named and skipped. */
static hh_code pairs_from_tasks(pair_list *p, const hh_tokenizer *t, const hh_needle_options *base, hh_error *err) {
    hh_words words;
    HH_TRY(hh_parse_word_list(tasks, &words));
    hh_code code = words.n ? HH_OK : hh_fail(err, HH_EINVAL, "--tasks is empty");
    for (int64_t i = 0; i < words.n && code == HH_OK; i++) {
        hh_needle_task task;
        code = hh_needle_task_parse(words.word[i], &task, err);
        for (int kind = HH_CORRUPT_VALUE; kind <= HH_CORRUPT_KEY && code == HH_OK; kind++) {
            if (!strcmp(corruption, kind == HH_CORRUPT_VALUE ? "key" : "value")) continue;
            if (p->n == MAX_CAPABILITIES) {
                code = hh_fail(err, HH_EINVAL, "--tasks names more than %d tasks", (int)HH_NEEDLE_TASKS);
                break;
            }
            code = make_pairs(p, t, task, (hh_corruption)kind, base, err);
            if (code != HH_EINVAL) continue;
            fprintf(stderr, "hydrahead: skipped %s: %s\n", words.word[i], err->text);
            code = HH_OK;
        }
    }
    hh_words_release(&words);
    if (code == HH_OK && !p->n)
        code = hh_fail(err, HH_EFORMAT, "no task fits into %lld tokens; give a larger --length or other --tasks",
                       (long long)base->length);
    return code;
}

static hh_code gather_pairs(pair_list *p, const hh_tokenizer *t, int64_t n_tokens, hh_error *err) {
    if (pairs_file) {
        HH_TRY(hh_pairs_read(pairs_file, t, &p->pairs[0], &p->capability[0].n_pairs, err));
        p->capability[0].name = "pairs";
        p->capability[0].pair = p->pairs[0];
        p->n = 1;
        return HH_OK;
    }
    hh_needle_options o = {.length = n_tokens, .seed = (uint32_t)common.seed};
    char *text = NULL;
    if (haystack_file) {
        HH_TRY(hh_text_read(haystack_file, &text, &o.haystack_len, err));
        o.haystack = text;
    }
    hh_code code = pairs_from_tasks(p, t, &o, err);
    hh_free(text);
    return code;
}

/* Pairs of a user's file that say nothing of this model; heads.json has them all. */
static void add_dropped(const hh_capability_scores *c, hh_buf *text) {
    enum { SHOWN = 8 };
    for (int64_t i = 0; i < c->n_dropped && i < SHOWN; i++)
        hh_buf_printf(text, "  dropped: pair %lld, its answer stands at %.2f with the evidence and %.2f without\n",
                      (long long)c->dropped[i].index + 1, c->dropped[i].clean, c->dropped[i].corrupt);
    if (c->n_dropped > SHOWN)
        hh_buf_printf(text, "  and %lld more, in heads.json\n", (long long)(c->n_dropped - SHOWN));
}

static hh_code report(const hh_scores *s, const char *model, int64_t n_tokens, hh_error *err) {
    char *heads = hh_path_join(out_dir, "heads.json"), *page = hh_path_join(out_dir, "heads.html");
    hh_code code = hh_scores_write_json(s, heads, model, n_tokens, common.seed, err);
    if (code == HH_OK) code = hh_scores_write_html(s, page, model, err);
    int64_t used = 0;
    for (int64_t i = 0; i < s->n_capabilities; i++) used += s->capability[i].used;
    if (code == HH_OK && !used)
        fprintf(
            stderr,
            "hydrahead: warning: no pair was kept: the model's answers do not depend on the evidence %s; all scores "
            "are 0\n",
            pairs_file ? "of these pairs" : "at this length");
    if (code == HH_OK && json) {
        hh_buf text = {0};
        code = hh_file_read(heads, (size_t)1 << 30, &text, err);
        if (code == HH_OK) fputs(text.data, stdout);
        hh_buf_release(&text);
    } else if (code == HH_OK) {
        hh_buf text = {0};
        hh_scores_terminal(s, hh_color_wanted(STDOUT_FILENO), &text);
        for (int64_t i = 0; i < s->n_capabilities; i++) {
            const hh_capability_scores *c = &s->capability[i];
            hh_buf_printf(&text,
                          "%s%-24s pairs: %lld used, %lld dropped (too little effect); attribution against receiver "
                          "scores: Spearman %.2f\n",
                          i ? "" : "\n", c->name, (long long)c->used, (long long)c->n_dropped, c->spearman);
            if (pairs_file) add_dropped(c, &text);
        }
        hh_buf_printf(&text,
                      "\ntime: %.1f s for the base forwards, %.1f s for all receiver scores (%.2fx), %.1f s "
                      "attribution, %.1f s senders\n",
                      s->base_seconds, s->receiver_seconds,
                      s->base_seconds > 0 ? s->receiver_seconds / s->base_seconds : 0, s->attribution_seconds,
                      s->sender_seconds);
        hh_buf_printf(&text, "%s\n%s\n", heads, page);
        fputs(text.data, stdout);
        hh_buf_release(&text);
    }
    hh_free(heads);
    hh_free(page);
    return code;
}

/* "all" is -1. */
static hh_code parse_senders(int64_t *out, hh_error *err) {
    char *end;
    *out = -1;
    if (strcmp(senders, "all") == 0) return HH_OK;
    const long n = strtol(senders, &end, 10);
    *out = n;
    if (*senders && !*end && n >= 0 && n <= INT32_MAX) return HH_OK;
    return hh_fail(err, HH_EINVAL, "--senders %s: a number of heads from 0, or all", senders);
}

static hh_code run(const char *path, hh_error *err) {
    hh_cli_opened o;
    hh_scores *scores = NULL;
    pair_list pairs = {.n = 0};
    hh_code code;
    HH_TRY_GOTO(code, hh_cli_opened_open(&o, &common, path, true, err), done);
    const int64_t native = o.m->config.max_position;
    const int64_t n_tokens = length ? length : native && native < 4096 ? native : 4096;
    HH_TRY_GOTO(code, hh_make_directory(out_dir, err), done); /* before the work, not behind it */
    HH_TRY_GOTO(code, gather_pairs(&pairs, o.t, n_tokens, err), done);
    hh_probe_options how = {0};
    HH_TRY_GOTO(code, parse_senders(&how.senders, err), done);
    HH_TRY_GOTO(code, hh_probe(&scores, o.m, pairs.capability, pairs.n, &how, err), done);
    code = report(scores, path, n_tokens, err);
done:
    hh_scores_free(scores);
    release_pairs(&pairs);
    hh_cli_opened_close(&o);
    return code;
}

static hh_code check_use(int argc, char **argv, hh_error *err) {
    static const char of_tasks[] = "it is about needle tasks, and the pairs are your own; leave one of the two out";
    const hh_option_use use[] = {{"tasks", !pairs_file, of_tasks},    {"corruption", !pairs_file, of_tasks},
                                 {"length", !pairs_file, of_tasks},   {"samples", !pairs_file, of_tasks},
                                 {"haystack", !pairs_file, of_tasks}, {0}};
    const hh_option_use text[] = {
        {"haystack", hh_needle_tasks_read_text(tasks), "none has a text around its needles; niah_single_2 has"}, {0}};
    HH_TRY(hh_options_check_use(&command, argc, argv, use, "with --pairs", err));
    return hh_options_check_use(&command, argc, argv, text, "with these --tasks", err);
}

int hh_cmd_probe(int argc, char **argv) {
    hh_words words;
    int code;
    hh_error err = {0};
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_code failed = check_use(argc, argv, &err);
    if (failed == HH_OK) failed = run(words.word[0], &err);
    hh_words_release(&words);
    return failed != HH_OK ? hh_cli_fail(&err) : hh_cli_done();
}
