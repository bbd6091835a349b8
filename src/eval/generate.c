/* Greedy answers to prompts; see generate.h. */
#include "eval/generate.h"

#include "base/progress.h"
#include "base/stats.h"
#include "data/jsonl.h"
#include "session/session.h"

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
    hh_session *session;
    hh_ids end_ids, made;
    int64_t max_new, n_scored, n_truncated;
    double *score;
    json_t *outputs;
} generation;

static hh_code answer_one(generation *g, const hh_prompt *p, const hh_ids *ids, hh_error *err) {
    hh_rng unused = hh_rng_seeded(0);
    hh_buf text = {0};
    int64_t n_new = 0;
    g->made.len = 0;
    hh_session_reset(g->session);
    HH_TRY(hh_session_eval(g->session, ids->data, ids->len, err));
    HH_TRY(hh_session_generate(g->session, g->max_new, g->end_ids.data, g->end_ids.len, &(hh_sampling){.top_p = 1},
                               &unused, take_token, &g->made, &n_new, err));
    hh_buf_puts(&text, "");
    hh_code code = hh_tokenizer_decode(g->s->tokenizer, g->made.data, g->made.len, false, &text, err);
    bool ended = g->made.len < n_new; /* the end token is counted, not handed out */
    json_t *readable = json_string(text.data), *o = json_object();
    json_object_set_new(o, "prompt", json_string(p->text));
    json_object_set_new(o, "text",
                        readable ? readable : json_null()); /* cut within a character: the tokens have it all */
    json_t *tokens = json_array();
    for (int64_t i = 0; i < g->made.len; i++) json_array_append_new(tokens, json_integer(g->made.data[i]));
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

static hh_code answer_all(generation *g, const hh_prompts *p, const hh_ids *ids, hh_error *err) {
    hh_progress progress;
    hh_progress_begin(&progress, g->s->name, "prompts", (double)p->n);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < p->n && code == HH_OK; i++) {
        code = answer_one(g, &p->prompt[i], &ids[i], err);
        if (code == HH_OK && hh_interrupted())
            code = hh_fail(err, HH_ECANCELLED, "interrupted after %lld of %lld prompts", (long long)i + 1,
                           (long long)p->n);
        hh_progress_update(&progress, (double)i + 1, NULL);
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
    if (code == HH_OK)
        code = hh_session_new(&g.session, s->model,
                              &(hh_session_options){.context = longest + max_new, .kv_dtype = s->model->be->activation},
                              err);
    if (code == HH_OK) code = answer_all(&g, p, ids, err);
    if (code == HH_OK) {
        *out = json_pack("{s:O, s:I}", "outputs", g.outputs, "truncated", (json_int_t)g.n_truncated);
        if (g.n_scored) {
            json_object_set_new(*out, "score", json_real(hh_mean(g.score, g.n_scored)));
            json_object_set_new(*out, "score_stderr", json_real(hh_standard_error(g.score, g.n_scored)));
        }
    }
    hh_session_free(g.session);
    for (int64_t i = 0; i < p->n; i++) hh_ids_release(&ids[i]);
    hh_free(ids);
    hh_ids_release(&g.end_ids);
    hh_ids_release(&g.made);
    hh_free(g.score);
    json_decref(g.outputs);
    return code;
}
