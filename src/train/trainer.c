/* The optimizer step; see trainer.h. */
#include "train/trainer.h"

#include "base/env.h"
#include "base/filemap.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "tensor/mirror.h"
#include "train/stage.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const hh_stage *hh_stage_find(const char *name) {
    static const hh_stage *const all[] = {&hh_stage_pretrain, &hh_stage_align, &hh_stage_distill, &hh_stage_extend};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strcmp(all[i]->name, name)) return all[i];
    return NULL;
}

hh_trainer_options hh_trainer_defaults(const hh_stage *stage, int64_t steps) {
    int64_t warmup = stage->warmup < steps / 10 ? stage->warmup : steps / 10;
    return (hh_trainer_options){
        .stage = stage,
        .data = {.background_weight = 1},
        .schedule = {.cosine = stage->final_share < 1,
                     .peak = stage->lr,
                     .final = stage->lr * stage->final_share,
                     .warmup = warmup,
                     .steps = steps},
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-8,
        .weight_decay = stage->weight_decay,
        .clip = 1,
        .recorded_tokens = 16384,
    };
}

static hh_code check_student(const hh_trainer_options *o, const hh_model *teacher, const hh_model *m, hh_error *err) {
    const hh_config *s = &m->config;
    const char *stage = o->stage->name;
    HH_ASSERT(m->flat.data && m->flat.dtype == HH_DTYPE_REAL);
    if (o->stage->mixers_only) {
        int64_t hybrid = 0;
        for (int64_t l = 0; l < s->n_layers; l++) hybrid += !m->w.layer[l].dense;
        if (!hybrid)
            return hh_fail(err, HH_EINVAL, "%s: %s has no hybrid layer to train; make one with `hydrahead convert`",
                           stage, m->path);
    }
    if (!teacher) return HH_OK;
    const hh_config *t = &teacher->config;
    if (s->vocab != t->vocab)
        return hh_fail(err, HH_EINVAL, "%s: the student has %" PRId64 " tokens, the teacher %" PRId64, stage, s->vocab,
                       t->vocab);
    if (o->stage->mixers_only && (s->n_layers != t->n_layers || s->width != t->width))
        return hh_fail(err, HH_EINVAL,
                       "%s: the student has %" PRId64 " layers of width %" PRId64 ", the teacher %" PRId64
                       " of %" PRId64,
                       stage, s->n_layers, s->width, t->n_layers, t->width);
    return HH_OK;
}

static hh_code check_options(const hh_trainer_options *o, const hh_model *teacher, int64_t n_students, hh_error *err) {
    const hh_schedule *s = &o->schedule;
    if (n_students < 1 || n_students > HH_MAX_STUDENTS)
        return hh_fail(err, HH_EINVAL, "%" PRId64 " students cannot be trained at once; 1 to %d can", n_students,
                       HH_MAX_STUDENTS);
    if (o->stage->needs_teacher && !teacher)
        return hh_fail(err, HH_EINVAL, "%s learns from a teacher; name one with --teacher", o->stage->name);
    if (!(s->peak > 0) || !isfinite(s->peak) || !(s->final >= 0) || s->warmup < 0 || s->steps < 1)
        return hh_fail(err, HH_EINVAL, "a learning rate from %g to %g over %" PRId64 " steps makes no sense", s->peak,
                       s->final, s->steps);
    if (!(o->weight_decay >= 0) || !(o->clip >= 0) || !(o->ce_weight >= 0))
        return hh_fail(err, HH_EINVAL, "weight decay %g, clip %g and cross-entropy weight %g must not be negative",
                       o->weight_decay, o->clip, o->ce_weight);
    if (o->comm && o->data.sequences < o->comm->size)
        return hh_fail(err, HH_EINVAL,
                       "a step of %" PRId64 " sequences cannot be shared by %" PRId64
                       " processes; raise --batch, or start fewer",
                       o->data.sequences, o->comm->size);
    double w = o->data.background_weight;
    if (!o->stage->needs_teacher && w != 0 && w != 1)
        return hh_fail(err, HH_EINVAL, "%s: tokens that answer nothing count in full or not at all, not %g",
                       o->stage->name, w);
    return HH_OK;
}

