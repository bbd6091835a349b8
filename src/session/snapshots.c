/* The tree of snapshots: what is kept, found, restored and dropped; see snapshots.h. */
#include "session/snapshots.h"

#include "base/filemap.h"
#include "session/payload.h"
#include "session/snapshot_tree.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct hh_snapshots {
    const hh_model *m;
    hh_backend *be;
    hh_dtype kv_dtype;
    char *dir;
    size_t max_bytes, max_disk_bytes;
    uint64_t key, clock;
    bool recurrent; /* some head keeps a state, which exists only where it was saved */
    hh_snapshot root;
    hh_snapshots_stats stats;
};

static uint64_t hash_ids(const int32_t *ids, int64_t n) {
    return hh_hash64(ids, (size_t)n * sizeof *ids, 17);
}

uint64_t hh_snapshots_key(const hh_model *m, hh_dtype kv_dtype) {
    static const char *const files[] = {"config.json", "model.safetensors", "model.safetensors.index.json"};
    const bool folder = hh_is_directory(m->path); /* whose own date says nothing of the model */
    uint64_t h = folder ? (uint64_t)kv_dtype + 1 : hh_file_stamp(m->path, (uint64_t)kv_dtype + 1);
    for (size_t i = 0; i < sizeof files / sizeof *files && folder; i++) {
        char *file = hh_path_join(m->path, files[i]);
        h = hh_file_stamp(file, h + i);
        hh_free(file);
    }
    h = hh_hash64(m->be->name, strlen(m->be->name), h + (uint64_t)m->be->precision);
    return hh_hash64(m->inv_freq, (size_t)(m->config.head_dim / 2) * sizeof *m->inv_freq, h);
}

/* -- the tree -- */

static hh_snapshot *step(hh_snapshot *n, const hh_snapshot *root) {
    if (n->child) return n->child;
    while (n != root && !n->next) n = n->parent;
    return n == root ? NULL : n->next;
}

static void unlink_node(hh_snapshot *n) {
    hh_snapshot **at = &n->parent->child;
    while (*at != n) at = &(*at)->next;
    *at = n->next;
}

static void drop_payload(hh_snapshots *s, hh_snapshot *n) {
    if (!n->payload) return;
    hh_free(n->payload);
    n->payload = NULL;
    s->stats.bytes -= n->bytes;
}

static void remove_file(hh_snapshots *s, hh_snapshot *n) {
    if (!n->on_disk) return;
    char *path = hh_snapshot_path(s->dir, s->key, n);
    unlink(path);
    hh_free(path);
    n->on_disk = false;
    s->stats.disk_bytes -= n->bytes;
}

/* With everything that follows from it. */
static void remove_node(hh_snapshots *s, hh_snapshot *n) {
    while (n->child) remove_node(s, n->child);
    drop_payload(s, n);
    remove_file(s, n);
    unlink_node(n);
    hh_snapshot_free(n);
    s->stats.n--;
}

static void touch(hh_snapshots *s, hh_snapshot *n) {
    for (s->clock++; n != &s->root; n = n->parent) n->used = s->clock;
}

/* The least recently used payload that can go: on disk as well, or nothing follows from it. */
static hh_snapshot *find_oldest(hh_snapshots *s, bool on_disk) {
    hh_snapshot *oldest = NULL;
    for (hh_snapshot *n = step(&s->root, &s->root); n; n = step(n, &s->root)) {
        bool can_go = on_disk ? n->on_disk && !n->child : n->payload && (n->on_disk || !n->child);
        if (can_go && n->used != s->clock && (!oldest || n->used < oldest->used)) oldest = n;
    }
    return oldest;
}

/* Makes room for `bytes`; what was touched last stays. */
static bool make_room(hh_snapshots *s, size_t bytes) {
    if (bytes > s->max_bytes) return false;
    while (s->stats.bytes > s->max_bytes - bytes) {
        hh_snapshot *n = find_oldest(s, false);
        if (!n) return false;
        s->stats.evicted++;
        if (n->on_disk)
            drop_payload(s, n);
        else
            remove_node(s, n);
    }
    return true;
}

