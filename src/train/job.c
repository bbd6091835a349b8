/* The one training loop; see job.h. */
#include "train/job.h"

#include "base/filemap.h"
#include "base/progress.h"
#include "train/stage.h"
#include "train/state.h"
#include "train/trainlog.h"

#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

typedef struct loop {
    const hh_job *j;
    hh_trainer *t;
    hh_trainlog *log[HH_MAX_STUDENTS];
    char *state_path;
    int64_t saved; /* step of the state on disk; -1: none */
    hh_job_result result;
} loop;

static bool holds(const char *dir, const char *name) {
    char *path = hh_path_join(dir, name);
    bool there = hh_file_exists(path);
    hh_free(path);
    return there;
}

/* The one process that writes. */
static bool is_first(const loop *l) {
    return l->t->comm->rank == 0;
}

static hh_code save_models(const loop *l, hh_error *err) {
    const hh_job *j = l->j;
    for (int64_t i = 0; i < l->t->n_students && is_first(l); i++)
        HH_TRY(hh_model_save(l->t->student[i].model, j->student_dir[i], j->dtype, j->tokenizer_from, err));
    return HH_OK;
}

static hh_code save(loop *l, hh_error *err) {
    const hh_job *j = l->j;
    if (l->saved == l->t->step) return HH_OK;
    HH_TRY(hh_comm_agree(l->t->comm, save_models(l, err), err));
    HH_TRY(hh_state_write(l->t, j->settings, l->state_path, err));
    l->saved = l->t->step;
    return HH_OK;
}

/* A checkpoint without a log is not of a training run, and would be overwritten. */
static hh_code check_directories(loop *l, hh_error *err) {
    for (int64_t i = 0; i < l->t->n_students; i++) {
        const char *dir = l->j->student_dir[i];
        if (l->saved < 0 && holds(dir, "model.safetensors") && !holds(dir, "log.jsonl"))
            return hh_fail(err, HH_EINVAL,
                           "%s holds a checkpoint that no training run has written; name another directory", dir);
        HH_TRY(hh_make_directory(dir, err));
    }
    return HH_OK;
}

static hh_code open_logs(loop *l, hh_error *err) {
    for (int64_t i = 0; i < l->t->n_students; i++) {
        char *path = hh_path_join(l->j->student_dir[i], "log.jsonl");
        hh_code code = hh_trainlog_open(&l->log[i], path, l->t->step, err);
        hh_free(path);
        HH_TRY(code);
    }
    return HH_OK;
}

/* What a killed run was writing; the log's lock says that nobody writes here now. */
static void remove_unfinished_files(const char *dir) {
    char *pattern = hh_path_join(dir, "*.tmp-*");
    glob_t found;
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) unlink(found.gl_pathv[i]);
        globfree(&found);
    }
    hh_free(pattern);
}

static hh_code read_state(loop *l, hh_error *err) {
    HH_TRY(hh_make_directory(l->j->dir, err));
    l->state_path = hh_path_join(l->j->dir, "state.bin");
    if (!hh_file_exists(l->state_path)) return HH_OK;
    HH_TRY(hh_state_read(l->t, l->j->settings, l->state_path, err));
    l->saved = l->t->step;
    return HH_OK;
}

static hh_code check_same_step(loop *l, hh_error *err) {
    int64_t step = l->t->step;
    HH_TRY(hh_comm_take_first(l->t->comm, &step, sizeof step, err));
    if (step == l->t->step) return HH_OK;
    return hh_fail(err, HH_EIO,
                   "%s: process %" PRId64 " finds step %" PRId64 " there, the first one %" PRId64
                   "; they need one directory, on a file system that they share",
                   l->j->dir, l->t->comm->rank, l->t->step, step);
}

static hh_code open_directories(loop *l, hh_error *err) {
    HH_TRY(check_directories(l, err));
    HH_TRY(open_logs(l, err));
    remove_unfinished_files(l->j->dir);
    for (int64_t i = 0; i < l->t->n_students; i++) {
        remove_unfinished_files(l->j->student_dir[i]);
        if (!holds(l->j->student_dir[i], "model.safetensors")) l->saved = -1; /* taken away: to be written again */
    }
    return HH_OK;
}

