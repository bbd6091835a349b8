/* Character classes and normal forms from utf8proc's tables; see unicode.h.
 *
 * utf8proc's own canonical ordering is quadratic in a run of marks and its composition wants whole strings, so
 * characters are decomposed one by one here, runs of marks are sorted, and only pieces that can change at all are
 * touched.
 */
#include "text/unicode.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define O HH_OTHER
#define S HH_SPACE
#define N HH_NUMBER
#define L HH_LETTER
const uint8_t hh_ascii_class[128] = {
    O, O, O, O, O, O, O, O, O, S, S, S, S, S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, /* controls */
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O, /* digits */
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O, /* capitals */
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O};
#undef O
#undef S
#undef N
#undef L

int hh_unicode_class(int32_t cp) {
    if (cp < 0) return HH_OTHER;
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return HH_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return HH_NUMBER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return HH_MARK;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return HH_SPACE;
    default:
        return cp == 0x85 || (cp >= 9 && cp <= 13) ? HH_SPACE : HH_OTHER;
    }
}

typedef struct code_points {
    int32_t *data;
    size_t n, capacity;
} code_points;

static int combining_class(int32_t cp) {
    return (int)utf8proc_get_property(cp)->combining_class;
}

/* Pairs (class, order of arrival): combining classes are below 256, positions fit the rest. */
static int compare_keys(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* A long run of marks, sorted by class, equal classes in their order. */
static void sort_long_run(int32_t *run, size_t n) {
    uint64_t *keys = hh_alloc(n * sizeof *keys);
    int32_t *old = hh_alloc(n * sizeof *old);
    memcpy(old, run, n * sizeof *old);
    for (size_t i = 0; i < n; i++) keys[i] = (uint64_t)combining_class(run[i]) << 48 | i;
    qsort(keys, n, sizeof *keys, compare_keys);
    for (size_t i = 0; i < n; i++) run[i] = old[keys[i] & (((uint64_t)1 << 48) - 1)];
    hh_free(keys);
    hh_free(old);
}

static void sort_marks(int32_t *cp, size_t n) {
    for (size_t i = 0; i < n;) {
        if (!combining_class(cp[i])) {
            i++;
            continue;
        }
        size_t end = i + 1;
        while (end < n && combining_class(cp[end])) end++;
        if (end - i > 32) {
            sort_long_run(cp + i, end - i);
        } else {
            for (size_t j = i + 1; j < end; j++) {
                int32_t x = cp[j];
                size_t k = j;
                for (; k > i && combining_class(cp[k - 1]) > combining_class(x); k--) cp[k] = cp[k - 1];
                cp[k] = x;
            }
        }
        i = end;
    }
}

/* Appends the decomposition of a piece of valid text. */
static void decompose(code_points *c, const char *text, size_t n, utf8proc_option_t options) {
    for (size_t i = 0; i < n;) {
        if (c->n + 32 > c->capacity) { /* the longest decomposition has 18 characters */
            c->capacity = c->capacity ? c->capacity * 2 : 256;
            c->data = hh_realloc(c->data, c->capacity * sizeof *c->data);
        }
        int32_t cp;
        i += (size_t)hh_utf8_next(text + i, n - i, &cp);
        int boundary = 0;
        utf8proc_ssize_t len = utf8proc_decompose_char(cp, c->data + c->n, 32, options, &boundary);
        HH_ASSERT(len >= 0 && len <= 32);
        c->n += (size_t)len;
    }
}

static void normalise_piece(code_points *c, const char *text, size_t n, bool composed, bool compatible, hh_buf *out) {
    c->n = 0;
    decompose(c, text, n,
              (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0)));
    sort_marks(c->data, c->n);
    if (composed) {
        utf8proc_ssize_t len = utf8proc_normalize_utf32(c->data, (utf8proc_ssize_t)c->n,
                                                        (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
        HH_ASSERT(len >= 0);
        c->n = (size_t)len;
    }
    for (size_t i = 0; i < c->n; i++) {
        char bytes[4];
        hh_buf_add(out, bytes, (size_t)hh_utf8_put(bytes, c->data[i]));
    }
}

void hh_unicode_normalise(hh_normal_form form, const char *text, size_t n, hh_buf *out) {
    bool composed = form == HH_NFC || form == HH_NFKC, compatible = form == HH_NFKC || form == HH_NFKD;
    /* Below this all characters are starters that do not decompose, and none is the second of a composition. */
    int32_t inert = compatible ? 0xa0 : composed ? 0x300 : 0xc0;
    code_points c = {0};
    size_t copied = 0, previous = 0; /* text before `copied` is done; the character before i began at `previous` */
    for (size_t i = 0; i < n;) {
        int32_t cp;
        size_t len = (size_t)hh_utf8_next(text + i, n - i, &cp);
        if (cp < inert) {
            previous = i;
            i += len;
            continue;
        }
        size_t begin = i > copied && i > 0 ? previous : i; /* with the starter that marks may join */
        int32_t first;
        hh_utf8_next(text + begin, n - begin, &first);
        if (first < 0) begin = i;
        size_t end = i;
        while (end < n) {
            size_t step = (size_t)hh_utf8_next(text + end, n - end, &cp);
            if (cp < inert) break;
            end += step;
        }
        hh_buf_add(out, text + copied, begin - copied);
        normalise_piece(&c, text + begin, end - begin, composed, compatible, out);
        copied = i = previous = end;
    }
    hh_buf_add(out, text + copied, n - copied);
    hh_free(c.data);
}
