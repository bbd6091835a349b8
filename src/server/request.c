/* From a body of JSON to a request: types, ranges, and what this server does not do are refused by field and number. */
#include "server/server_job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAD_REQUEST = 400 };

static int refuse(hh_error *err, const char *field, const char *wanted) {
    hh_fail(err, HH_EINVAL, "'%s' must be %s", field, wanted);
    return BAD_REQUEST;
}

static json_t *get(const json_t *o, const char *field) {
    json_t *v = json_object_get(o, field);
    return json_is_null(v) ? NULL : v;
}

static int read_bool(const json_t *o, const char *field, bool *out, hh_error *err) {
    const json_t *v = get(o, field);
    if (v && !json_is_boolean(v)) return refuse(err, field, "true or false");
    if (v) *out = json_is_true(v);
    return 0;
}

static int read_number(const json_t *o, const char *field, double lo, double hi, double *out, hh_error *err) {
    const json_t *v = get(o, field);
    char wanted[96];
    snprintf(wanted, sizeof wanted, "a number from %g to %g", lo, hi);
    if (!v) return 0;
    if (!json_is_number(v) || !(json_number_value(v) >= lo && json_number_value(v) <= hi))
        return refuse(err, field, wanted);
    *out = json_number_value(v);
    return 0;
}

static int read_int(const json_t *o, const char *field, int64_t lo, int64_t hi, int64_t *out, hh_error *err) {
    const json_t *v = get(o, field);
    char wanted[96];
    snprintf(wanted, sizeof wanted, "a whole number from %lld to %lld", (long long)lo, (long long)hi);
    if (!v) return 0;
    double x = json_number_value(v);
    if (!json_is_number(v) || x != floor(x) || !(x >= (double)lo && x <= (double)hi)) return refuse(err, field, wanted);
    *out = (int64_t)x;
    return 0;
}

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        int try_status = (call);                                                                                       \
        if (try_status) return try_status;                                                                             \
    } while (0)

static int read_stops(hh_request *r, const json_t *o, hh_error *err) {
    const json_t *v = get(o, "stop"), *one;
    size_t i;
    if (!v) return 0;
    if (!json_is_string(v) && !json_is_array(v)) return refuse(err, "stop", "text or a list of texts");
    if (json_array_size(v) > HH_MAX_STOPS) return refuse(err, "stop", "at most 16 texts");
    if (json_is_string(v)) {
        if (json_string_length(v)) r->stop[r->n_stops++] = hh_strdup(json_string_value(v));
        return 0;
    }
    json_array_foreach((json_t *)v, i, one) {
        if (!json_is_string(one)) return refuse(err, "stop", "text or a list of texts");
        if (json_string_length(one)) r->stop[r->n_stops++] = hh_strdup(json_string_value(one));
    }
    return 0;
}

static int read_bias(hh_request *r, const json_t *o, hh_error *err) {
    const json_t *v = get(o, "logit_bias");
    const char *key;
    json_t *one;
    if (!v) return 0;
    if (!json_is_object(v) || json_object_size(v) > 4096)
        return refuse(err, "logit_bias", "an object of at most 4096 token ids with numbers");
    r->bias = hh_alloc(json_object_size(v) * sizeof *r->bias);
    json_object_foreach((json_t *)v, key, one) {
        char *end;
        long id = strtol(key, &end, 10);
        double x = json_number_value(one);
        if (*end || end == key || id < 0 || id > INT32_MAX || !json_is_number(one) || !(x >= -100 && x <= 100))
            return refuse(err, "logit_bias", "an object of token ids with numbers from -100 to 100");
        r->bias[r->sampling.n_bias++] = (hh_logit_bias){(int32_t)id, x <= -100 ? -INFINITY : (float)x};
    }
    r->sampling.bias = r->bias;
    return 0;
}

static int read_format(hh_request *r, const json_t *o, hh_error *err) {
    const json_t *v = get(o, "response_format"), *schema;
    if (!v) return 0;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type) return refuse(err, "response_format", "an object with \"type\"");
    if (!strcmp(type, "text")) return 0;
    if (!strcmp(type, "json_object")) {
        r->schema = hh_strdup("");
    } else if (!strcmp(type, "json_schema")) {
        schema = json_object_get(json_object_get(v, "json_schema"), "schema");
        if (!schema) return refuse(err, "response_format", "an object with json_schema.schema");
        char *text = json_dumps(schema, JSON_ENCODE_ANY);
        r->schema = hh_strdup(text ? text : "0");
        free(text);
    } else {
        return refuse(err, "response_format.type", "text, json_object or json_schema");
    }
    r->sampling.json_schema = r->schema;
    return 0;
}