/* Neighbouring parameters that train become one range; alignment gaps between them hold zeros, which stay zero. */
static void find_ranges(hh_student *s, bool mixers_only) {
    const hh_model *m = s->model;
    s->range = hh_alloc((size_t)m->n_params * sizeof *s->range);
    bool open = false;
    for (int64_t i = 0; i < m->n_params; i++) {
        const hh_param *p = &m->param[i];
        if (mixers_only && !p->mixer) {
            open = false;
            continue;
        }
        int64_t at = (const hh_real *)p->slot->data - (const hh_real *)m->flat.data,
                end = at + hh_tensor_count(*p->slot);
        HH_ASSERT(at >= 0 && end <= hh_tensor_count(m->flat));
        hh_trained_range *r = s->n_ranges ? &s->range[s->n_ranges - 1] : NULL;
        HH_ASSERT(!r || at >= r->at + r->n); /* the list ascends in memory */
        if (open)
            r->n = end - r->at;
        else
            s->range[s->n_ranges++] = (hh_trained_range){.at = at, .n = end - at};
        open = true;
    }
}

static void cut_ranges(hh_student *s, const hh_comm *c) {
    for (int64_t i = 0; i < s->n_ranges; i++) {
        hh_trained_range *r = &s->range[i];
        r->first = s->n_trained;
        r->own = hh_comm_cut(r->n, c->rank, c->size);
        r->n_own = hh_comm_cut(r->n, c->rank + 1, c->size) - r->own;
        r->moment = s->n_own;
        s->n_trained += r->n;
        s->n_own += r->n_own;
    }
}

static hh_run_mode run_mode(const hh_stage *stage) {
    return stage->mixers_only ? HH_RUN_ATTENTION : HH_RUN_TRAINING;
}

/* Students work one after another: one arena for what a forward leaves to its backward. */
static hh_code init_activations(hh_trainer *t, hh_model *const *student, int64_t max_spans, hh_error *err) {
    size_t most = 0;
    for (int64_t i = 0; i < t->n_students; i++) {
        size_t bytes = hh_run_activation_bytes(&student[i]->config, t->be->activation, t->o.data.micro_tokens,
                                               max_spans, run_mode(t->o.stage));
        if (bytes > most) most = bytes;
    }
    return t->be->arena_init(t->be, &t->activations, "step", most, err);
}

static hh_code init_student(hh_student *s, hh_trainer *t, hh_model *model, int64_t max_spans, hh_error *err) {
    const hh_trainer_options *o = &t->o;
    *s = (hh_student){.model = model};
    find_ranges(s, o->stage->mixers_only);
    cut_ranges(s, t->comm);
    HH_TRY(hh_run_new_in(&s->run, model, o->data.micro_tokens, max_spans, run_mode(o->stage), &t->activations, err));
    HH_TRY(hh_gradients_new(&s->gradients, model, err));
    size_t bytes = 2 * ((size_t)s->n_own * sizeof(hh_real) + HH_ARENA_ALIGN);
    HH_TRY(t->be->arena_init(t->be, &s->arena, "moments", bytes, err));
    s->m = hh_tensor_place_1d(&s->arena, HH_DTYPE_REAL, s->n_own);
    s->v = hh_tensor_place_1d(&s->arena, HH_DTYPE_REAL, s->n_own);
    t->be->ops->fill(t->be, s->m, 0);
    t->be->ops->fill(t->be, s->v, 0);
    return HH_OK;
}

static void place_buffers(hh_trainer *t, int64_t width, hh_dtype activation, hh_arena *a) {
    int64_t n = t->o.data.micro_tokens;
    t->nll = hh_tensor_place_1d(a, HH_DTYPE_REAL, n * t->n_students);
    t->kl = hh_tensor_place_1d(a, HH_DTYPE_REAL, n * t->n_students);
    t->mse = hh_tensor_place_1d(a, HH_DTYPE_REAL, t->n_students);
    t->dx = hh_tensor_place_2d(a, activation, n, width);
    if (!t->o.stage->mixers_only) return;
    t->stream = hh_tensor_place_2d(a, activation, n, width);
    t->out = hh_tensor_place_2d(a, activation, n, width);
}

static size_t count_buffers(hh_trainer *t, int64_t width, hh_dtype activation) {
    hh_arena count;
    hh_arena_init_counting(&count, "step");
    place_buffers(t, width, activation, &count);
    return count.used;
}

