/* Softmax attention forward, blocked: a block of queries against tiles of keys with the softmax taken online.
 *
 * Everything is transposed, S^T = K Q^T and O^T += V^T P^T, so that queries lie across the vector: maximum, exponential
 * and sum then run down the keys without any horizontal step, K and V are read as they lie in memory, and a column of
 * the block is computed the same way whatever its neighbours are: any cut of a sequence into pieces gives the same
 * bits. The columns of a block are the queries of all heads that share a KV head, so each tile of K and V is read once
 * for the group. Equations and tags: ops/attention.h; logits are kept times log2(e).
 *
 * Where nothing asks for float32 or for the log-sum-exp of a backward, both products are of 16-bit integers
 * (attention_pairs.h).
 */
#include "ops/simd/attention.h"
#include "ops/simd/attention_pairs.h"
#include "ops/simd/panel.h"

#include "base/parallel.h"
#include "ops/shape.h"

#include <math.h>

#define COLUMNS     256 /* of a block; a multiple of HH_PANEL */
#define TILE_FLOATS 6144
#define PAIR_TILE   8192 /* numbers of 16 bits */
#define LOWEST      -1e30f
#define SMALL_WORK  (1 << 18) /* multiply-adds that one thread does alone */

typedef struct block_item {
    int64_t span, g, lo, hi; /* rows [lo, hi) of the batch */
} block_item;

typedef struct block_call {
    hh_attention_call c;
    block_item *item;
    int64_t tile; /* keys in a tile */
    bool paired;  /* products of 16-bit integers */
} block_call;

/* What one block needs, in a thread's scratch. Panel p holds columns [p, p + 1) * HH_PANEL. */
typedef struct block {
    int64_t n, D;    /* columns in use */
    float *Q, *O;    /* [panels][D][HH_PANEL] */
    float *S, *rows; /* [tile][HH_PANEL]; [HH_PANEL][D] */
    float *K, *V;    /* [tile][D] */
    float top[COLUMNS], sum[COLUMNS];
    int32_t position[COLUMNS]; /* the last key a column sees */
    int32_t last[COLUMNS / HH_PANEL];
#if HH_PAIRS
    bool paired;
    int16_t *pair_rows, *pair_Q; /* [HH_PANEL][D]; [panels][D / 2][HH_PANEL][2] */
    float *pair_Q_scale;         /* [panels][D / 32][HH_PANEL] */
    int32_t *P;                  /* weights by pairs, [tile / 2][HH_PANEL] */
    float *P_scale;              /* [tile / 32][HH_PANEL] */
    hh_pair_tile kv;
#endif
} block;

static float *floats(hh_arena *a, int64_t n) {
    return hh_arena_alloc(a, sizeof(float) * (size_t)n);
}

/* Of a block, of n rows of a span in all: blocks of one size, and one for every thread where rows suffice. */
static int64_t block_rows(const hh_attention_call *c, int64_t n, int64_t heads) {
    const int64_t most = heads >= COLUMNS ? 1 : COLUMNS / heads, share = c->n_spans * c->groups.n_kv;
    int64_t blocks = (n + most - 1) / most;
    const int64_t least = (c->be->n_threads + share - 1) / share, small = n * heads / (4 * HH_PANEL);
    if (blocks < least) blocks = least < small ? least : blocks < small ? small : blocks;
    return (n + blocks - 1) / blocks;
}

static int64_t tile_keys(int64_t D) {
    const int64_t n = TILE_FLOATS / D / 48 * 48;
    return n < 24 ? 24 : n > 192 ? 192 : n;
}

#if HH_PAIRS
static bool is_paired(const hh_backend *be, hh_tensor lse, int64_t D) {
    return be->precision != HH_PRECISION_F32 && !lse.data && D % HH_PAIR_GROUP == 0;
}

/* Of whole groups. */
static int64_t pair_tile_keys(int64_t D) {
    const int64_t n = PAIR_TILE / D / HH_PAIR_GROUP * HH_PAIR_GROUP;
    return n < HH_PAIR_GROUP ? HH_PAIR_GROUP : n > HH_PAIR_MOST_KEYS ? HH_PAIR_MOST_KEYS : n;
}
#endif

