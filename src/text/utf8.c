/* UTF-8 and the byte alphabet; see utf8.h. */
#include "text/utf8.h"

#include <string.h>

size_t hh_utf8_back(const char *s, size_t at, int32_t *cp) {
    for (size_t len = 1; len <= 4 && len <= at; len++) {
        if (hh_utf8_next(s + at - len, len, cp) == (int)len && *cp >= 0) return at - len;
        if (((uint8_t)s[at - len] & 0xc0) != 0x80) break;
    }
    *cp = -1;
    return at - 1;
}

int hh_utf8_put(char out[4], int32_t cp) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 63));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 63));
        out[2] = (char)(0x80 | (cp & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 63));
    out[2] = (char)(0x80 | (cp >> 6 & 63));
    out[3] = (char)(0x80 | (cp & 63));
    return 4;
}

size_t hh_utf8_valid_prefix(const char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        while (n - i >= sizeof eight) {
            memcpy(&eight, s + i, sizeof eight);
            if (eight & 0x8080808080808080u) break;
            i += sizeof eight;
        }
        if (i == n) break;
        int32_t cp;
        int len = hh_utf8_next(s + i, n - i, &cp);
        if (cp < 0) return i;
        i += (size_t)len;
    }
    return i;
}

/* Bytes that stand for themselves; the other 68 are U+0100... in their order. */
static bool is_own_letter(int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

int32_t hh_byte_to_letter(uint8_t byte) {
    if (is_own_letter(byte)) return byte;
    if (byte <= 0x20) return 0x100 + byte;
    if (byte == 0xad) return 0x143;
    return 0x121 + (byte - 0x7f); /* 0x7f ... 0xa0 */
}

int hh_letter_to_byte(int32_t cp) {
    if (cp < 0) return -1;
    if (cp < 0x100) return is_own_letter(cp) ? cp : -1;
    if (cp <= 0x120) return cp - 0x100;
    if (cp <= 0x142) return cp - 0x121 + 0x7f;
    return cp == 0x143 ? 0xad : -1;
}

bool hh_letters_to_bytes(const char *written, size_t n, char *out, size_t *len) {
    *len = 0;
    for (size_t i = 0; i < n;) {
        int32_t cp;
        i += (size_t)hh_utf8_next(written + i, n - i, &cp);
        int byte = hh_letter_to_byte(cp);
        if (byte < 0) return false;
        out[(*len)++] = (char)byte;
    }
    return true;
}
