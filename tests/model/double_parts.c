/* Parts of a block, taps and the detached backward, against central differences and against the whole, in double. */
#include "support/support.h"
#include "model/shared_backend.h"

#include <math.h>
#include <string.h>

static const char *const models[] = {"gradient_teacher", "gradient_default", "gradient_gate_everything",
                                     "gradient_norm"};
enum { N_MODELS = sizeof models / sizeof *models, TOKENS = 70 };

typedef struct subject {
    hh_model *m;
    hh_run *run;
    hh_arena arena;
    int32_t *ids;
    hh_span span[2];
    hh_batch batch;
    hh_tensor a, b, c, d; /* [T, C] work */
} subject;

static subject *subject_open(const char *name, hh_run_mode mode) {
    hh_error err = {0};
    int64_t n;
    subject *s = hh_alloc(sizeof *s);
    s->m = zoo_open(be, name, HH_LOAD_REAL);
    s->ids = zoo_ids(zoo_case(name), &n);
    s->span[0] = (hh_span){.lo = 0, .hi = 66};
    s->span[1] = (hh_span){.lo = 66, .hi = TOKENS};
    s->batch = (hh_batch){.n_tokens = TOKENS, .n_spans = 2, .ids = s->ids, .span = s->span};
    assert_ok(hh_run_new(&s->run, s->m, TOKENS, 2, mode, &err));
    assert_ok(hh_arena_init(&s->arena, "test", 1 << 20, &err));
    hh_tensor *t[] = {&s->a, &s->b, &s->c, &s->d};
    for (int i = 0; i < 4; i++) *t[i] = hh_tensor_place_2d(&s->arena, HH_DTYPE_REAL, TOKENS, s->m->config.width);
    return s;
}

static void subject_close(subject *s) {
    hh_run_free(s->run);
    hh_arena_release(&s->arena);
    hh_free(s->ids);
    hh_model_close(s->m);
    hh_free(s);
}

/* Fixed numbers of unit size. */
static void fill(hh_tensor t, const char *name) {
    for (int64_t i = 0; i < hh_tensor_count(t); i++) ((hh_real *)t.data)[i] = (hh_real)zoo_value(name, i, 2);
}

static double dot(hh_tensor a, hh_tensor b) {
    double sum = 0;
    for (int64_t i = 0; i < a.dim[0]; i++)
        for (int64_t j = 0; j < hh_tensor_row_count(a); j++) sum += (double)(hh_row(a, i)[j] * hh_row(b, i)[j]);
    return sum;
}

/* d f(x) / dx by central differences of order 4. */
typedef double value_fn(void *context);
static double slope(hh_real *x, value_fn *f, void *context) {
    const hh_real at = *x, h = (hh_real)1e-3;
    double v[4];
    static const int step[] = {-2, -1, 1, 2};
    for (int i = 0; i < 4; i++) {
        *x = at + h * step[i];
        v[i] = f(context);
    }
    *x = at;
    return (v[0] - 8 * v[1] + 8 * v[2] - v[3]) / (12 * (double)h);
}

typedef struct attention_case {
    subject *s;
    int64_t layer;
} attention_case;

/* <c, Attn(RMSNorm(a))> of a layer. */
static double attention_value(void *context) {
    attention_case *k = context;
    hh_forward_attention(k->s->run, &k->s->batch, k->layer, k->s->a, k->s->b);
    return dot(k->s->b, k->s->c);
}

static void check_attention(subject *s, int64_t layer) {
    hh_error err = {0};
    hh_gradients *g;
    assert_ok(hh_gradients_new(&g, s->m, &err));
    s->m->be->ops->fill(s->m->be, g->flat, 0);
    attention_case k = {s, layer};
    fill(s->a, "stream");
    fill(s->c, "direction");
    attention_value(&k);
    hh_guard_begin();
    hh_backward_attention(s->run, &s->batch, layer, s->a, s->c, g, s->d);
    hh_guard_end();
    for (int64_t i = 0; i < hh_tensor_count(s->a); i += 271) {
        double want = slope((hh_real *)s->a.data + i, attention_value, &k);
        assert_near((double)((hh_real *)s->d.data)[i], want, 1e-8 * (1 + fabs(want)));
    }
    for (int64_t p = 0; p < s->m->n_params; p++) {
        const hh_param *q = &s->m->param[p];
        hh_real *w = q->slot->data, *dw = (hh_real *)g->flat.data + (w - (hh_real *)s->m->flat.data);
        const bool inside = q->layer == layer && strstr(q->name, "self_attn");
        const int64_t n = hh_tensor_count(*q->slot);
        for (int64_t i = n / 3; i < n; i += n) {
            double want = inside ? slope(w + i, attention_value, &k) : 0;
            if (!(fabs((double)dw[i] - want) <= 1e-8 * (1 + fabs(want))))
                fail_msg("%s[%d]: %.12g, by differences %.12g", q->name, (int)i, (double)dw[i], want);
        }
    }
    hh_gradients_free(g, be);
}

static void test_attention_alone_and_its_gradients(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        for (int mode = HH_RUN_TRAINING; mode <= HH_RUN_ATTENTION; mode++) {
            subject *s = subject_open(models[i], (hh_run_mode)mode);
            for (int64_t l = 0; l < s->m->config.n_layers; l++) check_attention(s, l);
            subject_close(s);
        }
    }
}

