/* `inspect`: what is in a checkpoint, from its headers alone. No weight is read and no tokenizer is needed. */
#include "base/progress.h"
#include "cli/cli.h"
#include "format/gguf.h"
#include "model/model.h"
#include "report/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static bool json, tensors, metadata;

static const hh_option options[] = {
    {.name = "tensors", .kind = HH_OPTION_FLAG, .value = &tensors, .help = "list every tensor: type, shape, file"},
    {.name = "metadata", .kind = HH_OPTION_FLAG, .value = &metadata, .help = "list the keys of a GGUF file"},
    HH_CLI_JSON_OPTION(json),
    HH_CLI_COMMON_OPTIONS(common),
    {0},
};

static const hh_command command = {
    .verb = "inspect",
    .summary = "what is in a checkpoint",
    .words = "MODEL",
    .description =
        "Shows a checkpoint's format, family, dimensions, rotary embedding, the heads that a hybrid keeps, its "
        "parameters "
        "by type, and what a sequence costs: bytes of KV cache a token and of recurrent state. MODEL is a Hugging Face "
        "directory, a .gguf file, or nano. Only headers are read.\n\n"
        "When the configuration is not supported the files are shown all the same, then the reason, and the exit "
        "code is 1.",
    .example = "hydrahead inspect nano\nhydrahead inspect nano --tensors --json",
    .options = options,
    .min_words = 1,
    .max_words = 1,
};

/* What tensors of one type amount to. */
typedef struct amount {
    int64_t tensors, parameters, bytes;
} amount;

typedef struct summary {
    amount by_type[HH_DTYPE_COUNT], all;
    int64_t files;
} summary;

static void add_amount(amount *a, const hh_tensor *t) {
    a->tensors++;
    a->parameters += hh_tensor_count(*t);
    a->bytes += (int64_t)hh_tensor_bytes(*t);
}

static summary summarise(const hh_store *store) {
    summary s = {0};
    const char *last = NULL;
    for (int64_t i = 0; i < hh_store_count(store); i++) {
        const hh_named_tensor *t = hh_store_at(store, i);
        add_amount(&s.by_type[t->t.dtype], &t->t);
        add_amount(&s.all, &t->t);
        s.files += !last || strcmp(last, t->file) != 0; /* a file's tensors stand together */
        last = t->file;
    }
    return s;
}

/* Linear heads of all layers. */
static int64_t count_gdn(const hh_config *c) {
    int64_t n = 0;
    for (int64_t l = 0; l < c->n_layers; l++) n += c->n_heads - hh_config_fa_count(c, l);
    return n;
}

static double state_bytes(const hh_config *c) {
    return (double)count_gdn(c) * (double)(c->head_dim * c->head_dim) * sizeof(float);
}

static double teacher_cache_bytes(const hh_config *c) {
    return (double)(c->n_layers * c->n_kv_heads * 2 * c->head_dim * 2);
}

static const char *format_name(const hh_store *s) {
    return hh_store_get_kind(s) == HH_STORE_GGUF ? "gguf" : "safetensors";
}

static json_t *tensors_to_json(const hh_store *store) {
    json_t *list = json_array();
    for (int64_t i = 0; i < hh_store_count(store); i++) {
        const hh_named_tensor *t = hh_store_at(store, i);
        json_t *shape = json_array();
        for (int d = 0; d < t->t.rank; d++) json_array_append_new(shape, json_integer(t->t.dim[d]));
        json_array_append_new(list, json_pack("{s:s, s:s, s:o, s:I, s:s}", "name", t->name, "dtype",
                                              hh_dtype_name(t->t.dtype), "shape", shape, "bytes",
                                              (json_int_t)hh_tensor_bytes(t->t), "file", t->file));
    }
    return list;
}

static json_t *metadata_to_json(const hh_gguf *g) {
    json_t *o = json_object();
    hh_buf text = {0};
    for (int64_t i = 0; g && i < hh_gguf_key_count(g); i++) {
        hh_buf_clear(&text);
        hh_gguf_render(g, i, &text);
        json_object_set_new(o, hh_gguf_key(g, i), json_string(text.data));
    }
    hh_buf_release(&text);
    return o;
}

static json_t *amount_to_json(const amount *a) {
    return json_pack("{s:I, s:I, s:I}", "tensors", (json_int_t)a->tensors, "parameters", (json_int_t)a->parameters,
                     "bytes", (json_int_t)a->bytes);
}

