/* Text as it is made, a token's bytes at a time: whole characters only, and nothing that may turn out to be the start of
 * a stop string. */
#ifndef HH_SERVER_STREAM_TEXT_H
#define HH_SERVER_STREAM_TEXT_H

#include "hydrahead.h"

#include "base/memory.h"

typedef struct hh_stream_text {
    hh_buf held; /* made, not yet given out */
    const char *const *stop;
    int n_stops;
    bool stopped;
} hh_stream_text;

/* Takes bytes and appends to `out` what can be given out now. True when a stop string is complete: the text ends before
 * it. Bytes that are not UTF-8 are given out as U+FFFD. */
bool hh_stream_text_add(hh_stream_text *t, const char *bytes, size_t n, hh_buf *out);
/* What is still held, when no more comes. */
void hh_stream_text_end(hh_stream_text *t, hh_buf *out);
void hh_stream_text_release(hh_stream_text *t);
/* n bytes as UTF-8, with U+FFFD for what is not. */
void hh_clean_utf8(const char *bytes, size_t n, hh_buf *out);

#endif
