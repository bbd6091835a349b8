/* `run`: text out of a model, streamed; one continuation of a prompt, or a dialogue. */
#include "base/filemap.h"
#include "base/progress.h"
#include "cli/opened.h"
#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static const char *file, *kv = "auto", *system_text;
static bool chat, special;
static int64_t max_new = 256, top_k, context, chunk;
static double temperature, top_p = 1, min_p;
static hh_words stops;

static const hh_option options[] = {
    HH_CLI_FILE_OPTION(file, "the prompt is this file's text"),
    {.name = "chat",
     .kind = HH_OPTION_FLAG,
     .value = &chat,
     .help = "the prompt is a user's turn in the model's chat template; without a prompt, a dialogue on the terminal"},
    {.name = "system",
     .kind = HH_OPTION_STRING,
     .value = &system_text,
     .argument = "TEXT",
     .help = "with --chat, the system's turn"},
    {.name = "special",
     .kind = HH_OPTION_FLAG,
     .value = &special,
     .help = "special tokens written in the prompt become their ids; in a chat they are text"},
    {.name = "max-new",
     .letter = 'n',
     .kind = HH_OPTION_INT,
     .value = &max_new,
     .argument = "N",
     .min = 1,
     .max = 1e9,
     .help = "most tokens to generate"},
    {.name = "temperature",
     .kind = HH_OPTION_FLOAT,
     .value = &temperature,
     .argument = "X",
     .min = 0,
     .max = 100,
     .help = "0 takes the most likely token"},
    {.name = "top-k",
     .kind = HH_OPTION_INT,
     .value = &top_k,
     .argument = "N",
     .max = 1e9,
     .help = "sample among the N most likely tokens; 0: all"},
    {.name = "top-p",
     .kind = HH_OPTION_FLOAT,
     .value = &top_p,
     .argument = "X",
     .min = 0,
     .max = 1,
     .help = "sample among the most likely tokens that have this share of the mass"},
    {.name = "min-p",
     .kind = HH_OPTION_FLOAT,
     .value = &min_p,
     .argument = "X",
     .min = 0,
     .max = 1,
     .help = "sample among tokens at least this likely, relative to the most likely one"},
    {.name = "stop", .kind = HH_OPTION_LIST, .value = &stops, .argument = "TEXT", .help = "end before this text"},
    {.name = "context",
     .kind = HH_OPTION_INT,
     .value = &context,
     .argument = "N",
     .max = 1e9,
     .help = "tokens to make room for; 0 is the prompt and --max-new"},
    HH_CLI_CHUNK_OPTION(chunk),
    HH_CLI_KV_OPTION(kv),
    HH_CLI_COMMON_OPTIONS(common),
    {0},
};

static const hh_command command = {
    .verb = "run",
    .summary = "generate text from a prompt, a file, or in a dialogue",
    .words = "MODEL [PROMPT]",
    .description =
        "Continues PROMPT (or a file, or standard input) and prints what comes as it comes. Generation stops at any "
        "end token that "
        "the model's files name. Speed and peak memory are printed on standard error at the end. Ctrl-C ends cleanly.",
    .example = "hydrahead run nano \"The grass is green.\" --max-new 32\n"
               "hydrahead run nano \"The grass is green.\" --max-new 16 --temperature 0.8 --top-p 0.9 --seed 7",
    .options = options,
    .min_words = 1,
    .max_words = 2,
};

/* Text on its way out: what might be the beginning of a stop text is held back. */
typedef struct stream {
    const hh_tokenizer *t;
    hh_detok detok;
    hh_buf held, said; /* not yet printed; printed */
    hh_ids *made;      /* the ids, for a dialogue; or NULL */
    bool stopped;
} stream;

static void print(stream *s, size_t n) {
    fwrite(s->held.data, 1, n, stdout);
    fflush(stdout);
    hh_buf_add(&s->said, s->held.data, n);
    s->held.len -= n;
    memmove(s->held.data, s->held.data + n, s->held.len + 1);
}

/* Bytes at the end of `held` that begin some stop text. */
static size_t open_stop(const stream *s) {
    size_t most = 0;
    for (int64_t i = 0; i < stops.n; i++) {
        size_t n = strlen(stops.word[i]);
        for (size_t k = n < s->held.len ? n : s->held.len; k > most; k--)
            if (!memcmp(s->held.data + s->held.len - k, stops.word[i], k)) most = k;
    }
    return most;
}

static void release(stream *s) {
    if (!s->held.len) return;
    size_t at = s->held.len;
    for (int64_t i = 0; i < stops.n; i++) {
        const char *found =
            *stops.word[i] ? memmem(s->held.data, s->held.len, stops.word[i], strlen(stops.word[i])) : NULL;
        if (found && (size_t)(found - s->held.data) <= at) {
            at = (size_t)(found - s->held.data);
            s->stopped = true;
        }
    }
    print(s, s->stopped ? at : s->held.len - open_stop(s));
}

