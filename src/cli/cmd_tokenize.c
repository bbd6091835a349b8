/* hydrahead tokenize: text to ids and back. */
#include "base/filemap.h"
#include "cli/opened.h"
#include "model/model.h"
#include "text/idlist.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static const char *file, *decode;
static bool special, bos, json;

static const hh_option options[] = {
    HH_CLI_FILE_OPTION(file, "the text (or, with --decode -, the ids) is in this file"),
    {.name = "special",
     .kind = HH_OPTION_FLAG,
     .value = &special,
     .help = "special tokens written in the text become their ids; with --decode they are written out"},
    {.name = "bos",
     .kind = HH_OPTION_FLAG,
     .value = &bos,
     .help = "add what the tokenizer puts around a text (BOS, EOS)"},
    {.name = "decode",
     .letter = 'd',
     .kind = HH_OPTION_STRING,
     .value = &decode,
     .argument = "IDS",
     .help = "print the text of these ids: numbers separated by commas, or a file of them"},
    HH_CLI_JSON_OPTION(json),
    HH_CLI_COMMON_OPTIONS(common),
    {0}};

static const hh_command command = {
    .verb = "tokenize",
    .summary = "text to token ids and back",
    .words = "MODEL [TEXT]",
    .description =
        "Prints the token ids of TEXT, of a file, or of standard input, separated by commas. The ids are those of "
        "Hugging Face "
        "tokenizers. Special tokens written in the text are text unless --special is given. MODEL is a folder with "
        "tokenizer.json, a .gguf file, or nano.",
    .example = "hydrahead tokenize nano \"The grass is green.\"\n"
               "hydrahead tokenize nano --json \"The grass is green.\"\n"
               "hydrahead tokenize nano --decode 52,258,69",
    .options = options,
    .min_words = 1,
    .max_words = 2};

static void print_text_json(const hh_buf *text) {
    json_t *s = json_stringn(text->data, text->len);
    if (s) {
        json_t *object = json_pack("{s:o}", "text", s);
        json_dumpf(object, stdout, JSON_COMPACT);
        json_decref(object);
    } else { /* no valid UTF-8: its bytes as numbers */
        printf("{\"bytes\":[");
        for (size_t i = 0; i < text->len; i++) printf("%s%d", i ? "," : "", (uint8_t)text->data[i]);
        printf("]}");
    }
    putchar('\n');
}

static hh_code read_ids(hh_ids *out, int64_t vocab, hh_error *err) {
    const bool direct = strcmp(decode, "-") != 0;
    hh_buf text = {0};
    if (direct || file) return hh_ids_read(out, "--decode", direct ? decode : file, vocab, err);
    hh_code code = hh_cli_read_stdin(&text, err);
    if (code == HH_OK) code = hh_ids_parse(out, "standard input", text.data, text.len, vocab, err);
    hh_buf_release(&text);
    return code;
}

static hh_code run_decode(const hh_tokenizer *t, hh_error *err) {
    hh_buf text = {0};
    hh_ids ids = {0};
    hh_code code = read_ids(&ids, hh_tokenizer_vocab_size(t), err);
    hh_buf_add(&text, "", 0);
    if (code == HH_OK) code = hh_tokenizer_decode(t, ids.data, ids.len, special, &text, err);
    if (code == HH_OK) {
        if (json)
            print_text_json(&text);
        else
            fwrite(text.data, 1, text.len, stdout);
    }
    hh_buf_release(&text);
    hh_ids_release(&ids);
    return code;
}

static hh_code run_encode(const hh_tokenizer *t, const char *word, hh_error *err) {
    hh_buf text = {0};
    hh_ids ids = {0};
    hh_code code = HH_OK;
    if (word)
        hh_buf_puts(&text, word);
    else
        code = file ? hh_file_read(file, (size_t)1 << 32, &text, err) : hh_cli_read_stdin(&text, err);
    int flags = (special ? HH_ENCODE_SPECIAL : 0) | (bos ? HH_ENCODE_BOS_EOS : 0);
    if (code == HH_OK) code = hh_tokenizer_encode(t, text.data, text.len, flags, &ids, err);
    if (code == HH_OK) {
        fputs(json ? "{\"ids\": [" : "", stdout);
        for (int64_t i = 0; i < ids.len; i++) printf("%s%d", i ? (json ? ", " : ",") : "", ids.data[i]);
        puts(json ? "]}" : "");
    }
    hh_buf_release(&text);
    hh_ids_release(&ids);
    return code;
}

static hh_code check_use(int argc, char **argv, bool has_text, hh_error *err) {
    const bool ids_given = decode && strcmp(decode, "-") != 0;
    const hh_option_use use[] = {{"bos", !decode, "it is about ids that come out; leave one of the two out"},
                                 {"file", !ids_given, "the ids stand there already; --decode - reads --file"},
                                 {0}};
    if (has_text && (file || decode))
        return hh_fail(err, HH_EINVAL, "TEXT together with --file or --decode: give one of them");
    return hh_options_check_use(&command, argc, argv, use, "with --decode", err);
}

int hh_cmd_tokenize(int argc, char **argv) {
    hh_words words;
    int code;
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_error err = {0};
    char *path = NULL;
    hh_tokenizer *t = NULL;
    hh_code status = check_use(argc, argv, words.n == 2, &err);
    if (status == HH_OK) status = hh_model_locate(&path, words.word[0], &err);
    if (status == HH_OK) status = hh_tokenizer_open(&t, path, &err);
    if (status == HH_OK)
        status = decode ? run_decode(t, &err) : run_encode(t, words.n == 2 ? words.word[1] : NULL, &err);
    hh_tokenizer_close(t);
    hh_free(path);
    hh_words_release(&words);
    return status == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
