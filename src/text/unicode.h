/* What tokenizers ask of Unicode: the class of a character and the four normal forms. */
#ifndef HH_TEXT_UNICODE_H
#define HH_TEXT_UNICODE_H

#include "base/memory.h"

enum { /* classes, as bits */
       HH_OTHER = 1,
       HH_LETTER = 2, /* \p{L} */
       HH_NUMBER = 4, /* \p{N} */
       HH_SPACE = 8,  /* White_Space: \s of Hugging Face tokenizers (U+180E is none) */
       HH_MARK = 16,  /* \p{M} */
};

extern const uint8_t hh_ascii_class[128];
int hh_unicode_class(int32_t cp); /* of a character beyond ASCII; HH_OTHER for -1 */
static inline int hh_char_class(int32_t cp) {
    return cp >= 0 && cp < 128 ? hh_ascii_class[cp] : hh_unicode_class(cp);
}

typedef enum hh_normal_form { HH_NFC, HH_NFD, HH_NFKC, HH_NFKD } hh_normal_form;

/* Appends the normal form of text (any bytes; invalid ones stay as they are). Linear but for sorting runs of marks. */
void hh_unicode_normalise(hh_normal_form form, const char *text, size_t n, hh_buf *out);

#endif
