/* Selection under a budget; see select.h. Every strategy fills a plan for a number of heads; a budget in bytes asks for
 * the largest number that fits. */
#include "convert/select.h"

#include "base/rng.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Something that is ranked: a head, a query group or a layer. */
typedef struct candidate {
    double score, mean_ie, attribution;
    int64_t index;
} candidate;

static int compare(const void *pa, const void *pb) {
    const candidate *a = pa, *b = pb;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->mean_ie != b->mean_ie) return a->mean_ie > b->mean_ie ? -1 : 1;
    if (a->attribution != b->attribution) return a->attribution > b->attribution ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

/* The first measure in which `kept` beats the best candidate left out (NULL: nothing was left out). */
static hh_keep_rule deciding_rule(const candidate *kept, const candidate *left_out) {
    if (!left_out) return HH_KEEP_ALL;
    if (kept->score > left_out->score) return HH_KEEP_SCORE;
    if (kept->mean_ie > left_out->mean_ie) return HH_KEEP_MEAN_IE;
    if (kept->attribution > left_out->attribution) return HH_KEEP_ATTRIBUTION;
    return HH_KEEP_ORDER;
}

static candidate head_candidate(const hh_heads *h, int64_t i) {
    return (candidate){h->score[i], h->mean_ie[i], h->attribution[i], i};
}

static candidate *ranked_heads(const hh_heads *h, int64_t lo, int64_t hi) {
    candidate *c = hh_alloc((size_t)(hi - lo) * sizeof *c);
    for (int64_t i = lo; i < hi; i++) c[i - lo] = head_candidate(h, i);
    qsort(c, (size_t)(hi - lo), sizeof *c, compare);
    return c;
}

static void select_global(hh_plan *p, const hh_heads *h, int64_t k) {
    int64_t n = h->n_layers * h->n_heads;
    candidate *c = ranked_heads(h, 0, n);
    for (int64_t i = 0; i < k; i++) p->rule[c[i].index] = (uint8_t)deciding_rule(&c[i], k < n ? &c[k] : NULL);
    hh_free(c);
}

/* The best of every layer, then the best of the rest. A layer's best head that ranks behind the first one left out is
 * there only for the rule of one a layer. */
static void select_min1(hh_plan *p, const hh_heads *h, int64_t k) {
    int64_t n = h->n_layers * h->n_heads, left = k - h->n_layers;
    candidate *c = ranked_heads(h, 0, n);
    bool *seen = hh_alloc((size_t)h->n_layers * sizeof *seen), *taken = hh_alloc((size_t)n * sizeof *taken);
    for (int64_t i = 0; i < n; i++) {
        int64_t l = c[i].index / h->n_heads;
        if (!seen[l]) seen[l] = taken[i] = true;
    }
    for (int64_t i = 0; i < n && left > 0; i++)
        if (!taken[i]) taken[i] = true, left--;
    int64_t out = 0;
    while (out < n && taken[out]) out++;
    for (int64_t i = 0; i < n; i++)
        if (taken[i])
            p->rule[c[i].index] = (uint8_t)(i > out ? HH_KEEP_MIN1 : deciding_rule(&c[i], out < n ? &c[out] : NULL));
    hh_free(c);
    hh_free(seen);
    hh_free(taken);
}

/* How many heads each layer keeps: the same number, and the remainder to the layers whose next head ranks best. */
static void layer_quotas(const hh_heads *h, int64_t k, int64_t *quota) {
    int64_t L = h->n_layers, H = h->n_heads, even = k / L, rest = k % L;
    candidate *next = hh_alloc((size_t)L * sizeof *next);
    for (int64_t l = 0; l < L; l++) {
        quota[l] = even;
        if (!rest) continue;
        candidate *c = ranked_heads(h, l * H, (l + 1) * H);
        next[l] = c[even];
        hh_free(c);
    }
    if (rest) qsort(next, (size_t)L, sizeof *next, compare);
    for (int64_t i = 0; i < rest; i++) quota[next[i].index / H]++;
    hh_free(next);
}

