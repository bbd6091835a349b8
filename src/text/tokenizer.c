/* Encoding and decoding; see tokenizer.h. The steps are those of Hugging Face tokenizers, in its order: tokens looked
 * for in the text as it is; between them the normalizer; tokens looked for in the normalised text; between those the
 * pre-tokenizer; BPE of each word.
 */
#include "text/parts.h"

#include <string.h>

hh_tokenizer *hh_tokenizer_new(const char *path) {
    hh_tokenizer *t = hh_alloc(sizeof *t);
    t->path = hh_strdup(path);
    t->bos = t->eos = t->bpe.unknown = -1;
    return t;
}

void hh_tokenizer_close(hh_tokenizer *t) {
    if (!t) return;
    hh_vocab_release(&t->vocab);
    hh_bpe_release(&t->bpe);
    hh_normaliser_release(&t->normaliser);
    hh_splitter_release(&t->splitter);
    hh_added_release(&t->added);
    hh_added_release(&t->added_normal);
    hh_ids_release(&t->before);
    hh_ids_release(&t->after);
    hh_ids_release(&t->end_ids);
    hh_free(t->chat_template);
    hh_free(t->path);
    hh_free(t);
}

hh_code hh_splitter_add_pattern(hh_splitter *s, const char *path, const char *field, const char *pattern,
                                hh_split_stage stage, hh_error *err) {
    HH_TRY(hh_regex_compile(&stage.regex, path, field, pattern, err));
    stage.scan = hh_scanner_find(pattern);
    return hh_splitter_add(s, stage, path, err);
}

/* One call of encode. */
typedef struct encoder {
    const hh_tokenizer *t;
    hh_bpe_scratch bpe;
    hh_regex_scratch regex;
    hh_buf normal, shadow;
    bool special;
    hh_ids *out;
    hh_error *err;
} encoder;

static void encode_word(void *context, const char *word, size_t n) {
    encoder *e = context;
    hh_bpe_encode(&e->t->bpe, &e->t->vocab, &e->bpe, word, n, e->out);
}

static hh_code encode_plain(encoder *e, const char *text, size_t n) {
    const char *shadow = hh_shadow(text, n, &e->shadow);
    return hh_split(&e->t->splitter, &e->regex, text, shadow, n, encode_word, e, e->err);
}

static hh_code encode_raw(encoder *e, const char *text, size_t n) {
    const char *normal;
    size_t len;
    HH_TRY(hh_normalise(&e->t->normaliser, &e->regex, &normal, &len, &e->normal, text, n, e->err));
    hh_added_cursor cursor = {0};
    hh_added_span span;
    while (hh_added_next(&e->t->added_normal, &cursor, normal, len, e->special, &span)) {
        if (span.id >= 0)
            hh_ids_push(e->out, span.id);
        else
            HH_TRY(encode_plain(e, normal + span.lo, span.hi - span.lo));
    }
    return HH_OK;
}

static hh_code encode_all(encoder *e, const char *text, size_t n) {
    hh_added_cursor cursor = {0};
    hh_added_span span;
    while (hh_added_next(&e->t->added, &cursor, text, n, e->special, &span)) {
        if (span.id >= 0)
            hh_ids_push(e->out, span.id);
        else
            HH_TRY(encode_raw(e, text + span.lo, span.hi - span.lo));
    }
    return HH_OK;
}

hh_code hh_tokenizer_encode(const hh_tokenizer *t, const char *text, size_t len, int flags, hh_ids *out,
                            hh_error *err) {
    int64_t before = out->len;
    encoder e = {.t = t, .special = flags & HH_ENCODE_SPECIAL, .out = out, .err = err};
    hh_bpe_scratch_init(&e.bpe, len);
    if (flags & HH_ENCODE_BOS_EOS) hh_ids_append(out, t->before.data, t->before.len);
    hh_code code = encode_all(&e, text, len);
    if (flags & HH_ENCODE_BOS_EOS) hh_ids_append(out, t->after.data, t->after.len);
    hh_bpe_scratch_release(&e.bpe);
    hh_regex_scratch_release(&e.regex);
    hh_buf_release(&e.normal);
    hh_buf_release(&e.shadow);
    if (code == HH_OK) return HH_OK;
    out->len = before;
    return hh_fail_in(err, "%s", t->path);
}

const char *hh_tokenizer_token(const hh_tokenizer *t, int32_t id, size_t *len) {
    *len = 0;
    if (id < 0 || id >= t->vocab.size || !t->vocab.flags[id]) return NULL;
    return hh_vocab_bytes(&t->vocab, id, len);
}

bool hh_tokenizer_is_special(const hh_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->vocab.size && t->vocab.flags[id] & HH_TOKEN_SPECIAL;
}

hh_code hh_tokenizer_decode(const hh_tokenizer *t, const int32_t *ids, int64_t n, bool special, hh_buf *out,
                            hh_error *err) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= t->vocab.size)
            return hh_fail(err, HH_EINVAL, "%s: there is no token %d (at place %lld of the ids); ids are 0 ... %lld",
                           t->path, ids[i], (long long)i, (long long)t->vocab.size - 1);
    for (int64_t i = 0; i < n; i++) {
        size_t len;
        const char *bytes = hh_tokenizer_token(t, ids[i], &len);
        if (bytes && (special || !hh_tokenizer_is_special(t, ids[i]))) hh_buf_add(out, bytes, len);
    }
    return HH_OK;
}

int32_t hh_tokenizer_id(const hh_tokenizer *t, const char *token) {
    int32_t id = hh_vocab_find(&t->vocab, token, strlen(token), false);
    return id >= 0 ? id : hh_vocab_find_written(&t->vocab, token, strlen(token));
}

int64_t hh_tokenizer_vocab_size(const hh_tokenizer *t) {
    return t->vocab.size;
}
int32_t hh_tokenizer_bos(const hh_tokenizer *t) {
    return t->bos;
}
int32_t hh_tokenizer_eos(const hh_tokenizer *t) {
    return t->eos;
}

void hh_tokenizer_add_end(hh_tokenizer *t, int64_t id) {
    if (id < 0 || id >= t->vocab.size || !t->vocab.flags[id]) return;
    for (int64_t i = 0; i < t->end_ids.len; i++)
        if (t->end_ids.data[i] == id) return;
    hh_ids_push(&t->end_ids, (int32_t)id);
}

const int32_t *hh_tokenizer_end_ids(const hh_tokenizer *t, int64_t *n) {
    *n = t->end_ids.len;
    return t->end_ids.data;
}
