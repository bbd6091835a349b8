/* Several processes do what one does. The program starts itself under mpirun, with jobs as its words: "slices" and
 * "gpu-slices", or "STAGE:DIR:key=n,..." for a training run of the tiny models, so that one start serves several tests. */
#include "base/progress.h"
#include "train/tiny.h"

#include "tensor/comm.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>

enum { STEPS = 10 };

static const char *self; /* path of this program */

/* -- the work of a rank -- */

/* Sums of these depend on their order. */
static hh_real number(int64_t rank, int64_t i) {
    return (hh_real)((i * 2654435761 + rank * 40503) % 1000003) / 997 - 500;
}

static hh_real sum_of_all(int64_t size, int64_t i) {
    hh_real sum = number(0, i);
    for (int64_t r = 1; r < size; r++) sum += number(r, i);
    return sum;
}

static void check_sums(const hh_real *x, int64_t lo, int64_t hi, int64_t size) {
    for (int64_t i = lo; i < hi; i++)
        if (x[i] != sum_of_all(size, i)) {
            fprintf(stderr, "number %d of %d is %g\n", (int)i, (int)hi, (double)x[i]);
            fail();
        }
}

/* Numbers where the backend has them, with one behind them that must stay. */
static void check_slices(hh_comm *c, hh_backend *be, int64_t n) {
    size_t bytes = (size_t)(n + 1) * sizeof(hh_real);
    hh_arena a;
    hh_real *x = hh_alloc(bytes);
    int64_t lo = hh_comm_cut(n, c->rank, c->size), hi = hh_comm_cut(n, c->rank + 1, c->size);
    assert_ok(be->arena_init(be, &a, "numbers", bytes, &err));
    hh_tensor there = hh_tensor_1d(a.base, HH_DTYPE_REAL, n);
    for (int64_t i = 0; i < n; i++) x[i] = number(c->rank, i);
    x[n] = 5;
    be->to_device(be, there.data, x, bytes);
    assert_ok(hh_comm_reduce_scatter(c, there, &err));
    be->to_host(be, x, there.data, bytes);
    check_sums(x, lo, hi, c->size);
    for (int64_t i = 0; i < n; i++)
        if (i < lo || i >= hi) x[i] = (hh_real)NAN;
    be->to_device(be, there.data, x, bytes);
    assert_ok(hh_comm_all_gather(c, there, &err));
    be->to_host(be, x, there.data, bytes);
    assert_ok(be->sync(be, &err));
    check_sums(x, 0, n, c->size);
    assert_true(x[n] == 5);
    be->arena_release(be, &a);
    hh_free(x);
}

static void check_all_slices(hh_comm *c, hh_backend *be) {
    const int64_t counts[] = {0, 1, 17, 1000, 4100003};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) check_slices(c, be, counts[i]);
    if (!be->host_memory) check_slices(c, be, 40000003);
}

static void check_messages(hh_comm *c) {
    double sum[2] = {0.1 * (double)(c->rank + 1), 1}, expected = 0;
    for (int64_t r = 0; r < c->size; r++) expected += 0.1 * (double)(r + 1);
    assert_ok(hh_comm_sum(c, sum, 2, &err));
    assert_true(sum[0] == expected && sum[1] == (double)c->size);
    int64_t x = 40 + c->rank, got = -1;
    assert_ok(hh_comm_take_first(c, &x, sizeof x, &err));
    assert_int_equal(x, 40);
    x = 70 + c->rank;
    for (int64_t r = 0; r < c->size; r++) {
        assert_ok(hh_comm_to_first(c, r, &got, &x, sizeof x, &err));
        if (c->rank == 0) assert_int_equal(got, 70 + r);
    }
}

/* The first failure that is more than a wish to stop goes to all. */
static void check_agreement(hh_comm *c) {
    hh_error e = {0};
    assert_int_equal(hh_comm_agree(c, HH_OK, &e), HH_OK);
    hh_code mine = c->rank == 0 ? hh_fail(&e, HH_ECANCELLED, "stop") : HH_OK;
    assert_int_equal(hh_comm_agree(c, mine, &e), HH_ECANCELLED);
    assert_string_equal(e.text, "stop");
    mine = c->rank == 0 ? HH_ECANCELLED : hh_fail(&e, HH_EIO, "rank %d", (int)c->rank);
    assert_int_equal(hh_comm_agree(c, mine, &e), HH_EIO);
    assert_string_equal(e.text, "rank 1");
}

