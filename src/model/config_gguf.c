/* GGUF metadata to a configuration, with llama.cpp's meaning of every key.
 *
 * llama.cpp writes Llama-3's rotary scaling as a tensor of divisors (rope_freqs.weight), which is turned back into the
 * parameters it was made from and checked against them; YaRN's attn_factor is a factor on top of 0.1 ln(factor) + 1. */
#include "model/config_parts.h"

#include "format/quote.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const hh_gguf *g;
    const hh_store *store;
    const char *path;
    const char *architecture; /* "llama" */
    char key[96];             /* the last one made */
} reader;

/* "llama.block_count" */
static const char *key_of(reader *r, const char *name) {
    snprintf(r->key, sizeof r->key, "%s.%s", r->architecture, name);
    return r->key;
}

static hh_code read_int(reader *r, const char *name, int64_t min, int64_t max, bool needed, int64_t *out,
                        hh_error *err) {
    int64_t v;
    const char *key = key_of(r, name);
    if (!hh_gguf_has(r->g, key)) {
        if (!needed) return HH_OK;
        return hh_fail(err, HH_EFORMAT, "%s: key '%s' is missing", r->path, key);
    }
    if (!hh_gguf_int(r->g, key, &v) || v < min || v > max)
        return hh_fail(err, HH_EFORMAT, "%s: key '%s' is not an integer from %lld to %lld", r->path, key,
                       (long long)min, (long long)max);
    *out = v;
    return HH_OK;
}

/* Files hold float32: the shortest decimal that gives the same float is what was meant (1e-5, not 9.99999974e-6). */
static double shortest(double v) {
    char text[32];
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, v);
        double d = strtod(text, NULL);
        if ((float)d >= (float)v && (float)d <= (float)v) return d;
    }
    return v;
}

static hh_code read_float(reader *r, const char *name, double min, double max, double *out, hh_error *err) {
    double v;
    const char *key = key_of(r, name);
    if (!hh_gguf_has(r->g, key)) return HH_OK;
    if (!hh_gguf_float(r->g, key, &v) || !(v >= min && v <= max))
        return hh_fail(err, HH_EFORMAT, "%s: key '%s' is not a number from %g to %g", r->path, key, min, max);
    *out = shortest(v);
    return HH_OK;
}

/* A number that may be given once or once a layer; different layers are not supported. */
static hh_code read_per_layer(reader *r, const char *name, int64_t max, bool needed, int64_t *out, hh_error *err) {
    int64_t n, v;
    const char *key = key_of(r, name);
    if (!hh_gguf_array_count(r->g, key, &n)) return read_int(r, name, 1, max, needed, out, err);
    for (int64_t i = 0; i < n; i++) {
        if (!hh_gguf_array_int(r->g, key, i, &v) || v < 1 || v > max)
            return hh_fail(err, HH_EFORMAT, "%s: key '%s': entry %lld is not an integer from 1 to %lld", r->path, key,
                           (long long)i, (long long)max);
        if (i && v != *out)
            return hh_fail(err, HH_EUNSUPPORTED, "%s: key '%s' differs between layers, which is not read", r->path,
                           key);
        *out = v;
    }
    return HH_OK;
}

static hh_code read_family(reader *r, hh_config *c, hh_error *err) {
    static const hh_family families[] = {HH_QWEN3, HH_QWEN2, HH_LLAMA};
    const char *s;
    size_t len;
    hh_quote q;
    if (!hh_gguf_string(r->g, "general.architecture", &s, &len))
        return hh_fail(err, HH_EFORMAT, "%s: key 'general.architecture' is missing or not a string", r->path);
    for (int i = 0; i < 3; i++) {
        const char *name = hh_family_names[families[i]];
        if (strlen(name) == len && memcmp(name, s, len) == 0) {
            c->family = families[i];
            r->architecture = name;
            return HH_OK;
        }
    }
    return hh_fail(err, HH_EUNSUPPORTED, "%s: key 'general.architecture' is %s; llama, qwen2 and qwen3 are read",
                   r->path, hh_quoted(&q, s, len));
}

static const hh_named_tensor *tensor(const reader *r, const char *name) {
    return hh_store_find(r->store, name);
}

