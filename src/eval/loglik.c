/* Batched log-likelihoods; see loglik.h. */
#include "eval/loglik.h"

#include "base/progress.h"
#include "tensor/mirror.h"

#include <math.h>
#include <string.h>

enum { ROWS = 256, MAX_SPANS = 256 };

/* A stretch of one or several sequences that runs in one span: inputs ids[lo, hi), for sequences seq[0, n_seq). */
typedef struct piece {
    const int32_t *ids;
    int64_t lo, hi;
    hh_scored *seq;
    int64_t n_seq;
    hh_cache *cache; /* NULL: nothing follows */
} piece;

/* One prediction to look up: final row, token, sequence. */
typedef struct lookup {
    int32_t row, token;
    hh_scored *seq;
} lookup;

struct hh_loglik {
    const hh_model *m;
    hh_run *run;
    hh_cache **cache;
    int64_t n_caches, max_tokens, max_length;
    bool cached;      /* a sequence without company is read through a cache too */
    hh_tensor x, nll; /* [ROWS, C] rows looked at; [ROWS] */
    hh_real *host;    /* [ROWS] nll for the CPU */
    int32_t *ids;     /* [max_tokens] */
    lookup *look;
    int64_t n_look, look_capacity;
    hh_arena arena;
};

static void place(hh_loglik *l, hh_arena *a) {
    l->x = hh_tensor_place_2d(a, l->m->be->activation, ROWS, l->m->config.width);
    l->nll = hh_tensor_place_1d(a, HH_DTYPE_REAL, ROWS);
}

hh_code hh_loglik_new(hh_loglik **out, const hh_model *m, int64_t max_length, int64_t max_group, int64_t batch,
                      hh_dtype kv_dtype, hh_error *err) {
    HH_ASSERT(max_length >= 1 && max_group >= 1);
    hh_loglik *l = hh_alloc(sizeof *l);
    const int64_t budget = (int64_t)1 << 30; /* bytes of caches, unless one group needs more */
    *out = NULL;
    l->m = m;
    l->max_length = max_length;
    l->cached = kv_dtype != m->be->activation;
    if (batch < m->be->pass_tokens) batch = m->be->pass_tokens;
    l->max_tokens = batch > max_length ? batch : max_length;
    size_t bytes = hh_cache_bytes(&m->config, max_length, kv_dtype);
    const bool none = max_group == 1 && !l->cached;
    int64_t wanted = none ? 0 : bytes ? budget / (int64_t)bytes : 64;
    const int64_t a_forward = l->max_tokens / max_length; /* nothing is kept from one to the next but in groups */
    if (wanted > 64) wanted = 64;
    if (max_group == 1 && wanted > a_forward) wanted = a_forward;
    if (!none && wanted < max_group) wanted = max_group;
    l->cache = hh_alloc((size_t)wanted * sizeof(hh_cache *));
    hh_arena count;
    hh_arena_init_counting(&count, "run");
    place(l, &count);
    hh_code code = m->be->arena_init(m->be, &l->arena, "run", count.used, err);
    if (code == HH_OK) place(l, &l->arena);
    l->host = hh_alloc(ROWS * sizeof *l->host);
    if (code == HH_OK) code = hh_run_new(&l->run, m, l->max_tokens, MAX_SPANS, HH_RUN_INFERENCE, err);
    for (; code == HH_OK && l->n_caches < wanted; l->n_caches++) {
        code = hh_cache_new(&l->cache[l->n_caches], m, max_length, kv_dtype, err);
        if (code != HH_OK) break;
    }
    l->ids = hh_alloc((size_t)l->max_tokens * sizeof *l->ids);
    if (code == HH_OK)
        *out = l;
    else
        hh_loglik_free(l);
    return code;
}

