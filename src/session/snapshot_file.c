/* A snapshot as a file. Little endian: a head with its own checksum, the tokens [from, to), the payload. The name holds the
 * model's key and the hash of all tokens up to the snapshot, so that equal snapshots have one file. */
#include "session/snapshot_tree.h"

#include "base/filemap.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

typedef struct head {
    char magic[8];
    uint64_t version, key, parent_hash, hash;
    int64_t from, to;
    uint64_t has_logits, payload_bytes, ids_hash, payload_hash;
    uint64_t head_hash; /* of all above */
} head;

#define MAGIC   "HHSNAP\0"
#define VERSION 1
#define MOST    ((int64_t)1 << 40) /* tokens */

char *hh_snapshot_path(const char *dir, uint64_t key, const hh_snapshot *n) {
    return hh_sprintf("%s/%016" PRIx64 "-%016" PRIx64 "-%" PRId64 "%s.snap", dir, key, n->hash, n->to,
                      n->has_logits ? "-end" : "");
}

static size_t ids_bytes(const hh_snapshot *n) {
    return (size_t)(n->to - n->from) * sizeof *n->ids;
}

static head head_of(const hh_snapshot *n, uint64_t key) {
    head h = {.version = VERSION,
              .key = key,
              .parent_hash = n->parent->hash,
              .hash = n->hash,
              .from = n->from,
              .to = n->to,
              .has_logits = n->has_logits,
              .payload_bytes = n->bytes,
              .ids_hash = hh_hash64(n->ids, ids_bytes(n), 0),
              .payload_hash = hh_hash64(n->payload, n->bytes, 0)};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.head_hash = hh_hash64(&h, offsetof(head, head_hash), 0);
    return h;
}

hh_code hh_snapshot_write(const hh_snapshot *n, uint64_t key, const char *dir, hh_error *err) {
    const head h = head_of(n, key);
    char *path = hh_snapshot_path(dir, key, n);
    hh_file_writer *w;
    hh_code code = hh_file_writer_open(&w, path, err);
    hh_free(path);
    HH_TRY(code);
    code = hh_file_writer_add(w, &h, sizeof h, err);
    if (code == HH_OK) code = hh_file_writer_add(w, n->ids, ids_bytes(n), err);
    if (code == HH_OK) code = hh_file_writer_add(w, n->payload, n->bytes, err);
    if (code == HH_OK) return hh_file_writer_commit(w, err);
    hh_file_writer_abandon(w);
    return code;
}

/* A file's head, checked against itself and the file's size. */
static hh_code read_head(head *h, const void *data, size_t size, uint64_t key, const char *path, hh_error *err) {
    if (size < sizeof *h) return hh_fail(err, HH_EFORMAT, "%s: %zu bytes are too few for a snapshot", path, size);
    memcpy(h, data, sizeof *h);
    if (memcmp(h->magic, MAGIC, sizeof h->magic) || h->version != VERSION ||
        h->head_hash != hh_hash64(h, offsetof(head, head_hash), 0))
        return hh_fail(err, HH_EFORMAT, "%s: its head is damaged, or of another version than %d", path, VERSION);
    if (h->key != key) return hh_fail(err, HH_EUNSUPPORTED, "%s: a snapshot of another model", path);
    size_t expected;
    if (h->from < 0 || h->to <= h->from || h->to > MOST ||
        hh_mul_overflows((size_t)(h->to - h->from), sizeof(int32_t), &expected) || h->payload_bytes > size ||
        size - h->payload_bytes != sizeof *h + expected)
        return hh_fail(err, HH_EFORMAT, "%s: %zu bytes, but tokens %lld to %lld and a payload of %" PRIu64 " bytes",
                       path, size, (long long)h->from, (long long)h->to, h->payload_bytes);
    return HH_OK;
}

hh_code hh_snapshot_parse_head(hh_snapshot **out, uint64_t *parent_hash, uint64_t key, const char *path,
                               const void *data, size_t size, hh_error *err) {
    head h;
    *out = NULL;
    HH_TRY(read_head(&h, data, size, key, path, err));
    const char *ids = (const char *)data + sizeof h;
    size_t bytes = (size_t)(h.to - h.from) * sizeof(int32_t);
    if (hh_hash64(ids, bytes, 0) != h.ids_hash) return hh_fail(err, HH_EFORMAT, "%s: its tokens are damaged", path);
    hh_snapshot *n = hh_alloc(sizeof *n);
    *n = (hh_snapshot){.from = h.from,
                       .to = h.to,
                       .hash = h.hash,
                       .has_logits = h.has_logits != 0,
                       .bytes = (size_t)h.payload_bytes,
                       .on_disk = true,
                       .ids = hh_alloc(bytes)};
    memcpy(n->ids, ids, bytes);
    *parent_hash = h.parent_hash;
    *out = n;
    return HH_OK;
}

hh_code hh_snapshot_read_head(hh_snapshot **out, uint64_t *parent_hash, uint64_t key, const char *path, hh_error *err) {
    hh_filemap map;
    *out = NULL;
    HH_TRY(hh_filemap_open(&map, path, err));
    hh_code code = hh_snapshot_parse_head(out, parent_hash, key, path, map.data, map.size, err);
    hh_filemap_close(&map);
    return code;
}

hh_code hh_snapshot_read_payload(hh_snapshot *n, uint64_t key, const char *dir, hh_error *err) {
    char *path = hh_snapshot_path(dir, key, n);
    hh_filemap map;
    head h;
    hh_code code = hh_filemap_open(&map, path, err);
    if (code == HH_OK) {
        code = read_head(&h, map.data, map.size, key, path, err);
        const char *payload = (const char *)map.data + map.size - (code == HH_OK ? h.payload_bytes : 0);
        if (code == HH_OK && (h.hash != n->hash || h.payload_bytes != n->bytes || h.from != n->from))
            code = hh_fail(err, HH_EFORMAT, "%s: not the snapshot that stood here", path);
        if (code == HH_OK && hh_hash64(payload, n->bytes, 0) != h.payload_hash)
            code = hh_fail(err, HH_EFORMAT, "%s: damaged: its checksum is not that of its contents", path);
        void *copy = NULL;
        if (code == HH_OK) code = hh_alloc_checked(&copy, 1, n->bytes, path, err);
        if (code == HH_OK) n->payload = memcpy(copy, payload, n->bytes);
        hh_filemap_close(&map);
    }
    hh_free(path);
    return code;
}

void hh_snapshot_free(hh_snapshot *n) {
    if (!n) return;
    hh_free(n->ids);
    hh_free(n->payload);
    hh_free(n);
}
