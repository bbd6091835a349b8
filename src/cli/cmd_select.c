/* hydrahead select: scores and a budget become a plan. */
#include "base/filemap.h"
#include "cli/cli.h"
#include "convert/select.h"
#include "model/model.h"
#include "report/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static const char *strategy = "global", *ratio = "", *out_path = "", *model_path = "", *exclude_path = "";
static int64_t n_heads, kv_bytes;
static bool json;

static const hh_option options[] = {
    {.name = "ratio",
     .kind = HH_OPTION_STRING,
     .value = &ratio,
     .argument = "R:1",
     .help = "budget: R linear heads for each head that keeps full attention"},
    {.name = "heads",
     .kind = HH_OPTION_INT,
     .value = &n_heads,
     .argument = "N",
     .max = 1e9,
     .help = "budget: heads that keep full attention; 0: it is another one"},
    {.name = "kv-bytes",
     .kind = HH_OPTION_INT,
     .value = &kv_bytes,
     .argument = "N",
     .max = 1e15,
     .help = "budget: bytes of KV cache a token, over all layers, in bfloat16; 0: it is another one"},
    {.name = "strategy",
     .letter = 's',
     .kind = HH_OPTION_CHOICE,
     .value = &strategy,
     .choices = HH_STRATEGY_CHOICES,
     .help = "how the budget is spent"},
    {.name = "exclude-from",
     .kind = HH_OPTION_STRING,
     .value = &exclude_path,
     .argument = "PLAN",
     .help = "random strategies never draw a head that this plan keeps"},
    {.name = "model",
     .letter = 'm',
     .kind = HH_OPTION_STRING,
     .value = &model_path,
     .argument = "MODEL",
     .help = "the model that was probed; checks the table's shape and tells the cache's size"},
    {.name = "out",
     .letter = 'o',
     .kind = HH_OPTION_STRING,
     .value = &out_path,
     .argument = "FILE",
     .help = "where the plan goes"},
    HH_CLI_JSON_OPTION(json),
    HH_CLI_COMMON_OPTIONS(common),
    {0},
};

static const hh_command command = {
    .verb = "select",
    .summary = "choose the heads that keep full attention, under a budget",
    .words = "HEADS.json",
    .description =
        "Reads the scores that probe wrote and writes a plan: which query heads keep full attention. All others become "
        "linear when convert applies the plan. One budget is given: --ratio, --heads or --kv-bytes.\n\n"
        "Strategies: global takes the best heads of the whole model; global-min1 the same with at least one in every "
        "layer; layer the same number in every layer; kv takes whole query groups, so that every key/value head that "
        "is "
        "cached is read by all of its queries. Controls: fixed (the first heads of every layer), layer-random, "
        "global-random, and layerwise (whole layers, by the sum of their heads' scores).\n\n"
        "Heads of equal score are ranked by their mean indirect effect, then by attribution; the plan says for each "
        "kept "
        "head which measure decided.",
    .example = "hydrahead select nano-heads/heads.json --heads 4 --out nano-plan.json",
    .options = options,
    .min_words = 1,
    .max_words = 1,
};

/* "7:1" or "7". */
static hh_code parse_ratio(double *out, hh_error *err) {
    char *end;
    *out = 0;
    if (!*ratio) return HH_OK;
    double r = strtod(ratio, &end);
    if (end == ratio || (strcmp(end, ":1") && *end) || !(r > 0 && r < 1e9))
        return hh_fail(err, HH_EINVAL, "--ratio %s: write the linear heads for each full-attention head, as 7:1",
                       ratio);
    *out = r;
    return HH_OK;
}

static hh_code bind_model(hh_heads *h, const char *path, hh_error *err) {
    if (!*model_path) return HH_OK;
    hh_config *c = hh_alloc(sizeof *c);
    hh_code code = hh_model_read_config(c, model_path, err);
    if (code == HH_OK) code = hh_heads_bind(h, path, c, err);
    hh_free(c);
    return code;
}

enum { COLUMNS = 6 };

