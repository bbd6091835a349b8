/* Softmax attention backward, blocked: for every block of queries the tiles of keys go by once, five products a tile.
 *
 * Transposed like the forward (queries across the vector): S^T = K Q^T and dP^T = V dO^T, then dV += P^T dO and
 * dK += dZ^T Q straight into the gradients, and dQ += dZ K in scratch. A KV head of a span is one item of work; when
 * there are fewer of these than threads want, its tiles of keys are dealt out to several items, each with a dQ of its
 * own, added up in order. Equations and tags: ops/attention.h; q stands for c_t q_t throughout.
 */
#include "ops/simd/attention.h"
#include "ops/simd/panel.h"

#include "base/parallel.h"
#include "ops/shape.h"

#define COLUMNS     64 /* queries of a block, all heads of the group */
#define TILE        64 /* keys */
#define LDS         (COLUMNS + 16)
#define MAX_PARTIAL ((size_t)64 << 20)

typedef struct bwd_call {
    hh_backend *be;
    hh_tensor dq, dk, dv, do_, q, k, v, o, lse;
    const hh_span *span;
    hh_head_groups groups;
    double log_scale_base;
    int64_t splits; /* items that share the keys of one KV head */
    float *partial; /* [splits - 1][T][Hq][D]: dq of the other items */
} bwd_call;

typedef struct bwd_block {
    int64_t n, width, D, ld, cols; /* columns, in whole panels; row lengths as in panel.h */
    float *Q, *dO, *dQ;            /* [COLUMNS][ld] */
    float *QT, *dOT;               /* [D][LDS] */
    float *K, *sum;                /* [TILE][ld] */
    float *P, *dZ;                 /* [TILE][LDS] */
    float lse[COLUMNS], delta[COLUMNS], scale[COLUMNS];
    int32_t position[COLUMNS];
    int64_t row[COLUMNS], head[COLUMNS]; /* row of the batch, query head */
    const int32_t *member;               /* the query heads, at most COLUMNS of a group */
    int64_t heads;
} bwd_block;

static float *floats(hh_arena *a, int64_t n) {
    return hh_arena_alloc(a, sizeof(float) * (size_t)n);
}

static void place(bwd_block *b, hh_arena *a, int64_t D) {
    b->D = D, b->cols = hh_panel_round(D), b->ld = hh_panel_ld(D);
    b->Q = floats(a, COLUMNS * b->ld), b->dO = floats(a, COLUMNS * b->ld), b->dQ = floats(a, COLUMNS * b->ld);
    b->QT = floats(a, D * LDS), b->dOT = floats(a, D * LDS);
    b->K = floats(a, TILE * b->ld), b->sum = floats(a, TILE * b->ld);
    b->P = floats(a, TILE * LDS), b->dZ = floats(a, TILE * LDS);
}

/* Queries [lo, hi); padding columns repeat the last query and send nothing back. */
static void load_block(bwd_block *b, const bwd_call *c, hh_span span, int64_t lo, int64_t hi) {
    const int64_t heads = b->heads, D = b->D;
    b->n = (hi - lo) * heads;
    b->width = hh_panel_round(b->n);
    for (int64_t i = 0; i < b->width; i++) {
        const int64_t at = i < b->n ? i : b->n - 1, t = lo + at / heads, h = b->member[at % heads];
        const float *q = hh_row(c->q, t) + h * D, *grad = hh_row(c->do_, t) + h * D;
        float *Q = b->Q + i * b->ld, *dO = b->dO + i * b->ld;
        b->row[i] = t, b->head[i] = h;
        b->position[i] = (int32_t)(t - span.lo);
        b->scale[i] = (float)hh_attention_scale(D, c->log_scale_base, t - span.lo); /* F1 */
        b->lse[i] = hh_row(c->lse, t)[h] * (float)HH_LOG2E;
        b->delta[i] = hh_vdot(grad, hh_row(c->o, t) + h * D, D); /* B1 */
        for (int64_t d = 0; d < D; d++) Q[d] = b->scale[i] * q[d], dO[d] = grad[d];
        for (int64_t d = D; d < b->cols; d++) Q[d] = dO[d] = 0;
    }
    hh_transpose(b->QT, LDS, b->Q, b->ld, (int)b->width, (int)D);
    hh_transpose(b->dOT, LDS, b->dO, b->ld, (int)b->width, (int)D);
    memset(b->dQ, 0, sizeof(float) * (size_t)(COLUMNS * b->ld));
}