static void select_layer(hh_plan *p, const hh_heads *h, int64_t k) {
    int64_t quota[HH_MAX_LAYERS];
    layer_quotas(h, k, quota);
    for (int64_t l = 0; l < h->n_layers; l++) {
        candidate *c = ranked_heads(h, l * h->n_heads, (l + 1) * h->n_heads);
        for (int64_t i = 0; i < quota[l]; i++) p->rule[c[i].index] = HH_KEEP_QUOTA;
        hh_free(c);
    }
}

/* Places rather than scores: the remainder goes to the first layers. */
static void select_fixed(hh_plan *p, const hh_heads *h, int64_t k) {
    for (int64_t i = 0; i < k; i++) p->rule[i % h->n_layers * h->n_heads + i / h->n_layers] = HH_KEEP_FIXED;
}

static candidate *ranked_groups(const hh_heads *h) {
    int64_t L = h->n_layers, H = h->n_heads, G = h->n_kv_heads;
    candidate *c = hh_alloc((size_t)(L * G) * sizeof *c);
    for (int64_t i = 0; i < L * G; i++) c[i].index = i;
    for (int64_t i = 0; i < L * H; i++) {
        candidate *g = &c[i / H * G + i % H * G / H];
        g->score += h->score[i];
        g->mean_ie += h->mean_ie[i];
        g->attribution += h->attribution[i];
    }
    qsort(c, (size_t)(L * G), sizeof *c, compare);
    return c;
}

/* Groups in rank order while their heads fit into k. The group's best head carries the reason; the others come free. */
static void select_kv(hh_plan *p, const hh_heads *h, int64_t k) {
    int64_t H = h->n_heads, G = h->n_kv_heads, n = h->n_layers * G, kept = 0;
    candidate *c = ranked_groups(h);
    int64_t used = 0;
    for (; kept < n; kept++) {
        int64_t g = c[kept].index % G, size = 0;
        for (int64_t q = 0; q < H; q++) size += q * G / H == g;
        if (used + size > k) break;
        used += size;
    }
    for (int64_t i = 0; i < kept; i++) {
        int64_t l = c[i].index / G, g = c[i].index % G;
        candidate best = {.index = -1};
        for (int64_t q = 0; q < H; q++) {
            if (q * G / H != g) continue;
            candidate head = head_candidate(h, l * H + q);
            p->rule[head.index] = HH_KEEP_KV_GROUP;
            if (best.index < 0 || compare(&head, &best) < 0) best = head;
        }
        p->rule[best.index] = (uint8_t)deciding_rule(&c[i], kept < n ? &c[kept] : NULL);
    }
    hh_free(c);
}

static void select_layerwise(hh_plan *p, const hh_heads *h, int64_t k) {
    int64_t L = h->n_layers, H = h->n_heads;
    candidate *c = hh_alloc((size_t)L * sizeof *c);
    for (int64_t l = 0; l < L; l++) {
        c[l].index = l;
        for (int64_t i = l * H; i < (l + 1) * H; i++) {
            c[l].score += h->score[i];
            c[l].mean_ie += h->mean_ie[i];
            c[l].attribution += h->attribution[i];
        }
    }
    qsort(c, (size_t)L, sizeof *c, compare);
    for (int64_t i = 0; i < k / H; i++) memset(p->rule + c[i].index * H, HH_KEEP_LAYER, (size_t)H);
    hh_free(c);
}

/* Heads of layers [lo, hi) that may be drawn, in a random order that does not depend on how many are taken. */
static int64_t shuffled_heads(const hh_select_options *o, int64_t lo, int64_t hi, int64_t H, uint64_t stream,
                              int64_t *out) {
    int64_t n = 0;
    for (int64_t i = lo * H; i < hi * H; i++)
        if (!o->exclude || !hh_plan_keeps(o->exclude, i / H, i % H)) out[n++] = i;
    hh_rng rng = hh_rng_stream(o->seed, stream);
    hh_rng_shuffle(&rng, out, n);
    return n;
}

