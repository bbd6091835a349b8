/* What a whole model computes, as plain numbers of the host, on any backend: for tests that ask two backends the same.
 * All arrays are the caller's to free. Header only; needs tests/train/tiny.h's and tests/probe/random_model.h's rooms. */
#ifndef HH_TESTS_SUPPORT_WHOLE_H
#define HH_TESTS_SUPPORT_WHOLE_H

#include "probe/prober.h"
#include "probe/random_model.h"
#include "session/many.h"
#include "support/rounded.h"
#include "support/zoo.h"
#include "tensor/mirror.h"
#include "train/state.h"
#include "train/tiny.h"

typedef struct numbers {
    hh_real *x;
    int64_t n;
} numbers;

static inline numbers numbers_new(int64_t n) {
    return (numbers){hh_alloc((size_t)n * sizeof(hh_real)), n};
}

static void numbers_add(numbers *to, const hh_real *x, int64_t n) {
    to->x = hh_realloc(to->x, (size_t)(to->n + n) * sizeof *to->x);
    memcpy(to->x + to->n, x, (size_t)n * sizeof *x);
    to->n += n;
}

/* ||a - b|| / ||b||; infinite when sizes differ or a number is none. */
static inline double numbers_error(numbers a, numbers b) {
    double difference = 0, size = 0;
    if (a.n != b.n || !a.n) return INFINITY;
    for (int64_t i = 0; i < a.n; i++) {
        double d = (double)a.x[i] - (double)b.x[i];
        difference += d * d;
        size += (double)b.x[i] * (double)b.x[i];
    }
    double e = size > 0 ? sqrt(difference / size) : sqrt(difference);
    return isfinite(e) ? e : INFINITY;
}

static inline numbers numbers_copy(numbers a) {
    numbers b = numbers_new(a.n);
    memcpy(b.x, a.x, (size_t)a.n * sizeof *a.x);
    return b;
}

/* Logits of all tokens of a case of the zoo in one pass. */
static inline numbers whole_logits(hh_backend *be, const char *name, hh_load load) {
    numbers out;
    int64_t n;
    hh_model *m = zoo_open(be, name, load);
    int32_t *ids = zoo_ids(zoo_case(name), &n);
    out.x = zoo_logits(m, ids, n);
    out.n = n * m->config.vocab;
    hh_free(ids);
    hh_model_close(m);
    return out;
}

/* Logits behind every step of a session: prefill in chunks, then decoding token by token. */
static inline numbers whole_session(hh_backend *be, const char *name, hh_dtype kv) {
    numbers out = {0};
    int64_t n;
    hh_session *s;
    hh_model *m = zoo_open(be, name, HH_LOAD_STORED);
    int32_t *ids = zoo_ids(zoo_case(name), &n);
    const hh_session_options o = {.context = n, .chunk = 16, .kv_dtype = kv};
    assert_ok(hh_session_new(&s, m, &o, &err));
    assert_ok(hh_session_eval(s, ids, n / 2, &err));
    for (int64_t i = n / 2; i < (quick() ? n / 2 + 5 : n); i++) {
        assert_ok(hh_session_step(s, ids[i], &err));
        numbers_add(&out, hh_session_logits(s), m->config.vocab);
    }
    hh_session_free(s);
    hh_free(ids);
    hh_model_close(m);
    return out;
}

static inline bool whole_take(void *context, int32_t id) {
    hh_real x = (hh_real)id;
    numbers_add(context, &x, 1);
    return true;
}

/* Tokens that three prompts of a case are answered with when they are answered at once; one after another ends. */
static inline numbers whole_answers(hh_backend *be, const char *name) {
    int64_t n;
    hh_many *many;
    numbers made[3] = {{0}}, out = {0};
    hh_model *m = zoo_open(be, name, HH_LOAD_STORED);
    int32_t *ids = zoo_ids(zoo_case(name), &n);
    hh_request r[3];
    for (int i = 0; i < 3; i++)
        r[i] = (hh_request){
            .ids = ids + i, .n = n / (i + 1) - i, .max_new = 12 - 4 * i, .on_token = whole_take, .context = &made[i]};
    assert_ok(hh_many_new(&many, m, 3, n + 12, be->activation, &err));
    assert_ok(hh_many_answer(many, r, 3, NULL, 0, &err));
    for (int i = 0; i < 3; i++) {
        numbers_add(&out, made[i].x, made[i].n);
        hh_free(made[i].x);
    }
    hh_many_free(many);
    hh_free(ids);
    hh_model_close(m);
    return out;
}

