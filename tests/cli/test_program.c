/* The program as scripts see it: exit codes, what goes to which stream, help and man pages of every verb. */
#include "support/support.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static hh_buf out, errors;

static int run(const char *line) {
    hh_buf_clear(&out);
    hh_buf_clear(&errors);
    return run_line(line, 60, &out, &errors);
}

static int release(void **state) {
    (void)state;
    hh_buf_release(&out);
    hh_buf_release(&errors);
    return 0;
}

static void test_exit_codes(void **state) {
    (void)state;
    assert_int_equal(run("hydrahead help"), 0);
    assert_string_equal(errors.data, "");
    assert_int_equal(run("hydrahead version"), 0);
    assert_memory_equal(out.data, "hydrahead ", 10);
    assert_int_equal(run("hydrahead"), 2);
    assert_int_equal(run("hydrahead nosuchverb"), 2);
    assert_string_equal(out.data, "");
    assert_non_null(strstr(errors.data, "nosuchverb"));
    assert_int_equal(run("hydrahead help nosuchverb"), 2);
    assert_int_equal(run("hydrahead help --nonsense"), 2);
    assert_int_equal(run("hydrahead help > /dev/full"), 1);
    assert_non_null(strstr(errors.data, "No space left"));
    assert_int_equal(run("HYDRAHEAD_CHECK=maybe hydrahead help"), 2);
    assert_non_null(strstr(errors.data, "HYDRAHEAD_CHECK"));
}

/* The speed of another program beside ours: prefill against its best kind, decode against the same kind. */
static void test_bench_beside_a_peer(void **state) {
    (void)state;
    assert_int_equal(
        run("printf '%s\\n' '{\"peer\": \"other\", \"kind\": \"bf16\", \"context\": 16, \"prefill_tok_s\": 100, "
            "\"decode_tok_s\": 10}' '{\"kind\": \"q8_0\", \"context\": 16, \"prefill_tok_s\": 50, \"decode_tok_s\": "
            "20}' "
            "'{\"kind\": \"bf16\", \"context\": 99, \"prefill_tok_s\": null, \"decode_tok_s\": 1}' > "
            "\"$TMP\"/peer.jsonl; "
            "hydrahead bench nano --contexts 16 --decode 2 --peer \"$TMP\"/peer.jsonl --json"),
        0);
    json_t *line = json_loads(out.data, 0, NULL);
    assert_non_null(line);
    const double theirs = json_number_value(json_object_get(line, "peer_prefill_tok_s")),
                 ours = json_number_value(json_object_get(line, "prefill_tok_s"));
    assert_true(theirs == 100);
    assert_true(fabs(json_number_value(json_object_get(line, "prefill_ratio")) - ours / theirs) <= 0.01);
    const bool bf16 = !strcmp(json_string_value(json_object_get(line, "kind")), "bf16");
    assert_true(json_number_value(json_object_get(line, "peer_decode_tok_s")) == (bf16 ? 10 : 20));
    json_decref(line);
    assert_int_equal(run("echo '{\"kind\": \"bf16\"}' > \"$TMP\"/peer.jsonl; "
                         "hydrahead bench nano --contexts 16 --decode 2 --peer \"$TMP\"/peer.jsonl"),
                     1);
    assert_non_null(strstr(errors.data, "context"));
}

/* Calls check(verb) for every verb that the program lists. */
static void each_verb(void (*check)(const char *verb)) {
    hh_buf verbs = {0};
    assert_int_equal(run_line("hydrahead help --verbs", 60, &verbs, NULL), 0);
    int n = 0;
    for (char *rest = verbs.data, *verb; (verb = strsep(&rest, "\n")) && *verb; n++) check(verb);
    assert_true(n > 0);
    hh_buf_release(&verbs);
}

static int run_verb(const char *format, const char *verb) {
    char line[200];
    snprintf(line, sizeof line, format, verb);
    return run(line);
}

