/* Checkpoints of blocks: every weight within half a step of what it was, everything small untouched, the same logits
 * whichever way it is loaded, the same bytes again, and nothing left when it is interrupted. */
#include "support/support.h"
#include "support/zoo.h"

#include "base/filemap.h"
#include "base/progress.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static hh_backend *be;
static hh_error err;

static const char *const models[] = {"qwen3_gqa2",   "qwen3_gqa1_tied", "llama_gqa3_d64_tied",    "llama_biases",
                                     "hybrid_plain", "hybrid_default",  "hybrid_gate_everything", "hybrid_llama"};
enum { N_MODELS = sizeof models / sizeof *models };

/* The largest error of a number in a block whose largest magnitude is `top`: half a step of 127; of the 4-bit levels -8 to
 * 7 a whole step, at the end that has no level of its own; and the half-precision scale's own rounding. */
static double allowed(hh_dtype t, double top) {
    return t == HH_DTYPE_Q8_0 ? top / 127 * 0.5 + top * 0x1p-10 : top / 8 + top * 0x1p-9;
}

static void check_blocks(const hh_param *p, const hh_tensor was, hh_real *a, hh_real *b) {
    const int64_t n = hh_tensor_count(was);
    hh_dequantise(was.dtype, was.data, n, a);
    hh_dequantise(p->slot->dtype, p->slot->data, n, b);
    double sum = 0, square = 0;
    for (int64_t at = 0; at < n; at += 32) {
        double top = 0;
        for (int i = 0; i < 32; i++) top = fmax(top, fabs((double)a[at + i]));
        for (int i = 0; i < 32; i++) {
            const double error = fabs((double)a[at + i] - (double)b[at + i]);
            if (error > allowed(p->slot->dtype, top))
                fail_msg("%s: number %lld is %g away, of %g", p->name, (long long)(at + i), error, top);
            sum += error * error;
            square += (double)a[at + i] * (double)a[at + i];
        }
    }
    assert_true(sqrt(sum / square) < (p->slot->dtype == HH_DTYPE_Q8_0 ? 0.006 : 0.1));
}

/* Parameters of the quantised model beside those it was made of. */
static void check_weights(const hh_model *q, const hh_model *m, hh_dtype dtype) {
    int64_t most = 1, blocks = 0;
    for (int64_t i = 0; i < m->n_params; i++)
        if (hh_tensor_count(*m->param[i].slot) > most) most = hh_tensor_count(*m->param[i].slot);
    hh_real *a = hh_alloc((size_t)most * sizeof *a), *b = hh_alloc((size_t)most * sizeof *b);
    for (int64_t i = 0; i < m->n_params; i++) {
        const hh_param *p = &q->param[i];
        const hh_tensor was = *m->param[i].slot;
        const bool head = !strcmp(p->name, m->config.tied ? "model.embed_tokens.weight" : "lm_head.weight");
        if (!p->matrix || p->dim[1] % 32) { /* the zoo has some narrow ones */
            assert_int_equal(p->slot->dtype, HH_DTYPE_F32);
            assert_memory_equal(p->slot->data, was.data, hh_tensor_bytes(was));
            continue;
        }
        blocks++;
        assert_int_equal(p->slot->dtype, head ? HH_DTYPE_Q8_0 : dtype);
        check_blocks(p, was, a, b);
    }
    assert_true(blocks > 0);
    hh_free(a);
    hh_free(b);
}

static char *weights_of(const char *dir) {
    return hh_path_join(dir, "model.safetensors");
}

static void assert_same_file(const char *a, const char *b) {
    char *x = weights_of(a), *y = weights_of(b);
    hh_buf one = read_whole(x), two = read_whole(y);
    assert_int_equal(one.len, two.len);
    assert_memory_equal(one.data, two.data, one.len);
    hh_buf_release(&one);
    hh_buf_release(&two);
    hh_free(x);
    hh_free(y);
}

static void check_model(const char *name, hh_dtype dtype) {
    const char *dir = temp_path(hh_dtype_name(dtype)), *again = temp_path("again");
    hh_model *m = zoo_open(be, name, HH_LOAD_STORED), *q, *real;
    int64_t n;
    int32_t *ids = zoo_ids(zoo_case(name), &n);
    assert_ok(hh_model_save(m, dir, dtype, NULL, &err));
    assert_ok(hh_model_open(&q, be, dir, HH_LOAD_STORED, &err));
    assert_int_equal(q->config.blocks, dtype);
    check_weights(q, m, dtype);
    assert_ok(hh_model_open(&real, be, dir, HH_LOAD_REAL, &err)); /* as training has it */
    hh_real *got = zoo_logits(q, ids, n), *same = zoo_logits(real, ids, n), *before = zoo_logits(m, ids, n);
    double *want = hh_alloc((size_t)(n * m->config.vocab) * sizeof *want);
    for (int64_t i = 0; i < n * m->config.vocab; i++) want[i] = (double)same[i];
    assert_near(zoo_difference(got, want, n * m->config.vocab), 0, 1e-4);
    for (int64_t i = 0; i < n * m->config.vocab; i++) want[i] = (double)before[i];
    assert_true(zoo_difference(got, want, n * m->config.vocab) < (dtype == HH_DTYPE_Q8_0 ? 0.1 : 0.9));
    assert_ok(hh_model_save(m, again, dtype, NULL, &err));
    assert_same_file(dir, again);
    hh_free(want);
    hh_free(got);
    hh_free(same);
    hh_free(before);
    hh_free(ids);
    hh_model_close(real);
    hh_model_close(q);
    hh_model_close(m);
}

