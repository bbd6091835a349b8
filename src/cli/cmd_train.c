/* hydrahead train: one stage of training, from the first step or from where it was left. */
#include "base/filemap.h"
#include "cli/cli.h"
#include "data/corpus.h"
#include "train/initialise.h"
#include "train/history.h"
#include "train/job.h"
#include "train/stage.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static const char *stage_name = "", *teacher_path = "", *out_dir = "", *lengths = "512", *schedule = "auto",
                  *save_dtype = "f32", *cache_dir = "", *needle_forms = "numbers";
static hh_words data;
static double needles, lr, final_lr = -1, weight_decay = -1, clip = 1, ce_weight, background = 1;
static int64_t batch = 16, micro_tokens = 2048, steps, tokens, warmup = -1, save_every = 100;
static bool json;

static const hh_option options[] = {
    {.name = "stage",
     .kind = HH_OPTION_CHOICE,
     .value = &stage_name,
     .choices = HH_STAGE_CHOICES,
     .help = "what is learnt"},
    {.name = "teacher",
     .kind = HH_OPTION_STRING,
     .value = &teacher_path,
     .argument = "MODEL",
     .help = "whom align and distill imitate"},
    {.name = "data",
     .letter = 'd',
     .kind = HH_OPTION_LIST,
     .value = &data,
     .argument = "FILE[=W]",
     .help = "text, plain or gzip, with a weight of 1 or W in the mixture; without any, the shipped book excerpt"},
    {.name = "needles",
     .kind = HH_OPTION_FLOAT,
     .value = &needles,
     .argument = "W",
     .max = 1e6,
     .help = "weight of needle documents (a hidden key and value, then questions) on the same scale"},
    {.name = "needle-forms",
     .kind = HH_OPTION_CHOICE,
     .value = &needle_forms,
     .choices = "numbers|all",
     .help =
         "what they hold: 7-digit numbers, or all that RULER's tasks ask for (UUIDs, several values, many needles)"},
    {.name = "length",
     .kind = HH_OPTION_STRING,
     .value = &lengths,
     .argument = "N[,N]",
     .help = "tokens of a sequence; of several lengths each sequence draws one"},
    {.name = "batch",
     .kind = HH_OPTION_INT,
     .value = &batch,
     .argument = "N",
     .min = 1,
     .max = 1e6,
     .help = "sequences of a step"},
    {.name = "micro-tokens",
     .kind = HH_OPTION_INT,
     .value = &micro_tokens,
     .argument = "N",
     .min = 1,
     .max = 1e7,
     .help = "tokens computed at once (at least one sequence); less needs less memory"},
    {.name = "steps",
     .kind = HH_OPTION_INT,
     .value = &steps,
     .argument = "N",
     .max = 1e9,
     .help = "length of the run; 0: it is --tokens"},
    {.name = "tokens",
     .kind = HH_OPTION_INT,
     .value = &tokens,
     .argument = "N",
     .max = 9e15,
     .help = "length of the run in tokens; 0: it is --steps"},
    {.name = "lr",
     .kind = HH_OPTION_FLOAT,
     .value = &lr,
     .argument = "X",
     .max = 10,
     .help = "peak learning rate; 0: the stage's own"},
    {.name = "final-lr",
     .kind = HH_OPTION_FLOAT,
     .value = &final_lr,
     .argument = "X",
     .min = -1,
     .max = 10,
     .help = "rate at the end of a cosine; -1: the stage's own share of the peak"},
    {.name = "schedule",
     .kind = HH_OPTION_CHOICE,
     .value = &schedule,
     .choices = "auto|cosine|constant",
     .help = "what the rate does after the warm-up; auto: the stage's own"},
    {.name = "warmup",
     .kind = HH_OPTION_INT,
     .value = &warmup,
     .argument = "N",
     .min = -1,
     .max = 1e9,
     .help = "steps of linear warm-up; -1: the stage's own, at most a tenth of the run"},
    {.name = "weight-decay",
     .kind = HH_OPTION_FLOAT,
     .value = &weight_decay,
     .argument = "X",
     .min = -1,
     .max = 10,
     .help = "of AdamW; -1: the stage's own"},
    {.name = "clip",
     .kind = HH_OPTION_FLOAT,
     .value = &clip,
     .argument = "X",
     .max = 1e9,
     .help = "largest norm of the gradient; 0: none"},
    {.name = "ce-weight",
     .kind = HH_OPTION_FLOAT,
     .value = &ce_weight,
     .argument = "X",
     .max = 1e6,
     .help = "distill: weight of next-token cross-entropy beside the divergence"},
    {.name = "answers-only",
     .kind = HH_OPTION_FLOAT,
     .value = &background,
     .argument = "W",
     .max = 1,
     .help =
         "in needle documents, weight of the loss on tokens that answer nothing; at 0 their logits are not computed"},
    {.name = "save-every",
     .kind = HH_OPTION_INT,
     .value = &save_every,
     .argument = "N",
     .max = 1e9,
     .help = "steps between checkpoints; 0: at the end only"},
    {.name = "save-dtype",
     .kind = HH_OPTION_CHOICE,
     .value = &save_dtype,
     .choices = "f32|bf16",
     .help = "type of the checkpoint's matrices"},
    {.name = "cache",
     .kind = HH_OPTION_STRING,
     .value = &cache_dir,
     .argument = "DIR",
     .help = "where the texts' tokens are kept; without it in DIR/tokens of --out"},
    {.name = "out",
     .letter = 'o',
     .kind = HH_OPTION_STRING,
     .value = &out_dir,
     .argument = "DIR",
     .help = "checkpoint, state and log; a run that stands there is continued"},
    HH_CLI_JSON_OPTION(json),
    HH_CLI_COMMON_OPTIONS(common),
    {0},
};

