/* hydrahead: run a Transformer, or a hybrid of full attention and Gated DeltaNet made from one, from C.
 *
 *     hh_error err;
 *     hh_engine *engine;
 *     hh_sequence *sequence;
 *     if (hh_engine_open(&engine, "nano", NULL, &err) != HH_OK) { fprintf(stderr, "%s\n", err.text); exit(1); }
 *     hh_sequence_new(&sequence, engine, 4096, &err);
 *     hh_sequence_prompt(sequence, ids, n, &err);        // the whole prefix; what was read before is not read again
 *     const float *logits = hh_sequence_logits(sequence);
 *
 * An engine is a model, its tokenizer, the place where it computes, and the snapshots of what it has read. Sequences are
 * independent contexts of one engine. The caller always gives the whole token prefix, and the engine decides what of it
 * it still has: a prompt gives the same bits however much of it was reused.
 *
 * Threads: calls on one engine and its sequences are made by one thread at a time, but for hh_sequence_cancel, which any
 * thread may call. Different engines are independent. The library keeps no global state, prints nothing, never exits on
 * what a file or a caller gives it, and installs no signal handler.
 *
 * Functions that can fail return a code and write one sentence, fit to print, into *err (never NULL). Out parameters come
 * first. What the caller must free says so; hh_memory_free frees what this library allocated.
 */
#ifndef HYDRAHEAD_H
#define HYDRAHEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HH_API __attribute__((visibility("default")))
#else
#define HH_API
#endif

#define HH_VERSION     "0.1.0"
#define HH_API_VERSION 1 /* changes when a program must be changed */

/* The same of the library that is loaded. */
HH_API const char *hh_version(void);
HH_API int hh_api_version(void);

/* -- how things fail -- */

typedef enum hh_code {
    HH_OK = 0,
    HH_EINVAL,       /* the caller's words or numbers make no sense */
    HH_EIO,          /* the system refused: open, read, write, rename */
    HH_EFORMAT,      /* a file is damaged or not what it says it is */
    HH_EUNSUPPORTED, /* well formed, but hydrahead would compute something else */
    HH_ENOMEM,       /* does not fit; the sentence has both numbers */
    HH_ECANCELLED,   /* the user or the caller asked to stop */
    HH_ENONFINITE,   /* a value is NaN or infinite; names layer and position */
} hh_code;

typedef struct hh_error {
    hh_code code;
    char text[1000]; /* one sentence without a final newline; "" when code is HH_OK */
} hh_error;

HH_API void hh_memory_free(void *p); /* NULL is accepted */

/* -- the engine -- */

typedef struct hh_engine hh_engine;

typedef enum hh_log_level { HH_LOG_INFO, HH_LOG_WARNING } hh_log_level;
typedef void hh_log_fn(void *context, hh_log_level level, const char *sentence);

/* Zeros are the defaults. */
typedef struct hh_engine_options {
    const char *device;     /* "cpu", "cuda", "cuda:1"; NULL: what HYDRAHEAD_DEVICE says, else the CPU */
    const char *dtype;      /* NULL: "auto"; "f32": products and activations in float32 */
    const char *kv;         /* type of the KV cache: NULL: "auto" (bf16; f32 where dtype is); "f32", "bf16", "q8_0" */
    const char *rope;       /* stretched positions: NULL: the model's own; "yarn:4", "linear:4" */
    int threads;            /* 0: all processors */
    int64_t chunk;          /* tokens of one prefill pass, rounded up to a multiple of 64; 0: 512 */
    size_t cache_bytes;     /* memory for snapshots of what was read; 0: 1 GiB; SIZE_MAX: none are kept */
    const char *cache_dir;  /* NULL: snapshots are in memory alone */
    size_t cache_dir_bytes; /* 0: as many as there is room for */
    hh_log_fn *log;         /* NULL: nobody listens */
    void *log_context;
} hh_engine_options;

/* `path`: a Hugging Face directory, a GGUF file, or "nano" (the model that is shipped). options NULL: the defaults. A
 * model without a tokenizer is opened too; what needs one says so then. */
HH_API hh_code hh_engine_open(hh_engine **out, const char *path, const hh_engine_options *options, hh_error *err);
HH_API void hh_engine_close(hh_engine *e); /* after its sequences are freed; NULL is accepted */

