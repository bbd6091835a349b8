/* What every verb shares: the shape of a verb, the options all have, the exit code, the backend.
 *
 * A verb is int hh_cmd_<verb>(int argc, char **argv) in cmd_<verb>.c, given the words behind the verb, and listed in
 * verbs.def. It begins like this:
 *
 *     static hh_cli_common common = HH_CLI_COMMON_INIT;
 *     static const hh_option options[] = {{...}, HH_CLI_COMMON_OPTIONS(common), {0}};
 *     static const hh_command command = {.verb = "probe", ..., .options = options, .min_words = 1, .max_words = 1};
 *
 *     int hh_cmd_probe(int argc, char **argv) {
 *         hh_words words;
 *         int code;
 *         if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
 */
#ifndef HH_CLI_CLI_H
#define HH_CLI_CLI_H

#include "base/options.h"
#include "tensor/backend.h"

typedef int hh_verb_fn(int argc, char **argv);

#define HH_VERB(name) hh_verb_fn hh_cmd_##name;
#include "cli/verbs.def"
#undef HH_VERB

typedef struct hh_cli_common {
    const char *device; /* NULL: HYDRAHEAD_DEVICE's, or the CPU */
    int64_t threads;    /* 0: all processors */
    const char *dtype;
    int64_t seed;
    bool quiet;
} hh_cli_common;

#define HH_CLI_COMMON_INIT                                                                                             \
    { .dtype = "auto" }

/* Entries of an option table for `static hh_cli_common c`. */
#define HH_CLI_COMMON_OPTIONS(c)                                                                                       \
    {.name = "device",                                                                                                 \
     .kind = HH_OPTION_STRING,                                                                                         \
     .value = &(c).device,                                                                                             \
     .argument = "NAME",                                                                                               \
     .help = "where to compute: cpu, cuda, or cuda:N for GPU number N; HYDRAHEAD_DEVICE is the default's name"},       \
        {.name = "threads",                                                                                            \
         .letter = 't',                                                                                                \
         .kind = HH_OPTION_INT,                                                                                        \
         .value = &(c).threads,                                                                                        \
         .argument = "N",                                                                                              \
         .max = 4096,                                                                                                  \
         .help = "CPU threads; 0 is all processors"},                                                                  \
        {.name = "dtype",                                                                                              \
         .kind = HH_OPTION_CHOICE,                                                                                     \
         .value = &(c).dtype,                                                                                          \
         .choices = "auto|f32",                                                                                        \
         .help = "precision: auto uses bfloat16 on a GPU, and in the CPU's matrix products where that is faster"},     \
        {.name = "seed",                                                                                               \
         .kind = HH_OPTION_INT,                                                                                        \
         .value = &(c).seed,                                                                                           \
         .argument = "N",                                                                                              \
         .max = 9e15,                                                                                                  \
         .help = "seed of everything random; the same seed gives the same result"},                                    \
    {                                                                                                                  \
        .name = "quiet", .letter = 'q', .kind = HH_OPTION_FLAG, .value = &(c).quiet, .help = "no progress lines"       \
    }

/* The entry of verbs that print results, for `static bool json`. */
#define HH_CLI_JSON_OPTION(json)                                                                                       \
    { .name = "json", .kind = HH_OPTION_FLAG, .value = &(json), .help = "print results as JSON" }

/* Entries that several verbs have, for `static int64_t chunk` and `static const char *file`, `*ids`. */
#define HH_CLI_IDS_OPTION(ids)                                                                                         \
    {                                                                                                                  \
        .name = "ids", .kind = HH_OPTION_STRING, .value = &(ids), .argument = "IDS|FILE",                              \
        .help = "token ids separated by commas, or a file of them"                                                     \
    }
#define HH_CLI_CHUNK_OPTION(chunk)                                                                                     \
    {                                                                                                                  \
        .name = "chunk", .kind = HH_OPTION_INT, .value = &(chunk), .argument = "N", .max = 1e6,                        \
        .help = "tokens of one prefill pass; 0 is what keeps the device busy"                                          \
    }
#define HH_CLI_FILE_OPTION(file, text)                                                                                 \
    { .name = "file", .letter = 'f', .kind = HH_OPTION_STRING, .value = &(file), .argument = "FILE", .help = text }

/* Parses the words behind the verb and fills the table's variables. false: the verb returns *code at once, for help was
 * asked for and has been printed, or the words were bad and that has been said. */
bool hh_cli_parse(const hh_command *c, int argc, char **argv, hh_words *words, int *code);

/* Prints "hydrahead: sentence" on stderr. Returns the exit code: 2 for HH_EINVAL (bad words or numbers), else 1. */
int hh_cli_fail(const hh_error *err);

/* Refuses a directory for a model that could not be given as a MODEL afterwards: "nano" is the shipped one. */
hh_code hh_cli_check_name(const char *dir, hh_error *err);

/* Opens the backend that the common options ask for. */
hh_code hh_cli_backend(const hh_cli_common *c, hh_backend **out, hh_error *err);

/* The processes that a launcher (mpirun) has started this one with, for verbs that work together. The first one alone
 * shows progress. Unless --threads says otherwise, processes that may run on the same processors share them; of several
 * on a host each has a GPU of its own when the device is "cuda". */
typedef struct hh_comm hh_comm;
hh_code hh_cli_comm(hh_cli_common *c, hh_comm *out, hh_error *err);

/* The entry of verbs with a cache, for `static const char *kv`: a word of hh_cache_type. */
#define HH_CLI_KV_OPTION(kv)                                                                                           \
    {                                                                                                                  \
        .name = "kv", .kind = HH_OPTION_CHOICE, .value = &(kv), .choices = "auto|f32|bf16|q8_0",                       \
        .help = "type of the KV cache: auto is bf16, or f32 with --dtype f32; q8_0 has 8 bits and a scale for 32 "     \
                "numbers"                                                                                              \
    }

/* Flushes stdout; exit code 0, or 1 with a sentence when what was printed could not be written (a full disk). */
int hh_cli_done(void);

#endif
