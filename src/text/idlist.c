/* Lists of token ids; see idlist.h. */
#include "text/idlist.h"

#include "base/filemap.h"
#include "format/quote.h"

#include <string.h>

static bool separates(char c) {
    return c == ',' || c == ' ' || (c >= '\t' && c <= '\r');
}

/* The number in s[0, n): digits with a sign or none. False: it is none, or has more than 18 digits. */
static bool read_number(const char *s, size_t n, int64_t *out) {
    const bool sign = n && (*s == '-' || *s == '+');
    const size_t first = sign ? 1 : 0;
    int64_t x = 0;
    if (n == first || n - first > 18) return false;
    for (size_t i = first; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        x = 10 * x + (s[i] - '0');
    }
    *out = *s == '-' ? -x : x;
    return true;
}

hh_code hh_ids_parse(hh_ids *out, const char *where, const char *text, size_t len, int64_t vocab, hh_error *err) {
    for (size_t at = 0, end;; at = end) {
        while (at < len && separates(text[at])) at++;
        if (at == len) return HH_OK;
        for (end = at; end < len && !separates(text[end]);) end++;
        int64_t id;
        hh_quote q;
        if (!read_number(text + at, end - at, &id))
            return hh_fail(err, HH_EINVAL, "%s: %s is not a token id (number %lld of the list)", where,
                           hh_quoted(&q, text + at, end - at < 20 ? end - at : 20), (long long)out->len);
        if (id < 0 || id >= vocab)
            return hh_fail(err, HH_EINVAL,
                           "%s: token id %lld (number %lld of the list) is outside the model's vocabulary of %lld",
                           where, (long long)id, (long long)out->len, (long long)vocab);
        hh_ids_push(out, (int32_t)id);
    }
}

hh_code hh_ids_read(hh_ids *out, const char *option, const char *words, int64_t vocab, hh_error *err) {
    const bool numbers = (*words >= '0' && *words <= '9') || !words[strspn(words, "-+0123456789, \t\n")];
    const bool is_file = !numbers || hh_file_exists(words);
    const char *where = is_file ? words : option;
    hh_buf text = {0};
    hh_code code = HH_OK;
    if (is_file)
        code = hh_file_read(words, (size_t)1 << 30, &text, err);
    else
        hh_buf_puts(&text, words);
    if (code == HH_OK) code = hh_ids_parse(out, where, text.data, text.len, vocab, err);
    if (code == HH_OK && !out->len) code = hh_fail(err, HH_EINVAL, "%s: no token ids", where);
    hh_buf_release(&text);
    return code;
}