static void load_queries(block *b, const hh_attention_call *c, const block_item *item) {
    const hh_head_groups *gr = &c->groups;
    const int64_t heads = gr->first[item->g + 1] - gr->first[item->g], D = b->D;
    const hh_span span = c->span[item->span];
    b->n = (item->hi - item->lo) * heads;
    const int64_t padded = hh_panel_round(b->n);
    for (int64_t i = 0; i < padded; i++) {
        float *row = b->rows + i % HH_PANEL * D;
        const int64_t at = i < b->n ? i : b->n - 1; /* padding repeats the last query */
        const int64_t t = item->lo + at / heads, h = gr->head[gr->first[item->g] + at % heads];
        const int64_t position = span.pos + t - span.lo;
        const float scale = (float)(hh_attention_scale(D, c->log_scale_base, position) * HH_LOG2E); /* F1 */
        const float *q = hh_row(c->q, t) + h * D;
        for (int64_t d = 0; d < D; d++) row[d] = scale * q[d];
        b->position[i] = (int32_t)position;
        b->top[i] = LOWEST, b->sum[i] = 0;
#if HH_PAIRS
        if (b->paired)
            hh_pairs_round(b->pair_rows + i % HH_PANEL * D,
                           b->pair_Q_scale + i / HH_PANEL * (D / HH_PAIR_GROUP * HH_PANEL) + i % HH_PANEL, HH_PANEL,
                           row, D / HH_PAIR_GROUP);
#endif
        if (i % HH_PANEL == HH_PANEL - 1) {
            const int64_t p = i / HH_PANEL;
#if HH_PAIRS
            if (b->paired) /* pairs are moved like floats, whole vectors at a time */
                hh_transpose((float *)(void *)(b->pair_Q + p * D * HH_PANEL), HH_PANEL,
                             (const float *)(const void *)b->pair_rows, D / 2, HH_PANEL, (int)(D / 2));
            else
#endif
                hh_transpose(b->Q + p * D * HH_PANEL, HH_PANEL, b->rows, D, HH_PANEL, (int)D);
            memset(b->O + p * D * HH_PANEL, 0, sizeof(float) * (size_t)(D * HH_PANEL));
            b->last[p] = (int32_t)position;
        }
    }
}

/* Logits S [n, HH_VW of HH_PANEL] of keys j .. j + n become weights; returns by how much earlier sums shrink. */
static hh_vf weigh(float *S, int64_t n, int64_t j, bool masked, float *top, float *sum, const int32_t *position) {
    hh_vi last;
    memcpy(&last, position, sizeof last);
    const hh_vf before = hh_vload(top);
    const hh_vf most = hh_panel_peak(S, n, j, masked, last, before, LOWEST);
    hh_vf total = {0};
    for (int64_t i = 0; i < n; i++) {
        hh_vf p = hh_vexp2_down(hh_vload(S + i * HH_PANEL) - most);
        if (masked) p = hh_vselect(hh_vset_int((int32_t)(j + i)) <= last, p, (hh_vf){0});
        hh_vstore(S + i * HH_PANEL, p);
        total += p;
    }
    const hh_vf shrink = hh_vexp2_down(before - most);
    hh_vstore(top, most);
    hh_vstore(sum, hh_vfma(hh_vload(sum), shrink, total));
    return shrink;
}

static void shrink_panel(float *O, int64_t D, hh_vf low, hh_vf high) {
    for (int64_t d = 0; d < D; d++, O += HH_PANEL) {
        hh_vstore(O, low * hh_vload(O));
        hh_vstore(O + HH_VW, high * hh_vload(O + HH_VW));
    }
}

/* Keys j .. j + n for panel p; keys behind the panel's last position are left out. */
static void panel_tile(block *b, int64_t p, int64_t j, int64_t n, hh_kv_rows k, hh_kv_rows v) {
    const int64_t first = p * HH_PANEL, D = b->D;
    if (n > b->last[p] + 1 - j) n = b->last[p] + 1 - j;
    if (n <= 0) return;
    float *O = b->O + p * D * HH_PANEL;
    hh_panel_product(b->S, HH_PANEL, 0, 1, hh_rows_of(k.at, k.stride), b->Q + p * D * HH_PANEL, HH_PANEL, n,
                     D); /* F2 */
    const bool masked = b->position[first] < j + n - 1;
    const hh_vf low = weigh(b->S, n, j, masked, b->top + first, b->sum + first, b->position + first);
    const hh_vf high =
        weigh(b->S + HH_VW, n, j, masked, b->top + first + HH_VW, b->sum + first + HH_VW, b->position + first + HH_VW);
    if (j) shrink_panel(O, D, low, high);
    hh_panel_product(O, HH_PANEL, 1, 1, hh_columns_of(v.at, v.stride), b->S, HH_PANEL, D, n); /* F4 */
}

