/* The gradient that a step takes is the derivative of the loss that it reports: every stage, every kind of parameter,
 * in double precision. */
#include "train/tiny.h"

static hh_backend *be;

/* A rate so small that no weight moves: steps can be repeated. */
static hh_trainer *make_still(const hh_stage *stage, const hh_model *teacher, hh_model *student) {
    hh_trainer *t;
    hh_trainer_options o = tiny_options(stage, 10);
    o.data.sequences = 2;
    o.data.background_weight = stage == &hh_stage_distill ? 0.25 : 1;
    o.ce_weight = 0.5;
    o.weight_decay = 0;
    o.schedule.peak = 1e-300;
    o.schedule.final = 0;
    assert_ok(hh_trainer_new(&t, &o, teacher, &student, 1, &err));
    return t;
}

static double loss_of_step(void *context) {
    hh_trainer *t = context;
    hh_step_report r;
    t->step = 0;
    assert_ok(hh_trainer_step(t, &r, &err));
    return t->student[0].loss;
}

static void check_stage(const hh_stage *stage, const hh_model *teacher, hh_model *student) {
    hh_trainer *t = make_still(stage, teacher, student);
    loss_of_step(t);
    hh_tensor all = t->student[0].gradients->flat, kept = guarded_copy(all);
    double largest = 0;
    for (int64_t i = 0; i < hh_tensor_count(kept); i++) largest = fmax(largest, fabs((double)*tensor_at(kept, i)));
    for (int64_t i = 0; i < student->n_params; i++) {
        const hh_param *p = &student->param[i];
        if (stage->mixers_only && !p->mixer) continue;
        int64_t at = (const hh_real *)p->slot->data - (const hh_real *)student->flat.data,
                n = hh_tensor_count(*p->slot);
        hh_tensor x = hh_tensor_1d(p->slot->data, HH_DTYPE_REAL, n);
        /* Differences carry an error of the loss's own rounding; a parameter with tiny gradients is measured against
         * the largest. */
        double own = 0;
        for (int64_t k = 0; k < n; k++) own = fmax(own, fabs((double)*tensor_at(kept, at + k)));
        double tolerance = own > 0 ? 1e-8 * fmax(1, largest / own * 1e-2) : 1;
        gradcheck(p->name, loss_of_step, t, x, hh_tensor_rows(kept, at, at + n), 1, tolerance);
    }
    hh_trainer_free(t);
    guarded_release();
}

static void test_align(void **state) {
    (void)state;
    hh_model *teacher = tiny_teacher(be, 2), *student = tiny_hybrid(teacher, 0);
    check_stage(&hh_stage_align, teacher, student);
    hh_model_close(student);
    hh_model_close(teacher);
}

static void test_distill(void **state) {
    (void)state;
    hh_model *teacher = tiny_teacher(be, 2), *student = tiny_hybrid(teacher, 0);
    check_stage(&hh_stage_distill, teacher, student);
    hh_model_close(student);
    hh_model_close(teacher);
}

static void test_next_token(void **state) {
    (void)state;
    hh_model *teacher = tiny_teacher(be, 2), *student = tiny_hybrid(teacher, 0);
    check_stage(&hh_stage_extend, NULL, student);
    check_stage(&hh_stage_pretrain, NULL, teacher);
    hh_model_close(student);
    hh_model_close(teacher);
}

static int open_be(void **state) {
    (void)state;
    return hh_cpu_open(&be, 1, HH_PRECISION_F32, "reference", &err) == HH_OK ? 0 : -1;
}

static int close_be(void **state) {
    (void)state;
    hh_backend_close(be);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_align),
        cmocka_unit_test(test_distill),
        cmocka_unit_test(test_next_token),
    };
    return cmocka_run_group_tests_name("train/stages (double)", tests, open_be, close_be);
}
