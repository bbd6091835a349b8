/* `logits`: what the model says of every next token, as a NumPy array. Needs no tokenizer: ids go in. */
#include "base/progress.h"
#include "cli/cli.h"
#include "text/idlist.h"
#include "format/npy.h"
#include "model/forward.h"
#include "tensor/mirror.h"

static hh_cli_common common = HH_CLI_COMMON_INIT;
static const char *ids_text, *out_path;
static int64_t chunk = 512;

static const hh_option options[] = {
    HH_CLI_IDS_OPTION(ids_text),
    {.name = "out",
     .letter = 'o',
     .kind = HH_OPTION_STRING,
     .value = &out_path,
     .argument = "FILE",
     .help = "the .npy file to write: float32 [tokens, vocabulary]"},
    {.name = "chunk",
     .kind = HH_OPTION_INT,
     .value = &chunk,
     .argument = "N",
     .min = 1,
     .max = 1e6,
     .help = "tokens of one pass"},
    HH_CLI_COMMON_OPTIONS(common),
    {0},
};

static const hh_command command = {
    .verb = "logits",
    .summary = "logits of given token ids, as a .npy file",
    .words = "MODEL",
    .description =
        "Runs the model over the given token ids and writes the logits of every position as a float32 array of shape "
        "[tokens, vocabulary]. No tokenizer is needed.",
    .example = "hydrahead logits nano --ids 1,2,3 --out logits.npy",
    .options = options,
    .min_words = 1,
    .max_words = 1,
};

/* All chunks one after another through one cache. */
static hh_code write_logits(const hh_model *m, hh_run *run, hh_cache *cache, const hh_ids *ids, hh_tensor logits,
                            hh_mirror *mirror, hh_file_writer *w, hh_error *err) {
    hh_progress p;
    hh_progress_begin(&p, "logits", "tokens", (double)ids->len);
    for (int64_t lo = 0; lo < ids->len; lo += chunk) {
        if (hh_interrupted()) return hh_fail(err, HH_ECANCELLED, "interrupted; %s has not been written", out_path);
        int64_t n = lo + chunk < ids->len ? chunk : ids->len - lo;
        const hh_span span = {.hi = n, .pos = lo};
        const hh_batch batch = {.n_tokens = n, .n_spans = 1, .ids = ids->data + lo, .span = &span, .cache = &cache};
        hh_tensor final, y = hh_tensor_rows(logits, 0, n);
        HH_TRY(hh_forward(run, &batch, &final, err));
        hh_logits(run, final, NULL, n, y);
        const hh_real *x = hh_mirror_read(mirror, y);
        HH_TRY(m->be->sync(m->be, err));
        HH_TRY(hh_npy_add(w, x, hh_tensor_count(y), err));
        hh_progress_update(&p, (double)(lo + n), NULL);
    }
    hh_progress_end(&p);
    return HH_OK;
}

static hh_code work(const char *path, hh_error *err) {
    hh_backend *be = NULL;
    hh_model *m = NULL;
    hh_run *run = NULL;
    hh_cache *cache = NULL;
    hh_arena arena = {0};
    hh_mirror mirror = {0};
    hh_file_writer *w = NULL;
    hh_ids ids = {0};
    hh_code code;
    HH_TRY_GOTO(code, hh_cli_backend(&common, &be, err), done);
    HH_TRY_GOTO(code, hh_model_open(&m, be, path, HH_LOAD_STORED, err), done);
    HH_TRY_GOTO(code, hh_ids_read(&ids, "--ids", ids_text, m->config.vocab, err), done);
    if (chunk > ids.len) chunk = ids.len;
    HH_TRY_GOTO(code, hh_run_new(&run, m, chunk, 1, HH_RUN_INFERENCE, err), done);
    HH_TRY_GOTO(code, hh_cache_new(&cache, m, ids.len, be->activation, err), done);
    size_t bytes = (size_t)(chunk * m->config.vocab) * sizeof(hh_real) + HH_ARENA_ALIGN;
    HH_TRY_GOTO(code, be->arena_init(be, &arena, "logits", bytes, err), done);
    mirror = hh_mirror_of(be);
    hh_tensor logits = hh_tensor_place_2d(&arena, HH_DTYPE_REAL, chunk, m->config.vocab);
    const int64_t shape[] = {ids.len, m->config.vocab};
    HH_TRY_GOTO(code, hh_npy_begin(&w, out_path, 2, shape, err), done);
    HH_TRY_GOTO(code, write_logits(m, run, cache, &ids, logits, &mirror, w, err), done);
    code = hh_file_writer_commit(w, err);
    w = NULL;
done:
    hh_file_writer_abandon(w);
    hh_ids_release(&ids);
    hh_mirror_release(&mirror);
    if (arena.base) be->arena_release(be, &arena);
    hh_run_free(run);
    hh_cache_free(cache, be);
    hh_model_close(m);
    hh_backend_close(be);
    return code;
}

int hh_cmd_logits(int argc, char **argv) {
    hh_words words;
    int code;
    if (!hh_cli_parse(&command, argc, argv, &words, &code)) return code;
    hh_error err = {0};
    if (!ids_text || !out_path) {
        hh_fail(&err, HH_EINVAL, "logits needs --ids and --out; see `hydrahead logits --help`");
    } else {
        work(words.word[0], &err);
    }
    hh_words_release(&words);
    return err.code == HH_OK ? hh_cli_done() : hh_cli_fail(&err);
}
