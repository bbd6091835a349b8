/* `plan`: will it fit? What running or training a model takes, before its weights are read. */
#include "cli/opened.h"
#include "ops/gemm.h"
#include "session/session.h"
#include "train/stage.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static int64_t ctx = 4096, batch = 1, chunk, micro_tokens;
static const char *kv = "auto", *stage_name = "auto", *teacher_path = "";
static bool train, json;

static const hh_option options[] = {
    {.name = "ctx",
     .letter = 'c',
     .kind = HH_OPTION_INT,
     .value = &ctx,
     .argument = "N",
     .min = 1,
     .max = 1e12,
     .help = "context in tokens; with --train the length of a sequence"},
    {.name = "batch",
     .letter = 'b',
     .kind = HH_OPTION_INT,
     .value = &batch,
     .argument = "N",
     .min = 1,
     .max = 1e6,
     .help = "sequences at once"},
    HH_CLI_CHUNK_OPTION(chunk),
    HH_CLI_KV_OPTION(kv),
    {.name = "train",
     .kind = HH_OPTION_FLAG,
     .value = &train,
     .help = "a training step instead: weights, gradients and moments, and the activations of all layers"},
    {.name = "stage",
     .kind = HH_OPTION_CHOICE,
     .value = &stage_name,
     .choices = "auto|" HH_STAGE_CHOICES,
     .help = "with --train: the loss; align trains the mixers alone, auto is distill when there is a --teacher, else "
             "extend"},
    {.name = "teacher",
     .kind = HH_OPTION_STRING,
     .value = &teacher_path,
     .argument = "MODEL",
     .help = "with --train: the model that align and distill learn from"},
    {.name = "micro-tokens",
     .kind = HH_OPTION_INT,
     .value = &micro_tokens,
     .argument = "N",
     .max = 1e9,
     .help = "with --train: tokens of one forward and backward; 0 is all of a step's"},
    HH_CLI_JSON_OPTION(json),
    HH_CLI_COMMON_OPTIONS(common),
    {0},
};

static const hh_command command = {
    .verb = "plan",
    .summary = "memory that a model needs, before loading it",
    .words = "MODEL",
    .description =
        "Prints what running MODEL at a context of --ctx tokens takes, part by part, without reading its "
        "weights. The KV cache holds "
        "the kept heads only; the state of Gated DeltaNet heads does not grow with the context. What is more than the "
        "memory there is ends with exit code 1. On a GPU the "
        "sum is what the driver will count as used, with its own context and what other programs have now. With "
        "--train "
        "it is what train takes of the same --stage, --teacher and --micro-tokens.",
    .example = "hydrahead plan nano --ctx 4096\nhydrahead plan nano --ctx 256 --batch 32 --train\n"
               "hydrahead plan nano-hybrid --teacher nano --stage distill --ctx 256 --batch 8 --train",
    .options = options,
    .min_words = 1,
    .max_words = 1,
};

/* Measured (tools/check_plan.sh), much the same for every model: what work brings in of the program, its libraries and the heap; oneDNN's
 * kernels, made at run time for the shapes they meet; the part of a thread's scratch that is touched. */
#define WORK_BYTES   ((size_t)7 << 19)
#define KERNEL_BYTES ((size_t)4 << 20)
#define THREAD_BYTES ((size_t)2 << 20) /* a huge page */
#define LOSS_ROWS    512               /* of a tile of logits, if half of the scratch holds them */

typedef struct row {
    const char *key, *what;
    double bytes;
} row;

enum { MAX_ROWS = 16 };
typedef struct table {
    row row[MAX_ROWS];
    int n;
} table;

static void add(table *t, const char *key, const char *what, double bytes) {
    HH_ASSERT(t->n < MAX_ROWS);
    if (bytes > 0) t->row[t->n++] = (row){.key = key, .what = what, .bytes = bytes};
}

static void plan_inference(table *t, const hh_config *c, const hh_backend *be, hh_dtype type) {
    const hh_session_options o = {.context = ctx, .chunk = chunk, .kv_dtype = type};
    const double cache = (double)hh_cache_bytes(c, ctx, type), fixed = (double)hh_cache_bytes(c, 0, type);
    add(t, "kv_cache", "KV cache of the kept heads", (double)batch * (cache - fixed));
    add(t, "states", "states of the linear heads", (double)batch * fixed);
    add(t, "activations", "activations of one pass", (double)batch * ((double)hh_session_bytes(c, be, &o) - cache));
}

