/* What is kept of a cache, as one block of bytes; see payload.h. */
#include "session/payload.h"

/* One stretch of a payload: where it stands in a cache. KV rows first, for a part of them may be restored. */
typedef struct piece {
    char *at;
    size_t row_bytes;
    int64_t rows; /* -1: not by token: states and tails */
} piece;

typedef void piece_fn(hh_backend *be, const piece *p, size_t offset, void *context);

static void rows_piece(const hh_cache *c, hh_tensor t, int64_t from, int64_t to, piece_fn *each, size_t *at,
                       void *context) {
    if (!t.data) return;
    size_t row = hh_dtype_bytes(t.dtype, hh_tensor_row_count(t));
    piece p = {(char *)t.data + (size_t)from * row, row, to - from};
    each(c->be, &p, *at, context);
    *at += (size_t)p.rows * row;
}

static void whole_piece(const hh_cache *c, hh_tensor t, piece_fn *each, size_t *at, void *context) {
    if (!t.data) return;
    piece p = {t.data, hh_tensor_bytes(t), -1};
    each(c->be, &p, *at, context);
    *at += p.row_bytes;
}

/* Every piece of the snapshot [from, to) in its order; returns the payload's size so far. */
static size_t walk(const hh_cache *c, int64_t from, int64_t to, piece_fn *each, void *context) {
    size_t at = 0;
    for (int64_t l = 0; l < c->n_layers; l++) {
        rows_piece(c, c->layer[l].k, from, to, each, &at, context);
        rows_piece(c, c->layer[l].v, from, to, each, &at, context);
    }
    for (int64_t l = 0; l < c->n_layers; l++) {
        whole_piece(c, c->layer[l].state, each, &at, context);
        for (int i = 0; i < 3; i++) whole_piece(c, c->layer[l].tail[i], each, &at, context);
    }
    return at;
}

static void count_piece(hh_backend *be, const piece *p, size_t offset, void *context) {
    (void)be, (void)p, (void)offset, (void)context;
}

static void save_piece(hh_backend *be, const piece *p, size_t offset, void *context) {
    be->to_host(be, (char *)context + offset, p->at, p->rows < 0 ? p->row_bytes : (size_t)p->rows * p->row_bytes);
}

typedef struct restoring {
    const char *payload;
    int64_t rows; /* of the snapshot that are wanted */
    bool states;
} restoring;

static void restore_piece(hh_backend *be, const piece *p, size_t offset, void *context) {
    const restoring *r = context;
    if (p->rows < 0 && r->states) be->to_device(be, p->at, r->payload + offset, p->row_bytes);
    if (p->rows >= 0) be->to_device(be, p->at, r->payload + offset, (size_t)r->rows * p->row_bytes);
}

size_t hh_payload_bytes(const hh_cache *cache, int64_t from, int64_t to) {
    return walk(cache, from, to, count_piece, NULL);
}

size_t hh_payload_save(const hh_cache *cache, int64_t from, int64_t to, char *payload) {
    return walk(cache, from, to, save_piece, payload);
}

void hh_payload_restore(hh_cache *cache, int64_t from, int64_t to, int64_t length, const char *payload) {
    restoring r = {.payload = payload, .rows = length - from, .states = length == to};
    walk(cache, from, to, restore_piece, &r);
}
