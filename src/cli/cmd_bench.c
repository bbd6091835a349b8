/* `bench`: tokens a second of prefill and decode at several contexts, one JSON line each; the peer's script prints the
 * same lines. Or of training steps, of which nothing is written. */
#include "base/progress.h"
#include "cli/bench_peer.h"
#include "cli/opened.h"
#include "session/session.h"
#include "train/trainer.h"

#include <inttypes.h>

#include <stdio.h>
#include <string.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static const char *contexts = "512,2048,8128", *kv = "auto", *train = "", *teacher_path = "", *peer_path = "";
static int64_t chunk, decode = 32, steps = 4, recorded_tokens = -1, micro_tokens;
static bool json;

static const hh_option options[] = {
    {.name = "contexts",
     .kind = HH_OPTION_STRING,
     .value = &contexts,
     .argument = "N,N",
     .help = "tokens to prefill, one measurement each"},
    {.name = "decode",
     .kind = HH_OPTION_INT,
     .value = &decode,
     .argument = "N",
     .min = 1,
     .max = 1e6,
     .help = "tokens to decode behind each"},
    {.name = "peer",
     .kind = HH_OPTION_STRING,
     .value = &peer_path,
     .argument = "FILE",
     .help = "lines as --json prints them, of another program: every line ends with the ratio to that"},
    {.name = "train",
     .kind = HH_OPTION_STRING,
     .value = &train,
     .argument = "NxT",
     .help = "instead: training steps of N sequences of T tokens, on the next token"},
    {.name = "teacher",
     .kind = HH_OPTION_STRING,
     .value = &teacher_path,
     .argument = "MODEL",
     .help = "with --train: steps of distillation from MODEL"},
    {.name = "steps",
     .kind = HH_OPTION_INT,
     .value = &steps,
     .argument = "N",
     .min = 1,
     .max = 1e6,
     .help = "with --train: steps that are timed, behind those that are not"},
    {.name = "recorded-tokens",
     .kind = HH_OPTION_INT,
     .value = &recorded_tokens,
     .argument = "N",
     .min = -1,
     .max = 1 << 20,
     .help = "with --train, on a GPU: a micro-batch of at most N tokens is launched as one when its shape comes again; "
             "-1 is what training does"},
    {.name = "micro-tokens",
     .kind = HH_OPTION_INT,
     .value = &micro_tokens,
     .argument = "N",
     .min = 0,
     .max = 1 << 30,
     .help = "with --train: tokens computed at once; 0 is the whole step"},
    HH_CLI_CHUNK_OPTION(chunk),
    HH_CLI_KV_OPTION(kv),
    HH_CLI_JSON_OPTION(json),
    HH_CLI_COMMON_OPTIONS(common),
    {0},
};

static const hh_command command = {
    .verb = "bench",
    .summary = "tokens a second of prefill and decode, or of training",
    .words = "MODEL",
    .description =
        "Prefills that many tokens in chunks, then decodes some more, and prints tokens a second of both. `kind` says "
        "how the weights are held. The ids are arbitrary: speed does not depend on them. With --peer, prefill is "
        "compared with the fastest kind of the other program at that length, decode with the same kind where it has "
        "that, else with its fastest; bench/peers/llama_cpu.py writes such a file.\n\n"
        "With --train it takes steps of the optimizer and prints the fastest step's speed; nothing is written. On a "
        "GPU every line ends with the memory that the driver counts as used, by this program and others.",
    .example = "hydrahead bench nano --contexts 64,256 --decode 8 --json\n"
               "hydrahead bench nano --train 4x128 --steps 1",
    .options = options,
    .min_words = 1,
    .max_words = 1,
};

/* "bf16", or "q4_1+q6_k": the types of the layers' matrices. */
static void kind_text(const hh_model *m, char out[64]) {
    bool seen[HH_DTYPE_COUNT] = {false};
    size_t n = 0;
    *out = 0;
    for (int64_t i = 0; i < m->n_params; i++) {
        const hh_param *p = &m->param[i];
        if (!p->matrix || p->layer < 0 || seen[p->slot->dtype]) continue;
        seen[p->slot->dtype] = true;
        n += (size_t)snprintf(out + n, 64 - n, "%s%s", n ? "+" : "", hh_dtype_name(p->slot->dtype));
        if (n > 50) break;
    }
}

/* The end of a line: what the driver counts, where there is one. */
static void print_memory(const hh_backend *be) {
    size_t free_bytes = 0, all = 0;
    char text[32];
    if (be->memory) be->memory((hh_backend *)be, &free_bytes, &all);
    if (all && json) {
        printf(", \"gpu_bytes\": %zu", all - free_bytes);
    } else if (all) {
        hh_cli_bytes_text((double)(all - free_bytes), text);
        printf("   %s in use", text);
    }
    puts(json ? "}" : "");
    fflush(stdout);
}

