/* Inside the model: the activations that forward.c writes and backward.c reads back. */
#ifndef HH_MODEL_RUN_H
#define HH_MODEL_RUN_H

#include "model/forward.h"

/* What one layer leaves behind, for T tokens. In an inference run the stages of a value share memory (a norm works in
 * place) and all layers share one block; for a backward every stage that it asks for has a place of its own, and in a
 * training run every layer.
 * Only tensors here: hh_act_rows walks them as an array. */
typedef struct hh_act {
    hh_tensor x, mid;           /* [T, C] stream before the block; between attention and MLP */
    hh_tensor rstd1, rstd2;     /* [T] of the two norms */
    hh_tensor wide;             /* [T, all input columns] as projected */
    hh_tensor fa_q, fa_k, fa_v; /* [T, n_fa | n_kv, D] what attention reads */
    hh_tensor fa_q_rstd, fa_k_rstd, lse;
    hh_tensor gdn_conv[3]; /* [T, n_gdn * D] q, k, v after the convolution; the projections themselves without one */
    hh_tensor gdn_q, gdn_k, gdn_v;
    hh_tensor gdn_q_rstd, gdn_k_rstd, gdn_q_r, gdn_k_r; /* [T, n_gdn] of the q/k norm and of the L2 norm */
    hh_tensor g, beta;                                  /* [T, n_gdn] */
    hh_tensor fa_raw, gdn_raw;        /* [T, n, D] the mixers' outputs; columns of `mixed` where no gate follows */
    hh_tensor mixed;                  /* [T, H, D] behind the gates */
    hh_tensor head_weight, head_rstd; /* [T, H] */
    hh_tensor heads;                  /* [T, H, D] what W_O reads; `mixed` itself without fusion */
    hh_tensor gate_up;                /* [T, 2F] */
    hh_tensor h;                      /* [T, F] silu(gate) up: over the gate, or work memory */
} hh_act;

struct hh_run {
    const hh_model *m;
    hh_backend *be;
    hh_run_mode mode;
    int64_t max_tokens, max_spans;
    hh_tap tap;
    hh_gdn_mode gdn_mode;
    bool decoding;    /* what the last forward's batch was */
    hh_act *act;      /* [L] */
    hh_tensor *saved; /* [L] [chunks, n_gdn, D, D] GDN states at the chunks' starts; training only */
    hh_tensor last;   /* [T, C] stream behind the last block */
    hh_tensor final, final_rstd;
    hh_tensor norm;     /* [T, C] work: a norm's output */
    hh_tensor cos, sin; /* [T, D/2] of the batch whose spans are in table_span */
    hh_span *table_span;
    int64_t n_table_spans; /* -1: no table yet */
    hh_kv *kv;             /* [max_spans] */
    int32_t *last_row;     /* [max_spans] */
    hh_tensor *state, *tail[3];
    /* the backward's work memory */
    hh_tensor d_norm, d_wide, d_heads[2], d_gate_up, d_h, work_h, d_conv[3], d_g, d_beta, d_weight;
    hh_tensor unwanted_gate[2], unwanted_conv; /* [n_gdn], [n_gdn * D, 4]: weight gradients that nobody asked for */
    bool check_nan;
    hh_error fault;               /* the first non-finite value that HYDRAHEAD_CHECK=nan saw */
    hh_arena tables, activations; /* without base: the caller's */
};

/* Rows [0, n) of everything in a. */
hh_act hh_act_rows(const hh_act *a, int64_t n);
/* Asserts that b fits r, and makes the rotary table for its spans. */
void hh_run_begin(hh_run *r, const hh_batch *b);
/* Looks t through when HYDRAHEAD_CHECK=nan is set; remembers the first fault. */
void hh_run_look(hh_run *r, const char *op, int64_t layer, hh_tensor t);
/* Begins, changes and ends the branches of a layer with both kinds of heads: GDN first, beside it full attention. Nothing for
 * other layers. */
void hh_run_branch(hh_run *r, const hh_layer *l, hh_branch b);
/* Calls the tap, if somebody listens. */
void hh_run_announce(hh_run *r, const hh_tap *tap, hh_point point, int64_t layer, hh_tensor t);

/* Part p of a wide activation as [T, heads, D], or as [T, n]; HH_NONE when the layer has none. */
hh_tensor hh_part_heads(const hh_layer *l, hh_tensor wide, hh_input_part p, int64_t head_dim);
hh_tensor hh_part_columns(const hh_layer *l, hh_tensor wide, hh_input_part p);
/* Heads [lo, hi) of t [T, H, D]. */
hh_tensor hh_heads_of(hh_tensor t, int64_t lo, int64_t hi);

static inline bool hh_all_single(const hh_batch *b) {
    return b->n_spans == b->n_tokens;
}

#endif
