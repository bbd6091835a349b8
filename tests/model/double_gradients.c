/* The gradient of every parameter of a small teacher and of hybrids equals PyTorch's in float64. */
#include "support/support.h"
#include "model/shared_backend.h"

#include <math.h>
#include <string.h>

/* Of the largest element of a parameter's gradient, or of 1 when all are smaller. */
#define TOLERANCE 1e-9

typedef struct packed {
    int32_t *ids, *target;
    hh_span span[8];
    int64_t n, n_spans;
} packed;

/* A case's sequences, packed; within each the next token is the target. */
static packed pack(const json_t *one) {
    packed p = {0};
    p.ids = zoo_ids(one, &p.n);
    p.target = hh_alloc((size_t)p.n * sizeof *p.target);
    const json_t *pieces = json_object_get(one, "pieces");
    int64_t at = 0;
    for (p.n_spans = 0; p.n_spans < (int64_t)json_array_size(pieces); p.n_spans++) {
        int64_t n = json_integer_value(json_array_get(pieces, (size_t)p.n_spans));
        p.span[p.n_spans] = (hh_span){.lo = at, .hi = at + n};
        for (int64_t i = at; i < at + n; i++) p.target[i] = i + 1 < at + n ? p.ids[i + 1] : -1;
        at += n;
    }
    assert_int_equal(at, p.n);
    return p;
}

/* Summed cross-entropy of the packed sequences; gradients added to g. */
static double loss_and_gradients(const hh_model *m, hh_gradients *g, const packed *p, hh_gdn_mode mode) {
    hh_error err = {0};
    hh_run *run;
    hh_arena arena;
    const int64_t n = p->n, c = m->config.width;
    assert_ok(hh_run_new(&run, m, n, p->n_spans, HH_RUN_TRAINING, &err));
    assert_ok(hh_arena_init(&arena, "test", (size_t)(n * (c + 1) + 64) * sizeof(hh_real), &err));
    hh_tensor nll = hh_tensor_place_1d(&arena, HH_DTYPE_REAL, n), dx = hh_tensor_place_2d(&arena, HH_DTYPE_REAL, n, c),
              final;
    hh_run_set_gdn_mode(run, mode);
    const hh_batch batch = {.n_tokens = n, .n_spans = p->n_spans, .ids = p->ids, .span = p->span};
    hh_guard_begin();
    assert_ok(hh_forward(run, &batch, &final, &err));
    be->ops->ce_head(be, nll, NULL, dx, &g->w.head, final, &m->w.head, p->target, 1);
    hh_backward(run, &batch, dx, g, NULL);
    hh_guard_end();
    double loss = 0;
    for (int64_t i = 0; i < n; i++)
        if (p->target[i] >= 0) loss += (double)hh_row(nll, i)[0];
    hh_arena_release(&arena);
    hh_run_free(run);
    return loss;
}

/* The gradient of a parameter: the same place in the flat block. Its values in the order of a checkpoint. */
static void read_gradient(double *out, const hh_model *m, const hh_gradients *g, const hh_param *p) {
    const hh_real *x = (const hh_real *)g->flat.data + ((const hh_real *)p->slot->data - (const hh_real *)m->flat.data);
    const int64_t rows = p->dim[0], cols = p->dim[1], d = m->config.head_dim;
    const int32_t *head = p->layer >= 0 ? m->w.layer[p->layer].head : NULL;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < cols; k++) {
            int64_t row = p->permuted_rows ? head[r] : r, col = p->permuted_columns ? head[k / d] * d + k % d : k;
            out[row * cols + col] = (double)x[r * cols + k];
        }
}

static void check_case(const json_t *one, hh_gdn_mode mode) {
    hh_error err = {0};
    const char *name = json_string_value(json_object_get(one, "name"));
    hh_model *m = zoo_open(be, name, HH_LOAD_REAL);
    hh_gradients *g;
    assert_ok(hh_gradients_new(&g, m, &err));
    m->be->ops->fill(m->be, g->flat, 0);
    packed p = pack(one);
    double loss = loss_and_gradients(m, g, &p, mode);
    assert_near(loss, json_real_value(json_object_get(one, "loss")), 1e-9 * loss);
    int64_t at = json_integer_value(json_object_get(one, "at"));
    size_t i, known = 0;
    json_t *entry;
    json_array_foreach(json_object_get(one, "parameters"), i, entry) {
        const char *parameter = json_string_value(json_array_get(entry, 0));
        int64_t n = json_integer_value(json_array_get(entry, 1));
        const hh_param *q = hh_param_find(m->param, m->n_params, parameter);
        assert_non_null(q);
        double *want = zoo_golden("gradients.f64", at, n), *have = hh_alloc((size_t)n * sizeof *have), most = 0,
               largest = 1;
        read_gradient(have, m, g, q);
        for (int64_t k = 0; k < n; k++) {
            double difference = fabs(have[k] - want[k]);
            if (!(difference <= most)) most = difference;
            if (fabs(want[k]) > largest) largest = fabs(want[k]);
        }
        if (!(most <= TOLERANCE * largest)) fail_msg("%s: %s differs by %.3g of %.3g", name, parameter, most, largest);
        hh_free(want);
        hh_free(have);
        at += n;
        known++;
    }
    assert_int_equal(known, m->n_params);
    hh_free(p.ids);
    hh_free(p.target);
    hh_gradients_free(g, be);
    hh_model_close(m);
}

static void check_all(hh_gdn_mode mode) {
    size_t i;
    json_t *one;
    int checked = 0;
    json_array_foreach(zoo_cases(), i, one) {
        if (!json_object_get(one, "parameters")) continue;
        check_case(one, mode);
        checked++;
    }
    assert_true(checked >= 6);
}

static void test_chunked(void **state) {
    (void)state;
    check_all(HH_GDN_CHUNKED);
}

static void test_recurrent(void **state) {
    (void)state;
    check_all(HH_GDN_RECURRENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chunked), cmocka_unit_test(test_recurrent)};
    return cmocka_run_group_tests_name("model: gradients in double", tests, open_backend, close_backend);
}
