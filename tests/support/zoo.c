/* Models from a formula; see zoo.h. */
#include "support/zoo.h"

#include "base/filemap.h"
#include "format/safetensors.h"
#include "support/support.h"
#include "tensor/mirror.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* splitmix64 of the name's FNV hash and the index, in [-1, 1). */
static double uniform(const char *name, int64_t i) {
    uint64_t z = 0xCBF29CE484222325u;
    for (; *name; name++) z = (z ^ (unsigned char)*name) * 0x100000001B3u;
    z += ((uint64_t)i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 40) / (1 << 23) - 1;
}

static bool ends_with(const char *s, const char *suffix) {
    size_t n = strlen(s), k = strlen(suffix);
    return n >= k && !strcmp(s + n - k, suffix);
}

float zoo_value(const char *name, int64_t i, int64_t cols) {
    static const struct {
        const char *suffix;
        double offset, scale;
    } rules[] = {
        {"A_log", 1, 1},         {"dt_bias", -3, 2},           {"head_scale", 1, .5},         {"conv.weight", .25, .5},
        {"norm.weight", 1, .25}, {"layernorm.weight", 1, .25}, {"embed_tokens.weight", 0, 1}, {".bias", 0, .25}};
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        if (ends_with(name, rules[r].suffix)) return (float)(rules[r].offset + rules[r].scale * uniform(name, i));
    return (float)(1.5 / sqrt((double)cols) * uniform(name, i));
}

const json_t *zoo_cases(void) {
    static json_t *cases;
    json_error_t e;
    if (!cases) cases = json_load_file("tests/model/golden/models.json", 0, &e);
    if (!cases) fail_msg("tests/model/golden/models.json: %s", e.text);
    return cases;
}

const json_t *zoo_case(const char *name) {
    size_t i;
    json_t *one;
    json_array_foreach(zoo_cases(), i,
                       one) if (!strcmp(json_string_value(json_object_get(one, "name")), name)) return one;
    fail_msg("no case %s", name);
    return NULL;
}

static void write_weights(const hh_config *c, const char *path) {
    hh_error err = {0};
    hh_weights w = {.layer = hh_alloc((size_t)c->n_layers * sizeof *w.layer)};
    int64_t n = hh_weights_count(c);
    hh_param *param = hh_alloc((size_t)n * sizeof *param);
    hh_weights_list(c, &w, param);
    hh_named_tensor *named = hh_alloc((size_t)n * sizeof *named);
    for (int64_t p = 0; p < n; p++) {
        int64_t count = param[p].dim[0] * param[p].dim[1];
        float *x = hh_alloc((size_t)count * sizeof *x);
        for (int64_t i = 0; i < count; i++) x[i] = zoo_value(param[p].name, i, param[p].dim[1]);
        named[p].name = param[p].name;
        named[p].t = param[p].rank == 1 ? hh_tensor_1d(x, HH_DTYPE_F32, count)
                                        : hh_tensor_2d(x, HH_DTYPE_F32, param[p].dim[0], param[p].dim[1]);
    }
    assert_ok(hh_safetensors_write(path, named, n, &err));
    for (int64_t p = 0; p < n; p++) hh_free(named[p].t.data);
    hh_free(named);
    hh_free(param);
    hh_free(w.layer);
}

const char *zoo_directory(const json_t *one) {
    hh_error err = {0};
    const char *dir = temp_path(json_string_value(json_object_get(one, "name")));
    char *weights = hh_path_join(dir, "model.safetensors"), *config = hh_path_join(dir, "config.json");
    if (!hh_file_exists(weights)) {
        hh_config *c = hh_alloc(sizeof *c);
        char *text = json_dumps(json_object_get(one, "config"), 0);
        assert_ok(hh_make_directory(dir, &err));
        assert_ok(hh_config_parse(c, config, text, strlen(text), &err));
        assert_ok(hh_file_write(config, text, strlen(text), &err));
        write_weights(c, weights);
        free(text);
        hh_free(c);
    }
    hh_free(weights);
    hh_free(config);
    return dir;
}

hh_model *zoo_open(hh_backend *be, const char *name, hh_load load) {
    hh_error err = {0};
    hh_model *m;
    assert_ok(hh_model_open(&m, be, zoo_directory(zoo_case(name)), load, &err));
    return m;
}

int32_t *zoo_ids(const json_t *one, int64_t *n) {
    const json_t *ids = json_object_get(one, "ids");
    *n = (int64_t)json_array_size(ids);
    int32_t *out = hh_alloc((size_t)*n * sizeof *out);
    for (int64_t i = 0; i < *n; i++) out[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    return out;
}

double *zoo_golden(const char *file, int64_t at, int64_t n) {
    char *path = hh_path_join("tests/model/golden", file);
    hh_buf whole = read_whole(path);
    bool f64 = ends_with(file, ".f64");
    assert_true(whole.len >= (size_t)(at + n) * (f64 ? 8 : 4));
    double *out = hh_alloc((size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        float f;
        if (f64) {
            memcpy(&out[i], whole.data + (at + i) * 8, 8);
        } else {
            memcpy(&f, whole.data + (at + i) * 4, 4);
            out[i] = (double)f;
        }
    }
    hh_buf_release(&whole);
    hh_free(path);
    return out;
}

hh_real *zoo_logits(const hh_model *m, const int32_t *ids, int64_t n) {
    hh_error err = {0};
    hh_run *run;
    hh_arena arena;
    const int64_t v = m->config.vocab;
    assert_ok(hh_run_new(&run, m, n, 1, HH_RUN_INFERENCE, &err));
    assert_ok(m->be->arena_init(m->be, &arena, "logits", (size_t)(n * v) * sizeof(hh_real) + HH_ARENA_ALIGN, &err));
    hh_tensor logits = hh_tensor_place_2d(&arena, HH_DTYPE_REAL, n, v), final;
    const hh_span span = {.hi = n};
    const hh_batch batch = {.n_tokens = n, .n_spans = 1, .ids = ids, .span = &span};
    hh_real *out = hh_alloc((size_t)(n * v) * sizeof *out);
    assert_ok(hh_forward(run, &batch, &final, &err));
    hh_logits(run, final, NULL, n, logits);
    hh_tensor_to_host(m->be, out, logits);
    assert_ok(m->be->sync(m->be, &err));
    m->be->arena_release(m->be, &arena);
    hh_run_free(run);
    return out;
}

double zoo_difference(const hh_real *a, const double *b, int64_t n) {
    double most = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (!(d <= most)) most = d;
        if (fabs(b[i]) > largest) largest = fabs(b[i]);
    }
    return most / largest;
}

hh_backend *zoo_backend(void) {
    hh_error err = {0};
    hh_backend *be;
    assert_ok(hh_cpu_open(&be, 2, HH_PRECISION_F32, NULL, &err));
    return be;
}
