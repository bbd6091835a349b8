/* Where a model's weights stand in memory, and their names.
 *
 * One structure serves weights, gradients and optimizer moments alike. hh_weights_list is the only place that knows which
 * parameters a configuration has, what they are called in a checkpoint and what shape they have; loading, saving, converting,
 * optimising and comparing all walk that list. Every parameter has a slot, one tensor of its own; the matrices that ops read
 * (hh_linear) are made from the slots by hh_weights_merge, which joins what lies together.
 *
 * Heads stand FA first (ascending), then GDN (ascending); W_O's columns, gamma and head_gate's rows are permuted at load and
 * put back at save. In a dense layer all heads are FA and nothing moves.
 */
#ifndef HH_MODEL_WEIGHTS_H
#define HH_MODEL_WEIGHTS_H

#include "model/config.h"
#include "ops/ops.h"

/* Parts of the fused input projection, in the order of their columns in the wide activation. */
typedef enum hh_input_part {
    HH_FA_Q,
    HH_FA_K,
    HH_FA_V,
    HH_FA_GATE,
    HH_GDN_Q,
    HH_GDN_K,
    HH_GDN_V,
    HH_GDN_GATE,
    HH_GDN_A,
    HH_GDN_B,
    HH_HEAD_GATE,
    HH_INPUT_PARTS
} hh_input_part;

typedef struct hh_layer {
    bool dense;                 /* plain teacher layer: RoPE on FA heads, no gate, no fusion, no log-scale */
    int64_t n_fa, n_kv, n_gdn;  /* FA query heads, KV heads kept for them, GDN heads */
    int32_t head[HH_MAX_HEADS]; /* original index of in-memory head i */
    int32_t kv_of_fa[HH_MAX_HEADS];
    int64_t column[HH_INPUT_PARTS + 1]; /* columns of part p in the wide activation: [column[p], column[p+1]) */

    hh_tensor norm1, norm2; /* [C] */
    hh_part
        input[HH_INPUT_PARTS]; /* the input projections one by one; a part that is absent has no data and 0 columns */
    hh_tensor fa_q_norm, fa_k_norm, gdn_q_norm, gdn_k_norm; /* [D] or none */
    hh_tensor A_log, dt_bias;                               /* [n_gdn] */
    hh_tensor conv[3];                                      /* q, k, v: [n_gdn * D, 4] or none */
    hh_tensor gamma;                                        /* [H] in memory order, or none */
    hh_part o_part, gate_part, up_part, down_part;          /* [C, H*D]; [F, C] twice; [C, F] */

    /* made by hh_weights_merge */
    hh_linear in;      /* all input projections */
    hh_linear out;     /* W_O */
    hh_linear gate_up; /* [2F, C] as gate, up */
    hh_linear down;    /* [C, F] */
} hh_layer;

typedef struct hh_weights {
    hh_tensor embedding;  /* [V, C] */
    hh_tensor lm_head;    /* [V, C]; none when tied */
    hh_tensor final_norm; /* [C] */
    hh_layer *layer;      /* [L] */
    hh_linear head;       /* made by hh_weights_merge: lm_head, or the embedding itself when tied */
} hh_weights;

typedef struct hh_param {
    char name[128]; /* its name in a checkpoint */
    int64_t layer;  /* -1: outside the layers */
    int rank;
    int64_t dim[2];
    hh_tensor *slot; /* the place in hh_weights that holds it */
    bool matrix;     /* may be stored in bf16 or quantised; everything else stays float32 in every format */
    bool product;    /* a matrix that hh_linear or the embedding reads: on a GPU of the activations' type */
    bool mixer;      /* belongs to a hybrid attention layer (trained by align) */
    bool permuted_columns, permuted_rows; /* heads were reordered: of W_O; of gamma and head_gate */
} hh_param;

/* Sets what a configuration says of layer l: dense, counts, orders, columns. Tensors are cleared. */
void hh_layer_describe(const hh_config *c, int64_t l, hh_layer *out);

/* Fills `out` (hh_weights_count(c) entries) with c's parameters and their slots in w; w->layer must hold L layers, which this
 * describes first (hh_layer_describe). Slots are empty until the caller puts tensors there. */
int64_t hh_weights_count(const hh_config *c);
void hh_weights_list(const hh_config *c, hh_weights *w, hh_param *out);
/* After slots are filled: makes every hh_linear, neighbouring parts that lie one behind another joined (see ops.h). */
void hh_weights_merge(const hh_config *c, hh_weights *w);
/* A model's parameter by its name in a checkpoint; NULL: it has none. */
const hh_param *hh_param_find(const hh_param *params, int64_t n, const char *name);

#endif