static int64_t align_down(int64_t n) {
    return n / HH_SNAPSHOT_ALIGN * HH_SNAPSHOT_ALIGN;
}

typedef struct found {
    hh_snapshot *node;
    int64_t length; /* of the prefix: node->to, or less inside a node of a model without states */
} found;

/* How many of n's tokens ids[n->from, limit) begins with. */
static int64_t common_tokens(const hh_snapshot *n, const int32_t *ids, int64_t limit) {
    int64_t most = (n->to < limit ? n->to : limit) - n->from, i = 0;
    while (i < most && n->ids[i] == ids[n->from + i]) i++;
    return i;
}

static void descend(hh_snapshots *s, hh_snapshot *n, const int32_t *ids, int64_t limit, bool logits, found *best) {
    for (hh_snapshot *c = n->child; c; c = c->next) {
        int64_t common = common_tokens(c, ids, limit), end = c->from + common;
        bool whole = end == c->to;
        if (c->has_logits ? whole && end == limit && logits : whole && (end < limit || !logits)) {
            if (end > best->length || (end == best->length && c->has_logits)) *best = (found){c, end};
        } else if (!s->recurrent && !c->has_logits && align_down(logits ? end - (end == limit) : end) > best->length) {
            *best = (found){c, align_down(logits ? end - (end == limit) : end)};
        }
        if (whole && !c->has_logits) descend(s, c, ids, limit, logits, best);
    }
}

/* -- saving and restoring -- */

static void refuse(hh_snapshots *s, const hh_error *err) {
    s->stats.refused++;
    snprintf(s->stats.last_refusal, sizeof s->stats.last_refusal, "%.255s", err->text);
}

static size_t payload_bytes(const hh_snapshots *s, const hh_cache *cache, const hh_snapshot *n) {
    const size_t logits = n->has_logits ? (size_t)s->m->config.vocab * sizeof(hh_real) : 0;
    return hh_payload_bytes(cache, n->from, n->to) + logits;
}

/* A file's own numbers agree with each other; do they with the model's caches? */
static hh_code read_payload(const hh_snapshots *s, const hh_cache *cache, hh_snapshot *n, hh_error *err) {
    const size_t expected = payload_bytes(s, cache, n);
    if (n->bytes != expected)
        return hh_fail(err, HH_EFORMAT,
                       "%s: a snapshot of tokens %lld to %lld has %zu bytes where the model's have %zu", s->dir,
                       (long long)n->from, (long long)n->to, n->bytes, expected);
    return hh_snapshot_read_payload(n, s->key, s->dir, err);
}

/* Loads from disk what is not in memory of n and its ancestors. False: something could not be trusted and is gone. */
static bool load_chain(hh_snapshots *s, const hh_cache *cache, hh_snapshot *n) {
    for (; n != &s->root; n = n->parent) {
        if (n->payload) continue;
        hh_error err = {0};
        if (read_payload(s, cache, n, &err) == HH_OK) {
            s->stats.bytes += n->bytes;
            continue;
        }
        refuse(s, &err);
        remove_node(s, n);
        return false;
    }
    return true;
}

static void restore_chain(hh_snapshots *s, hh_cache *cache, const hh_snapshot *n, int64_t length) {
    if (n == &s->root) return;
    restore_chain(s, cache, n->parent, n->from);
    hh_payload_restore(cache, n->from, n->to, length, n->payload);
    cache->length = length;
}

static found find(hh_snapshots *s, const int32_t *ids, int64_t n) {
    found best = {&s->root, 0};
    descend(s, &s->root, ids, n, true, &best);
    return best;
}

int64_t hh_snapshots_find(hh_snapshots *s, const int32_t *ids, int64_t n) {
    return find(s, ids, n).length;
}

