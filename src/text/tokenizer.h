/* Byte-level BPE tokenizers: from Hugging Face's tokenizer.json and from GGUF vocabularies.
 *
 * Equal, id by id, to Hugging Face `tokenizers`: normalizer, added-token split, pre-tokenizer, merges. What is not
 * understood is refused with the field's name, never approximated. A tokenizer is immutable; encoding from several
 * threads is safe.
 */
#ifndef HH_TEXT_TOKENIZER_H
#define HH_TEXT_TOKENIZER_H

#include "base/memory.h"
#include "base/status.h"
#include "format/store.h"

typedef struct hh_tokenizer hh_tokenizer;

typedef struct hh_ids { /* a growing array of token ids; zeroed is empty and valid */
    int32_t *data;
    int64_t len, capacity;
} hh_ids;
void hh_ids_push(hh_ids *ids, int32_t id);
void hh_ids_append(hh_ids *ids, const int32_t *more, int64_t n);
void hh_ids_release(hh_ids *ids);

enum {
    HH_ENCODE_PLAIN = 0,
    HH_ENCODE_SPECIAL = 1, /* special tokens written out in the text become their ids; else they are text */
    HH_ENCODE_BOS_EOS = 2, /* what the post-processor (or the GGUF's add_bos/add_eos) would add is added */
};

/* Of a model: a directory (tokenizer.json, or tokenizer.gguf) or a GGUF file; "nano" is first located by
 * hh_model_locate. */
hh_code hh_tokenizer_open(hh_tokenizer **out, const char *model_path, hh_error *err);
hh_code hh_tokenizer_open_json(hh_tokenizer **out, const char *path, hh_error *err); /* tokenizer.json; reads
    tokenizer_config.json (chat_template, eos, bos) and generation_config.json beside it when they exist */
hh_code hh_tokenizer_open_gguf(hh_tokenizer **out, const hh_gguf *g, const char *path, hh_error *err);
/* From bytes, for the fuzz target and tests. */
hh_code hh_tokenizer_parse_json(hh_tokenizer **out, const char *path, const char *bytes, size_t size, hh_error *err);
void hh_tokenizer_close(hh_tokenizer *t);

/* Appends the ids of text[0, len) to out. Any bytes are accepted, invalid UTF-8 too (they survive a round trip). A byte
 * that the vocabulary has no token for (SmolLM2's lacks 21: six control characters and bytes that text seldom has)
 * becomes the unknown token, or is dropped when there is none, as in Hugging Face tokenizers. */
hh_code hh_tokenizer_encode(const hh_tokenizer *t, const char *text, size_t len, int flags, hh_ids *out, hh_error *err);
/* Appends the bytes of ids to out; special tokens are written only when `special`. HH_EINVAL for an id out of range. */
hh_code hh_tokenizer_decode(const hh_tokenizer *t, const int32_t *ids, int64_t n, bool special, hh_buf *out,
                            hh_error *err);
/* The raw bytes of one token; NULL for an id that has none. */
const char *hh_tokenizer_token(const hh_tokenizer *t, int32_t id, size_t *len);
int32_t hh_tokenizer_id(const hh_tokenizer *t, const char *token); /* of a token in its written form; -1: none */
bool hh_tokenizer_is_special(const hh_tokenizer *t, int32_t id);
int64_t hh_tokenizer_vocab_size(const hh_tokenizer *t);
int32_t hh_tokenizer_bos(const hh_tokenizer *t); /* -1: none */
int32_t hh_tokenizer_eos(const hh_tokenizer *t);
/* Every end token that tokenizer_config.json, generation_config.json or the GGUF names (eos, eot, eom). */
const int32_t *hh_tokenizer_end_ids(const hh_tokenizer *t, int64_t *n);

/* Streaming text: bytes of an incomplete UTF-8 character are held back until it is complete. */
typedef struct hh_detok {
    char held[8];
    int n_held;
} hh_detok;
/* Appends what can be shown after this token. */
void hh_detok_push(hh_detok *d, const hh_tokenizer *t, int32_t id, hh_buf *out);
void hh_detok_flush(hh_detok *d, hh_buf *out);

/* Chat (text/chat.h): ChatML and Llama-3 templates are recognised; others are refused by their name or first words. */
typedef struct hh_chat_turn {
    const char *role, *content;
} hh_chat_turn;
/* Appends the prompt's ids, ready for the assistant's answer. The contents are text: special tokens in them stay text.
 */
hh_code hh_tokenizer_chat(const hh_tokenizer *t, const hh_chat_turn *turns, int64_t n, hh_ids *out, hh_error *err);

#endif