/* What a training run is asked to do; -1: never. */
typedef struct task {
    char dir[200];
    const hh_stage *stage;
    int64_t rank; /* that does what follows */
    int64_t kill_at, interrupt_at, poison_at, refuse_at;
    int64_t rows, me;
} task;

static void on_step(void *context, const hh_step_report *r, const hh_trainer *t) {
    const task *k = context;
    if (k->me != k->rank) return;
    if (r->step == k->kill_at) raise(SIGKILL);
    if (r->step == k->interrupt_at) raise(SIGINT);
    if (r->step == k->poison_at) *(hh_real *)t->student[0].model->w.final_norm.data = (hh_real)NAN;
}

static hh_code make_sequence(void *context, int64_t step, int64_t row, int64_t n_rows, int64_t length, int32_t *ids,
                             uint8_t *flags, hh_error *e) {
    const task *k = context;
    if (k->me == k->rank && step == k->refuse_at) return hh_fail(e, HH_EIO, "the disk of process %d", (int)k->me);
    return tiny_sequence(NULL, step, row, n_rows, length, ids, flags, e);
}

static hh_code train(task *k, hh_comm *c, hh_error *e) {
    static const int64_t lengths[] = {TINY_LENGTH, TINY_LENGTH / 2};
    hh_backend *be;
    hh_trainer *t;
    assert_ok(hh_cpu_open(&be, 1, HH_PRECISION_F32, "reference", &err));
    hh_model *teacher = tiny_teacher(be, 2), *student = tiny_hybrid(teacher, 0);
    hh_trainer_options o = tiny_options(k->stage, STEPS);
    o.data.sequences = k->rows;
    o.data.length = lengths;
    o.data.n_lengths = 2;
    o.data.fill = make_sequence;
    o.data.context = k;
    o.comm = c;
    hh_code code = hh_trainer_new(&t, &o, teacher, &student, 1, e);
    if (code == HH_OK) {
        hh_job_result r;
        hh_job j = {.trainer = t,
                    .dir = k->dir,
                    .student_dir = {k->dir},
                    .dtype = HH_DTYPE_F32,
                    .save_every = 4,
                    .settings = "tiny 1\n",
                    .on_step = on_step,
                    .context = k};
        code = hh_job_run(&j, &r, e);
        hh_trainer_free(t);
    }
    hh_model_close(student);
    hh_model_close(teacher);
    hh_backend_close(be);
    hh_interrupt_reset();
    return code;
}

static int64_t value_of(const char *text, const char *key, int64_t otherwise) {
    const char *at = strstr(text, key);
    return at ? strtoll(at + strlen(key) + 1, NULL, 10) : otherwise;
}

/* "distill:DIR:kill=3,rank=1". Every rank leaves its sentence in DIR.RANK. */
static void do_job(const char *word, hh_comm *c) {
    if (strstr(word, "slices")) {
        hh_backend *be;
        if (strstr(word, "gpu")) {
            assert_ok(hh_cuda_open(&be, (int)c->local_rank, HH_PRECISION_AUTO, &err));
            assert_ok(hh_cuda_comm(c, be, &err));
        } else
            assert_ok(hh_cpu_open(&be, 1, HH_PRECISION_F32, "reference", &err));
        check_all_slices(c, be);
        check_messages(c);
        check_agreement(c);
        if (!be->host_memory) hh_comm_close(c); /* before its card */
        hh_backend_close(be);
        return;
    }
    task k = {.me = c->rank};
    char stage[16], path[256];
    assert_int_equal(sscanf(word, "%15[^:]:%199[^:]", stage, k.dir), 2);
    k.stage = hh_stage_find(stage);
    k.rank = value_of(word, "rank", 0);
    k.kill_at = value_of(word, "kill", -1);
    k.interrupt_at = value_of(word, "interrupt", -1);
    k.poison_at = value_of(word, "poison", -1);
    k.refuse_at = value_of(word, "refuse", -1);
    k.rows = value_of(word, "rows", TINY_ROWS);
    hh_error e = {0};
    train(&k, c, &e);
    snprintf(path, sizeof path, "%s.%d", k.dir, (int)c->rank);
    assert_ok(hh_file_write(path, e.text, strlen(e.text), &err));
}

