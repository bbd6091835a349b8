/* Configurations: what transformers 4 and 5 and GGUF files say is understood alike, rotary frequencies are
 * transformers' own, and what would change the result and is not computed is refused by name. */
#include "support/gguf_image.h"
#include "support/support.h"
#include "model/config.h"

#include <math.h>
#include <string.h>

static hh_error err;
static hh_config config;

static const char base_text[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 2,"
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 100, \"max_position_embeddings\": 256,"
    "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": true,"
    "\"bos_token_id\": 1, \"eos_token_id\": 2, \"torch_dtype\": \"bfloat16\"}";

static const char hybrid_text[] =
    "{\"model_type\": \"hydrahead\", \"base_model_type\": \"llama\", \"hydrahead\": {\"version\": 1,"
    "\"full_attention_heads\": [[0, 3], []], \"fusion\": \"scale\", \"log_scale_base\": 500,"
    "\"log_scale_in_training\": false, \"beta_scale\": 2.0, \"fa_gate\": true, \"gdn_conv\": false, \"gdn_gate\": "
    "true}}";

/* The base with the fields of `changes` (a JSON object) put over it; "-name": the field is taken away. */
static json_t *changed(json_t *json, const char *changes) {
    const char *name;
    json_t *v, *over = json_loads(changes, 0, NULL);
    if (!over) fail_msg("the test's own JSON is wrong: %s", changes);
    json_object_foreach(over, name, v) {
        if (*name == '-') {
            json_object_del(json, name + 1);
        } else {
            json_object_set(json, name, v);
        }
    }
    json_decref(over);
    return json;
}

static hh_code parse_json(json_t *json) {
    char *text = json_dumps(json, 0);
    hh_code code = hh_config_parse(&config, "F.json", text, strlen(text), &err);
    hh_free(text);
    json_decref(json);
    return code;
}

static hh_code parse(const char *changes) {
    return parse_json(changed(json_loads(base_text, 0, NULL), changes));
}

/* A hybrid with fields of its "hydrahead" object changed. */
static hh_code parse_hybrid(const char *changes) {
    json_t *json = changed(json_loads(base_text, 0, NULL), hybrid_text);
    changed(json_object_get(json, "hydrahead"), changes);
    return parse_json(json);
}

static void the_plain_fields_are_read(void **state) {
    (void)state;
    assert_ok(parse("{}"));
    assert_int_equal(config.family, HH_LLAMA);
    assert_int_equal(config.n_layers, 2);
    assert_int_equal(config.n_heads, 4);
    assert_int_equal(config.n_kv_heads, 2);
    assert_int_equal(config.head_dim, 16);
    assert_int_equal(config.width, 64);
    assert_int_equal(config.ffn, 128);
    assert_int_equal(config.vocab, 100);
    assert_int_equal(config.stored, HH_DTYPE_BF16);
    assert_true(config.tied && !config.hybrid && !config.qk_norm && !config.attention_bias);
    assert_true(config.dense[0] && config.dense[1] && config.fa[1][3]);
    assert_int_equal(config.bos_id, 1);
    assert_int_equal(config.n_end_ids, 1);
    assert_int_equal(config.end_ids[0], 2);
    assert_int_equal(hh_config_fa_count(&config, 1), 4);
    assert_true(fabs(hh_config_cache_bytes(&config, 2) - 2 * 2 * 2 * 16 * 2) < 1e-9);
}

static void absent_and_null_fields_have_transformers_defaults(void **state) {
    (void)state;
    assert_ok(
        parse("{\"-num_key_value_heads\": 0, \"head_dim\": null, \"-rope_theta\": 0, \"-tie_word_embeddings\": 0, "
              "\"-torch_dtype\": 0, \"bos_token_id\": null, \"-eos_token_id\": 0, \"rope_scaling\": null}"));
    assert_int_equal(config.n_kv_heads, 4);
    assert_int_equal(config.head_dim, 16);
    assert_true(fabs(config.rope.theta - 10000) < 1e-9);
    assert_false(config.tied);
    assert_int_equal(config.bos_id, -1);
    assert_int_equal(config.n_end_ids, 0);
    assert_ok(parse("{\"model_type\": \"qwen3\"}"));
    assert_int_equal(config.head_dim, 128);
    assert_true(config.qk_norm);
    assert_ok(parse("{\"model_type\": \"qwen2\"}"));
    assert_true(config.attention_bias && !config.o_bias);
    assert_ok(parse("{\"attention_bias\": true, \"mlp_bias\": true}"));
    assert_true(config.attention_bias && config.o_bias && config.mlp_bias);
}

static void end_tokens_are_an_id_or_a_list(void **state) {
    (void)state;
    assert_ok(parse("{\"eos_token_id\": [7, 9, 7]}"));
    assert_int_equal(config.n_end_ids, 2);
    assert_int_equal(config.end_ids[1], 9);
    assert_refused(parse("{\"eos_token_id\": \"x\"}"), HH_EFORMAT, "F.json", "eos_token_id");
    assert_refused(parse("{\"eos_token_id\": [1, -5]}"), HH_EFORMAT, "eos_token_id");
    assert_refused(parse("{\"eos_token_id\": [1,2,3,4,5,6,7,8,9]}"), HH_EUNSUPPORTED, "F.json", "eos_token_id");
}

static void numbers_are_checked_before_they_are_used(void **state) {
    (void)state;
    static const char *const fields[] = {
        "hidden_size",         "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "vocab_size",        "head_dim",          "max_position_embeddings"};
    static const char *const values[] = {"0", "-1", "4611686018427387904", "2.5", "\"two\"", "[]", "true"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        for (size_t k = 0; k < sizeof values / sizeof values[0]; k++) {
            char text[100];
            snprintf(text, sizeof text, "{\"%s\": %s}", fields[i], values[k]);
            assert_refused(parse(text), HH_EFORMAT, "F.json", fields[i]);
        }
    }
    assert_refused(parse("{\"num_key_value_heads\": 3}"), HH_EFORMAT, "num_key_value_heads", "3", "4");
    assert_refused(parse("{\"hidden_size\": 66}"), HH_EFORMAT, "hidden_size", "66");
    assert_refused(parse("{\"head_dim\": 15}"), HH_EUNSUPPORTED, "head_dim", "15");
    assert_refused(parse("{\"-vocab_size\": 0}"), HH_EFORMAT, "F.json", "vocab_size", "missing");
    assert_refused(parse("{\"rms_norm_eps\": -1}"), HH_EFORMAT, "rms_norm_eps");
    assert_refused(parse("{\"rope_theta\": 0}"), HH_EFORMAT, "rope_theta");
    assert_refused(parse("{\"torch_dtype\": \"int8\"}"), HH_EUNSUPPORTED, "torch_dtype", "int8");
    assert_refused(parse("{\"dtype\": \"float8\"}"), HH_EUNSUPPORTED, "'dtype'");
}

static void text_that_is_not_a_configuration_is_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        "[]",
                                        "3",
                                        "{",
                                        "{\"model_type\": \"llama\", \"model_type\": \"llama\"}",
                                        "{\"a\": 1e999}",
                                        "{\"a\": 99999999999999999999}",
                                        "{\"a\": \"\xff\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_refused(hh_config_parse(&config, "F.json", texts[i], strlen(texts[i]), &err), HH_EFORMAT, "F.json");
    assert_refused(hh_config_parse(&config, "F.json", NULL, 0, &err), HH_EFORMAT, "F.json");
    assert_refused(hh_config_parse(&config, "F.json", "{}", 2, &err), HH_EFORMAT, "model_type", "missing");
}

static void what_changes_the_result_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *changes, *field;
    } cases[] = {
        {"{\"model_type\": \"mistral\"}", "model_type"},
        {"{\"model_type\": \"qwen3_moe\"}", "model_type"},
        {"{\"use_sliding_window\": true}", "use_sliding_window"},
        {"{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}", "layer_types"},
        {"{\"hidden_act\": \"gelu\"}", "hidden_act"},
        {"{\"partial_rotary_factor\": 0.5}", "partial_rotary_factor"},
        {"{\"rope_interleaved\": true}", "rope_interleaved"},
        {"{\"pretraining_tp\": 2}", "pretraining_tp"},
        {"{\"final_logit_softcapping\": 30.0}", "final_logit_softcapping"},
        {"{\"attn_logit_softcapping\": 50.0}", "attn_logit_softcapping"},
        {"{\"embedding_multiplier\": 12.0}", "embedding_multiplier"},
        {"{\"quantization_config\": {\"quant_method\": \"gptq\"}}", "quantization_config"},
        {"{\"quantization_config\": {\"quant_method\": \"hydrahead\", \"type\": \"q2_0\"}}", "quantization_config"},
        {"{\"quantization_config\": {\"quant_method\": \"hydrahead\"}}", "quantization_config"},
        {"{\"quantization_config\": \"q8_0\"}", "quantization_config"},
        {"{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}}", "rope_scaling.type"},
        {"{\"rope_scaling\": {\"rope_type\": \"longrope\", \"factor\": 2.0}}", "rope_scaling.rope_type"},
        {"{\"rope_parameters\": {\"rope_type\": \"mrope\"}}", "rope_parameters.rope_type"},
        {"{\"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.25}}",
         "rope_parameters.partial_rotary_factor"},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e4}}}", "rope_parameters"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(parse(cases[i].changes), HH_EUNSUPPORTED, "F.json", cases[i].field);
    /* the same fields, saying what is computed anyway */
    assert_ok(
        parse("{\"use_sliding_window\": false, \"sliding_window\": 4096, \"max_window_layers\": 1, \"layer_types\": "
              "[\"full_attention\", \"full_attention\"], \"partial_rotary_factor\": 1.0, \"pretraining_tp\": 1, "
              "\"rope_interleaved\": false, \"final_logit_softcapping\": null, \"attention_dropout\": 0.1, "
              "\"quantization_config\": null}"));
    assert_ok(parse("{\"quantization_config\": {\"quant_method\": \"hydrahead\", \"type\": \"q4_0\"}}"));
    assert_int_equal(config.blocks, HH_DTYPE_Q4_0);
    assert_refused(parse("{\"layer_types\": [\"full_attention\"]}"), HH_EFORMAT, "layer_types");
}

