/* UTF-8 one character at a time, and the byte alphabet of byte-level BPE.
 *
 * Text may hold any bytes. A byte that begins no valid character is a character of its own with code point -1.
 * In tokenizer files every byte is written as a printable character (GPT-2's alphabet: 0x20 is U+0120, 'A' is 'A').
 */
#ifndef HH_TEXT_UTF8_H
#define HH_TEXT_UTF8_H

#include "base/memory.h"

/* Length of the character at s (n > 0 bytes are left) and its code point; an invalid byte has length 1 and *cp -1. */
static inline int hh_utf8_next(const char *s, size_t n, int32_t *cp) {
    const uint8_t *p = (const uint8_t *)s;
    uint8_t a = p[0];
    *cp = a;
    if (a < 0x80) return 1;
    *cp = -1;
    if (a < 0xc2 || a > 0xf4 || n < 2 || (p[1] & 0xc0) != 0x80) return 1;
    if (a < 0xe0) {
        *cp = (a & 31) << 6 | (p[1] & 63);
        return 2;
    }
    if (n < 3 || (p[2] & 0xc0) != 0x80) return 1;
    if (a < 0xf0) {
        int32_t c = (a & 15) << 12 | (p[1] & 63) << 6 | (p[2] & 63);
        if (c < 0x800 || (c >= 0xd800 && c <= 0xdfff)) return 1;
        *cp = c;
        return 3;
    }
    if (n < 4 || (p[3] & 0xc0) != 0x80) return 1;
    int32_t c = (a & 7) << 18 | (p[1] & 63) << 12 | (p[2] & 63) << 6 | (p[3] & 63);
    if (c < 0x10000 || c > 0x10ffff) return 1;
    *cp = c;
    return 4;
}

/* Start of the character that ends at s + at (at > 0). */
size_t hh_utf8_back(const char *s, size_t at, int32_t *cp);

/* Writes a code point (0..0x10ffff, no surrogate), returns its length. */
int hh_utf8_put(char out[4], int32_t cp);

/* Offset of the first byte that begins no valid character; n when all is valid. */
size_t hh_utf8_valid_prefix(const char *s, size_t n);

/* The character that stands for a byte, and back: -1 when a character stands for no byte. */
int32_t hh_byte_to_letter(uint8_t byte);
int hh_letter_to_byte(int32_t cp);

/* Writes the bytes that a written token stands for to out (at least n bytes) and their number to *len; false when it
 * holds a character that stands for no byte (then the token's own UTF-8 is its text). */
bool hh_letters_to_bytes(const char *written, size_t n, char *out, size_t *len);

#endif