static int be_a_rank(int n, char **words) {
    hh_comm c;
    hh_progress_silence(true);
    hh_interrupt_install();
    assert_ok(hh_comm_open(&c, &err));
    for (int i = 0; i < n; i++) do_job(words[i], &c);
    hh_comm_close(&c);
    return 0;
}

/* -- the tests -- */

/* Runs jobs on n processes; without mpirun on one. $T is the temporary folder. */
static int start(int n, const char *jobs, hh_buf *errors) {
    char line[2000], launcher[100] = "";
    if (n > 1) snprintf(launcher, sizeof launcher, "mpirun --oversubscribe --allow-run-as-root -n %d ", n);
    snprintf(line, sizeof line, "T=$TMP; %s%s %s", launcher, self, jobs);
    return run_line(line, 120, NULL, errors);
}

static void finish(int n, const char *jobs) {
    hh_buf errors = {0};
    int code = start(n, jobs, &errors);
    if (code) fail_msg("%d processes, %s: status %d: %s", n, jobs, code, errors.data ? errors.data : "");
    hh_buf_release(&errors);
}

static hh_buf read_in(const char *dir, const char *name) {
    char *path = hh_path_join(temp_path(dir), name);
    hh_buf b = read_whole(path);
    hh_free(path);
    return b;
}

static void expect_same_bytes(const char *a, const char *b) {
    const char *names[] = {"state.bin", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        hh_buf x = read_in(a, names[i]), y = read_in(b, names[i]);
        if (x.len != y.len || memcmp(x.data, y.data, x.len)) fail_msg("%s differs between %s and %s", names[i], a, b);
        hh_buf_release(&x);
        hh_buf_release(&y);
    }
}

/* Losses and norms of a whole log; every step stands there once, in order. */
static void read_log(const char *dir, double loss[STEPS], double norm[STEPS]) {
    hh_buf text = read_in(dir, "log.jsonl");
    int64_t n = 0;
    for (char *line = strtok(text.data, "\n"); line; line = strtok(NULL, "\n"), n++) {
        json_t *j = json_loads(line, 0, NULL);
        assert_true(j && n < STEPS);
        assert_int_equal(json_integer_value(json_object_get(j, "step")), n);
        loss[n] = json_number_value(json_object_get(j, "loss"));
        norm[n] = json_number_value(json_object_get(j, "grad_norm"));
        json_decref(j);
    }
    assert_int_equal(n, STEPS);
    hh_buf_release(&text);
}

/* The same within the rounding of sums that are grouped otherwise. */
static void expect_same_curve(const char *a, const char *b) {
    double x[2][STEPS], y[2][STEPS];
    read_log(a, x[0], x[1]);
    read_log(b, y[0], y[1]);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < STEPS; i++) assert_near(x[k][i], y[k][i], 1e-4 * x[k][i]);
}

static void expect_sentence(const char *dir, int n, const char *words) {
    for (int r = 0; r < n; r++) {
        char path[64];
        snprintf(path, sizeof path, "%s.%d", dir, r);
        hh_buf text = read_whole(temp_path(path));
        if (!text.data || !strstr(text.data, words))
            fail_msg("process %d says '%s', not '%s'", r, text.data ? text.data : "", words);
        hh_buf_release(&text);
    }
}

/* Whole runs of 1, 2 and 4 processes, those of several twice. */
static int make_whole_runs(void **state) {
    (void)state;
    finish(1, "distill:$T/one align:$T/align1");
    finish(2, "distill:$T/two distill:$T/two-again");
    finish(4, "distill:$T/four distill:$T/four-again align:$T/align4");
    return 0;
}

static void test_sums_are_taken_in_the_order_of_the_ranks(void **state) {
    (void)state;
    finish(2, "slices");
    finish(3, "slices");
}

