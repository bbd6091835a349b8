/* Migration: a dense teacher and a plan become the hybrid that training starts from (docs/METHOD.md sections 2, 6 and 7).
 *
 * Every projection, norm and W_O is the teacher's; what a hybrid has on top starts where it changes least: gates at a
 * constant, convolutions as the identity, head gates equal, gamma at the scale of the teacher's own head outputs.
 */
#ifndef HH_CONVERT_MIGRATE_H
#define HH_CONVERT_MIGRATE_H

#include "convert/plan.h"
#include "model/model.h"
#include "text/tokenizer.h"

typedef struct hh_hybrid_options {
    hh_fusion fusion;
    double log_scale_base; /* 0: off */
    bool log_scale_in_training;
    double beta_scale;
    bool fa_gate, gdn_conv, gdn_gate;
    double gate_bias; /* b_g of the full-attention gate and of the GDN output gate */
    uint64_t seed;    /* of w_a, w_b, A and dt */
} hh_hybrid_options;

hh_hybrid_options hh_hybrid_defaults(
    void); /* docs/METHOD.md's: scale, 500, false, 2, gate on with bias 1, no convolution, no GDN gate, seed 0 */

/* HH_EINVAL when the plan is of another shape, HH_EUNSUPPORTED when the teacher is a hybrid itself: what hh_migrate says,
 * before anything is made. */
hh_code hh_hybrid_check(const hh_config *teacher, const hh_plan *plan, const hh_hybrid_options *o, hh_error *err);

/* A new model in one flat block (as HH_LOAD_REAL gives), ready to be trained or saved; the teacher's weights may be of
 * any stored type. gamma [L*H] by original head (hh_calibrate_gamma), NULL: 1 everywhere. */
hh_code hh_migrate(hh_model **out, const hh_model *teacher, const hh_plan *plan, const hh_hybrid_options *o,
                   const double *gamma, hh_error *err);

/* hh_calibrate_gamma over the first *n tokens of a text file (NULL: the shipped excerpt), in sequences of the teacher's own
 * length, at most 1024; *n becomes what there was. */
hh_code hh_calibrate_on_text(const hh_model *teacher, const hh_tokenizer *t, const char *file, int64_t *n,
                             double *gamma, hh_error *err);

/* gamma [L*H] by original head: the root mean square of every head's output before W_O over ids[0, n), read as
 * sequences of `length` tokens. HH_EINVAL without tokens. Shows progress. */
hh_code hh_calibrate_gamma(const hh_model *teacher, const int32_t *ids, int64_t n, int64_t length, double *gamma,
                           hh_error *err);

#endif
