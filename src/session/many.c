/* Several sequences at once; see many.h. */
#include "session/many.h"

#include "base/progress.h"
#include "session/sample.h"

struct hh_many {
    const hh_model *m;
    hh_run *run;
    hh_cache **cache; /* [n_sequences] */
    int64_t n_sequences, context, max_tokens;
    hh_tensor logits;    /* [n_sequences, V] where the model lives */
    hh_real *next;       /* [n_sequences, V] the same for the CPU */
    int32_t *ids, *last; /* [max_tokens] of a batch; [n_sequences] made last, by request */
    hh_span *span;       /* [n_sequences] */
    hh_cache **of_span;
    int64_t *request; /* [n_sequences] that row i of a batch belongs to */
    hh_arena arena, host;
};

int64_t hh_many_fitting(const hh_model *m, int64_t context, hh_dtype kv_dtype) {
    size_t free_bytes = (size_t)2 << 30, all = 0, one = hh_cache_bytes(&m->config, context, kv_dtype);
    if (m->be->memory) m->be->memory(m->be, &free_bytes, &all);
    int64_t most = m->be->decode_tokens < HH_MANY_MOST ? m->be->decode_tokens : HH_MANY_MOST;
    size_t n = one ? free_bytes / 2 / one : HH_MANY_MOST;
    return n < 1 ? 1 : n < (size_t)most ? (int64_t)n : most;
}

static hh_code init(hh_many *s, hh_dtype kv_dtype, hh_error *err) {
    const hh_model *m = s->m;
    hh_backend *be = m->be;
    const size_t rows = (size_t)s->n_sequences, bytes = rows * (size_t)m->config.vocab * sizeof(hh_real);
    s->cache = hh_alloc(rows * sizeof(hh_cache *));
    s->of_span = hh_alloc(rows * sizeof(hh_cache *));
    s->span = hh_alloc(rows * sizeof *s->span);
    s->request = hh_alloc(rows * sizeof *s->request);
    s->last = hh_alloc(rows * sizeof *s->last);
    s->ids = hh_alloc((size_t)s->max_tokens * sizeof *s->ids);
    HH_TRY(be->arena_init(be, &s->arena, "run", bytes + HH_ARENA_ALIGN, err));
    HH_TRY(be->host_arena_init(be, &s->host, "run", bytes + HH_ARENA_ALIGN, err));
    s->logits = hh_tensor_place_2d(&s->arena, HH_DTYPE_REAL, s->n_sequences, m->config.vocab);
    s->next = hh_arena_alloc(&s->host, bytes);
    HH_TRY(hh_run_new(&s->run, m, s->max_tokens, s->n_sequences, HH_RUN_INFERENCE, err));
    for (int64_t i = 0; i < s->n_sequences; i++) HH_TRY(hh_cache_new(&s->cache[i], m, s->context, kv_dtype, err));
    return HH_OK;
}

hh_code hh_many_new(hh_many **out, const hh_model *m, int64_t n_sequences, int64_t context, hh_dtype kv_dtype,
                    hh_error *err) {
    HH_ASSERT(n_sequences > 0 && context > 0);
    hh_many *s = hh_alloc(sizeof *s);
    *out = NULL;
    *s = (hh_many){.m = m, .n_sequences = n_sequences, .context = context, .max_tokens = m->be->pass_tokens};
    if (s->max_tokens > context * n_sequences) s->max_tokens = context * n_sequences;
    if (s->max_tokens < n_sequences) s->max_tokens = n_sequences;
    hh_code code = init(s, kv_dtype, err);
    if (code != HH_OK) {
        hh_many_free(s);
        return code;
    }
    *out = s;
    return HH_OK;
}

void hh_many_free(hh_many *s) {
    if (!s) return;
    hh_backend *be = s->m->be;
    hh_run_free(s->run);
    for (int64_t i = 0; s->cache && i < s->n_sequences; i++) hh_cache_free(s->cache[i], be);
    if (s->arena.base) be->arena_release(be, &s->arena);
    if (s->host.base) be->host_arena_release(be, &s->host);
    hh_free(s->cache);
    hh_free(s->of_span);
    hh_free(s->span);
    hh_free(s->request);
    hh_free(s->last);
    hh_free(s->ids);
    hh_free(s);
}

/* A batch in the making: pieces of requests' tokens, one span each. */
typedef struct batch {
    int64_t n_spans, n_tokens;
} batch;

static void add(hh_many *s, batch *b, int64_t request, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++) s->ids[b->n_tokens + i] = ids[i];
    s->request[b->n_spans] = request;
    s->of_span[b->n_spans] = s->cache[request];
    s->span[b->n_spans] = (hh_span){b->n_tokens, b->n_tokens + n, s->cache[request]->length};
    b->n_spans++;
    b->n_tokens += n;
}

