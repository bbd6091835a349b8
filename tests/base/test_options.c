/* Option tables: what the words on a command line mean, how a mistake is answered, and what help and man page look
 * like. */
#include "base/options.h"
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool flag;
static int64_t count;
static double rate;
static const char *out, *strategy;
static hh_words data;

static const hh_option options[] = {
    {.name = "count",
     .letter = 'c',
     .kind = HH_OPTION_INT,
     .value = &count,
     .argument = "N",
     .min = 1,
     .max = 100,
     .help = "how many"},
    {.name = "rate", .kind = HH_OPTION_FLOAT, .value = &rate, .argument = "X", .max = 1, .help = "learning rate"},
    {.name = "out",
     .letter = 'o',
     .kind = HH_OPTION_STRING,
     .value = &out,
     .argument = "FILE",
     .help = "where the result goes; a directory is made, with its parents, when it is not there yet"},
    {.name = "strategy",
     .kind = HH_OPTION_CHOICE,
     .value = &strategy,
     .argument = "NAME",
     .choices = "global|global-min1|layer",
     .help = "how heads are chosen"},
    {.name = "data", .kind = HH_OPTION_LIST, .value = &data, .argument = "FILE[=weight]", .help = "text to train on"},
    {.name = "force", .letter = 'f', .kind = HH_OPTION_FLAG, .value = &flag, .help = "overwrite what is there"},
    {0},
};

static const hh_command command = {
    .verb = "choose",
    .summary = "choose heads under a budget",
    .words = "HEADS [MODEL]",
    .description =
        "Reads the scores that `hydrahead probe` wrote and keeps the best heads under a budget. The plan says for "
        "each kept head which rule kept it.\n\nA second paragraph, with a back\\slash.\n.and a line that starts "
        "with a dot.",
    .example = "hydrahead choose heads.json --count 4\nhydrahead choose heads.json -f",
    .options = options,
    .min_words = 1,
    .max_words = 2,
};

static int set_up(void **state) {
    (void)state;
    flag = false;
    count = 8;
    rate = 0.5;
    out = NULL;
    strategy = "global";
    hh_words_release(&data);
    return 0;
}

static hh_words words;
static bool help;
static hh_error err;

/* Parses a line split at blanks; "''" stands for an empty word. */
static hh_code parse(const char *line) {
    static char copy[500];
    static char *argv[50];
    int argc = 0;
    hh_words_release(&words);
    snprintf(copy, sizeof copy, "%s", line);
    for (char *p = copy, *word; (word = strsep(&p, " "));) {
        argv[argc++] = strcmp(word, "''") == 0 ? (char *)"" : word;
    }
    return hh_options_parse(&command, argc, argv, &words, &help, &err);
}

static void test_values_are_taken(void **state) {
    (void)state;
    assert_ok(parse("heads.json --count 4 --rate=1e-3 -o plan.json -f --data a.txt --data b.txt=2 --strategy layer"));
    assert_int_equal(count, 4);
    assert_near(rate, 1e-3, 0);
    assert_string_equal(out, "plan.json");
    assert_string_equal(strategy, "layer");
    assert_true(flag);
    assert_int_equal(data.n, 2);
    assert_string_equal(data.word[1], "b.txt=2");
    assert_int_equal(words.n, 1);
    assert_string_equal(words.word[0], "heads.json");
    assert_ok(parse("-c5 a - --out=a=b"));
    assert_int_equal(count, 5);
    assert_string_equal(words.word[1], "-");
    assert_string_equal(out, "a=b");
    assert_ok(parse("-- --count -f"));
    assert_string_equal(words.word[0], "--count");
    assert_string_equal(words.word[1], "-f");
    assert_ok(parse("a --out ''"));
    assert_string_equal(out, "");
}

static void test_defaults_stay(void **state) {
    (void)state;
    assert_ok(parse("a"));
    assert_int_equal(count, 8);
    assert_string_equal(strategy, "global");
    assert_null(out);
    assert_false(flag);
}

static void test_bad_words_are_answered(void **state) {
    (void)state;
    assert_refused(parse("a --cuont 3"), HH_EINVAL, "--cuont", "did you mean --count?");
    assert_refused(parse("a --strat layer"), HH_EINVAL, "--strat", "did you mean --strategy?");
    assert_refused(parse("a --zzzzzzzzzz"), HH_EINVAL, "--zzzzzzzzzz", "hydrahead choose --help");
    assert_refused(parse("a -x"), HH_EINVAL, "no option -x;", "--help");
    assert_refused(parse("a --cnt 3"), HH_EINVAL, "did you mean --count?");
    assert_refused(parse("a --ou"), HH_EINVAL, "did you mean --out?");
    assert_refused(parse("a --cow"), HH_EINVAL, "choose --help"); /* too short to tell */
    assert_refused(parse("a --count"), HH_EINVAL, "--count needs a value", "--count N");
    assert_refused(parse("a --force=yes"), HH_EINVAL, "--force takes no value");
    assert_refused(parse("a --strategy best"), HH_EINVAL, "best", "global|global-min1|layer");
    assert_refused(parse("a --strategy glob"), HH_EINVAL, "glob");
    assert_refused(parse("a --strategy ''"), HH_EINVAL, "--strategy");
    assert_refused(parse("-f"), HH_EINVAL, "missing", "hydrahead choose HEADS [MODEL]");
    assert_refused(parse("a b c"), HH_EINVAL, "'c'", "too many");
}