#if HH_PAIRS
/* The same in pairs, for the tile in b->kv. */
static void panel_tile_of_pairs(block *b, int64_t p, int64_t j, int64_t n) {
    static const float one[HH_PAIR_MOST_KEYS / HH_PAIR_GROUP] = {1, 1, 1, 1, 1, 1};
    const int64_t first = p * HH_PANEL, D = b->D, groups = D / HH_PAIR_GROUP;
    if (n > b->last[p] + 1 - j) n = b->last[p] + 1 - j;
    if (n <= 0) return;
    float *O = b->O + p * D * HH_PANEL;
    hh_pair_product(b->S, HH_PANEL, false, hh_pair_rows_of(b->kv.k, b->kv.k_scale, D), b->pair_Q + p * D * HH_PANEL,
                    b->pair_Q_scale + p * groups * HH_PANEL, n, groups); /* F2 */
    const bool masked = b->position[first] < j + n - 1;
    hh_vf shrink[2];
    for (int64_t i = 0; i < 2; i++) {
        const int64_t at = first + i * HH_VW;
        shrink[i] = hh_pair_weigh(b->P + i * HH_VW, b->P_scale + i * HH_VW, b->S + i * HH_VW, n, j, masked, b->top + at,
                                  b->sum + at, b->position + at, b->kv.v_scale, LOWEST);
    }
    if (j) shrink_panel(O, D, shrink[0], shrink[1]);
    hh_pair_product(O, HH_PANEL, true, (hh_pair_rows){b->kv.v, one, 2, 2 * D, 0}, (const int16_t *)b->P, b->P_scale, D,
                    hh_pair_round(n) / HH_PAIR_GROUP); /* F4 */
}

static void place_pairs(block *b, hh_arena *a, int64_t columns, int64_t tile) {
    const int64_t D = b->D;
    b->pair_rows = hh_arena_alloc(a, sizeof(int16_t) * (size_t)(HH_PANEL * D));
    b->pair_Q = hh_arena_alloc(a, sizeof(int16_t) * (size_t)(columns * D));
    b->pair_Q_scale = floats(a, columns * D / HH_PAIR_GROUP);
    b->P = hh_arena_alloc(a, sizeof(int32_t) * (size_t)(tile / 2 * HH_PANEL));
    b->P_scale = floats(a, tile / HH_PAIR_GROUP * HH_PANEL);
    b->kv = (hh_pair_tile){.k = hh_arena_alloc(a, sizeof(int16_t) * (size_t)(tile * D)),
                           .v = hh_arena_alloc(a, sizeof(int16_t) * (size_t)(tile * D)),
                           .k_scale = floats(a, tile * D / HH_PAIR_GROUP),
                           .v_scale = floats(a, tile),
                           .rows = hh_arena_alloc(a, sizeof(int16_t) * (size_t)(2 * D))};
}
#endif

static void store_outputs(block *b, const hh_attention_call *c, const block_item *item) {
    const hh_head_groups *gr = &c->groups;
    const int64_t heads = gr->first[item->g + 1] - gr->first[item->g], D = b->D;
    for (int64_t i = 0; i < b->n; i++) {
        if (i % HH_PANEL == 0) hh_transpose(b->rows, D, b->O + i * D, HH_PANEL, (int)D, HH_PANEL);
        const int64_t t = item->lo + i / heads, h = gr->head[gr->first[item->g] + i % heads];
        const float *row = b->rows + i % HH_PANEL * D, inverse = 1 / b->sum[i];
        float *o = hh_row(c->o, t) + h * D;
        for (int64_t d = 0; d < D; d++) o[d] = row[d] * inverse;
        if (c->lse.data) hh_row(c->lse, t)[h] = (float)((b->top[i] + log2((double)b->sum[i])) * HH_LN2); /* F3 */
    }
}