/* Numbers of a configuration's parameters that train. */
static size_t count_trained(const hh_config *c, bool mixers_only) {
    hh_weights w = {.layer = hh_alloc((size_t)c->n_layers * sizeof *w.layer)};
    const int64_t n = hh_weights_count(c);
    hh_param *param = hh_alloc((size_t)n * sizeof *param);
    size_t sum = 0;
    hh_weights_list(c, &w, param);
    for (int64_t i = 0; i < n; i++)
        if (!mixers_only || param[i].mixer) sum += (size_t)(param[i].dim[0] * param[i].dim[1]);
    hh_free(param);
    hh_free(w.layer);
    return sum;
}

hh_trainer_sizes hh_trainer_measure(const hh_trainer_options *o, const hh_backend *be, const hh_config *teacher,
                                    const hh_config *student) {
    hh_trainer t = {.o = *o, .n_students = 1};
    const int64_t n = o->data.micro_tokens, spans = hh_trainset_max_spans(&o->data);
    const size_t trained = count_trained(student, o->stage->mixers_only) * sizeof(hh_real);
    return (hh_trainer_sizes){.gradients = be->host_memory ? trained : count_trained(student, false) * sizeof(hh_real),
                              .moments = 2 * trained,
                              .activations = hh_run_bytes(student, be->activation, n, spans, run_mode(o->stage)) +
                                             count_buffers(&t, student->width, be->activation),
                              .teacher =
                                  teacher ? hh_run_bytes(teacher, be->activation, n, spans, HH_RUN_INFERENCE) : 0};
}

static hh_tensor slice(hh_tensor flat, int64_t at, int64_t n) {
    return hh_tensor_rows(flat, at, at + n);
}

static hh_code init_trainer(hh_trainer *t, hh_model *const *student, hh_error *err) {
    hh_trainset_options *d = &t->o.data;
    d->vocab = student[0]->config.vocab;
    d->n_threads = t->be->host_memory ? t->be->n_threads : t->comm->n_threads;
    if (d->n_threads < 1) d->n_threads = hh_cpu_count();
    HH_TRY(hh_trainset_init(&t->data, d, err));
    int64_t max_spans = hh_trainset_max_spans(d);
    t->span = hh_alloc((size_t)max_spans * sizeof *t->span);
    t->host = hh_alloc((size_t)d->micro_tokens * sizeof *t->host);
    for (int64_t i = 0; i < t->n_students; i++) {
        if (student[i]->config.width != student[0]->config.width ||
            student[i]->config.vocab != student[0]->config.vocab)
            return hh_fail(err, HH_EINVAL, "students that train together must have one width and one vocabulary");
        HH_TRY(check_student(&t->o, t->teacher, student[i], err));
    }
    HH_TRY(init_activations(t, student, max_spans, err));
    for (int64_t i = 0; i < t->n_students; i++) HH_TRY(init_student(&t->student[i], t, student[i], max_spans, err));
    if (t->teacher) HH_TRY(hh_run_new(&t->teacher_run, t->teacher, d->micro_tokens, max_spans, HH_RUN_INFERENCE, err));
    const int64_t width = student[0]->config.width;
    HH_TRY(t->be->arena_init(t->be, &t->arena, "step", count_buffers(t, width, t->be->activation), err));
    place_buffers(t, width, t->be->activation, &t->arena);
    return HH_OK;
}

hh_code hh_trainer_new(hh_trainer **out, const hh_trainer_options *o, const hh_model *teacher, hh_model *const *student,
                       int64_t n_students, hh_error *err) {
    *out = NULL;
    HH_TRY(check_options(o, teacher, n_students, err));
    hh_trainer *t = hh_alloc(sizeof *t);
    *t = (hh_trainer){
        .o = *o, .be = student[0]->be, .teacher = o->stage->needs_teacher ? teacher : NULL, .n_students = n_students};
    t->alone = hh_comm_single();
    t->comm = o->comm ? o->comm : &t->alone;
    hh_code code = init_trainer(t, student, err);
    if (code != HH_OK) {
        hh_trainer_free(t);
        return code;
    }
    *out = t;
    return HH_OK;
}

void hh_trainer_free(hh_trainer *t) {
    if (!t) return;
    hh_backend_record_drop(t->be, t);
    for (int64_t i = 0; i < t->n_students; i++) {
        hh_student *s = &t->student[i];
        hh_run_free(s->run);
        hh_gradients_free(s->gradients, t->be);
        hh_free(s->range);
        if (s->arena.base) t->be->arena_release(t->be, &s->arena);
    }
    hh_run_free(t->teacher_run);
    hh_trainset_release(&t->data);
    hh_free(t->span);
    hh_free(t->host);
    if (t->arena.base) t->be->arena_release(t->be, &t->arena);
    if (t->activations.base) t->be->arena_release(t->be, &t->activations);
    hh_free(t);
}