static void rope_parameters_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *rope, *field;
    } cases[] = {
        {"{\"type\": \"linear\"}", "rope_scaling.factor"},
        {"{\"type\": \"linear\", \"factor\": 0}", "rope_scaling.factor"},
        {"{\"type\": \"linear\", \"factor\": \"4\"}", "rope_scaling.factor"},
        {"{\"type\": 3}", "rope_scaling.type"},
        {"{\"rope_type\": \"llama3\", \"factor\": 8, \"high_freq_factor\": 4}", "rope_scaling.low_freq_factor"},
        {"{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 4}",
         "rope_scaling.high_freq_factor"},
        {"{\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 0}",
         "rope_scaling.original_max_position_embeddings"},
        {"{\"rope_type\": \"yarn\", \"factor\": 4, \"attention_factor\": -1}", "rope_scaling.attention_factor"},
        {"{\"rope_type\": \"yarn\", \"factor\": 4, \"truncate\": 1}", "rope_scaling.truncate"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[300];
        snprintf(text, sizeof text, "{\"rope_scaling\": %s}", cases[i].rope);
        assert_refused(parse(text), HH_EFORMAT, "F.json", cases[i].field);
    }
    assert_refused(parse("{\"rope_scaling\": \"yarn\"}"), HH_EFORMAT, "rope_scaling", "object");
}