void hh_snapshots_restore(hh_snapshots *s, hh_cache *cache, const int32_t *ids, int64_t n, hh_real *logits,
                          int64_t *length) {
    found best;
    hh_cache_reset(cache);
    do {
        best = find(s, ids, n < cache->capacity ? n : cache->capacity);
    } while (!load_chain(s, cache, best.node));
    *length = best.length;
    if (best.node == &s->root) return;
    touch(s, best.node);
    restore_chain(s, cache, best.node, best.length);
    if (best.node->has_logits && logits) {
        size_t bytes = (size_t)s->m->config.vocab * sizeof *logits;
        memcpy(logits, best.node->payload + best.node->bytes - bytes, bytes);
    }
    make_room(s, 0);
}

static hh_snapshot *new_node(const hh_snapshots *s, hh_snapshot *parent, const hh_cache *cache, const int32_t *ids,
                             bool has_logits) {
    hh_snapshot *n = hh_alloc(sizeof *n);
    int64_t count = cache->length - parent->to;
    *n = (hh_snapshot){.parent = parent,
                       .from = parent->to,
                       .to = cache->length,
                       .has_logits = has_logits,
                       .hash = hash_ids(ids, cache->length),
                       .ids = hh_alloc((size_t)count * sizeof *ids)};
    memcpy(n->ids, ids + parent->to, (size_t)count * sizeof *ids);
    n->bytes = payload_bytes(s, cache, n);
    return n;
}

void hh_snapshots_add(hh_snapshots *s, const hh_cache *cache, const int32_t *ids, const hh_real *logits) {
    found at = {&s->root, 0};
    if (!cache->length || (!logits && cache->length % HH_SNAPSHOT_ALIGN)) return;
    descend(s, &s->root, ids, cache->length, false, &at);
    if (at.node != &s->root && at.length != at.node->to) at.node = at.node->parent; /* ends inside it: a sibling */
    touch(s, at.node);
    if (at.node->to == cache->length && !logits) return;
    for (hh_snapshot *c = at.node->child; c; c = c->next)
        if (c->has_logits && logits && c->to == cache->length && common_tokens(c, ids, c->to) == c->to - c->from) {
            touch(s, c);
            return;
        }
    if (at.node->to == cache->length) at.node = at.node->parent; /* its end with logits stands beside it */
    hh_snapshot *n = new_node(s, at.node, cache, ids, logits != NULL);
    hh_error ignored;
    void *payload = NULL;
    if (!make_room(s, n->bytes) || hh_alloc_checked(&payload, 1, n->bytes, "snapshot", &ignored) != HH_OK) {
        hh_snapshot_free(n);
        return;
    }
    n->payload = payload;
    size_t end = hh_payload_save(cache, n->from, n->to, n->payload);
    if (logits) memcpy(n->payload + end, logits, (size_t)s->m->config.vocab * sizeof *logits);
    n->next = at.node->child;
    at.node->child = n;
    s->stats.n++;
    s->stats.bytes += n->bytes;
    touch(s, n);
}

/* -- disk -- */

static bool make_disk_room(hh_snapshots *s, size_t bytes) {
    while (s->max_disk_bytes && s->stats.disk_bytes + bytes > s->max_disk_bytes) {
        hh_snapshot *n = find_oldest(s, true);
        if (!n) return false;
        s->stats.evicted++;
        remove_file(s, n);
        if (!n->payload) remove_node(s, n);
    }
    return true;
}

hh_code hh_snapshots_write(hh_snapshots *s, bool *done, hh_error *err) {
    *done = true;
    if (!s->dir) return HH_OK;
    for (hh_snapshot *n = step(&s->root, &s->root); n; n = step(n, &s->root)) {
        if (n->on_disk || !n->payload || n->memory_only) continue;
        *done = false;
        n->memory_only = !make_disk_room(s, n->bytes);
        if (n->memory_only) return HH_OK;
        HH_TRY(hh_snapshot_write(n, s->key, s->dir, err));
        n->on_disk = true;
        s->stats.disk_bytes += n->bytes;
        return HH_OK;
    }
    return HH_OK;
}

