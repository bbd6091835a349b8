/* config.json, as transformers 4 and 5 write it, and hydrahead's own additions.
 *
 * transformers ignores what it does not know; here a field that is known to change the result and is not computed is
 * refused by name, because a model that runs a little wrong is worse than one that does not run. */
#include "model/config_parts.h"

#include "format/quote.h"

#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static hh_code unsupported(hh_json_object o, const char *field, const char *expected, hh_error *err) {
    return hh_json_refuse(o, field, HH_EUNSUPPORTED, expected, err);
}

static hh_code read_family(hh_config *c, hh_json_object top, hh_error *err) {
    const char *type = NULL;
    HH_TRY(hh_json_need(top, "model_type", err));
    HH_TRY(hh_json_string(top, "model_type", &type, err));
    const char *field = "model_type";
    if (strcmp(type, "hydrahead") == 0) {
        c->hybrid = true;
        field = "base_model_type";
        HH_TRY(hh_json_need(top, field, err));
        HH_TRY(hh_json_string(top, field, &type, err));
    } else if (hh_json_get(top, "hydrahead")) {
        return hh_json_refuse(top, "model_type", HH_EFORMAT, "'hydrahead', since there is a field 'hydrahead'", err);
    }
    int family = hh_name_index(hh_family_names, 3, type);
    if (family < 0) return unsupported(top, field, "qwen3, qwen2, llama or hydrahead", err);
    c->family = (hh_family)family;
    return HH_OK;
}

static hh_code read_dimensions(hh_config *c, hh_json_object top, hh_error *err) {
    const struct {
        const char *field;
        int64_t max, *out;
    } fields[] = {
        {"num_hidden_layers", HH_MAX_LAYERS, &c->n_layers},
        {"num_attention_heads", HH_MAX_HEADS, &c->n_heads},
        {"hidden_size", HH_MAX_WIDTH, &c->width},
        {"intermediate_size", HH_MAX_FFN, &c->ffn},
        {"vocab_size", HH_MAX_VOCAB, &c->vocab},
    };
    for (int i = 0; i < COUNT(fields); i++) {
        HH_TRY(hh_json_need(top, fields[i].field, err));
        HH_TRY(hh_json_int(top, fields[i].field, 1, fields[i].max, fields[i].out, err));
    }
    /* What transformers fills in when a field is absent. */
    if (c->family == HH_QWEN3 && !json_object_get(top.json, "head_dim")) c->head_dim = 128;
    c->max_position = c->family == HH_LLAMA ? 2048 : 32768;
    HH_TRY(hh_json_int(top, "num_key_value_heads", 1, HH_MAX_HEADS, &c->n_kv_heads, err));
    HH_TRY(hh_json_int(top, "head_dim", 1, HH_MAX_HEAD_DIM, &c->head_dim, err));
    HH_TRY(hh_json_int(top, "max_position_embeddings", 1, HH_MAX_POSITION, &c->max_position, err));
    return hh_json_number(top, "rms_norm_eps", 0, 1, &c->norm_eps, err);
}

static hh_code read_stored(hh_config *c, hh_json_object top, hh_error *err) {
    static const char *const names[] = {"float32", "float16", "bfloat16"};
    static const hh_dtype types[] = {HH_DTYPE_F32, HH_DTYPE_F16, HH_DTYPE_BF16};
    const char *field = hh_json_get(top, "dtype") ? "dtype" : "torch_dtype", *name = NULL;
    HH_TRY(hh_json_string(top, field, &name, err));
    if (!name) return HH_OK;
    int i = hh_name_index(names, COUNT(names), name);
    if (i < 0) return unsupported(top, field, "float32, float16 or bfloat16", err);
    c->stored = types[i];
    return HH_OK;
}

/* What hydrahead quantize wrote; another way to quantise is refused. */
static hh_code read_blocks(hh_config *c, hh_json_object top, hh_error *err) {
    static const hh_dtype types[] = {HH_DTYPE_Q8_0, HH_DTYPE_Q4_0};
    const json_t *v = hh_json_get(top, "quantization_config");
    const char *method = json_string_value(json_object_get(v, "quant_method")),
               *type = json_string_value(json_object_get(v, "type"));
    if (!v || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0)) return HH_OK;
    for (int i = 0; i < COUNT(types) && method && type && !strcmp(method, HH_QUANT_METHOD); i++)
        if (!strcmp(type, hh_dtype_name(types[i]))) c->blocks = types[i];
    if (hh_dtype_is_quantised(c->blocks)) return HH_OK;
    return unsupported(top, "quantization_config",
                       "null, or what hydrahead quantize wrote: load the weights unquantised, or as GGUF", err);
}

