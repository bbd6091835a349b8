/* A layer's branches (tensor/backend.h) share nothing and take no products, whatever a model does: on the CPU, where they run
 * one behind the other, every op of both is watched, what it was given and what of that it wrote. */
#include "base/progress.h"
#include "ops/each.h"
#include "support/whole.h"

#include <stdio.h>

/* A tensor that an op of a branch was given. */
typedef struct given {
    const char *op, *name;
    hh_branch branch;
    char *at, *before; /* its rows, and what was in them */
    size_t apart, bytes;
    int64_t rows;
    bool written;
} given;

static struct watch {
    hh_backend *cpu;
    hh_ops ops;
    const hh_ops *inner;
    hh_branch branch;
    bool inside; /* an op that an op calls is its own business */
    const char *op;
    given *given; /* of the layer's branches so far */
    int64_t n, first, n_spans, n_layers;
} watch;

/* malloc: a session's steps promise to allocate nothing with ours. */
static void take_tensor(const char *name, hh_tensor t) {
    if (!t.data || !hh_tensor_count(t)) return;
    watch.given = realloc(watch.given, (size_t)(watch.n + 1) * sizeof *watch.given);
    given *g = &watch.given[watch.n++];
    *g = (given){.op = watch.op,
                 .name = name,
                 .branch = watch.branch,
                 .at = t.data,
                 .apart = hh_dtype_bytes(t.dtype, t.stride),
                 .bytes = hh_dtype_bytes(t.dtype, hh_tensor_row_count(t)),
                 .rows = t.dim[0]};
    g->before = malloc((size_t)g->rows * g->bytes);
    for (int64_t i = 0; i < g->rows; i++)
        memcpy(g->before + (size_t)i * g->bytes, g->at + (size_t)i * g->apart, g->bytes);
}

static void take_list(const char *name, const hh_tensor *t) {
    for (int64_t s = 0; t && s < watch.n_spans; s++) take_tensor(name, t[s]);
}

static void take_kv(const char *name, const hh_kv *kv) {
    for (int64_t s = 0; kv && s < watch.n_spans; s++) {
        take_tensor(name, kv[s].k);
        take_tensor(name, kv[s].v);
    }
}

static void take_inputs(const char *name, const hh_mixer_inputs *in) {
    const hh_tensor shared[] = {in->cos, in->sin, in->g, in->beta, in->a, in->b, in->A_log, in->dt_bias};
    for (int i = 0; i < in->n_paths; i++) {
        const hh_mixer_path *p = &in->path[i];
        const hh_tensor own[] = {p->x, p->y, p->conv, p->taps, p->norm, p->rstd, p->r};
        for (size_t k = 0; k < sizeof own / sizeof *own; k++) take_tensor(name, own[k]);
        take_list(name, p->tail);
    }
    for (size_t k = 0; k < sizeof shared / sizeof *shared; k++) take_tensor(name, shared[k]);
}

static void take_map(const char *name, const hh_linear *map) {
    (void)map;
    fail_msg("%s: a product (%s) in a branch", watch.op, name);
}

static void take_count(const char *name, int64_t n) {
    if (!strcmp(name, "n_spans")) watch.n_spans = n;
}

static void take_nothing(const char *name, ...) {
    (void)name;
}

static void begin_op(const char *op) {
    watch.inside = true;
    watch.op = op;
    watch.first = watch.n;
    watch.n_spans = 0;
}

static void end_op(void) {
    watch.inside = false;
    for (int64_t i = watch.first; i < watch.n; i++) {
        given *g = &watch.given[i];
        for (int64_t k = 0; k < g->rows && !g->written; k++)
            g->written = memcmp(g->before + (size_t)k * g->bytes, g->at + (size_t)k * g->apart, g->bytes) != 0;
        free(g->before);
        g->before = NULL;
    }
}

