/* Text as it is generated: bytes of a character that is not complete yet are held back; see tokenizer.h. */
#include "text/tokenizer.h"
#include "text/utf8.h"

#include <string.h>

/* How many bytes at the end begin a character that more bytes could complete. */
static size_t count_incomplete(const char *text, size_t n) {
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        const char *s = text + n - k;
        uint8_t a = (uint8_t)s[0];
        if ((a & 0xc0) == 0x80) continue;
        size_t need = a >= 0xc2 && a < 0xe0 ? 2 : a >= 0xe0 && a < 0xf0 ? 3 : a >= 0xf0 && a <= 0xf4 ? 4 : 1;
        if (need <= k) return 0;
        for (int middle = 0; middle < 2; middle++) { /* the second byte's bounds depend on the first: try both ends */
            char whole[4] = {0, middle ? '\xbf' : '\x80', '\x80', '\x80'};
            memcpy(whole, s, k);
            int32_t cp;
            hh_utf8_next(whole, need, &cp);
            if (cp >= 0) return k;
        }
        return 0;
    }
    return 0;
}

void hh_detok_push(hh_detok *d, const hh_tokenizer *t, int32_t id, hh_buf *out) {
    size_t len;
    const char *bytes = hh_tokenizer_token(t, id, &len);
    if (!bytes || hh_tokenizer_is_special(t, id)) return;
    size_t before = out->len;
    hh_buf_add(out, d->held, (size_t)d->n_held);
    hh_buf_add(out, bytes, len);
    size_t keep = count_incomplete(out->data + before, out->len - before);
    memcpy(d->held, out->data + out->len - keep, keep);
    d->n_held = (int)keep;
    out->len -= keep;
    out->data[out->len] = 0;
}

void hh_detok_flush(hh_detok *d, hh_buf *out) {
    hh_buf_add(out, d->held, (size_t)d->n_held);
    d->n_held = 0;
}