static void check_frequencies(const char *name, const json_t *expected, double factor) {
    double f[512], got;
    hh_rope_frequencies(&config, f, &got);
    assert_int_equal(json_array_size(expected), config.head_dim / 2);
    for (size_t i = 0; i < json_array_size(expected); i++) {
        double want = json_real_value(json_array_get(expected, i));
        /* transformers computes them in float32 */
        if (fabs(f[i] - want) > 1e-6 * want)
            fail_msg("%s: frequency %zu is %.9g, transformers has %.9g", name, i, f[i], want);
    }
    if (fabs(got - factor) > 1e-9) fail_msg("%s: factor %.9g, transformers has %.9g", name, got, factor);
}

static void frequencies_are_transformers(void **state) {
    (void)state;
    static const char *const versions[] = {"written4", "written5"};
    size_t i;
    json_t *c, *golden = json_load_file("tests/model/golden/rope.json", 0, NULL);
    assert_non_null(golden);
    json_array_foreach(json_object_get(golden, "cases"), i, c) {
        const char *name = json_string_value(json_object_get(c, "name"));
        const json_t *f = json_object_get(c, "inv_freq");
        double factor = json_real_value(json_object_get(c, "factor"));
        for (int v = 0; v < 2; v++) {
            assert_ok(parse_json(json_incref(json_object_get(c, versions[v]))));
            check_frequencies(name, f, factor);
            assert_int_equal(config.stored, HH_DTYPE_BF16);
            assert_ok(parse_json(hh_config_to_json(&config))); /* as hydrahead writes it */
            check_frequencies(name, f, factor);
        }
    }
    assert_true(i >= 10);
    json_decref(golden);
}

