/* `diff`: where do two models part? The same tokens through both, layer by layer, and their logits. */
#include "base/filemap.h"
#include "text/idlist.h"
#include "cli/opened.h"
#include "tensor/mirror.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static hh_cli_common common = HH_CLI_COMMON_INIT;
static const char *ids_text, *file;
static int64_t length = 512;
static double tolerance = 1e-3;
static bool json;

static const hh_option options[] = {
    HH_CLI_IDS_OPTION(ids_text),
    HH_CLI_FILE_OPTION(file, "a text, tokenised as the first model does"),
    {.name = "length",
     .kind = HH_OPTION_INT,
     .value = &length,
     .argument = "N",
     .min = 1,
     .max = 1e6,
     .help = "most tokens to compare"},
    {.name = "tolerance",
     .kind = HH_OPTION_FLOAT,
     .value = &tolerance,
     .argument = "X",
     .min = 0,
     .max = 1e9,
     .help = "relative difference of a layer's stream that counts as divergence"},
    HH_CLI_JSON_OPTION(json),
    HH_CLI_COMMON_OPTIONS(common),
    {0},
};

static const hh_command command = {
    .verb = "diff",
    .summary = "where two models differ: logits, streams layer by layer, first divergence",
    .words = "MODEL MODEL",
    .description = "Runs the same tokens through both models and prints, for every layer, how far apart their residual "
                   "streams are (root mean "
                   "square of the difference over that of the first model's stream), the largest difference of the "
                   "logits, and where "
                   "the two first part: the layer, and the token whose most likely successor differs.",
    .example = "hydrahead diff nano nano --ids 1,2,3,4,5",
    .options = options,
    .min_words = 2,
    .max_words = 2,
};

/* What one model computed. */
typedef struct record {
    hh_backend *be;
    int64_t n_layers, n, width, vocab;
    hh_real *stream; /* [L, n, C] */
    hh_real *logits; /* [n, V] */
} record;

static void keep(void *context, hh_point point, int64_t layer, hh_tensor t) {
    record *r = context;
    if (point != HH_POINT_BLOCK_OUTPUT) return;
    hh_tensor_to_host(r->be, r->stream + layer * r->n * r->width, t);
}

/* Room for the logits of so many tokens where the model computes. */
enum { TILE = 64 };

static hh_code run_model(record *r, const hh_model *m, const hh_ids *ids, hh_run *run, hh_tensor tile, hh_error *err) {
    const hh_span span = {.hi = r->n};
    const hh_batch batch = {.n_tokens = r->n, .n_spans = 1, .ids = ids->data, .span = &span};
    hh_tensor final;
    hh_run_set_tap(run, (hh_tap){.call = keep, .context = r});
    HH_TRY(hh_forward(run, &batch, &final, err));
    for (int64_t lo = 0; lo < r->n; lo += TILE) {
        int64_t n = r->n - lo < TILE ? r->n - lo : TILE;
        hh_logits(run, hh_tensor_rows(final, lo, lo + n), NULL, n, hh_tensor_rows(tile, 0, n));
        hh_tensor_to_host(m->be, r->logits + lo * r->vocab, hh_tensor_rows(tile, 0, n));
    }
    return m->be->sync(m->be, err);
}

static hh_code take(record *r, const hh_model *m, const hh_ids *ids, hh_error *err) {
    const hh_config *c = &m->config;
    *r = (record){.be = m->be, .n_layers = c->n_layers, .n = ids->len, .width = c->width, .vocab = c->vocab};
    void *stream, *logits;
    HH_TRY(hh_alloc_checked(&stream, (size_t)(r->n_layers * r->n), (size_t)r->width * sizeof(hh_real),
                            "the streams of all layers", err));
    r->stream = stream;
    HH_TRY(hh_alloc_checked(&logits, (size_t)r->n, (size_t)r->vocab * sizeof(hh_real), "logits", err));
    r->logits = logits;
    hh_run *run = NULL;
    hh_arena arena = {0};
    size_t bytes = TILE * (size_t)r->vocab * sizeof(hh_real) + HH_ARENA_ALIGN;
    hh_code code = m->be->arena_init(m->be, &arena, "logits", bytes, err);
    if (code == HH_OK) code = hh_run_new(&run, m, r->n, 1, HH_RUN_INFERENCE, err);
    if (code == HH_OK) {
        hh_tensor tile = hh_tensor_place_2d(&arena, HH_DTYPE_REAL, TILE, r->vocab);
        code = run_model(r, m, ids, run, tile, err);
    }
    hh_run_free(run);
    if (arena.base) m->be->arena_release(m->be, &arena);
    return code;
}

static void drop(record *r) {
    hh_free(r->stream);
    hh_free(r->logits);
}

/* Root mean square of a - b over that of a. */
static double relative(const hh_real *a, const hh_real *b, int64_t n) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        difference += d * d;
        size += (double)a[i] * (double)a[i];
    }
    return difference > 0 ? sqrt(difference / size) : 0;
}

