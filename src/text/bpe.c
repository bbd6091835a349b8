/* Byte-pair encoding; see bpe.h.
 *
 * Most words are short and come again: a small cache keyed by the word's bytes answers those. A new short word is
 * merged by scanning its array of ranks; a long one with a linked list and a heap, so that a megabyte without a space
 * costs n log n.
 */
#include "text/bpe.h"

#include <string.h>

enum { SHORT_WORD = 48, CACHED_BYTES = 16, CACHED_IDS = 6 };

typedef struct hh_cached_word {
    uint64_t key[2];
    uint8_t len, n_ids; /* len 0: empty */
    int32_t ids[CACHED_IDS];
} hh_cached_word;

static uint64_t mix(uint64_t x) {
    x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 32;
}

static hh_merge find_merge(const hh_bpe *b, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = b->n_slots - 1;
    for (size_t i = mix(pair) & mask;; i = (i + 1) & mask) {
        if (b->merges[i].pair == pair) return b->merges[i];
        if (b->merges[i].pair == HH_NO_PAIR) return (hh_merge){.pair = HH_NO_PAIR, .rank = INT32_MAX, .id = -1};
    }
}

void hh_bpe_init(hh_bpe *b, const hh_vocab *v, size_t n_merges) {
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        b->byte_id[i] = hh_vocab_find(v, &byte, 1, true);
    }
    size_t n = 16;
    while (n < n_merges * 2) n *= 2;
    b->n_slots = n;
    b->n_used = 0;
    b->merges = hh_alloc(n * sizeof *b->merges);
    for (size_t i = 0; i < n; i++) b->merges[i].pair = HH_NO_PAIR;
}

void hh_bpe_add(hh_bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = b->n_slots - 1, i = mix(pair) & mask;
    while (b->merges[i].pair != HH_NO_PAIR && b->merges[i].pair != pair) i = (i + 1) & mask;
    if (b->merges[i].pair == HH_NO_PAIR) b->n_used++;
    HH_ASSERT(b->n_used < b->n_slots);
    b->merges[i] = (hh_merge){pair, rank, id};
}

void hh_bpe_release(hh_bpe *b) {
    hh_free(b->merges);
    *b = (hh_bpe){0};
}

void hh_bpe_scratch_init(hh_bpe_scratch *s, size_t text_bytes) {
    size_t n = 64;
    while (n < 8192 && n * 16 < text_bytes) n *= 2;
    *s = (hh_bpe_scratch){.cache = hh_alloc(n * sizeof *s->cache), .n_cached = n};
}

void hh_bpe_scratch_release(hh_bpe_scratch *s) {
    hh_free(s->cache);
    hh_free(s->room);
    *s = (hh_bpe_scratch){0};
}

/* The word's bytes as initial tokens; returns how many. */
static size_t start_word(const hh_bpe *b, const char *word, size_t n, int32_t *ids) {
    size_t n_ids = 0;
    bool after_unknown = false;
    for (size_t i = 0; i < n; i++) {
        int32_t id = b->byte_id[(uint8_t)word[i]];
        bool unknown = id < 0;
        if (unknown) id = b->unknown;
        if (id >= 0 && !(unknown && after_unknown && b->fuse_unknown)) ids[n_ids++] = id;
        after_unknown = unknown;
    }
    return n_ids;
}

static size_t merge_short(const hh_bpe *b, int32_t *ids, size_t n) {
    hh_merge merges[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++) merges[i] = find_merge(b, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (merges[i].rank < merges[best].rank) best = i;
        if (merges[best].id < 0) break;
        ids[best] = merges[best].id;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        if (best + 1 < n) memmove(merges + best + 1, merges + best + 2, (n - best - 1) * sizeof *merges);
        if (best + 1 < n) merges[best] = find_merge(b, ids[best], ids[best + 1]);
        if (best > 0) merges[best - 1] = find_merge(b, ids[best - 1], ids[best]);
    }
    return n;
}

