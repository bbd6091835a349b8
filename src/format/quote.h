/* Names out of files, made fit for a message: a file may call a tensor anything, terminal codes included. */
#ifndef HH_FORMAT_QUOTE_H
#define HH_FORMAT_QUOTE_H

#include <stddef.h>

typedef struct hh_quote {
    char text[136];
} hh_quote;

/* The first 120 bytes of s in single quotes; control characters become '?', "..." follows what is cut. Returns q->text.
 */
const char *hh_quoted(hh_quote *q, const char *s, size_t len);

#endif