static void print_kept(const hh_plan *p) {
    static const char *const heading[COLUMNS] = {"layer", "head", "score", "mean effect", "attribution", "kept by"};
    int64_t rows = hh_plan_count(p) + 1, r = 1;
    const char **cell = hh_alloc((size_t)(rows * COLUMNS) * sizeof *cell);
    for (int i = 0; i < COLUMNS; i++) cell[i] = hh_strdup(heading[i]);
    for (int64_t i = 0; i < p->n_layers * p->n_heads; i++) {
        if (p->rule[i] == HH_KEEP_NOT) continue;
        const char **row = cell + r++ * COLUMNS;
        row[0] = hh_sprintf("%" PRId64, i / p->n_heads);
        row[1] = hh_sprintf("%" PRId64, i % p->n_heads);
        row[2] = hh_sprintf("%.4f", p->score[i]);
        row[3] = hh_sprintf("%.4f", p->mean_ie[i]);
        row[4] = hh_sprintf("%.4f", p->attribution[i]);
        row[5] = hh_sprintf("%s", hh_keep_rule_name(p->rule[i]));
    }
    hh_buf text = {0};
    hh_terminal_table(&text, cell, rows, COLUMNS);
    fputs(text.data, stdout);
    hh_buf_release(&text);
    for (int64_t i = 0; i < rows * COLUMNS; i++) hh_free((void *)cell[i]);
    hh_free(cell);
}

static void print_plan(const hh_plan *p) {
    if (json) {
        json_t *root = hh_plan_to_json(p);
        json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        putchar('\n');
        json_decref(root);
        return;
    }
    print_kept(p);
    printf("%s, %s: %" PRId64 " of %" PRId64 " heads keep full attention\n", p->strategy, p->budget, hh_plan_count(p),
           p->n_layers * p->n_heads);
    if (p->n_kv_heads && p->head_dim)
        printf("KV cache: %.0f bytes a token before, %.0f after (%" PRId64 " of %" PRId64
               " key/value heads, bfloat16)\n",
               hh_plan_dense_cache_bytes(p, HH_PLAN_CACHE_VALUE_BYTES),
               hh_plan_cache_bytes(p, HH_PLAN_CACHE_VALUE_BYTES), hh_plan_kv_count(p), p->n_layers * p->n_kv_heads);
    else
        puts("KV cache: unknown, for the table does not say how large a key/value head is; --model MODEL tells");
    if (*out_path) printf("plan: %s\n", out_path);
}

/* A table without a score names no head: what is kept is what comes first. */
static void warn_without_scores(const hh_heads *h) {
    for (int64_t i = 0; i < h->n_layers * h->n_heads; i++)
        if (h->score[i] > 0) return;
    if (!strcmp(strategy, "random")) return;
    fputs(
        "hydrahead: warning: every head's score is 0, so that nothing is there to choose by; probe with pairs that the "
        "model can answer\n",
        stderr);
}

static hh_code select_heads(const char *path, hh_error *err) {
    hh_heads h = {0};
    hh_plan p = {0}, exclude = {0};
    hh_select_options o = {.heads = n_heads, .kv_bytes = kv_bytes, .seed = (uint64_t)common.seed};
    hh_code code;
    HH_ASSERT(hh_strategy_parse(strategy, &o.strategy));
    HH_TRY(parse_ratio(&o.ratio, err));
    if (hh_same_file(out_path, path) || hh_same_file(out_path, exclude_path))
        return hh_fail(err, HH_EINVAL, "--out %s is a file that select reads; name another", out_path);
    HH_TRY_GOTO(code, hh_heads_read(&h, path, err), out);
    HH_TRY_GOTO(code, bind_model(&h, path, err), out);
    if (*exclude_path) {
        HH_TRY_GOTO(code, hh_plan_read(&exclude, exclude_path, err), out);
        o.exclude = &exclude;
    }
    code = hh_select(&p, &h, &o, err);
    if (code != HH_OK) {
        hh_fail_in(err, "%s", path);
        goto out;
    }
    if (*out_path) HH_TRY_GOTO(code, hh_plan_write(&p, out_path, err), out);
    warn_without_scores(&h);
    print_plan(&p);
out:
    hh_heads_release(&h);
    hh_plan_release(&p);
    hh_plan_release(&exclude);
    return code;
}

int hh_cmd_select(int argc, char **argv) {
    hh_words words;
    int code;
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_error err = {0};
    hh_code done = select_heads(words.word[0], &err);
    hh_words_release(&words);
    return done == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