static void weights_are_near_and_small_ones_untouched(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        check_model(models[i], HH_DTYPE_Q8_0);
        check_model(models[i], HH_DTYPE_Q4_0);
    }
}

/* Blocks that are of the type already are copied: also where a hybrid's heads are moved by whole blocks. */
static void what_is_quantised_already_stays(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        const char *dir = temp_path("once"), *again = temp_path("twice");
        hh_model *m = zoo_open(be, models[i], HH_LOAD_STORED), *q;
        assert_ok(hh_model_save(m, dir, HH_DTYPE_Q8_0, NULL, &err));
        assert_ok(hh_model_open(&q, be, dir, HH_LOAD_STORED, &err));
        assert_ok(hh_model_save(q, again, HH_DTYPE_Q8_0, NULL, &err));
        if (!strstr(models[i], "hybrid")) assert_same_file(dir, again); /* a scale may move by a bit there */
        hh_model_close(q);
        assert_ok(hh_model_open(&q, be, again, HH_LOAD_STORED, &err));
        check_weights(q, m, HH_DTYPE_Q8_0);
        hh_model_close(q);
        hh_model_close(m);
    }
}

/* Widths that are no multiple of 32 leave a matrix as it is. */
static void rows_that_are_no_whole_blocks_stay(void **state) {
    (void)state;
    const char *dir = temp_path("narrow");
    hh_model *m = zoo_open(be, "gradient_default", HH_LOAD_STORED), *q;
    int64_t kept = 0;
    assert_ok(hh_model_save(m, dir, HH_DTYPE_Q4_0, NULL, &err));
    assert_ok(hh_model_open(&q, be, dir, HH_LOAD_STORED, &err));
    for (int64_t i = 0; i < m->n_params; i++) {
        if (!m->param[i].matrix || m->param[i].dim[1] % 32 == 0) continue;
        kept++;
        assert_int_equal(hh_saved_type(m, &m->param[i], HH_DTYPE_Q4_0), HH_DTYPE_F32);
        assert_memory_equal(q->param[i].slot->data, m->param[i].slot->data, hh_tensor_bytes(*m->param[i].slot));
    }
    assert_true(kept > 0);
    hh_model_close(q);
    hh_model_close(m);
}

static void a_file_cut_within_a_block_is_refused(void **state) {
    (void)state;
    const char *dir = temp_path("cut");
    hh_model *m = zoo_open(be, "qwen3_gqa2", HH_LOAD_STORED), *q;
    assert_ok(hh_model_save(m, dir, HH_DTYPE_Q8_0, NULL, &err));
    char *path = weights_of(dir);
    hh_buf file = read_whole(path);
    assert_ok(hh_file_write(path, file.data, file.len - 5, &err));
    assert_refused(hh_model_open(&q, be, dir, HH_LOAD_STORED, &err), HH_EFORMAT, path, "truncated");
    hh_buf_release(&file);
    hh_free(path);
    hh_model_close(m);
}

/* Ctrl-C ends quantising and leaves no file; what training saves is saved to the end. */
static void an_interrupted_one_leaves_nothing(void **state) {
    (void)state;
    const char *dir = temp_path("interrupted");
    hh_model *m = zoo_open(be, "qwen3_gqa2", HH_LOAD_STORED);
    char *path = weights_of(dir), *config = hh_path_join(dir, "config.json");
    hh_interrupt_install();
    raise(SIGINT);
    assert_refused(hh_model_save(m, dir, HH_DTYPE_Q8_0, NULL, &err), HH_ECANCELLED, "nothing has been written");
    assert_false(hh_file_exists(path));
    assert_false(hh_file_exists(config));
    assert_ok(hh_model_save(m, dir, HH_DTYPE_F32, NULL, &err));
    hh_interrupt_reset();
    assert_true(hh_file_exists(path) && hh_file_exists(config));
    hh_free(path);
    hh_free(config);
    hh_model_close(m);
}

static int open_all(void **state) {
    (void)state;
    hh_progress_silence(true);
    return hh_cpu_open(&be, 2, HH_PRECISION_F32, NULL, &err);
}

static int close_all(void **state) {
    (void)state;
    hh_backend_close(be);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_near_and_small_ones_untouched),
        cmocka_unit_test(what_is_quantised_already_stays),
        cmocka_unit_test(rows_that_are_no_whole_blocks_stay),
        cmocka_unit_test(a_file_cut_within_a_block_is_refused),
        cmocka_unit_test(an_interrupted_one_leaves_nothing),
    };
    return cmocka_run_group_tests_name("checkpoints of blocks", tests, open_all, close_all);
}
