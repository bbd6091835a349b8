/* Several sequences at once: each is answered what a session of its own answers, on memory that the CPU cannot read too;
 * what does not fit is refused. */
#include "support/mock.h"
#include "support/support.h"
#include "support/zoo.h"

#include "session/many.h"

#include <string.h>

enum { N = 5, CONTEXT = 60, MOST_NEW = 40 };

static hh_error err;
static int32_t *ids;
static int64_t n_ids;

typedef struct made {
    int32_t id[MOST_NEW];
    int64_t n, stop_after; /* 0: never */
} made;

static bool take(void *context, int32_t id) {
    made *m = context;
    m->id[m->n++] = id;
    return m->n != m->stop_after;
}

/* Prompts of different lengths, some from the middle of the text; one is stopped from outside, one may make nothing. */
static void fill(hh_request *r, made *m) {
    static const int64_t length[N] = {3, 55, 20, 1, 33}, most[N] = {12, 40, 9, 0, 20};
    for (int i = 0; i < N; i++) {
        m[i] = (made){.stop_after = i == 2 ? 4 : 0};
        r[i] = (hh_request){.ids = ids + 2 * i, .n = length[i], .max_new = most[i], .on_token = take, .context = &m[i]};
    }
}

static void check(hh_backend *be, const char *name, int32_t end_id) {
    hh_model *m = zoo_open(be, name, HH_LOAD_STORED);
    hh_request r[N];
    made got[N], want[N];
    hh_many *many;
    hh_session *s;
    assert_ok(hh_many_new(&many, m, N, CONTEXT, HH_DTYPE_REAL, &err));
    for (int time = 0; time < 2; time++) { /* the second time all caches have been used */
        fill(r, got);
        assert_ok(hh_many_answer(many, r, N, &end_id, 1, &err));
    }
    fill(r, want);
    assert_ok(hh_session_new(&s, m, &(hh_session_options){.context = CONTEXT, .kv_dtype = HH_DTYPE_REAL}, &err));
    for (int i = 0; i < N; i++) {
        hh_rng rng = hh_rng_seeded(0);
        int64_t n_new = 0;
        hh_session_reset(s);
        assert_ok(hh_session_eval(s, r[i].ids, r[i].n, &err));
        assert_ok(hh_session_generate(s, r[i].max_new, &end_id, 1, &(hh_sampling){.top_p = 1}, &rng, take, &want[i],
                                      &n_new, &err));
        assert_int_equal(got[i].n, want[i].n);
        assert_memory_equal(got[i].id, want[i].id, (size_t)want[i].n * sizeof *want[i].id);
    }
    assert_int_equal(want[1].n, CONTEXT - 55 + 1); /* the context was full */
    hh_session_free(s);
    hh_many_free(many);
    hh_model_close(m);
}

static void answers_are_those_of_sessions(void **unused) {
    (void)unused;
    hh_backend *cpu, *far;
    assert_ok(hh_cpu_open(&cpu, 2, HH_PRECISION_F32, NULL, &err));
    assert_ok(mock_open(&far, 2, HH_PRECISION_F32, NULL, &err));
    check(cpu, "qwen3_gqa2", -1);
    check(cpu, "hybrid_gate_everything", -1);
    check(far, "hybrid_default", -1);
    hh_backend_close(cpu);
    hh_backend_close(far);
}

static void what_does_not_fit_is_refused(void **unused) {
    (void)unused;
    hh_backend *be = zoo_backend();
    hh_model *m = zoo_open(be, "qwen3_gqa2", HH_LOAD_STORED);
    hh_many *many;
    made got = {0};
    const int32_t bad[] = {1, 97};
    assert_ok(hh_many_new(&many, m, 2, 10, HH_DTYPE_REAL, &err));
    hh_request r = {.ids = ids, .n = 11, .max_new = 1, .on_token = take, .context = &got};
    assert_refused(hh_many_answer(many, &r, 1, NULL, 0, &err), HH_EINVAL, "11", "10");
    r.ids = bad, r.n = 2;
    assert_refused(hh_many_answer(many, &r, 1, NULL, 0, &err), HH_EINVAL, "97");
    assert_int_equal(got.n, 0);
    hh_many_free(many);
    hh_model_close(m);
    hh_backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_sessions),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    ids = zoo_ids(zoo_case("hybrid_default"), &n_ids);
    int failed = cmocka_run_group_tests_name("many sequences", tests, NULL, NULL);
    hh_free(ids);
    return failed;
}
