/* Training: schedules, one step against its formula, what each stage trains, sharing a teacher, micro-batches, and
 * every refusal. */
#include "train/tiny.h"

#include "base/progress.h"

#include <signal.h>

static hh_backend *be;

static hh_trainer *make_trainer(const hh_trainer_options *o, const hh_model *teacher, hh_model *student) {
    hh_trainer *t;
    assert_ok(hh_trainer_new(&t, o, teacher, &student, 1, &err));
    return t;
}

static void take(hh_trainer *t) {
    hh_step_report r;
    assert_ok(hh_trainer_step(t, &r, &err));
}

static hh_real *copy_of(hh_tensor t) {
    size_t bytes = (size_t)hh_tensor_count(t) * sizeof(hh_real);
    return memcpy(hh_alloc(bytes), t.data, bytes);
}

static void test_schedule(void **state) {
    (void)state;
    hh_schedule s = {.cosine = true, .peak = 1, .final = 0.1, .warmup = 4, .steps = 100};
    double pi = acos(-1);
    assert_true(fabs(hh_schedule_rate(&s, 0) - 0.25) < 1e-12);
    assert_true(fabs(hh_schedule_rate(&s, 1) - 0.5 * (0.1 + 0.45 * (1 + cos(pi / 100)))) < 1e-12);
    assert_true(fabs(hh_schedule_rate(&s, 50) - 0.55) < 1e-12);
    assert_true(hh_schedule_rate(&s, 99) < 0.101 && hh_schedule_rate(&s, 99) >= 0.1);
    s.cosine = false;
    assert_true(hh_schedule_rate(&s, 0) == 0.25 && hh_schedule_rate(&s, 3) == 1 && hh_schedule_rate(&s, 99) == 1);
    s.warmup = 0;
    assert_true(hh_schedule_rate(&s, 0) == 1);
}

/* Ctrl-C while a micro-batch is computed: the step is given up between two layers, and nothing has changed. */
static hh_code run_interrupted(hh_trainer *t, const hh_micro *m, hh_error *e) {
    raise(SIGINT);
    return hh_stage_pretrain.run(t, m, e);
}

static void test_an_interrupt_ends_a_step_in_the_middle(void **state) {
    (void)state;
    hh_stage stage = hh_stage_pretrain;
    stage.run = run_interrupted;
    hh_model *m = tiny_teacher(be, 1);
    hh_trainer_options o = tiny_options(&stage, 100);
    hh_trainer *t = make_trainer(&o, NULL, m);
    hh_real *before = copy_of(m->flat);
    hh_step_report r;
    hh_interrupt_install();
    assert_refused(hh_trainer_step(t, &r, &err), HH_ECANCELLED, "interrupted in layer 0");
    hh_interrupt_reset();
    assert_int_equal(t->step, 0);
    assert_memory_equal(before, m->flat.data, (size_t)hh_tensor_count(m->flat) * sizeof *before);
    hh_free(before);
    hh_trainer_free(t);
    hh_model_close(m);
}

/* AdamW's first step: m = (1-b1) g, v = (1-b2) g^2, bias corrections cancel both, so p moves by lr g/(|g| + eps) and
 * decays. */
static void test_step_is_adamw_on_the_clipped_gradient(void **state) {
    (void)state;
    hh_model *m = tiny_teacher(be, 1);
    hh_trainer_options o = tiny_options(&hh_stage_pretrain, 100);
    o.clip = 0.01;
    o.schedule.warmup = 0;
    o.weight_decay = 0.1;
    hh_trainer *t = make_trainer(&o, NULL, m);
    hh_real *before = copy_of(m->flat);
    take(t);
    hh_student *s = &t->student[0];
    const hh_real *after = m->flat.data, *g = s->gradients->flat.data;
    double lr = hh_schedule_rate(&o.schedule, 0), norm = 0;
    for (int64_t i = 0; i < s->n_trained; i++) norm += (double)g[i] * (double)g[i];
    assert_true(fabs(sqrt(norm) - s->grad_norm) < 1e-5 * s->grad_norm && s->grad_norm > o.clip);
    for (int64_t i = 0; i < s->n_trained; i++) {
        double c = (double)g[i] * o.clip / s->grad_norm;
        double want = (double)before[i] * (1 - lr * 0.1) - lr * c / (fabs(c) + 1e-8);
        if (fabs((double)after[i] - want) > 1e-6)
            fail_msg("number %d: %g, AdamW gives %g", (int)i, (double)after[i], want);
    }
    hh_free(before);
    hh_trainer_free(t);
    hh_model_close(m);
}