static void print_json(const hh_store *store, const hh_config *c, const hh_error *err) {
    summary s = summarise(store);
    json_t *types = json_object();
    for (int t = 0; t < HH_DTYPE_COUNT; t++)
        if (s.by_type[t].tensors) json_object_set_new(types, hh_dtype_name((hh_dtype)t), amount_to_json(&s.by_type[t]));
    json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:I, s:o}", "path", hh_store_path(store), "format", format_name(store),
                          "files", (json_int_t)s.files, "parameters", (json_int_t)s.all.parameters, "bytes",
                          (json_int_t)s.all.bytes, "types", types);
    if (c) {
        json_object_set_new(o, "kv_bytes_per_token", json_real(hh_config_cache_bytes(c, 2)));
        json_object_set_new(o, "teacher_kv_bytes_per_token", json_real(teacher_cache_bytes(c)));
        json_object_set_new(o, "state_bytes", json_real(state_bytes(c)));
        json_object_set_new(o, "full_attention_heads_kept", json_integer(c->n_layers * c->n_heads - count_gdn(c)));
        json_object_set_new(o, "config", hh_config_to_json(c));
    } else {
        json_object_set_new(o, "error", json_string(err->text));
    }
    if (tensors) json_object_set_new(o, "tensors", tensors_to_json(store));
    if (metadata) json_object_set_new(o, "metadata", metadata_to_json(hh_store_gguf(store)));
    json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    putchar('\n');
    json_decref(o);
}