static bool on_token(void *context_, int32_t id) {
    stream *s = context_;
    if (s->made) hh_ids_push(s->made, id);
    hh_detok_push(&s->detok, s->t, id, &s->held);
    release(s);
    return !s->stopped;
}

static void finish(stream *s) {
    if (!s->stopped) {
        hh_detok_flush(&s->detok, &s->held);
        release(s);
        if (!s->stopped && s->held.len) print(s, s->held.len);
    }
    if (s->said.len && s->said.data[s->said.len - 1] != '\n') putchar('\n');
    fflush(stdout);
}

/* What is known of one run, for its last lines. */
typedef struct totals {
    int64_t prompt, made;
    double prefill_s, decode_s;
} totals;

static void report(const totals *t) {
    char peak[32];
    hh_cli_bytes_text((double)hh_cli_peak_bytes(), peak);
    if (common.quiet) return;
    fprintf(stderr, "prompt %lld tokens, %.1f tokens/s; %lld new tokens, %.1f tokens/s; peak memory %s\n",
            (long long)t->prompt, t->prefill_s > 0 ? (double)t->prompt / t->prefill_s : 0, (long long)t->made,
            t->decode_s > 0 ? (double)t->made / t->decode_s : 0, peak);
}

/* The prompt, chunk by chunk: a long one takes a while, and shows it. */
static hh_code prefill(hh_session *session, const int32_t *ids, int64_t n, hh_error *err) {
    hh_progress p;
    hh_progress_begin(&p, "prefill", "tokens", (double)n);
    hh_code code = HH_OK;
    for (int64_t lo = 0; lo < n && code == HH_OK; lo += chunk) {
        code = hh_session_eval(session, ids + lo, lo + chunk < n ? chunk : n - lo, err);
        hh_progress_update(&p, (double)(lo + chunk < n ? lo + chunk : n), NULL);
    }
    hh_progress_end(&p);
    return code;
}

static hh_code answer(const hh_cli_opened *o, hh_session *session, const int32_t *ids, int64_t n, stream *s,
                      totals *sum, hh_error *err) {
    int32_t end[HH_CLI_MAX_END_IDS];
    const int64_t n_end = hh_cli_end_ids(o, end);
    const hh_sampling sampling = {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p};
    hh_rng rng = hh_rng_stream((uint64_t)common.seed, (uint64_t)hh_session_position(session));
    double start = hh_now();
    hh_code code = prefill(session, ids, n, err);
    double prefilled = hh_now();
    sum->prompt += n;
    sum->prefill_s += prefilled - start;
    if (code != HH_OK) return code;
    int64_t made = 0;
    code = hh_session_generate(session, max_new, end, n_end, &sampling, &rng, on_token, s, &made, err);
    finish(s);
    sum->made += made;
    sum->decode_s += hh_now() - prefilled;
    return code;
}

static hh_code read_prompt(hh_buf *out, const char *word, hh_error *err) {
    if (file) return hh_file_read(file, (size_t)1 << 30, out, err);
    if (word) {
        hh_buf_puts(out, word);
        return HH_OK;
    }
    return hh_cli_read_stdin(out, err);
}

static hh_code new_session(hh_session **out, const hh_cli_opened *o, int64_t tokens, hh_error *err) {
    if (!chunk) chunk = o->be->pass_tokens;
    hh_session_options so = {.context = tokens, .chunk = chunk};
    HH_TRY(hh_cache_type(&so.kv_dtype, kv, o->be, &o->m->config, err));
    return hh_session_new(out, o->m, &so, err);
}

static hh_code run_prompt(const hh_cli_opened *o, const char *word, totals *sum, hh_error *err) {
    hh_buf text = {0};
    hh_ids ids = {0};
    hh_session *session = NULL;
    stream s = {.t = o->t};
    hh_code code;
    HH_TRY_GOTO(code, read_prompt(&text, word, err), done);
    if (chat) {
        const hh_chat_turn turns[] = {{"system", system_text}, {"user", text.data}};
        HH_TRY_GOTO(code, hh_tokenizer_chat(o->t, turns + !system_text, 1 + !!system_text, &ids, err), done);
    } else {
        int flags = HH_ENCODE_BOS_EOS | (special ? HH_ENCODE_SPECIAL : 0);
        HH_TRY_GOTO(code, hh_tokenizer_encode(o->t, text.data, text.len, flags, &ids, err), done);
    }
    if (!ids.len && o->m->config.bos_id >= 0) hh_ids_push(&ids, o->m->config.bos_id);
    if (!ids.len) {
        code = hh_fail(err, HH_EINVAL, "an empty prompt, and the model has no token to begin with");
        goto done;
    }
    HH_TRY_GOTO(code, new_session(&session, o, context ? context : ids.len + max_new, err), done);
    if (context && context < ids.len + max_new && context >= ids.len && !common.quiet)
        fprintf(stderr, "hydrahead: a --context of %lld tokens and a prompt of %lld: fewer than %lld new ones fit\n",
                (long long)context, (long long)ids.len, (long long)max_new);
    code = answer(o, session, ids.data, ids.len, &s, sum, err);
done:
    hh_session_free(session);
    hh_ids_release(&ids);
    hh_buf_release(&text);
    hh_buf_release(&s.held);
    hh_buf_release(&s.said);
    return code;
}