hh_tensor hh_losses_of(const hh_trainer *t, hh_tensor losses, int64_t i, int64_t n) {
    return slice(losses, i * t->o.data.micro_tokens, n);
}

double hh_sum_rows(const hh_trainer *t, hh_tensor x, int64_t n) {
    HH_ASSERT(n <= x.dim[0] && n <= t->o.data.micro_tokens);
    double sum = 0;
    hh_tensor_to_host(t->be, t->host, hh_tensor_rows(x, 0, n));
    for (int64_t i = 0; i < n; i++) sum += (double)t->host[i];
    return sum;
}

static void clear_gradients(hh_trainer *t) {
    for (int64_t i = 0; i < t->n_students; i++) {
        hh_student *s = &t->student[i];
        s->loss = 0;
        for (int64_t r = 0; r < s->n_ranges; r++)
            t->be->ops->fill(t->be, slice(s->gradients->flat, s->range[r].at, s->range[r].n), 0);
    }
}

/* Weights are untouched until the whole step's losses and gradients are known to be finite. */
static hh_code check_losses(const hh_trainer *t, int64_t first, int64_t next, hh_error *err) {
    for (int64_t i = 0; i < t->n_students; i++)
        if (!isfinite(t->student[i].loss))
            return hh_fail(err, HH_ENONFINITE,
                           "%s: the loss is %g at step %" PRId64 ", in sequences %" PRId64 " to %" PRId64
                           " of its batch (seed %" PRIu64 ")",
                           t->o.stage->name, t->student[i].loss, t->step, first, next - 1, t->o.data.seed);
    return HH_OK;
}

static hh_code check_interrupt(const hh_trainer *t, hh_error *err) {
    if (!hh_interrupted()) return HH_OK;
    return hh_fail(err, HH_ECANCELLED, "%s: interrupted in step %" PRId64, t->o.stage->name, t->step);
}

/* Has a micro-batch of this shape been seen lately? Its spans, and all that ops get by value. */
static bool comes_again(hh_trainer *t, const hh_micro *m, uint64_t *key) {
    const int64_t most = (int64_t)(sizeof t->met / sizeof *t->met);
    if (!t->be->record_begin || m->b.n_tokens > t->o.recorded_tokens || hh_env_get()->check_nan) return false;
    const double value[] = {m->per_token, m->per_target, m->per_weight};
    *key = hh_hash64(m->b.span, (size_t)m->b.n_spans * sizeof *m->b.span, hh_hash64(value, sizeof value, 0));
    for (int64_t i = 0; i < t->n_met; i++)
        if (t->met[i] == *key) return true;
    if (t->n_met == most) {
        if (t->recorded) hh_backend_record_drop(t->be, t);
        t->recorded = false;
        t->n_met = 0;
    }
    t->met[t->n_met++] = *key;
    return false;
}

/* A small micro-batch that comes again is launched as one: what a step of few tokens waits for is launches. */
static hh_code run_micro(hh_trainer *t, const hh_micro *m, hh_error *err) {
    uint64_t key = 0;
    const bool record = comes_again(t, m, &key);
    hh_code code;
    t->recorded |= record;
    do {
        for (int64_t i = 0; record && i < t->n_students; i++) hh_run_forget_table(t->student[i].run);
        if (record && t->teacher_run) hh_run_forget_table(t->teacher_run);
        if (record) hh_backend_record_begin(t->be, t, key);
        code = t->o.stage->run(t, m, err);
    } while (record && hh_backend_record_end(t->be) && code == HH_OK);
    if (code == HH_OK) t->o.stage->add_losses(t, m);
    return code;
}

static hh_code run_micros(hh_trainer *t, hh_error *err) {
    const hh_trainset *d = &t->data;
    HH_TRY(check_interrupt(t, err));
    for (int64_t first = d->first, next; first < d->end; first = next) {
        next = hh_trainset_micro(d, first, t->span);
        int64_t lo = d->lo[first];
        hh_micro m = {
            .b = {.n_tokens = d->lo[next] - lo, .n_spans = next - first, .ids = d->ids + lo, .span = t->span},
            .target = d->target + lo,
            .weight = d->weight + lo,
            .per_token = 1 / (double)d->n_tokens,
            .per_target = 1 / (double)d->n_targets,
            .per_weight = 1 / d->target_weight,
        };
        HH_TRY(run_micro(t, &m, err));
        HH_TRY(check_interrupt(t, err)); /* which may have cut it short */
        HH_TRY(check_losses(t, first, next, err));
    }
    return HH_OK;
}