static void check_help(const char *verb) {
    assert_int_equal(run_verb("hydrahead %s --help", verb), 0);
    assert_string_equal(errors.data, "");
    assert_non_null(strstr(out.data, "\nUsage: hydrahead "));
    assert_non_null(strstr(out.data, "\nExample:\n  hydrahead "));
    /* Only command lines, in the usage and in the examples, may be wider than 80 columns. */
    for (const char *line = out.data; *line; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") > 80 && strncmp(line, "  hydrahead ", 12) != 0 && strncmp(line, "Usage: ", 7) != 0)
            fail_msg("the help of %s has a line of more than 80 columns: %.60s...", verb, line);
    assert_int_equal(run_verb("hydrahead help --man %s", verb), 0);
    assert_memory_equal(out.data, ".TH HYDRAHEAD", 13);
    assert_int_equal(run_verb("hydrahead help %s > /dev/full", verb), 1);
    /* Each has its line in the list. */
    char start[64];
    snprintf(start, sizeof start, "\n  %s ", verb);
    assert_int_equal(run("hydrahead help"), 0);
    assert_non_null(strstr(out.data, start));
}

static void test_every_verb_explains_itself(void **state) {
    (void)state;
    each_verb(check_help);
}

static void check_bad_words(const char *verb) {
    assert_int_equal(run_verb("hydrahead %s --no-such-option", verb), 2);
    assert_string_equal(out.data, "");
    assert_non_null(strstr(errors.data, "hydrahead: "));
    assert_non_null(strstr(errors.data, "--no-such-option"));
    if (run_verb("hydrahead %s --threads none", verb) != 2) fail_msg("%s takes --threads none", verb);
    if (run_verb("hydrahead %s --seed 1.5", verb) != 2) fail_msg("%s takes --seed 1.5", verb);
}

static void test_bad_words_exit_2(void **state) {
    (void)state;
    each_verb(check_bad_words);
}

/* Verbs whose first word is a model refuse a path that is not there, and name it. */
static void check_absent(const char *verb) {
    assert_int_equal(run_verb("hydrahead help %s", verb), 0);
    char usage[100];
    snprintf(usage, sizeof usage, "Usage: hydrahead %s MODEL [", verb);
    if (!strstr(out.data, usage)) return;
    int code = run_verb("hydrahead %s /no/such/model", verb);
    if (code != 1 && code != 2) fail_msg("%s with an absent model: exit %d", verb, code);
    if (!strstr(errors.data, "hydrahead: ")) fail_msg("%s with an absent model says nothing", verb);
    if (code == 1 && !strstr(errors.data, "/no/such/model")) fail_msg("%s: %s", verb, errors.data);
}

static void test_absent_model_is_named(void **state) {
    (void)state;
    each_verb(check_absent);
}

/* What a verb reads is never what it writes, whatever the names. */
static void test_inputs_are_not_overwritten(void **state) {
    (void)state;
    assert_int_equal(run("cp tests/convert/golden/heads.json \"$TMP\"/h.json && cd \"$TMP\" && "
                         "hydrahead select h.json --heads 4 --out ./h.json"),
                     2);
    assert_non_null(strstr(errors.data, "h.json"));
    assert_int_equal(run("cmp tests/convert/golden/heads.json \"$TMP\"/h.json"), 0);
    assert_int_equal(run("hydrahead select tests/convert/golden/heads.json --heads 4 --out \"$TMP\"/keep.json"), 0);
    assert_int_equal(run("hydrahead convert nano --plan \"$TMP\"/keep.json --out models/nano"), 2);
    assert_non_null(strstr(errors.data, "the model itself"));
    assert_int_equal(run("hydrahead convert nano --plan \"$TMP\"/keep.json --out README.md"), 2);
    assert_int_equal(run("hydrahead eval generate nano --file \"$TMP\"/h.json --json \"$TMP\"/h.json"), 2);
    assert_int_equal(run("hydrahead eval ruler nano --json \"$TMP\"/r --html \"$TMP\"/../$(basename \"$TMP\")/r"), 2);
    assert_non_null(strstr(errors.data, "--json and --html both name"));
    assert_int_equal(run("mkdir \"$TMP\"/other && cp models/nano/config.json \"$TMP\"/other && "
                         "hydrahead convert nano --plan \"$TMP\"/keep.json --out \"$TMP\"/other"),
                     2);
    assert_non_null(strstr(errors.data, "--force"));
    assert_int_equal(run("cmp models/nano/config.json \"$TMP\"/other/config.json"), 0);
}

/* An option that a stage would not look at is refused. */
static void test_options_without_effect_are_refused(void **state) {
    (void)state;
    static const char *const lines[] = {"extend --teacher nano",
                                        "extend --ce-weight 1",
                                        "align --ce-weight 1 --teacher nano",
                                        "pretrain --teacher nano",
                                        "align --answers-only 0 --needles 1 --teacher nano",
                                        "distill --answers-only 0 --teacher nano",
                                        "extend --answers-only 0.5 --needles 1",
                                        "extend --final-lr 1e-6"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        int code = run_verb("hydrahead train nano --steps 1 --out \"$TMP\"/x --stage %s", lines[i]);
        if (code != 2 || !strstr(errors.data, "has no effect in --stage")) fail_msg("%s: %s", lines[i], errors.data);
    }
}

/* So is one that the rest of any verb's line makes useless: with the reason, before anything is opened. */
static void test_no_verb_ignores_an_option(void **state) {
    (void)state;
    static const struct {
        const char *line, *says;
    } all[] = {
        {"bench x --steps 3", "--steps has no effect without --train: it is about training steps; add --train NxT"},
        {"bench x --teacher nano", "--teacher has no effect without --train"},
        {"bench x --micro-tokens 64", "--micro-tokens has no effect without --train"},
        {"bench x --recorded-tokens 64", "--recorded-tokens has no effect without --train"},
        {"bench x --train 2x16 --contexts 64", "--contexts has no effect with --train"},
        {"bench x --train 2x16 --decode 4", "--decode has no effect with --train"},
        {"bench x --train 2x16 --peer p.jsonl", "--peer has no effect with --train"},
        {"bench x --train 2x16 --chunk 8", "--chunk has no effect with --train"},
        {"bench x --train 2x16 --kv f32", "--kv has no effect with --train"},
        {"bench x --train 2x16 --recorded-tokens 64 --device cpu", "--recorded-tokens has no effect here: only a GPU"},
        {"plan x --stage extend", "--stage has no effect without --train: it is about a training step; add --train"},
        {"plan x --teacher nano", "--teacher has no effect without --train"},
        {"plan x --micro-tokens 64", "--micro-tokens has no effect without --train"},
        {"plan x --train --chunk 8", "--micro-tokens"},
        {"plan x --train --kv f32", "--kv has no effect with --train"},
        {"run x hi --system be", "--system has no effect without --chat"},
        {"run x hi --chat --special", "--special has no effect with --chat"},
        {"run x hi --top-k 4", "--top-k has no effect at --temperature 0: the most likely token is taken"},
        {"run x hi --top-p 0.9 --temperature 0", "--top-p has no effect at --temperature 0"},
        {"run x hi --min-p 0.1", "--temperature X samples"},
        {"serve x --cache-bytes 0 --cache-dir c", "--cache-dir has no effect with --cache-bytes 0: nothing is kept"},
        {"probe x --pairs p.jsonl --tasks niah_book", "--tasks has no effect with --pairs"},
        {"probe x --pairs p.jsonl --corruption key", "--corruption has no effect with --pairs"},
        {"probe x --pairs p.jsonl --length 64", "--length has no effect with --pairs"},
        {"probe x --pairs p.jsonl --samples 2", "--samples has no effect with --pairs"},
        {"probe x --pairs p.jsonl --haystack t", "--haystack has no effect with --pairs"},
        {"probe x --tasks niah_single_1 --haystack t", "--haystack has no effect with these --tasks"},
        {"convert x --fusion norm --gamma 1", "--gamma has no effect in this hybrid"},
        {"convert x --fusion none --calibration t", "--calibration has no effect in this hybrid"},
        {"convert x --gamma 1 --calibration-tokens 64", "--calibration-tokens has no effect in this hybrid"},
        {"convert x --log-scale-base 0 --log-scale-in-training", "--log-scale-base 0 switches that scale off"},
        {"convert x --no-fa-gate --gate-bias 2", "--gdn-gate adds some"},
        {"quantize x --no-measure --file t", "--file has no effect with --no-measure"},
        {"quantize x --no-measure --length 64", "--length has no effect with --no-measure"},
        {"quantize x --no-measure --windows 4", "--windows has no effect with --no-measure"},
        {"quantize x --no-measure --task niah_book", "--task has no effect with --no-measure"},
        {"quantize x --no-measure --samples 4", "--samples has no effect with --no-measure"},
        {"quantize x --samples 0 --task niah_book", "--task has no effect with --samples 0"},
        {"eval ruler x --file t", "--file has no effect in eval ruler: it draws prompts of its own; --haystack"},
        {"eval ruler x --length 64", "--length has no effect in eval ruler: it has --lengths"},
        {"eval ruler x --limit 3", "--limit has no effect in eval ruler: it has --samples"},
        {"eval ruler x --max-new 3", "--max-new has no effect in eval ruler"},
        {"eval ruler x --items", "--items has no effect in eval ruler"},
        {"eval ruler x --tasks niah_single_1,niah_multikey_2 --haystack t", "--haystack has no effect with these"},
        {"eval choice x --file t --tasks niah_book", "--tasks has no effect in eval choice"},
        {"eval choice x --file t --max-new 4", "--max-new has no effect in eval choice"},
        {"eval choice x --file t --items", "--items has no effect without --json FILE"},
        {"eval perplexity x --file t --lengths 64", "--lengths has no effect in eval perplexity"},
        {"eval perplexity x --file t --samples 64", "--samples has no effect in eval perplexity"},
        {"eval perplexity x --file t --items --json r", "--items has no effect in eval perplexity"},
        {"eval perplexity x --file t --haystack h", "--haystack has no effect in eval perplexity"},
        {"eval generate x --file t --length 64", "--length has no effect in eval generate"},
        {"eval generate x --file t --summary s", "--summary has no effect in eval generate"},
        {"tokenize x --decode 1,2 --file ids", "--file has no effect with --decode"},
        {"tokenize x --decode 1,2 --bos", "--bos has no effect with --decode"},
        {"inspect nano --metadata", "--metadata has no effect on models/nano: only GGUF files have keys"},
        {"select tests/convert/golden/heads.json --heads 4 --exclude-from \"$TMP\"/keep.json", "random draws only"},
    };
    assert_int_equal(run("hydrahead select tests/convert/golden/heads.json --heads 4 --out \"$TMP\"/keep.json"), 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (run_verb("hydrahead %s", all[i].line) != 2 || !strstr(errors.data, all[i].says))
            fail_msg("%s: %s", all[i].line, errors.data);
    /* beside what makes them useful */
    assert_int_equal(run("hydrahead plan nano --ctx 64 --train --stage extend --micro-tokens 64"), 0);
    assert_int_equal(run("hydrahead bench nano --train 2x16 --steps 1 --micro-tokens 16"), 0);
    assert_int_equal(run("echo 1,2 | hydrahead tokenize nano --decode -"), 0);
}

/* Where a transfer computes is where its verbs do, and the seed is that of all of them. */
static void test_transfer_hands_options_on(void **state) {
    (void)state;
    assert_int_equal(run("hydrahead transfer nano --recipe tests/cli/golden/tiny_recipe.json --device nosuch --seed 3 "
                         "--out \"$TMP\"/nowhere"),
                     2);
    assert_non_null(strstr(errors.data, "hydrahead probe nano"));
    assert_non_null(strstr(errors.data, "--device nosuch --seed 3"));
}

/* Of several students each becomes what it becomes alone. */
static void test_students_learn_side_by_side(void **state) {
    (void)state;
    const char *rest = "--stage pretrain --length 64 --batch 2 --steps 2 -q";
    assert_int_equal(run_verb("hydrahead train a=nano b=nano %s --out \"$TMP\"/pair", rest), 0);
    assert_int_equal(run_verb("hydrahead train nano %s --out \"$TMP\"/single", rest), 0);
    assert_int_equal(run("cmp \"$TMP\"/pair/a/model.safetensors \"$TMP\"/single/model.safetensors"), 0);
    assert_int_equal(run("cmp \"$TMP\"/pair/b/model.safetensors \"$TMP\"/single/model.safetensors"), 0);
    assert_int_equal(run_verb("hydrahead train nano nano %s --out \"$TMP\"/unnamed", rest), 2);
    assert_int_equal(run_verb("hydrahead train a=nano a=nano %s --out \"$TMP\"/twice", rest), 2);
}

/* The demo's hybrids are distilled for longer while the one with the best heads finds less than its teacher. */
static void test_the_demo_goes_on(void **state) {
    (void)state;
    assert_int_equal(run_line("hydrahead demo --samples 1 --align-steps 1 --distill-steps 1 --rounds 2 --json --out "
                              "\"$TMP\"/demo",
                              240, &out, &errors),
                     0);
    assert_non_null(strstr(errors.data, "After 1 steps the causal hybrid finds 0 % of 16 numbers, its teacher 100 %"));
    assert_non_null(strstr(out.data, "\"trained_tokens\": 12288")); /* three steps of 16 x 256 */
}

/* What is refused leaves nothing behind. */
static void test_refusals_leave_nothing(void **state) {
    (void)state;
    assert_int_equal(run("hydrahead train nano --stage extend --steps 1 --out models/nano"), 2);
    assert_int_equal(run("test -e models/nano/tokens"), 1);
    assert_int_equal(run("hydrahead transfer nosuchmodel --recipe nano --out \"$TMP\"/transfer"), 1);
    assert_non_null(strstr(errors.data, "nosuchmodel"));
    assert_int_equal(run("test -e \"$TMP\"/transfer"), 1);
    assert_int_equal(run("hydrahead probe nano --out README.md"), 1);
    assert_int_equal(run("hydrahead run nano hi --system x"), 2);
}

/* Who gives no text at a terminal is told that one is waited for, and ends it once. */
static void test_a_text_may_be_typed(void **state) {
    (void)state;
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) || unlockpt(terminal)) {
        puts("no terminal can be opened here");
        skip();
    }
    char *name = hh_strdup(ptsname(terminal)), *line = hh_sprintf("hydrahead tokenize nano <%s", name);
    const int typed = open(name, O_RDWR | O_NOCTTY);
    assert_true(typed >= 0);
    assert_int_equal(write(terminal, "Once upon\n\4", 11), 11);
    assert_int_equal(run(line), 0);
    assert_non_null(strstr(errors.data, "Ctrl-D"));
    assert_true(out.len > 3);
    close(typed);
    close(terminal);
    hh_free(name);
    hh_free(line);
}

