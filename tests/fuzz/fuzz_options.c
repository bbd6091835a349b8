/* Any words (lines of the input) as a command line: refused with a sentence, or variables within their ranges. */
#include "base/options.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool flag;
static int64_t count;
static double share;
static const char *text, *choice;
static hh_words list;

static const hh_option options[] = {
    {.name = "flag", .letter = 'f', .kind = HH_OPTION_FLAG, .value = &flag},
    {.name = "count", .letter = 'n', .kind = HH_OPTION_INT, .value = &count, .argument = "N", .min = 1, .max = 1e6},
    {.name = "share", .kind = HH_OPTION_FLOAT, .value = &share, .argument = "X", .min = 0, .max = 1},
    {.name = "text", .letter = 't', .kind = HH_OPTION_STRING, .value = &text, .argument = "TEXT"},
    {.name = "list", .letter = 'l', .kind = HH_OPTION_LIST, .value = &list, .argument = "TEXT"},
    {.name = "choice", .kind = HH_OPTION_CHOICE, .value = &choice, .argument = "NAME", .choices = "one|two|three"},
    {0}};

static const hh_command command = {
    .verb = "fuzz", .summary = "", .words = "A [B]", .options = options, .min_words = 1, .max_words = 2};

static void check_list(const char *words) {
    hh_error err = {0};
    hh_words out;
    int64_t *number, n;
    if (hh_parse_int_list("list", words, &number, &n, &err) == HH_OK) {
        HH_ASSERT(n >= 1);
        hh_free(number);
    } else {
        HH_ASSERT(!number && err.text[0]);
    }
    HH_ASSERT(hh_parse_word_list(words, &out) == HH_OK);
    for (int64_t i = 0; i < out.n; i++) HH_ASSERT(*out.word[i] && !strchr(out.word[i], ','));
    hh_words_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *copy = hh_sprintf("%.*s", (int)(size < 4096 ? size : 4096), (const char *)data), *argv[65] = {0};
    int argc = 0;
    for (char *at = copy; at && argc < 64;) {
        argv[argc++] = at;
        if ((at = strchr(at, '\n'))) *at++ = 0;
    }
    hh_error err = {0};
    hh_words words;
    bool help;
    count = 1, share = 0, text = NULL, choice = "one";
    if (hh_options_parse(&command, argc, argv, &words, &help, &err) != HH_OK)
        HH_ASSERT(err.code == HH_EINVAL && err.text[0] && !words.n);
    else
        HH_ASSERT(help || (words.n >= 1 && words.n <= 2));
    HH_ASSERT(count >= 1 && count <= 1000000 && share >= 0 && share <= 1 && strstr("one|two|three", choice));
    static const hh_option_use use[] = {{"text", false, "nothing reads it"}, {0}};
    if (hh_options_check_use(&command, argc, argv, use, "here", &err) != HH_OK)
        HH_ASSERT(err.code == HH_EINVAL && strstr(err.text, "--text has no effect here"));
    if (text) check_list(text);
    hh_words_release(&words);
    hh_words_release(&list);
    hh_free(copy);
    return 0;
}