static hh_code read_dimensions(reader *r, hh_config *c, hh_error *err) {
    int64_t value = 0, rotary = 0;
    HH_TRY(read_int(r, "block_count", 1, HH_MAX_LAYERS, true, &c->n_layers, err));
    HH_TRY(read_int(r, "embedding_length", 1, HH_MAX_WIDTH, true, &c->width, err));
    HH_TRY(read_per_layer(r, "feed_forward_length", HH_MAX_FFN, true, &c->ffn, err));
    HH_TRY(read_per_layer(r, "attention.head_count", HH_MAX_HEADS, true, &c->n_heads, err));
    HH_TRY(read_per_layer(r, "attention.head_count_kv", HH_MAX_HEADS, false, &c->n_kv_heads, err));
    HH_TRY(read_int(r, "context_length", 1, HH_MAX_POSITION, true, &c->max_position, err));
    HH_TRY(read_float(r, "attention.layer_norm_rms_epsilon", 0, 1, &c->norm_eps, err));
    HH_TRY(read_int(r, "attention.key_length", 1, HH_MAX_HEAD_DIM, false, &c->head_dim, err));
    HH_TRY(hh_config_finish(c, r->path, err));
    HH_TRY(read_int(r, "attention.value_length", 1, HH_MAX_HEAD_DIM, false, &value, err));
    if (value && value != c->head_dim)
        return hh_fail(err, HH_EUNSUPPORTED, "%s: key '%s' is %lld, keys have width %lld; both must be equal", r->path,
                       r->key, (long long)value, (long long)c->head_dim);
    HH_TRY(read_int(r, "rope.dimension_count", 1, HH_MAX_HEAD_DIM, false, &rotary, err));
    if (rotary && rotary != c->head_dim)
        return hh_fail(err, HH_EUNSUPPORTED,
                       "%s: key '%s' is %lld of a head width of %lld; rotary embedding of a part of "
                       "a head is not computed",
                       r->path, r->key, (long long)rotary, (long long)c->head_dim);
    const hh_named_tensor *e = tensor(r, "token_embd.weight");
    if (!e || e->t.rank != 2 || e->t.dim[1] != c->width || e->t.dim[0] < 1 || e->t.dim[0] > HH_MAX_VOCAB)
        return hh_fail(err, HH_EFORMAT,
                       "%s: tensor 'token_embd.weight' is missing or not a matrix with rows of %lld "
                       "values (embedding_length)",
                       r->path, (long long)c->width);
    c->vocab = e->t.dim[0];
    return HH_OK;
}

/* One part of several holds only some of the tensors. */
static hh_code refuse_parts(const reader *r, hh_error *err) {
    int64_t parts;
    if (!hh_gguf_int(r->g, "split.count", &parts) || parts <= 1) return HH_OK;
    return hh_fail(err, HH_EUNSUPPORTED,
                   "%s: one of %lld parts (key 'split.count'); merge them with llama-gguf-split --merge", r->path,
                   (long long)parts);
}

/* Keys that would change the result unless they are absent or neutral. */
static hh_code refuse_other_models(reader *r, hh_error *err) {
    static const struct {
        const char *name;
        double neutral;
    } keys[] = {
        {"attention.sliding_window", 0},
        {"expert_count", 0},
        {"attn_logit_softcapping", 0},
        {"final_logit_softcapping", 0},
        {"logit_scale", 0},
        {"embedding_scale", 0},
        {"residual_scale", 0},
        {"attention.scale", 0},
        {"attention.max_alibi_bias", 0},
        {"attention.clamp_kqv", 0},
        {"rope.scaling.yarn_log_multiplier", 0},
        {"rope.scaling.yarn_ext_factor", 1},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        double v;
        const char *key = key_of(r, keys[i].name);
        if (!hh_gguf_has(r->g, key)) continue;
        if (!hh_gguf_float(r->g, key, &v) || v < keys[i].neutral || v > keys[i].neutral)
            return hh_fail(err, HH_EUNSUPPORTED,
                           "%s: key '%s' asks for something that is not computed; only %g is read", r->path, key,
                           keys[i].neutral);
    }
    return HH_OK;
}

