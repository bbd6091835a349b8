/* hydrahead computes what transformers and the hybrid's reference compute: logits of random models, in float32. */
#include "support/support.h"
#include "model/shared_backend.h"

#include <math.h>
#include <string.h>

/* What the issue asks for: of the largest logit. */
#define TOLERANCE 2e-5

static void check_case(const json_t *one, hh_load load) {
    const char *name = json_string_value(json_object_get(one, "name"));
    int64_t n, rows = json_integer_value(json_object_get(one, "rows")),
               step = json_integer_value(json_object_get(one, "step"));
    int32_t *ids = zoo_ids(one, &n);
    hh_model *m = zoo_open(be, name, load);
    const int64_t v = m->config.vocab;
    double *golden = zoo_golden("logits.f32", json_integer_value(json_object_get(one, "at")), rows * v);
    hh_real *logits = zoo_logits(m, ids, n);
    for (int64_t r = 0; r < rows; r++) memmove(logits + r * v, logits + r * step * v, (size_t)v * sizeof *logits);
    double difference = zoo_difference(logits, golden, rows * v);
    if (!(difference <= TOLERANCE)) fail_msg("%s: logits differ by %.3g of the largest", name, difference);
    hh_free(logits);
    hh_free(golden);
    hh_free(ids);
    hh_model_close(m);
}

static void check_all(bool hybrid, hh_load load) {
    size_t i;
    json_t *one;
    int checked = 0;
    json_array_foreach(zoo_cases(), i, one) {
        if (!json_object_get(one, "rows") || !json_object_get(json_object_get(one, "config"), "hydrahead") == hybrid)
            continue;
        check_case(one, load);
        checked++;
    }
    assert_true(checked > 5);
}

static void test_dense_models_equal_transformers(void **state) {
    (void)state;
    check_all(false, HH_LOAD_STORED);
}

static void test_hybrids_equal_the_reference(void **state) {
    (void)state;
    check_all(true, HH_LOAD_STORED);
}

static void test_trainable_weights_give_the_same(void **state) {
    (void)state;
    check_all(false, HH_LOAD_REAL);
    check_all(true, HH_LOAD_REAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_models_equal_transformers),
        cmocka_unit_test(test_hybrids_equal_the_reference),
        cmocka_unit_test(test_trainable_weights_give_the_same),
    };
    return cmocka_run_group_tests_name("model: agreement", tests, open_backend, close_backend);
}