/* Times as fast as the peer, where its file has this context. */
static void print_ratio(const char *what, double ours, double theirs) {
    if (theirs <= 0) return;
    if (json)
        printf(", \"peer_%s_tok_s\": %.1f, \"%s_ratio\": %.2f", what, theirs, what, ours / theirs);
    else
        printf("   %s x%.2f", what, ours / theirs);
}

static hh_code print_peer(const char *kind, int64_t context, double prefill, double decode_rate, hh_error *err) {
    hh_bench_peer peer;
    if (!*peer_path) return HH_OK;
    HH_TRY(hh_bench_peer_read(&peer, peer_path, kind, context, err));
    if (peer.prefill <= 0 && peer.decode <= 0) return HH_OK;
    printf(json ? ", \"peer\": \"%s\"" : "   of %s:", peer.name);
    print_ratio("prefill", prefill, peer.prefill);
    print_ratio("decode", decode_rate, peer.decode);
    return HH_OK;
}

#define SHORT 0.25 /* seconds of a prefill that is repeated: the first one chooses kernels for its shapes */

/* A step is run as it comes, then recorded, before it is replayed. */
static int64_t untimed_steps(const hh_backend *be) {
    return be->record_begin ? 3 : 0;
}

static hh_code measure(const hh_model *m, hh_session *s, int64_t context, const int32_t *ids, hh_error *err) {
    char kind[64];
    kind_text(m, kind);
    double prefill_seconds = 0;
    for (int pass = 0; pass < 3 && (!pass || prefill_seconds < SHORT); pass++) {
        hh_session_reset(s);
        const double start = hh_now();
        HH_TRY(hh_session_eval(s, ids, context, err));
        const double seconds = hh_now() - start;
        if (!pass || seconds < prefill_seconds) prefill_seconds = seconds;
    }
    for (int64_t i = 0; i < untimed_steps(m->be); i++) HH_TRY(hh_session_step(s, ids[i % context], err));
    const double start = hh_now();
    for (int64_t i = 0; i < decode; i++) HH_TRY(hh_session_step(s, ids[i % context], err));
    const double prefill_rate = (double)context / prefill_seconds, decode_rate = (double)decode / (hh_now() - start);
    if (json) {
        printf("{\"kind\": \"%s\", \"context\": %lld, \"prefill_tok_s\": %.1f, \"decode_tok_s\": %.1f", kind,
               (long long)context, prefill_rate, decode_rate);
    } else {
        printf("%-12s context %7lld   prefill %9.1f tokens/s   decode %8.1f tokens/s", kind, (long long)context,
               prefill_rate, decode_rate);
    }
    const hh_code code = print_peer(kind, context, prefill_rate, decode_rate, err);
    print_memory(m->be);
    return code;
}

/* Before the clock runs: weights are read once, kernels are chosen, a step of decoding is recorded. */
static hh_code warm_up(const hh_backend *be, hh_session *s, int64_t longest, const int32_t *ids, hh_error *err) {
    HH_TRY(hh_session_eval(s, ids, longest < be->pass_tokens ? longest : be->pass_tokens, err));
    for (int64_t i = 0; i < decode && i < 4; i++) HH_TRY(hh_session_step(s, ids[0], err));
    return HH_OK;
}

/* -- training -- */

static hh_code fill_sequence(void *context, int64_t step, int64_t row, int64_t n_rows, int64_t length, int32_t *ids,
                             uint8_t *flags, hh_error *err) {
    const int64_t vocab = *(const int64_t *)context, first = (step * n_rows + row) * length;
    (void)err;
    for (int64_t i = 0; i < length; i++) {
        ids[i] = (int32_t)(((first + i) * 7919 + 100) % vocab);
        flags[i] = 0;
    }
    return HH_OK;
}

static hh_code parse_shape(int64_t *n, int64_t *length, hh_error *err) {
    char end;
    if (sscanf(train, "%" SCNd64 "x%" SCNd64 "%c", n, length, &end) == 2 && *n > 0 && *length > 1 && *n < 1 << 20 &&
        *length <= 1 << 30)
        return HH_OK;
    return hh_fail(err, HH_EINVAL, "--train %s: write it like 8x2048, sequences and their tokens", train);
}

static void print_training(const hh_trainer *t, int64_t n, int64_t length, double seconds) {
    const double rate = (double)(n * length) / seconds;
    const char *stage = t->teacher ? "distill" : "extend";
    if (json) {
        printf("{\"stage\": \"%s\", \"sequences\": %" PRId64 ", \"length\": %" PRId64 ", \"micro_tokens\": %" PRId64
               ", \"step_s\": %.5f, \"train_tok_s\": %.1f",
               stage, n, length, t->o.data.micro_tokens, seconds, rate);
    } else {
        printf("%-8s %5" PRId64 " x %6" PRId64 "   %9.2f ms a step   %9.1f tokens/s", stage, n, length, seconds * 1e3,
               rate);
    }
    print_memory(t->be);
}