static void test_sums_between_two_gpus(void **state) {
    (void)state;
    hh_backend *be;
    if (hh_cuda_open(&be, 1, HH_PRECISION_AUTO, &err) != HH_OK) {
        print_message("%s\n", err.text);
        skip();
    }
    hh_backend_close(be);
    finish(2, "gpu-slices");
}

static void test_the_loss_curve_is_that_of_one_process(void **state) {
    (void)state;
    expect_same_curve("one", "two");
    expect_same_curve("one", "four");
    expect_same_curve("align1", "align4");
}

static void test_two_runs_give_the_same_bits(void **state) {
    (void)state;
    expect_same_bytes("two", "two-again");
    expect_same_bytes("four", "four-again");
}

static void test_another_number_of_processes_continues(void **state) {
    (void)state;
    finish(1, "distill:$T/1to2:interrupt=4");
    finish(4, "distill:$T/4to2:interrupt=2,rank=3");
    finish(2, "distill:$T/2to1:interrupt=5,rank=1 distill:$T/2to2:interrupt=6 distill:$T/1to2 distill:$T/4to2 "
              "distill:$T/2to2");
    finish(1, "distill:$T/2to1");
    expect_same_curve("one", "2to1");
    expect_same_curve("one", "1to2");
    expect_same_curve("one", "4to2");
    expect_same_bytes("two", "2to2");
}

static void test_a_process_that_dies_ends_all(void **state) {
    (void)state;
    hh_buf errors = {0};
    double began = hh_now();
    assert_int_not_equal(start(2, "distill:$T/dead:kill=6,rank=1", &errors), 0);
    assert_true(hh_now() - began < 60);
    assert_non_null(errors.data);
    assert_non_null(strstr(errors.data, "signal 9"));
    hh_buf_release(&errors);
    finish(2, "distill:$T/dead");
    expect_same_bytes("two", "dead");
}

static void test_all_fail_with_one_sentence(void **state) {
    (void)state;
    finish(2, "distill:$T/nan:poison=3,rank=1 distill:$T/disk:refuse=2,rank=1 distill:$T/few:rows=1 "
              "distill:$T/stop:interrupt=3,rank=1");
    expect_sentence("nan", 2, "the loss is");
    expect_sentence("nan", 2, "at step 4");
    expect_sentence("disk", 2, "the disk of process 1");
    expect_sentence("few", 2, "cannot be shared by 2 processes");
    expect_sentence("stop", 2, "stopped after 4 of 10 steps and saved");
}

static void test_the_program(void **state) {
    (void)state;
    hh_buf out = {0}, errors = {0};
    const char *line =
        "go() { mpirun --oversubscribe --allow-run-as-root -n 2 $HYDRAHEAD \"$@\"; }; "
        "mkdir $TMP/raw && cp models/nano/config.json models/nano/tokenizer.json $TMP/raw/ && "
        "go train $TMP/raw --stage pretrain --data models/nano/text_valid.txt.gz --length 64 --batch 4 --steps 2 "
        "--threads 1 --json --out $TMP/trained && ! go inspect nano";
    int code = run_line(line, 120, &out, &errors);
    if (code) fail_msg("status %d: %s", code, errors.data ? errors.data : "");
    assert_non_null(strstr(out.data, "\"steps\": 2"));
    assert_null(strchr(strchr(out.data, '\n') + 1, '{')); /* one process reports */
    assert_non_null(strstr(errors.data, "inspect is work for one process"));
    hh_buf_release(&out);
    hh_buf_release(&errors);
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc > 1) return be_a_rank(argc - 1, argv + 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_taken_in_the_order_of_the_ranks),
        cmocka_unit_test(test_sums_between_two_gpus),
        cmocka_unit_test(test_the_loss_curve_is_that_of_one_process),
        cmocka_unit_test(test_two_runs_give_the_same_bits),
        cmocka_unit_test(test_another_number_of_processes_continues),
        cmocka_unit_test(test_a_process_that_dies_ends_all),
        cmocka_unit_test(test_all_fail_with_one_sentence),
        cmocka_unit_test(test_the_program),
    };
    return cmocka_run_group_tests_name("comm/processes", tests, make_whole_runs, NULL);
}
