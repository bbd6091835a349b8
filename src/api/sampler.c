/* Choosing tokens: biases and penalties, a grammar, then session/sample.h's draw; see hydrahead.h. */
#include "api/api.h"
#include "session/sample.h"

#include <math.h>
#include <string.h>

struct hh_sampler {
    const hh_engine *e;
    int64_t vocab;
    hh_sampling sampling;
    double frequency_penalty, presence_penalty, repetition_penalty;
    hh_logit_bias *bias;
    int64_t n_bias;
    hh_rng rng;
    int32_t *drawn; /* [V] how often */
    bool *seen;     /* [V] drawn, or in the prompt */
    bool *fits;     /* [V] the grammar takes it now */
    hh_real *logits;
    hh_candidate *work; /* [V] */
    hh_grammar *grammar;
    hh_grammar_state *state;
    hh_vocabulary *vocabulary; /* the engine's */
};

static hh_code check_number(const char *what, double x, double lo, double hi, hh_error *err) {
    if (x >= lo && x <= hi) return HH_OK;
    return hh_fail(err, HH_EINVAL, "%s is %g; it must be from %g to %g", what, x, lo, hi);
}

static hh_code check_options(const hh_engine *e, const hh_sampler_options *o, hh_error *err) {
    const int64_t vocab = e->m->config.vocab;
    HH_TRY(check_number("temperature", o->temperature, 0, 1e6, err));
    HH_TRY(check_number("top_p", o->top_p, 0, 1, err));
    HH_TRY(check_number("min_p", o->min_p, 0, 1, err));
    HH_TRY(check_number("the frequency penalty", o->frequency_penalty, -1e6, 1e6, err));
    HH_TRY(check_number("the presence penalty", o->presence_penalty, -1e6, 1e6, err));
    HH_TRY(check_number("the repetition penalty", o->repetition_penalty, 0, 1e6, err));
    if (o->top_k < 0 || o->n_bias < 0)
        return hh_fail(err, HH_EINVAL, "top_k %lld and %lld biases: none may be negative", (long long)o->top_k,
                       (long long)o->n_bias);
    for (int64_t i = 0; i < o->n_bias; i++) {
        const hh_logit_bias b = o->bias[i];
        if (b.id < 0 || b.id >= vocab)
            return hh_fail(err, HH_EINVAL, "a bias on token %d, but the vocabulary has %lld", b.id, (long long)vocab);
        if (!(b.bias <= 1e6F) || (b.bias < -1e6F && !isinf(b.bias)))
            return hh_fail(err, HH_EINVAL, "a bias of %g on token %d makes no sense", (double)b.bias, b.id);
    }
    return HH_OK;
}

static hh_code open_grammar(hh_sampler *s, const char *schema, hh_error *err) {
    if (!schema) return HH_OK;
    HH_TRY(hh_engine_need_tokenizer(s->e, err));
    HH_TRY(hh_grammar_from_schema(&s->grammar, schema, err));
    s->state = hh_grammar_start(s->grammar);
    if (!*s->e->vocabulary) *s->e->vocabulary = hh_vocabulary_new(s->e->t, s->vocab);
    s->vocabulary = *s->e->vocabulary;
    return HH_OK;
}

hh_code hh_sampler_new(hh_sampler **out, const hh_engine *e, const hh_sampler_options *options, hh_error *err) {
    static const hh_sampler_options greedy = {0};
    const hh_sampler_options *o = options ? options : &greedy;
    const size_t vocab = (size_t)e->m->config.vocab;
    *out = NULL;
    HH_TRY(check_options(e, o, err));
    hh_sampler *s = hh_alloc(sizeof *s);
    *s = (hh_sampler){.e = e,
                      .vocab = e->m->config.vocab,
                      .sampling = {.temperature = o->temperature,
                                   .top_k = o->top_k,
                                   .top_p = o->top_p > 0 ? o->top_p : 1,
                                   .min_p = o->min_p},
                      .frequency_penalty = o->frequency_penalty,
                      .presence_penalty = o->presence_penalty,
                      .repetition_penalty = o->repetition_penalty > 0 ? o->repetition_penalty : 1,
                      .n_bias = o->n_bias,
                      .rng = hh_rng_seeded(o->seed),
                      .bias = hh_alloc((size_t)o->n_bias * sizeof *s->bias),
                      .drawn = hh_alloc(vocab * sizeof *s->drawn),
                      .seen = hh_alloc(vocab * sizeof *s->seen),
                      .fits = hh_alloc(vocab * sizeof *s->fits),
                      .logits = hh_alloc(vocab * sizeof *s->logits),
                      .work = hh_alloc(vocab * sizeof *s->work)};
    if (o->n_bias) memcpy(s->bias, o->bias, (size_t)o->n_bias * sizeof *s->bias);
    hh_code code = open_grammar(s, o->json_schema, err);
    if (code != HH_OK) {
        hh_sampler_free(s);
        return code;
    }
    *out = s;
    return HH_OK;
}

