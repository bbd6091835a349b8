/* Opening what does not fit its configuration is refused by tensor, file and shapes; what fits is used as it is stored. */
#include "support/support.h"
#include "model/shared_backend.h"

#include "format/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What a test does to a checkpoint's tensors before they are written again. */
typedef void change_fn(hh_named_tensor *t, int64_t *n);

static hh_named_tensor *find(hh_named_tensor *t, int64_t n, const char *name) {
    for (int64_t i = 0; i < n; i++)
        if (!strcmp(t[i].name, name)) return &t[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* A case's checkpoint with one thing changed, in a directory of its own. */
static const char *changed(const char *name, const char *as, change_fn *change) {
    hh_error err = {0};
    hh_store *s;
    const char *from = zoo_directory(zoo_case(name)), *dir = temp_path(as);
    assert_ok(hh_store_open(&s, from, &err));
    int64_t n = hh_store_count(s);
    hh_named_tensor *t = hh_alloc((size_t)(n + 1) * sizeof *t);
    for (int64_t i = 0; i < n; i++) t[i] = *hh_store_at(s, i);
    change(t, &n);
    char *weights = hh_path_join(dir, "model.safetensors"), *config = hh_path_join(dir, "config.json");
    char *original = hh_path_join(from, "config.json");
    hh_buf text = read_whole(original);
    assert_ok(hh_make_directory(dir, &err));
    assert_ok(hh_safetensors_write(weights, t, n, &err));
    assert_ok(hh_file_write(config, text.data, text.len, &err));
    hh_buf_release(&text);
    hh_free(weights);
    hh_free(config);
    hh_free(original);
    hh_free(t);
    hh_store_close(s);
    return dir;
}

static void check_refused(const char *dir, hh_code code, const char *a, const char *b, const char *c) {
    hh_error err = {0};
    hh_model *m;
    assert_refused(hh_model_open(&m, be, dir, HH_LOAD_STORED, &err), code, "model.safetensors", a, b, c);
    assert_null(m);
    assert_int_equal(hh_model_open(&m, be, dir, HH_LOAD_REAL, &err), code);
}

static void take_out(hh_named_tensor *t, int64_t *n, const char *name) {
    hh_named_tensor *x = find(t, *n, name);
    *x = t[*n - 1];
    --*n;
}

static void drop_up(hh_named_tensor *t, int64_t *n) {
    take_out(t, n, "model.layers.1.mlp.up_proj.weight");
}

static void drop_head(hh_named_tensor *t, int64_t *n) {
    take_out(t, n, "lm_head.weight");
}

static void add_bias(hh_named_tensor *t, int64_t *n) {
    t[*n] = *find(t, *n, "model.norm.weight");
    t[*n].name = "model.layers.0.self_attn.q_proj.bias";
    ++*n;
}

static void add_head(hh_named_tensor *t, int64_t *n) {
    t[*n] = *find(t, *n, "model.embed_tokens.weight");
    t[*n].name = "lm_head.weight";
    ++*n;
}

static void turn_down(hh_named_tensor *t, int64_t *n) {
    hh_named_tensor *x = find(t, *n, "model.layers.0.mlp.down_proj.weight");
    x->t = hh_tensor_2d(x->t.data, x->t.dtype, x->t.dim[1], x->t.dim[0]);
}

static void flatten_norm(hh_named_tensor *t, int64_t *n) {
    hh_named_tensor *x = find(t, *n, "model.norm.weight");
    x->t = hh_tensor_2d(x->t.data, x->t.dtype, 1, x->t.dim[0]);
}

static void make_integer(hh_named_tensor *t, int64_t *n) {
    find(t, *n, "model.layers.1.self_attn.v_proj.weight")->t.dtype = HH_DTYPE_I32;
}

static void keep_all(hh_named_tensor *t, int64_t *n) {
    (void)t, (void)n;
}

static void test_what_does_not_fit_is_named(void **state) {
    (void)state;
    hh_error err = {0};
    hh_model *m;
    const char *dir = changed("qwen3_gqa2", "missing", drop_up);
    assert_refused(hh_model_open(&m, be, dir, HH_LOAD_STORED, &err), HH_EFORMAT, dir,
                   "model.layers.1.mlp.up_proj.weight", "[80, 48]", "missing");
    dir = changed("qwen3_gqa2", "no_head", drop_head);
    assert_refused(hh_model_open(&m, be, dir, HH_LOAD_STORED, &err), HH_EFORMAT, dir, "lm_head.weight", "missing");
    check_refused(changed("qwen3_gqa2", "extra", add_bias), HH_EUNSUPPORTED, "model.layers.0.self_attn.q_proj.bias",
                  "[48]", "");
    check_refused(changed("qwen3_gqa2", "turned", turn_down), HH_EFORMAT, "model.layers.0.mlp.down_proj.weight",
                  "[80, 48]", "[48, 80]");
    check_refused(changed("qwen3_gqa2", "flat", flatten_norm), HH_EFORMAT, "model.norm.weight", "[1, 48]", "[48]");
    check_refused(changed("qwen3_gqa2", "integer", make_integer), HH_EUNSUPPORTED,
                  "model.layers.1.self_attn.v_proj.weight", "i32", "");
}

static void test_a_tied_model_may_carry_its_head(void **state) {
    (void)state;
    hh_error err = {0};
    hh_model *m;
    assert_ok(hh_model_open(&m, be, changed("qwen3_gqa1_tied", "tied_head", add_head), HH_LOAD_STORED, &err));
    assert_ptr_equal(m->w.head.part[0].w.data, m->w.embedding.data);
    hh_model_close(m);
}

static void test_a_layer_of_full_attention_may_stay_its_teacher(void **state) {
    (void)state;
    hh_error err = {0};
    hh_model *m;
    const char *dir = changed("qwen3_gqa2", "all_dense", keep_all);
    json_t *config = json_deep_copy(json_object_get(zoo_case("qwen3_gqa2"), "config"));
    json_object_set_new(config, "base_model_type", json_string("qwen3"));
    json_object_set_new(config, "model_type", json_string("hydrahead"));
    json_object_set_new(config, "hydrahead",
                        json_pack("{s:[[i,i,i,i],[i,i,i,i]], s:s, s:i, s:b, s:f, s:b, s:b, s:b, s:i}",
                                  "full_attention_heads", 0, 1, 2, 3, 0, 1, 2, 3, "fusion", "none", "log_scale_base", 0,
                                  "log_scale_in_training", 0, "beta_scale", 2.0, "fa_gate", 0, "gdn_conv", 0,
                                  "gdn_gate", 0, "version", 1));
    char *path = hh_path_join(dir, "config.json"), *text = json_dumps(config, 0);
    assert_ok(hh_file_write(path, text, strlen(text), &err));
    assert_ok(hh_model_open(&m, be, dir, HH_LOAD_STORED, &err));
    hh_model *teacher = zoo_open(be, "qwen3_gqa2", HH_LOAD_STORED);
    int64_t n;
    int32_t *ids = zoo_ids(zoo_case("qwen3_gqa2"), &n);
    hh_real *a = zoo_logits(m, ids, n), *b = zoo_logits(teacher, ids, n);
    assert_memory_equal(a, b, (size_t)(n * m->config.vocab) * sizeof *a);
    hh_free(a);
    hh_free(b);
    hh_free(ids);
    hh_model_close(m);
    hh_model_close(teacher);
    json_decref(config);
    free(text);
    hh_free(path);
}

static void test_bf16_weights_are_used_in_place(void **state) {
    (void)state;
    hh_error err = {0};
    const char *dir = temp_path("bf16");
    hh_model *m = zoo_open(be, "hybrid_gate_everything", HH_LOAD_REAL), *stored, *real;
    assert_ok(hh_model_save(m, dir, HH_DTYPE_BF16, NULL, &err));
    assert_ok(hh_model_open(&stored, be, dir, HH_LOAD_STORED, &err));
    assert_ok(hh_model_open(&real, be, dir, HH_LOAD_REAL, &err));
    for (int64_t i = 0; i < stored->n_params; i++)
        assert_int_equal(stored->param[i].slot->dtype, stored->param[i].matrix ? HH_DTYPE_BF16 : HH_DTYPE_REAL);
    size_t arena, mapped;
    assert_ok(hh_model_measure(dir, be, HH_LOAD_STORED, NULL, &arena, &mapped, &err));
    assert_int_equal(arena, stored->arena.used);
    assert_true(mapped > 0);
    int64_t n;
    int32_t *ids = zoo_ids(zoo_case("hybrid_gate_everything"), &n);
    hh_real *a = zoo_logits(stored, ids, n), *b = zoo_logits(real, ids, n);
    double *want = hh_alloc((size_t)(n * m->config.vocab) * sizeof *want);
    for (int64_t i = 0; i < n * m->config.vocab; i++) want[i] = (double)b[i];
    assert_near(zoo_difference(a, want, n * m->config.vocab), 0, 1e-5);
    hh_free(want);
    hh_free(a);
    hh_free(b);
    hh_free(ids);
    hh_model_close(m);
    hh_model_close(stored);
    hh_model_close(real);
}

static void make_infinite(hh_named_tensor *t, int64_t *n) {
    static float values[48 * 80];
    hh_named_tensor *x = find(t, *n, "model.layers.1.mlp.down_proj.weight");
    memcpy(values, x->t.data, sizeof values);
    values[7] = INFINITY;
    x->t.data = values;
}

static void test_check_nan_names_the_place(void **state) {
    (void)state;
    hh_buf errors = {0};
    char *line = hh_sprintf("HYDRAHEAD_CHECK=nan hydrahead logits %s --ids 1,2,3 --out $TMP/x.npy --dtype f32",
                            changed("qwen3_gqa2", "infinite", make_infinite));
    assert_int_equal(run_line(line, 60, NULL, &errors), 1);
    assert_non_null(strstr(errors.data, "block output, layer 1"));
    hh_free(line);
    hh_buf_release(&errors);
}

/* The verbs that show a model at work, as a user calls them. */
static void test_verbs(void **state) {
    (void)state;
    hh_buf out = {0}, errors = {0};
    assert_int_equal(run_line("printf '1, 2,3\\n4' > $TMP/ids && hydrahead logits nano --ids $TMP/ids --out $TMP/y.npy",
                              60, NULL, NULL),
                     0);
    hh_buf y = read_whole(temp_path("y.npy"));
    assert_non_null(strstr(y.data + 10, "'<f4'"));
    assert_int_equal(y.len % 64, 0);
    assert_true(y.len > 4 * 2048 * 4);
    assert_int_equal(run_line("hydrahead logits nano --ids 1,2048 --out $TMP/z.npy", 60, NULL, &errors), 2);
    assert_non_null(strstr(errors.data, "2048"));
    assert_false(have(temp_path("z.npy")));
    assert_int_equal(run_line("hydrahead diff nano nano --ids 1,2,3 --json", 60, &out, NULL), 0);
    json_t *o = json_loads(out.data, 0, NULL);
    assert_near(json_real_value(json_object_get(o, "max_logit_difference")), 0, 0);
    assert_int_equal(json_integer_value(json_object_get(o, "first_layer")), -1);
    json_decref(o);
    hh_buf_clear(&out);
    assert_int_equal(run_line("hydrahead run nano 'The grass is green.' --max-new 5 --threads 1", 60, &out, &errors),
                     0);
    assert_true(out.len > 1);
    assert_non_null(strstr(errors.data, "peak memory"));
    static const struct {
        const char *options;
        int bytes; /* of 32 numbers of the cache */
    } planned[] = {{"", 64}, {"--dtype f32", 128}, {"--dtype f32 --kv bf16", 64}, {"--kv f32", 128}, {"--kv q8_0", 34}};
    for (size_t i = 0; i < sizeof planned / sizeof *planned; i++) {
        char *line = hh_sprintf("hydrahead plan nano --ctx 1000 --json %s", planned[i].options);
        hh_buf_clear(&out);
        assert_int_equal(run_line(line, 60, &out, NULL), 0);
        o = json_loads(out.data, 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(o, "kv_cache")), 1000 * 4 * 2 * 4 * planned[i].bytes);
        json_decref(o);
        hh_free(line);
    }
    hh_buf_release(&y);
    hh_buf_release(&out);
    hh_buf_release(&errors);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_does_not_fit_is_named),
        cmocka_unit_test(test_a_tied_model_may_carry_its_head),
        cmocka_unit_test(test_a_layer_of_full_attention_may_stay_its_teacher),
        cmocka_unit_test(test_bf16_weights_are_used_in_place),
        cmocka_unit_test(test_check_nan_names_the_place),
        cmocka_unit_test(test_verbs),
    };
    return cmocka_run_group_tests_name("model: loading", tests, open_backend, close_backend);
}
