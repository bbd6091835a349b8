/* hydrahead serve: an OpenAI-compatible server with a chat page. */
#include "base/filemap.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "server/server.h"

#include <stdio.h>
#include <string.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static const char *host = "127.0.0.1", *kv = "auto", *cache_dir, *key_file, *name, *rope;
static int64_t port = 8080, context, chunk, slots = 4, queue = 256;
static double cache_bytes = 1 << 30, timeout = 60;

static const hh_option options[] = {
    {.name = "port",
     .letter = 'p',
     .kind = HH_OPTION_INT,
     .value = &port,
     .argument = "N",
     .max = 65535,
     .help = "TCP port; 0 takes one that is free and prints it"},
    {.name = "host",
     .kind = HH_OPTION_STRING,
     .value = &host,
     .argument = "ADDRESS",
     .help = "address to listen at; 0.0.0.0 lets other machines in"},
    {.name = "ctx",
     .letter = 'c',
     .kind = HH_OPTION_INT,
     .value = &context,
     .argument = "N",
     .max = 1e12,
     .help = "tokens of one request, prompt and answer; 0 is the model's own length"},
    {.name = "slots",
     .kind = HH_OPTION_INT,
     .value = &slots,
     .argument = "N",
     .min = 1,
     .max = 64,
     .help = "answers that are made at the same time; each has a cache of --ctx tokens"},
    {.name = "queue",
     .kind = HH_OPTION_INT,
     .value = &queue,
     .argument = "N",
     .max = 1e6,
     .help = "requests that may wait for a slot; more are refused"},
    {.name = "timeout",
     .kind = HH_OPTION_FLOAT,
     .value = &timeout,
     .argument = "SECONDS",
     .min = 1,
     .max = 1e6,
     .help = "in which a request must arrive whole, and its answer be taken once it is made; large ones get more"},
    {.name = "cache-bytes",
     .kind = HH_OPTION_FLOAT,
     .value = &cache_bytes,
     .argument = "N",
     .max = 1e15,
     .help = "memory for what was read before, so that it is not read again; 0 keeps nothing"},
    {.name = "cache-dir",
     .kind = HH_OPTION_STRING,
     .value = &cache_dir,
     .argument = "DIR",
     .help = "keep it on disk too, where it outlives the server"},
    {.name = "api-key-file",
     .kind = HH_OPTION_STRING,
     .value = &key_file,
     .argument = "FILE",
     .help = "keys, one a line: requests must bring one of them as a bearer token"},
    {.name = "name",
     .kind = HH_OPTION_STRING,
     .value = &name,
     .argument = "NAME",
     .help = "what the model is called in the API (default: the last part of MODEL)"},
    {.name = "rope-scaling",
     .kind = HH_OPTION_STRING,
     .value = &rope,
     .argument = "KIND:F",
     .help = "stretch positions: yarn:4 or linear:4 for four times the model's own length"},
    HH_CLI_CHUNK_OPTION(chunk),
    HH_CLI_KV_OPTION(kv),
    HH_CLI_COMMON_OPTIONS(common),
    {0}};

static const hh_command command = {
    .verb = "serve",
    .summary = "an OpenAI-compatible server with a chat page",
    .words = "MODEL",
    .description =
        "Serves MODEL at http://HOST:PORT: a chat page at /, and under /v1 the API that OpenAI's clients speak "
        "(chat/completions, completions, models); also /tokenize, /detokenize, /health, /props and /metrics.\n\n"
        "What a prompt has in common with earlier ones is not read again, and the answer is the same as if it were. "
        "Several requests share each pass over the weights. Ctrl-C finishes what is under way, keeps what was read "
        "(--cache-dir) and ends.",
    .example = "hydrahead serve nano --help",
    .options = options,
    .min_words = 1,
    .max_words = 1};

/* The lines of a file, without blank ones; they point into text. */
static hh_code read_keys(hh_words *keys, hh_buf *text, hh_error *err) {
    HH_TRY(hh_file_read(key_file, (size_t)1 << 20, text, err));
    char *rest = NULL;
    for (char *line = strtok_r(text->data, "\r\n", &rest); line; line = strtok_r(NULL, "\r\n", &rest)) {
        if (!*line) continue;
        keys->word = hh_realloc(keys->word, (size_t)(keys->n + 1) * sizeof *keys->word);
        keys->word[keys->n++] = line;
    }
    return keys->n ? HH_OK : hh_fail(err, HH_EINVAL, "%s: no key in it; one a line", key_file);
}

static void say_ready(void *context_, int at) {
    const char *model = context_;
    fprintf(stderr, "%s is served at http://%s:%d (chat page), API at http://%s:%d/v1; Ctrl-C ends\n", model, host, at,
            host, at);
    printf("%d\n", at);
    fflush(stdout);
}

static void say_log(void *unused, hh_log_level level, const char *sentence) {
    (void)unused;
    if (level == HH_LOG_WARNING || !common.quiet) fprintf(stderr, "%s\n", sentence);
}

static const char *last_part(const char *path) {
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/') len--;
    const char *start = path + len;
    while (start > path && start[-1] != '/') start--;
    return start;
}

/* Room for any prompt that fits, as text or as ids, for a batch of small ones, and not for more. */
static size_t largest_body(int64_t tokens) {
    const size_t least = (size_t)4 << 20, most = (size_t)256 << 20;
    return tokens < (int64_t)(most - least) / 64 ? least + (size_t)tokens * 64 : most;
}

static hh_code serve(const char *path, hh_error *err) {
    hh_words keys = {0};
    hh_buf text = {0};
    hh_engine *engine = NULL;
    hh_engine_options o = {.device = common.device,
                           .dtype = common.dtype,
                           .kv = kv,
                           .rope = rope,
                           .threads = (int)common.threads,
                           .chunk = chunk,
                           .cache_bytes = cache_bytes > 0 ? (size_t)cache_bytes : SIZE_MAX,
                           .cache_dir = cache_dir,
                           .log = say_log};
    hh_code code = key_file ? read_keys(&keys, &text, err) : HH_OK;
    if (code == HH_OK) code = hh_engine_open(&engine, path, &o, err);
    if (code == HH_OK) {
        hh_server_options server = {.model_name = name ? name : last_part(path),
                                    .host = host,
                                    .port = (int)port,
                                    .context = context ? context : hh_engine_get_info(engine).native_context,
                                    .slots = slots,
                                    .queue = queue,
                                    .max_body =
                                        largest_body(context ? context : hh_engine_get_info(engine).native_context),
                                    .request_seconds = timeout,
                                    .key = keys.word,
                                    .n_keys = keys.n,
                                    .on_ready = say_ready,
                                    .context_of_ready = (void *)(name ? name : last_part(path))};
        code = hh_server_run(engine, &server, err);
    }
    hh_engine_close(engine);
    hh_words_release(&keys);
    hh_buf_release(&text);
    return code;
}

int hh_cmd_serve(int argc, char **argv) {
    hh_error err = {0};
    hh_words words;
    int code;
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    const hh_option_use use[] = {{"cache-dir", cache_bytes > 0, "nothing is kept; leave one of the two out"}, {0}};
    hh_code done = hh_options_check_use(&command, argc, argv, use, "with --cache-bytes 0", &err);
    if (done == HH_OK) done = serve(words.word[0], &err);
    hh_words_release(&words);
    return done == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