typedef struct hh_engine_info {
    const char *path, *family, *backend; /* "qwen3", "qwen2", "llama"; "cpu (avx2)", "cuda" */
    bool hybrid;
    int64_t vocab, width, n_layers, n_heads, n_kept_heads; /* kept: query heads with full attention */
    int64_t native_context;                                /* tokens the model was trained on */
    double cache_bytes_per_token, state_bytes;             /* of a sequence: what grows with it, and what does not */
    size_t weight_bytes;
} hh_engine_info;
HH_API hh_engine_info hh_engine_get_info(const hh_engine *e); /* strings live as long as the engine */

/* Bytes that one sequence with room for `context` tokens takes. */
HH_API size_t hh_engine_sequence_bytes(const hh_engine *e, int64_t context);

typedef struct hh_engine_stats {
    int64_t snapshots, tokens_read, tokens_reused, snapshots_refused;
    size_t snapshot_bytes, snapshot_disk_bytes;
} hh_engine_stats;
HH_API hh_engine_stats hh_engine_get_stats(const hh_engine *e);

/* Writes one snapshot that is not on disk yet; *done: there was none. For when nothing else is to be done, and before
 * the engine is closed. */
HH_API hh_code hh_engine_write_snapshot(hh_engine *e, bool *done, hh_error *err);

/* -- text and tokens -- */

/* Tokens of UTF-8 text; *ids is freed by the caller. `special`: words like <|im_start|> in the text are that token, and
 * otherwise just text. No beginning or end token is added. */
HH_API hh_code hh_engine_tokenize(const hh_engine *e, const char *text, size_t len, bool special, int32_t **ids,
                                  int64_t *n, hh_error *err);
/* Bytes of tokens, in (*text)[0, *len) and a NUL behind; freed by the caller. A token may be a part of a character. */
HH_API hh_code hh_engine_detokenize(const hh_engine *e, const int32_t *ids, int64_t n, bool special, char **text,
                                    size_t *len, hh_error *err);
HH_API const int32_t *hh_engine_end_tokens(const hh_engine *e, int64_t *n); /* at which an answer ends */

typedef struct hh_message {
    const char *role, *content; /* "system", "user", "assistant" */
} hh_message;
/* A conversation in the model's own chat template, ready for the assistant's answer. HH_EUNSUPPORTED: the model has no
 * template, or one that is not known. */
HH_API hh_code hh_engine_chat(const hh_engine *e, const hh_message *messages, int64_t n_messages, int32_t **ids,
                              int64_t *n, hh_error *err);

/* -- sequences -- */

typedef struct hh_sequence hh_sequence;

HH_API hh_code hh_sequence_new(hh_sequence **out, hh_engine *e, int64_t context, hh_error *err);
HH_API void hh_sequence_free(hh_sequence *s); /* NULL is accepted */

/* Makes ids[0, n) what the sequence has read: finds how much of it is known (the sequence itself, snapshots), reads the
 * rest, and keeps snapshots of it. Afterwards hh_sequence_logits are those behind ids[n-1]. What is reused ends at a
 * multiple of 64 tokens that were read as part of a prompt, or at the whole prompt's end: that keeps the bits the same.
 * HH_EINVAL with both numbers, and before anything is computed, when n is 0 or more than the context, or an id is none
 * of the vocabulary. HH_ENONFINITE resets the sequence. HH_ECANCELLED: what was read is there for the next prompt. */
HH_API hh_code hh_sequence_prompt(hh_sequence *s, const int32_t *ids, int64_t n, hh_error *err);

/* The same in pieces, so that several sequences can take turns: begin, then advance until *left is 0. An advance reads at
 * most one chunk. */
HH_API hh_code hh_sequence_begin(hh_sequence *s, const int32_t *ids, int64_t n, hh_error *err);
HH_API hh_code hh_sequence_advance(hh_sequence *s, int64_t *left, hh_error *err);

/* Appends one token to each of n sequences of one engine, in one pass over the weights: a step of generation. A
 * sequence's logits do not depend on which others step with it. codes[i], when not NULL, tells how sequence i fared, and
 * the others go on: HH_EINVAL (its context is full, the id is none, its prompt is not read to the end, it is named
 * twice) and HH_ECANCELLED leave it as it was, HH_ENONFINITE resets it. Returns the first failure. */
