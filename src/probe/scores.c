/* The probe over many pairs; rules S1..S5 in scores.h. */
#include "probe/scores.h"

#include "base/progress.h"
#include "base/stats.h"
#include "probe/prober.h"

#include <math.h>
#include <string.h>

#define TOP 10 /* heads whose agreement the Jaccard index looks at */

/* What one capability's pairs gave so far. */
typedef struct gathered {
    double *receiver, *sender; /* [pairs][L*H] per-pair IE */
    bool *kept;                /* [pairs] */
    int64_t n_pairs;
} gathered;

typedef struct probing {
    const hh_model *m;
    hh_prober *prober;
    hh_scores *s;
    int64_t n_heads; /* L*H */
    double threshold, least_effect;
    int64_t n_senders;
    hh_progress progress;
    double done;
} probing;

static double *new_table(int64_t n) {
    return hh_alloc(sizeof(double) * (size_t)n);
}

static hh_probe_pair as_pair(const hh_pair *p) {
    return (hh_probe_pair){.prompt = p->prompt.data,
                           .corrupt = p->corrupt.data,
                           .right = p->answer.data,
                           .wrong = p->wrong.len ? p->wrong.data : NULL,
                           .n_prompt = p->prompt.len,
                           .n_answer = p->answer.len};
}

static hh_code check_pairs(const hh_capability *c, int64_t vocab, hh_error *err) {
    for (int64_t i = 0; i < c->n_pairs; i++) {
        const hh_pair *p = &c->pair[i];
        if (p->prompt.len != p->corrupt.len || (p->wrong.len && p->wrong.len != p->answer.len) || !p->prompt.len ||
            !p->answer.len)
            return hh_fail(
                err, HH_EINVAL,
                "%s: pair %lld has prompts of %lld and %lld tokens and answers of %lld and %lld; both must agree",
                c->name, (long long)i, (long long)p->prompt.len, (long long)p->corrupt.len, (long long)p->answer.len,
                (long long)p->wrong.len);
        const hh_ids *all[] = {&p->prompt, &p->corrupt, &p->answer, &p->wrong};
        for (int k = 0; k < 4; k++)
            for (int64_t j = 0; j < all[k]->len; j++)
                if (all[k]->data[j] < 0 || all[k]->data[j] >= vocab)
                    return hh_fail(err, HH_EINVAL, "%s: pair %lld has token %d, but the model knows %lld", c->name,
                                   (long long)i, all[k]->data[j], (long long)vocab);
    }
    return HH_OK;
}

static hh_code step(probing *p) {
    hh_progress_update(&p->progress, ++p->done, NULL);
    return hh_interrupted() ? HH_ECANCELLED : HH_OK;
}

/* Base forwards, receiver scores and attributions of every pair. */
static hh_code score_receivers(probing *p, const hh_capability *c, hh_capability_scores *out, gathered *g,
                               hh_error *err) {
    double *direct = new_table(p->n_heads), *total = new_table(p->n_heads);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < c->n_pairs && code == HH_OK; i++) {
        const hh_probe_pair pair = as_pair(&c->pair[i]);
        double clean, corrupt, start = hh_now();
        HH_TRY_GOTO(code, hh_prober_load(p->prober, &pair, &clean, &corrupt, err), done);
        p->s->base_seconds += hh_now() - start;
        p->s->n_pairs++;
        if (!(clean - corrupt >= p->least_effect)) { /* S1 */
            out->dropped[out->n_dropped++] = (hh_dropped_pair){i, clean, corrupt};
        } else {
            g->kept[i] = true;
            out->used++;
            start = hh_now();
            hh_prober_receivers(p->prober, g->receiver + i * p->n_heads);
            p->s->receiver_seconds += hh_now() - start;
            start = hh_now();
            hh_prober_attribution(p->prober, direct, total);
            p->s->attribution_seconds += hh_now() - start;
            for (int64_t h = 0; h < p->n_heads; h++) {
                out->direct[h] += direct[h];
                out->attribution[h] += total[h];
            }
        }
        code = step(p);
    }
    for (int64_t h = 0; h < p->n_heads && out->used; h++) {
        out->direct[h] /= (double)out->used;
        out->attribution[h] /= (double)out->used;
    }
done:
    hh_free(direct);
    hh_free(total);
    return code;
}