static hh_code select_random(hh_plan *p, const hh_heads *h, const hh_select_options *o, int64_t k, hh_error *err) {
    int64_t L = h->n_layers, H = h->n_heads;
    bool by_layer = o->strategy == HH_SELECT_LAYER_RANDOM;
    int64_t *draw = hh_alloc((size_t)(L * H) * sizeof *draw);
    hh_code code = HH_OK;
    for (int64_t s = 0; s < (by_layer ? L : 1) && code == HH_OK; s++) {
        int64_t want = by_layer ? k / L + (s < k % L) : k;
        int64_t n = shuffled_heads(o, by_layer ? s : 0, by_layer ? s + 1 : L, H, (uint64_t)s, draw);
        if (n < want)
            code = hh_fail(err, HH_EINVAL,
                           "only %" PRId64 " heads%s are left to draw %" PRId64 " from after the excluded ones", n,
                           by_layer ? " of a layer" : "", want);
        else
            for (int64_t i = 0; i < want; i++) p->rule[draw[i]] = HH_KEEP_RANDOM;
    }
    hh_free(draw);
    return code;
}

static hh_code fill(hh_plan *p, const hh_heads *h, const hh_select_options *o, int64_t k, hh_error *err) {
    memset(p->rule, HH_KEEP_NOT, (size_t)(h->n_layers * h->n_heads));
    switch (o->strategy) {
    case HH_SELECT_GLOBAL:
        select_global(p, h, k);
        break;
    case HH_SELECT_GLOBAL_MIN1:
        select_min1(p, h, k);
        break;
    case HH_SELECT_LAYER:
        select_layer(p, h, k);
        break;
    case HH_SELECT_KV:
        select_kv(p, h, k);
        break;
    case HH_SELECT_FIXED:
        select_fixed(p, h, k);
        break;
    case HH_SELECT_LAYERWISE:
        select_layerwise(p, h, k);
        break;
    default:
        return select_random(p, h, o, k, err);
    }
    return HH_OK;
}

/* The fewest heads that mean anything to a strategy. */
static int64_t fewest_heads(const hh_heads *h, hh_strategy s) {
    if (s == HH_SELECT_GLOBAL_MIN1) return h->n_layers;
    if (s == HH_SELECT_LAYERWISE) return h->n_heads;
    if (s == HH_SELECT_KV) return (h->n_heads + h->n_kv_heads - 1) / h->n_kv_heads;
    return 1;
}

static const char *const strategy_name[HH_SELECT_STRATEGIES] = {"global", "global-min1",  "layer",         "kv",
                                                                "fixed",  "layer-random", "global-random", "layerwise"};

bool hh_strategy_parse(const char *name, hh_strategy *out) {
    for (int s = 0; s < HH_SELECT_STRATEGIES; s++)
        if (!strcmp(name, strategy_name[s])) {
            *out = (hh_strategy)s;
            return true;
        }
    return false;
}

static hh_code check_options(const hh_heads *h, const hh_select_options *o, hh_error *err) {
    if ((o->ratio > 0) + (o->heads > 0) + (o->kv_bytes > 0) != 1 || o->ratio < 0 || o->heads < 0 || o->kv_bytes < 0)
        return hh_fail(err, HH_EINVAL, "exactly one budget is needed: --ratio r:1, --heads n or --kv-bytes n");
    if ((o->kv_bytes > 0 || o->strategy == HH_SELECT_KV) && !h->n_kv_heads)
        return hh_fail(err, HH_EINVAL,
                       "the table does not say how many key/value heads the model has; name the model with --model");
    if (o->kv_bytes > 0 && !h->head_dim)
        return hh_fail(err, HH_EINVAL, "the table does not say how wide a head is; name the model with --model");
    const hh_plan *x = o->exclude;
    if (x && (x->n_layers != h->n_layers || x->n_heads != h->n_heads))
        return hh_fail(err, HH_EINVAL,
                       "the plan of excluded heads is of %" PRId64 " layers of %" PRId64 " heads, the table of %" PRId64
                       " of %" PRId64,
                       x->n_layers, x->n_heads, h->n_layers, h->n_heads);
    if (x && o->strategy != HH_SELECT_GLOBAL_RANDOM && o->strategy != HH_SELECT_LAYER_RANDOM)
        return hh_fail(err, HH_EINVAL, "heads are excluded from random draws only, and %s draws none",
                       strategy_name[o->strategy]);
    return HH_OK;
}

