/* Snapshots: what a model keeps of token sequences it has read, so that a prompt which begins like an earlier one is not
 * read again.
 *
 * They form a tree. A snapshot at position `to` holds, of its parent's position `from` on, the kept KV rows of the
 * tokens [from, to), and the recurrent states and convolution tails at `to` itself; restoring one copies the rows of
 * all its ancestors and its own state. So a chat of many turns is stored once, and a turn costs its own tokens and one
 * state.
 *
 * A restored prompt gives the bits of one that was read at once, because snapshots that others may follow stand at
 * multiples of HH_SNAPSHOT_ALIGN = 64 tokens, where the chunks of Gated DeltaNet end. A prompt's very end may be kept
 * too, with its logits; it serves that same prompt again (another sample, a repeated request), and nothing longer. Of a
 * model without recurrent heads any multiple of 64 inside a snapshot can be restored.
 *
 * Memory is bounded: what was used least recently goes first. With a folder, snapshots are also files, written by
 * hh_snapshots_write and found again after a restart; a damaged, truncated or foreign file is refused and counted, never
 * used. One thread at a time.
 */
#ifndef HH_SESSION_SNAPSHOTS_H
#define HH_SESSION_SNAPSHOTS_H

#include "model/model.h"

#define HH_SNAPSHOT_ALIGN 64

typedef struct hh_snapshots hh_snapshots;

typedef struct hh_snapshots_options {
    size_t max_bytes;      /* in memory; 0: none are kept */
    const char *dir;       /* NULL: not on disk */
    size_t max_disk_bytes; /* 0: as many as there is room for */
    hh_dtype kv_dtype;     /* of the caches that are saved and restored */
} hh_snapshots_options;

/* Opens an empty store, or what `dir` holds of this model (made when it is not there). */
hh_code hh_snapshots_new(hh_snapshots **out, const hh_model *m, const hh_snapshots_options *o, hh_error *err);
void hh_snapshots_free(hh_snapshots *s);

/* Sets the cache to the longest stored prefix of ids[0, n) from which ids[n-1]'s logits can still be had: *length tokens,
 * which is n only when the logits were kept, and then `logits` [V] holds them. 0: nothing was found and the cache is
 * reset. */
void hh_snapshots_restore(hh_snapshots *s, hh_cache *cache, const int32_t *ids, int64_t n, hh_real *logits,
                          int64_t *length);
/* How much hh_snapshots_restore would find (less when a file turns out to be damaged). */
int64_t hh_snapshots_find(hh_snapshots *s, const int32_t *ids, int64_t n);
/* Keeps what the cache holds after ids[0, cache->length). `logits` [V], host memory, or NULL; a position that is no
 * multiple of 64 is kept only with logits. What does not fit the memory is silently not kept. */
void hh_snapshots_add(hh_snapshots *s, const hh_cache *cache, const int32_t *ids, const hh_real *logits);

/* Writes one snapshot that is not on disk yet; *done: there was none. Call it when nothing else is to be done. */
hh_code hh_snapshots_write(hh_snapshots *s, bool *done, hh_error *err);

typedef struct hh_snapshots_stats {
    int64_t n;                /* snapshots known */
    size_t bytes, disk_bytes; /* held in memory; on disk */
    int64_t evicted, refused; /* dropped for want of room; files that could not be trusted */
    char last_refusal[256];   /* why, in words */
} hh_snapshots_stats;
hh_snapshots_stats hh_snapshots_get_stats(const hh_snapshots *s);

/* Changes when a model's files, its configuration or its positions' scaling do. */
uint64_t hh_snapshots_key(const hh_model *m, hh_dtype kv_dtype);

#endif