static void run_block(void *context, int64_t index, int thread) {
    const block_call *call = context;
    const block_item *item = &call->item[index];
    const hh_attention_call *c = &call->c;
    hh_arena *a = &c->be->thread_scratch[thread];
    const size_t mark = a->used;
    const int64_t D = c->q.dim[2], tile = call->tile;
    const int64_t heads = c->groups.first[item->g + 1] - c->groups.first[item->g];
    const int64_t columns = hh_panel_round((item->hi - item->lo) * heads);
    HH_ASSERT(columns <= COLUMNS);
    block *b = hh_arena_alloc(a, sizeof *b);
    b->D = D;
    b->Q = floats(a, columns * D), b->O = floats(a, columns * D), b->rows = floats(a, HH_PANEL * D);
    b->S = floats(a, tile * HH_PANEL), b->K = floats(a, tile * D), b->V = floats(a, tile * D);
#if HH_PAIRS
    b->paired = call->paired;
    if (b->paired) place_pairs(b, a, columns, tile);
#endif
    load_queries(b, c, item);
    const hh_kv kv = c->kv[item->span];
    const int64_t n_keys = b->last[columns / HH_PANEL - 1] + 1;
    for (int64_t j = 0; j < n_keys; j += tile) {
        const int64_t n = n_keys - j < tile ? n_keys - j : tile;
        const hh_kv_rows k = hh_kv_tile(kv.k, j, n, item->g, b->K), v = hh_kv_tile(kv.v, j, n, item->g, b->V);
#if HH_PAIRS
        if (b->paired) {
            hh_pair_tile_round(&b->kv, k, v, n, D);
            for (int64_t p = 0; p < columns / HH_PANEL; p++) panel_tile_of_pairs(b, p, j, n);
            continue;
        }
#endif
        for (int64_t p = 0; p < columns / HH_PANEL; p++) panel_tile(b, p, j, n, k, v);
    }
    store_outputs(b, c, item);
    hh_arena_reset(a, mark);
}

/* Blocks of all spans but those of attention_decode, the last (and so the heaviest) of every span first. Counts when out is
 * NULL. */
static int64_t list_blocks(block_item *out, const hh_attention_call *c) {
    int64_t n = 0, rounds = 1;
    for (int64_t round = 0; round < rounds; round++)
        for (int64_t s = 0; s < c->n_spans; s++) {
            const hh_span span = c->span[s];
            if (span.hi == span.lo || (c->be->decoding && span.hi - span.lo == 1)) continue;
            for (int64_t g = 0; g < c->groups.n_kv; g++) {
                const int64_t heads = c->groups.first[g + 1] - c->groups.first[g];
                if (!heads) continue;
                const int64_t rows = block_rows(c, span.hi - span.lo, heads);
                const int64_t blocks = (span.hi - span.lo + rows - 1) / rows;
                if (blocks > rounds) rounds = blocks;
                if (round >= blocks) continue;
                const int64_t lo = span.lo + (blocks - 1 - round) * rows;
                if (out) out[n] = (block_item){s, g, lo, lo + rows < span.hi ? lo + rows : span.hi};
                n++;
            }
        }
    return n;
}

void HH_SIMD_NAME(attention_fwd)(hh_backend *be, hh_tensor o, hh_tensor lse, hh_tensor q, const hh_kv *kv,
                                 const hh_span *span, int64_t n_spans, const int32_t *kv_of_q, double log_scale_base) {
    const int64_t T = q.dim[0], Hq = q.dim[1], D = q.dim[2];
    HH_ASSERT(hh_is_real_heads(q, T, Hq, D) && hh_is_real_like(o, q) && D <= HH_MAX_HEAD_DIM);
    HH_ASSERT(hh_is_absent(lse) || hh_is_real_matrix(lse, T, Hq));
    HH_ASSERT(hh_are_spans(span, n_spans, T));
    if (!n_spans || !Hq) return;
    const int64_t n_kv = hh_kv_heads_read(kv_of_q, Hq);
    for (int64_t s = 0; s < n_spans; s++) {
        if (span[s].lo == span[s].hi) continue;
        HH_ASSERT(kv[s].k.dim[0] >= span[s].pos + span[s].hi - span[s].lo && kv[s].k.dim[1] >= n_kv);
    }
    hh_arena *a = &be->scratch;
    const size_t mark = a->used;
    block_call call = {.c = {.be = be,
                             .o = o,
                             .lse = lse,
                             .q = q,
                             .kv = kv,
                             .span = span,
                             .n_spans = n_spans,
                             .groups = hh_group_heads(a, kv_of_q, Hq, n_kv),
                             .log_scale_base = log_scale_base},
                       .tile = tile_keys(D)};
#if HH_PAIRS
    call.paired = is_paired(be, lse, D);
    if (call.paired) call.tile = pair_tile_keys(D);
#endif
    const int64_t n = list_blocks(NULL, &call.c);
    call.item = hh_arena_alloc(a, sizeof *call.item * (size_t)n);
    list_blocks(call.item, &call.c);
    int64_t work = 0;
    for (int64_t s = 0; s < n_spans; s++)
        work += (span[s].hi - span[s].lo) * (span[s].pos + span[s].hi - span[s].lo) * Hq * D;
    hh_parallel_for(work < SMALL_WORK ? 1 : be->n_threads, n, run_block, &call);
    if (be->decoding) HH_SIMD_NAME(attention_decode)(&call.c);
    hh_arena_reset(a, mark);
}
