/* From pairs to a table: every head's scores for every capability, what was dropped, and how well the cheap estimate
 * agrees (docs/METHOD.md section 4). Written as heads.json and as a page of heat maps.
 *
 *   S1  a pair with m(x) - m(x') below 0.5 (logits, or nats under key corruption) is dropped and counted
 *   S2  a head's score in a role is the mean of IE over the kept pairs, unclamped
 *   S3  known heads start as those whose receiver score reaches the threshold; senders that reach it become known, and
 * candidates are scored again, until no new one does S4  kappa_h = share of kept pairs with |IE| >= threshold in the
 * stronger role S5  s_h = max(receiver, sender) * kappa;  S_h = mean over capabilities of (s_h - min s) / (max s - min
 * s)
 */
#ifndef HH_PROBE_SCORES_H
#define HH_PROBE_SCORES_H

#include "data/needle.h"
#include "model/model.h"

typedef struct hh_capability {
    const char *name; /* "niah_single_1/value"; kept as a pointer while hh_probe runs, copied into the table */
    const hh_pair *pair;
    int64_t n_pairs;
} hh_capability;

typedef struct hh_probe_options {
    int64_t senders;     /* candidates of highest attribution that are scored exactly as senders; -1: every head */
    double threshold;    /* 0: the default, 0.01 */
    double least_effect; /* 0: the default, 0.5 */
} hh_probe_options;

typedef struct hh_dropped_pair {
    int64_t index; /* in the capability's list */
    double clean, corrupt;
} hh_dropped_pair;

typedef struct hh_capability_scores {
    char *name;
    int64_t used, n_dropped;
    hh_dropped_pair *dropped;
    double *receiver, *sender, *attribution, *direct, *kappa,
        *combined;            /* [L*H]; sender is 0 where it was not computed */
    bool *candidate;          /* [L*H] scored as a sender */
    int64_t rounds;           /* of S3 */
    double spearman, jaccard; /* direct attribution against the receiver score; jaccard of the top 10 */
} hh_capability_scores;

typedef struct hh_scores {
    int64_t n_layers, n_heads, n_kv_heads, head_dim, n_capabilities, n_pairs;
    hh_capability_scores *capability;
    double *score;                                                              /* [L*H] S_h */
    double base_seconds, receiver_seconds, attribution_seconds, sender_seconds; /* base: the two forwards a pair */
} hh_scores;

/* Probes a dense model. Shows progress; HH_ECANCELLED when interrupted. A capability of which no pair is kept scores 0.
 */
hh_code hh_probe(hh_scores **out, const hh_model *m, const hh_capability *capability, int64_t n,
                 const hh_probe_options *o, hh_error *err);
void hh_scores_free(hh_scores *s);

/* heads.json: readable by `select`. `model`, `length` and `seed` are told as they were given. */
hh_code hh_scores_write_json(const hh_scores *s, const char *path, const char *model, int64_t length, int64_t seed,
                             hh_error *err);
/* One self-contained page of heat maps, and the sections of it alone, for a larger page. */
hh_code hh_scores_write_html(const hh_scores *s, const char *path, const char *model, hh_error *err);
void hh_scores_page(const hh_scores *s, const bool *marked, hh_buf *out);
/* The combined scores as a compact heat map, and the best heads as a table. */
void hh_scores_terminal(const hh_scores *s, bool color, hh_buf *out);

#endif