static void test_numbers_are_numbers(void **state) {
    (void)state;
    static const char *const bad[] = {"0", "101", "-1", "4x", "4.5", "''", "1e2", "99999999999999999999", "0x10"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "a --count %s", bad[i]);
        assert_refused(parse(line), HH_EINVAL, "--count", "from 1 to 100");
    }
    static const char *const bad_rates[] = {"1.01", "-0.1", "nan", "inf", "1e999", "x", "''"};
    for (size_t i = 0; i < sizeof bad_rates / sizeof bad_rates[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "a --rate %s", bad_rates[i]);
        assert_refused(parse(line), HH_EINVAL, "--rate", "from 0 to 1");
    }
}

static void test_help_wins_over_mistakes(void **state) {
    (void)state;
    assert_ok(parse("--nonsense --help"));
    assert_true(help);
    assert_ok(parse("-h"));
    assert_true(help);
    assert_ok(parse("-- -h"));
    assert_false(help);
}

static hh_code check_use(const char *option, bool used) {
    char *argv[] = {(char *)"a", (char *)"--out", (char *)"--count", (char *)"-f", (char *)"--", (char *)"--rate"};
    const hh_option_use use[] = {{"data", false, "it is not on the line"}, {option, used, "say --loud too"}, {0}};
    return hh_options_check_use(&command, 6, argv, use, "in silence", &err);
}

/* An option is refused when it was given, in whichever of its spellings, and is not looked at. */
static void test_an_option_without_effect_is_refused(void **state) {
    (void)state;
    assert_refused(check_use("out", false), HH_EINVAL, "--out has no effect in silence: say --loud too");
    assert_refused(check_use("force", false), HH_EINVAL, "--force");
    assert_ok(check_use("out", true));
    assert_ok(check_use("count", false)); /* it is the value of --out */
    assert_ok(check_use("rate", false));  /* a word */
    assert_ok(check_use("strategy", false));
}

static void test_lists(void **state) {
    (void)state;
    int64_t *list, n;
    assert_ok(hh_parse_int_list("lengths", "256,1024,-1", &list, &n, &err));
    assert_int_equal(n, 3);
    assert_int_equal(list[1], 1024);
    assert_int_equal(list[2], -1);
    hh_free(list);
    static const char *const bad[] = {"", "1,", ",1", "1,,2", "1;2", "a", "1, 2", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_refused(hh_parse_int_list("lengths", bad[i], &list, &n, &err), HH_EINVAL, "--lengths");
        assert_null(list);
    }
    hh_words w;
    assert_ok(hh_parse_word_list("a,bc,,d", &w));
    assert_int_equal(w.n, 3);
    assert_string_equal(w.word[0], "a");
    assert_string_equal(w.word[1], "bc");
    assert_string_equal(w.word[2], "d");
    hh_words_release(&w);
    assert_ok(hh_parse_word_list("", &w));
    assert_int_equal(w.n, 0);
    hh_words_release(&w);
}

/* HH_GOLDEN=write in the environment writes the files anew, to be looked at before they are committed. */
static void check_golden(const char *path, const hh_buf *text) {
    const char *write = getenv("HH_GOLDEN");
    if (write && strcmp(write, "write") == 0) assert_ok(hh_file_write(path, text->data, text->len, &err));
    hh_buf golden = read_whole(path);
    assert_string_equal(text->data, golden.data);
    hh_buf_release(&golden);
}

static void test_help_and_man_page(void **state) {
    (void)state;
    hh_buf text = {0};
    hh_command_help(&command, &text);
    check_golden("tests/base/golden/help.txt", &text);
    for (const char *line = text.data; *line; line += strcspn(line, "\n") + 1) assert_true(strcspn(line, "\n") <= 80);
    hh_buf_clear(&text);
    hh_command_man(&command, &text);
    check_golden("tests/base/golden/man.txt", &text);
    hh_buf_release(&text);
}

static int tear_down(void **state) {
    (void)state;
    hh_words_release(&words);
    hh_words_release(&data);
    return 0;
}

#define OPTION_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        OPTION_TEST(test_values_are_taken),
        OPTION_TEST(test_defaults_stay),
        OPTION_TEST(test_bad_words_are_answered),
        OPTION_TEST(test_numbers_are_numbers),
        OPTION_TEST(test_help_wins_over_mistakes),
        OPTION_TEST(test_an_option_without_effect_is_refused),
        OPTION_TEST(test_lists),
        OPTION_TEST(test_help_and_man_page),
    };
    return cmocka_run_group_tests_name("base/options", tests, NULL, NULL);
}