static void print_line(const char *what, const char *format, ...) HH_PRINTF(2, 3);
static void print_line(const char *what, const char *format, ...) {
    va_list args;
    printf("%-15s ", what);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

/* "950 B", "2.0 kB", "96.6 MB" */
static const char *human_bytes(double n, char out[32]) {
    char count[24];
    hh_count_text(n, count, sizeof count);
    size_t len = strlen(count), digits = strspn(count, "0123456789.");
    snprintf(out, 32, "%.*s %.*sB", (int)digits, count, (int)(len - digits), count + digits);
    return out;
}

static void print_rope(const hh_config *c) {
    const hh_rope_config *r = &c->rope;
    hh_buf b = {0};
    hh_buf_printf(&b, "%s, theta %.15g", hh_rope_names[r->kind], r->theta);
    if (r->kind != HH_ROPE_DEFAULT) hh_buf_printf(&b, ", factor %g", r->factor);
    if (r->kind == HH_ROPE_LLAMA3) hh_buf_printf(&b, ", low %g, high %g", r->low_freq_factor, r->high_freq_factor);
    if (r->kind == HH_ROPE_YARN) hh_buf_printf(&b, ", beta %g to %g", r->beta_slow, r->beta_fast);
    if (r->kind == HH_ROPE_LLAMA3 || r->kind == HH_ROPE_YARN)
        hh_buf_printf(&b, ", original length %lld", (long long)r->original_max_position);
    print_line("rotary", "%s", b.data);
    hh_buf_release(&b);
}

static void print_hybrid(const hh_config *c) {
    int64_t all = c->n_layers * c->n_heads;
    print_line("full attention", "%lld of %lld heads", (long long)(all - count_gdn(c)), (long long)all);
    for (int64_t l = 0; l < c->n_layers; l++) {
        hh_buf b = {0};
        int64_t n = hh_config_fa_count(c, l);
        if (!n) continue;
        hh_buf_printf(&b, "layer %lld:", (long long)l);
        for (int64_t h = 0; h < c->n_heads; h++)
            if (c->fa[l][h]) hh_buf_printf(&b, " %lld", (long long)h);
        if (c->dense[l]) hh_buf_puts(&b, " (a layer of the teacher)");
        print_line("", "%s", b.data);
        hh_buf_release(&b);
    }
    print_line("fusion", "%s; beta scale %g; log-scale base %g%s%s%s%s", hh_fusion_names[c->fusion], c->beta_scale,
               c->log_scale_base, c->log_scale_base > 0 && c->log_scale_in_training ? " (in training too)" : "",
               c->fa_gate ? "; gated attention" : "", c->gdn_conv ? "; convolutions" : "",
               c->gdn_gate ? "; gated GDN" : "");
}

static void print_config(const hh_config *c) {
    char kept[32], teacher[32], state[32];
    print_line("family", "%s%s", hh_family_names[c->family], c->hybrid ? ", hybrid" : "");
    print_line("layers", "%lld of width %lld, feed-forward %lld", (long long)c->n_layers, (long long)c->width,
               (long long)c->ffn);
    print_line("heads", "%lld query, %lld key/value, width %lld%s%s", (long long)c->n_heads, (long long)c->n_kv_heads,
               (long long)c->head_dim, c->qk_norm ? ", q and k normalised" : "", c->attention_bias ? ", biases" : "");
    print_line("vocabulary", "%lld%s", (long long)c->vocab, c->tied ? ", output tied to the embedding" : "");
    print_line("native length", "%lld tokens", (long long)c->max_position);
    print_rope(c);
    hh_buf ends = {0};
    for (int32_t i = 0; i < c->n_end_ids; i++) hh_buf_printf(&ends, "%s%d", i ? ", " : "", (int)c->end_ids[i]);
    print_line("end tokens", "%s", c->n_end_ids ? ends.data : "none");
    hh_buf_release(&ends);
    if (c->hybrid) print_hybrid(c);
    human_bytes(hh_config_cache_bytes(c, 2), kept);
    if (!c->hybrid) {
        print_line("KV cache", "%s a token in bfloat16", kept);
        return;
    }
    print_line("KV cache", "%s a token in bfloat16; its teacher: %s", kept,
               human_bytes(teacher_cache_bytes(c), teacher));
    print_line("GDN state", "%s a sequence, at any length", human_bytes(state_bytes(c), state));
}

static void print_amount(const char *name, const amount *a) {
    char count[24], bytes[32];
    hh_count_text((double)a->parameters, count, sizeof count);
    print_line(name, "%lld tensor%s, %s parameters, %s", (long long)a->tensors, a->tensors == 1 ? "" : "s", count,
               human_bytes((double)a->bytes, bytes));
}

static void print_tensors(const hh_store *store) {
    int64_t n = hh_store_count(store);
    const char **cell = hh_alloc((size_t)(3 * (n + 1)) * sizeof *cell);
    cell[0] = hh_strdup("tensor");
    cell[1] = hh_strdup("type");
    cell[2] = hh_strdup("shape");
    for (int64_t i = 0; i < n; i++) {
        const hh_named_tensor *t = hh_store_at(store, i);
        hh_buf shape = {0};
        hh_buf_puts(&shape, "[");
        for (int d = 0; d < t->t.rank; d++) hh_buf_printf(&shape, "%s%lld", d ? ", " : "", (long long)t->t.dim[d]);
        hh_buf_puts(&shape, "]");
        cell[3 * (i + 1)] = hh_strdup(t->name);
        cell[3 * (i + 1) + 1] = hh_strdup(hh_dtype_name(t->t.dtype));
        cell[3 * (i + 1) + 2] = shape.data;
    }
    hh_buf table = {0};
    hh_terminal_table(&table, cell, n + 1, 3);
    printf("\n%s", table.data);
    hh_buf_release(&table);
    for (int64_t i = 0; i < 3 * (n + 1); i++) hh_free((void *)(uintptr_t)cell[i]);
    hh_free(cell);
}

static void print_metadata(const hh_gguf *g) {
    hh_buf text = {0};
    putchar('\n');
    for (int64_t i = 0; g && i < hh_gguf_key_count(g); i++) {
        hh_buf_clear(&text);
        hh_gguf_render(g, i, &text);
        printf("%s: %s\n", hh_gguf_key(g, i), text.data);
    }
    hh_buf_release(&text);
}

static void print_text(const hh_store *store, const hh_config *c) {
    summary s = summarise(store);
    print_line("path", "%s", hh_store_path(store));
    print_line("format", "%s, %lld file%s", format_name(store), (long long)s.files, s.files == 1 ? "" : "s");
    if (c) print_config(c);
    print_amount("weights", &s.all);
    for (int t = 0; t < HH_DTYPE_COUNT; t++) {
        char name[24];
        snprintf(name, sizeof name, "  %s", hh_dtype_name((hh_dtype)t));
        if (s.by_type[t].tensors) print_amount(name, &s.by_type[t]);
    }
    if (tensors) print_tensors(store);
    if (metadata) print_metadata(hh_store_gguf(store));
}

static hh_code inspect(const char *model, hh_error *err) {
    static hh_config config;
    char *path;
    hh_store *store;
    HH_TRY(hh_model_locate(&path, model, err));
    hh_code code = hh_store_open(&store, path, err);
    hh_free(path);
    if (code != HH_OK) return code;
    if (metadata && !hh_store_gguf(store)) {
        code = hh_fail(err, HH_EINVAL, "--metadata has no effect on %s: only GGUF files have keys; leave it out",
                       hh_store_path(store));
        hh_store_close(store);
        return code;
    }
    code = hh_config_read(&config, store, err);
    if (json) {
        print_json(store, code == HH_OK ? &config : NULL, err);
    } else {
        print_text(store, code == HH_OK ? &config : NULL);
    }
    hh_store_close(store);
    return code;
}

int hh_cmd_inspect(int argc, char **argv) {
    hh_words words;
    hh_error err = {0};
    int exit_code;
    if (!hh_cli_parse(&command, argc, argv, &words, &exit_code)) return exit_code;
    hh_code code = inspect(words.word[0], &err);
    hh_words_release(&words);
    return code == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
