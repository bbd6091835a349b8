/* How much one head matters for one counterfactual pair: receiver, sender and attribution scores (docs/METHOD.md
 * section 4).
 *
 * A pair is two prompts that differ in the answer's evidence, and the clean answer, which is teacher-forced in both.
 * The readout m is taken at the rows that predict the answer's tokens:
 *
 *   P1  m = (1/Z) sum_j lambda^j (z_j[right_j] - z_j[wrong_j])        value corruption
 *   P2  m = (1/Z) sum_j lambda^j log p_j[right_j]                     key corruption, no wrong answer
 *
 * Every score is a share of what the corruption does to m: IE = (m(x) - m(patched)) / (m(x) - m(x')).
 *
 *   receiver     O_lh <- O_lh(x'), all later attention frozen at its clean outputs: the head's direct effect. Exact for
 * all heads at once, since then only the answer's rows matter: W_O[:,h] (O_lh(x') - O_lh(x)) is pushed through the
 * MLPs. sender       O_s <- O_s(x') at all positions; the known heads of later layers read the changed stream and
 * recompute, every other attention output is frozen, MLPs recompute. The readout then sees only the known heads' new
 * outputs: what s does through them, its direct effect left out. Two passes of at most one forward each. attribution
 * first order: -grad_O m . (O(x') - O(x)) / (m(x) - m(x')), with attention outputs detached (`direct`, an estimate of
 * the receiver score) and through everything (`total`).
 *
 * A prober holds what one pair needs; load a pair, then ask for its scores.
 */
#ifndef HH_PROBE_PROBER_H
#define HH_PROBE_PROBER_H

#include "model/forward.h"

#define HH_PROBE_LAMBDA 0.9

/* A pair as token ids: prompt and corrupt have n_prompt ids, right has n_answer, wrong as many or is NULL (P2). */
typedef struct hh_probe_pair {
    const int32_t *prompt, *corrupt, *right, *wrong;
    int64_t n_prompt, n_answer;
} hh_probe_pair;

typedef struct hh_prober hh_prober;

/* max_tokens counts prompt and answer. The model's heads must all be full attention (HH_EUNSUPPORTED else). */
hh_code hh_prober_new(hh_prober **out, const hh_model *m, int64_t max_tokens, int64_t max_answer, hh_error *err);
void hh_prober_free(hh_prober *p);

/* Runs the two base forwards and keeps what the scores need. *clean and *corrupt get m(x) and m(x'). HH_ENONFINITE when
 * one is not finite. */
hh_code hh_prober_load(hh_prober *p, const hh_probe_pair *pair, double *clean, double *corrupt, hh_error *err);

/* Interrupted, scores return early and are worth nothing: ask hh_interrupted(). All for the loaded pair; out arrays are [L*H], row l, column h. m(x) and m(x') must differ. */
void hh_prober_receivers(hh_prober *p, double *ie);
void hh_prober_attribution(hh_prober *p, double *direct, double *total);
/* `known` [L*H] are the heads that recompute. 0 when no known head stands above `layer`. */
double hh_prober_sender(hh_prober *p, const bool *known, int64_t layer, int64_t head);

#endif