static const hh_stage *chosen_stage(void) {
    const hh_stage *named = hh_stage_find(stage_name);
    return named ? named : *teacher_path ? &hh_stage_distill : &hh_stage_extend;
}

/* The options that train would make of the same words, as far as memory depends on them. */
static hh_trainer_options training_options(const hh_stage *stage) {
    static int64_t length[1];
    hh_trainer_options o = hh_trainer_defaults(stage, 1);
    const int64_t all = ctx * batch, micro = micro_tokens && micro_tokens < all ? micro_tokens : all;
    length[0] = ctx;
    o.data.sequences = batch;
    o.data.length = length;
    o.data.n_lengths = 1;
    o.data.micro_tokens = micro > ctx ? micro : ctx;
    return o;
}

/* What the model takes that is learnt from: weights as they are stored, and a pass. */
typedef struct teacher {
    hh_config *config; /* NULL: there is none */
    size_t arena, mapped;
} teacher;

static void plan_training(table *t, const hh_config *c, const hh_backend *be, const teacher *from) {
    const hh_trainer_options o = training_options(chosen_stage());
    const hh_trainer_sizes s = hh_trainer_measure(&o, be, from->config, c);
    add(t, "gradients", "gradients", (double)s.gradients);
    add(t, "moments", "moments of AdamW", (double)s.moments);
    const double largest = (double)(c->vocab > c->ffn ? c->vocab : c->ffn) * (double)c->width * sizeof(float);
    if (be->host_memory) add(t, "saving", "the largest weight, for saving", largest);
    add(t, "activations", o.stage->mixers_only ? "activations of one layer" : "activations of all layers",
        (double)s.activations);
    if (!from->config) return;
    add(t, "teacher_weights", "teacher's weights in memory of their own", (double)from->arena);
    add(t, "teacher_mapped", "teacher's weights used from the file", (double)from->mapped);
    add(t, "teacher_activations", "teacher's activations", (double)s.teacher);
}

/* What the program takes beside the model: on a GPU nothing of it is the host's. */
static void plan_rest(table *t, const hh_config *c, hh_backend *be) {
    if (be->reserved) {
        size_t free_bytes = 0, all = 0;
        if (be->memory) be->memory(be, &free_bytes, &all);
        add(t, "scratch", "scratch, workspace and lists of the operations", (double)be->reserved);
        add(t, "driver", "the driver's context and other programs, as now",
            (double)(all - free_bytes) - (double)be->reserved);
        return;
    }
    const bool bf16 = c->stored == HH_DTYPE_BF16 && be->precision != HH_PRECISION_F32 && hh_gemm_has_bf16();
    const double logits = (double)(LOSS_ROWS * c->vocab) * sizeof(float), most = (double)HH_SCRATCH_BYTES / 2;
    const double tiles = *teacher_path ? 2 * logits : logits; /* what is compared, and with what */
    const double tile = (tiles < most ? tiles : most) + 2.0 * (double)(LOSS_ROWS * c->width) * sizeof(float);
    add(t, "work", "what work adds to the program", (double)WORK_BYTES);
    if (train || bf16) add(t, "kernels", "kernels made for the products' shapes", (double)KERNEL_BYTES);
    add(t, "scratch", "scratch of the operations",
        (double)be->n_threads * (double)THREAD_BYTES + (train && !chosen_stage()->mixers_only ? tile : 0));
}

static double total_of(const table *t) {
    double total = 0;
    for (int i = 0; i < t->n; i++) total += t->row[i].bytes;
    return total;
}

#define LESS "a shorter --ctx, a smaller --batch or --chunk, or --kv q8_0 takes less"

/* HH_ENOMEM when the table asks for more than there is. */
static hh_code check_fit(const table *t, hh_backend *be, const char *path, hh_error *err) {
    size_t free_bytes = 0, all = be->host_memory ? hh_cli_machine_bytes() : 0;
    if (be->memory) be->memory(be, &free_bytes, &all);
    if (!all || total_of(t) <= (double)all) return HH_OK;
    if (be->host_memory)
        return hh_fail(err, HH_ENOMEM, "%s needs %.2f GiB where the machine has %.2f; " LESS, path,
                       total_of(t) / (1 << 30), (double)all / (1 << 30));
    double used = 0; /* by what is no part of this model */
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->row[i].key, "driver")) used = t->row[i].bytes;
    const double needed = total_of(t) - used, there = (double)all - used;
    return hh_fail(err, HH_ENOMEM, "%s needs %.2f GiB where %.2f of %.2f GiB are free; " LESS, path, needed / (1 << 30),
                   there / (1 << 30), (double)all / (1 << 30));
}

