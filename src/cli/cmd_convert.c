/* hydrahead convert: a teacher and a plan become a hybrid checkpoint. */
#include "base/filemap.h"
#include "cli/opened.h"
#include "convert/migrate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static const char *plan_path = "", *out_dir = "", *calibration = "", *fusion = "scale", *gamma_start = "rms",
                  *save_dtype = "auto";
static int64_t calibration_tokens = 32768;
static double log_scale_base = 500, beta_scale = 2, gate_bias = 1;
static bool force, log_scale_in_training, no_fa_gate, gdn_conv, gdn_gate;

static const hh_option options[] = {
    {.name = "plan",
     .letter = 'p',
     .kind = HH_OPTION_STRING,
     .value = &plan_path,
     .argument = "FILE",
     .help = "the plan that select wrote"},
    {.name = "out",
     .letter = 'o',
     .kind = HH_OPTION_STRING,
     .value = &out_dir,
     .argument = "DIR",
     .help = "where the hybrid goes"},
    {.name = "force", .kind = HH_OPTION_FLAG, .value = &force, .help = "replace the checkpoint that stands in --out"},
    {.name = "calibration",
     .kind = HH_OPTION_STRING,
     .value = &calibration,
     .argument = "FILE",
     .help = "text on which the scale of the teacher's heads is measured; without it the shipped book excerpt"},
    {.name = "calibration-tokens",
     .kind = HH_OPTION_INT,
     .value = &calibration_tokens,
     .argument = "N",
     .min = 1,
     .max = 1e9,
     .help = "how much of that text"},
    {.name = "gamma",
     .kind = HH_OPTION_CHOICE,
     .value = &gamma_start,
     .choices = "rms|1",
     .help = "start of the heads' scales: root mean square of the teacher's head outputs, or 1 as a control"},
    {.name = "fusion",
     .kind = HH_OPTION_CHOICE,
     .value = &fusion,
     .choices = "scale|norm|none|gate",
     .help = "how heads are brought to one scale before the output projection"},
    {.name = "log-scale-base",
     .kind = HH_OPTION_FLOAT,
     .value = &log_scale_base,
     .argument = "A",
     .max = 1e9,
     .help = "full attention scales queries by ln(t + A)/ln(A); 0 is off"},
    {.name = "log-scale-in-training",
     .kind = HH_OPTION_FLAG,
     .value = &log_scale_in_training,
     .help = "apply that scale in training too"},
    {.name = "beta-scale",
     .kind = HH_OPTION_FLOAT,
     .value = &beta_scale,
     .argument = "X",
     .max = 2,
     .help = "largest step of the delta rule, above 0"},
    {.name = "no-fa-gate",
     .kind = HH_OPTION_FLAG,
     .value = &no_fa_gate,
     .help = "full attention without its output gate"},
    {.name = "gate-bias",
     .kind = HH_OPTION_FLOAT,
     .value = &gate_bias,
     .argument = "X",
     .min = -30,
     .max = 30,
     .help = "bias at which output gates start"},
    {.name = "gdn-conv",
     .kind = HH_OPTION_FLAG,
     .value = &gdn_conv,
     .help = "causal convolution of width 4 on the linear heads' projections"},
    {.name = "gdn-gate", .kind = HH_OPTION_FLAG, .value = &gdn_gate, .help = "output gate on linear heads"},
    {.name = "save-dtype",
     .kind = HH_OPTION_CHOICE,
     .value = &save_dtype,
     .choices = "auto|bf16|f32",
     .help = "type of the written matrices; auto: bf16 when the teacher's are, else f32"},
    HH_CLI_COMMON_OPTIONS(common),
    {0},
};

static const hh_command command = {
    .verb = "convert",
    .summary = "turn a teacher into a hybrid that keeps full attention where a plan says",
    .words = "MODEL",
    .description = "Heads that the plan keeps stay full attention, without rotary embedding, with a logarithmic scale "
                   "on the queries and an output "
                   "gate; every other head becomes Gated DeltaNet with the teacher's own projections. Each head's "
                   "output is brought to "
                   "one scale and multiplied by a learnt number that starts at the teacher's own scale, measured on "
                   "calibration text.\n\n"
                   "The hybrid is a Hugging Face directory; it is not useful before it is trained (`hydrahead train`, "
                   "stages align and distill).",
    .example = "hydrahead convert nano --plan nano-plan.json --out nano-hybrid",
    .options = options,
    .min_words = 1,
    .max_words = 1,
};

static hh_hybrid_options hybrid_options(void) {
    static const char *const names[] = {"scale", "norm", "none", "gate"};
    static const hh_fusion values[] = {HH_FUSION_SCALE, HH_FUSION_NORM, HH_FUSION_NONE, HH_FUSION_GATE};
    hh_hybrid_options o = {.log_scale_base = log_scale_base,
                           .log_scale_in_training = log_scale_in_training,
                           .beta_scale = beta_scale,
                           .fa_gate = !no_fa_gate,
                           .gdn_conv = gdn_conv,
                           .gdn_gate = gdn_gate,
                           .gate_bias = gate_bias,
                           .seed = (uint64_t)common.seed};
    for (int i = 0; i < 4; i++)
        if (!strcmp(fusion, names[i])) o.fusion = values[i];
    return o;
}