/* S2 over the kept pairs. */
static void mean_over_pairs(const probing *p, const gathered *g, const double *ie, int64_t used, double *mean) {
    for (int64_t h = 0; h < p->n_heads; h++) {
        mean[h] = 0;
        for (int64_t i = 0; i < g->n_pairs; i++)
            if (g->kept[i]) mean[h] += ie[i * p->n_heads + h] / (double)used;
    }
}

static void choose_candidates(const probing *p, hh_capability_scores *out) {
    int64_t *order = hh_alloc(sizeof(int64_t) * (size_t)p->n_heads);
    int64_t n = p->n_senders < 0 || p->n_senders > p->n_heads ? p->n_heads : p->n_senders;
    hh_order_falling(out->attribution, p->n_heads, order);
    for (int64_t i = 0; i < n; i++) out->candidate[order[i]] = true;
    hh_free(order);
}

/* Scores the chosen heads as senders, given the known ones. */
static hh_code sender_round(probing *p, const hh_capability *c, const bool *chosen, const bool *known, gathered *g,
                            hh_error *err) {
    for (int64_t i = 0; i < c->n_pairs; i++) {
        if (!g->kept[i]) continue;
        const hh_probe_pair pair = as_pair(&c->pair[i]);
        double clean, corrupt;
        HH_TRY(hh_prober_load(p->prober, &pair, &clean, &corrupt, err));
        for (int64_t h = 0; h < p->n_heads; h++) {
            if (!chosen[h]) continue;
            g->sender[i * p->n_heads + h] = hh_prober_sender(p->prober, known, h / p->s->n_heads, h % p->s->n_heads);
            HH_TRY(step(p));
        }
    }
    return HH_OK;
}

/* S3. A candidate is scored again only when a head above it has become known since. */
static hh_code score_senders(probing *p, const hh_capability *c, hh_capability_scores *out, gathered *g,
                             hh_error *err) {
    const int64_t H = p->s->n_heads;
    bool *known = hh_alloc((size_t)p->n_heads), *chosen = hh_alloc((size_t)p->n_heads),
         *fresh = hh_alloc((size_t)p->n_heads);
    hh_code code = HH_OK;
    choose_candidates(p, out);
    for (int64_t h = 0; h < p->n_heads; h++) known[h] = fresh[h] = out->receiver[h] >= p->threshold;
    for (bool more = out->used > 0; more && code == HH_OK;) {
        int64_t highest = -1, n = 0;
        for (int64_t h = 0; h < p->n_heads; h++)
            if (fresh[h]) highest = h / H;
        for (int64_t h = 0; h < p->n_heads; h++) n += chosen[h] = out->candidate[h] && h / H < highest;
        if (!n) break;
        out->rounds++;
        p->progress.total += (double)(n * out->used);
        double start = hh_now();
        code = sender_round(p, c, chosen, known, g, err);
        p->s->sender_seconds += hh_now() - start;
        mean_over_pairs(p, g, g->sender, out->used, out->sender);
        more = false;
        for (int64_t h = 0; h < p->n_heads; h++) {
            fresh[h] = chosen[h] && !known[h] && out->sender[h] >= p->threshold;
            if (fresh[h]) known[h] = more = true;
        }
    }
    hh_free(known);
    hh_free(chosen);
    hh_free(fresh);
    return code;
}

/* S4 and the product of S5. */
static void combine(const probing *p, const gathered *g, hh_capability_scores *out) {
    for (int64_t h = 0; h < p->n_heads && out->used; h++) {
        bool as_sender = out->sender[h] > out->receiver[h];
        const double *ie = as_sender ? g->sender : g->receiver;
        int64_t n = 0;
        for (int64_t i = 0; i < g->n_pairs; i++) n += g->kept[i] && fabs(ie[i * p->n_heads + h]) >= p->threshold;
        out->kappa[h] = (double)n / (double)out->used;
        out->combined[h] = fmax(as_sender ? out->sender[h] : out->receiver[h], 0) * out->kappa[h];
    }
    out->spearman = hh_spearman(out->direct, out->receiver, p->n_heads);
    out->jaccard = hh_top_jaccard(out->direct, out->receiver, p->n_heads, TOP);
}

