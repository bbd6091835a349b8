/* One forward and one backward of the model, teacher or hybrid, as straight lists of op calls.
 *
 * A run holds the activations of up to max_tokens tokens: of one layer at a time for inference, of all layers when the backward is to follow.
 * A batch is a list of tokens cut into spans, each a sequence or the next piece of one: packed training sequences, a prefill chunk, or
 * one token each of several sequences being decoded, all the same to the model. Padding does not exist: leave it out.
 */
#ifndef HH_MODEL_FORWARD_H
#define HH_MODEL_FORWARD_H

#include "model/model.h"

typedef struct hh_batch {
    int64_t n_tokens, n_spans;
    const int32_t *ids; /* [n_tokens] */
    const hh_span
        *span; /* [n_spans], ascending, covering all tokens; span.pos == cache[s]->length, or 0 without caches */
    hh_cache *const *cache; /* [n_spans], or NULL: no memory of earlier tokens (training, probing) */
    bool prompt; /* the tokens are a prompt's, also where every span is a single one; such a batch is else decoded */
} hh_batch;

/* Named points at which an observer may read or replace what stands there (replace by writing into t).
 * In a backward the same points announce gradients. */
typedef enum hh_point {
    HH_POINT_BLOCK_INPUT,      /* [T, C] residual stream before block `layer` */
    HH_POINT_HEAD_OUTPUT,      /* [T, H, D] what W_O reads, heads in memory order */
    HH_POINT_ATTENTION_OUTPUT, /* [T, C] W_O's product, before it is added to the stream */
    HH_POINT_BLOCK_OUTPUT,     /* [T, C] residual stream after the block */
    HH_POINT_FINAL,            /* [T, C] final norm's output, what the head reads; layer = L */
} hh_point;
typedef void hh_tap_fn(void *context, hh_point point, int64_t layer, hh_tensor t);
typedef struct hh_tap {
    hh_tap_fn *call; /* NULL: nobody listens */
    void *context;
} hh_tap;

typedef struct hh_run hh_run;

typedef enum hh_run_mode {
    HH_RUN_INFERENCE, /* activations of one layer are reused by the next */
    HH_RUN_TRAINING,  /* all layers kept, for hh_backward */
    HH_RUN_ATTENTION, /* one layer's kept and reused by the next, for hh_backward_attention right behind the forward */
} hh_run_mode;        /* log-scale: inference always applies it; else it follows config.log_scale_in_training */

/* Bytes that hh_run_new would reserve on a backend whose activations are of this type; of them, the activations. */
size_t hh_run_bytes(const hh_config *c, hh_dtype activation, int64_t max_tokens, int64_t max_spans, hh_run_mode mode);
size_t hh_run_activation_bytes(const hh_config *c, hh_dtype activation, int64_t max_tokens, int64_t max_spans,
                               hh_run_mode mode);
hh_code hh_run_new(hh_run **out, const hh_model *m, int64_t max_tokens, int64_t max_spans, hh_run_mode mode,
                   hh_error *err);
/* The same with its activations in `activations`, an arena of the caller's of at least hh_run_activation_bytes that
 * outlives the run. Runs may share it; each one's activations are valid until another of them begins a batch. */
hh_code hh_run_new_in(hh_run **out, const hh_model *m, int64_t max_tokens, int64_t max_spans, hh_run_mode mode,
                      hh_arena *activations, hh_error *err);
void hh_run_free(hh_run *r);
/* The next batch's rotary table is made anew: what is recorded must not depend on the batch before. */
void hh_run_forget_table(hh_run *r);
void hh_run_set_tap(hh_run *r, hh_tap tap);
void hh_run_set_gdn_mode(hh_run *r, hh_gdn_mode mode); /* default: chunked; spans of one token are always recurrent */

/* Runs the batch; caches advance. A token's result is the same bits whatever stands beside it in the batch, and wherever
 * its sequence was cut before it at multiples of HH_GDN_CHUNK tokens; decoded tokens agree with that to rounding.
 * Returns the final norm's output [n_tokens, C], valid until the next forward.
 * Fails only with HH_ENONFINITE when HYDRAHEAD_CHECK=nan is set, HH_ENOMEM when a cache is full, HH_ECANCELLED when it is
 * interrupted between two layers, which decoding never is: its caches are to be reset then. */
hh_code hh_forward(hh_run *r, const hh_batch *b, hh_tensor *final, hh_error *err);
/* The same, and the logits of every span's last token in `logits` [n_spans, V] hh_real, always by the product that
 * decoding uses: what the next tokens are drawn from. A backend that records runs a step of decoding as one launch. */
hh_code hh_forward_next(hh_run *r, const hh_batch *b, hh_tensor logits, hh_tensor *final, hh_error *err);
/* Logits of some rows (NULL: rows [0, n)) of a final tensor, into out [n, V] hh_real of the backend's memory. */
void hh_logits(hh_run *r, hh_tensor final, const int32_t *rows, int64_t n, hh_tensor out);

/* From the gradient of the final norm's output [n_tokens, C] (overwritten) to all weight gradients, added to g (NULL: none are wanted). */
typedef struct hh_backward_options {
    hh_tap tap; /* gradients at the named points */
    bool
        detach_attention; /* attention outputs are constants: nothing flows into heads (HEAD_OUTPUT's gradient is still announced) */
} hh_backward_options;
/* Interrupted, it returns early and the gradients are worth nothing: whoever is to use them asks hh_interrupted() first. */
void hh_backward(hh_run *r, const hh_batch *b, hh_tensor dfinal, hh_gradients *g, const hh_backward_options *options);

/* Parts of a block, for alignment and probing. Attention alone: out [T, C] = Attn(RMSNorm(x)) of layer l for a stream x [T, C] given
 * by the caller; a TRAINING run keeps what the backward of that layer needs. */
void hh_forward_attention(hh_run *r, const hh_batch *b, int64_t layer, hh_tensor x, hh_tensor out);
/* From dout [T, C] to the weight gradients of that attention layer (norm1 is left alone: the stream and its norm are the
 * teacher's); dx, if wanted, is overwritten with the gradient of x. */
void hh_backward_attention(hh_run *r, const hh_batch *b, int64_t layer, hh_tensor x, hh_tensor dout, hh_gradients *g,
                           hh_tensor dx);
/* x [n, C] += MLP(RMSNorm(x)) of layer l, rows by themselves; and the final norm, y [n, C]. No tap is called. */
void hh_forward_mlp(hh_run *r, int64_t layer, hh_tensor x);
void hh_forward_final(hh_run *r, hh_tensor x, hh_tensor y);

#endif