static int64_t argmax(const hh_real *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

typedef struct findings {
    double max_logit, at_logit; /* the largest difference of logits, and the largest logit */
    int64_t layer, token;       /* first divergence; -1: none */
    double *of_layer;           /* NULL: streams of different shape */
} findings;

static void compare(findings *f, const record *a, const record *b) {
    f->layer = f->token = -1;
    for (int64_t i = 0; i < a->n * a->vocab; i++) {
        double d = fabs((double)a->logits[i] - (double)b->logits[i]), x = fabs((double)a->logits[i]);
        if (!(d <= f->max_logit)) f->max_logit = d;
        if (x > f->at_logit) f->at_logit = x;
    }
    for (int64_t i = 0; i < a->n && f->token < 0; i++)
        if (argmax(a->logits + i * a->vocab, a->vocab) != argmax(b->logits + i * b->vocab, b->vocab)) f->token = i;
    if (a->n_layers != b->n_layers || a->width != b->width) return;
    const int64_t size = a->n * a->width;
    f->of_layer = hh_alloc((size_t)a->n_layers * sizeof *f->of_layer);
    for (int64_t l = 0; l < a->n_layers; l++) {
        f->of_layer[l] = relative(a->stream + l * size, b->stream + l * size, size);
        if (f->layer < 0 && !(f->of_layer[l] <= tolerance)) f->layer = l;
    }
}

static void print_json(const findings *f, const record *a) {
    json_t *layers = f->of_layer ? json_array() : json_null();
    for (int64_t l = 0; f->of_layer && l < a->n_layers; l++) json_array_append_new(layers, json_real(f->of_layer[l]));
    json_t *o = json_pack("{s:I, s:f, s:f, s:o, s:I, s:I}", "tokens", (json_int_t)a->n, "max_logit_difference",
                          f->max_logit, "largest_logit", f->at_logit, "layers", layers, "first_layer",
                          (json_int_t)f->layer, "first_token", (json_int_t)f->token);
    json_dumpf(o, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(o);
}

static void print_text(const findings *f, const record *a) {
    for (int64_t l = 0; f->of_layer && l < a->n_layers; l++)
        printf("layer %3lld  stream differs by %.3g\n", (long long)l, f->of_layer[l]);
    if (!f->of_layer) puts("the models have different layers or widths: only logits are compared");
    printf("logits differ by at most %.3g (the largest is %.4g)\n", f->max_logit, f->at_logit);
    if (f->layer >= 0) printf("streams part at layer %lld (more than %g)\n", (long long)f->layer, tolerance);
    if (f->token >= 0) {
        printf("the most likely next token first differs after token %lld of %lld\n", (long long)f->token,
               (long long)a->n);
    } else {
        printf("the most likely next token is the same after all %lld tokens\n", (long long)a->n);
    }
}

static hh_code read_ids(hh_ids *ids, const hh_cli_opened *o, hh_error *err) {
    if (ids_text) HH_TRY(hh_ids_read(ids, "--ids", ids_text, o->m->config.vocab, err));
    if (file) {
        hh_buf text = {0};
        hh_code code = hh_file_read(file, (size_t)1 << 30, &text, err);
        if (code == HH_OK) code = hh_tokenizer_encode(o->t, text.data, text.len, HH_ENCODE_PLAIN, ids, err);
        hh_buf_release(&text);
        if (code != HH_OK) return code;
    }
    if (ids->len > length) ids->len = length;
    return ids->len ? HH_OK : hh_fail(err, HH_EINVAL, "%s: no tokens to compare with", file);
}

static hh_code work(const hh_words *words, hh_error *err) {
    hh_cli_opened a = {0}, b = {0};
    hh_ids ids = {0};
    record ra = {0}, rb = {0};
    findings f = {0};
    hh_code code;
    HH_TRY_GOTO(code, hh_cli_opened_open(&a, &common, words->word[0], file != NULL, err), done);
    HH_TRY_GOTO(code, hh_cli_opened_open(&b, &common, words->word[1], false, err), done);
    if (a.m->config.vocab != b.m->config.vocab) {
        code = hh_fail(err, HH_EUNSUPPORTED, "%s has %lld tokens and %s has %lld: their logits cannot be compared",
                       words->word[0], (long long)a.m->config.vocab, words->word[1], (long long)b.m->config.vocab);
        goto done;
    }
    HH_TRY_GOTO(code, read_ids(&ids, &a, err), done);
    HH_TRY_GOTO(code, take(&ra, a.m, &ids, err), done);
    HH_TRY_GOTO(code, take(&rb, b.m, &ids, err), done);
    compare(&f, &ra, &rb);
    if (json) {
        print_json(&f, &ra);
    } else {
        print_text(&f, &ra);
    }
done:
    hh_free(f.of_layer);
    drop(&ra);
    drop(&rb);
    hh_ids_release(&ids);
    hh_cli_opened_close(&a);
    hh_cli_opened_close(&b);
    return code;
}

int hh_cmd_diff(int argc, char **argv) {
    hh_words words;
    int code;
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_error err = {0};
    if (!ids_text == !file) {
        hh_fail(&err, HH_EINVAL, "diff needs either --ids or --file; see `hydrahead diff --help`");
    } else {
        work(&words, &err);
    }
    hh_words_release(&words);
    return err.code == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