/* Gradients of all weights of next-token cross-entropy over two packed sequences of a case, and *nll, its sum. */
static inline numbers whole_gradients(hh_backend *be, const char *name, double *nll) {
    int64_t n;
    hh_run *run;
    hh_gradients *g;
    hh_arena arena;
    hh_model *m = zoo_open(be, name, HH_LOAD_REAL);
    rounded_model(m);
    int32_t *ids = zoo_ids(zoo_case(name), &n), *target = hh_alloc((size_t)n * sizeof *target);
    const int64_t cut = n / 3;
    for (int64_t i = 0; i < n; i++) target[i] = i + 1 == cut || i + 1 == n ? -1 : ids[i + 1];
    assert_ok(hh_run_new(&run, m, n, 2, HH_RUN_TRAINING, &err));
    assert_ok(hh_gradients_new(&g, m, &err));
    m->be->ops->fill(m->be, g->flat, 0);
    rounded_keep(be, g->flat);
    size_t bytes = (size_t)n * (1 + (size_t)m->config.width) * sizeof(hh_real) + 2 * HH_ARENA_ALIGN;
    assert_ok(be->arena_init(be, &arena, "test", bytes, &err));
    hh_tensor loss = hh_tensor_place_1d(&arena, HH_DTYPE_REAL, n), final;
    hh_tensor dx = hh_tensor_place_2d(&arena, be->activation, n, m->config.width);
    const hh_span span[] = {{0, cut, 0}, {cut, n, 0}};
    const hh_batch b = {.n_tokens = n, .n_spans = 2, .ids = ids, .span = span};
    assert_ok(hh_forward(run, &b, &final, &err));
    be->ops->ce_head(be, loss, NULL, dx, &g->w.head, final, &m->w.head, target, 1 / (double)n);
    hh_backward(run, &b, dx, g, NULL);
    numbers out = numbers_new(hh_tensor_count(g->flat)), each = numbers_new(n);
    hh_tensor_to_host(be, out.x, g->flat);
    hh_tensor_to_host(be, each.x, loss);
    assert_ok(be->sync(be, &err));
    *nll = 0;
    for (int64_t i = 0; i < n; i++) *nll += (double)each.x[i];
    be->arena_release(be, &arena);
    hh_gradients_free(g, be);
    hh_run_free(run);
    hh_free(each.x);
    hh_free(target);
    hh_free(ids);
    hh_model_close(m);
    return out;
}

static int64_t whole_recorded_tokens __attribute__((unused)); /* of whole_training's trainers */

/* Trains the tiny hybrid for `steps` steps, the first `before` of them by a trainer that is thrown away after its state has
 * been written to `path`. Losses of all steps, then the weights. */
static inline numbers whole_training(hh_backend *be, const hh_stage *stage, int64_t steps, int64_t before,
                                     const char *path) {
    numbers out = {0};
    hh_trainer *t;
    hh_model *teacher = tiny_teacher(be, 2), *student = NULL;
    hh_trainer_options o = tiny_options(stage, steps);
    o.ce_weight = stage == &hh_stage_distill ? 0.5 : 0;
    o.recorded_tokens = whole_recorded_tokens;
    for (int part = 0; part < 2; part++) {
        hh_model_close(student);
        student = tiny_hybrid(teacher, 0);
        assert_ok(hh_trainer_new(&t, &o, teacher, &student, 1, &err));
        if (part && before) assert_ok(hh_state_read(t, "none\n", path, &err));
        while (t->step < (part ? steps : before)) {
            hh_step_report r;
            assert_ok(hh_trainer_step(t, &r, &err));
            hh_real loss = (hh_real)t->student[0].loss;
            numbers_add(&out, &loss, 1);
        }
        if (!part && before) assert_ok(hh_state_write(t, "none\n", path, &err));
        hh_trainer_free(t);
    }
    numbers w = numbers_new(hh_tensor_count(student->flat));
    hh_tensor_to_host(be, w.x, student->flat);
    numbers_add(&out, w.x, w.n);
    hh_free(w.x);
    hh_model_close(student);
    hh_model_close(teacher);
    return out;
}

/* Receiver scores, both attributions, and the sender scores of layer 0 for one pair of random tokens. */
static inline numbers whole_probe(hh_backend *be, bool has_wrong) {
    enum { T = 30, A = 3 };
    int32_t prompt[T], corrupt[T], right[A] = {5, 9, 11}, wrong[A] = {7, 2, 30};
    hh_model *m = random_model(be, HH_QWEN3, 4);
    rounded_model(m);
    const int64_t heads = m->config.n_layers * m->config.n_heads;
    hh_prober *p;
    for (int i = 0; i < T; i++) prompt[i] = corrupt[i] = (i * 17 + 3) % 53;
    corrupt[12] = 50, corrupt[13] = 8;
    assert_ok(hh_prober_new(&p, m, T + A, A, &err));
    double clean, bad, *ie = hh_alloc((size_t)(4 * heads) * sizeof *ie);
    const hh_probe_pair pair = {prompt, corrupt, right, has_wrong ? wrong : NULL, T, A};
    assert_ok(hh_prober_load(p, &pair, &clean, &bad, &err));
    hh_prober_receivers(p, ie);
    hh_prober_attribution(p, ie + heads, ie + 2 * heads);
    bool known[64] = {0};
    known[m->config.n_heads + 1] = known[m->config.n_heads + 2] = true;
    for (int64_t h = 0; h < m->config.n_heads; h++) ie[3 * heads + h] = hh_prober_sender(p, known, 0, h);
    numbers out = numbers_new(3 * heads + m->config.n_heads);
    for (int64_t i = 0; i < out.n; i++) out.x[i] = (hh_real)ie[i];
    hh_free(ie);
    hh_prober_free(p);
    hh_model_close(m);
    return out;
}

#endif