void hh_loglik_free(hh_loglik *l) {
    if (!l) return;
    for (int64_t i = 0; i < l->n_caches; i++) hh_cache_free(l->cache[i], l->m->be);
    hh_run_free(l->run);
    hh_free(l->cache);
    if (l->arena.base) l->m->be->arena_release(l->m->be, &l->arena);
    hh_free(l->host);
    hh_free(l->ids);
    hh_free(l->look);
    hh_free(l);
}

static void add_lookups(hh_loglik *l, const piece *p, int64_t first_row) {
    for (int64_t i = 0; i < p->n_seq; i++) {
        hh_scored *s = &p->seq[i];
        int64_t t = s->first > p->lo + 1 ? s->first : p->lo + 1;
        for (; t < s->n && t - 1 < p->hi; t++) {
            if (l->n_look == l->look_capacity)
                l->look =
                    hh_realloc(l->look, (size_t)(l->look_capacity = 2 * l->look_capacity + 256) * sizeof *l->look);
            l->look[l->n_look++] = (lookup){.row = (int32_t)(first_row + t - 1 - p->lo), .token = s->ids[t], .seq = s};
        }
    }
}

/* The rows looked at, gathered a tile at a time; a row stands there once for each lookup. */
static hh_code read_lookups(hh_loglik *l, hh_tensor final, hh_error *err) {
    hh_backend *be = l->m->be;
    for (int64_t lo = 0, hi; lo < l->n_look; lo = hi) {
        int32_t row[ROWS], token[ROWS], best[ROWS];
        for (hi = lo; hi < l->n_look && hi - lo < ROWS; hi++) {
            row[hi - lo] = l->look[hi].row;
            token[hi - lo] = l->look[hi].token;
        }
        hh_tensor x = hh_tensor_rows(l->x, 0, hi - lo), nll = hh_tensor_rows(l->nll, 0, hi - lo);
        be->ops->gather_rows(be, x, final, row);
        be->ops->ce_head(be, nll, best, HH_NONE, NULL, x, &l->m->w.head, token, 0);
        hh_tensor_to_host(be, l->host, nll);
        HH_TRY(be->sync(be, err));
        for (int64_t i = 0; i < hi - lo; i++) {
            hh_scored *seq = l->look[lo + i].seq;
            if (!isfinite(l->host[i]))
                return hh_fail(err, HH_ENONFINITE, "%s: a logit is not finite; HYDRAHEAD_CHECK=nan names the operation",
                               l->m->path);
            seq->loglik -= (double)l->host[i];
            seq->greedy = seq->greedy && best[i] == token[i];
        }
    }
    return HH_OK;
}

/* One forward of pieces that fit. */
static hh_code run_pieces(hh_loglik *l, const piece *p, int64_t n, hh_error *err) {
    hh_span span[MAX_SPANS];
    hh_cache *cache[MAX_SPANS];
    int64_t at = 0;
    l->n_look = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t len = p[i].hi - p[i].lo;
        memcpy(l->ids + at, p[i].ids + p[i].lo, (size_t)len * sizeof *l->ids);
        span[i] = (hh_span){.lo = at, .hi = at + len, .pos = p[i].lo};
        cache[i] = p[i].cache;
        add_lookups(l, &p[i], at);
        at += len;
    }
    hh_batch b = {.n_tokens = at, .n_spans = n, .ids = l->ids, .span = span, .cache = p[0].cache ? cache : NULL};
    hh_tensor final;
    if (hh_interrupted()) return hh_fail(err, HH_ECANCELLED, "interrupted");
    HH_TRY(hh_forward(l->run, &b, &final, err));
    return read_lookups(l, final, err);
}

/* All pieces, each with a cache or none, as many as fit in each forward. */
static hh_code run_all(hh_loglik *l, const piece *p, int64_t n, hh_error *err) {
    for (int64_t lo = 0, hi; lo < n; lo = hi) {
        int64_t tokens = 0;
        for (hi = lo; hi < n && hi - lo < MAX_SPANS; hi++) {
            tokens += p[hi].hi - p[hi].lo;
            if (tokens > l->max_tokens) break;
        }
        HH_TRY(run_pieces(l, p + lo, hi - lo, err));
    }
    return HH_OK;
}