static void hybrids_are_read(void **state) {
    (void)state;
    assert_ok(parse_hybrid("{}"));
    assert_true(config.hybrid && config.family == HH_LLAMA && config.fusion == HH_FUSION_SCALE);
    assert_true(config.fa[0][0] && !config.fa[0][1] && config.fa[0][3] && !config.dense[0]);
    assert_true(config.fa_gate && !config.gdn_conv && config.gdn_gate && !config.log_scale_in_training);
    assert_true(fabs(config.log_scale_base - 500) < 1e-9 && fabs(config.beta_scale - 2) < 1e-9);
    int32_t kv[HH_MAX_HEADS], of_fa[HH_MAX_HEADS];
    assert_int_equal(hh_config_kept_kv(&config, 0, kv, of_fa), 2); /* heads 0 and 3 read KV heads 0 and 1 */
    assert_true(kv[0] == 0 && kv[1] == 1 && of_fa[0] == 0 && of_fa[1] == 1);
    assert_int_equal(hh_config_kept_kv(&config, 1, kv, of_fa), 0);
    assert_true(fabs(hh_config_cache_bytes(&config, 2) - 2 * 2 * 16 * 2) < 1e-9);
    assert_ok(parse_hybrid("{\"full_attention_heads\": [[2, 3], [1]]}")); /* only KV head 1 is kept in layer 0 */
    assert_int_equal(hh_config_kept_kv(&config, 0, kv, of_fa), 1);
    assert_true(kv[0] == 1 && of_fa[0] == 0 && of_fa[1] == 0);
    assert_ok(parse_hybrid("{\"-gdn_conv\": 0, \"-gdn_gate\": 0, \"log_scale_base\": 0, \"fusion\": \"gate\"}"));
    assert_true(config.fusion == HH_FUSION_GATE && !config.gdn_gate);
}

static void hybrids_survive_writing(void **state) {
    (void)state;
    static hh_config before;
    assert_ok(parse_hybrid("{\"fusion\": \"norm\", \"log_scale_in_training\": true, \"beta_scale\": 1.25}"));
    before = config;
    json_t *json = hh_config_to_json(&before);
    assert_string_equal(json_string_value(json_object_get(json, "base_model_type")), "llama");
    assert_ok(parse_json(json));
    assert_memory_equal(&config.fa, &before.fa, sizeof before.fa);
    assert_true(config.fusion == before.fusion && config.log_scale_in_training &&
                fabs(config.beta_scale - 1.25) < 1e-12);
    assert_int_equal(config.vocab, before.vocab);
}

