/* The shipped model on real text, and SmolLM2 from a GGUF file with quantised weights, against transformers. */
#include "support/gradcheck.h"
#include "support/support.h"
#include "support/zoo.h"

#include "base/parallel.h"
#include "session/session.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SMOLLM2 "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

static json_t *read_golden(const char *name) {
    char *path = hh_path_join("tests/model/golden", name);
    json_error_t e;
    json_t *o = json_load_file(path, 0, &e);
    if (!o) fail_msg("%s: %s", path, e.text);
    hh_free(path);
    return o;
}

static int32_t *ids_of(const json_t *array, int64_t *n) {
    *n = (int64_t)json_array_size(array);
    int32_t *ids = hh_alloc((size_t)*n * sizeof *ids);
    for (int64_t i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return ids;
}

static hh_model *open_model(hh_backend **be, const char *path) {
    hh_error err = {0};
    hh_model *m;
    assert_ok(hh_cpu_open(be, 0, HH_PRECISION_F32, NULL, &err));
    assert_ok(hh_model_open(&m, *be, path, HH_LOAD_STORED, &err));
    return m;
}

/* Mean negative log-likelihood of tokens 1.. */
static double mean_nll(const hh_model *m, const int32_t *ids, int64_t n) {
    hh_error err = {0};
    hh_run *run;
    double sum = 0;
    assert_ok(hh_run_new(&run, m, n, 1, HH_RUN_INFERENCE, &err));
    hh_real *nll = hh_alloc((size_t)n * sizeof *nll);
    int32_t *target = hh_alloc((size_t)n * sizeof *target);
    const hh_span span = {.hi = n};
    const hh_batch batch = {.n_tokens = n, .n_spans = 1, .ids = ids, .span = &span};
    hh_tensor final;
    assert_ok(hh_forward(run, &batch, &final, &err));
    for (int64_t i = 0; i < n; i++) target[i] = i + 1 < n ? ids[i + 1] : -1;
    m->be->ops->ce_head(m->be, hh_tensor_1d(nll, HH_DTYPE_REAL, n), NULL, HH_NONE, NULL, final, &m->w.head, target, 0);
    for (int64_t i = 0; i + 1 < n; i++) sum += (double)nll[i];
    hh_free(nll);
    hh_free(target);
    hh_run_free(run);
    return sum / (double)(n - 1);
}

static void test_nano_on_text(void **state) {
    (void)state;
    hh_backend *be;
    hh_model *m = open_model(&be, "nano");
    json_t *golden = read_golden("nano.json");
    int64_t n, v = m->config.vocab;
    int32_t *ids = ids_of(json_object_get(golden, "ids"), &n);
    const json_t *rows = json_object_get(golden, "rows");
    const int64_t n_rows = (int64_t)json_array_size(rows);
    double *want = zoo_golden("nano.f32", 0, n_rows * v);
    hh_real *logits = zoo_logits(m, ids, n);
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t at = json_integer_value(json_array_get(rows, (size_t)r));
        assert_near(zoo_difference(logits + at * v, want + r * v, v), 0, 2e-5);
    }
    assert_near(mean_nll(m, ids, n), json_real_value(json_object_get(golden, "nll")), 1e-4);
    hh_free(ids);
    hh_free(want);
    hh_free(logits);
    json_decref(golden);
    hh_model_close(m);
    hh_backend_close(be);
}

static int need_smollm2(void) {
    if (have(SMOLLM2)) return 1;
    print_message("%s is not there; `make models` fetches it\n", SMOLLM2);
    return 0;
}

enum { PROMPTS = 10, NEW = 64 };

/* The prompts are decoded together, a token of each a step: weights are read once for all. */
typedef struct speakers {
    int64_t n;
    hh_cache *cache[PROMPTS];
    hh_run *run;
    hh_real *logits;
    int32_t made[PROMPTS][NEW];
} speakers;

static void speak(speakers *s, const hh_model *m, hh_batch batch, const int32_t *last, int step) {
    hh_error err = {0};
    const int64_t v = m->config.vocab;
    hh_tensor final;
    batch.cache = s->cache;
    assert_ok(hh_forward(s->run, &batch, &final, &err));
    hh_logits(s->run, final, last, s->n, hh_tensor_2d(s->logits, HH_DTYPE_REAL, s->n, v));
    for (int p = 0; p < s->n; p++) s->made[p][step] = hh_sample(s->logits + p * v, v, &(hh_sampling){.top_p = 1}, NULL);
}

