/* `quantize`: a checkpoint whose big matrices have 8 or 4 bits, and what that costs: perplexity and needles before,
 * after, and after with a KV cache of 8 bits too. */
#include "base/filemap.h"
#include "cli/opened.h"
#include "data/corpus.h"
#include "eval/perplexity.h"
#include "eval/ruler.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static hh_cli_common common = {.dtype = "auto", .seed = 42};
static const char *out_dir = "", *bits = "8", *text_file, *task_name = "niah_book";
static int64_t length = 256, windows = 16, samples = 8;
static bool force, no_measure, json;

static const hh_option options[] = {
    {.name = "out",
     .letter = 'o',
     .kind = HH_OPTION_STRING,
     .value = &out_dir,
     .argument = "DIR",
     .help = "where the quantised checkpoint goes"},
    {.name = "bits",
     .letter = 'b',
     .kind = HH_OPTION_CHOICE,
     .value = &bits,
     .choices = "8|4",
     .help = "of a number: 8 is Q8_0, 4 is Q4_0 with the head in Q8_0"},
    {.name = "force", .kind = HH_OPTION_FLAG, .value = &force, .help = "replace the checkpoint that stands in --out"},
    {.name = "no-measure", .kind = HH_OPTION_FLAG, .value = &no_measure, .help = "do not measure what it costs"},
    {.name = "file",
     .letter = 'f',
     .kind = HH_OPTION_STRING,
     .value = &text_file,
     .argument = "FILE",
     .help = "text for the perplexity, plain or .gz (default: the shipped book excerpt)"},
    {.name = "length",
     .letter = 'l',
     .kind = HH_OPTION_INT,
     .value = &length,
     .argument = "N",
     .min = 2,
     .max = 1e8,
     .help = "tokens of a window of that text, and of a needle prompt with its answer"},
    {.name = "windows",
     .kind = HH_OPTION_INT,
     .value = &windows,
     .argument = "N",
     .max = 1e9,
     .help = "windows of the text at most; 0 is all"},
    {.name = "task",
     .kind = HH_OPTION_STRING,
     .value = &task_name,
     .argument = "NAME",
     .help = "the needle task, one of those of eval ruler"},
    {.name = "samples",
     .letter = 'n',
     .kind = HH_OPTION_INT,
     .value = &samples,
     .argument = "N",
     .max = 1e6,
     .help = "samples of it; 0 is none"},
    HH_CLI_JSON_OPTION(json),
    HH_CLI_COMMON_OPTIONS(common),
    {0},
};

static const hh_command command = {
    .verb = "quantize",
    .summary = "a checkpoint with 8 or 4 bits a weight, and what that costs",
    .words = "MODEL",
    .description =
        "Writes MODEL, a teacher or a hybrid, from safetensors or GGUF, with its big matrices in blocks of 32 numbers "
        "that share a scale, rounded as llama.cpp's reference rounds them. As there, the output head (the embedding "
        "when it is tied) has 8 bits also with --bits 4. Norms, biases, A_log, dt_bias, the narrow projections that "
        "make gates and the heads' scales stay float32. A matrix whose rows are no multiple of 32 keeps its type, and "
        "is named.\n\n"
        "The result is a Hugging Face directory that every verb reads as it reads MODEL. It is written aside and "
        "renamed; an interrupted run leaves nothing and starts again.\n\n"
        "Then perplexity and RULER's needles are measured: of MODEL, of the result, and of the result with a KV cache "
        "of 8 bits (--kv q8_0 of run and serve), where the width of heads is a multiple of 32. What that cache costs "
        "MODEL itself, eval perplexity and eval ruler tell with --kv auto,q8_0.",
    .example = "hydrahead quantize nano --bits 8 --windows 4 --samples 2 --out nano-8bit",
    .options = options,
    .min_words = 1,
    .max_words = 1,
};

/* -- writing -- */

typedef struct written {
    int64_t n[HH_DTYPE_COUNT]; /* tensors of each type */
    double bytes[HH_DTYPE_COUNT], before, after;
    json_t *whole;  /* names of matrices that stay as they are */
    hh_dtype again; /* blocks that are quantised once more; F32: none */
} written;

static void count(written *w, const hh_model *m, hh_dtype dtype) {
    for (int64_t i = 0; i < hh_store_count(m->store); i++)
        w->before += (double)hh_tensor_bytes(hh_store_at(m->store, i)->t);
    for (int64_t i = 0; i < m->n_params; i++) {
        const hh_param *p = &m->param[i];
        const hh_dtype t = hh_saved_type(m, p, dtype), own = p->slot->dtype;
        const double bytes = (double)hh_dtype_bytes(t, hh_tensor_count(*p->slot));
        w->n[t]++;
        w->bytes[t] += bytes;
        w->after += bytes;
        if (p->matrix && !hh_dtype_is_quantised(t)) json_array_append_new(w->whole, json_string(p->name));
        if (hh_dtype_is_quantised(own) && own != t) w->again = own;
    }
}