static hh_code score_capability(probing *p, const hh_capability *c, hh_capability_scores *out, hh_error *err) {
    gathered g = {.receiver = new_table(c->n_pairs * p->n_heads),
                  .sender = new_table(c->n_pairs * p->n_heads),
                  .kept = hh_alloc((size_t)c->n_pairs),
                  .n_pairs = c->n_pairs};
    hh_code code = score_receivers(p, c, out, &g, err);
    if (code == HH_OK && out->used) {
        mean_over_pairs(p, &g, g.receiver, out->used, out->receiver);
        code = score_senders(p, c, out, &g, err);
    }
    if (code == HH_OK) combine(p, &g, out);
    hh_free(g.receiver);
    hh_free(g.sender);
    hh_free(g.kept);
    return code;
}

/* The sum of S5. */
static void add_up(hh_scores *s) {
    const int64_t n = s->n_layers * s->n_heads;
    for (int64_t i = 0; i < s->n_capabilities; i++) {
        const double *x = s->capability[i].combined;
        double lo = x[0], hi = x[0];
        for (int64_t h = 1; h < n; h++) {
            lo = fmin(lo, x[h]);
            hi = fmax(hi, x[h]);
        }
        for (int64_t h = 0; h < n && hi > lo; h++) s->score[h] += (x[h] - lo) / (hi - lo) / (double)s->n_capabilities;
    }
}

static hh_scores *new_scores(const hh_config *c, const hh_capability *capability, int64_t n) {
    hh_scores *s = hh_alloc(sizeof *s);
    *s = (hh_scores){.n_layers = c->n_layers,
                     .n_heads = c->n_heads,
                     .n_kv_heads = c->n_kv_heads,
                     .head_dim = c->head_dim,
                     .n_capabilities = n};
    const int64_t heads = c->n_layers * c->n_heads;
    s->score = new_table(heads);
    s->capability = hh_alloc(sizeof *s->capability * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        hh_capability_scores *o = &s->capability[i];
        o->name = hh_strdup(capability[i].name);
        o->dropped = hh_alloc(sizeof *o->dropped * (size_t)capability[i].n_pairs);
        double **tables[] = {&o->receiver, &o->sender, &o->attribution, &o->direct, &o->kappa, &o->combined};
        for (int k = 0; k < 6; k++) *tables[k] = new_table(heads);
        o->candidate = hh_alloc((size_t)heads);
    }
    return s;
}

void hh_scores_free(hh_scores *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->n_capabilities; i++) {
        hh_capability_scores *o = &s->capability[i];
        hh_free(o->name);
        hh_free(o->dropped);
        double *tables[] = {o->receiver, o->sender, o->attribution, o->direct, o->kappa, o->combined};
        for (int k = 0; k < 6; k++) hh_free(tables[k]);
        hh_free(o->candidate);
    }
    hh_free(s->capability);
    hh_free(s->score);
    hh_free(s);
}

hh_code hh_probe(hh_scores **out, const hh_model *m, const hh_capability *capability, int64_t n,
                 const hh_probe_options *o, hh_error *err) {
    *out = NULL;
    int64_t max_tokens = 1, max_answer = 1, n_pairs = 0;
    for (int64_t i = 0; i < n; i++) {
        HH_TRY(check_pairs(&capability[i], m->config.vocab, err));
        n_pairs += capability[i].n_pairs;
        for (int64_t k = 0; k < capability[i].n_pairs; k++) {
            const hh_pair *pair = &capability[i].pair[k];
            if (pair->prompt.len + pair->answer.len > max_tokens) max_tokens = pair->prompt.len + pair->answer.len;
            if (pair->answer.len > max_answer) max_answer = pair->answer.len;
        }
    }
    probing p = {.m = m,
                 .n_heads = m->config.n_layers * m->config.n_heads,
                 .threshold = o->threshold > 0 ? o->threshold : 0.01,
                 .least_effect = o->least_effect > 0 ? o->least_effect : 0.5,
                 .n_senders = o->senders};
    HH_TRY(hh_prober_new(&p.prober, m, max_tokens, max_answer, err));
    p.s = new_scores(&m->config, capability, n);
    hh_progress_begin(&p.progress, "probe", "passes", (double)n_pairs);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < n && code == HH_OK; i++)
        code = score_capability(&p, &capability[i], &p.s->capability[i], err);
    hh_progress_end(&p.progress);
    hh_prober_free(p.prober);
    if (code == HH_ECANCELLED) hh_fail(err, code, "probing was interrupted; nothing was written");
    if (code != HH_OK) {
        hh_scores_free(p.s);
        return code;
    }
    add_up(p.s);
    *out = p.s;
    return HH_OK;
}
