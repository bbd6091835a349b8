/* Greedy answers to prompts; see generate.h. */
#include "eval/generate.h"

#include "base/progress.h"
#include "base/stats.h"
#include "data/jsonl.h"
#include "session/many.h"

#include <string.h>

static hh_code read_prompt(void *context, const json_t *o, hh_error *err) {
    hh_prompts *p = context;
    const char *text;
    json_t *answers = json_object_get(o, "answers");
    HH_TRY(hh_jsonl_string(o, "prompt", &text, err));
    if (!*text) return hh_fail(err, HH_EFORMAT, "\"prompt\" is empty");
    if (answers && json_array_size(answers) == 0)
        return hh_fail(err, HH_EFORMAT, "\"answers\" is not an array of strings");
    for (size_t i = 0; i < json_array_size(answers); i++)
        if (!json_is_string(json_array_get(answers, i)))
            return hh_fail(err, HH_EFORMAT, "\"answers\"[%zu] is not a string", i);
    if (p->n == p->capacity)
        p->prompt = hh_realloc(p->prompt, (size_t)(p->capacity = 2 * p->capacity + 64) * sizeof *p->prompt);
    p->prompt[p->n++] = (hh_prompt){hh_strdup(text), json_incref(answers)};
    return HH_OK;
}

static hh_code finish(hh_prompts *p, hh_code code, const char *path, hh_error *err) {
    p->path = path;
    if (code == HH_OK && p->n == 0)
        code = hh_fail(err, HH_EFORMAT, "%s: no prompts; one JSON object a line with \"prompt\"", path);
    if (code != HH_OK) hh_prompts_release(p);
    return code;
}

hh_code hh_prompts_parse(hh_prompts *out, const char *path, const char *bytes, size_t size, int64_t limit,
                         hh_error *err) {
    *out = (hh_prompts){0};
    return finish(out, hh_jsonl_each(path, bytes, size, limit, read_prompt, out, err), path, err);
}

hh_code hh_prompts_read(hh_prompts *out, const char *path, int64_t limit, hh_error *err) {
    *out = (hh_prompts){0};
    return finish(out, hh_jsonl_read(path, limit, read_prompt, out, err), path, err);
}

void hh_prompts_release(hh_prompts *p) {
    for (int64_t i = 0; i < p->n; i++) {
        hh_free(p->prompt[i].text);
        json_decref(p->prompt[i].answers);
    }
    hh_free(p->prompt);
    *p = (hh_prompts){0};
}

static bool take_token(void *context, int32_t id) {
    hh_ids_push(context, id);
    return true;
}

static double score_of(const json_t *answers, const char *text) {
    size_t n = json_array_size(answers), found = 0;
    for (size_t i = 0; i < n; i++) found += strcasestr(text, json_string_value(json_array_get(answers, i))) != NULL;
    return n ? (double)found / (double)n : 0;
}

typedef struct generation {
    const hh_subject *s;
    hh_many *many;
    hh_ids end_ids, made[HH_MANY_MOST];
    int64_t max_new, n_at_once, n_scored, n_truncated;
    double *score;
    json_t *outputs;
} generation;

/* An answer, as its JSON object. */
static hh_code keep(generation *g, const hh_prompt *p, const hh_ids *made, bool ended, hh_error *err) {
    hh_buf text = {0};
    hh_buf_puts(&text, "");
    hh_code code = hh_tokenizer_decode(g->s->tokenizer, made->data, made->len, false, &text, err);
    json_t *readable = json_string(text.data), *o = json_object();
    json_object_set_new(o, "prompt", json_string(p->text));
    json_object_set_new(o, "text",
                        readable ? readable : json_null()); /* cut within a character: the tokens have it all */
    json_t *tokens = json_array();
    for (int64_t i = 0; i < made->len; i++) json_array_append_new(tokens, json_integer(made->data[i]));
    json_object_set_new(o, "tokens", tokens);
    json_object_set_new(o, "finish", json_string(ended ? "end" : "length"));
    g->n_truncated += !ended;
    if (p->answers) {
        g->score[g->n_scored] = score_of(p->answers, text.data);
        json_object_set_new(o, "score", json_real(g->score[g->n_scored++]));
    }
    json_array_append_new(g->outputs, o);
    hh_buf_release(&text);
    return code;
}

