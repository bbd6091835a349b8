/* Running text for needles; see haystack.h. */
#include "data/haystack.h"
#include "base/filemap.h"
#include "data/needle_docs.h"

#include <stdlib.h>
#include <string.h>

static const char document_mark[] = "<|endoftext|>";

/* Bytes of white space at s: ASCII's (NUL too, which ends a C string), or a character that Unicode and Python's \s
 * count as such. 0: none. */
static size_t white_space(const char *s, size_t len) {
    const unsigned char *u = (const unsigned char *)s;
    if (len == 0) return 0;
    if (u[0] == ' ' || u[0] == 0 || (u[0] >= 9 && u[0] <= 13) || (u[0] >= 28 && u[0] <= 31)) return 1;
    if (len >= 2 && u[0] == 0xC2 && (u[1] == 0x85 || u[1] == 0xA0)) return 2;
    if (len < 3) return 0;
    if (u[0] == 0xE1 && u[1] == 0x9A && u[2] == 0x80) return 3;
    if (u[0] == 0xE3 && u[1] == 0x80 && u[2] == 0x80) return 3;
    if (u[0] == 0xE2 && u[1] == 0x80 &&
        ((u[2] >= 0x80 && u[2] <= 0x8A) || u[2] == 0xA8 || u[2] == 0xA9 || u[2] == 0xAF))
        return 3;
    if (u[0] == 0xE2 && u[1] == 0x81 && u[2] == 0x9F) return 3;
    return 0;
}

void hh_haystack_init(hh_haystack *h, const char *text, size_t len) {
    *h = (hh_haystack){.text = hh_alloc(len + 1)};
    int64_t capacity = 0;
    bool inside = false;
    for (size_t i = 0; i < len;) {
        size_t blank = white_space(text + i, len - i), mark = sizeof document_mark - 1;
        if (!blank && text[i] == '<' && len - i >= mark && memcmp(text + i, document_mark, mark) == 0) blank = mark;
        if (blank) {
            i += blank;
            inside = false;
            continue;
        }
        if (!inside) {
            if (h->n_words + 2 > capacity) {
                capacity = 2 * capacity + 1024;
                h->word = hh_realloc(h->word, (size_t)capacity * sizeof *h->word);
            }
            if (h->n_words > 0) h->text[h->len++] = ' ';
            h->word[h->n_words++] = h->len;
            inside = true;
        }
        h->text[h->len++] = text[i++];
    }
    h->text[h->len] = 0;
    if (h->n_words > 0) h->word[h->n_words] = h->len + 1;
}

void hh_haystack_release(hh_haystack *h) {
    hh_free(h->text);
    hh_free(h->word);
    *h = (hh_haystack){0};
}

void hh_haystack_take(const hh_haystack *h, int64_t first, int64_t n, hh_buf *out) {
    HH_ASSERT(h->n_words > 0 && first >= 0);
    first %= h->n_words;
    for (bool begun = false; n > 0; begun = true) {
        int64_t take = n < h->n_words - first ? n : h->n_words - first;
        if (begun) hh_buf_puts(out, " ");
        hh_buf_add(out, h->text + h->word[first], h->word[first + take] - 1 - h->word[first]);
        n -= take;
        first = 0;
    }
}

static bool is_abbreviation(const char *word, size_t len) {
    static const char *const known[] = {"Mr.",  "Mrs.", "Ms.",    "Dr.",  "St.", "Capt.", "Col.", "Prof.",
                                        "Rev.", "Gen.", "Lieut.", "Sir.", "No.", "vol.",  "i.e.", "e.g."};
    while (len > 0 && strchr("\"'([", word[0])) {
        word++;
        len--;
    }
    if (len == 2 && word[0] >= 'A' && word[0] <= 'Z' && word[1] == '.') return true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i]) == len && memcmp(known[i], word, len) == 0) return true;
    return false;
}

static bool ends_sentence(const char *word, size_t len) {
    size_t n = len;
    for (;;) {
        if (n >= 1 && strchr("\"')]", word[n - 1]))
            n--;
        else if (n >= 3 &&
                 (memcmp(word + n - 3, "\xE2\x80\x9D", 3) == 0 || memcmp(word + n - 3, "\xE2\x80\x99", 3) == 0))
            n -= 3;
        else
            break;
    }
    return n > 0 && strchr(".!?", word[n - 1]) && !is_abbreviation(word, len);
}

int64_t hh_sentences(const char *text, size_t len, size_t **starts) {
    int64_t n = 0, capacity = 64;
    size_t *at = hh_alloc((size_t)capacity * sizeof *at), word = 0;
    if (len > 0) at[n++] = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] != ' ') continue;
        if (i + 1 < len && ends_sentence(text + word, i - word)) {
            if (n + 2 > capacity) at = hh_realloc(at, (size_t)(capacity *= 2) * sizeof *at);
            at[n++] = i + 1;
        }
        word = i + 1;
    }
    at[n] = len + 1;
    *starts = at;
    return n;
}

typedef struct counted_word {
    size_t at;
    int64_t count;
    int len;
} counted_word;

static int by_frequency(const void *a, const void *b) {
    const counted_word *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static bool is_word_byte(unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c >= 0x80;
}

/* Every word of 4 to 9 small letters with its count; the commonest first. */
static counted_word *count_words(const hh_haystack *h, int64_t *n_words) {
    size_t slots = 1 << 16, n = 0;
    counted_word *table = hh_alloc(slots * sizeof *table);
    for (size_t i = 0, end; i < h->len; i = end + 1) {
        bool small = true;
        for (end = i; end < h->len && is_word_byte((unsigned char)h->text[end]); end++)
            small = small && h->text[end] >= 'a' && h->text[end] <= 'z';
        size_t len = end - i;
        if (!small || len < 4 || len > 9 || n > slots / 2) continue;
        size_t s = hh_hash64(h->text + i, len, 0) & (slots - 1);
        while (table[s].count && ((size_t)table[s].len != len || memcmp(h->text + table[s].at, h->text + i, len) != 0))
            s = (s + 1) & (slots - 1);
        if (!table[s].count++) {
            table[s].at = i;
            table[s].len = (int)len;
            n++;
        }
    }
    size_t kept = 0;
    for (size_t s = 0; s < slots; s++)
        if (table[s].count) table[kept++] = table[s];
    qsort(table, kept, sizeof *table, by_frequency);
    *n_words = (int64_t)kept;
    return table;
}

char **hh_haystack_key_words(const hh_haystack *h, bool held_out, int64_t *n) {
    int64_t counted;
    counted_word *w = count_words(h, &counted);
    int64_t lo = counted / 4 < 300 ? counted / 4 : 300, hi = counted < 6000 ? counted : 6000, kept = 0;
    char **list = hh_alloc((size_t)(hi - lo) * (sizeof *list + 10) + 1), *text = (char *)(list + (hi - lo));
    for (int64_t i = lo; i < hi; i++) {
        memcpy(text, h->text + w[i].at, (size_t)w[i].len);
        text[w[i].len] = 0;
        if (hh_needle_word_held_out(text) != held_out) continue;
        list[kept++] = text;
        text += w[i].len + 1;
    }
    hh_free(w);
    *n = kept;
    return list;
}