/* On the CPU, wherever the measures are taken: weights are read and written in files. */
static hh_code write_checkpoint(written *w, const char *path, hh_error *err) {
    const hh_dtype dtype = strcmp(bits, "8") ? HH_DTYPE_Q4_0 : HH_DTYPE_Q8_0;
    const bool made = !hh_is_directory(out_dir);
    hh_backend *cpu = NULL;
    hh_model *m = NULL;
    hh_code code;
    HH_TRY_GOTO(code, hh_cpu_open(&cpu, (int)common.threads, HH_PRECISION_F32, NULL, err), out);
    HH_TRY_GOTO(code, hh_model_open(&m, cpu, path, HH_LOAD_STORED, err), out);
    count(w, m, dtype);
    if (w->again && !common.quiet)
        fprintf(stderr, "hydrahead: matrices of %s hold %s already; what was rounded once is rounded again\n", path,
                hh_dtype_name(w->again));
    code = hh_model_save(m, out_dir, dtype, path, err);
    if (code != HH_OK && made) rmdir(out_dir);
out:
    hh_model_close(m);
    hh_backend_close(cpu);
    return code;
}

/* -- measuring -- */

static const struct {
    const char *title, *key; /* in the table; in JSON */
} forms[] = {{"before", "before"}, {"after", "after"}, {"after, kv q8_0", "after_kv_q8_0"}};
enum { FORMS = sizeof forms / sizeof *forms };

typedef struct cost {
    int n; /* forms measured: the last needs heads of whole blocks */
    hh_perplexity p[FORMS];
    hh_ruler_result r; /* no cells: not asked, or the task does not fit */
    char *why;         /* it does not */
} cost;

/* s[0, c->n) */
static hh_code measure(cost *c, const hh_subject *s, hh_error *err) {
    static hh_needle_task task;
    char *text = NULL;
    size_t len;
    hh_code code = text_file ? hh_text_read(text_file, &text, &len, err) : hh_text_shipped(true, &text, &len, err);
    for (int i = 0; i < c->n && code == HH_OK; i++)
        code = hh_eval_perplexity(&c->p[i], &s[i], text, len, length, windows, err);
    hh_free(text);
    if (code != HH_OK || !samples) return code;
    HH_TRY(hh_needle_task_parse(task_name, &task, err));
    const hh_ruler_options o = {.task = &task,
                                .length = &length,
                                .n_tasks = 1,
                                .n_lengths = 1,
                                .n_samples = samples,
                                .seed = (uint32_t)common.seed};
    code = hh_eval_ruler(&c->r, s, c->n, &o, err);
    if (code != HH_EUNSUPPORTED) return code;
    c->why = hh_strdup(err->text);
    *err = (hh_error){0};
    return HH_OK;
}

/* -- printing -- */

static void add_rows(hh_cells *t, const cost *c) {
    const hh_ruler_cell *r = c->r.cell;
    hh_cells_add(t, "measure");
    for (int i = 0; i < c->n; i++) hh_cells_add(t, "%s", forms[i].title);
    hh_cells_add(t, "perplexity, %lld windows of %lld tokens", (long long)c->p[0].n_windows, (long long)c->p[0].length);
    for (int i = 0; i < c->n; i++)
        hh_cells_add(t, "%.4f +- %.4f", c->p[i].perplexity, c->p[i].perplexity * c->p[i].nll_error);
    if (!r) return;
    hh_cells_add(t, "%s, %lld samples of %lld tokens", task_name, (long long)samples, (long long)length);
    for (int i = 0; i < c->n; i++) hh_cells_add(t, "%.3f +- %.3f", r[i].accuracy, r[i].error);
}

static void print_written(const written *w) {
    char before[32], after[32], of_type[32];
    hh_cli_bytes_text(w->before, before);
    hh_cli_bytes_text(w->after, after);
    printf("%s: %s of weights, %s before\n", out_dir, after, before);
    for (int t = 0; t < HH_DTYPE_COUNT; t++) {
        if (!w->n[t]) continue;
        hh_cli_bytes_text(w->bytes[t], of_type);
        printf("  %-5s %4lld tensors %12s\n", hh_dtype_name((hh_dtype)t), (long long)w->n[t], of_type);
    }
    for (size_t i = 0; i < json_array_size(w->whole); i++)
        printf("  %s keeps its type: its rows are no multiple of 32\n", json_string_value(json_array_get(w->whole, i)));
    fflush(stdout); /* measuring takes its time */
}

static void print_cost(const cost *c) {
    hh_cells t = {.cols = 1 + c->n};
    hh_buf text = {0};
    add_rows(&t, c);
    hh_cells_print(&t, false, &text);
    fputs(text.data, stdout);
    if (c->why) printf("needles: %s\n", c->why);
    hh_buf_release(&text);
    hh_cells_release(&t);
}

static json_t *needles_json(const cost *c) {
    const hh_ruler_cell *r = c->r.cell;
    if (c->why) return json_pack("{s:s}", "skipped", c->why);
    json_t *o =
        json_pack("{s:s, s:I, s:I}", "task", task_name, "length", (json_int_t)length, "samples", (json_int_t)samples);
    for (int i = 0; i < c->n; i++)
        json_object_set_new(o, forms[i].key, json_pack("{s:f, s:f}", "accuracy", r[i].accuracy, "stderr", r[i].error));
    return o;
}