static hh_code read_switches(hh_config *c, hh_json_object top, hh_error *err) {
    bool attention_bias = false;
    HH_TRY(hh_json_bool(top, "tie_word_embeddings", &c->tied, err));
    if (c->family != HH_QWEN2) HH_TRY(hh_json_bool(top, "attention_bias", &attention_bias, err));
    if (c->family == HH_LLAMA) HH_TRY(hh_json_bool(top, "mlp_bias", &c->mlp_bias, err));
    c->attention_bias = attention_bias || c->family == HH_QWEN2;
    c->o_bias = attention_bias;
    c->qk_norm = c->family == HH_QWEN3;
    return HH_OK;
}

/* Fields that would change the result. Absent, null, false and `neutral` are harmless. */
static hh_code refuse_other_models(hh_json_object top, hh_error *err) {
    static const struct {
        const char *field;
        double neutral;
        const char *expected;
    } fields[] = {
        {"use_sliding_window", 0, "false: sliding windows are not computed"},
        {"partial_rotary_factor", 1, "1: rotary embedding of a part of a head is not computed"},
        {"rope_interleaved", 0, "false: only the rotate-half layout is computed"},
        {"pretraining_tp", 1, "1"},
        {"final_logit_softcapping", 0, "null: soft caps are not computed"},
        {"attn_logit_softcapping", 0, "null: soft caps are not computed"},
        {"query_pre_attn_scalar", 0, "null: attention is scaled by the head width only"},
        {"attention_multiplier", 0, "null: attention is scaled by the head width only"},
        {"embedding_multiplier", 1, "1: embeddings are not scaled"},
        {"residual_multiplier", 1, "1: residual branches are not scaled"},
        {"logits_scaling", 1, "1: logits are not scaled"},
        {"use_bidirectional_attention", 0, "false: attention is causal"},
        {"num_experts", 0, "null: mixtures of experts are not computed"},
        {"num_local_experts", 0, "null: mixtures of experts are not computed"},
    };
    for (int i = 0; i < COUNT(fields); i++) {
        const json_t *v = hh_json_get(top, fields[i].field);
        if (!v || json_is_false(v)) continue;
        double x = json_number_value(v);
        if (json_is_number(v) && x >= fields[i].neutral && x <= fields[i].neutral) continue;
        return unsupported(top, fields[i].field, fields[i].expected, err);
    }
    const char *act = "silu";
    HH_TRY(hh_json_string(top, "hidden_act", &act, err));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0) return unsupported(top, "hidden_act", "silu", err);
    return HH_OK;
}

static hh_code check_layer_types(const hh_config *c, hh_json_object top, hh_error *err) {
    const json_t *types = hh_json_get(top, "layer_types");
    if (!types) return HH_OK;
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->n_layers)
        return hh_json_refuse(top, "layer_types", HH_EFORMAT, "an array with one entry a layer", err);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type || strcmp(type, "full_attention") != 0)
            return unsupported(top, "layer_types", "'full_attention' in every layer", err);
    }
    return HH_OK;
}

static hh_code check_id(hh_json_object o, const char *field, const json_t *v, hh_error *err) {
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= INT32_MAX) return HH_OK;
    return hh_json_refuse(o, field, HH_EFORMAT, "a token id or a list of them", err);
}

static hh_code read_end_ids(hh_config *c, hh_json_object top, hh_error *err) {
    const json_t *v = hh_json_get(top, "eos_token_id");
    if (!v) return HH_OK;
    if (json_is_integer(v) && json_integer_value(v) == -1) return HH_OK; /* an old way to say "none" */
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        HH_TRY(check_id(top, "eos_token_id", id, err));
        HH_TRY(hh_config_add_end(c, top.path, json_integer_value(id), err));
    }
    return HH_OK;
}

static hh_code read_ids(hh_config *c, hh_json_object top, hh_error *err) {
    int64_t bos = -1;
    HH_TRY(hh_json_int(top, "bos_token_id", -1, INT32_MAX, &bos, err));
    c->bos_id = (int32_t)bos;
    return read_end_ids(c, top, err);
}

/* The object with rope_type, factor and so on: rope_parameters (transformers 5), rope_scaling (4, and preferred by 5).
 */