static void read_switches(const reader *r, hh_config *c) {
    c->tied = !tensor(r, "output.weight");
    c->attention_bias = tensor(r, "blk.0.attn_q.bias") != NULL;
    c->o_bias = tensor(r, "blk.0.attn_output.bias") != NULL;
    c->mlp_bias = tensor(r, "blk.0.ffn_gate.bias") != NULL;
    c->qk_norm = tensor(r, "blk.0.attn_q_norm.weight") != NULL;
}

/* What `general.file_type` says of most tensors; block formats compute as float32. */
static void read_stored(const reader *r, hh_config *c) {
    int64_t type = 0;
    hh_gguf_int(r->g, "general.file_type", &type);
    c->stored = type == 1 ? HH_DTYPE_F16 : type == 32 ? HH_DTYPE_BF16 : HH_DTYPE_F32;
}

static hh_code read_ids(const reader *r, hh_config *c, hh_error *err) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t id;
    if (hh_gguf_int(r->g, "tokenizer.ggml.bos_token_id", &id) && id >= 0 && id < c->vocab) c->bos_id = (int32_t)id;
    for (int i = 0; i < 3; i++) {
        if (!hh_gguf_has(r->g, ends[i])) continue;
        if (!hh_gguf_int(r->g, ends[i], &id) || id < 0 || id >= c->vocab)
            return hh_fail(err, HH_EFORMAT, "%s: key '%s' is not a token id below %lld", r->path, ends[i],
                           (long long)c->vocab);
        HH_TRY(hh_config_add_end(c, r->path, id, err));
    }
    return HH_OK;
}

static hh_code read_rope_kind(reader *r, hh_rope_config *rope, hh_error *err) {
    const char *s;
    size_t len;
    hh_quote q;
    const char *key = key_of(r, "rope.scaling.type");
    if (!hh_gguf_has(r->g, key)) {
        double linear = 0; /* the key of older files */
        HH_TRY(read_float(r, "rope.scale_linear", 1e-3, 1e6, &linear, err));
        if (linear > 0) {
            rope->kind = HH_ROPE_LINEAR;
            rope->factor = linear;
        }
        return HH_OK;
    }
    if (!hh_gguf_string(r->g, key, &s, &len))
        return hh_fail(err, HH_EFORMAT, "%s: key '%s' is not a string", r->path, key);
    if (len == 4 && memcmp(s, "none", 4) == 0) return HH_OK;
    if (len == 6 && memcmp(s, "linear", 6) == 0) {
        rope->kind = HH_ROPE_LINEAR;
    } else if (len == 4 && memcmp(s, "yarn", 4) == 0) {
        rope->kind = HH_ROPE_YARN;
    } else {
        return hh_fail(err, HH_EUNSUPPORTED, "%s: key '%s' is %s; none, linear and yarn are read", r->path, key,
                       hh_quoted(&q, s, len));
    }
    if (!hh_gguf_has(r->g, key_of(r, "rope.scaling.factor")))
        return hh_fail(err, HH_EFORMAT, "%s: key '%s' is missing", r->path, r->key);
    return read_float(r, "rope.scaling.factor", 1e-3, 1e6, &rope->factor, err);
}