/* Heads that a budget in cache bytes affords: the largest number whose plan fits. */
static hh_code count_for_bytes(int64_t *k, hh_plan *p, const hh_heads *h, const hh_select_options *o, hh_error *err) {
    int64_t few = fewest_heads(h, o->strategy), n = h->n_layers * h->n_heads;
    double need = 0;
    *k = 0;
    for (int64_t i = few; i <= n; i++) {
        if (fill(p, h, o, i, err) != HH_OK) break; /* no more heads to draw from */
        need = hh_plan_cache_bytes(p, HH_PLAN_CACHE_VALUE_BYTES);
        if (need > (double)o->kv_bytes) break;
        *k = i;
    }
    if (*k) return HH_OK;
    if (need <= (double)o->kv_bytes) return err->code;
    return hh_fail(err, HH_EINVAL,
                   "--kv-bytes %" PRId64 " is too small: the least that %s keeps takes %.0f bytes a token", o->kv_bytes,
                   strategy_name[o->strategy], need);
}

static double *copy_measure(const double *x, int64_t n) {
    return memcpy(hh_alloc((size_t)n * sizeof *x), x, (size_t)n * sizeof *x);
}

static hh_code select_into(hh_plan *p, const hh_heads *h, const hh_select_options *o, hh_error *err) {
    int64_t n = h->n_layers * h->n_heads, k = o->heads, few = fewest_heads(h, o->strategy);
    if (o->ratio > 0) {
        k = (int64_t)floor((double)n / (o->ratio + 1) * (1 + 1e-12)); /* never more than asked for */
        snprintf(p->budget, sizeof p->budget, "ratio %g:1", o->ratio);
    } else if (o->kv_bytes > 0) {
        HH_TRY(count_for_bytes(&k, p, h, o, err));
        snprintf(p->budget, sizeof p->budget, "kv-bytes %" PRId64, o->kv_bytes);
    } else {
        snprintf(p->budget, sizeof p->budget, "heads %" PRId64, o->heads);
    }
    if (k > n) return hh_fail(err, HH_EINVAL, "%" PRId64 " heads were asked for, the model has %" PRId64, k, n);
    if (k < few)
        return hh_fail(err, HH_EINVAL,
                       "the budget is %" PRId64 " heads, but %s keeps at least %" PRId64 " in this model", k,
                       strategy_name[o->strategy], few);
    return fill(p, h, o, k, err);
}

hh_code hh_select(hh_plan *out, const hh_heads *h, const hh_select_options *o, hh_error *err) {
    *out = (hh_plan){0};
    HH_TRY(check_options(h, o, err));
    hh_plan_init(out, h->n_layers, h->n_heads);
    out->n_kv_heads = h->n_kv_heads;
    out->head_dim = h->head_dim;
    out->seed = o->seed;
    snprintf(out->strategy, sizeof out->strategy, "%s", strategy_name[o->strategy]);
    int64_t n = h->n_layers * h->n_heads;
    out->score = copy_measure(h->score, n);
    out->mean_ie = copy_measure(h->mean_ie, n);
    out->attribution = copy_measure(h->attribution, n);
    hh_code code = select_into(out, h, o, err);
    if (code != HH_OK) hh_plan_release(out);
    return code;
}