static hh_code find_rope(hh_json_object *out, hh_json_object top, hh_error *err) {
    HH_TRY(hh_json_sub(out, top, "rope_scaling", "rope_scaling.", err));
    if (out->json && json_object_size(out->json) > 0) return HH_OK;
    HH_TRY(hh_json_sub(out, top, "rope_parameters", "rope_parameters.", err));
    if (hh_json_get(*out, "full_attention") || hh_json_get(*out, "sliding_attention"))
        return unsupported(top, "rope_parameters", "one set of parameters for all layers", err);
    return HH_OK;
}

static hh_code read_rope_kind(hh_rope_config *r, hh_json_object rope, hh_error *err) {
    const char *field = hh_json_get(rope, "rope_type") ? "rope_type" : "type", *name = "default";
    HH_TRY(hh_json_string(rope, field, &name, err));
    int kind = hh_name_index(hh_rope_names, 4, name);
    if (kind < 0) return unsupported(rope, field, "default, linear, llama3 or yarn", err);
    r->kind = (hh_rope_kind)kind;
    return HH_OK;
}

static hh_code read_yarn(hh_rope_config *r, hh_json_object rope, hh_error *err) {
    HH_TRY(hh_json_number(rope, "attention_factor", 1e-6, 1e6, &r->attention_factor, err));
    HH_TRY(hh_json_number(rope, "mscale", 0, 1e6, &r->mscale, err));
    HH_TRY(hh_json_number(rope, "mscale_all_dim", 0, 1e6, &r->mscale_all_dim, err));
    double fast = 0, slow = 0; /* 0 means the default, as in transformers */
    HH_TRY(hh_json_number(rope, "beta_fast", 0, 1e6, &fast, err));
    HH_TRY(hh_json_number(rope, "beta_slow", 0, 1e6, &slow, err));
    if (fast > 0) r->beta_fast = fast;
    if (slow > 0) r->beta_slow = slow;
    return hh_json_bool(rope, "truncate", &r->truncate, err);
}

static hh_code read_rope(hh_config *c, hh_json_object top, hh_error *err) {
    hh_rope_config *r = &c->rope;
    hh_json_object rope;
    double partial = 1;
    HH_TRY(find_rope(&rope, top, err));
    /* theta above 1, so that its logarithm is positive */
    HH_TRY(hh_json_number(top, "rope_theta", 1.0001, 1e15, &r->theta, err));
    HH_TRY(hh_json_number(rope, "rope_theta", 1.0001, 1e15, &r->theta, err));
    HH_TRY(hh_json_number(rope, "partial_rotary_factor", 0, 1, &partial, err));
    if (partial < 1) return unsupported(rope, "partial_rotary_factor", "1", err);
    HH_TRY(read_rope_kind(r, rope, err));
    r->original_max_position = c->max_position;
    if (r->kind == HH_ROPE_DEFAULT) return HH_OK;
    HH_TRY(hh_json_int(rope, "original_max_position_embeddings", 1, HH_MAX_POSITION, &r->original_max_position, err));
    HH_TRY(hh_json_int(top, "original_max_position_embeddings", 1, HH_MAX_POSITION, &r->original_max_position, err));
    if (r->kind == HH_ROPE_YARN && !hh_json_get(rope, "factor")) {
        r->factor = (double)c->max_position / (double)r->original_max_position;
    } else {
        HH_TRY(hh_json_need(rope, "factor", err));
        HH_TRY(hh_json_number(rope, "factor", 1e-3, 1e6, &r->factor, err));
    }
    if (r->kind == HH_ROPE_YARN) return read_yarn(r, rope, err);
    if (r->kind == HH_ROPE_LINEAR) return HH_OK;
    HH_TRY(hh_json_need(rope, "low_freq_factor", err));
    HH_TRY(hh_json_need(rope, "high_freq_factor", err));
    HH_TRY(hh_json_number(rope, "low_freq_factor", 1e-6, 1e6, &r->low_freq_factor, err));
    HH_TRY(hh_json_number(rope, "high_freq_factor", 1e-6, 1e6, &r->high_freq_factor, err));
    if (r->high_freq_factor <= r->low_freq_factor)
        return hh_json_refuse(rope, "high_freq_factor", HH_EFORMAT, "more than low_freq_factor", err);
    return HH_OK;
}

