/* Stop strings (parts of the input that end with a NUL; the last part is the text) over text that comes in pieces: what
 * is given out does not depend on the pieces, is UTF-8, and ends before the first stop string. */
#include "server/stream_text.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 16 };

static bool stream(const char *const *stop, int n_stops, const char *text, size_t n, size_t piece, hh_buf *out) {
    hh_stream_text t = {.stop = stop, .n_stops = n_stops};
    bool stopped = false;
    hh_buf_puts(out, "");
    for (size_t at = 0; at < n && !stopped; at += piece) {
        stopped = hh_stream_text_add(&t, text + at, n - at < piece ? n - at : piece, out);
        for (int s = 0; s < n_stops; s++) /* never told, not even for a moment */
            HH_ASSERT(strstr(stop[s], "\xef\xbf\xbd") || !memmem(out->data, out->len, stop[s], strlen(stop[s])));
    }
    if (!stopped) hh_stream_text_end(&t, out);
    hh_stream_text_release(&t);
    return stopped;
}

/* As JSON gives it: not empty, and UTF-8. */
static bool is_text(const char *s) {
    hh_buf clean = {0};
    hh_clean_utf8(s, strlen(s), &clean);
    const bool same = *s && clean.len == strlen(s) && !memcmp(clean.data, s, clean.len);
    hh_buf_release(&clean);
    return same;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *stop[MOST], *at;
    int n_stops = 0;
    if (size > 2048) return 0;
    char *copy = hh_alloc(size + 1), *end = copy + size;
    if (size) memcpy(copy, data, size);
    *end = 0;
    for (at = copy; n_stops < MOST && at + strlen(at) < end; at += strlen(at) + 1)
        if (is_text(at)) stop[n_stops++] = at;
    hh_buf whole = {0}, pieces = {0}, clean = {0};
    const size_t n = (size_t)(end - at);
    const bool a = stream(stop, n_stops, at, n, 1, &pieces), b = stream(stop, n_stops, at, n, 7, &whole);
    HH_ASSERT(a == b && pieces.len == whole.len && memcmp(pieces.data, whole.data, whole.len) == 0);
    hh_clean_utf8(whole.data, whole.len, &clean);
    HH_ASSERT(clean.len == whole.len);
    hh_buf_release(&whole);
    hh_buf_release(&pieces);
    hh_buf_release(&clean);
    hh_free(copy);
    return 0;
}