static double first_loss(const hh_stage *stage, const hh_model *teacher, hh_model *student, int64_t steps, double lr,
                         double *last) {
    hh_trainer_options o = tiny_options(stage, steps);
    o.schedule.peak = lr;
    o.schedule.warmup = 0;
    hh_trainer *t = make_trainer(&o, teacher, student);
    take(t);
    double first = t->student[0].loss;
    while (t->step < steps) take(t);
    *last = t->student[0].loss;
    hh_trainer_free(t);
    return first;
}

static void test_every_stage_lowers_its_loss(void **state) {
    (void)state;
    hh_model *teacher = tiny_teacher(be, 2), *scratch = tiny_teacher(be, 3), *hybrid = tiny_hybrid(teacher, 0);
    double first, last;
    first = first_loss(&hh_stage_pretrain, NULL, scratch, 60, 1e-2, &last);
    assert_true(last < 0.8 * first);
    first = first_loss(&hh_stage_align, teacher, hybrid, 60, 1e-2, &last);
    assert_true(last < 0.6 * first);
    hh_model *fresh = tiny_hybrid(teacher, 0);
    first = first_loss(&hh_stage_distill, teacher, fresh, 60, 3e-3, &last);
    hh_model_close(fresh);
    assert_true(last < 0.7 * first);
    first = first_loss(&hh_stage_extend, NULL, hybrid, 40, 3e-3, &last);
    assert_true(last < 0.9 * first);
    hh_model_close(teacher);
    hh_model_close(scratch);
    hh_model_close(hybrid);
}

static void test_align_trains_mixers_only(void **state) {
    (void)state;
    hh_model *teacher = tiny_teacher(be, 2), *hybrid = tiny_hybrid(teacher, 0);
    hh_real *before = copy_of(hybrid->flat);
    double last;
    first_loss(&hh_stage_align, teacher, hybrid, 3, 1e-2, &last);
    const hh_real *start = hybrid->flat.data;
    for (int64_t i = 0; i < hybrid->n_params; i++) {
        const hh_param *p = &hybrid->param[i];
        int64_t at = (const hh_real *)p->slot->data - start, n = hh_tensor_count(*p->slot);
        bool same = !memcmp(before + at, start + at, (size_t)n * sizeof *before);
        if (same == p->mixer) fail_msg("%s was %s", p->name, same ? "not trained" : "changed");
    }
    hh_free(before);
    hh_model_close(teacher);
    hh_model_close(hybrid);
}

/* The pieces in which a step is computed are bounded by memory and must not matter. */
static void test_micro_batches_add_up(void **state) {
    (void)state;
    hh_model *teacher = tiny_teacher(be, 2);
    const hh_stage *stages[] = {&hh_stage_align, &hh_stage_distill, &hh_stage_extend};
    for (int k = 0; k < 3; k++) {
        double loss[2], norm[2];
        for (int whole = 0; whole < 2; whole++) {
            hh_model *hybrid = tiny_hybrid(teacher, 0);
            hh_trainer_options o = tiny_options(stages[k], 10);
            o.data.micro_tokens = whole ? TINY_ROWS * TINY_LENGTH : TINY_LENGTH;
            o.ce_weight = 0.5;
            hh_trainer *t = make_trainer(&o, teacher, hybrid);
            take(t);
            loss[whole] = t->student[0].loss;
            norm[whole] = t->student[0].grad_norm;
            hh_trainer_free(t);
            hh_model_close(hybrid);
        }
        assert_true(fabs(loss[0] - loss[1]) < 1e-5 * loss[1]);
        assert_true(fabs(norm[0] - norm[1]) < 1e-4 * norm[1]);
    }
    hh_model_close(teacher);
}