/* What a user's own pairs say, and which of them say nothing of this model. */
static void test_pairs_of_ones_own(void **state) {
    (void)state;
    const char *pairs =
        temp_text("own.jsonl", "{\"prompt\": \"Ann lives in Rome. Bob lives in Oslo. Ann lives in\", "
                               "\"corrupt\": \"Ann lives in Bern. Bob lives in Oslo. Ann lives in\", "
                               "\"answer\": \" Rome\", \"wrong\": \" Bern\"}\n"
                               "{\"prompt\": \"The sky is blue. The sky is\", "
                               "\"corrupt\": \"The sky is grey. The sky is\", \"answer\": \" blue\"}\n");
    const char *nothing =
        temp_text("nothing.jsonl", "{\"prompt\": \"The sky is blue. The sky is\", "
                                   "\"corrupt\": \"The sky is grey. The sky is\", \"answer\": \" blue\"}\n");
    char *line = hh_sprintf("hydrahead probe nano --pairs %s --out \"$TMP\"/own", pairs);
    assert_int_equal(run(line), 0);
    hh_free(line);
    assert_non_null(strstr(out.data, "1 used, 1 dropped"));
    assert_non_null(strstr(out.data, "pair 2, its answer stands at"));
    assert_non_null(strstr(out.data, "own/heads.html"));
    assert_int_equal(run("hydrahead select \"$TMP\"/own/heads.json --heads 4"), 0);
    assert_null(strstr(errors.data, "warning"));
    line = hh_sprintf("hydrahead probe nano --pairs %s --out \"$TMP\"/nothing", nothing);
    assert_int_equal(run(line), 0);
    hh_free(line);
    assert_non_null(strstr(errors.data, "no pair was kept"));
    assert_int_equal(run("hydrahead select \"$TMP\"/nothing/heads.json --heads 4"), 0);
    assert_non_null(strstr(errors.data, "every head's score is 0"));
}