HH_API hh_code hh_sequences_step(hh_sequence *const *s, const int32_t *ids, int64_t n, hh_code *codes, hh_error *err);

/* [vocab] of the next token, good until the sequence's next call; NULL when no prompt has been read to its end. */
HH_API const float *hh_sequence_logits(const hh_sequence *s);
HH_API double hh_sequence_log_probability(const hh_sequence *s, int32_t id); /* of the next token; NaN without logits */
/* As hh_sequence_prompt, but nothing is reused, and the log-probability of every token of the prompt given those before
 * it, [n - 1], is returned; freed by the caller. With n_top > 0 also the n_top most likely ids at each place and theirs,
 * [n - 1][n_top], likeliest first; top_ids and top may be NULL otherwise. */
HH_API hh_code hh_sequence_score(hh_sequence *s, const int32_t *ids, int64_t n, int64_t n_top, float **log_probability,
                                 int32_t **top_ids, float **top, hh_error *err);
/* The same in chunks, by hh_sequence_advance, into places of the caller's: they must stay until the prompt is read,
 * another is begun or the sequence is freed. */
HH_API hh_code hh_sequence_begin_score(hh_sequence *s, const int32_t *ids, int64_t n, int64_t n_top,
                                       float *log_probability, int32_t *top_ids, float *top, hh_error *err);
HH_API int64_t hh_sequence_length(const hh_sequence *s);  /* tokens read */
HH_API int64_t hh_sequence_context(const hh_sequence *s); /* that fit */
HH_API int64_t hh_sequence_reused(const hh_sequence *s);  /* of the last prompt, that were not read again */

/* Stops what the sequence is doing, from any thread: the prompt being read (at the end of a chunk), or the next step,
 * returns HH_ECANCELLED. A prompt begun later is not affected. */
HH_API void hh_sequence_cancel(hh_sequence *s);

/* Called after every chunk of a prompt; returning false cancels. */
typedef bool hh_progress_fn(void *context, int64_t done, int64_t n);
HH_API void hh_sequence_on_progress(hh_sequence *s, hh_progress_fn *f, void *context);

/* A sequence as a file, written aside and renamed; and back into a sequence of the same model and settings.
 * HH_EFORMAT: damaged; HH_EUNSUPPORTED: of another model; HH_EINVAL: the context is too small (both numbers). */
HH_API hh_code hh_sequence_save(const hh_sequence *s, const char *path, hh_error *err);
HH_API hh_code hh_sequence_load(hh_sequence *s, const char *path, hh_error *err);

/* -- choosing tokens -- */

typedef struct hh_sampler hh_sampler;

typedef struct hh_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -INFINITY forbids */
} hh_logit_bias;

/* Zeros are greedy decoding. Order: biases and penalties, grammar, temperature, top_k, top_p, min_p. */
typedef struct hh_sampler_options {
    double temperature;                         /* 0: the most likely token; ties go to the lower id */
    int64_t top_k;                              /* 0: off */
    double top_p, min_p;                        /* 0: off */
    double frequency_penalty, presence_penalty; /* OpenAI's, over what was generated */
    double repetition_penalty;                  /* 0 or 1: off; over prompt and text */
    const hh_logit_bias *bias;
    int64_t n_bias;
    uint64_t seed;
    const char *json_schema; /* NULL: any text; "": any JSON object; else a JSON schema that the text must follow */
} hh_sampler_options;

/* HH_EUNSUPPORTED names the part of a schema that is not known. options are copied. */
HH_API hh_code hh_sampler_new(hh_sampler **out, const hh_engine *e, const hh_sampler_options *options, hh_error *err);
HH_API void hh_sampler_free(hh_sampler *s);
/* Tokens that were not drawn but count for the repetition penalty: the prompt. */
HH_API void hh_sampler_see(hh_sampler *s, const int32_t *ids, int64_t n);
/* Draws the next token from logits [vocab] and remembers it. With a grammar only tokens that fit are drawn, an end token
 * only when the text may end there, and it is drawn when nothing else can follow. -1: no token of the vocabulary can. */
HH_API int32_t hh_sampler_draw(hh_sampler *s, const float *logits);

#ifdef __cplusplus
}
#endif

#endif