static void test_two_students_share_a_teacher(void **state) {
    (void)state;
    hh_model *teacher = tiny_teacher(be, 2);
    const hh_stage *stages[] = {&hh_stage_align, &hh_stage_distill};
    for (int k = 0; k < 2; k++) {
        hh_model *together[2] = {tiny_hybrid(teacher, 0), tiny_hybrid(teacher, 9)};
        hh_trainer_options o = tiny_options(stages[k], 10);
        hh_trainer *both;
        assert_ok(hh_trainer_new(&both, &o, teacher, together, 2, &err));
        for (int i = 0; i < 3; i++) take(both);
        for (int i = 0; i < 2; i++) {
            hh_model *alone = tiny_hybrid(teacher, i ? 9 : 0);
            hh_trainer *t = make_trainer(&o, teacher, alone);
            for (int n = 0; n < 3; n++) take(t);
            assert_memory_equal(alone->flat.data, together[i]->flat.data, hh_tensor_bytes(alone->flat));
            hh_trainer_free(t);
            hh_model_close(alone);
        }
        hh_trainer_free(both);
        hh_model_close(together[0]);
        hh_model_close(together[1]);
    }
    hh_model_close(teacher);
}

/* A student equal to its teacher has nothing to learn; tokens that answer nothing can be left out. */
static void test_distillation_weights(void **state) {
    (void)state;
    hh_model *teacher = tiny_teacher(be, 2), *same = tiny_teacher(be, 2), *hybrid = tiny_hybrid(teacher, 0);
    hh_trainer_options o = tiny_options(&hh_stage_distill, 10);
    hh_trainer *t = make_trainer(&o, teacher, same);
    take(t);
    assert_true(fabs(t->student[0].loss) < 1e-6);
    hh_trainer_free(t);
    o.data.background_weight = 0;
    t = make_trainer(&o, teacher, hybrid);
    take(t);
    assert_int_equal(t->data.n_targets, TINY_ROWS * (TINY_LENGTH / 4));
    for (int64_t i = 0; i + 1 < t->data.n_tokens; i++)
        if (t->data.target[i] >= 0)
            assert_true(t->data.flags[i + 1] & HH_TOKEN_ANSWER && t->data.target[i] == t->data.ids[i + 1]);
    hh_trainer_free(t);
    hh_model_close(teacher);
    hh_model_close(same);
    hh_model_close(hybrid);
}

static void test_lengths_mix_and_repeat(void **state) {
    (void)state;
    static const int64_t lengths[] = {8, 24};
    hh_trainset_options o = tiny_options(&hh_stage_extend, 10).data;
    o.length = lengths;
    o.n_lengths = 2;
    o.vocab = TINY_V;
    o.sequences = 40;
    hh_trainset a, b;
    hh_comm alone = hh_comm_single();
    assert_ok(hh_trainset_init(&a, &o, &err));
    assert_ok(hh_trainset_init(&b, &o, &err));
    assert_ok(hh_trainset_make(&a, 3, &alone, &err));
    assert_ok(hh_trainset_make(&b, 1, &alone, &err));
    assert_ok(hh_trainset_make(&b, 3, &alone, &err));
    assert_int_equal(a.n_tokens, b.n_tokens);
    assert_memory_equal(a.ids, b.ids, (size_t)a.n_tokens * sizeof *a.ids);
    int64_t of[2] = {0};
    for (int i = 0; i < 40; i++) of[a.lo[i + 1] - a.lo[i] == 24]++;
    assert_true(of[0] > 5 && of[1] > 5 && of[0] * 8 + of[1] * 24 == a.n_tokens);
    hh_span span[40];
    int64_t covered = 0;
    for (int64_t first = 0, next; first < 40; first = next) {
        next = hh_trainset_micro(&a, first, span);
        assert_true(next - first <= hh_trainset_max_spans(&o));
        assert_true(span[next - first - 1].hi <= o.micro_tokens && span[0].lo == 0);
        covered += span[next - first - 1].hi;
    }
    assert_int_equal(covered, a.n_tokens);
    hh_trainset_release(&a);
    hh_trainset_release(&b);
}

static void refuse(hh_trainer_options o, const hh_model *teacher, hh_model *student, const char *word,
                   const char *more) {
    hh_trainer *t;
    assert_refused(hh_trainer_new(&t, &o, teacher, &student, 1, &err), HH_EINVAL, word, more);
    assert_null(t);
}