static hh_code calibrate(double *gamma, const hh_model *teacher, hh_error *err) {
    hh_tokenizer *t = NULL;
    int64_t n = calibration_tokens;
    HH_TRY(hh_tokenizer_open(&t, teacher->path, err));
    hh_code code = hh_calibrate_on_text(teacher, t, *calibration ? calibration : NULL, &n, gamma, err);
    hh_tokenizer_close(t);
    if (code == HH_OK)
        fprintf(stderr, "gamma: root mean squares over %" PRId64 " tokens of %s\n", n,
                *calibration ? calibration : "the shipped excerpt");
    return code;
}

static void report(const hh_plan *p, const hh_model *m) {
    double before =
        (double)(m->config.n_layers * m->config.n_kv_heads * 2 * m->config.head_dim) * HH_PLAN_CACHE_VALUE_BYTES;
    printf("%s: %" PRId64 " of %" PRId64 " heads keep full attention, %" PRId64 " parameters\n", out_dir,
           hh_plan_count(p), p->n_layers * p->n_heads, hh_tensor_count(m->flat));
    printf("KV cache: %.0f bytes a token before, %.0f after (bfloat16)\n", before,
           hh_config_cache_bytes(&m->config, HH_PLAN_CACHE_VALUE_BYTES));
}

static hh_code check_plan(const hh_plan *plan, const hh_model *teacher, const hh_hybrid_options *o, hh_error *err) {
    const hh_code code = hh_hybrid_check(&teacher->config, plan, o, err);
    return code == HH_OK ? code : hh_fail_in(err, "%s", teacher->path);
}

static bool is_calibrated(const hh_hybrid_options *o) {
    return o->fusion == HH_FUSION_SCALE && strcmp(gamma_start, "1");
}

static hh_code check_use(int argc, char **argv, hh_error *err) {
    const hh_hybrid_options o = hybrid_options();
    const bool calibrated = is_calibrated(&o);
    static const char uncalibrated[] = "heads' scales are measured with --fusion scale and --gamma rms alone";
    const hh_option_use use[] = {
        {"gamma", o.fusion == HH_FUSION_SCALE, "heads have scales with --fusion scale alone"},
        {"calibration", calibrated, uncalibrated},
        {"calibration-tokens", calibrated, uncalibrated},
        {"log-scale-in-training", log_scale_base > 0, "--log-scale-base 0 switches that scale off"},
        {"gate-bias", o.fa_gate || o.gdn_gate, "--no-fa-gate leaves no output gate; --gdn-gate adds some"},
        {0}};
    return hh_options_check_use(&command, argc, argv, use, "in this hybrid", err);
}

static hh_code convert(const char *path, hh_error *err) {
    hh_plan plan = {0};
    hh_backend *be = NULL;
    hh_model *teacher = NULL, *hybrid = NULL;
    double *gamma = NULL;
    hh_hybrid_options o = hybrid_options();
    hh_code code;
    if (!*plan_path || !*out_dir) return hh_fail(err, HH_EINVAL, "convert needs --plan FILE and --out DIR");
    HH_TRY(hh_cli_check_out(path, out_dir, force, err));
    HH_TRY_GOTO(code, hh_plan_read(&plan, plan_path, err), out);
    HH_TRY_GOTO(code, hh_cli_backend(&common, &be, err), out);
    HH_TRY_GOTO(code, hh_model_open(&teacher, be, path, HH_LOAD_STORED, err), out);
    HH_TRY_GOTO(code, check_plan(&plan, teacher, &o, err), out);
    HH_TRY_GOTO(code, hh_make_directory(out_dir, err), out); /* before the work, not behind it */
    if (is_calibrated(&o)) {
        gamma = hh_alloc((size_t)(plan.n_layers * plan.n_heads) * sizeof *gamma);
        HH_TRY_GOTO(code, calibrate(gamma, teacher, err), out);
    }
    HH_TRY_GOTO(code, hh_migrate(&hybrid, teacher, &plan, &o, gamma, err), out);
    bool bf16 = strcmp(save_dtype, "auto") ? !strcmp(save_dtype, "bf16") : teacher->config.stored == HH_DTYPE_BF16;
    HH_TRY_GOTO(code, hh_model_save(hybrid, out_dir, bf16 ? HH_DTYPE_BF16 : HH_DTYPE_F32, path, err), out);
    report(&plan, hybrid);
out:
    hh_free(gamma);
    hh_model_close(hybrid);
    hh_model_close(teacher);
    hh_backend_close(be);
    hh_plan_release(&plan);
    return code;
}

int hh_cmd_convert(int argc, char **argv) {
    hh_words words;
    int code;
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_error err = {0};
    hh_code done = check_use(argc, argv, &err);
    if (done == HH_OK) done = convert(words.word[0], &err);
    hh_words_release(&words);
    return done == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