/* What would change the answer and is not done here. */
static int refuse_unknown(const json_t *o, hh_error *err) {
    static const char *const fields[] = {"tools", "functions", "suffix", "audio", "modalities"};
    int64_t best_of = 1;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = get(o, fields[i]);
        if (!v || (json_is_array(v) && !json_array_size(v)) || (json_is_string(v) && !json_string_length(v))) continue;
        hh_fail(err, HH_EUNSUPPORTED, "'%s' is not supported by this server", fields[i]);
        return BAD_REQUEST;
    }
    TRY(read_int(o, "best_of", 1, 1, &best_of, err));
    return 0;
}

static int read_sampling(hh_request *r, const json_t *o, hh_error *err) {
    hh_sampler_options *s = &r->sampling;
    int64_t seed = 0;
    *s = (hh_sampler_options){.temperature = 1, .top_p = 1};
    TRY(read_number(o, "temperature", 0, 100, &s->temperature, err));
    TRY(read_number(o, "top_p", 0, 1, &s->top_p, err));
    TRY(read_number(o, "min_p", 0, 1, &s->min_p, err));
    TRY(read_int(o, "top_k", 0, INT32_MAX, &s->top_k, err));
    TRY(read_number(o, "frequency_penalty", -2, 2, &s->frequency_penalty, err));
    TRY(read_number(o, "presence_penalty", -2, 2, &s->presence_penalty, err));
    TRY(read_number(o, "repetition_penalty", 0.01, 100, &s->repetition_penalty, err));
    TRY(read_int(o, "seed", INT64_MIN / 2, INT64_MAX / 2, &seed, err));
    s->seed = get(o, "seed") ? (uint64_t)seed : (uint64_t)time(NULL) * 2654435761u + (uint64_t)(uintptr_t)r;
    TRY(read_bias(r, o, err));
    return read_format(r, o, err);
}

/* -- prompts -- */

static int add_prompt(hh_request *r, const json_t *v, hh_error *err) {
    hh_prompt_ids *p = &r->prompt[r->n_prompts++]; /* at once: what is refused is released too */
    size_t i;
    json_t *one;
    if (json_is_string(v)) {
        p->text = hh_strdup(json_string_value(v));
    } else {
        p->ids = hh_alloc((json_array_size(v) + 1) * sizeof *p->ids);
        json_array_foreach((json_t *)v, i, one) {
            if (!json_is_integer(one) || json_integer_value(one) < 0 || json_integer_value(one) > INT32_MAX)
                return refuse(err, "prompt", "text, token ids, or a list of such");
            p->ids[p->n++] = (int32_t)json_integer_value(one);
        }
    }
    return 0;
}

static int read_prompts(hh_request *r, const json_t *o, hh_error *err) {
    const json_t *v = get(o, "prompt"), *one;
    size_t i, n = json_array_size(v);
    if (!json_is_string(v) && !n) return refuse(err, "prompt", "text, token ids, or a list of such, and not empty");
    bool many = n && !json_is_integer(json_array_get(v, 0));
    if (many && n > HH_MAX_ANSWERS) return refuse(err, "prompt", "at most 1024 prompts");
    r->prompt = hh_alloc((many ? n : 1) * sizeof *r->prompt);
    if (!many) return add_prompt(r, v, err);
    json_array_foreach((json_t *)v, i, one) {
        if (!json_is_string(one) && !json_is_array(one))
            return refuse(err, "prompt", "text, token ids, or a list of such");
        TRY(add_prompt(r, one, err));
    }
    return 0;
}

/* A message's content is text, or a list of parts of text. */
static bool content_is_text(const json_t *v) {
    size_t i;
    json_t *part;
    if (json_is_string(v)) return true;
    if (!json_array_size(v)) return false;
    json_array_foreach((json_t *)v, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") || !json_is_string(json_object_get(part, "text"))) return false;
    }
    return true;
}