/* B2 for one vector of columns and keys j .. j + n: P holds logits and becomes p, dZ holds dP and becomes dz. */
static void weigh(bwd_block *b, int64_t column, int64_t j, int64_t n, bool masked) {
    hh_vi last;
    memcpy(&last, b->position + column, sizeof last);
    const hh_vf lse = hh_vload(b->lse + column), delta = hh_vload(b->delta + column);
    for (int64_t i = 0; i < n; i++) {
        float *P = b->P + i * LDS + column, *dZ = b->dZ + i * LDS + column;
        hh_vf p = hh_vexp2_down(hh_vfma(hh_vload(P), hh_vset((float)HH_LOG2E), -lse));
        if (masked) p = hh_vselect(hh_vset_int((int32_t)(j + i)) <= last, p, (hh_vf){0});
        hh_vstore(P, p);
        hh_vstore(dZ, p * (hh_vload(dZ) - delta));
    }
}

static void zero_columns(float *x, int64_t column, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) memset(x + i * LDS + column, 0, sizeof(float) * HH_PANEL);
}

/* The first column, in whole rows of queries, that sees key j. */
static int64_t first_column(const bwd_block *b, int64_t j) {
    const int64_t behind = j - b->position[0];
    const int64_t column = behind > 0 ? behind * b->heads : 0;
    return column < b->n ? column : b->n;
}

/* y [n, D] += W [n, columns] rows: B4, straight into the gradient where its heads are whole panels. */
static void add_rows(bwd_block *b, float *y, int64_t stride, const float *W, const float *rows, int64_t j, int64_t n) {
    const bool direct = b->cols == b->D;
    float *C = direct ? y : b->sum;
    const int64_t ldc = direct ? stride : b->ld, step = 2 * HH_PANEL_ROWS;
    for (int64_t i = 0; i < n; i += step) {
        const int64_t end = i + step < n ? i + step : n, from = first_column(b, j + i);
        for (int64_t d = 0; d < b->cols; d += HH_PANEL)
            hh_panel_product(C + i * ldc + d, ldc, direct ? 1 : 0, 1, hh_rows_of(W + i * LDS + from, LDS),
                             rows + from * b->ld + d, b->ld, end - i, b->n - from);
    }
    for (int64_t i = 0; !direct && i < n; i++)
        for (int64_t d = 0; d < b->D; d++) y[i * stride + d] += C[i * ldc + d];
}

/* Keys j .. j + n of the span against the block. */
static void run_tile(bwd_block *b, const bwd_call *c, hh_span span, int64_t g, int64_t j, int64_t n) {
    const int64_t D = b->D, at = g * D;
    const float *k = hh_row(c->k, span.lo + j) + at, *v = hh_row(c->v, span.lo + j) + at;
    for (int64_t i = 0; i < n; i++) {
        memcpy(b->K + i * b->ld, k + i * c->k.stride, sizeof(float) * (size_t)D);
        for (int64_t d = D; d < b->cols; d++) b->K[i * b->ld + d] = 0;
    }
    for (int64_t p = 0; p < b->width; p += HH_PANEL) {
        int64_t seen = b->position[p + HH_PANEL - 1] + 1 - j;
        seen = seen < 0 ? 0 : seen < n ? seen : n;
        hh_panel_product(b->P + p, LDS, 0, 1, hh_rows_of(b->K, b->ld), b->QT + p, LDS, seen, D); /* F2 */
        hh_panel_product(b->dZ + p, LDS, 0, 1, hh_rows_of(v, c->v.stride), b->dOT + p, LDS, seen, D);
        const bool masked = b->position[p] < j + seen - 1;
        weigh(b, p, j, seen, masked);
        weigh(b, p + HH_VW, j, seen, masked);
        zero_columns(b->P, p, seen, n), zero_columns(b->dZ, p, seen, n);
        for (int64_t d = 0; d < b->cols && seen; d += HH_PANEL) /* B3 */
            hh_panel_product(b->dQ + p * b->ld + d, b->ld, 1, 1, hh_columns_of(b->dZ + p, LDS), b->K + d, b->ld,
                             HH_PANEL, seen);
    }
    add_rows(b, hh_row(c->dv, span.lo + j) + at, c->dv.stride, b->P, b->dO, j, n);
    add_rows(b, hh_row(c->dk, span.lo + j) + at, c->dk.stride, b->dZ, b->Q, j, n);
}

static void store_queries(const bwd_block *b, const bwd_call *c, int64_t split) {
    const int64_t T = c->q.dim[0], Hq = c->q.dim[1];
    for (int64_t i = 0; i < b->n; i++) {
        float *dq = split ? c->partial + (((split - 1) * T + b->row[i]) * Hq + b->head[i]) * b->D
                          : hh_row(c->dq, b->row[i]) + b->head[i] * b->D;
        for (int64_t d = 0; d < b->D; d++) dq[d] = b->scale[i] * b->dQ[i * b->ld + d];
    }
}

