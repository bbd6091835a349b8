/* Names out of files, made fit for a message. */
#include "format/quote.h"

const char *hh_quoted(hh_quote *q, const char *s, size_t len) {
    size_t keep = len < 120 ? len : 120, at = 0;
    while (keep < len && keep > 0 && ((unsigned char)s[keep] & 0xc0) == 0x80) keep--; /* not inside a UTF-8 sequence */
    q->text[at++] = '\'';
    for (size_t i = 0; i < keep; i++) {
        unsigned char c = (unsigned char)s[i];
        q->text[at++] = c < 32 || c == 127 ? '?' : (char)c;
    }
    for (int i = 0; keep < len && i < 3; i++) q->text[at++] = '.';
    q->text[at++] = '\'';
    q->text[at] = 0;
    return q->text;
}