static json_t *perplexity_json(const cost *c) {
    json_t *o = json_object();
    for (int i = 0; i < c->n; i++) json_object_set_new(o, forms[i].key, hh_perplexity_json(&c->p[i]));
    return o;
}

static void print_json(const written *w, const char *path, const cost *c) {
    json_t *types = json_object(), *o;
    for (int t = 0; t < HH_DTYPE_COUNT; t++)
        if (w->n[t])
            json_object_set_new(
                types, hh_dtype_name((hh_dtype)t),
                json_pack("{s:I, s:I}", "tensors", (json_int_t)w->n[t], "bytes", (json_int_t)w->bytes[t]));
    o = json_pack("{s:s, s:s, s:i, s:I, s:I, s:o, s:O}", "model", path, "out", out_dir, "bits", *bits - '0',
                  "bytes_before", (json_int_t)w->before, "bytes_after", (json_int_t)w->after, "types", types,
                  "not_quantised", w->whole);
    if (c) json_object_set_new(o, "perplexity", perplexity_json(c));
    if (c && samples) json_object_set_new(o, "needles", needles_json(c));
    json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12));
    putchar('\n');
    json_decref(o);
}

/* -- both -- */

/* Before, after, and after with the smaller cache where there is one; still owned by before and after. */
static int list_forms(hh_subject out[FORMS], const hh_subject *before, const hh_subject *after) {
    hh_dtype type;
    hh_error none = {0};
    out[0] = *before;
    out[1] = out[2] = *after;
    out[2].kv = "q8_0";
    out[2].name = forms[2].title;
    return hh_subject_kv(&out[2], &type, &none) == HH_OK ? FORMS : FORMS - 1;
}

/* A subject called `name`, by itself. */
static hh_code open_one(hh_subject **out, hh_backend *be, const char *name, const char *path, hh_error *err) {
    char *text = hh_sprintf("%s=%s", name, path);
    const char *word = text;
    hh_code code = hh_subjects_open(out, be, &(hh_words){&word, 1}, NULL, err);
    hh_free(text);
    return code;
}

static hh_code check_words(const char *path, hh_error *err) {
    hh_needle_task task;
    if (!*out_dir) return hh_fail(err, HH_EINVAL, "quantize needs --out DIR");
    if (common.seed > UINT32_MAX)
        return hh_fail(err, HH_EINVAL, "--seed: RULER's seeds have 32 bits; %lld is too large", (long long)common.seed);
    HH_TRY(hh_needle_task_parse(task_name, &task, err));
    return hh_cli_check_out(path, out_dir, force, err);
}

static hh_code check_use(int argc, char **argv, hh_error *err) {
    static const char of_measure[] = "it is about measuring what it costs; leave one of the two out";
    const hh_option_use unmeasured[] = {{"file", false, of_measure},    {"length", false, of_measure},
                                        {"windows", false, of_measure}, {"task", false, of_measure},
                                        {"samples", false, of_measure}, {0}};
    const hh_option_use unasked[] = {{"task", samples > 0, "no needle is asked for; give a number"}, {0}};
    if (no_measure) return hh_options_check_use(&command, argc, argv, unmeasured, "with --no-measure", err);
    return hh_options_check_use(&command, argc, argv, unasked, "with --samples 0", err);
}

static hh_code quantize(const char *path, hh_error *err) {
    written w = {.whole = json_array()};
    cost c = {0};
    hh_backend *be = NULL;
    hh_subject *before = NULL, *after = NULL;
    hh_code code;
    HH_TRY_GOTO(code, check_words(path, err), out);
    if (!no_measure) { /* what cannot be measured is said before anything is written */
        HH_TRY_GOTO(code, hh_cli_backend(&common, &be, err), out);
        code = open_one(&before, be, forms[0].title, path, err);
        if (code != HH_OK) goto out;
    }
    HH_TRY_GOTO(code, write_checkpoint(&w, path, err), out);
    if (!json) print_written(&w);
    if (!no_measure) {
        hh_subject form[FORMS];
        HH_TRY_GOTO(code, open_one(&after, be, forms[1].title, out_dir, err), out);
        c.n = list_forms(form, before, after);
        HH_TRY_GOTO(code, measure(&c, form, err), out);
    }
    if (json)
        print_json(&w, path, no_measure ? NULL : &c);
    else if (!no_measure)
        print_cost(&c);
out:
    hh_free(c.why);
    hh_ruler_result_release(&c.r);
    hh_subjects_close(before, 1);
    hh_subjects_close(after, 1);
    hh_backend_close(be);
    json_decref(w.whole);
    return code;
}

int hh_cmd_quantize(int argc, char **argv) {
    hh_words words;
    int code;
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_error err = {0};
    hh_code done = check_use(argc, argv, &err);
    if (done == HH_OK) done = quantize(words.word[0], &err);
    hh_words_release(&words);
    return done == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
