/* Sampling from a row of logits: temperature, top-k, top-p, min-p (see session.h). Candidates are taken from a heap one
 * by one, so that a small set out of a large vocabulary costs one pass. */
#include "session/sample.h"

#include <math.h>

static int32_t argmax(const hh_real *logits, int64_t vocab) {
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* 0 times what is not finite is not a number, which a sum keeps. */
bool hh_logits_are_finite(const hh_real *logits, int64_t vocab) {
    hh_real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < vocab; i++) sum += 0 * logits[i];
    return sum == 0;
}

static bool precedes(hh_candidate a, hh_candidate b) {
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

/* Moves the root of the heap c[0, n) down to its place. */
static void sift(hh_candidate *c, int64_t root, int64_t n) {
    for (int64_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && precedes(c[child + 1], c[child])) child++;
        if (!precedes(c[child], c[root])) return;
        hh_candidate t = c[root];
        c[root] = c[child];
        c[child] = t;
    }
}

/* Takes the most likely candidates out of c[0, n), at most k of them and no more than `mass` in sum asks for; they end
 * up at c[n-1], c[n-2], ... Returns how many. */
static int64_t take(hh_candidate *c, int64_t n, int64_t k, double mass) {
    int64_t taken = 0;
    for (double sum = 0; taken < k && sum < mass && taken < n; taken++) {
        int64_t end = n - 1 - taken;
        hh_candidate t = c[0];
        c[0] = c[end];
        c[end] = t;
        sift(c, 0, end);
        sum += t.weight;
    }
    return taken;
}

static double total(const hh_candidate *c, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += c[i].weight;
    return sum;
}

int32_t hh_sample_with(const hh_real *logits, int64_t vocab, const hh_sampling *s, hh_rng *rng, hh_candidate *work) {
    const int32_t best = argmax(logits, vocab);
    if (!(s->temperature > 0)) return best;
    for (int64_t i = 0; i < vocab; i++)
        work[i] = (hh_candidate){.weight = exp(((double)logits[i] - (double)logits[best]) / s->temperature),
                                 .id = (int32_t)i};
    const hh_candidate *set = work; /* what may be drawn */
    int64_t n = vocab;
    bool top_k = s->top_k > 0 && s->top_k < vocab, top_p = s->top_p < 1;
    if (top_k || top_p) {
        for (int64_t i = vocab / 2 - 1; i >= 0; i--) sift(work, i, vocab);
        double all = top_k ? 0 : total(work, vocab);
        n = take(work, vocab, top_k ? s->top_k : vocab, top_k ? INFINITY : s->top_p * all);
        if (n == 0) return best; /* top_p 0 */
        set = work + vocab - n;
        if (top_k && top_p) { /* the most likely stand last */
            double left = s->top_p * total(set, n);
            int64_t kept = 0;
            while (kept < n && left > 0) left -= set[n - 1 - kept++].weight;
            set += n - (kept ? kept : 1);
            n = kept ? kept : 1;
        }
    }
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        if (set[i].weight >= s->min_p) sum += set[i].weight;
    double u = hh_rng_uniform(rng) * sum;
    for (int64_t i = 0; i < n; i++) {
        if (set[i].weight < s->min_p) continue;
        u -= set[i].weight;
        if (u < 0) return set[i].id;
    }
    return best; /* rounding at the very end of the sum */
}

int32_t hh_sample(const hh_real *logits, int64_t vocab, const hh_sampling *s, hh_rng *rng) {
    hh_candidate *work = hh_alloc((size_t)vocab * sizeof *work);
    int32_t id = hh_sample_with(logits, vocab, s, rng, work);
    hh_free(work);
    return id;
}