static void hybrid_fields_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *changes, *field;
        hh_code code;
    } cases[] = {
        {"{\"full_attention_heads\": [[0]]}", "full_attention_heads", HH_EFORMAT},
        {"{\"full_attention_heads\": [[0], [4]]}", "layer 1", HH_EFORMAT},
        {"{\"full_attention_heads\": [[0, 0], []]}", "layer 0", HH_EFORMAT},
        {"{\"full_attention_heads\": [[0.5], []]}", "layer 0", HH_EFORMAT},
        {"{\"full_attention_heads\": [0, []]}", "full_attention_heads", HH_EFORMAT},
        {"{\"-full_attention_heads\": 0}", "full_attention_heads", HH_EFORMAT},
        {"{\"version\": 2}", "hydrahead.version", HH_EUNSUPPORTED},
        {"{\"-version\": 0}", "hydrahead.version", HH_EFORMAT},
        {"{\"fusion\": \"sum\"}", "hydrahead.fusion", HH_EUNSUPPORTED},
        {"{\"log_scale_base\": 1}", "hydrahead.log_scale_base", HH_EFORMAT},
        {"{\"log_scale_base\": -3}", "hydrahead.log_scale_base", HH_EFORMAT},
        {"{\"beta_scale\": 3}", "hydrahead.beta_scale", HH_EFORMAT},
        {"{\"fa_gate\": 1}", "hydrahead.fa_gate", HH_EFORMAT},
        {"{\"-beta_scale\": 1}", "hydrahead.beta_scale", HH_EFORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(parse_hybrid(cases[i].changes), cases[i].code, "F.json", cases[i].field);
    assert_refused(parse("{\"hydrahead\": {}}"), HH_EFORMAT, "model_type");
    assert_refused(parse("{\"model_type\": \"hydrahead\"}"), HH_EFORMAT, "base_model_type");
}

static void a_directory_is_read_with_its_generation_config(void **state) {
    (void)state;
    hh_store *store;
    assert_ok(hh_store_open(&store, "models/nano", &err));
    assert_ok(hh_config_read(&config, store, &err));
    assert_int_equal(config.family, HH_QWEN3);
    hh_store_close(store);
    const char *dir = temp_path("model");
    assert_ok(hh_make_directory(dir, &err));
    hh_buf weights = read_whole("models/nano/model.safetensors");
    temp_file("model/model.safetensors", weights.data, weights.len);
    hh_buf_release(&weights);
    assert_ok(hh_store_open(&store, dir, &err));
    assert_refused(hh_config_read(&config, store, &err), HH_EIO, "model/config.json");
    temp_text("model/config.json", base_text);
    temp_text("model/generation_config.json", "{\"eos_token_id\": [5, 2], \"temperature\": 0.7}");
    assert_ok(hh_config_read(&config, store, &err));
    assert_int_equal(config.n_end_ids, 2);
    assert_int_equal(config.end_ids[1], 5);
    temp_text("model/generation_config.json", "{\"eos_token_id\": {}}");
    assert_refused(hh_config_read(&config, store, &err), HH_EFORMAT, "generation_config.json", "eos_token_id");
    temp_text("model/generation_config.json", "{}");
    /* a hybrid whose file has a plain layer: only where all heads are full attention */
    json_t *json = changed(json_loads(base_text, 0, NULL), hybrid_text);
    json_dump_file(json, temp_path("model/config.json"), 0);
    assert_refused(hh_config_read(&config, store, &err), HH_EFORMAT, "model.layers.0.self_attn.q_proj.weight");
    json_object_set_new(json_object_get(json, "hydrahead"), "full_attention_heads",
                        json_loads("[[0,1,2,3],[0,1,2,3]]", 0, NULL));
    json_dump_file(json, temp_path("model/config.json"), 0);
    assert_ok(hh_config_read(&config, store, &err));
    assert_true(config.hybrid && config.dense[0] && config.dense[1]);
    json_decref(json);
    hh_store_close(store);
}

typedef void add_fn(hh_buf *b);

/* A file of one layer, heads of width 4 (with divisors: 64); `add` writes n_more keys, a tensor of 32 `divisors`
 * follows when it is not NULL. */
static hh_code read_gguf(const char *arch, int n_more, add_fn *add, const float *divisors) {
    const uint32_t width = divisors ? 64 : 4;
    const struct {
        const char *name;
        uint32_t v;
    } keys[] = {{"block_count", 1},
                {"embedding_length", 4 * width},
                {"feed_forward_length", 16},
                {"attention.head_count", 4},
                {"attention.head_count_kv", 2},
                {"context_length", 64},
                {"rope.dimension_count", width}};
    hh_buf b = {0};
    char key[100];
    gguf_header(&b, 3, divisors ? 2 : 1, (uint64_t)(11 + n_more));
    gguf_key_string(&b, "general.architecture", arch);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, keys[i].name);
        gguf_key_u32(&b, key, keys[i].v);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gguf_key_f32(&b, key, 1e-5F);
    gguf_key_u32(&b, "tokenizer.ggml.eos_token_id", 2);
    gguf_key_u32(&b, "tokenizer.ggml.eot_token_id", 3);
    if (add) add(&b);
    gguf_tensor(&b, "token_embd.weight", 2, (const uint64_t[]){4 * width, 4}, 1, 0);
    if (divisors) gguf_tensor(&b, "rope_freqs.weight", 1, (const uint64_t[]){32}, 0, 32 * width);
    gguf_data(&b, 32, 32 * width);
    if (divisors) hh_buf_add(&b, divisors, 32 * sizeof *divisors);
    hh_store *store;
    const char *path = temp_file("model.gguf", b.data, b.len);
    hh_buf_release(&b);
    assert_ok(hh_store_open(&store, path, &err));
    hh_code code = hh_config_read(&config, store, &err);
    hh_store_close(store);
    return code;
}

