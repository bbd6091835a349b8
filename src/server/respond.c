/* What the API says, as JSON: errors, results, streamed pieces, usage, log-probabilities. */
#include "server/server_job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *hh_error_json(int status, const char *sentence) {
    static const struct {
        int status;
        const char *type;
    } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"},  {404, "not_found_error"},
                 {405, "invalid_request_error"}, {413, "invalid_request_error"}, {501, "not_implemented_error"},
                 {503, "overloaded_error"}};
    const char *type = "server_error";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status) type = types[i].type;
    hh_buf text = {0};
    hh_clean_utf8(sentence, strlen(sentence), &text);
    json_t *j = json_pack("{s:{s:s, s:s, s:n, s:i}}", "error", "message", text.data ? text.data : "", "type", type,
                          "param", "code", status);
    hh_buf_release(&text);
    return j;
}

static int add_text(const char *text, size_t n, void *out) {
    hh_buf_add(out, text, n);
    return 0;
}

void hh_out_json(hh_buf *out, json_t *j) {
    json_dump_callback(j, add_text, out, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(j);
}

void hh_out_event(hh_buf *out, json_t *j) {
    hh_buf_puts(out, "data: ");
    hh_out_json(out, j);
    hh_buf_puts(out, "\n\n");
}

json_t *hh_usage_json(const hh_job *j) {
    json_int_t prompt = 0, made = 0, cached = 0;
    for (int64_t i = 0; i < j->request.n_prompts; i++) prompt += j->request.prompt[i].n;
    for (int64_t i = 0; i < j->n_answers; i++) {
        made += j->answer[i].n_made;
        if (i % j->request.n == 0) cached += j->answer[i].n_cached; /* the other answers read the first one's prompt */
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens", made, "total_tokens",
                     prompt + made, "prompt_tokens_details", "cached_tokens", cached);
}

static const char *object_name(const hh_job *j, bool chunk) {
    return !j->request.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
}

static json_t *head(const hh_job *j, const char *model, bool chunk) {
    return json_pack("{s:s, s:s, s:I, s:s}", "id", j->id, "object", object_name(j, chunk), "created",
                     (json_int_t)j->created, "model", model);
}

static json_t *finish_json(const hh_answer *a) {
    return a->finish ? json_string(a->finish) : json_null();
}

/* -- log-probabilities -- */

static json_t *bytes_json(const char *text, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer((unsigned char)text[i]));
    return list;
}

static json_t *text_json(const char *text, size_t n) {
    hh_buf clean = {0};
    hh_clean_utf8(text, n, &clean);
    json_t *j = json_stringn(clean.data ? clean.data : "", clean.len);
    hh_buf_release(&clean);
    return j;
}

/* -infinity is not JSON. */
static json_t *probability_json(double x) {
    return isnan(x) ? json_null() : json_real(fmax(x, -9999));
}

static json_t *token_json(const hh_engine *e, int32_t id, double p) {
    char *text = NULL;
    size_t n = 0;
    hh_error ignored;
    json_t *j = json_object();
    if (hh_engine_detokenize(e, &id, 1, true, &text, &n, &ignored) != HH_OK) n = 0;
    json_object_set_new(j, "token", text_json(text ? text : "", n));
    json_object_set_new(j, "logprob", probability_json(p));
    json_object_set_new(j, "bytes", bytes_json(text ? text : "", n));
    hh_memory_free(text);
    return j;
}

void hh_answer_add_token(hh_answer *a, const hh_engine *e, int32_t id, double p, const int32_t *top_id,
                         const double *top, int64_t n_top) {
    json_t *one = token_json(e, id, p), *list = json_array();
    for (int64_t i = 0; i < n_top; i++) json_array_append_new(list, token_json(e, top_id[i], top[i]));
    json_object_set_new(one, "top_logprobs", list);
    if (!a->tokens) a->tokens = json_array();
    json_array_append_new(a->tokens, one);
}

/* Completions tell tokens in four lists side by side. */
static json_t *lists_json(hh_answer *a, const json_t *told) {
    json_t *tokens = json_array(), *p = json_array(), *top = json_array(), *offset = json_array(), *one, *other;
    size_t i, k;
    json_array_foreach((json_t *)told, i, one) {
        json_t *map = json_object();
        json_array_foreach(json_object_get(one, "top_logprobs"), k, other)
            json_object_set(map, json_string_value(json_object_get(other, "token")), json_object_get(other, "logprob"));
        json_array_append(tokens, json_object_get(one, "token"));
        json_array_append(p, json_object_get(one, "logprob"));
        json_array_append_new(offset, json_integer(a->text_offset));
        a->text_offset += (int64_t)json_string_length(json_object_get(one, "token"));
        if (json_is_null(json_object_get(one, "logprob"))) { /* the first token of all has none */
            json_decref(map);
            map = json_null();
        }
        json_array_append_new(top, map);
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", p, "top_logprobs", top, "text_offset",
                     offset);
}

static json_t *log_probabilities_json(hh_answer *a) {
    if (a->job->request.n_top < 0) return json_null();
    json_t *told = a->tokens ? a->tokens : json_array();
    a->tokens = NULL; /* nothing is told twice */
    if (a->job->request.chat) return json_pack("{s:o}", "content", told);
    json_t *lists = lists_json(a, told);
    json_decref(told);
    return lists;
}

/* -- results and pieces -- */

static json_t *choice_json(hh_answer *a) {
    json_t *text = text_json(a->whole.data ? a->whole.data : "", a->whole.len);
    if (!a->job->request.chat)
        return json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)a->index, "text", text, "logprobs",
                         log_probabilities_json(a), "finish_reason", finish_json(a));
    return json_pack("{s:I, s:{s:s, s:o}, s:o, s:o}", "index", (json_int_t)a->index, "message", "role", "assistant",
                     "content", text, "logprobs", log_probabilities_json(a), "finish_reason", finish_json(a));
}

json_t *hh_result_json(const hh_job *j, const char *model) {
    json_t *r = head(j, model, false), *choices = json_array();
    for (int64_t i = 0; i < j->n_answers; i++) json_array_append_new(choices, choice_json(&j->answer[i]));
    json_object_set_new(r, "choices", choices);
    json_object_set_new(r, "usage", hh_usage_json(j));
    return r;
}

json_t *hh_chunk_json(hh_answer *a, const char *model, const char *text, bool first) {
    json_t *r = head(a->job, model, true), *choice;
    if (!a->job->request.chat) {
        choice = json_pack("{s:I, s:s, s:o, s:o}", "index", (json_int_t)a->index, "text", text, "logprobs",
                           log_probabilities_json(a), "finish_reason", finish_json(a));
    } else {
        json_t *delta = json_object();
        if (first) json_object_set_new(delta, "role", json_string("assistant"));
        if (first || *text) json_object_set_new(delta, "content", json_string(text));
        choice = json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)a->index, "delta", delta, "logprobs",
                           log_probabilities_json(a), "finish_reason", finish_json(a));
    }
    json_object_set_new(r, "choices", json_pack("[o]", choice));
    if (a->job->request.include_usage) json_object_set_new(r, "usage", json_null());
    return r;
}

json_t *hh_usage_chunk_json(const hh_job *j, const char *model) {
    json_t *r = head(j, model, true);
    json_object_set_new(r, "choices", json_array());
    json_object_set_new(r, "usage", hh_usage_json(j));
    return r;
}