/* A stream carried through the parts is the whole forward. */
static void test_parts_make_the_whole(void **state) {
    (void)state;
    hh_error err = {0};
    for (int i = 0; i < N_MODELS; i++) {
        subject *s = subject_open(models[i], HH_RUN_TRAINING);
        hh_tensor final;
        be->ops->embedding_fwd(be, s->a, s->m->w.embedding, s->ids);
        for (int64_t l = 0; l < s->m->config.n_layers; l++) {
            hh_forward_attention(s->run, &s->batch, l, s->a, s->b);
            be->ops->axpy(be, s->a, 1, s->b);
            hh_forward_mlp(s->run, l, s->a);
        }
        hh_forward_final(s->run, s->a, s->a);
        assert_ok(hh_forward(s->run, &s->batch, &final, &err));
        for (int64_t k = 0; k < hh_tensor_count(s->a); k++)
            assert_near((double)((hh_real *)s->a.data)[k], (double)((hh_real *) final.data)[k], 1e-12);
        subject_close(s);
    }
}

/* An observer that keeps or replaces, and announces in which order it was called. */
typedef struct observer {
    hh_real *heads[4], *attention[4]; /* [layer]: kept values, or NULL */
    bool replace;
    hh_real *gradient[4]; /* of head outputs */
    int64_t only_layer;   /* whose head outputs are replaced */
    int64_t calls;
} observer;

static hh_real *copy_of(hh_tensor t) {
    hh_real *x = hh_alloc((size_t)hh_tensor_count(t) * sizeof *x);
    memcpy(x, t.data, (size_t)hh_tensor_count(t) * sizeof *x);
    return x;
}

static void observe(void *context, hh_point point, int64_t layer, hh_tensor t) {
    observer *o = context;
    o->calls++;
    const size_t bytes = (size_t)hh_tensor_count(t) * sizeof(hh_real);
    if (!o->replace) {
        if (point == HH_POINT_HEAD_OUTPUT) o->heads[layer] = copy_of(t);
        if (point == HH_POINT_ATTENTION_OUTPUT) o->attention[layer] = copy_of(t);
    } else {
        if (point == HH_POINT_HEAD_OUTPUT && layer == o->only_layer) memcpy(t.data, o->heads[layer], bytes);
        if (point == HH_POINT_ATTENTION_OUTPUT && layer > o->only_layer) memcpy(t.data, o->attention[layer], bytes);
    }
}

static void observe_gradient(void *context, hh_point point, int64_t layer, hh_tensor t) {
    observer *o = context;
    if (point == HH_POINT_HEAD_OUTPUT) o->gradient[layer] = copy_of(t);
}

typedef struct frozen_case {
    subject *s;
    observer *o;
} frozen_case;

/* <c, final> with head outputs of one layer given and the attention of all later layers frozen. */
static double frozen_value(void *context) {
    frozen_case *k = context;
    hh_error err = {0};
    hh_tensor final;
    hh_run_set_tap(k->s->run, (hh_tap){.call = observe, .context = k->o});
    assert_ok(hh_forward(k->s->run, &k->s->batch, &final, &err));
    hh_run_set_tap(k->s->run, (hh_tap){0});
    return dot(final, k->s->c);
}

/* With attention outputs as constants, a head's gradient is its direct effect through MLPs and norms: what probing
 * scores. */
static void test_detached_backward_is_the_frozen_forward(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        subject *s = subject_open(models[i], HH_RUN_TRAINING);
        observer o = {0};
        frozen_case k = {s, &o};
        fill(s->c, "direction");
        double clean = frozen_value(&k); /* keeps all values */
        assert_int_equal(o.calls, 4 * s->m->config.n_layers + 1);
        memcpy(s->d.data, s->c.data, hh_tensor_bytes(s->c));
        hh_backward(s->run, &s->batch, s->d, NULL,
                    &(hh_backward_options){.tap = {observe_gradient, &o}, .detach_attention = true});
        o.replace = true;
        for (int64_t l = 0; l < s->m->config.n_layers; l++) {
            o.only_layer = l;
            assert_near(frozen_value(&k), clean, 1e-12 * (1 + fabs(clean)));
            const int64_t n = TOKENS * s->m->config.n_heads * s->m->config.head_dim;
            for (int64_t e = l; e < n; e += n / 5) {
                double want = slope(o.heads[l] + e, frozen_value, &k);
                assert_near((double)o.gradient[l][e], want, 1e-8 * (1 + fabs(want)));
            }
        }
        for (int64_t l = 0; l < s->m->config.n_layers; l++) {
            hh_free(o.heads[l]);
            hh_free(o.attention[l]);
            hh_free(o.gradient[l]);
        }
        subject_close(s);
    }
}

/* Without gradients for weights, the stream's gradient is the same. */
static void test_backward_without_weight_gradients(void **state) {
    (void)state;
    hh_error err = {0};
    for (int i = 0; i < N_MODELS; i++) {
        subject *s = subject_open(models[i], HH_RUN_TRAINING);
        hh_gradients *g;
        hh_tensor final;
        assert_ok(hh_gradients_new(&g, s->m, &err));
        s->m->be->ops->fill(s->m->be, g->flat, 0);
        assert_ok(hh_forward(s->run, &s->batch, &final, &err));
        fill(s->c, "direction");
        fill(s->d, "direction");
        hh_backward(s->run, &s->batch, s->c, g, NULL);
        hh_backward(s->run, &s->batch, s->d, NULL, NULL);
        assert_memory_equal(s->c.data, s->d.data, hh_tensor_bytes(s->c));
        hh_gradients_free(g, be);
        subject_close(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_alone_and_its_gradients),
        cmocka_unit_test(test_parts_make_the_whole),
        cmocka_unit_test(test_detached_backward_is_the_frozen_forward),
        cmocka_unit_test(test_backward_without_weight_gradients),
    };
    return cmocka_run_group_tests_name("model: parts of a block in double", tests, open_backend, close_backend);
}
