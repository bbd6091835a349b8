/* A run killed at any moment continues bit for bit. Every run is a process of its own, so that it can be killed. */
#include "base/progress.h"
#include "train/state.h"
#include "train/tiny.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 12 };

/* What a child is asked to do. */
typedef struct task {
    const char *dir;
    int64_t save_every;
    double lr;            /* 0: the usual */
    int64_t kill_at;      /* after this step's log line; -1: never */
    int64_t interrupt_at; /* Ctrl-C there; -1: never */
    int64_t poison_at;    /* a weight becomes NaN there; -1: never */
} task;

static task usual(const char *dir) {
    return (task){.dir = dir, .save_every = 5, .kill_at = -1, .interrupt_at = -1, .poison_at = -1};
}

static void on_step(void *context, const hh_step_report *r, const hh_trainer *t) {
    const task *k = context;
    if (r->step == k->kill_at) raise(SIGKILL);
    if (r->step == k->interrupt_at) raise(SIGINT);
    if (r->step == k->poison_at) *(hh_real *)t->student[0].model->w.final_norm.data = (hh_real)NAN;
}

static hh_code run_job(task *k, hh_error *e) {
    hh_backend *be;
    hh_model *student;
    hh_trainer *t;
    HH_TRY(hh_cpu_open(&be, 1, HH_PRECISION_F32, "reference", e));
    hh_model *teacher = tiny_teacher(be, 2);
    student = tiny_hybrid(teacher, 0);
    hh_trainer_options o = tiny_options(&hh_stage_distill, STEPS);
    if (k->lr > 0) o.schedule.peak = k->lr;
    HH_TRY(hh_trainer_new(&t, &o, teacher, &student, 1, e));
    char settings[64];
    snprintf(settings, sizeof settings, "stage distill\nlr %g\n", o.schedule.peak);
    hh_job j = {.trainer = t,
                .dir = k->dir,
                .student_dir = {k->dir},
                .dtype = HH_DTYPE_F32,
                .save_every = k->save_every,
                .settings = settings,
                .on_step = on_step,
                .context = k};
    hh_job_result r;
    hh_code code = hh_job_run(&j, &r, e);
    hh_trainer_free(t);
    hh_model_close(student);
    hh_model_close(teacher);
    hh_backend_close(be);
    return code;
}

/* Runs a task in a child, whose sentence, if any, is left in a file. Returns the child's id. */
static pid_t start(task *k) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child) return child;
    hh_error e = {0};
    hh_progress_silence(true);
    hh_interrupt_install();
    hh_code code = run_job(k, &e);
    FILE *f = fopen(temp_path("sentence"), "w");
    fputs(e.text, f);
    fclose(f);
    _exit((int)code);
}

