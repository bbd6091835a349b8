/* `inspect` and `plan`: what a user is shown of a checkpoint, and of the memory that it takes. */
#include "support/support.h"
#include "format/safetensors.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static hh_buf out, errors;

static int run(const char *line) {
    hh_buf_release(&out);
    hh_buf_release(&errors);
    return run_line(line, 60, &out, &errors);
}

static void shows(const char *text) {
    if (!strstr(out.data, text)) fail_msg("not shown: %s\nin:\n%s", text, out.data);
}

static void the_shipped_model_is_shown(void **state) {
    (void)state;
    assert_int_equal(run("hydrahead inspect nano --tensors"), 0);
    shows("qwen3");
    shows("8 query, 4 key/value, width 32");
    shows("theta 10000");
    shows("2.0 kB a token"); /* 4 layers, 4 KV heads, keys and values of 32 numbers of 2 bytes */
    shows("model.layers.3.mlp.up_proj.weight");
    shows("[768, 256]");
    assert_int_equal(run("hydrahead inspect models/nano --json --tensors"), 0);
    json_t *o = json_loads(out.data, 0, NULL);
    assert_non_null(o);
    assert_int_equal(json_integer_value(json_object_get(o, "parameters")), 3672576);
    assert_int_equal(json_array_size(json_object_get(o, "tensors")), 46);
    assert_string_equal(json_string_value(json_object_get(json_object_get(o, "config"), "model_type")), "qwen3");
    json_decref(o);
}

/* A hybrid's directory of which only what inspect looks at is there. */
static void write_hybrid(const char *version) {
    hh_error err;
    float x[1] = {1};
    const hh_named_tensor t = {.name = "model.norm.weight", .t = hh_tensor_1d(x, HH_DTYPE_F32, 1)};
    assert_ok(hh_make_directory(temp_path("hybrid"), &err));
    assert_ok(hh_safetensors_write(temp_path("hybrid/model.safetensors"), &t, 1, &err));
    char *text = hh_sprintf(
        "{\"model_type\": \"hydrahead\", \"base_model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": "
        "128,"
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 100,"
        "\"hydrahead\": {\"version\": %s, \"full_attention_heads\": [[0, 3], []], \"fusion\": \"scale\","
        "\"log_scale_base\": 500, \"log_scale_in_training\": false, \"beta_scale\": 2.0, \"fa_gate\": true}}",
        version);
    temp_text("hybrid/config.json", text);
    hh_free(text);
}

static void a_hybrid_says_what_it_keeps_and_costs(void **state) {
    (void)state;
    write_hybrid("1");
    assert_int_equal(run("hydrahead inspect $TMP/hybrid"), 0);
    shows("llama, hybrid");
    shows("2 of 8 heads");
    shows("layer 0: 0 3");
    shows("128 B a token in bfloat16; its teacher: 256 B");
    shows("6.1 kB a sequence"); /* 6 GDN heads, 16 x 16 floats */
}

static void what_is_not_supported_is_shown_as_far_as_it_goes(void **state) {
    (void)state;
    write_hybrid("2");
    assert_int_equal(run("hydrahead inspect $TMP/hybrid"), 1);
    shows("safetensors, 1 file");
    assert_non_null(strstr(errors.data, "hydrahead.version"));
    assert_int_equal(run("hydrahead inspect $TMP/hybrid --json"), 1);
    json_t *o = json_loads(out.data, 0, NULL);
    assert_non_null(strstr(json_string_value(json_object_get(o, "error")), "hydrahead.version"));
    json_decref(o);
    assert_int_equal(run("hydrahead inspect $TMP/nothing"), 1);
    assert_non_null(strstr(errors.data, "nothing"));
    assert_int_equal(run("hydrahead inspect"), 2);
}

static void smollm2_is_shown(void **state) {
    (void)state;
    if (!have("models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")) {
        print_message("skipped: SmolLM2 is absent (make models)\n");
        skip();
    }
    assert_int_equal(run("hydrahead inspect models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --metadata"), 0);
    shows("llama");
    shows("9 query, 3 key/value, width 64");
    shows("135M parameters");
    shows("general.architecture: string 'llama'");
}

/* `plan` of training steps of nano; *sum: all parts but the total. */
static json_t *plan_training(const char *options, double *sum) {
    const char *part;
    json_t *bytes;
    char *line = hh_sprintf("hydrahead plan nano --train --ctx 128 --batch 4 --json %s", options);
    if (run(line) != 0) fail_msg("%s: %s", line, errors.data);
    json_t *o = json_loads(out.data, 0, NULL);
    assert_non_null(o);
    *sum = 0;
    json_object_foreach(o, part, bytes) {
        if (strcmp(part, "model") && strcmp(part, "context") && strcmp(part, "batch") && strcmp(part, "total"))
            *sum += json_number_value(bytes);
    }
    hh_free(line);
    return o;
}

