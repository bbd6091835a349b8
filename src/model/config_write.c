/* A configuration as the config.json that transformers, or hydrahead itself, reads back. */
#include "model/config_parts.h"

/* Jansson writes 1e-06 for 1e-6, and a whole number that is a real as 10000.0: as Python does. */
static void set(json_t *o, const char *field, json_t *v) {
    int failed = json_object_set_new(o, field, v);
    HH_ASSERT(!failed);
}

static void set_int(json_t *o, const char *field, int64_t v) {
    set(o, field, json_integer(v));
}

static json_t *rope_to_json(const hh_config *c) {
    const hh_rope_config *r = &c->rope;
    if (r->kind == HH_ROPE_DEFAULT) return json_null();
    json_t *o = json_object();
    set(o, "rope_type", json_string(hh_rope_names[r->kind]));
    set(o, "factor", json_real(r->factor));
    if (r->kind == HH_ROPE_LINEAR) return o;
    set_int(o, "original_max_position_embeddings", r->original_max_position);
    if (r->kind == HH_ROPE_LLAMA3) {
        set(o, "low_freq_factor", json_real(r->low_freq_factor));
        set(o, "high_freq_factor", json_real(r->high_freq_factor));
        return o;
    }
    set(o, "beta_fast", json_real(r->beta_fast));
    set(o, "beta_slow", json_real(r->beta_slow));
    if (r->attention_factor > 0) set(o, "attention_factor", json_real(r->attention_factor));
    if (r->mscale > 0) set(o, "mscale", json_real(r->mscale));
    if (r->mscale_all_dim > 0) set(o, "mscale_all_dim", json_real(r->mscale_all_dim));
    if (!r->truncate) set(o, "truncate", json_false());
    return o;
}

static json_t *end_ids_to_json(const hh_config *c) {
    if (c->n_end_ids == 0) return json_null();
    if (c->n_end_ids == 1) return json_integer(c->end_ids[0]);
    json_t *a = json_array();
    for (int32_t i = 0; i < c->n_end_ids; i++) json_array_append_new(a, json_integer(c->end_ids[i]));
    return a;
}

static json_t *heads_to_json(const hh_config *c) {
    json_t *layers = json_array();
    for (int64_t l = 0; l < c->n_layers; l++) {
        json_t *heads = json_array();
        for (int64_t h = 0; h < c->n_heads; h++)
            if (c->fa[l][h]) json_array_append_new(heads, json_integer(h));
        json_array_append_new(layers, heads);
    }
    return layers;
}

static json_t *hybrid_to_json(const hh_config *c) {
    json_t *o = json_object();
    set(o, "full_attention_heads", heads_to_json(c));
    set(o, "fusion", json_string(hh_fusion_names[c->fusion]));
    set(o, "log_scale_base", json_real(c->log_scale_base));
    set(o, "log_scale_in_training", json_boolean(c->log_scale_in_training));
    set(o, "beta_scale", json_real(c->beta_scale));
    set(o, "fa_gate", json_boolean(c->fa_gate));
    set(o, "gdn_conv", json_boolean(c->gdn_conv));
    set(o, "gdn_gate", json_boolean(c->gdn_gate));
    set_int(o, "version", 1);
    return o;
}

json_t *hh_config_to_json(const hh_config *c) {
    static const char *const classes[] = {
        [HH_QWEN3] = "Qwen3ForCausalLM", [HH_QWEN2] = "Qwen2ForCausalLM", [HH_LLAMA] = "LlamaForCausalLM"};
    json_t *o = json_object();
    set(o, "architectures", json_pack("[s]", c->hybrid ? "HydraHeadForCausalLM" : classes[c->family]));
    set(o, "model_type", json_string(c->hybrid ? "hydrahead" : hh_family_names[c->family]));
    if (c->hybrid) set(o, "base_model_type", json_string(hh_family_names[c->family]));
    set_int(o, "hidden_size", c->width);
    set_int(o, "intermediate_size", c->ffn);
    set_int(o, "num_hidden_layers", c->n_layers);
    set_int(o, "num_attention_heads", c->n_heads);
    set_int(o, "num_key_value_heads", c->n_kv_heads);
    set_int(o, "head_dim", c->head_dim);
    set_int(o, "vocab_size", c->vocab);
    set_int(o, "max_position_embeddings", c->max_position);
    set(o, "rope_theta", json_real(c->rope.theta));
    set(o, "rope_scaling", rope_to_json(c));
    set(o, "rms_norm_eps", json_real(c->norm_eps));
    set(o, "hidden_act", json_string("silu"));
    if (c->family != HH_QWEN2) set(o, "attention_bias", json_boolean(c->o_bias));
    if (c->family == HH_LLAMA) set(o, "mlp_bias", json_boolean(c->mlp_bias));
    set(o, "tie_word_embeddings", json_boolean(c->tied));
    set(o, "bos_token_id", c->bos_id >= 0 ? json_integer(c->bos_id) : json_null());
    set(o, "eos_token_id", end_ids_to_json(c));
    set(o, "torch_dtype",
        json_string(c->stored == HH_DTYPE_BF16  ? "bfloat16"
                    : c->stored == HH_DTYPE_F16 ? "float16"
                                                : "float32"));
    if (hh_dtype_is_quantised(
            c->blocks)) /* who does not know these blocks is to say so, not to read bytes as weights */
        set(o, "quantization_config",
            json_pack("{s:s, s:s}", "quant_method", HH_QUANT_METHOD, "type", hh_dtype_name(c->blocks)));
    if (c->hybrid) set(o, "hydrahead", hybrid_to_json(c));
    return o;
}