static void run_item(void *context, int64_t index, int thread) {
    const bwd_call *c = context;
    const int64_t split = index % c->splits, g = index / c->splits % c->groups.n_kv, D = c->q.dim[2];
    const hh_span span = c->span[index / c->splits / c->groups.n_kv];
    const int64_t heads = c->groups.first[g + 1] - c->groups.first[g], n_keys = span.hi - span.lo;
    for (int64_t j = split * TILE; j < n_keys; j += c->splits * TILE)
        for (int64_t i = j; i < j + TILE && i < n_keys; i++) {
            memset(hh_row(c->dk, span.lo + i) + g * D, 0, sizeof(float) * (size_t)D);
            memset(hh_row(c->dv, span.lo + i) + g * D, 0, sizeof(float) * (size_t)D);
        }
    if (!heads) return;
    hh_arena *a = &c->be->thread_scratch[thread];
    const size_t mark = a->used;
    bwd_block *b = hh_arena_alloc(a, sizeof *b);
    place(b, a, D);
    for (int64_t h = 0; h < heads; h += COLUMNS) {
        b->member = c->groups.head + c->groups.first[g] + h;
        b->heads = heads - h < COLUMNS ? heads - h : COLUMNS;
        const int64_t rows = COLUMNS / b->heads;
        for (int64_t lo = span.lo; lo < span.hi; lo += rows) {
            const int64_t hi = lo + rows < span.hi ? lo + rows : span.hi;
            load_block(b, c, span, lo, hi);
            for (int64_t j = split * TILE; j < hi - span.lo; j += c->splits * TILE)
                run_tile(b, c, span, g, j, hi - span.lo - j < TILE ? hi - span.lo - j : TILE);
            store_queries(b, c, split);
        }
    }
    hh_arena_reset(a, mark);
}

/* How many items share a KV head's keys: enough for the threads, if scratch holds their gradients of the queries. */
static int64_t choose_splits(const bwd_call *c, int64_t n_spans) {
    const int64_t items = n_spans * c->groups.n_kv, threads = c->be->n_threads;
    const size_t bytes = sizeof(float) * (size_t)(c->q.dim[0] * c->q.dim[1] * c->q.dim[2]);
    int64_t splits = items >= 3 * threads || threads == 1 ? 1 : threads;
    while (splits > 1 && (size_t)(splits - 1) * bytes > MAX_PARTIAL) splits--;
    return splits;
}

static void add_partials(const bwd_call *c, int64_t n_spans) {
    const int64_t T = c->q.dim[0], n = c->q.dim[1] * c->q.dim[2];
    for (int64_t s = 0; s < n_spans; s++)
        for (int64_t t = c->span[s].lo; t < c->span[s].hi; t++)
            for (int64_t split = 1; split < c->splits; split++) {
                const float *from = c->partial + ((split - 1) * T + t) * n;
                float *dq = hh_row(c->dq, t);
                for (int64_t d = 0; d < n; d++) dq[d] += from[d];
            }
}

void HH_SIMD_NAME(attention_bwd)(hh_backend *be, hh_tensor dq, hh_tensor dk, hh_tensor dv, hh_tensor do_, hh_tensor q,
                                 hh_tensor k, hh_tensor v, hh_tensor o, hh_tensor lse, const hh_span *span,
                                 int64_t n_spans, const int32_t *kv_of_q, double log_scale_base) {
    const int64_t T = q.dim[0], Hq = q.dim[1], D = q.dim[2], G = k.dim[1];
    HH_ASSERT(hh_is_real_heads(q, T, Hq, D) && hh_is_real_like(o, q) && hh_is_real_like(dq, q) &&
              hh_is_real_like(do_, q));
    HH_ASSERT(hh_is_real_heads(k, T, G, D) && hh_is_real_like(v, k) && hh_is_real_like(dk, k) &&
              hh_is_real_like(dv, k));
    HH_ASSERT(hh_is_real_matrix(lse, T, Hq) && hh_are_spans(span, n_spans, T) && D <= HH_MAX_HEAD_DIM);
    for (int64_t s = 0; s < n_spans; s++) HH_ASSERT(span[s].pos == 0);
    hh_arena *a = &be->scratch;
    const size_t mark = a->used;
    bwd_call c = {.be = be,
                  .dq = dq,
                  .dk = dk,
                  .dv = dv,
                  .do_ = do_,
                  .q = q,
                  .k = k,
                  .v = v,
                  .o = o,
                  .lse = lse,
                  .span = span,
                  .groups = hh_group_heads(a, kv_of_q, Hq, G),
                  .log_scale_base = log_scale_base};
    c.splits = choose_splits(&c, n_spans);
    if (c.splits > 1) c.partial = floats(a, (c.splits - 1) * T * Hq * D);
    hh_parallel_for(be->n_threads, n_spans * G * c.splits, run_item, &c);
    if (c.splits > 1) add_partials(&c, n_spans);
    hh_arena_reset(a, mark);
}