/* Runs a batch; with `last` the most likely next token of every span's request is left in s->last. */
static hh_code run_batch(hh_many *s, batch *b, bool prompt, bool last, hh_error *err) {
    hh_backend *be = s->m->be;
    const int64_t vocab = s->m->config.vocab;
    const hh_batch whole = {.n_tokens = b->n_tokens,
                            .n_spans = b->n_spans,
                            .ids = s->ids,
                            .span = s->span,
                            .cache = s->of_span,
                            .prompt = prompt};
    hh_tensor final, logits = hh_tensor_rows(s->logits, 0, b->n_spans);
    if (hh_interrupted()) return hh_fail(err, HH_ECANCELLED, "interrupted");
    hh_guard_begin();
    hh_code code =
        last ? hh_forward_next(s->run, &whole, logits, &final, err) : hh_forward(s->run, &whole, &final, err);
    if (code == HH_OK && last) be->to_host(be, s->next, logits.data, hh_tensor_bytes(logits));
    hh_guard_end();
    if (code == HH_OK) code = be->sync(be, err);
    for (int64_t i = 0; i < b->n_spans && last && code == HH_OK; i++) {
        const hh_real *row = s->next + i * vocab;
        if (!hh_logits_are_finite(row, vocab))
            return hh_fail(err, HH_ENONFINITE,
                           "%s: a logit is not finite at position %lld; HYDRAHEAD_CHECK=nan names the operation",
                           s->m->path, (long long)s->of_span[i]->length - 1);
        s->last[s->request[i]] = hh_sample_with(row, vocab, &(hh_sampling){0}, NULL, NULL);
    }
    *b = (batch){0};
    return code;
}

static hh_code check(const hh_many *s, const hh_request *r, int64_t number, hh_error *err) {
    if (r->n < 1 || r->n > s->context)
        return hh_fail(err, HH_EINVAL, "prompt %lld has %lld tokens; 1 to %lld fit", (long long)number, (long long)r->n,
                       (long long)s->context);
    for (int64_t i = 0; i < r->n; i++)
        if (r->ids[i] < 0 || r->ids[i] >= s->m->config.vocab)
            return hh_fail(err, HH_EINVAL, "token id %d (number %lld) is outside the model's vocabulary of %lld",
                           r->ids[i], (long long)i, (long long)s->m->config.vocab);
    return HH_OK;
}

/* Prompts that fit together share a forward; a longer one has several of its own. */
static hh_code prefill(hh_many *s, const hh_request *r, int64_t n, hh_error *err) {
    batch b = {0};
    for (int64_t i = 0; i < n; i++) {
        if (b.n_tokens && b.n_tokens + r[i].n > s->max_tokens) HH_TRY(run_batch(s, &b, true, true, err));
        int64_t lo = 0;
        for (; r[i].n - lo > s->max_tokens; lo += s->max_tokens) {
            add(s, &b, i, r[i].ids + lo, s->max_tokens);
            HH_TRY(run_batch(s, &b, true, false, err));
        }
        add(s, &b, i, r[i].ids + lo, r[i].n - lo);
    }
    return run_batch(s, &b, true, true, err);
}

static bool contains(const int32_t *ids, int64_t n, int32_t id) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* Hands out the token made last; does the sequence go on? */
static bool take(const hh_many *s, hh_request *r, int64_t i, const int32_t *end_ids, int64_t n_end) {
    ++r->n_new;
    if (contains(end_ids, n_end, s->last[i]) || !r->on_token(r->context, s->last[i])) return false;
    return r->n_new < r->max_new && s->cache[i]->length < s->context;
}

hh_code hh_many_answer(hh_many *s, hh_request *r, int64_t n, const int32_t *end_ids, int64_t n_end, hh_error *err) {
    bool going[HH_MANY_MOST] = {0};
    HH_ASSERT(n <= s->n_sequences && n <= HH_MANY_MOST);
    for (int64_t i = 0; i < n; i++) {
        HH_TRY(check(s, &r[i], i, err));
        r[i].n_new = 0;
        going[i] = r[i].max_new > 0;
        hh_cache_reset(s->cache[i]);
    }
    if (n) HH_TRY(prefill(s, r, n, err));
    for (;;) {
        batch b = {0};
        for (int64_t i = 0; i < n; i++) {
            going[i] = going[i] && take(s, &r[i], i, end_ids, n_end);
            if (going[i]) add(s, &b, i, &s->last[i], 1);
        }
        if (!b.n_spans) return HH_OK;
        HH_TRY(run_batch(s, &b, false, true, err));
    }
}