static const hh_command command = {
    .verb = "train",
    .summary = "train a hybrid back to its teacher, in stages; or pretrain",
    .words = "STUDENT | NAME=STUDENT...",
    .description =
        "align: every hybrid attention layer imitates the teacher's on the teacher's own stream; the other "
        "weights stay. "
        "distill: the whole student imitates the teacher's next-token distributions. extend: next-token "
        "prediction at new lengths. "
        "pretrain: next-token prediction from random weights, of a directory that holds only config.json "
        "and a tokenizer.\n\n"
        "The same command again continues where a run was left, bit for bit, also after it was killed; "
        "after its end it changes "
        "nothing. Several students (up to four, each with a name) see the same sequences and share the teacher's "
        "forward; "
        "their checkpoints are DIR/NAME. Builds with MPI=1 share the work among the processes that mpirun starts, with "
        "the same sequences in "
        "the same order however many there are. DIR is a checkpoint like any other, with a log.jsonl of every step's "
        "loss, gradient norm, "
        "rate and speed.",
    .example =
        "hydrahead train nano-hybrid --teacher nano --stage align --data models/nano/text_valid.txt.gz --length 128 "
        "--batch 4 --steps 3 --out nano-aligned",
    .options = options,
    .min_words = 1,
    .max_words = HH_MAX_STUDENTS,
};

/* One who is trained, and where what it becomes is kept. */
typedef struct pupil {
    const char *path;
    char *name, *dir;
    hh_model *model;
} pupil;

/* All that a run holds. */
typedef struct session {
    int argc; /* the words behind the verb */
    char **argv;
    const hh_words *words;
    pupil pupil[HH_MAX_STUDENTS];
    const hh_stage *stage;
    hh_comm comm;
    hh_backend *be;
    hh_model *teacher;
    hh_tokenizer *tokenizer;
    hh_mixture *mixture;
    hh_trainer *trainer;
    int64_t *length;
    hh_trainer_options o;
    hh_buf settings;
} session;

static void release(session *s) {
    hh_trainer_free(s->trainer);
    hh_mixture_free(s->mixture);
    hh_tokenizer_close(s->tokenizer);
    hh_model_close(s->teacher);
    for (int i = 0; i < HH_MAX_STUDENTS; i++) {
        hh_model_close(s->pupil[i].model);
        hh_free(s->pupil[i].name);
        hh_free(s->pupil[i].dir);
    }
    hh_comm_close(&s->comm);
    hh_backend_close(s->be);
    hh_free(s->length);
    hh_buf_release(&s->settings);
}

static bool has_file(const char *dir, const char *name) {
    char *path = hh_path_join(dir, name);
    bool found = hh_file_exists(path);
    hh_free(path);
    return found;
}