static void test_smollm2_writes_what_transformers_writes(void **state) {
    (void)state;
    if (!need_smollm2()) skip();
    hh_error err = {0};
    hh_backend *be;
    hh_model *m = open_model(&be, SMOLLM2);
    json_t *golden = read_golden("smollm2.json"), *prompts = json_object_get(golden, "prompts");
    assert_int_equal(json_array_size(prompts), PROMPTS);
    speakers s = {.n = quick() ? 3 : PROMPTS};
    hh_span span[PROMPTS];
    int32_t ids[512], last[PROMPTS];
    int64_t n = 0;
    for (int p = 0; p < s.n; p++) {
        int64_t k;
        int32_t *prompt = ids_of(json_object_get(json_array_get(prompts, (size_t)p), "ids"), &k);
        memcpy(ids + n, prompt, (size_t)k * sizeof *ids);
        span[p] = (hh_span){.lo = n, .hi = n + k};
        last[p] = (int32_t)(n += k) - 1;
        assert_ok(hh_cache_new(&s.cache[p], m, k + NEW, HH_DTYPE_F32, &err));
        hh_free(prompt);
    }
    assert_ok(hh_run_new(&s.run, m, n, s.n, HH_RUN_INFERENCE, &err));
    s.logits = hh_alloc((size_t)(s.n * m->config.vocab) * sizeof *s.logits);
    speak(&s, m, (hh_batch){.n_tokens = n, .n_spans = s.n, .ids = ids, .span = span}, last, 0);
    const int n_new = quick() ? 4 : NEW;
    for (int step = 1; step < n_new; step++) {
        for (int p = 0; p < s.n; p++) {
            span[p] = (hh_span){.lo = p, .hi = p + 1, .pos = s.cache[p]->length};
            ids[p] = s.made[p][step - 1];
            last[p] = p;
        }
        speak(&s, m, (hh_batch){.n_tokens = s.n, .n_spans = s.n, .ids = ids, .span = span}, last, step);
    }
    for (int p = 0; p < s.n; p++) {
        int64_t k;
        const json_t *one = json_array_get(prompts, (size_t)p);
        int32_t *want = ids_of(json_object_get(one, "greedy"), &k);
        assert_int_equal(k, NEW);
        if (memcmp(s.made[p], want, (size_t)n_new * sizeof *want))
            fail_msg("\"%s\" goes on differently", json_string_value(json_object_get(one, "prompt")));
        hh_free(want);
        hh_cache_free(s.cache[p], be);
    }
    hh_free(s.logits);
    hh_run_free(s.run);
    json_decref(golden);
    hh_model_close(m);
    hh_backend_close(be);
}

static void test_smollm2_perplexity(void **state) {
    (void)state;
    if (!need_smollm2()) skip();
    hh_backend *be;
    hh_model *m = open_model(&be, SMOLLM2);
    json_t *golden = read_golden("smollm2.json"), *text = json_object_get(golden, "wikitext");
    const json_t *want = json_object_get(text, "nll"), *of_piece;
    int64_t n, n_lengths;
    int32_t *ids = ids_of(json_object_get(text, "ids"), &n);
    int32_t *length = ids_of(json_object_get(text, "lengths"), &n_lengths);
    const int64_t piece = n / (int64_t)json_array_size(want);
    size_t i;
    json_array_foreach(want, i, of_piece) {
        for (int64_t k = 0; k < (quick() ? 1 : n_lengths); k++) {
            const double nll = mean_nll(m, ids + (int64_t)i * piece, length[k]);
            assert_near(exp(nll - json_real_value(json_array_get(of_piece, (size_t)k))), 1, 1e-3);
        }
        if (quick()) break;
    }
    hh_free(length);
    hh_free(ids);
    json_decref(golden);
    hh_model_close(m);
    hh_backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nano_on_text),
        cmocka_unit_test(test_smollm2_writes_what_transformers_writes),
        cmocka_unit_test(test_smollm2_perplexity),
    };
    return cmocka_run_group_tests_name("model: real checkpoints", tests, NULL, NULL);
}