static void add_yarn(hh_buf *b) {
    gguf_key_string(b, "llama.rope.scaling.type", "yarn");
    gguf_key_f32(b, "llama.rope.scaling.factor", 4);
    gguf_key_u32(b, "llama.rope.scaling.original_context_length", 16);
}
static void add_window(hh_buf *b) {
    gguf_key_u32(b, "llama.attention.sliding_window", 4096);
}
static void add_longrope(hh_buf *b) {
    gguf_key_string(b, "llama.rope.scaling.type", "longrope");
}
static void add_long_type(hh_buf *b) {
    gguf_key_u32(b, "llama.rope.scaling.type", 1);
}
static void add_values(hh_buf *b) {
    gguf_key_u32(b, "llama.attention.value_length", 8);
}
static void add_parts(hh_buf *b) {
    gguf_key_u32(b, "split.count", 3);
}
static void add_theta(hh_buf *b) {
    gguf_key_f32(b, "llama.rope.freq_base", 500000);
}

static void gguf_metadata_is_a_configuration(void **state) {
    (void)state;
    assert_ok(read_gguf("llama", 0, NULL, NULL));
    assert_int_equal(config.family, HH_LLAMA);
    assert_int_equal(config.n_heads, 4);
    assert_int_equal(config.n_kv_heads, 2);
    assert_int_equal(config.head_dim, 4);
    assert_int_equal(config.vocab, 4);
    assert_true(config.tied);
    assert_true(config.norm_eps >= 1e-5 && config.norm_eps <= 1e-5); /* what the float32 stands for */
    assert_int_equal(config.n_end_ids, 2);
    assert_int_equal(config.end_ids[1], 3);
    assert_ok(read_gguf("llama", 3, add_yarn, NULL));
    double f[2], factor;
    hh_rope_frequencies(&config, f, &factor);
    assert_true(config.rope.kind == HH_ROPE_YARN && config.rope.original_max_position == 16);
    assert_true(fabs(factor - (0.1 * log(4) + 1)) < 1e-9);
}

static void gguf_asks_for_what_is_not_computed(void **state) {
    (void)state;
    assert_refused(read_gguf("mamba", 0, NULL, NULL), HH_EUNSUPPORTED, "model.gguf", "general.architecture", "mamba");
    assert_refused(read_gguf("llama", 1, add_window, NULL), HH_EUNSUPPORTED, "model.gguf", "attention.sliding_window");
    assert_refused(read_gguf("llama", 1, add_longrope, NULL), HH_EUNSUPPORTED, "rope.scaling.type", "longrope");
    assert_refused(read_gguf("llama", 1, add_long_type, NULL), HH_EFORMAT, "rope.scaling.type");
    assert_refused(read_gguf("llama", 1, add_values, NULL), HH_EUNSUPPORTED, "attention.value_length", "8", "4");
    assert_refused(read_gguf("llama", 1, add_parts, NULL), HH_EUNSUPPORTED, "model.gguf", "3 parts");
    assert_refused(read_gguf("qwen3", 0, NULL, NULL), HH_EUNSUPPORTED, "model.gguf", "attn_q_norm");
    assert_refused(read_gguf("qwen2", 0, NULL, NULL), HH_EUNSUPPORTED, "model.gguf", "attn_q.bias");
}