static int check_messages(const json_t *o, hh_error *err) {
    const json_t *v = get(o, "messages");
    size_t i;
    json_t *m;
    if (!json_array_size(v)) return refuse(err, "messages", "a list of messages, and not empty");
    json_array_foreach((json_t *)v, i, m) {
        const char *role = json_string_value(json_object_get(m, "role"));
        if (!role ||
            (strcmp(role, "system") && strcmp(role, "user") && strcmp(role, "assistant") && strcmp(role, "developer")))
            return refuse(err, "messages[].role", "system, user or assistant");
        if (!content_is_text(json_object_get(m, "content")))
            return refuse(err, "messages[].content", "text, or a list of parts of type text");
    }
    return 0;
}

static int read_chat(hh_request *r, const json_t *o, hh_error *err) {
    bool wanted = false;
    TRY(check_messages(o, err));
    TRY(read_bool(o, "logprobs", &wanted, err));
    r->n_top = wanted ? 0 : -1;
    int64_t n_top = 0;
    TRY(read_int(o, "top_logprobs", 0, 20, &n_top, err));
    if (n_top && !wanted) return refuse(err, "top_logprobs", "used with \"logprobs\": true");
    if (wanted) r->n_top = n_top;
    r->max_tokens = -1;
    r->messages = json_incref(get(o, "messages"));
    r->prompt = hh_alloc(sizeof *r->prompt);
    r->n_prompts = 1; /* made of the messages by the engine's template */
    return 0;
}

static int read_completion(hh_request *r, const json_t *o, hh_error *err) {
    r->n_top = -1;
    r->max_tokens = 16; /* OpenAI's default */
    if (json_is_boolean(get(o, "logprobs")))
        r->n_top = json_is_true(get(o, "logprobs")) ? 1 : -1;
    else
        TRY(read_int(o, "logprobs", 0, 20, &r->n_top, err));
    TRY(read_bool(o, "echo", &r->echo, err));
    return read_prompts(r, o, err);
}

static int read_all(hh_request *r, const json_t *o, bool chat, hh_error *err) {
    const json_t *options = get(o, "stream_options");
    r->chat = chat;
    r->n = 1;
    TRY(refuse_unknown(o, err));
    TRY(chat ? read_chat(r, o, err) : read_completion(r, o, err));
    TRY(read_bool(o, "stream", &r->stream, err));
    if (options && !json_is_object(options)) return refuse(err, "stream_options", "an object");
    TRY(read_bool(options, "include_usage", &r->include_usage, err));
    TRY(read_int(o, "n", 1, 16, &r->n, err));
    if (r->n * r->n_prompts > HH_MAX_ANSWERS)
        return refuse(err, "n", "such that there are at most 1024 answers in all");
    TRY(read_int(o, "max_tokens", 0, INT32_MAX, &r->max_tokens, err));
    TRY(read_int(o, "max_completion_tokens", 0, INT32_MAX, &r->max_tokens, err));
    if (r->max_tokens == 0 && !r->echo) return refuse(err, "max_tokens", "at least 1, unless the prompt is echoed");
    TRY(read_stops(r, o, err));
    return read_sampling(r, o, err);
}

int hh_request_read(hh_request *r, const char *body, size_t size, bool chat, hh_error *err) {
    json_error_t where;
    *r = (hh_request){0};
    json_t *o = json_loadb(body, size, JSON_REJECT_DUPLICATES, &where);
    if (!o) {
        hh_fail(err, HH_EFORMAT, "the body is not JSON: %s (line %d, column %d)", where.text, where.line, where.column);
        return BAD_REQUEST;
    }
    int status = BAD_REQUEST;
    if (json_is_object(o))
        status = read_all(r, o, chat, err);
    else
        hh_fail(err, HH_EFORMAT, "the body must be a JSON object");
    json_decref(o);
    return status;
}

void hh_request_release(hh_request *r) {
    for (int64_t i = 0; i < r->n_prompts; i++) {
        hh_free(r->prompt[i].text);
        hh_memory_free(r->prompt[i].ids);
    }
    hh_free(r->prompt);
    for (int i = 0; i < r->n_stops; i++) hh_free(r->stop[i]);
    hh_free(r->bias);
    hh_free(r->schema);
    json_decref(r->messages);
}
