/* Text and tokens of an engine; see hydrahead.h. */
#include "api/api.h"

#include <string.h>

/* What was collected becomes the caller's. */
static hh_code hand_over(hh_code code, hh_ids *from, int32_t **ids, int64_t *n) {
    if (code != HH_OK) {
        hh_ids_release(from);
        return code;
    }
    *ids = from->data ? from->data : hh_alloc(sizeof **ids);
    *n = from->len;
    return HH_OK;
}

hh_code hh_engine_tokenize(const hh_engine *e, const char *text, size_t len, bool special, int32_t **ids, int64_t *n,
                           hh_error *err) {
    hh_ids out = {0};
    *ids = NULL;
    *n = 0;
    HH_TRY(hh_engine_need_tokenizer(e, err));
    return hand_over(hh_tokenizer_encode(e->t, text, len, special ? HH_ENCODE_SPECIAL : HH_ENCODE_PLAIN, &out, err),
                     &out, ids, n);
}

hh_code hh_engine_detokenize(const hh_engine *e, const int32_t *ids, int64_t n, bool special, char **text, size_t *len,
                             hh_error *err) {
    hh_buf out = {0};
    *text = NULL;
    *len = 0;
    HH_TRY(hh_engine_need_tokenizer(e, err));
    hh_buf_add(&out, "", 0); /* a NUL even when nothing follows */
    hh_code code = hh_tokenizer_decode(e->t, ids, n, special, &out, err);
    if (code != HH_OK) {
        hh_buf_release(&out);
        return code;
    }
    *text = out.data;
    *len = out.len;
    return HH_OK;
}

const int32_t *hh_engine_end_tokens(const hh_engine *e, int64_t *n) {
    *n = e->n_end_ids;
    return e->end_ids;
}

hh_code hh_engine_chat(const hh_engine *e, const hh_message *messages, int64_t n_messages, int32_t **ids, int64_t *n,
                       hh_error *err) {
    hh_ids out = {0};
    *ids = NULL;
    *n = 0;
    HH_TRY(hh_engine_need_tokenizer(e, err));
    if (n_messages < 1)
        return hh_fail(err, HH_EINVAL, "a conversation of %lld messages: at least one is needed",
                       (long long)n_messages);
    hh_chat_turn *turn = hh_alloc((size_t)n_messages * sizeof *turn);
    for (int64_t i = 0; i < n_messages; i++)
        turn[i] = (hh_chat_turn){.role = messages[i].role, .content = messages[i].content};
    hh_code code = hh_tokenizer_chat(e->t, turn, n_messages, &out, err);
    hh_free(turn);
    return hand_over(code, &out, ids, n);
}