/* Divisors of the frequencies: Llama-3's, from parameters of which only the factor is free in published models. */
static hh_code read_divisors(const reader *r, hh_config *c, hh_error *err) {
    const hh_named_tensor *t = tensor(r, "rope_freqs.weight");
    if (!t) return HH_OK;
    int64_t n = c->head_dim / 2;
    if (t->t.dtype != HH_DTYPE_F32 || hh_tensor_count(t->t) != n || c->rope.kind != HH_ROPE_DEFAULT)
        return hh_fail(err, HH_EUNSUPPORTED,
                       "%s: tensor 'rope_freqs.weight' is not %lld f32 numbers without another "
                       "scaling beside it",
                       r->path, (long long)n);
    float divisor[HH_MAX_HEAD_DIM / 2];
    double plain[HH_MAX_HEAD_DIM / 2], scaled[HH_MAX_HEAD_DIM / 2], ignored;
    hh_dequantise_float(t->t.dtype, t->t.data, n, divisor);
    double factor = 1;
    for (int64_t i = 0; i < n; i++) factor = fmax(factor, divisor[i]);
    if (!(factor <= 1e6)) factor = 1;
    hh_rope_frequencies(c, plain, &ignored);
    if (factor > 1) {
        c->rope.kind = HH_ROPE_LLAMA3;
        c->rope.factor = factor;
        c->rope.low_freq_factor = 1;
        c->rope.high_freq_factor = 4;
        c->rope.original_max_position = 8192;
    }
    hh_rope_frequencies(c, scaled, &ignored);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(plain[i] / scaled[i] - divisor[i]) <= 1e-4 * divisor[i]))
            return hh_fail(err, HH_EUNSUPPORTED,
                           "%s: tensor 'rope_freqs.weight' is not Llama-3's scaling by %g (value %lld "
                           "is %g, %g was expected)",
                           r->path, factor, (long long)i, divisor[i], plain[i] / scaled[i]);
    return HH_OK;
}

static hh_code read_rope(reader *r, hh_config *c, hh_error *err) {
    hh_rope_config *rope = &c->rope;
    HH_TRY(read_float(r, "rope.freq_base", 1.0001, 1e15, &rope->theta, err));
    HH_TRY(read_rope_kind(r, rope, err));
    HH_TRY(read_int(r, "rope.scaling.original_context_length", 1, HH_MAX_POSITION, false, &rope->original_max_position,
                    err));
    double extra = 1;
    HH_TRY(read_float(r, "rope.scaling.attn_factor", 1e-6, 1e6, &extra, err));
    HH_TRY(read_float(r, "rope.scaling.yarn_attn_factor", 1e-6, 1e6, &extra, err));
    if (rope->kind == HH_ROPE_YARN) {
        HH_TRY(read_float(r, "rope.scaling.yarn_beta_fast", 1e-6, 1e6, &rope->beta_fast, err));
        HH_TRY(read_float(r, "rope.scaling.yarn_beta_slow", 1e-6, 1e6, &rope->beta_slow, err));
        if (rope->factor > 1) extra *= 0.1 * log(rope->factor) + 1;
        rope->attention_factor = extra;
    } else if (extra < 1 || extra > 1) {
        return hh_fail(err, HH_EUNSUPPORTED, "%s: key '%s' is read only together with yarn", r->path, r->key);
    }
    return read_divisors(r, c, err);
}

/* A family's tensors are what transformers' class of it has. */
static hh_code check_family(const reader *r, const hh_config *c, hh_error *err) {
    const struct {
        const char *tensor;
        bool there, wanted;
    } parts[] = {
        {"blk.0.attn_q_norm.weight", c->qk_norm, c->family == HH_QWEN3},
        {"blk.0.attn_q.bias", c->attention_bias, c->family == HH_QWEN2 || c->o_bias},
        {"blk.0.attn_output.bias", c->o_bias, c->family != HH_QWEN2 && c->attention_bias},
        {"blk.0.ffn_gate.bias", c->mlp_bias, c->family == HH_LLAMA && c->mlp_bias},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].there != parts[i].wanted)
            return hh_fail(err, HH_EUNSUPPORTED,
                           "%s: tensor '%s' is %s; a model of architecture '%s' with these biases %s "
                           "it",
                           r->path, parts[i].tensor, parts[i].there ? "there" : "missing", r->architecture,
                           parts[i].wanted ? "needs" : "does not have");
    return HH_OK;
}

hh_code hh_config_read_gguf(hh_config *c, const hh_store *store, hh_error *err) {
    reader r = {.g = hh_store_gguf(store), .store = store, .path = hh_store_path(store)};
    hh_config_init(c);
    HH_TRY(read_family(&r, c, err));
    HH_TRY(refuse_parts(&r, err));
    HH_TRY(refuse_other_models(&r, err));
    HH_TRY(read_dimensions(&r, c, err));
    HH_TRY(read_ids(&r, c, err));
    HH_TRY(read_rope(&r, c, err));
    read_stored(&r, c);
    read_switches(&r, c);
    return check_family(&r, c, err);
}