static void print_table(const table *t, const char *path) {
    const double total = total_of(t);
    char text[32];
    if (json) {
        json_t *o = json_pack("{s:s, s:I, s:I}", "model", path, "context", (json_int_t)ctx, "batch", (json_int_t)batch);
        for (int i = 0; i < t->n; i++) json_object_set_new(o, t->row[i].key, json_integer((json_int_t)t->row[i].bytes));
        json_object_set_new(o, "total", json_integer((json_int_t)total));
        json_dumpf(o, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(o);
        return;
    }
    printf("%s, %lld tokens of context, %lld sequence%s%s\n", path, (long long)ctx, (long long)batch,
           batch == 1 ? "" : "s", train ? ", training" : "");
    for (int i = 0; i < t->n; i++) {
        hh_cli_bytes_text(t->row[i].bytes, text);
        printf("  %-42s %10s\n", t->row[i].what, text);
    }
    hh_cli_bytes_text(total, text);
    printf("  %-42s %10s\n", "all", text);
}

/* Words of training that would not be looked at, or lack each other. */
static hh_code check_words(int argc, char **argv, hh_error *err) {
    static const char of_step[] = "it is about a training step; add --train";
    const hh_option_use use[] = {{"stage", train, of_step},
                                 {"teacher", train, of_step},
                                 {"micro-tokens", train, of_step},
                                 {"chunk", !train, "training reads a step in pieces of --micro-tokens"},
                                 {"kv", !train, "training keeps no KV cache"},
                                 {0}};
    const hh_stage *stage = chosen_stage();
    HH_TRY(hh_options_check_use(&command, argc, argv, use, train ? "with --train" : "without --train", err));
    if (stage->needs_teacher && !*teacher_path)
        return hh_fail(err, HH_EINVAL, "--stage %s learns from a teacher; name it with --teacher", stage->name);
    if (!stage->needs_teacher && *teacher_path)
        return hh_fail(err, HH_EINVAL, "--stage %s has no teacher; --stage align and distill have one", stage->name);
    return HH_OK;
}

static hh_code measure_teacher(teacher *out, hh_backend *be, hh_error *err) {
    if (!*teacher_path) return HH_OK;
    out->config = hh_alloc(sizeof *out->config);
    return hh_model_measure(teacher_path, be, HH_LOAD_STORED, out->config, &out->arena, &out->mapped, err);
}

static void fill(table *t, const hh_config *c, hh_backend *be, const char *path, size_t arena, size_t mapped,
                 const teacher *from, hh_dtype type) {
    hh_tokenizer *tokenizer = NULL;
    hh_error none = {0};
    if (hh_cli_tokenizer(&tokenizer, path, &none) != HH_OK) tokenizer = NULL; /* ids alone need none */
    if (be->host_memory) add(t, "program", "program, libraries and tokenizer, as now", (double)hh_cli_resident_bytes());
    add(t, "weights", "weights in memory of their own", (double)arena);
    add(t, "mapped", "weights used from the file", (double)mapped);
    if (train)
        plan_training(t, c, be, from);
    else
        plan_inference(t, c, be, type);
    plan_rest(t, c, be);
    hh_tokenizer_close(tokenizer);
}

static hh_code make(table *t, const char *path, hh_error *err) {
    hh_backend *be = NULL;
    hh_config *c = hh_alloc(sizeof *c);
    teacher from = {0};
    size_t arena, mapped;
    hh_dtype type = HH_DTYPE_F32;
    hh_code code = hh_cli_backend(&common, &be, err);
    if (code == HH_OK)
        code = hh_model_measure(path, be, train ? HH_LOAD_REAL : HH_LOAD_STORED, c, &arena, &mapped, err);
    if (code == HH_OK) code = hh_cache_type(&type, kv, be, c, err);
    if (code == HH_OK) code = measure_teacher(&from, be, err);
    if (code == HH_OK) {
        fill(t, c, be, path, arena, mapped, &from, type);
        print_table(t, path);
        code = check_fit(t, be, path, err);
    }
    hh_backend_close(be);
    hh_free(from.config);
    hh_free(c);
    return code;
}

int hh_cmd_plan(int argc, char **argv) {
    hh_words words;
    int code;
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_error err = {0};
    table t = {0};
    if (check_words(argc, argv, &err) == HH_OK) make(&t, words.word[0], &err);
    hh_words_release(&words);
    return err.code == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