static int finish(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int run(task k) {
    return finish(start(&k));
}

static void expect_sentence(const char *a, const char *b) {
    hh_buf text = read_whole(temp_path("sentence"));
    if (!strstr(text.data, a) || !strstr(text.data, b)) fail_msg("'%s' lacks '%s' or '%s'", text.data, a, b);
    hh_buf_release(&text);
}

static hh_buf read_in(const char *dir, const char *name) {
    char *path = hh_path_join(dir, name);
    hh_buf b = read_whole(path);
    hh_free(path);
    return b;
}

static void expect_same_file(const char *a, const char *b, const char *name) {
    hh_buf x = read_in(a, name), y = read_in(b, name);
    assert_int_equal(x.len, y.len);
    if (memcmp(x.data, y.data, x.len)) fail_msg("%s differs between %s and %s", name, a, b);
    hh_buf_release(&x);
    hh_buf_release(&y);
}

/* Losses of a log; every step stands there once, in order. */
static int64_t read_log(const char *dir, double loss[STEPS]) {
    hh_buf text = read_in(dir, "log.jsonl");
    int64_t n = 0;
    for (char *line = strtok(text.data, "\n"); line; line = strtok(NULL, "\n"), n++) {
        json_t *j = json_loads(line, 0, NULL);
        assert_non_null(j);
        assert_true(n < STEPS);
        assert_int_equal(json_integer_value(json_object_get(j, "step")), n);
        loss[n] = json_number_value(json_object_get(j, "loss"));
        assert_true(json_number_value(json_object_get(j, "grad_norm")) > 0);
        assert_true(json_number_value(json_object_get(j, "lr")) > 0);
        json_decref(j);
    }
    hh_buf_release(&text);
    return n;
}

static const char *uninterrupted(void) {
    static const char *dir;
    if (!dir) {
        dir = hh_strdup(temp_path("whole"));
        assert_int_equal(run(usual(dir)), HH_OK);
    }
    return dir;
}

static void expect_equal_to_uninterrupted(const char *dir) {
    double a[STEPS], b[STEPS];
    expect_same_file(uninterrupted(), dir, "model.safetensors");
    expect_same_file(uninterrupted(), dir, "state.bin");
    assert_int_equal(read_log(uninterrupted(), a), STEPS);
    assert_int_equal(read_log(dir, b), STEPS);
    assert_memory_equal(a, b, sizeof a);
}

static void test_killed_after_any_step(void **state) {
    (void)state;
    for (int64_t at = 0; at < STEPS; at++) {
        char name[32];
        snprintf(name, sizeof name, "killed-%d", (int)at);
        task k = usual(temp_path(name));
        k.kill_at = at;
        assert_int_equal(run(k), -SIGKILL);
        k.kill_at = -1;
        assert_int_equal(run(k), HH_OK);
        expect_equal_to_uninterrupted(k.dir);
    }
}

/* Killed from outside at moments that nobody chose, also while it saves, which it does after every step. */
static void test_killed_at_any_moment(void **state) {
    (void)state;
    task k = usual(temp_path("moments"));
    k.save_every = 1;
    hh_rng rng = hh_rng_seeded(5);
    for (int i = 0; i < 25; i++) {
        pid_t child = start(&k);
        usleep((useconds_t)hh_rng_below(&rng, 30000));
        kill(child, SIGKILL);
        int code = finish(child);
        assert_true(code == -SIGKILL || code == HH_OK);
    }
    assert_int_equal(run(k), HH_OK);
    expect_equal_to_uninterrupted(k.dir);
    hh_buf out = {0}; /* nothing half-written is left behind */
    run_line("ls $TMP/moments | grep tmp- | wc -l", 10, &out, NULL);
    assert_int_equal(atoi(out.data), 0);
    hh_buf_release(&out);
}

static void test_after_the_end_nothing_changes(void **state) {
    (void)state;
    const char *dir = uninterrupted(), *names[3] = {"model.safetensors", "state.bin", "log.jsonl"};
    hh_buf before[3];
    for (int i = 0; i < 3; i++) before[i] = read_in(dir, names[i]);
    assert_int_equal(run(usual(dir)), HH_OK);
    for (int i = 0; i < 3; i++) {
        hh_buf after = read_in(dir, names[i]);
        assert_int_equal(before[i].len, after.len);
        assert_memory_equal(before[i].data, after.data, after.len);
        hh_buf_release(&before[i]);
        hh_buf_release(&after);
    }
}

static void test_a_finished_checkpoint_that_was_removed_is_written_again(void **state) {
    (void)state;
    task k = usual(temp_path("removed"));
    assert_int_equal(run(k), HH_OK);
    char *path = hh_path_join(k.dir, "model.safetensors");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(run(k), HH_OK);
    expect_equal_to_uninterrupted(k.dir);
    hh_free(path);
}

static void test_interrupt_saves_and_continues(void **state) {
    (void)state;
    task k = usual(temp_path("interrupted"));
    k.interrupt_at = 6;
    assert_int_equal(run(k), HH_ECANCELLED);
    expect_sentence("after 7 of 12 steps", "the same command continues");
    double loss[STEPS];
    assert_int_equal(read_log(k.dir, loss), 7);
    k.interrupt_at = -1;
    assert_int_equal(run(k), HH_OK);
    expect_equal_to_uninterrupted(k.dir);
}

static void test_a_loss_that_is_not_finite_keeps_the_last_state(void **state) {
    (void)state;
    task k = usual(temp_path("poisoned"));
    k.poison_at = 6;
    assert_int_equal(run(k), HH_ENONFINITE);
    expect_sentence("step 7", "keeps the state after 5 steps");
    k.poison_at = -1;
    assert_int_equal(run(k), HH_OK);
    expect_equal_to_uninterrupted(k.dir);
}

static void test_other_settings_are_refused(void **state) {
    (void)state;
    task k = usual(uninterrupted());
    k.lr = 0.5;
    assert_int_equal(run(k), HH_EINVAL);
    expect_sentence("'lr 0.5'", "another directory");
}

static void test_a_foreign_checkpoint_is_not_overwritten(void **state) {
    (void)state;
    char *dir = hh_strdup(temp_path("foreign")), *path = hh_path_join(dir, "model.safetensors");
    assert_ok(hh_make_directory(dir, &err));
    assert_ok(hh_file_write(path, "precious", 8, &err));
    assert_int_equal(run(usual(dir)), HH_EINVAL);
    expect_sentence("foreign", "no training run has written");
    hh_free(path);
    hh_free(dir);
}

static void test_damaged_states_are_refused(void **state) {
    (void)state;
    hh_buf whole = read_in(uninterrupted(), "state.bin");
    char *dir = hh_strdup(temp_path("damaged")), *path = hh_path_join(dir, "state.bin");
    assert_ok(hh_make_directory(dir, &err));
    size_t cuts[] = {0, 7, 40, 60, whole.len / 2, whole.len - 1};
    for (int i = 0; i < 6; i++) {
        assert_ok(hh_file_write(path, whole.data, cuts[i], &err));
        assert_int_equal(run(usual(dir)), HH_EFORMAT);
        expect_sentence("state.bin", "");
    }
    size_t bytes[] = {0, 9, 20, 26, whole.len / 3, whole.len - 4};
    for (int i = 0; i < 6; i++) {
        whole.data[bytes[i]] ^= 16;
        assert_ok(hh_file_write(path, whole.data, whole.len, &err));
        int code = run(usual(dir));
        if (code != HH_EFORMAT && code != HH_EINVAL) fail_msg("a flipped bit in byte %zu gave %d", bytes[i], code);
        expect_sentence("state.bin", "");
        whole.data[bytes[i]] ^= 16;
    }
    hh_free(path);
    hh_free(dir);
    hh_buf_release(&whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_after_any_step),
        cmocka_unit_test(test_killed_at_any_moment),
        cmocka_unit_test(test_after_the_end_nothing_changes),
        cmocka_unit_test(test_a_finished_checkpoint_that_was_removed_is_written_again),
        cmocka_unit_test(test_interrupt_saves_and_continues),
        cmocka_unit_test(test_a_loss_that_is_not_finite_keeps_the_last_state),
        cmocka_unit_test(test_other_settings_are_refused),
        cmocka_unit_test(test_a_foreign_checkpoint_is_not_overwritten),
        cmocka_unit_test(test_damaged_states_are_refused),
    };
    return cmocka_run_group_tests_name("train/resume", tests, NULL, NULL);
}
