/* `hydrahead quantize` as a user sees it: what is printed, what the other verbs make of the result, what is refused. */
#include "support/support.h"

#include <jansson.h>
#include <string.h>

static hh_buf out, errors;

static int run(const char *line) {
    hh_buf_clear(&out);
    hh_buf_clear(&errors);
    return run_line(line, 120, &out, &errors);
}

static json_t *quantize(const char *words) {
    json_error_t e;
    char *line = hh_sprintf("hydrahead quantize nano --json --length 192 --windows 4 --samples 2 %s", words);
    if (run(line) != 0) fail_msg("%s: %s", line, errors.data);
    json_t *o = json_loads(out.data, 0, &e);
    if (!o) fail_msg("%s: not JSON: %s", line, out.data);
    hh_free(line);
    return o;
}

static double number_at(const json_t *o, const char *a, const char *b, const char *c) {
    o = json_object_get(json_object_get(json_object_get(o, a), b), c);
    if (!json_is_number(o)) fail_msg("no number at %s.%s.%s in %s", a, b, c, out.data);
    return json_number_value(o);
}

/* Bytes, types, and both measures before, after, and with a cache of 8 bits too. */
static void the_cost_is_printed(void **state) {
    (void)state;
    json_t *eight = quantize("--out \"$TMP\"/q8"), *four = quantize("--bits 4 --out \"$TMP\"/q4");
    const double before = number_at(eight, "perplexity", "before", "nll");
    assert_near(number_at(eight, "perplexity", "after", "nll"), before, 0.01);
    assert_near(number_at(four, "perplexity", "before", "nll"), before, 1e-6);
    assert_true(number_at(four, "perplexity", "after", "nll") > before);
    const double after = number_at(eight, "perplexity", "after", "nll"),
                 cache = number_at(eight, "perplexity", "after_kv_q8_0", "nll");
    assert_true(cache != after);
    assert_near(cache, after, 0.01);
    assert_true(number_at(eight, "needles", "after", "accuracy") >= 0);
    assert_true(number_at(eight, "needles", "after_kv_q8_0", "accuracy") >= 0);
    assert_true(number_at(eight, "types", "q8_0", "tensors") > number_at(four, "types", "q8_0", "tensors"));
    assert_int_equal(number_at(four, "types", "q8_0", "tensors"), 1); /* the head */
    const double bytes = json_number_value(json_object_get(eight, "bytes_after")),
                 was = json_number_value(json_object_get(eight, "bytes_before"));
    assert_true(bytes < 0.55 * was && json_number_value(json_object_get(four, "bytes_after")) < 0.35 * was);
    json_decref(eight);
    json_decref(four);
    assert_int_equal(run("hydrahead quantize nano --out \"$TMP\"/plain --length 64 --windows 1"), 0);
    assert_non_null(strstr(out.data, "q8_0"));
    assert_non_null(strstr(out.data, "perplexity"));
    assert_non_null(strstr(out.data, "after, kv q8_0"));
    assert_non_null(strstr(out.data, "does not fit in 64 tokens")); /* a needle */
}

static void every_verb_reads_the_result(void **state) {
    (void)state;
    static const char *const lines[] = {
        "inspect \"$TMP\"/q4",
        "plan \"$TMP\"/q4 --ctx 512",
        "run \"$TMP\"/q4 'Once upon' --max-new 4",
        "logits \"$TMP\"/q8 --ids 1,2,3 --out \"$TMP\"/l.npy",
        "diff nano \"$TMP\"/q8 --ids 1,2,3,4",
        "bench \"$TMP\"/q4 --contexts 16 --decode 2 --json",
        "tokenize \"$TMP\"/q4 hello",
        "select tests/convert/golden/heads.json --heads 4 --out \"$TMP\"/plan.json",
        "convert \"$TMP\"/q8 --plan \"$TMP\"/plan.json --gamma 1 --out \"$TMP\"/hybrid",
        "quantize \"$TMP\"/hybrid --bits 4 --no-measure --out \"$TMP\"/hybrid4",
        "run \"$TMP\"/hybrid4 'Once upon' --max-new 4",
        "quantize \"$TMP\"/q8 --no-measure --out \"$TMP\"/q88",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char *line = hh_sprintf("hydrahead %s", lines[i]);
        if (run(line) != 0) fail_msg("%s: %s", lines[i], errors.data);
        hh_free(line);
    }
    assert_int_equal(run("cmp \"$TMP\"/q8/model.safetensors \"$TMP\"/q88/model.safetensors"), 0);
    /* blocks of others, and of one's own kind, are two things: the first are read too, and rounded once more */
    assert_int_equal(run("hydrahead quantize \"$TMP\"/q8 --bits 4 --no-measure --out \"$TMP\"/q84"), 0);
    assert_non_null(strstr(errors.data, "rounded again"));
}

static void nothing_is_overwritten(void **state) {
    (void)state;
    assert_int_equal(run("hydrahead quantize nano"), 2);
    assert_non_null(strstr(errors.data, "--out"));
    assert_int_equal(run("hydrahead quantize nano --no-measure --out \"$TMP\"/q8"), 2);
    assert_non_null(strstr(errors.data, "holds a checkpoint"));
    assert_int_equal(run("hydrahead quantize nano --no-measure --force --out models/nano"), 2);
    assert_non_null(strstr(errors.data, "the model itself"));
    assert_int_equal(run("hydrahead quantize nano --bits 5 --out \"$TMP\"/x"), 2);
    assert_int_equal(run("hydrahead quantize nano --task nothing --out \"$TMP\"/x"), 2);
    assert_int_equal(run("hydrahead quantize nosuchmodel --out \"$TMP\"/x"), 1);
    assert_int_equal(run("hydrahead quantize nano --no-measure --force --out \"$TMP\"/q8"), 0);
    assert_int_equal(run("test -e \"$TMP\"/x"), 1);
}

static int release(void **state) {
    (void)state;
    hh_buf_release(&out);
    hh_buf_release(&errors);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cost_is_printed),
        cmocka_unit_test(every_verb_reads_the_result),
        cmocka_unit_test(nothing_is_overwritten),
    };
    return cmocka_run_group_tests_name("cli/quantize", tests, NULL, release);
}
