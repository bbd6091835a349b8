/* The pre-tokenizer patterns of GPT-2, Llama-3, Qwen2 and Qwen3.5 as scanners; see split.h. */
#include "text/split.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include <string.h>

/* End of the run of characters of these classes that begins at `at`. */
static size_t skip_class(const char *text, size_t n, size_t at, int classes) {
    while (at < n) {
        uint8_t a = (uint8_t)text[at];
        if (a < 128) {
            if (!(hh_ascii_class[a] & classes)) break;
            at++;
        } else {
            int32_t cp;
            size_t len = (size_t)hh_utf8_next(text + at, n - at, &cp);
            if (!(hh_unicode_class(cp) & classes)) break;
            at += len;
        }
    }
    return at;
}

/* Class of the character at `at` and its length; 0 at the end. */
static int class_at(const char *text, size_t n, size_t at, size_t *len) {
    *len = 0;
    if (at >= n) return 0;
    int32_t cp;
    *len = (size_t)hh_utf8_next(text + at, n - at, &cp);
    return hh_char_class(cp);
}

/* \s+(?!\S)|\s+ : all of the run at the end of the text; else the last character is left to the next word, unless it is
 * the only one. */
static size_t scan_spaces(const char *text, size_t n, size_t at) {
    size_t end = skip_class(text, n, at, HH_SPACE);
    if (end == n) return end;
    int32_t cp;
    size_t last = hh_utf8_back(text, end, &cp);
    return last > at ? last : end;
}

/* Length of 's 't 're 've 'm 'll 'd at the apostrophe text[at]; 0: none. With (?i), U+017F is an s too. */
static size_t contraction(const char *text, size_t n, size_t at, bool caseless) {
    if (n - at < 2) return 0;
    char fold = caseless ? 32 : 0, a = text[at + 1], b = n - at > 2 ? text[at + 2] : 0;
    if (caseless && a == '\xc5' && b == '\xbf') return 3;
    if (!((a | fold) >= 'a' && (a | fold) <= 'z')) return 0;
    a |= fold;
    b |= fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return 0;
}

static size_t scan_gpt2(const char *text, size_t n, size_t at) {
    if (text[at] == '\'') {
        size_t len = contraction(text, n, at, false);
        if (len) return at + len;
    }
    size_t begin = at + (text[at] == ' '), len;
    int class = class_at(text, n, begin, &len);
    if (class & (HH_LETTER | HH_NUMBER)) return skip_class(text, n, begin + len, class);
    if (class & (HH_OTHER | HH_MARK)) return skip_class(text, n, begin + len, HH_OTHER | HH_MARK);
    return scan_spaces(text, n, at);
}

/* The patterns since cl100k: `letters` make up words, numbers come in groups of `digits`. */
static size_t scan_modern(const char *text, size_t n, size_t at, int letters, int digits) {
    if (text[at] == '\'') {
        size_t len = contraction(text, n, at, true);
        if (len) return at + len;
    }
    size_t len, next_len;
    int class = class_at(text, n, at, &len);
    if (class & letters) return skip_class(text, n, at + len, letters);
    if (class == HH_NUMBER) {
        size_t end = at + len;
        for (int i = 1; i < digits && class_at(text, n, end, &next_len) == HH_NUMBER; i++) end += next_len;
        return end;
    }
    if (text[at] != '\r' && text[at] != '\n' && class_at(text, n, at + len, &next_len) & letters)
        return skip_class(text, n, at + len, letters);
    size_t begin = at + (text[at] == ' ');
    int symbols = (HH_OTHER | HH_MARK) & ~letters;
    size_t end = skip_class(text, n, begin, symbols);
    if (end > begin) {
        while (end < n && (text[end] == '\r' || text[end] == '\n')) end++;
        return end;
    }
    end = skip_class(text, n, at, HH_SPACE);
    for (size_t i = end; i > at; i--)
        if (text[i - 1] == '\r' || text[i - 1] == '\n') return i;
    return scan_spaces(text, n, at);
}

static size_t scan_llama3(const char *text, size_t n, size_t at) {
    return scan_modern(text, n, at, HH_LETTER, 3);
}
static size_t scan_qwen2(const char *text, size_t n, size_t at) {
    return scan_modern(text, n, at, HH_LETTER, 1);
}
static size_t scan_qwen35(const char *text, size_t n, size_t at) {
    return scan_modern(text, n, at, HH_LETTER | HH_MARK, 1);
}

hh_scanner *hh_scanner_find(const char *pattern) {
    static const struct {
        const char *pattern;
        hh_scanner *scan;
    } known[] = {{HH_PATTERN_GPT2, scan_gpt2},
                 {HH_PATTERN_LLAMA3, scan_llama3},
                 {HH_PATTERN_QWEN2, scan_qwen2},
                 {HH_PATTERN_QWEN35, scan_qwen35}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(pattern, known[i].pattern) == 0) return known[i].scan;
    return NULL;
}
