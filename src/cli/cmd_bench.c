/* `bench`: tokens a second of prefill and decode at several contexts, one JSON line each; the peer's script prints the
 * same lines. */
#include "base/progress.h"
#include "cli/opened.h"
#include "session/session.h"

#include <stdio.h>
#include <string.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static const char *contexts = "512,2048,8128", *kv = "auto";
static int64_t chunk, decode = 32;
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
    HH_CLI_CHUNK_OPTION(chunk),
    HH_CLI_KV_OPTION(kv),
    HH_CLI_JSON_OPTION(json),
    HH_CLI_COMMON_OPTIONS(common),
    {0},
};

static const hh_command command = {
    .verb = "bench",
    .summary = "tokens a second of prefill and decode",
    .words = "MODEL",
    .description = "Prefills that many tokens in chunks, then decodes some more, and prints tokens a second of both. "
                   "`kind` says how the weights "
                   "are held. The ids are arbitrary: speed does not depend on them.",
    .example = "hydrahead bench nano --contexts 64,256 --decode 8 --json",
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

static hh_code measure(const hh_model *m, hh_session *s, int64_t context, const int32_t *ids, hh_error *err) {
    char kind[64];
    kind_text(m, kind);
    hh_session_reset(s);
    double start = hh_now();
    HH_TRY(hh_session_eval(s, ids, context, err));
    double middle = hh_now();
    for (int64_t i = 0; i < decode; i++) HH_TRY(hh_session_step(s, ids[i % context], err));
    double end = hh_now(), prefill_rate = (double)context / (middle - start),
           decode_rate = (double)decode / (end - middle);
    if (json) {
        printf("{\"kind\": \"%s\", \"context\": %lld, \"prefill_tok_s\": %.1f, \"decode_tok_s\": %.1f}\n", kind,
               (long long)context, prefill_rate, decode_rate);
    } else {
        printf("%-12s context %7lld   prefill %9.1f tokens/s   decode %8.1f tokens/s\n", kind, (long long)context,
               prefill_rate, decode_rate);
    }
    fflush(stdout);
    return HH_OK;
}

/* Before the clock runs: weights are read once, kernels are chosen, a step of decoding is recorded. */
static hh_code warm_up(const hh_backend *be, hh_session *s, int64_t longest, const int32_t *ids, hh_error *err) {
    HH_TRY(hh_session_eval(s, ids, longest < be->pass_tokens ? longest : be->pass_tokens, err));
    for (int64_t i = 0; i < decode && i < 4; i++) HH_TRY(hh_session_step(s, ids[0], err));
    return HH_OK;
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
    const hh_session_options so = {.context = longest + decode, .chunk = chunk, .kv_dtype = hh_cli_kv_dtype(kv, o.be)};
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

int hh_cmd_bench(int argc, char **argv) {
    hh_words words;
    int code;
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_error err = {0};
    work(words.word[0], &err);
    hh_words_release(&words);
    return err.code == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