/* A dialogue: every turn continues the session, so earlier turns are not computed again unless the template changed
 * them. */
typedef struct dialogue {
    hh_chat_turn *turn;
    int64_t n, capacity;
    hh_ids seen; /* what the session holds */
} dialogue;

static void add_turn(dialogue *d, const char *role, const char *content) {
    if (d->n == d->capacity) {
        d->capacity = d->capacity ? 2 * d->capacity : 16;
        d->turn = hh_realloc(d->turn, (size_t)d->capacity * sizeof *d->turn);
    }
    d->turn[d->n++] = (hh_chat_turn){.role = role, .content = hh_strdup(content)};
}

static hh_code take_turn(const hh_cli_opened *o, hh_session *session, dialogue *d, totals *sum, hh_error *err) {
    hh_ids ids = {0};
    stream s = {.t = o->t, .made = &d->seen};
    hh_code code = hh_tokenizer_chat(o->t, d->turn, d->n, &ids, err);
    if (code == HH_OK) {
        int64_t same = 0, held = hh_session_position(session);
        while (same < ids.len && same < held && same < d->seen.len && ids.data[same] == d->seen.data[same]) same++;
        if (same < held || same == ids.len) {
            hh_session_reset(session);
            same = 0;
        }
        d->seen.len = 0;
        hh_ids_append(&d->seen, ids.data, ids.len);
        code = answer(o, session, ids.data + same, ids.len - same, &s, sum, err);
        d->seen.len = hh_session_position(session); /* the last token is not in it */
    }
    if (code == HH_OK) add_turn(d, "assistant", s.said.data ? s.said.data : "");
    hh_buf_release(&s.held);
    hh_buf_release(&s.said);
    hh_ids_release(&ids);
    return code;
}

/* A line from the terminal without its end; false at the end of input. */
static bool read_line(char **line, size_t *capacity) {
    if (isatty(STDIN_FILENO)) fputs("> ", stderr);
    ssize_t n = getline(line, capacity, stdin);
    if (n > 0 && (*line)[n - 1] == '\n') (*line)[n - 1] = 0;
    return n > 0;
}

static hh_code run_dialogue(const hh_cli_opened *o, totals *sum, hh_error *err) {
    hh_session *session;
    HH_TRY(new_session(&session, o, context ? context : o->m->config.max_position, err));
    dialogue d = {0};
    char *line = NULL;
    size_t capacity = 0;
    hh_code code = HH_OK;
    if (system_text) add_turn(&d, "system", system_text);
    while (code == HH_OK && !hh_interrupted() && read_line(&line, &capacity)) {
        if (!*line) continue;
        add_turn(&d, "user", line);
        code = take_turn(o, session, &d, sum, err);
    }
    free(line); /* of getline */
    for (int64_t i = 0; i < d.n; i++) hh_free((void *)(uintptr_t)d.turn[i].content);
    hh_free(d.turn);
    hh_ids_release(&d.seen);
    hh_session_free(session);
    return code;
}

static hh_code check_use(int argc, char **argv, const char *prompt, hh_error *err) {
    static const char greedy[] = "the most likely token is taken; --temperature X samples";
    const hh_option_use chatting[] = {
        {"special", false, "what is said is text, and the template's own special tokens are always ids"}, {0}};
    const hh_option_use alone[] = {{"system", false, "a chat's turn is not a part of a prompt; add --chat"}, {0}};
    const hh_option_use sampling[] = {{"top-k", temperature > 0, greedy},
                                      {"top-p", temperature > 0, greedy},
                                      {"min-p", temperature > 0, greedy},
                                      {0}};
    if (prompt && file) return hh_fail(err, HH_EINVAL, "run: a prompt and --file %s are one too many", file);
    HH_TRY(hh_options_check_use(&command, argc, argv, chat ? chatting : alone, chat ? "with --chat" : "without --chat",
                                err));
    return hh_options_check_use(&command, argc, argv, sampling, "at --temperature 0", err);
}

int hh_cmd_run(int argc, char **argv) {
    hh_words words;
    int code;
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_error err = {0};
    hh_cli_opened o = {0};
    totals sum = {0};
    const char *prompt = words.n > 1 ? words.word[1] : NULL;
    hh_code done = check_use(argc, argv, prompt, &err);
    if (done == HH_OK) done = hh_cli_opened_open(&o, &common, words.word[0], true, &err);
    if (done == HH_OK)
        done = chat && !prompt && !file ? run_dialogue(&o, &sum, &err) : run_prompt(&o, prompt, &sum, &err);
    if (done == HH_OK || done == HH_ECANCELLED) report(&sum);
    hh_cli_opened_close(&o);
    hh_words_release(&words);
    return done == HH_OK || done == HH_ECANCELLED ? hh_cli_done() : hh_cli_fail(&err);
}