static bool has_weights(const char *dir) {
    return has_file(dir, "model.safetensors") || has_file(dir, "model.safetensors.index.json");
}

/* A directory with a configuration and no weights: random ones. */
static hh_code create_student(session *s, pupil *p, hh_error *err) {
    char *path = hh_path_join(p->path, "config.json");
    hh_config *c = hh_alloc(sizeof *c);
    hh_buf text = {0};
    hh_code code = hh_file_read(path, (size_t)1 << 24, &text, err);
    if (code == HH_OK) code = hh_config_parse(c, path, text.data, text.len, err);
    if (code == HH_OK) code = hh_model_create(&p->model, s->be, c, err);
    if (code == HH_OK) code = hh_model_initialise(p->model, (uint64_t)common.seed, err);
    hh_buf_release(&text);
    hh_free(c);
    hh_free(path);
    return code;
}

static hh_code open_backend(session *s, hh_error *err) {
    HH_TRY(hh_comm_agree(&s->comm, hh_cli_backend(&common, &s->be, err), err));
    return s->be->host_memory ? HH_OK : hh_cuda_comm(&s->comm, s->be, err);
}

static hh_code open_models(session *s, hh_error *err) {
    for (int64_t i = 0; i < s->words->n; i++) {
        pupil *p = &s->pupil[i];
        if (s->stage == &hh_stage_pretrain && hh_is_directory(p->path) && !has_weights(p->path))
            HH_TRY(create_student(s, p, err));
        else
            HH_TRY(hh_model_open(&p->model, s->be, p->path, HH_LOAD_REAL, err));
    }
    if (s->stage->needs_teacher && *teacher_path)
        HH_TRY(hh_model_open(&s->teacher, s->be, teacher_path, HH_LOAD_STORED, err));
    return HH_OK;
}

static hh_code open_data(session *s, hh_error *err) {
    char *where;
    HH_TRY(hh_model_locate(&where, s->pupil[0].path, err));
    hh_code code = hh_tokenizer_open(&s->tokenizer, where, err);
    hh_free(where);
    HH_TRY(code);
    char *shipped = data.n ? NULL : hh_text_shipped_path(false);
    char *cache = *cache_dir ? hh_strdup(cache_dir) : hh_path_join(out_dir, "tokens");
    hh_mixture_options o = {.files = data.n ? data.word : (const char *const *)&shipped,
                            .n_files = data.n ? data.n : 1,
                            .needles = needles,
                            .all_forms = strcmp(needle_forms, "all") == 0,
                            .cache_dir = cache,
                            .seed = s->o.data.seed};
    code = hh_make_directory(cache, err);
    if (code == HH_OK) code = hh_mixture_new(&s->mixture, s->tokenizer, &o, err);
    hh_free(shipped);
    hh_free(cache);
    return code;
}

/* The first process makes the texts' tokens, the others find them. */
static hh_code open_data_in_turn(session *s, hh_error *err) {
    const bool first = s->comm.rank == 0;
    HH_TRY(hh_comm_agree(&s->comm, first ? open_data(s, err) : HH_OK, err));
    return hh_comm_agree(&s->comm, first ? HH_OK : open_data(s, err), err);
}

static hh_code choose_length_of_run(session *s, int64_t *out, hh_error *err) {
    if ((steps > 0) == (tokens > 0)) return hh_fail(err, HH_EINVAL, "train needs one of --steps N and --tokens N");
    *out = steps > 0 ? steps : (int64_t)ceil((double)tokens / hh_trainset_mean_tokens(&s->o.data));
    return HH_OK;
}

static hh_code choose_options(session *s, hh_error *err) {
    int64_t n_lengths, n_steps = 0;
    HH_TRY(hh_parse_int_list("length", lengths, &s->length, &n_lengths, err));
    s->o.data = (hh_trainset_options){
        .sequences = batch, .length = s->length, .n_lengths = n_lengths, .micro_tokens = micro_tokens};
    s->o.data.background_weight = background;
    s->o.data.seed = hh_hash64(stage_name, strlen(stage_name), (uint64_t)common.seed); /* stages see other batches */
    s->o.data.fill = hh_sequence_from_mixture;
    int64_t longest = hh_trainset_longest(&s->o.data);
    if (micro_tokens < longest) s->o.data.micro_tokens = longest;
    hh_trainset_options d = s->o.data;
    HH_TRY(choose_length_of_run(s, &n_steps, err));
    s->o = hh_trainer_defaults(s->stage, n_steps);
    s->o.data = d;
    hh_schedule *rate = &s->o.schedule;
    double share = rate->final / rate->peak;
    if (lr > 0) rate->peak = lr;
    rate->final = final_lr >= 0 ? final_lr : rate->peak * share;
    if (warmup >= 0) rate->warmup = warmup;
    if (strcmp(schedule, "auto")) rate->cosine = !strcmp(schedule, "cosine");
    if (weight_decay >= 0) s->o.weight_decay = weight_decay;
    s->o.clip = clip;
    s->o.ce_weight = ce_weight;
    return HH_OK;
}