/* A refusal says what to do instead, names the file as it was given, and comes before the work. */
static void test_refusals_help(void **state) {
    (void)state;
    static const struct {
        const char *line;
        int code;
        const char *says;
    } all[] = {
        {"hydrahead prob nano", 2, "did you mean probe?"},
        {"hydrahead quux nano", 2, "`hydrahead help` lists them"},
        {"hydrahead nano", 2, "hydrahead run nano"},
        {"hydrahead models/nano hello", 2, "hydrahead run models/nano"},
        {"hydrahead run some/model hello", 1, "some/model: there is no such file or directory; a model is"},
        {"hydrahead run nano Once upon a time", 2, "stands in quotes"},
        {"hydrahead run nano hello --max-tokens 5", 2, "did you mean --max-new?"},
        {"hydrahead run nano hello --ctx 5", 2, "did you mean --context?"},
        {"hydrahead train nano --out \"$TMP\"/t", 2, "--stage align|distill"},
        {"hydrahead train nano --stage extend", 2, "--out DIR"},
        {"hydrahead plan nano --ctx 100000000000", 1, "GiB where the machine has"},
        {"hydrahead eval ruler nano --tasks niah_singel_1", 2, "niah_single_1, niah_single_2"},
        {"hydrahead probe nano --tasks niah_singel_1 --out \"$TMP\"/p", 2, "niah_single_1, niah_single_2"},
        {"hydrahead probe nano --senders some --samples 1 --out \"$TMP\"/p", 2, "a number of heads from 0, or all"},
        {"hydrahead eval ruler nano --lengths 1000000 --json /no/such/folder/r.json", 1,
         "/no/such/folder/r.json: cannot be created"},
        {"hydrahead select tests/convert/golden/heads.json --heads 4 --out /no/such/p.json", 1,
         "/no/such/p.json: cannot"},
        {"hydrahead convert nano --plan tests/convert/golden/heads.json --out \"$TMP\"/c", 1, "`hydrahead select`"},
        {"hydrahead convert nano --plan x --out nano", 2, "name another directory"},
        {"hydrahead train nano --stage extend --steps 1 --out nano", 2, "name another directory"},
        {"hydrahead transfer nano --recipe nano --out nano", 2, "name another directory"},
        {"hydrahead tokenize nano --decode 1,x", 2, "'x' is not a token id"},
        {"hydrahead eval perplexity nano --file tests/fuzz/seeds/run/empty", 2,
         "seeds/run/empty: the text has 0 tokens"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (run(all[i].line) != all[i].code || !strstr(errors.data, all[i].says))
            fail_msg("%s: %s", all[i].line, errors.data);
}

/* HYDRAHEAD_TRACE is JSON with every op of a layer, and nothing else changes. */
static void test_trace(void **state) {
    (void)state;
    assert_int_equal(
        run("hydrahead logits nano --ids 1,2,3 --out \"$TMP\"/a.npy && HYDRAHEAD_TRACE=\"$TMP\"/t.json hydrahead "
            "logits nano --ids 1,2,3 --out \"$TMP\"/b.npy && cmp \"$TMP\"/a.npy \"$TMP\"/b.npy"),
        0);
    assert_int_equal(run("cat \"$TMP\"/t.json"), 0);
    json_error_t e;
    json_t *events = json_loads(out.data, 0, &e), *one;
    if (!events) fail_msg("no JSON: %s", e.text);
    size_t i;
    bool found = false;
    json_array_foreach(events, i, one) {
        const json_t *arguments = json_object_get(one, "args");
        found = found || (!strcmp(json_string_value(json_object_get(one, "name")), "attention_fwd") &&
                          json_integer_value(json_object_get(arguments, "layer")) == 3 &&
                          !strncmp(json_string_value(json_object_get(arguments, "q")), "f32 3x", 6));
    }
    assert_true(found);
    json_decref(events);
    assert_int_equal(run("HYDRAHEAD_TRACE=/nowhere/t.json hydrahead logits nano --ids 1 --out \"$TMP\"/a.npy"), 1);
    assert_non_null(strstr(errors.data, "/nowhere/t.json"));
}

static void test_main_man_page_lists_verbs(void **state) {
    (void)state;
    assert_int_equal(run("hydrahead help --man"), 0);
    assert_memory_equal(out.data, ".TH HYDRAHEAD 1", 15);
    assert_non_null(strstr(out.data, "NO_COLOR"));
}

static void test_install(void **state) {
    (void)state;
    assert_int_equal(
        run("tools/install.sh \"$TMP\" /usr && \"$TMP\"/usr/bin/hydrahead version && cd / && "
            "\"$TMP\"/usr/bin/hydrahead inspect nano && "
            "ls \"$TMP\"/usr/share/man/man1/hydrahead.1 \"$TMP\"/usr/share/bash-completion/completions/hydrahead"),
        0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_bench_beside_a_peer),
        cmocka_unit_test(test_every_verb_explains_itself),
        cmocka_unit_test(test_bad_words_exit_2),
        cmocka_unit_test(test_absent_model_is_named),
        cmocka_unit_test(test_inputs_are_not_overwritten),
        cmocka_unit_test(test_options_without_effect_are_refused),
        cmocka_unit_test(test_no_verb_ignores_an_option),
        cmocka_unit_test(test_transfer_hands_options_on),
        cmocka_unit_test(test_students_learn_side_by_side),
        cmocka_unit_test(test_the_demo_goes_on),
        cmocka_unit_test(test_refusals_leave_nothing),
        cmocka_unit_test(test_a_text_may_be_typed),
        cmocka_unit_test(test_pairs_of_ones_own),
        cmocka_unit_test(test_refusals_help),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_main_man_page_lists_verbs),
        cmocka_unit_test(test_install),
    };
    return cmocka_run_group_tests_name("cli/program", tests, NULL, release);
}
