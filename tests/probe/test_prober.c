/* Receiver and sender scores equal brute force, one patched forward a head, to 1e-4 in float32. */
#include "support/support.h"

#include "probe/brute_force.h"
#include "support/gradcheck.h"

#define TOLERANCE 1e-4

static void random_models(void **state) {
    (void)state;
    hh_backend *be = open_exact();
    compare_random_models(be, TOLERANCE);
    hh_backend_close(be);
}

static void shipped_model(void **state) {
    (void)state;
    hh_backend *be = open_exact();
    compare_nano(be, 2, TOLERANCE);
    hh_backend_close(be);
}

/* Attribution is a first-order estimate: in the linear limit, a corruption of small effect, it is the exact score. */
static void attribution_is_the_slope(void **state) {
    (void)state;
    hh_backend *be = open_exact();
    hh_error err = {0};
    hh_model *m = random_model(be, HH_QWEN3, 5);
    /* two tokens whose embeddings differ by little */
    hh_tensor e = m->w.embedding;
    for (int64_t i = 0; i < e.dim[1]; i++) hh_row(e, 51)[i] = hh_row(e, 3)[i] * (hh_real)(1 + 1e-2 * (double)(i % 3));
    int32_t prompt[20], corrupt[20];
    for (int j = 0; j < 20; j++) prompt[j] = corrupt[j] = (j * 7) % 53;
    prompt[5] = 3;
    corrupt[5] = 51;
    const int32_t right[] = {4, 9}, wrong[] = {8, 11};
    const hh_probe_pair pair = {prompt, corrupt, right, wrong, 20, 2};
    hh_prober *p;
    double clean, spoilt, receiver[8], direct[8], total[8], largest = 0;
    assert_ok(hh_prober_new(&p, m, 32, 2, &err));
    assert_ok(hh_prober_load(p, &pair, &clean, &spoilt, &err));
    hh_prober_receivers(p, receiver);
    hh_prober_attribution(p, direct, total);
    for (int i = 0; i < 8; i++) largest = fmax(largest, fabs(receiver[i]));
    for (int i = 0; i < 8; i++) assert_near(direct[i], receiver[i], 0.05 * largest);
    for (int i = 4; i < 8; i++)
        assert_near(total[i], direct[i], 1e-3 * largest); /* nothing reads the last layer's heads */
    hh_prober_free(p);
    hh_model_close(m);
    hh_backend_close(be);
}

/* A hybrid has no teacher's heads left to probe. */
static void hybrids_are_refused(void **state) {
    (void)state;
    hh_backend *be = open_backend(NULL, 1);
    hh_error err = {0};
    hh_model *m = random_model(be, HH_QWEN3, 5);
    m->w.layer[1].dense = false;
    hh_prober *p;
    assert_refused(hh_prober_new(&p, m, 32, 2, &err), HH_EUNSUPPORTED, "layer 1", "teacher");
    m->w.layer[1].dense = true;
    hh_model_close(m);
    hh_backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_models), cmocka_unit_test(shipped_model),
                                       cmocka_unit_test(attribution_is_the_slope),
                                       cmocka_unit_test(hybrids_are_refused)};
    return cmocka_run_group_tests_name("probe", tests, NULL, NULL);
}