static void test_refusals(void **state) {
    (void)state;
    hh_model *teacher = tiny_teacher(be, 2), *dense = tiny_teacher(be, 3), *hybrid = tiny_hybrid(teacher, 0);
    hh_config c = tiny_config();
    c.vocab = 50;
    hh_model *other;
    assert_ok(hh_model_create(&other, be, &c, &err));
    hh_trainer_options o = tiny_options(&hh_stage_align, 10);
    refuse(o, NULL, hybrid, "align", "--teacher");
    refuse(o, teacher, dense, "no hybrid layer", "convert");
    o = tiny_options(&hh_stage_distill, 10);
    refuse(o, teacher, other, "50 tokens", "61");
    o.schedule.peak = 0;
    refuse(o, teacher, hybrid, "learning rate", "0");
    o = tiny_options(&hh_stage_distill, 10);
    o.data.micro_tokens = 10;
    refuse(o, teacher, hybrid, "10 tokens", "24");
    o = tiny_options(&hh_stage_distill, 10);
    o.data.sequences = 0;
    refuse(o, teacher, hybrid, "at least one sequence", "");
    o = tiny_options(&hh_stage_distill, 10);
    o.data.background_weight = 2;
    refuse(o, teacher, hybrid, "2", "[0, 1]");
    o = tiny_options(&hh_stage_extend, 10);
    o.data.background_weight = 0.5;
    refuse(o, NULL, hybrid, "extend", "0.5");
    assert_refused(hh_model_initialise(hybrid, 0, &err), HH_EUNSUPPORTED, "convert");
    hh_model_close(other);
    hh_model_close(teacher);
    hh_model_close(dense);
    hh_model_close(hybrid);
}

static hh_code too_large(void *context, int64_t step, int64_t row, int64_t n_rows, int64_t length, int32_t *ids,
                         uint8_t *flags, hh_error *e) {
    tiny_sequence(context, step, row, n_rows, length, ids, flags, e);
    if (row == 2) ids[3] = TINY_V;
    return HH_OK;
}

static void test_a_foreign_tokenizer_is_refused(void **state) {
    (void)state;
    hh_model *m = tiny_teacher(be, 1);
    hh_trainer_options o = tiny_options(&hh_stage_pretrain, 10);
    o.data.fill = too_large;
    hh_trainer *t = make_trainer(&o, NULL, m);
    hh_step_report r;
    assert_refused(hh_trainer_step(t, &r, &err), HH_EINVAL, "sequence 2 of step 0", "token 61", "tokenizer");
    assert_int_equal(t->step, 0);
    hh_trainer_free(t);
    hh_model_close(m);
}

static void test_a_loss_that_is_not_finite_changes_nothing(void **state) {
    (void)state;
    hh_model *m = tiny_teacher(be, 1);
    hh_trainer_options o = tiny_options(&hh_stage_pretrain, 10);
    hh_trainer *t = make_trainer(&o, NULL, m);
    take(t);
    hh_real *norm = m->w.final_norm.data;
    norm[0] = (hh_real)NAN;
    hh_real *before = copy_of(m->flat);
    hh_step_report r;
    assert_refused(hh_trainer_step(t, &r, &err), HH_ENONFINITE, "pretrain", "step 1", "sequences 0 to 1", "seed 0");
    assert_memory_equal(before, m->flat.data, hh_tensor_bytes(m->flat));
    assert_int_equal(t->step, 1);
    hh_free(before);
    hh_trainer_free(t);
    hh_model_close(m);
}

static int open_be(void **state) {
    (void)state;
    return hh_cpu_open(&be, 2, HH_PRECISION_F32, NULL, &err) == HH_OK ? 0 : -1;
}

static int close_be(void **state) {
    (void)state;
    hh_backend_close(be);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_an_interrupt_ends_a_step_in_the_middle),
        cmocka_unit_test(test_step_is_adamw_on_the_clipped_gradient),
        cmocka_unit_test(test_every_stage_lowers_its_loss),
        cmocka_unit_test(test_align_trains_mixers_only),
        cmocka_unit_test(test_micro_batches_add_up),
        cmocka_unit_test(test_two_students_share_a_teacher),
        cmocka_unit_test(test_distillation_weights),
        cmocka_unit_test(test_lengths_mix_and_repeat),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_a_foreign_tokenizer_is_refused),
        cmocka_unit_test(test_a_loss_that_is_not_finite_changes_nothing),
    };
    return cmocka_run_group_tests_name("train/train", tests, open_be, close_be);
}