static hh_code answer_some(generation *g, const hh_prompt *p, const hh_ids *ids, int64_t n, hh_error *err) {
    hh_request r[HH_MANY_MOST];
    for (int64_t i = 0; i < n; i++) {
        g->made[i].len = 0;
        r[i] = (hh_request){
            .ids = ids[i].data, .n = ids[i].len, .max_new = g->max_new, .on_token = take_token, .context = &g->made[i]};
    }
    HH_TRY(hh_many_answer(g->many, r, n, g->end_ids.data, g->end_ids.len, err));
    for (int64_t i = 0; i < n; i++) /* an end token is counted, not handed out */
        HH_TRY(keep(g, &p[i], &g->made[i], g->made[i].len < r[i].n_new, err));
    return HH_OK;
}

static hh_code answer_all(generation *g, const hh_prompts *p, const hh_ids *ids, hh_error *err) {
    hh_progress progress;
    hh_progress_begin(&progress, g->s->name, "prompts", (double)p->n);
    hh_code code = HH_OK;
    for (int64_t lo = 0, hi; lo < p->n && code == HH_OK; lo = hi) {
        hi = lo + g->n_at_once < p->n ? lo + g->n_at_once : p->n;
        code = answer_some(g, p->prompt + lo, ids + lo, hi - lo, err);
        if (code == HH_OK && hh_interrupted())
            code =
                hh_fail(err, HH_ECANCELLED, "interrupted after %lld of %lld prompts", (long long)hi, (long long)p->n);
        hh_progress_update(&progress, (double)hi, NULL);
    }
    hh_progress_end(&progress);
    return code;
}

hh_code hh_eval_generate(json_t **out, const hh_subject *s, const hh_prompts *p, int64_t max_new, hh_error *err) {
    HH_ASSERT(p->n > 0 && max_new > 0);
    *out = NULL;
    generation g = {
        .s = s, .max_new = max_new, .score = hh_alloc((size_t)p->n * sizeof *g.score), .outputs = json_array()};
    hh_ids *ids = hh_alloc((size_t)p->n * sizeof *ids);
    int64_t longest = 0;
    hh_code code = HH_OK;
    for (int64_t i = 0; i < p->n && code == HH_OK; i++) {
        code = hh_tokenizer_encode(s->tokenizer, p->prompt[i].text, strlen(p->prompt[i].text), HH_ENCODE_SPECIAL,
                                   &ids[i], err);
        if (ids[i].len > longest) longest = ids[i].len;
    }
    hh_subject_end_ids(s, &g.end_ids);
    hh_dtype kv = HH_DTYPE_REAL;
    if (code == HH_OK) code = hh_subject_kv(s, &kv, err);
    g.n_at_once = hh_many_fitting(s->model, longest + max_new, kv);
    if (g.n_at_once > p->n) g.n_at_once = p->n;
    if (code == HH_OK) code = hh_many_new(&g.many, s->model, g.n_at_once, longest + max_new, kv, err);
    if (code == HH_OK) code = answer_all(&g, p, ids, err);
    if (code == HH_OK) {
        *out = json_pack("{s:O, s:I}", "outputs", g.outputs, "truncated", (json_int_t)g.n_truncated);
        if (g.n_scored) {
            json_object_set_new(*out, "score", json_real(hh_mean(g.score, g.n_scored)));
            json_object_set_new(*out, "score_stderr", json_real(hh_standard_error(g.score, g.n_scored)));
        }
    }
    hh_many_free(g.many);
    for (int64_t i = 0; i < p->n; i++) hh_ids_release(&ids[i]);
    hh_free(ids);
    hh_ids_release(&g.end_ids);
    for (int i = 0; i < HH_MANY_MOST; i++) hh_ids_release(&g.made[i]);
    hh_free(g.score);
    json_decref(g.outputs);
    return code;
}