/* Hangs n under its parent, when that is there and its tokens say so. */
static bool attach(hh_snapshots *s, hh_snapshot *n, uint64_t parent_hash) {
    hh_snapshot *parent = n->from ? NULL : &s->root;
    for (hh_snapshot *p = s->root.child; !parent && p; p = step(p, &s->root))
        if (p->hash == parent_hash && p->to == n->from && !p->has_logits) parent = p;
    if (!parent) return false;
    n->parent = parent;
    n->next = parent->child;
    parent->child = n;
    s->stats.n++;
    s->stats.disk_bytes += n->bytes;
    return true;
}

typedef struct orphan {
    hh_snapshot *node;
    uint64_t parent_hash;
} orphan;

/* Parents are read after their children as often as before: attach until nothing fits any more. */
static void attach_all(hh_snapshots *s, orphan *o, int64_t n) {
    for (bool again = true; again;) {
        again = false;
        for (int64_t i = 0; i < n; i++)
            if (o[i].node && attach(s, o[i].node, o[i].parent_hash)) {
                o[i].node = NULL;
                again = true;
            }
    }
    for (int64_t i = 0; i < n; i++) {
        if (!o[i].node) continue;
        char *path = hh_snapshot_path(s->dir, s->key, o[i].node);
        unlink(path); /* what it follows is gone: of no use */
        hh_free(path);
        hh_snapshot_free(o[i].node);
    }
}

static hh_code open_folder(hh_snapshots *s, hh_error *err) {
    HH_TRY(hh_make_directory(s->dir, err));
    DIR *d = opendir(s->dir);
    if (!d) return hh_fail(err, HH_EIO, "%s: cannot be read", s->dir);
    orphan *o = NULL;
    int64_t n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (len < 5 || strcmp(e->d_name + len - 5, ".snap")) continue;
        char *path = hh_path_join(s->dir, e->d_name);
        orphan one = {0};
        hh_error why = {0};
        hh_code code = hh_snapshot_read_head(&one.node, &one.parent_hash, s->key, path, &why);
        hh_free(path);
        if (code == HH_OK) {
            o = hh_realloc(o, (size_t)(n + 1) * sizeof *o);
            o[n++] = one;
        } else if (code != HH_EUNSUPPORTED) { /* other models may keep theirs here */
            refuse(s, &why);
        }
    }
    closedir(d);
    attach_all(s, o, n);
    hh_free(o);
    return HH_OK;
}

hh_code hh_snapshots_new(hh_snapshots **out, const hh_model *m, const hh_snapshots_options *o, hh_error *err) {
    hh_snapshots *s = hh_alloc(sizeof *s);
    *out = NULL;
    *s = (hh_snapshots){.m = m,
                        .be = m->be,
                        .kv_dtype = o->kv_dtype,
                        .dir = o->dir ? hh_strdup(o->dir) : NULL,
                        .max_bytes = o->max_bytes,
                        .max_disk_bytes = o->max_disk_bytes,
                        .key = hh_snapshots_key(m, o->kv_dtype)};
    for (int64_t l = 0; l < m->config.n_layers; l++) s->recurrent = s->recurrent || m->w.layer[l].n_gdn > 0;
    hh_code code = s->dir ? open_folder(s, err) : HH_OK;
    if (code != HH_OK) {
        hh_snapshots_free(s);
        return code;
    }
    *out = s;
    return HH_OK;
}

static void free_children(hh_snapshot *n) {
    while (n->child) {
        hh_snapshot *c = n->child;
        n->child = c->next;
        free_children(c);
        hh_snapshot_free(c);
    }
}

void hh_snapshots_free(hh_snapshots *s) {
    if (!s) return;
    free_children(&s->root);
    hh_free(s->dir);
    hh_free(s);
}

hh_snapshots_stats hh_snapshots_get_stats(const hh_snapshots *s) {
    return s->stats;
}