/* A min-heap of rank << 32 | position. */
static void heap_push(uint64_t *heap, size_t *n, uint64_t x) {
    size_t i = (*n)++;
    for (; i > 0 && heap[(i - 1) / 2] > x; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n) {
    uint64_t top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *n) break;
        if (child + 1 < *n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

typedef struct long_word {
    int32_t *ids;           /* -1: merged into its left neighbour */
    int32_t *ranks, *after; /* of the pair that begins here; INT32_MAX: none */
    uint32_t *next, *previous;
    uint64_t *heap;
    size_t n, n_heap;
} long_word;

static void offer_pair(const hh_bpe *b, long_word *w, size_t i) {
    w->ranks[i] = INT32_MAX;
    if (w->next[i] >= w->n) return;
    hh_merge m = find_merge(b, w->ids[i], w->ids[w->next[i]]);
    if (m.id < 0) return;
    w->ranks[i] = m.rank;
    w->after[i] = m.id;
    heap_push(w->heap, &w->n_heap, (uint64_t)(uint32_t)m.rank << 32 | i);
}

/* Every merge offers at most two pairs, so the heap never holds more than 3 n. */
static void merge_long(const hh_bpe *b, long_word *w) {
    for (size_t i = 0; i < w->n; i++) {
        w->next[i] = (uint32_t)i + 1;
        w->previous[i] = i ? (uint32_t)i - 1 : UINT32_MAX;
    }
    for (size_t i = 0; i < w->n; i++) offer_pair(b, w, i);
    while (w->n_heap) {
        uint64_t top = heap_pop(w->heap, &w->n_heap);
        size_t i = (uint32_t)top;
        if (w->ids[i] < 0 || w->ranks[i] != (int32_t)(top >> 32)) continue; /* the pair has changed since */
        size_t gone = w->next[i];
        w->ids[i] = w->after[i];
        w->ids[gone] = -1;
        w->next[i] = w->next[gone];
        if (w->next[i] < w->n) w->previous[w->next[i]] = (uint32_t)i;
        offer_pair(b, w, i);
        if (w->previous[i] != UINT32_MAX) offer_pair(b, w, w->previous[i]);
    }
}

static void encode_long(const hh_bpe *b, hh_bpe_scratch *s, const char *word, size_t n, hh_ids *out) {
    size_t need = n * (3 * sizeof(uint64_t) + 5 * sizeof(int32_t));
    if (need > s->room_bytes) {
        hh_free(s->room);
        s->room_bytes = need * 2;
        s->room = hh_alloc(s->room_bytes);
    }
    long_word w = {.heap = s->room};
    w.ids = (int32_t *)(w.heap + 3 * n);
    w.ranks = w.ids + n;
    w.after = w.ranks + n;
    w.next = (uint32_t *)(w.after + n);
    w.previous = w.next + n;
    w.n = start_word(b, word, n, w.ids);
    merge_long(b, &w);
    for (size_t i = 0; i < w.n; i = w.next[i]) hh_ids_push(out, w.ids[i]);
}

/* A word of 1 to 16 bytes as two integers; with its length they are unique. */
static void pack_word(uint64_t key[2], const char *word, size_t n) {
    key[0] = key[1] = 0;
    if (n >= 8) {
        memcpy(&key[0], word, 8);
        memcpy(&key[1], word + n - 8, 8);
    } else if (n >= 4) {
        memcpy(&key[0], word, 4);
        memcpy(&key[1], word + n - 4, 4);
    } else {
        memcpy(&key[0], word, 1);
        key[0] |= (uint64_t)(uint8_t)word[n / 2] << 8 | (uint64_t)(uint8_t)word[n - 1] << 16;
    }
}

static void encode_new(const hh_bpe *b, const hh_vocab *v, hh_bpe_scratch *s, const char *word, size_t n, hh_ids *out) {
    if (b->ignore_merges) {
        int32_t id = hh_vocab_find(v, word, n, true);
        if (id >= 0) {
            hh_ids_push(out, id);
            return;
        }
    }
    if (n > SHORT_WORD) {
        encode_long(b, s, word, n, out);
        return;
    }
    int32_t ids[SHORT_WORD];
    size_t n_ids = merge_short(b, ids, start_word(b, word, n, ids));
    hh_ids_append(out, ids, (int64_t)n_ids);
}

void hh_bpe_encode(const hh_bpe *b, const hh_vocab *v, hh_bpe_scratch *s, const char *word, size_t n, hh_ids *out) {
    if (n == 0) return;
    if (n == 1 && b->byte_id[(uint8_t)word[0]] >= 0) {
        hh_ids_push(out, b->byte_id[(uint8_t)word[0]]);
        return;
    }
    if (n > CACHED_BYTES || !s->n_cached) {
        encode_new(b, v, s, word, n, out);
        return;
    }
    uint64_t key[2];
    pack_word(key, word, n);
    hh_cached_word *c = &s->cache[mix(key[0] ^ mix(key[1] + n)) & (s->n_cached - 1)];
    if (c->len == n && c->key[0] == key[0] && c->key[1] == key[1]) {
        hh_ids_append(out, c->ids, c->n_ids);
        return;
    }
    int64_t before = out->len;
    encode_new(b, v, s, word, n, out);
    int64_t n_ids = out->len - before;
    if (n_ids > CACHED_IDS) return;
    *c = (hh_cached_word){.key = {key[0], key[1]}, .len = (uint8_t)n, .n_ids = (uint8_t)n_ids};
    if (n_ids) memcpy(c->ids, out->data + before, (size_t)n_ids * sizeof *c->ids);
}