static hh_code read_heads(hh_config *c, hh_json_object hybrid, hh_error *err) {
    static const char field[] = "full_attention_heads";
    const json_t *layers = hh_json_get(hybrid, field);
    if (!json_is_array(layers) || json_array_size(layers) != (size_t)c->n_layers)
        return hh_json_refuse(hybrid, field, HH_EFORMAT, "an array of head numbers for every layer", err);
    for (size_t l = 0; l < json_array_size(layers); l++) {
        const json_t *heads = json_array_get(layers, l);
        if (!json_is_array(heads)) return hh_json_refuse(hybrid, field, HH_EFORMAT, "arrays of head numbers", err);
        for (size_t i = 0; i < json_array_size(heads); i++) {
            const json_t *v = json_array_get(heads, i);
            json_int_t h = json_integer_value(v);
            if (!json_is_integer(v) || h < 0 || h >= c->n_heads || c->fa[l][h])
                return hh_fail(err, HH_EFORMAT,
                               "%s: field 'hydrahead.%s' of layer %zu: entry %zu is not a head of [0, %lld) "
                               "listed once",
                               hybrid.path, field, l, i, (long long)c->n_heads);
            c->fa[l][h] = true;
        }
    }
    return HH_OK;
}

static hh_code read_hybrid(hh_config *c, hh_json_object top, hh_error *err) {
    static const char *const required[] = {"version",        "full_attention_heads",  "fusion",
                                           "log_scale_base", "log_scale_in_training", "beta_scale",
                                           "fa_gate"};
    hh_json_object hybrid;
    const char *fusion = "";
    int64_t version = 0;
    HH_TRY(hh_json_need(top, "hydrahead", err));
    HH_TRY(hh_json_sub(&hybrid, top, "hydrahead", "hydrahead.", err));
    HH_TRY(hh_json_need(hybrid, "version", err));
    HH_TRY(hh_json_int(hybrid, "version", 1, INT32_MAX, &version, err));
    if (version != 1) return unsupported(hybrid, "version", "1: this checkpoint is newer than the program", err);
    for (int i = 0; i < COUNT(required); i++) HH_TRY(hh_json_need(hybrid, required[i], err));
    HH_TRY(hh_json_string(hybrid, "fusion", &fusion, err));
    int kind = hh_name_index(hh_fusion_names, 4, fusion);
    if (kind < 0) return unsupported(hybrid, "fusion", "scale, norm, none or gate", err);
    c->fusion = (hh_fusion)kind;
    HH_TRY(hh_json_number(hybrid, "log_scale_base", 0, 1e9, &c->log_scale_base, err));
    if (c->log_scale_base > 0 && c->log_scale_base < 1.0001)
        return hh_json_refuse(hybrid, "log_scale_base", HH_EFORMAT, "0 (off) or more than 1", err);
    HH_TRY(hh_json_bool(hybrid, "log_scale_in_training", &c->log_scale_in_training, err));
    HH_TRY(hh_json_number(hybrid, "beta_scale", 1e-6, 2, &c->beta_scale, err));
    HH_TRY(hh_json_bool(hybrid, "fa_gate", &c->fa_gate, err));
    HH_TRY(hh_json_bool(hybrid, "gdn_conv", &c->gdn_conv, err));
    HH_TRY(hh_json_bool(hybrid, "gdn_gate", &c->gdn_gate, err));
    return read_heads(c, hybrid, err);
}

static hh_code read_all(hh_config *c, hh_json_object top, hh_error *err) {
    HH_TRY(read_family(c, top, err));
    HH_TRY(refuse_other_models(top, err));
    HH_TRY(read_dimensions(c, top, err));
    HH_TRY(read_stored(c, top, err));
    HH_TRY(read_blocks(c, top, err));
    HH_TRY(read_switches(c, top, err));
    HH_TRY(check_layer_types(c, top, err));
    HH_TRY(read_ids(c, top, err));
    HH_TRY(read_rope(c, top, err));
    if (c->hybrid) HH_TRY(read_hybrid(c, top, err));
    return hh_config_finish(c, top.path, err);
}

hh_code hh_config_parse(hh_config *out, const char *path, const char *json, size_t size, hh_error *err) {
    json_t *root = NULL;
    hh_config_init(out);
    if (size > HH_CONFIG_MAX_BYTES)
        return hh_fail(err, HH_EFORMAT, "%s: %zu bytes are too many for a configuration", path, size);
    HH_TRY(hh_json_parse(&root, path, json, size, err));
    hh_code code = read_all(out, (hh_json_object){.json = root, .path = path, .within = ""}, err);
    json_decref(root);
    return code;
}

hh_code hh_config_add_generation(hh_config *c, const char *path, hh_error *err) {
    json_t *root = NULL;
    HH_TRY(hh_json_read(&root, path, HH_CONFIG_MAX_BYTES, err));
    hh_code code = read_end_ids(c, (hh_json_object){.json = root, .path = path, .within = ""}, err);
    json_decref(root);
    return code;
}
