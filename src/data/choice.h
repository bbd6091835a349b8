/* Items that are scored by log-likelihood: multiple choice, WinoGrande's partial scoring, LAMBADA's last word.
 *
 * One JSON object a line: {"query", "choices", "gold"}, {"context_options", "continuation", "gold"} or {"context",
 * "continuation"}. Tokens are made as lm-evaluation-harness makes them: a space before the continuation, trailing white
 * space of the context moved to the continuation, encode(context + continuation) cut at the length of encode(context).
 */
#ifndef HH_DATA_CHOICE_H
#define HH_DATA_CHOICE_H
#include "text/tokenizer.h"

typedef enum hh_choice_kind {
    HH_CHOICE_MULTIPLE,    /* one context, several continuations */
    HH_CHOICE_CONTEXTS,    /* several contexts, one continuation (partial scoring) */
    HH_CHOICE_CONTINUATION /* one of each: greedy match and perplexity */
} hh_choice_kind;

typedef struct hh_choice_item {
    int64_t n, gold;        /* options; index of the right one */
    char **context, **text; /* [n] what stands before; what is scored, the space before it included */
    int64_t *chars, *bytes; /* [n] of the choice as written, for acc_norm and acc_bytes */
} hh_choice_item;
typedef struct hh_choice_set {
    hh_choice_kind kind;
    hh_choice_item *item;
    int64_t n;
} hh_choice_set;
/* All lines are of one kind. A refusal names file, line and field. At most `limit` items (0: all). */
hh_code hh_choice_read(hh_choice_set *out, const char *path, int64_t limit, hh_error *err);
/* The same from bytes (the fuzz target's entry). */
hh_code hh_choice_parse(hh_choice_set *out, const char *path, const char *bytes, size_t size, int64_t limit,
                        hh_error *err);
void hh_choice_release(hh_choice_set *s);

/* ids of context and continuation together (replaced); *n_context of them are context, at least one: an empty context
 * is the tokenizer's bos or end id. Kept to the last max_length + 1, as the harness does; *truncated says whether that
 * cut anything. */
hh_code hh_choice_encode(const hh_tokenizer *t, const char *context, const char *text, int64_t max_length, hh_ids *ids,
                         int64_t *n_context, bool *truncated, hh_error *err);
#endif