static hh_code check_use(const session *s, hh_error *err) {
    const bool distill = s->stage == &hh_stage_distill, align = s->stage == &hh_stage_align;
    const hh_option_use use[] = {
        {"teacher", s->stage->needs_teacher, "only align and distill have a teacher"},
        {"ce-weight", distill, "only distill has a second loss to weigh"},
        {"answers-only", !align, "align compares attention outputs at every token"},
        {"needle-forms", needles > 0, "it is about needle documents, of which --needles W asks for some"},
        {"answers-only", needles > 0, "it is about needle documents, of which --needles W asks for some"},
        {"answers-only", distill || background == 0 || background == 1,
         "here tokens count or do not: W is 0 or 1; distill takes any weight"},
        {"final-lr", s->o.schedule.cosine, "the rate of this run is constant; --schedule cosine has an end"},
        {0}};
    char where[64];
    snprintf(where, sizeof where, "in --stage %s", s->stage->name);
    return hh_options_check_use(&command, s->argc, s->argv, use, where, err);
}

/* Who is trained, and where each goes: into the directory of its name, or, one without a name, into --out itself. */
static hh_code name_students(session *s, hh_error *err) {
    int64_t n = s->words->n;
    for (int64_t i = 0; i < n; i++) {
        pupil *p = &s->pupil[i];
        const char *word = s->words->word[i];
        p->path = hh_path_split_name(&p->name, word);
        bool named = p->path != word;
        if (named ? strchr(p->name, '/') || p->name[0] == '.' : n > 1)
            return hh_fail(err, HH_EINVAL,
                           "%s: of several students each needs a name, as in causal=%s; it names a directory in --out",
                           word, p->path);
        for (int64_t j = 0; j < i; j++)
            if (strcmp(p->name, s->pupil[j].name) == 0)
                return hh_fail(err, HH_EINVAL, "the name %s is given twice; students are kept by name", p->name);
        p->dir = named ? hh_path_join(out_dir, p->name) : hh_strdup(out_dir);
        if (has_file(p->dir, "model.safetensors") && !has_file(p->dir, "log.jsonl") && !has_file(p->dir, "state.bin"))
            return hh_fail(err, HH_EINVAL,
                           "--out: %s holds a checkpoint that no training run has written; name another", p->dir);
    }
    return HH_OK;
}

/* Words that make no sense, said before anything is opened. */
static hh_code check_words(session *s, hh_error *err) {
    if (!*stage_name) return hh_fail(err, HH_EINVAL, "train needs --stage " HH_STAGE_CHOICES);
    if (!*out_dir) return hh_fail(err, HH_EINVAL, "train needs --out DIR");
    HH_TRY(hh_cli_check_name(out_dir, err));
    s->stage = hh_stage_find(stage_name);
    HH_ASSERT(s->stage);
    HH_TRY(choose_options(s, err));
    HH_TRY(check_use(s, err));
    return name_students(s, err);
}

