/* What is kept of a cache between two positions, as one block of bytes: the KV rows of the tokens [from, to), layer by
 * layer, then the recurrent states and convolution tails as they stand at `to`. */
#ifndef HH_SESSION_PAYLOAD_H
#define HH_SESSION_PAYLOAD_H

#include "model/model.h"

size_t hh_payload_bytes(const hh_cache *cache, int64_t from, int64_t to);
/* Of a cache that stands at `to`; returns the bytes written. */
size_t hh_payload_save(const hh_cache *cache, int64_t from, int64_t to, char *payload);
/* The rows of [from, length), and the states when length is `to`. The cache's length is the caller's to set. */
void hh_payload_restore(hh_cache *cache, int64_t from, int64_t to, int64_t length, const char *payload);

#endif
