/* Inside the snapshots: the tree's nodes, shared by snapshots.c (memory) and snapshot_file.c (disk). */
#ifndef HH_SESSION_SNAPSHOT_TREE_H
#define HH_SESSION_SNAPSHOT_TREE_H

#include "session/snapshots.h"

typedef struct hh_snapshot hh_snapshot;
struct hh_snapshot {
    hh_snapshot *parent, *child, *next; /* first child; next sibling */
    int64_t from, to;
    int32_t *ids;    /* [to - from] */
    uint64_t hash;   /* of all tokens [0, to) */
    uint64_t used;   /* when, on the store's clock */
    bool has_logits; /* behind the payload's tensors */
    size_t bytes;    /* of the payload */
    char *payload;   /* KV rows of [from, to), layer by layer, then states and tails, then logits; NULL: on disk only */
    bool on_disk, memory_only; /* memory_only: the disk's share has no room for it */
};

/* The file of a snapshot: HHSNAP header, token ids, payload; see snapshot_file.c. */
char *hh_snapshot_path(const char *dir, uint64_t key, const hh_snapshot *n);
hh_code hh_snapshot_write(const hh_snapshot *n, uint64_t key, const char *dir, hh_error *err);
/* Reads header and tokens of a file: a node without payload, and which parent it follows. HH_EFORMAT: damaged;
 * HH_EUNSUPPORTED: of another model. */
hh_code hh_snapshot_read_head(hh_snapshot **out, uint64_t *parent_hash, uint64_t key, const char *path, hh_error *err);
/* The same from bytes: the fuzz target's entry. */
hh_code hh_snapshot_parse_head(hh_snapshot **out, uint64_t *parent_hash, uint64_t key, const char *path,
                               const void *data, size_t size, hh_error *err);
/* Reads the payload, checked against its checksum. */
hh_code hh_snapshot_read_payload(hh_snapshot *n, uint64_t key, const char *dir, hh_error *err);
void hh_snapshot_free(hh_snapshot *n);

#endif
