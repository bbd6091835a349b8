/* Holding text back; see stream_text.h. */
#include "server/stream_text.h"

#include <string.h>

/* Bytes of the character that starts at p: 0 when more bytes are needed, -1 when there is none. */
static int character(const unsigned char *p, size_t n) {
    int len = p[0] < 0x80                   ? 1
              : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
              : (p[0] & 0xf0) == 0xe0       ? 3
              : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
                                            : -1;
    if (len < 2) return len;
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n) return 0;
        unsigned char lo = 0x80, hi = 0xbf;
        if (i == 1 && p[0] == 0xe0) lo = 0xa0;
        if (i == 1 && p[0] == 0xed) hi = 0x9f;
        if (i == 1 && p[0] == 0xf0) lo = 0x90;
        if (i == 1 && p[0] == 0xf4) hi = 0x8f;
        if (p[i] < lo || p[i] > hi) return -1;
    }
    return len;
}

void hh_clean_utf8(const char *bytes, size_t n, hh_buf *out) {
    for (size_t i = 0; i < n;) {
        int len = character((const unsigned char *)bytes + i, n - i);
        if (len > 0)
            hh_buf_add(out, bytes + i, (size_t)len);
        else
            hh_buf_puts(out, "\xef\xbf\xbd");
        i += len > 0 ? (size_t)len : 1;
    }
}

/* Where the stop string that is complete first begins (*whole; of several that end together the longest), else where the
 * text's end may be the beginning of one, else held.len. What ends first does not depend on how the text came. */
static size_t find_stop(const hh_stream_text *t, bool *whole) {
    size_t begin = t->held.len, end = SIZE_MAX, partial = t->held.len;
    for (int s = 0; s < t->n_stops; s++) {
        const size_t len = strlen(t->stop[s]);
        for (size_t i = 0; i < t->held.len; i++) {
            const size_t left = t->held.len - i;
            if (memcmp(t->held.data + i, t->stop[s], len < left ? len : left)) continue;
            if (len > left) {
                if (i < partial) partial = i;
            } else if (i + len < end || (i + len == end && i < begin)) {
                begin = i;
                end = i + len;
            }
        }
    }
    *whole = end != SIZE_MAX;
    return *whole ? begin : partial;
}

/* Bytes of held[0, n) that are whole characters, or none that could still become one. */
static size_t whole_characters(const char *bytes, size_t n) {
    size_t i = 0;
    while (i < n) {
        int len = character((const unsigned char *)bytes + i, n - i);
        if (len == 0) break;
        i += len > 0 ? (size_t)len : 1;
    }
    return i;
}

static void give(hh_stream_text *t, size_t n, hh_buf *out) {
    hh_clean_utf8(t->held.data, n, out);
    memmove(t->held.data, t->held.data + n, t->held.len - n);
    t->held.len -= n;
    t->held.data[t->held.len] = 0;
}

bool hh_stream_text_add(hh_stream_text *t, const char *bytes, size_t n, hh_buf *out) {
    if (t->stopped) return true;
    hh_buf_add(&t->held, bytes, n);
    size_t at = find_stop(t, &t->stopped);
    if (t->held.data) give(t, t->stopped ? at : whole_characters(t->held.data, at), out);
    if (t->stopped) hh_buf_clear(&t->held);
    return t->stopped;
}

void hh_stream_text_end(hh_stream_text *t, hh_buf *out) {
    if (t->held.data) give(t, t->held.len, out);
}

void hh_stream_text_release(hh_stream_text *t) {
    hh_buf_release(&t->held);
}
