/* Inside of a tokenizer, shared by the loaders (json.c, gguf vocabularies) and by encoding. */
#ifndef HH_TEXT_PARTS_H
#define HH_TEXT_PARTS_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/normalise.h"
#include "text/split.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

struct hh_tokenizer {
    char *path; /* for messages */
    hh_vocab vocab;
    hh_bpe bpe;
    hh_normaliser normaliser;
    hh_splitter splitter;
    hh_added_set added, added_normal; /* looked for in the text as it is, and in the normalised text */
    hh_ids before, after;             /* what BOS_EOS adds */
    int32_t bos, eos;
    hh_ids end_ids;
    char *chat_template; /* NULL: none */
};

hh_tokenizer *hh_tokenizer_new(const char *path);
/* Adds id to the end tokens unless it is there already or is no token. */
void hh_tokenizer_add_end(hh_tokenizer *t, int64_t id);

/* A Split stage by a regular expression; GPT-2's ByteLevel when kind is HH_SPLIT_BYTE_LEVEL. */
hh_code hh_splitter_add_pattern(hh_splitter *s, const char *path, const char *field, const char *pattern,
                                hh_split_stage stage, hh_error *err);

#endif