/* Everything that decides what a step does, so that a run is only continued as it was begun. */
static void write_settings(session *s) {
    hh_buf *b = &s->settings;
    const hh_trainer_options *o = &s->o;
    hh_buf_printf(b, "stage %s\n", s->stage->name);
    for (int64_t i = 0; i < s->words->n; i++) hh_buf_printf(b, "student %s\n", s->words->word[i]);
    hh_buf_printf(b, "teacher %s\nlength %s\nbatch %" PRId64 "\nmicro-tokens %" PRId64 "\n", teacher_path, lengths,
                  batch, o->data.micro_tokens);
    for (int64_t i = 0; i < data.n; i++) hh_buf_printf(b, "data %s\n", data.word[i]);
    hh_buf_printf(b, "needles %g\nsteps %" PRId64 "\nlr %g\nfinal-lr %g\nschedule %s\nwarmup %" PRId64 "\n", needles,
                  o->schedule.steps, o->schedule.peak, o->schedule.final, o->schedule.cosine ? "cosine" : "constant",
                  o->schedule.warmup);
    if (strcmp(needle_forms, "numbers") != 0) hh_buf_printf(b, "needle-forms %s\n", needle_forms);
    hh_buf_printf(b, "weight-decay %g\nclip %g\nce-weight %g\nanswers-only %g\nseed %" PRId64 "\ndtype %s\n",
                  o->weight_decay, o->clip, o->ce_weight, o->data.background_weight, common.seed, common.dtype);
}

static void report(const session *s, const hh_job_result *r) {
    for (int64_t i = 0; i < s->words->n; i++) {
        const char *dir = s->pupil[i].dir;
        double loss = s->trainer->student[i].loss;
        if (json) {
            printf("{\"out\": \"%s\", \"stage\": \"%s\", \"first_step\": %" PRId64 ", \"steps\": %" PRId64
                   ", \"tokens\": %" PRId64 ", \"seconds\": %.3f, \"loss\": %.9g}\n",
                   dir, s->stage->name, r->first_step, r->steps, r->n_tokens, r->seconds, loss);
        } else if (r->first_step == r->steps) {
            printf("%s: %s has ended after %" PRId64 " steps already; nothing was done\n", dir, s->stage->name,
                   r->steps);
        } else {
            printf("%s: %s, steps %" PRId64 " to %" PRId64 ", %" PRId64 " tokens in %.1f s, last loss %.5g\n", dir,
                   s->stage->name, r->first_step, r->steps, r->n_tokens, r->seconds, loss);
        }
    }
}

static hh_code write_histories(const session *s, const hh_job_result *r, hh_error *err) {
    hh_history_stage stage = {.stage = s->stage->name, .teacher = teacher_path, .steps = r->steps, .seed = common.seed};
    for (int64_t i = 0; i < s->words->n; i++) HH_TRY(hh_history_write(s->pupil[i].dir, s->pupil[i].path, &stage, err));
    return HH_OK;
}

static hh_code train(session *s, hh_error *err) {
    HH_TRY(hh_cli_comm(&common, &s->comm, err));
    HH_TRY(hh_comm_agree(&s->comm, check_words(s, err), err));
    HH_TRY(open_backend(s, err));
    HH_TRY(hh_comm_agree(&s->comm, open_models(s, err), err));
    HH_TRY(open_data_in_turn(s, err));
    write_settings(s);
    s->o.data.context = s->mixture;
    s->o.comm = &s->comm;
    hh_job j = {.dir = out_dir,
                .tokenizer_from = s->pupil[0].path,
                .dtype = strcmp(save_dtype, "bf16") ? HH_DTYPE_F32 : HH_DTYPE_BF16,
                .save_every = save_every,
                .settings = s->settings.data};
    hh_model *student[HH_MAX_STUDENTS];
    for (int64_t i = 0; i < s->words->n; i++) {
        student[i] = s->pupil[i].model;
        j.student_dir[i] = s->pupil[i].dir;
    }
    HH_TRY(hh_comm_agree(&s->comm, hh_trainer_new(&s->trainer, &s->o, s->teacher, student, s->words->n, err), err));
    j.trainer = s->trainer;
    hh_job_result r;
    HH_TRY(hh_job_run(&j, &r, err));
    const bool first = s->comm.rank == 0;
    HH_TRY(hh_comm_agree(&s->comm, first ? write_histories(s, &r, err) : HH_OK, err));
    if (first) report(s, &r);
    return HH_OK;
}

int hh_cmd_train(int argc, char **argv) {
    hh_words words;
    int code;
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_error err = {0};
    session s = {.argc = argc, .argv = argv, .words = &words};
    hh_code done = train(&s, &err);
    if (s.comm.rank) /* processes fail together, and the first one says why */
        code = done == HH_OK ? 0 : 1;
    else
        code = done == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
    release(&s);
    hh_words_release(&words);
    hh_words_release(&data);
    return code;
}
