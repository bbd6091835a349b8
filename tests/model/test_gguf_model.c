/* A llama from a GGUF file: names, interleaved rows of q and k, a tied head. The same weights as a Hugging Face directory give the same
 * logits as transformers. */
#include "support/gguf_image.h"
#include "support/support.h"
#include "model/shared_backend.h"

#include <stdio.h>
#include <string.h>

/* The checkpoint's name of a GGUF tensor. */
static void original_name(char out[128], const char *gguf) {
    static const char *const parts[][2] = {
        {"attn_norm", "input_layernorm"}, {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
        {"attn_v", "self_attn.v_proj"},   {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
        {"ffn_gate", "mlp.gate_proj"},    {"ffn_up", "mlp.up_proj"},           {"ffn_down", "mlp.down_proj"},
    };
    char part[64];
    int layer;
    if (!strcmp(gguf, "token_embd.weight")) {
        strcpy(out, "model.embed_tokens.weight");
    } else if (!strcmp(gguf, "output_norm.weight")) {
        strcpy(out, "model.norm.weight");
    } else {
        assert_int_equal(sscanf(gguf, "blk.%d.%60[a-z_].weight", &layer, part), 2);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            if (!strcmp(part, parts[i][0])) snprintf(out, 128, "model.layers.%d.%s.weight", layer, parts[i][1]);
    }
}

/* Element [row, k] of a GGUF tensor: llama.cpp stores halves of a head's q and k rows interleaved. */
static float element(const char *gguf, const char *name, int64_t row, int64_t k, int64_t cols, int64_t head_dim) {
    if (strstr(gguf, "attn_q") || strstr(gguf, "attn_k")) {
        int64_t head = row / head_dim, at = row % head_dim;
        row = head * head_dim + at / 2 + at % 2 * (head_dim / 2);
    }
    return zoo_value(name, row * cols + k, cols);
}

static const char *write_llama(const hh_config *c) {
    static const char *const layer_parts[] = {"attn_norm", "attn_q",   "attn_k", "attn_v",  "attn_output",
                                              "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down"};
    const int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, w = c->width, f = c->ffn;
    const int64_t shapes[][2] = {{w, 0}, {q, w}, {kv, w}, {kv, w}, {w, q}, {w, 0}, {f, w}, {f, w}, {w, f}};
    char name[32][64];
    int64_t shape[32][2];
    int n = 0;
    for (int64_t l = 0; l < c->n_layers; l++)
        for (int p = 0; p < 9; p++, n++) {
            snprintf(name[n], sizeof name[n], "blk.%d.%s.weight", (int)l, layer_parts[p]);
            memcpy(shape[n], shapes[p], sizeof shape[n]);
        }
    strcpy(name[n], "token_embd.weight");
    shape[n][0] = c->vocab, shape[n++][1] = w;
    strcpy(name[n], "output_norm.weight");
    shape[n][0] = w, shape[n++][1] = 0;
    hh_buf b = {0};
    gguf_header(&b, 3, (uint64_t)n, 11);
    gguf_key_string(&b, "general.architecture", "llama");
    gguf_key_u32(&b, "llama.block_count", (uint32_t)c->n_layers);
    gguf_key_u32(&b, "llama.context_length", (uint32_t)c->max_position);
    gguf_key_u32(&b, "llama.embedding_length", (uint32_t)w);
    gguf_key_u32(&b, "llama.feed_forward_length", (uint32_t)f);
    gguf_key_u32(&b, "llama.attention.head_count", (uint32_t)c->n_heads);
    gguf_key_u32(&b, "llama.attention.head_count_kv", (uint32_t)c->n_kv_heads);
    gguf_key_u32(&b, "llama.attention.key_length", (uint32_t)c->head_dim);
    gguf_key_u32(&b, "llama.attention.value_length", (uint32_t)c->head_dim);
    gguf_key_f32(&b, "llama.attention.layer_norm_rms_epsilon", (float)c->norm_eps);
    gguf_key_f32(&b, "llama.rope.freq_base", (float)c->rope.theta);
    uint64_t offset = 0;
    for (int i = 0; i < n; i++) {
        int64_t cols = shape[i][1];
        const uint64_t dim[] = {(uint64_t)(cols ? cols : shape[i][0]), (uint64_t)shape[i][0]};
        gguf_tensor(&b, name[i], cols ? 2 : 1, dim, 0, offset);
        offset += ((uint64_t)(shape[i][0] * (cols ? cols : 1)) * 4 + 31) / 32 * 32;
    }
    for (int i = 0; i < n; i++) {
        char original[128];
        const int64_t cols = shape[i][1] ? shape[i][1] : 1;
        original_name(original, name[i]);
        gguf_data(&b, 32, 0);
        for (int64_t r = 0; r < shape[i][0]; r++)
            for (int64_t k = 0; k < cols; k++) {
                float x = element(name[i], original, r, k, cols, c->head_dim);
                hh_buf_add(&b, &x, sizeof x);
            }
    }
    gguf_data(&b, 32, 0);
    const char *path = temp_file("llama.gguf", b.data, b.len);
    hh_buf_release(&b);
    return path;
}

static void test_llama_from_gguf_equals_transformers(void **state) {
    (void)state;
    hh_error err = {0};
    hh_model *same = zoo_open(be, "llama_gqa3_d64_tied", HH_LOAD_STORED), *m;
    const json_t *one = zoo_case("llama_gqa3_d64_tied");
    int64_t n;
    int32_t *ids = zoo_ids(one, &n);
    const int64_t v = same->config.vocab;
    double *want = zoo_golden("logits.f32", json_integer_value(json_object_get(one, "at")), n * v);
    static const hh_load loads[] = {HH_LOAD_STORED, HH_LOAD_REAL};
    for (int i = 0; i < 2; i++) {
        assert_ok(hh_model_open(&m, be, write_llama(&same->config), loads[i], &err));
        hh_real *logits = zoo_logits(m, ids, n);
        assert_near(zoo_difference(logits, want, n * v), 0, 2e-5);
        hh_free(logits);
        hh_model_close(m);
    }
    hh_free(want);
    hh_free(ids);
    hh_model_close(same);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_llama_from_gguf_equals_transformers)};
    return cmocka_run_group_tests_name("model: GGUF", tests, open_backend, close_backend);
}
