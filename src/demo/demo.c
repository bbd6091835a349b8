/* The demo's steps, in order; see demo.h. */
#include "demo/demo.h"

#include "base/filemap.h"
#include "base/progress.h"
#include "convert/migrate.h"
#include "convert/select.h"
#include "data/corpus.h"
#include "train/stage.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define CALIBRATION_TOKENS 16384
#define SENDERS            8
#define SEQUENCES          16 /* of a training step, each of the native length */
#define ROUND_SAMPLES      16

hh_demo_options hh_demo_defaults(void) {
    return (hh_demo_options){.out_dir = "demo-out",
                             .heads = 4,
                             .samples = 64,
                             .length = {256, 1024, 4096},
                             .pairs = 4,
                             .align_steps = 40,
                             .distill_steps = 80,
                             .rounds = 5};
}

static void sayf(hh_demo_say *say, const char *format, ...) HH_PRINTF(2, 3);
static void sayf(hh_demo_say *say, const char *format, ...) {
    char text[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    say(text);
}

static hh_code open_teacher(hh_demo *d, hh_error *err) {
    HH_TRY(hh_model_open(&d->model[HH_DEMO_TEACHER], d->be, "nano", HH_LOAD_REAL, err));
    HH_TRY(hh_tokenizer_open(&d->tokenizer, d->model[HH_DEMO_TEACHER]->path, err));
    return hh_make_directory(d->o.out_dir, err);
}

/* Pairs of needles in book text, the value replaced. */
static hh_code make_pairs(hh_demo *d, hh_pair *pair, hh_error *err) {
    const hh_needle_options o = {
        .task = d->task, .length = d->model[HH_DEMO_TEACHER]->config.max_position, .seed = (uint32_t)d->o.seed};
    hh_needles *needles;
    HH_TRY(hh_needles_new(&needles, d->tokenizer, &o, err));
    hh_code code = HH_OK;
    for (int64_t i = 0; i < d->o.pairs && code == HH_OK; i++)
        code = hh_pair_from_needles(needles, HH_CORRUPT_VALUE, &pair[i], err);
    hh_needles_free(needles);
    return code;
}

/* With one needle in the text the key decides nothing: the capability is the value. */
static hh_code probe(hh_demo *d, hh_error *err) {
    hh_pair *pair = hh_alloc(sizeof *pair * (size_t)d->o.pairs);
    const hh_capability capability = {.name = "niah_book/value", .pair = pair, .n_pairs = d->o.pairs};
    const hh_probe_options o = {.senders = SENDERS};
    hh_code code = make_pairs(d, pair, err);
    if (code == HH_OK) code = hh_probe(&d->scores, d->model[HH_DEMO_TEACHER], &capability, 1, &o, err);
    hh_pairs_free(pair, d->o.pairs);
    return code;
}

static hh_code write_scores(const hh_demo *d, char **heads, hh_error *err) {
    *heads = hh_path_join(d->o.out_dir, "heads.json");
    HH_TRY(hh_scores_write_json(d->scores, *heads, "nano", d->model[HH_DEMO_TEACHER]->config.max_position,
                                (int64_t)d->o.seed, err));
    char *page = hh_path_join(d->o.out_dir, "heads.html");
    hh_code code = hh_scores_write_html(d->scores, page, "nano", err);
    hh_free(page);
    return code;
}

static hh_code write_plan(const hh_demo *d, int which, const char *name, hh_error *err) {
    char *path = hh_path_join(d->o.out_dir, name);
    hh_code code = hh_plan_write(&d->plan[which], path, err);
    hh_free(path);
    return code;
}

/* The causal plan, and the control drawn from the other heads. */
static hh_code select_heads(hh_demo *d, hh_error *err) {
    hh_heads heads = {0};
    char *path = NULL;
    hh_code code;
    HH_TRY_GOTO(code, write_scores(d, &path, err), done);
    HH_TRY_GOTO(code, hh_heads_read(&heads, path, err), done);
    const hh_select_options causal = {.strategy = HH_SELECT_GLOBAL, .heads = d->o.heads};
    HH_TRY_GOTO(code, hh_select(&d->plan[HH_DEMO_CAUSAL], &heads, &causal, err), done);
    const hh_select_options random = {.strategy = HH_SELECT_GLOBAL_RANDOM,
                                      .heads = d->o.heads,
                                      .seed = d->o.seed,
                                      .exclude = &d->plan[HH_DEMO_CAUSAL]};
    HH_TRY_GOTO(code, hh_select(&d->plan[HH_DEMO_RANDOM], &heads, &random, err), done);
    HH_TRY_GOTO(code, write_plan(d, HH_DEMO_CAUSAL, "plan-causal.json", err), done);
    code = write_plan(d, HH_DEMO_RANDOM, "plan-random.json", err);
done:
    hh_heads_release(&heads);
    hh_free(path);
    return code;
}

/* What a short transfer needs (docs/TRAINING.md): a small base of the log-scale, on in training too; gates that start
 * open. */
static hh_code convert(hh_demo *d, hh_error *err) {
    const hh_model *teacher = d->model[HH_DEMO_TEACHER];
    double *gamma = hh_alloc(sizeof *gamma * (size_t)(teacher->config.n_layers * teacher->config.n_heads));
    hh_hybrid_options o = hh_hybrid_defaults();
    o.log_scale_base = 16;
    o.log_scale_in_training = true;
    o.beta_scale = 1;
    o.gate_bias = 3;
    o.seed = d->o.seed;
    int64_t n = CALIBRATION_TOKENS;
    hh_code code = hh_calibrate_on_text(teacher, d->tokenizer, NULL, &n, gamma, err);
    for (int i = HH_DEMO_CAUSAL; i <= HH_DEMO_RANDOM && code == HH_OK; i++)
        code = hh_migrate(&d->model[i], teacher, &d->plan[i], &o, gamma, err);
    for (int i = 0; i < HH_DEMO_MODELS && code == HH_OK; i++)
        d->cache_bytes[i] = hh_config_cache_bytes(&d->model[i]->config, HH_PLAN_CACHE_VALUE_BYTES);
    hh_free(gamma);
    return code;
}

static hh_code run_steps(hh_demo *d, hh_trainer *t, hh_demo_curve *curve, hh_error *err) {
    hh_progress progress;
    hh_code code = HH_OK;
    hh_progress_begin(&progress, curve->stage, "steps", (double)t->o.schedule.steps);
    while (t->step < t->o.schedule.steps) {
        hh_step_report r;
        char note[64];
        HH_TRY_GOTO(code, hh_trainer_step(t, &r, err), done);
        curve->step[curve->n] = (double)curve->n + 1;
        for (int i = 0; i < 2; i++) curve->loss[i][curve->n] = t->student[i].loss;
        curve->n++;
        d->trained_tokens += r.n_tokens;
        snprintf(note, sizeof note, "loss causal %.4f, random %.4f", t->student[0].loss, t->student[1].loss);
        hh_progress_update(&progress, (double)t->step, note);
    }
done:
    hh_progress_end(&progress);
    return code;
}

/* Steps behind those of the curve; every round has sequences of its own. */
static hh_code train(hh_demo *d, const hh_stage *stage, int64_t round, int64_t steps, double lr,
                     const hh_mixture *mixture, hh_demo_curve *curve, hh_error *err) {
    const int64_t native = d->model[HH_DEMO_TEACHER]->config.max_position;
    hh_trainer_options o = hh_trainer_defaults(stage, steps);
    o.schedule.peak = lr;
    o.schedule.final = lr / 100;
    o.schedule.warmup = 5;
    o.data = (hh_trainset_options){.sequences = SEQUENCES,
                                   .length = &native,
                                   .n_lengths = 1,
                                   .micro_tokens = SEQUENCES * native / 2,
                                   .background_weight = 1,
                                   .seed = d->o.seed + (uint64_t)round,
                                   .fill = hh_sequence_from_mixture,
                                   .context = (void *)mixture};
    const size_t room = sizeof(double) * (size_t)(curve->n + steps);
    curve->stage = stage->name;
    curve->step = hh_realloc(curve->step, room);
    for (int i = 0; i < 2; i++) curve->loss[i] = hh_realloc(curve->loss[i], room);
    hh_trainer *t;
    HH_TRY(hh_trainer_new(&t, &o, d->model[HH_DEMO_TEACHER], &d->model[HH_DEMO_CAUSAL], 2, err));
    hh_code code = run_steps(d, t, curve, err);
    hh_trainer_free(t);
    return code;
}

/* Needles for the first n of teacher, causal hybrid and control. */
static hh_code find_needles(hh_demo *d, hh_ruler_result *found, int64_t n, int64_t n_lengths, int64_t samples,
                            uint32_t seed, hh_error *err) {
    static const char *const names[] = {"teacher", "causal", "random"};
    for (int i = 0; i < HH_DEMO_MODELS; i++)
        d->subject[i] = (hh_subject){.name = names[i], .model = d->model[i], .tokenizer = d->tokenizer};
    const hh_ruler_options o = {.task = &d->task,
                                .length = d->o.length,
                                .n_tasks = 1,
                                .n_lengths = n_lengths,
                                .n_samples = samples,
                                .seed = seed};
    return hh_eval_ruler(found, d->subject, n, &o, err);
}

/* Whether the causal hybrid finds nearly what its teacher finds at the native length; by other draws than what is shown. */
static hh_code retrieves(hh_demo *d, int64_t round, bool *out, hh_demo_say *say, hh_error *err) {
    hh_ruler_result r = {0};
    const uint32_t seed = (uint32_t)d->o.seed + 2000 + (uint32_t)round;
    hh_code code = find_needles(d, &r, HH_DEMO_CAUSAL + 1, 1, ROUND_SAMPLES, seed, err);
    const double teacher = code == HH_OK ? hh_ruler_cell_at(&r, HH_DEMO_TEACHER, 0, 0)->accuracy : 0;
    const double causal = code == HH_OK ? hh_ruler_cell_at(&r, HH_DEMO_CAUSAL, 0, 0)->accuracy : 0;
    hh_ruler_result_release(&r);
    *out = causal >= 0.9 * teacher;
    if (code == HH_OK && !*out)
        sayf(say,
             "After %" PRId64 " steps the causal hybrid finds %.0f %% of %d numbers, its teacher %.0f %%: both "
             "hybrids are distilled for as many again.",
             d->curve[1].n, 100 * causal, ROUND_SAMPLES, 100 * teacher);
    return code;
}

static hh_code distill(hh_demo *d, const hh_mixture *mixture, hh_demo_say *say, hh_error *err) {
    bool enough = false;
    for (int64_t round = 0; !enough && round < d->o.rounds; round++) {
        const int64_t steps = round ? d->curve[1].n : d->o.distill_steps; /* every round doubles them */
        HH_TRY(train(d, &hh_stage_distill, round, steps, 7e-4, mixture, &d->curve[1], err));
        if (round + 1 < d->o.rounds) HH_TRY(retrieves(d, round, &enough, say, err));
    }
    return HH_OK;
}

static hh_code train_stages(hh_demo *d, hh_demo_say *say, hh_error *err) {
    char *text = hh_text_shipped_path(false);
    const char *files[] = {text};
    const hh_mixture_options o = {.files = files, .n_files = 1, .needles = 1, .seed = d->o.seed};
    hh_mixture *mixture;
    hh_code code = hh_mixture_new(&mixture, d->tokenizer, &o, err);
    hh_free(text);
    HH_TRY(code);
    code = train(d, &hh_stage_align, 0, d->o.align_steps, 3e-3, mixture, &d->curve[0], err);
    if (code == HH_OK) code = distill(d, mixture, say, err);
    hh_mixture_free(mixture);
    return code;
}

static hh_code save_hybrids(const hh_demo *d, hh_error *err) {
    static const char *const names[] = {NULL, "causal", "random"};
    hh_code code = HH_OK;
    for (int i = HH_DEMO_CAUSAL; i <= HH_DEMO_RANDOM && code == HH_OK; i++) {
        char *dir = hh_path_join(d->o.out_dir, names[i]);
        code = hh_model_save(d->model[i], dir, HH_DTYPE_F32, d->model[HH_DEMO_TEACHER]->path, err);
        hh_free(dir);
    }
    return code;
}

static void say_scores(const hh_demo *d, hh_demo_say *say) {
    hh_buf text = {0};
    hh_scores_terminal(d->scores, d->o.color, &text);
    say(text.data);
    hh_buf_release(&text);
}

static void say_plan(const hh_demo *d, int which, const char *what, hh_demo_say *say) {
    const hh_plan *p = &d->plan[which];
    hh_buf text = {0};
    hh_buf_printf(&text, "%s keeps full attention in heads", what);
    for (int64_t i = 0; i < p->n_layers * p->n_heads; i++)
        if (hh_plan_keeps(p, i / p->n_heads, i % p->n_heads))
            hh_buf_printf(&text, " %" PRId64 ".%" PRId64, i / p->n_heads, i % p->n_heads);
    say(text.data);
    hh_buf_release(&text);
}

hh_code hh_demo_run(hh_demo *d, hh_backend *be, const hh_demo_options *o, hh_demo_say *say, hh_error *err) {
    *d = (hh_demo){.o = *o, .be = be, .task = HH_NIAH_BOOK, .start = hh_now()};
    HH_TRY(open_teacher(d, err));
    sayf(say,
         "nano: %" PRId64 " layers of %" PRId64 " heads, trained on %" PRId64
         " tokens. Probing: which heads carry the answer?",
         d->model[0]->config.n_layers, d->model[0]->config.n_heads, d->model[0]->config.max_position);
    HH_TRY(probe(d, err));
    say_scores(d, say);
    HH_TRY(select_heads(d, err));
    say_plan(d, HH_DEMO_CAUSAL, "causal hybrid: the best heads;", say);
    say_plan(d, HH_DEMO_RANDOM, "control: as many others, drawn at random;", say);
    HH_TRY(convert(d, err));
    sayf(say,
         "KV cache: %.0f bytes a token in the teacher, %.0f in the causal hybrid, %.0f in the control. Training both "
         "on the same batches:",
         d->cache_bytes[0], d->cache_bytes[1], d->cache_bytes[2]);
    HH_TRY(train_stages(d, say, err));
    HH_TRY(save_hybrids(d, err));
    sayf(say,
         "Hiding %" PRId64 " numbers in book text at each length, with keys and numbers that were never trained on:",
         d->o.samples);
    HH_TRY(find_needles(d, &d->needles, HH_DEMO_MODELS, HH_DEMO_LENGTHS, d->o.samples, (uint32_t)d->o.seed + 1000,
                        err)); /* other draws than the pairs' */
    d->seconds = hh_now() - d->start;
    return HH_OK;
}

void hh_demo_release(hh_demo *d) {
    hh_ruler_result_release(&d->needles);
    for (int i = 0; i < 2; i++) {
        hh_free(d->curve[i].step);
        hh_free(d->curve[i].loss[0]);
        hh_free(d->curve[i].loss[1]);
    }
    for (int i = 0; i < HH_DEMO_MODELS; i++) {
        hh_plan_release(&d->plan[i]);
        hh_model_close(d->model[i]);
    }
    hh_scores_free(d->scores);
    hh_tokenizer_close(d->tokenizer);
}