/* Inputs that all sequences of a group have in common. */
static int64_t common_length(const hh_scored *s, int64_t n) {
    int64_t common = s[0].n - 1;
    for (int64_t i = 1; i < n; i++) {
        int64_t k = 0, most = s[i].n - 1 < common ? s[i].n - 1 : common;
        while (k < most && s[i].ids[k] == s[0].ids[k]) k++;
        common = k;
    }
    return common;
}

typedef struct batch {
    piece *whole, *head, *tail; /* common parts with nothing behind, with something behind; what is behind */
    int64_t n_whole, n_head, n_tail, n_caches, tokens;
} batch;

static int64_t count_rests(const hh_scored *s, int64_t n, int64_t common) {
    int64_t rests = 0;
    for (int64_t i = 0; i < n; i++) rests += s[i].n - 1 > common;
    return rests;
}

/* Caches of a group with that many sequences beyond its common part. */
static int64_t caches_for(const hh_loglik *l, int64_t rests) {
    return rests == 0 && l->cached ? 1 : rests;
}

static void add_group(hh_loglik *l, batch *b, hh_scored *s, int64_t n, int64_t common) {
    const int64_t rests = count_rests(s, n, common), caches = caches_for(l, rests);
    hh_cache **cache = l->cache + b->n_caches;
    for (int64_t i = 0; i < caches; i++) hh_cache_reset(cache[i]);
    piece shared = {s[0].ids, 0, common, s, n, caches ? cache[0] : NULL};
    b->n_caches += caches;
    if (rests == 0)
        b->whole[b->n_whole++] = shared;
    else if (common > 0)
        b->head[b->n_head++] = shared;
    for (int64_t i = 0; i < n; i++)
        if (s[i].n - 1 > common) b->tail[b->n_tail++] = (piece){s[i].ids, common, s[i].n - 1, &s[i], 1, *cache++};
    b->tokens += common + 1;
}

/* Common parts first, then copies of their caches, then what follows. */
static hh_code run_batch(hh_loglik *l, batch *b, hh_error *err) {
    HH_TRY(run_all(l, b->whole, b->n_whole, err));
    HH_TRY(run_all(l, b->head, b->n_head, err));
    for (int64_t i = 1; i < b->n_tail; i++)
        if (b->tail[i].lo > 0 && b->tail[i].cache->length == 0) hh_cache_copy(b->tail[i].cache, b->tail[i - 1].cache);
    hh_code code = run_all(l, b->tail, b->n_tail, err);
    *b = (batch){.whole = b->whole, .head = b->head, .tail = b->tail};
    return code;
}

hh_code hh_loglik_score(hh_loglik *l, hh_scored *s, int64_t n, hh_error *err) {
    piece *pieces = hh_alloc(3 * (size_t)n * sizeof *pieces);
    batch b = {.whole = pieces, .head = pieces + n, .tail = pieces + 2 * n};
    hh_code code = HH_OK;
    for (int64_t lo = 0, hi; lo < n && code == HH_OK; lo = hi) {
        for (hi = lo; hi < n && s[hi].group == s[lo].group; hi++) {
            HH_ASSERT(s[hi].first >= 1 && s[hi].first < s[hi].n && s[hi].n - 1 <= l->max_length);
            s[hi].loglik = 0;
            s[hi].greedy = true;
        }
        int64_t common = common_length(s + lo, hi - lo), rests = count_rests(s + lo, hi - lo, common);
        const int64_t caches = caches_for(l, rests);
        HH_ASSERT(caches <= l->n_caches);
        if (b.tokens > 0 && (b.tokens + common > l->max_tokens || b.n_caches + caches > l->n_caches))
            code = run_batch(l, &b, err);
        if (code == HH_OK) add_group(l, &b, s + lo, hi - lo, common);
    }
    if (code == HH_OK && n > 0) code = run_batch(l, &b, err);
    hh_free(pieces);
    return code;
}
