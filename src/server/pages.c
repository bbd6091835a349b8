/* Answers that need no computing: the chat page, what is served, counters, tokens. */
#include "server/http.h"

#include "server/chat_page.h"

#include <stdlib.h>
#include <string.h>

/* -- answers -- */

static enum MHD_Result answer(struct MHD_Connection *c, int status, struct MHD_Response *r, const char *type) {
    MHD_add_response_header(r, "Content-Type", type);
    if (status == 401) MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    enum MHD_Result done = MHD_queue_response(c, (unsigned)status, r);
    MHD_destroy_response(r);
    return done;
}

enum MHD_Result hh_answer_bytes(struct MHD_Connection *c, int status, const char *type, const void *data, size_t size,
                                enum MHD_ResponseMemoryMode mode) {
    return answer(c, status, MHD_create_response_from_buffer(size, (void *)data, mode), type);
}

static struct MHD_Response *json_response(json_t *j) {
    hh_buf out = {0};
    hh_out_json(&out, j);
    hh_buf_puts(&out, "\n");
    struct MHD_Response *r = MHD_create_response_from_buffer(out.len, out.data, MHD_RESPMEM_MUST_COPY);
    hh_buf_release(&out);
    return r;
}

enum MHD_Result hh_answer_json(struct MHD_Connection *c, int status, json_t *j) {
    return answer(c, status, json_response(j), "application/json");
}

enum MHD_Result hh_answer_error(struct MHD_Connection *c, int status, const char *sentence) {
    return hh_answer_json(c, status, hh_error_json(status, sentence));
}

enum MHD_Result hh_answer_refusal(struct MHD_Connection *c, int status, const char *sentence, bool last) {
    struct MHD_Response *r = json_response(hh_error_json(status, sentence));
    if (last) MHD_add_response_header(r, "Connection", "close");
    return answer(c, status, r, "application/json");
}

/* -- what needs no computing -- */

static json_t *model_json(const hh_http *h) {
    return json_pack("{s:s, s:s, s:I, s:s}", "id", h->o->model_name, "object", "model", "created",
                     (json_int_t)h->started, "owned_by", "hydrahead");
}

enum MHD_Result hh_serve_models(hh_http *h, struct MHD_Connection *c, hh_exchange *x) {
    (void)x;
    return hh_answer_json(c, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(h)));
}

enum MHD_Result hh_serve_health(hh_http *h, struct MHD_Connection *c, hh_exchange *x) {
    (void)h, (void)x;
    return hh_answer_json(c, 200, json_pack("{s:s}", "status", "ok"));
}

/* Does the model have a chat template? The page completes texts where there is none. */
static bool can_chat(const hh_engine *e) {
    static const hh_message one = {.role = "user", .content = "a"};
    int32_t *ids = NULL;
    int64_t n = 0;
    hh_error none;
    const bool can = hh_engine_chat(e, &one, 1, &ids, &n, &none) == HH_OK;
    free(ids);
    return can;
}

enum MHD_Result hh_serve_props(hh_http *h, struct MHD_Connection *c, hh_exchange *x) {
    hh_engine_info i = hh_engine_get_info(h->scheduler.engine);
    (void)x;
    return hh_answer_json(
        c, 200,
        json_pack("{s:s, s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:s}", "model", h->o->model_name,
                  "family", i.family, "backend", i.backend, "hybrid", i.hybrid, "chat", can_chat(h->scheduler.engine),
                  "context", (json_int_t)h->o->context, "native_context", (json_int_t)i.native_context, "vocabulary",
                  (json_int_t)i.vocab, "heads", (json_int_t)(i.n_layers * i.n_heads), "full_attention_heads",
                  (json_int_t)i.n_kept_heads, "cache_bytes_per_token", i.cache_bytes_per_token, "state_bytes",
                  i.state_bytes, "slots", (json_int_t)h->o->slots, "version", hh_version()));
}

static void metric(hh_buf *out, const char *name, const char *kind, const char *help, double value) {
    hh_buf_printf(out, "# HELP hydrahead_%s %s\n# TYPE hydrahead_%s %s\nhydrahead_%s %.17g\n", name, help, name, kind,
                  name, value);
}