static hh_tensor owned(hh_tensor flat, hh_trained_range r) {
    return slice(flat, r.at + r.own, r.n_own);
}

/* Losses and gradients of all ranks; of the gradients each rank has its own slices then. */
static hh_code add_ranks(hh_trainer *t, hh_error *err) {
    double loss[HH_MAX_STUDENTS];
    for (int64_t i = 0; i < t->n_students; i++) loss[i] = t->student[i].loss;
    HH_TRY(hh_comm_sum(t->comm, loss, t->n_students, err));
    for (int64_t i = 0; i < t->n_students; i++) {
        hh_student *s = &t->student[i];
        s->loss = loss[i];
        for (int64_t r = 0; r < s->n_ranges; r++)
            HH_TRY(hh_comm_reduce_scatter(t->comm, slice(s->gradients->flat, s->range[r].at, s->range[r].n), err));
    }
    return HH_OK;
}

static hh_code measure_gradients(hh_trainer *t, hh_error *err) {
    double sum[HH_MAX_STUDENTS] = {0};
    for (int64_t i = 0; i < t->n_students; i++) {
        const hh_student *s = &t->student[i];
        for (int64_t r = 0; r < s->n_ranges; r++)
            if (s->range[r].n_own) t->be->ops->sum_squares(t->be, &sum[i], owned(s->gradients->flat, s->range[r]));
    }
    HH_TRY(hh_comm_sum(t->comm, sum, t->n_students, err));
    for (int64_t i = 0; i < t->n_students; i++) {
        hh_student *s = &t->student[i];
        s->grad_norm = sqrt(sum[i]);
        if (!isfinite(s->grad_norm))
            return hh_fail(err, HH_ENONFINITE,
                           "%s: the gradient's norm is %g at step %" PRId64 " (loss %g, its batch is of seed %" PRIu64
                           ")",
                           t->o.stage->name, s->grad_norm, t->step, s->loss, t->o.data.seed);
    }
    return HH_OK;
}

static void update_weights(hh_trainer *t, double lr) {
    const hh_trainer_options *o = &t->o;
    for (int64_t i = 0; i < t->n_students; i++) {
        hh_student *s = &t->student[i];
        double scale = o->clip > 0 && s->grad_norm > o->clip ? o->clip / s->grad_norm : 1;
        for (int64_t k = 0; k < s->n_ranges; k++) {
            hh_trained_range r = s->range[k];
            if (!r.n_own) continue;
            t->be->ops->adamw(t->be, owned(s->model->flat, r), slice(s->m, r.moment, r.n_own),
                              slice(s->v, r.moment, r.n_own), owned(s->gradients->flat, r), lr, o->beta1, o->beta2,
                              o->eps, o->weight_decay, scale, t->step + 1);
        }
    }
}

static hh_code share_weights(hh_trainer *t, hh_error *err) {
    for (int64_t i = 0; i < t->n_students; i++) {
        const hh_student *s = &t->student[i];
        for (int64_t r = 0; r < s->n_ranges; r++)
            HH_TRY(hh_comm_all_gather(t->comm, slice(s->model->flat, s->range[r].at, s->range[r].n), err));
    }
    return t->be->sync(t->be, err);
}

static hh_code compute(hh_trainer *t, double lr, hh_error *err) {
    clear_gradients(t);
    hh_code code = run_micros(t, err);
    if (code == HH_OK) code = t->be->sync(t->be, err);
    HH_TRY(hh_comm_agree(t->comm, code, err));
    HH_TRY(add_ranks(t, err));
    HH_TRY(measure_gradients(t, err));
    update_weights(t, lr);
    return hh_comm_agree(t->comm, share_weights(t, err), err);
}

hh_code hh_trainer_step(hh_trainer *t, hh_step_report *out, hh_error *err) {
    double start = hh_now(), lr = hh_schedule_rate(&t->o.schedule, t->step);
    HH_TRY(hh_trainset_make(&t->data, t->step, t->comm, err));
    hh_guard_begin();
    hh_code code = compute(t, lr, err);
    hh_guard_end();
    HH_TRY(code);
    *out = (hh_step_report){.step = t->step, .n_tokens = t->data.n_tokens, .lr = lr, .seconds = hh_now() - start};
    t->step++;
    return HH_OK;
}