static void llama_3_s_divisors_become_its_scaling(void **state) {
    (void)state;
    size_t i;
    json_t *c, *golden = json_load_file("tests/model/golden/rope.json", 0, NULL);
    float divisor[32];
    bool tested = false;
    json_array_foreach(json_object_get(golden, "cases"), i, c) {
        if (strcmp(json_string_value(json_object_get(c, "name")), "llama 3.2") != 0) continue;
        const json_t *f = json_object_get(c, "inv_freq");
        for (size_t k = 0; k < 32; k++)
            divisor[k] = (float)(pow(500000, -(double)k / 32) / json_real_value(json_array_get(f, k)));
        assert_ok(read_gguf("llama", 1, add_theta, divisor));
        assert_int_equal(config.rope.kind, HH_ROPE_LLAMA3);
        check_frequencies("divisors", f, 1);
        tested = true;
    }
    assert_true(tested);
    divisor[16] *= 1.01F;
    assert_refused(read_gguf("llama", 1, add_theta, divisor), HH_EUNSUPPORTED, "model.gguf", "rope_freqs.weight");
    divisor[16] = NAN;
    assert_refused(read_gguf("llama", 1, add_theta, divisor), HH_EUNSUPPORTED, "rope_freqs.weight");
    for (int k = 0; k < 32; k++) divisor[k] = 1;
    assert_ok(read_gguf("llama", 1, add_theta, divisor));
    assert_int_equal(config.rope.kind, HH_ROPE_DEFAULT);
    json_decref(golden);
}

static void smollm2_is_read(void **state) {
    (void)state;
    static const char path[] = "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    hh_store *store;
    if (!have(path)) {
        print_message("skipped: %s is absent (make models)\n", path);
        skip();
    }
    assert_ok(hh_store_open(&store, path, &err));
    assert_ok(hh_config_read(&config, store, &err));
    hh_store_close(store);
    assert_int_equal(config.n_layers, 30);
    assert_int_equal(config.n_heads, 9);
    assert_int_equal(config.n_kv_heads, 3);
    assert_int_equal(config.head_dim, 64);
    assert_int_equal(config.vocab, 49152);
    assert_true(config.tied && fabs(config.rope.theta - 100000) < 1e-6);
    assert_int_equal(config.end_ids[0], 2); /* <|im_end|> */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plain_fields_are_read),
        cmocka_unit_test(absent_and_null_fields_have_transformers_defaults),
        cmocka_unit_test(end_tokens_are_an_id_or_a_list),
        cmocka_unit_test(numbers_are_checked_before_they_are_used),
        cmocka_unit_test(text_that_is_not_a_configuration_is_refused),
        cmocka_unit_test(what_changes_the_result_is_refused_by_name),
        cmocka_unit_test(rope_parameters_are_checked),
        cmocka_unit_test(frequencies_are_transformers),
        cmocka_unit_test(hybrids_are_read),
        cmocka_unit_test(hybrids_survive_writing),
        cmocka_unit_test(hybrid_fields_are_checked),
        cmocka_unit_test(a_directory_is_read_with_its_generation_config),
        cmocka_unit_test(gguf_metadata_is_a_configuration),
        cmocka_unit_test(gguf_asks_for_what_is_not_computed),
        cmocka_unit_test(llama_3_s_divisors_become_its_scaling),
        cmocka_unit_test(smollm2_is_read),
    };
    return cmocka_run_group_tests_name("model: configurations", tests, NULL, NULL);
}
