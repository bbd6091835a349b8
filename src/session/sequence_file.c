/* A session as a file. Little endian: a head with its own checksum, the tokens, the payload (payload.h), the logits when
 * there are some. */
#include "session/payload.h"
#include "session/session_parts.h"

#include "base/filemap.h"

#include <string.h>

typedef struct head {
    char magic[8];
    uint64_t version, key;
    int64_t length, exact;
    uint64_t has_logits, payload_bytes, ids_hash, payload_hash, logits_hash;
    uint64_t head_hash; /* of all above */
} head;

#define MAGIC   "HHSEQ\0\0"
#define VERSION 1

static size_t logits_bytes(const hh_session *s) {
    return (size_t)s->g->m->config.vocab * sizeof *s->next;
}

static hh_code write_parts(const hh_session *s, const head *h, const char *payload, const char *path, hh_error *err) {
    hh_file_writer *w;
    HH_TRY(hh_file_writer_open(&w, path, err));
    hh_code code = hh_file_writer_add(w, h, sizeof *h, err);
    if (code == HH_OK) code = hh_file_writer_add(w, s->ids, (size_t)h->length * sizeof *s->ids, err);
    if (code == HH_OK) code = hh_file_writer_add(w, payload, h->payload_bytes, err);
    if (code == HH_OK && h->has_logits) code = hh_file_writer_add(w, s->next, logits_bytes(s), err);
    if (code == HH_OK) return hh_file_writer_commit(w, err);
    hh_file_writer_abandon(w);
    return code;
}

hh_code hh_session_save(const hh_session *s, const char *path, hh_error *err) {
    const int64_t length = s->cache->length;
    head h = {.version = VERSION,
              .key = hh_snapshots_key(s->g->m, s->g->kv_dtype),
              .length = length,
              .exact = s->exact,
              .has_logits = s->has_next,
              .payload_bytes = hh_payload_bytes(s->cache, 0, length),
              .ids_hash = hh_hash64(s->ids, (size_t)length * sizeof *s->ids, 0),
              .logits_hash = s->has_next ? hh_hash64(s->next, logits_bytes(s), 0) : 0};
    void *payload;
    if (!length) return hh_fail(err, HH_EINVAL, "%s: the sequence has read nothing that could be saved", path);
    HH_TRY(hh_alloc_checked(&payload, 1, h.payload_bytes, path, err));
    hh_payload_save(s->cache, 0, length, payload);
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.payload_hash = hh_hash64(payload, h.payload_bytes, 0);
    h.head_hash = hh_hash64(&h, offsetof(head, head_hash), 0);
    hh_code code = write_parts(s, &h, payload, path, err);
    hh_free(payload);
    return code;
}

/* A file's head, checked against itself, the session and the file's size. */
static hh_code read_head(head *h, const hh_session *s, const hh_filemap *map, const char *path, hh_error *err) {
    if (map->size < sizeof *h)
        return hh_fail(err, HH_EFORMAT, "%s: %zu bytes are too few for a saved sequence", path, map->size);
    memcpy(h, map->data, sizeof *h);
    if (memcmp(h->magic, MAGIC, sizeof h->magic) || h->version != VERSION ||
        h->head_hash != hh_hash64(h, offsetof(head, head_hash), 0))
        return hh_fail(err, HH_EFORMAT, "%s: its head is damaged, or of another version than %d", path, VERSION);
    if (h->key != hh_snapshots_key(s->g->m, s->g->kv_dtype))
        return hh_fail(err, HH_EUNSUPPORTED, "%s: a sequence of another model than %s, or of other settings", path,
                       s->g->m->path);
    if (h->length < 1 || h->exact < 0 || h->exact > h->length)
        return hh_fail(err, HH_EFORMAT, "%s: %lld tokens, of which %lld a prompt", path, (long long)h->length,
                       (long long)h->exact);
    if (h->length > s->cache->capacity)
        return hh_fail(err, HH_EINVAL, "%s: %lld tokens do not fit the context of %lld tokens", path,
                       (long long)h->length, (long long)s->cache->capacity);
    const size_t expected = sizeof *h + (size_t)h->length * sizeof(int32_t) + hh_payload_bytes(s->cache, 0, h->length) +
                            (h->has_logits ? logits_bytes(s) : 0);
    if (map->size != expected || h->payload_bytes != hh_payload_bytes(s->cache, 0, h->length))
        return hh_fail(err, HH_EFORMAT, "%s: %zu bytes, but %lld tokens make %zu", path, map->size,
                       (long long)h->length, expected);
    return HH_OK;
}

static hh_code load(hh_session *s, const hh_filemap *map, const char *path, hh_error *err) {
    head h;
    HH_TRY(read_head(&h, s, map, path, err));
    const char *ids = (const char *)map->data + sizeof h, *payload = ids + (size_t)h.length * sizeof *s->ids,
               *logits = payload + h.payload_bytes;
    if (hh_hash64(ids, (size_t)h.length * sizeof *s->ids, 0) != h.ids_hash ||
        hh_hash64(payload, h.payload_bytes, 0) != h.payload_hash ||
        (h.has_logits && hh_hash64(logits, logits_bytes(s), 0) != h.logits_hash))
        return hh_fail(err, HH_EFORMAT, "%s: damaged: its checksum is not that of its contents", path);
    hh_session_reset(s);
    memcpy(s->ids, ids, (size_t)h.length * sizeof *s->ids);
    hh_payload_restore(s->cache, 0, h.length, h.length, payload);
    if (h.has_logits) memcpy(s->next, logits, logits_bytes(s));
    s->cache->length = h.length;
    s->exact = h.exact;
    s->has_next = h.has_logits != 0;
    s->reused = 0;
    return HH_OK;
}

hh_code hh_session_load(hh_session *s, const char *path, hh_error *err) {
    hh_filemap map;
    HH_TRY(hh_filemap_open(&map, path, err));
    hh_code code = load(s, &map, path, err);
    hh_filemap_close(&map);
    return code;
}