static hh_code begin(loop *l, hh_error *err) {
    hh_comm *c = l->t->comm;
    HH_TRY(hh_comm_agree(c, read_state(l, err), err));
    HH_TRY(hh_comm_agree(c, check_same_step(l, err), err));
    l->result.first_step = l->t->step;
    HH_TRY(hh_comm_agree(c, is_first(l) ? open_directories(l, err) : HH_OK, err));
    return hh_comm_take_first(c, &l->saved, sizeof l->saved, err);
}

static void describe(const hh_trainer *t, double tokens_per_s, char *out, size_t size) {
    size_t n = 0;
    for (int64_t i = 0; i < t->n_students && n < size; i++) {
        int k = snprintf(out + n, size - n, "%sloss %.4g grad %.2g", i ? " | " : "", t->student[i].loss,
                         t->student[i].grad_norm);
        n += k > 0 ? (size_t)k : 0;
    }
    if (n < size) snprintf(out + n, size - n, ", %.0f tokens/s", tokens_per_s);
}

static hh_code log_step(loop *l, const hh_step_report *r, hh_error *err) {
    for (int64_t i = 0; i < l->t->n_students && is_first(l); i++)
        HH_TRY(hh_trainlog_add(l->log[i], r, &l->t->student[i], err));
    return HH_OK;
}

static hh_code after_step(loop *l, const hh_step_report *r, hh_error *err) {
    const hh_job *j = l->j;
    HH_TRY(hh_comm_agree(l->t->comm, log_step(l, r, err), err));
    l->result.n_tokens += r->n_tokens;
    if (j->on_step) j->on_step(j->context, r, l->t);
    bool due = j->save_every > 0 && l->t->step % j->save_every == 0;
    return due || l->t->step == l->t->o.schedule.steps ? save(l, err) : HH_OK;
}

static hh_code take_steps(loop *l, hh_progress *p, hh_error *err) {
    char note[sizeof p->note];
    while (l->t->step < l->t->o.schedule.steps) {
        hh_step_report r;
        HH_TRY(hh_trainer_step(l->t, &r, err));
        HH_TRY(after_step(l, &r, err));
        describe(l->t, (double)r.n_tokens / (r.seconds > 0 ? r.seconds : 1e-9), note, sizeof note);
        hh_progress_update(p, (double)l->t->step, note);
    }
    return HH_OK;
}

/* What is left behind when the loop ends early. */
static hh_code end_early(loop *l, hh_code code, hh_error *err) {
    if (code == HH_ECANCELLED) {
        HH_TRY(save(l, err));
        return hh_fail(err, HH_ECANCELLED,
                       "%s: stopped after %" PRId64 " of %" PRId64 " steps and saved in %s; the same command continues",
                       l->t->o.stage->name, l->t->step, l->t->o.schedule.steps, l->j->dir);
    }
    if (code != HH_ENONFINITE) return code;
    char why[sizeof err->text];
    snprintf(why, sizeof why, "%s", err->text);
    if (l->saved < 0) return hh_fail(err, code, "%.700s; nothing was saved before it; try a lower --lr", why);
    return hh_fail(err, code,
                   "%.700s; %.200s keeps the state after %" PRId64 " steps; try a lower --lr in a new directory", why,
                   l->j->dir, l->saved);
}

static hh_code run(loop *l, hh_error *err) {
    HH_TRY(begin(l, err));
    int64_t steps = l->t->o.schedule.steps;
    if (l->t->step == steps) return save(l, err);
    hh_progress p;
    hh_progress_begin(&p, l->t->o.stage->name, "steps", (double)steps);
    if (l->t->step) hh_progress_update(&p, (double)l->t->step, "continued");
    hh_code code = take_steps(l, &p, err);
    hh_progress_end(&p);
    return code == HH_OK ? HH_OK : end_early(l, code, err);
}

hh_code hh_job_run(const hh_job *j, hh_job_result *out, hh_error *err) {
    loop l = {.j = j, .t = j->trainer, .saved = -1};
    double start = hh_now();
    hh_code code = run(&l, err);
    for (int64_t i = 0; i < l.t->n_students; i++) hh_trainlog_close(l.log[i]);
    hh_free(l.state_path);
    l.result.steps = l.t->step;
    l.result.seconds = hh_now() - start;
    *out = l.result;
    return code;
}