enum MHD_Result hh_serve_metrics(hh_http *h, struct MHD_Connection *c, hh_exchange *x) {
    hh_scheduler *s = &h->scheduler;
    hh_buf out = {0};
    (void)x;
    pthread_mutex_lock(&s->lock);
    hh_server_stats t = s->stats;
    double under_way = (double)s->n_under_way;
    pthread_mutex_unlock(&s->lock);
    metric(&out, "requests_total", "counter", "Requests that asked for tokens.", (double)t.requests);
    metric(&out, "requests_finished_total", "counter", "Requests that were answered.", (double)t.finished);
    metric(&out, "requests_failed_total", "counter", "Requests that ended in an error.", (double)t.failed);
    metric(&out, "requests_cancelled_total", "counter", "Requests whose client left.", (double)t.cancelled);
    metric(&out, "requests_refused_total", "counter", "Requests for which the queue had no room.", (double)t.refused);
    metric(&out, "requests_under_way", "gauge", "Requests in the queue or being answered.", under_way);
    metric(&out, "slots", "gauge", "Answers that can be made at the same time.", (double)h->o->slots);
    metric(&out, "slots_busy", "gauge", "Answers being read or made.", (double)atomic_load(&s->n_busy));
    metric(&out, "prompt_tokens_total", "counter", "Tokens of prompts.", (double)t.prompt_tokens);
    metric(&out, "cached_tokens_total", "counter", "Tokens of prompts that were not read again.",
           (double)t.cached_tokens);
    metric(&out, "generated_tokens_total", "counter", "Tokens of answers.", (double)t.made_tokens);
    metric(&out, "busy_seconds_total", "counter", "Time spent computing.", t.busy_seconds);
    enum MHD_Result done =
        hh_answer_bytes(c, 200, "text/plain; version=0.0.4", out.data, out.len, MHD_RESPMEM_MUST_COPY);
    hh_buf_release(&out);
    return done;
}

enum MHD_Result hh_serve_page(hh_http *h, struct MHD_Connection *c, hh_exchange *x) {
    (void)h, (void)x;
    return hh_answer_bytes(c, 200, "text/html; charset=utf-8", hh_chat_page, hh_chat_page_size, MHD_RESPMEM_PERSISTENT);
}

enum MHD_Result hh_serve_embeddings(hh_http *h, struct MHD_Connection *c, hh_exchange *x) {
    (void)h, (void)x;
    return hh_answer_error(c, 501, "this server makes no embeddings; it completes text and chats");
}

/* -- tokens -- */

enum MHD_Result hh_serve_tokenize(hh_http *h, struct MHD_Connection *c, hh_exchange *x) {
    json_t *body = json_loadb(x->body.data ? x->body.data : "", x->body.len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *text = json_object_get(body, "content");
    if (!text) text = json_object_get(body, "text");
    hh_error err = {0};
    int32_t *ids = NULL;
    int64_t n = 0;
    enum MHD_Result done;
    if (!json_is_string(text)) {
        done = hh_answer_error(c, 400, "the body must be a JSON object with text under 'content'");
    } else if (hh_engine_tokenize(h->scheduler.engine, json_string_value(text), json_string_length(text),
                                  json_is_true(json_object_get(body, "special")), &ids, &n, &err) != HH_OK) {
        done = hh_answer_error(c, 400, err.text);
    } else {
        json_t *list = json_array();
        for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
        done = hh_answer_json(c, 200, json_pack("{s:o}", "tokens", list));
    }
    hh_memory_free(ids);
    json_decref(body);
    return done;
}

enum MHD_Result hh_serve_detokenize(hh_http *h, struct MHD_Connection *c, hh_exchange *x) {
    json_t *body = json_loadb(x->body.data ? x->body.data : "", x->body.len, JSON_REJECT_DUPLICATES, NULL),
           *list = json_object_get(body, "tokens"), *one;
    size_t i, n = json_array_size(list), size = 0;
    int64_t vocab = hh_engine_get_info(h->scheduler.engine).vocab;
    int32_t *ids = hh_alloc((n + 1) * sizeof *ids);
    bool good = json_is_array(list);
    char *text = NULL;
    hh_error err = {0};
    enum MHD_Result done;
    json_array_foreach(list, i, one) {
        good = good && json_is_integer(one) && json_integer_value(one) >= 0 && json_integer_value(one) < vocab;
        if (good) ids[i] = (int32_t)json_integer_value(one);
    }
    if (!good) {
        done = hh_answer_error(
            c, 400, "the body must be a JSON object with a list of token ids of the vocabulary under 'tokens'");
    } else if (hh_engine_detokenize(h->scheduler.engine, ids, (int64_t)n, true, &text, &size, &err) != HH_OK) {
        done = hh_answer_error(c, 400, err.text);
    } else {
        hh_buf clean = {0};
        hh_clean_utf8(text, size, &clean);
        done = hh_answer_json(c, 200, json_pack("{s:s%}", "content", clean.data ? clean.data : "", clean.len));
        hh_buf_release(&clean);
    }
    hh_memory_free(text);
    hh_free(ids);
    json_decref(body);
    return done;
}