void hh_sampler_free(hh_sampler *s) {
    if (!s) return;
    hh_grammar_state_free(s->state);
    hh_grammar_free(s->grammar);
    hh_free(s->bias);
    hh_free(s->drawn);
    hh_free(s->seen);
    hh_free(s->fits);
    hh_free(s->logits);
    hh_free(s->work);
    hh_free(s);
}

void hh_sampler_see(hh_sampler *s, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < s->vocab) s->seen[ids[i]] = true;
}

/* -- what a token is worth -- */

static void adjust(hh_sampler *s, const float *logits) {
    for (int64_t i = 0; i < s->vocab; i++) s->logits[i] = logits[i];
    for (int64_t i = 0; i < s->n_bias; i++) s->logits[s->bias[i].id] += s->bias[i].bias;
    for (int64_t i = 0; i < s->vocab; i++) {
        if (!s->seen[i]) continue;
        double x = (double)s->logits[i];
        x = x > 0 ? x / s->repetition_penalty : x * s->repetition_penalty;
        if (s->drawn[i]) x -= s->frequency_penalty * s->drawn[i] + s->presence_penalty;
        s->logits[i] = (hh_real)x;
    }
}

/* The end token that is likeliest; -1: there is none. */
static int32_t likeliest_end(const hh_sampler *s, const float *logits) {
    int32_t best = -1;
    for (int64_t i = 0; i < s->e->n_end_ids; i++) {
        const int32_t id = s->e->end_ids[i];
        if (id < 0 || id >= s->vocab) continue;
        if (best < 0 || logits[id] > logits[best] || (logits[id] >= logits[best] && id < best)) best = id;
    }
    return best;
}

/* Leaves s->logits to the tokens that fit: texts the grammar takes, and end tokens where it may end. */
static void keep_fitting(hh_sampler *s) {
    const hh_vocabulary *v = s->vocabulary;
    const bool may_end = hh_grammar_may_end(s->state);
    memset(s->fits, 0, (size_t)s->vocab * sizeof *s->fits);
    hh_grammar_fit_sorted(s->state, v->text, v->n, v->fits);
    for (int64_t i = 0; i < v->n; i++) s->fits[v->id[i]] = v->fits[i];
    for (int64_t i = 0; i < s->e->n_end_ids; i++)
        if (s->e->end_ids[i] >= 0 && s->e->end_ids[i] < s->vocab) s->fits[s->e->end_ids[i]] = may_end;
    for (int64_t i = 0; i < s->vocab; i++)
        if (!s->fits[i]) s->logits[i] = -INFINITY;
}

static bool has_any(const hh_sampler *s) {
    for (int64_t i = 0; i < s->vocab; i++)
        if (s->logits[i] > -INFINITY) return true;
    return false;
}

static void remember(hh_sampler *s, int32_t id) {
    size_t n;
    s->seen[id] = true;
    s->drawn[id]++;
    const char *bytes = s->state && !hh_tokenizer_is_special(s->e->t, id) ? hh_tokenizer_token(s->e->t, id, &n) : NULL;
    if (bytes) hh_grammar_take(s->state, bytes, n);
}

int32_t hh_sampler_draw(hh_sampler *s, const float *logits) {
    adjust(s, logits);
    if (s->state && hh_grammar_must_end(s->state)) return likeliest_end(s, logits);
    if (s->state) keep_fitting(s);
    if (!has_any(s)) return -1;
    const int32_t id = hh_sample_with(s->logits, s->vocab, &s->sampling, &s->rng, s->work);
    remember(s, id);
    return id;
}