/* clang-format off */
#define COUNT(x) _Generic((x), int64_t: take_count, default: take_nothing)(#x, x)
#define TAKE(x)                                                                                                        \
    _Generic((x), hh_tensor: take_tensor, const hh_tensor *: take_list, const hh_kv *: take_kv,                        \
        const hh_mixer_inputs *: take_inputs, const hh_linear *: take_map, default: take_nothing)(#x, x)
/* clang-format on */

#define HH_OP(name, arguments, names)                                                                                  \
    static void watched_##name(hh_backend *be, HH_BARE arguments) {                                                    \
        const bool mine = watch.branch && !watch.inside;                                                               \
        if (mine) begin_op(#name);                                                                                     \
        if (mine) (void)(EACH(COUNT, HH_BARE names)), (void)(EACH(TAKE, HH_BARE names));                               \
        watch.inner->name(be, HH_BARE names);                                                                          \
        if (mine) end_op();                                                                                            \
    }
#include "ops/ops.def"
#undef HH_OP

static bool overlap(const given *a, const given *b) {
    for (int64_t i = 0; i < a->rows; i++)
        for (int64_t k = 0; k < b->rows; k++) {
            const char *p = a->at + (size_t)i * a->apart, *q = b->at + (size_t)k * b->apart;
            if (p < q + b->bytes && q < p + a->bytes) return true;
        }
    return false;
}

static void compare_branches(void) {
    for (int64_t i = 0; i < watch.n; i++)
        for (int64_t k = 0; k < i; k++) {
            const given *a = &watch.given[i], *b = &watch.given[k];
            if (a->branch != b->branch && (a->written || b->written) && overlap(a, b))
                fail_msg("%s of %s and %s of %s, which may run beside it, share memory that %s writes", a->name, a->op,
                         b->name, b->op, a->written ? a->op : b->op);
        }
    watch.n = 0;
    watch.n_layers++;
}

static void branch(hh_backend *be, hh_branch b) {
    (void)be;
    if (b == HH_BRANCH_NONE ? watch.branch != HH_BRANCH_MAIN : watch.branch + 1 != b)
        fail_msg("branch %d behind branch %d", (int)b, (int)watch.branch);
    watch.branch = b;
    if (b == HH_BRANCH_NONE) compare_branches();
}

static int open_watched(void **state) {
    (void)state;
    hh_progress_silence(true);
    if (hh_cpu_open(&watch.cpu, 1, HH_PRECISION_F32, NULL, &err) != HH_OK) return 1;
    watch.inner = watch.cpu->ops;
#define HH_OP(name, arguments, names) watch.ops.name = watched_##name;
#include "ops/ops.def"
#undef HH_OP
    watch.cpu->ops = &watch.ops;
    watch.cpu->branch = branch;
    return 0;
}

static int close_watched(void **state) {
    (void)state;
    free(watch.given);
    watch.cpu->ops = watch.inner;
    hh_backend_close(watch.cpu);
    return 0;
}

static const char *const hybrids[] = {"hybrid_default", "hybrid_gate_everything", "hybrid_none_all",  "hybrid_norm",
                                      "hybrid_plain",   "hybrid_llama",           "hybrid_qwen2_bias"};
#define N_HYBRIDS (sizeof hybrids / sizeof *hybrids)

static void of_answers(void **state) {
    (void)state;
    watch.n_layers = 0;
    for (size_t i = 0; i < N_HYBRIDS; i++) {
        hh_free(whole_logits(watch.cpu, hybrids[i], HH_LOAD_STORED).x);
        hh_free(whole_session(watch.cpu, hybrids[i], HH_DTYPE_REAL).x);
        hh_free(whole_session(watch.cpu, hybrids[i], HH_DTYPE_Q8_0).x);
        hh_free(whole_answers(watch.cpu, hybrids[i]).x);
    }
    assert_true(watch.n_layers > 100);
}

static void of_gradients(void **state) {
    (void)state;
    double loss;
    watch.n_layers = 0;
    for (size_t i = 0; i < N_HYBRIDS; i++) hh_free(whole_gradients(watch.cpu, hybrids[i], &loss).x);
    assert_true(watch.n_layers > 10);
}

static void of_training(void **state) {
    (void)state;
    static const hh_stage *const stages[] = {&hh_stage_align, &hh_stage_distill};
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        watch.n_layers = 0;
        hh_free(whole_training(watch.cpu, stages[i], 2, 0, NULL).x);
        assert_true(watch.n_layers > 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_answers),
        cmocka_unit_test(of_gradients),
        cmocka_unit_test(of_training),
    };
    return cmocka_run_group_tests_name("branches share nothing", tests, open_watched, close_watched);
}