static double bytes_of(const json_t *o, const char *part) {
    return json_number_value(json_object_get(o, part));
}

static void training_with_a_teacher_takes_both_models(void **state) {
    (void)state;
    double sum;
    json_t *alone = plan_training("", &sum), *taught = plan_training("--teacher nano", &sum);
    const double teacher = bytes_of(taught, "teacher_weights") + bytes_of(taught, "teacher_mapped");
    assert_near(bytes_of(taught, "total"), sum, 8);
    assert_true(teacher >= 2 * 3672576); /* as it is stored, in two bytes a number */
    assert_true(bytes_of(taught, "teacher_activations") > 0);
    assert_true(bytes_of(taught, "teacher_activations") < bytes_of(taught, "activations")); /* of one layer, not all */
    assert_near(bytes_of(taught, "moments"), bytes_of(alone, "moments"), 0);
    assert_true(bytes_of(taught, "total") >= bytes_of(alone, "total") + teacher);
    json_decref(alone);
    json_decref(taught);
    assert_int_equal(run("hydrahead plan nano --train --stage align"), 2);
    assert_non_null(strstr(errors.data, "--teacher"));
    assert_int_equal(run("hydrahead plan nano --train --stage extend --teacher nano"), 2);
    assert_non_null(strstr(errors.data, "extend"));
    assert_int_equal(run("hydrahead plan nano --teacher nano"), 2);
    assert_non_null(strstr(errors.data, "--train"));
}

/* Hostile builds and sanitizers take memory of their own. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(HH_HOSTILE) || defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer) ||                        \
    __has_feature(thread_sanitizer)
enum { TAKES_MORE = 1 };
#else
enum { TAKES_MORE = 0 };
#endif

/* What `plan` says of MODEL with a context of `ctx` tokens, and the peak that a run of as many prints; in bytes. */
static double planned(const char *model, int ctx) {
    char *line = hh_sprintf("hydrahead plan %s --ctx %d --threads 2 --json", model, ctx);
    if (run(line) != 0) fail_msg("%s: %s", line, errors.data);
    json_t *o = json_loads(out.data, 0, NULL);
    const double total = bytes_of(o, "total");
    json_decref(o);
    hh_free(line);
    return total;
}

static double taken(const char *model, int ctx) {
    double mib = 0;
    char *line =
        hh_sprintf("hydrahead run %s --file \"$TMP\"/prompt --max-new 16 --context %d --threads 2", model, ctx);
    if (run(line) != 0) fail_msg("%s: %s", line, errors.data);
    const char *peak = strstr(errors.data, "peak memory ");
    assert_non_null(peak);
    assert_int_equal(sscanf(peak, "peak memory %lf MiB", &mib), 1);
    hh_free(line);
    return mib * (1 << 20);
}

/* tools/check_plan.sh measures to 5 %, at contexts of use; here twice that is room for other systems' pages. */
static void plan_is_what_a_run_takes(void **state) {
    (void)state;
    enum { CTX = 1024 };
    if (TAKES_MORE) skip();
    assert_int_equal(run("zcat models/nano/text_valid.txt.gz | head -c 3000 > \"$TMP\"/prompt"), 0);
    assert_int_equal(run("hydrahead select tests/convert/golden/heads.json --heads 4 --out \"$TMP\"/plan.json"), 0);
    assert_int_equal(run("hydrahead convert nano --plan \"$TMP\"/plan.json --gamma 1 --out \"$TMP\"/kept4"), 0);
    static const char *const models[] = {"nano", "\"$TMP\"/kept4"};
    for (int i = 0; i < 2; i++) {
        const double plan = planned(models[i], CTX), peak = taken(models[i], CTX);
        if (fabs(plan - peak) > 0.1 * peak)
            fail_msg("%s: planned %.1f MiB, taken %.1f MiB", models[i], plan / (1 << 20), peak / (1 << 20));
    }
}

static int release(void **state) {
    (void)state;
    hh_buf_release(&out);
    hh_buf_release(&errors);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shipped_model_is_shown),
        cmocka_unit_test(a_hybrid_says_what_it_keeps_and_costs),
        cmocka_unit_test(what_is_not_supported_is_shown_as_far_as_it_goes),
        cmocka_unit_test(smollm2_is_shown),
        cmocka_unit_test(training_with_a_teacher_takes_both_models),
        cmocka_unit_test(plan_is_what_a_run_takes),
    };
    return cmocka_run_group_tests_name("cli: inspect", tests, NULL, release);
}