static hh_code time_steps(hh_trainer *t, int64_t n, int64_t length, hh_error *err) {
    const bool records = t->be->record_begin && t->o.data.micro_tokens <= t->o.recorded_tokens;
    const int64_t untimed = records ? 4 : 1; /* shapes are met, and recorded */
    double best = 0;
    for (int64_t i = 0; i < untimed + steps; i++) {
        hh_step_report r;
        HH_TRY(hh_trainer_step(t, &r, err));
        if (i == untimed || (i > untimed && r.seconds < best)) best = r.seconds;
    }
    print_training(t, n, length, best);
    return HH_OK;
}

static hh_code work_training(const char *path, hh_error *err) {
    int64_t n, length;
    HH_TRY(parse_shape(&n, &length, err));
    hh_backend *be = NULL;
    hh_model *m = NULL, *teacher = NULL;
    hh_trainer *t = NULL;
    hh_code code;
    HH_TRY(hh_cli_backend(&common, &be, err));
    if (recorded_tokens >= 0 && !be->record_begin) {
        code = hh_fail(err, HH_EINVAL,
                       "--recorded-tokens has no effect here: only a GPU takes recordings, and none while "
                       "HYDRAHEAD_CHECK or HYDRAHEAD_TRACE looks at every operation; leave it out");
        goto done;
    }
    HH_TRY_GOTO(code, hh_model_open(&m, be, path, HH_LOAD_REAL, err), done);
    if (*teacher_path) HH_TRY_GOTO(code, hh_model_open(&teacher, be, teacher_path, HH_LOAD_STORED, err), done);
    hh_trainer_options o = hh_trainer_defaults(teacher ? &hh_stage_distill : &hh_stage_extend, steps);
    if (recorded_tokens >= 0) o.recorded_tokens = recorded_tokens;
    o.data.sequences = n;
    o.data.length = &length;
    o.data.n_lengths = 1;
    o.data.micro_tokens = micro_tokens > length ? micro_tokens : micro_tokens ? length : n * length;
    o.data.seed = (uint64_t)common.seed;
    o.data.fill = fill_sequence;
    o.data.context = &m->config.vocab;
    HH_TRY_GOTO(code, hh_trainer_new(&t, &o, teacher, &m, 1, err), done);
    code = time_steps(t, n, length, err);
done:
    hh_trainer_free(t);
    hh_model_close(teacher);
    hh_model_close(m);
    hh_backend_close(be);
    return code;
}

static hh_code work(const char *path, hh_error *err) {
    hh_cli_opened o = {0};
    hh_session *s = NULL;
    int64_t *list = NULL, n = 0, longest = 0;
    int32_t *ids = NULL;
    hh_code code;
    HH_TRY_GOTO(code, hh_parse_int_list("contexts", contexts, &list, &n, err), done);
    for (int64_t i = 0; i < n; i++) {
        if (list[i] < 1 || list[i] > 1 << 30) {
            code = hh_fail(err, HH_EINVAL, "--contexts: %lld tokens make no sense", (long long)list[i]);
            goto done;
        }
        if (list[i] > longest) longest = list[i];
    }
    HH_TRY_GOTO(code, hh_cli_opened_open(&o, &common, path, false, err), done);
    hh_session_options so = {.context = longest + untimed_steps(o.be) + decode, .chunk = chunk};
    HH_TRY_GOTO(code, hh_cache_type(&so.kv_dtype, kv, o.be, &o.m->config, err), done);
    HH_TRY_GOTO(code, hh_session_new(&s, o.m, &so, err), done);
    ids = hh_alloc((size_t)longest * sizeof *ids);
    for (int64_t i = 0; i < longest; i++) ids[i] = (int32_t)((i * 7919 + 100) % o.m->config.vocab);
    HH_TRY_GOTO(code, warm_up(o.be, s, longest, ids, err), done);
    for (int64_t i = 0; i < n && code == HH_OK; i++) code = measure(o.m, s, list[i], ids, err);
done:
    hh_session_free(s);
    hh_free(ids);
    hh_free(list);
    hh_cli_opened_close(&o);
    return code;
}

static hh_code check_use(int argc, char **argv, hh_error *err) {
    static const char of_steps[] = "it is about training steps; add --train NxT",
                      of_inference[] = "training steps alone are timed; measure prefill and decode in a run without it";
    const bool training = *train;
    const hh_option_use use[] = {{"teacher", training, of_steps},         {"steps", training, of_steps},
                                 {"recorded-tokens", training, of_steps}, {"micro-tokens", training, of_steps},
                                 {"contexts", !training, of_inference},   {"decode", !training, of_inference},
                                 {"peer", !training, of_inference},       {"chunk", !training, of_inference},
                                 {"kv", !training, of_inference},         {0}};
    return hh_options_check_use(&command, argc, argv, use, training ? "with --train" : "without --train", err);
}

int hh_cmd_bench(int argc, char **argv) {
    hh_words words;
    int code;
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_error err = {0};
    if (check_use(argc, argv, &err) == HH_OK) {
        if (*train)
            work_training(words.word[0], &err);
        else
            work(words.word[0], &err);
    }
    hh_words_release(&words);
    return err.code == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
