/* Softmax attention of single tokens against their caches. It is bound by reading K and V, so the context is split into
 * pieces that threads take apart, however few heads there are; the partial softmaxes are merged in the order of the
 * pieces. The split depends on the context's length alone: the same bits for any number of threads. */
#include "ops/simd/attention.h"

#include "base/parallel.h"

#include <math.h>

#define PIECE       512 /* least keys in a piece */
#define MAX_PIECES  64
#define TILE        64 /* keys whose logits are taken at once */
#define SMALL_WORK  (1 << 16)
#define MAX_PARTIAL ((int64_t)8 << 20) /* floats of scratch */

typedef struct piece_item {
    int64_t span, g, lo, hi; /* keys */
    float *partial;          /* for every head of the group: D weighted values, maximum, sum */
} piece_item;

typedef struct decode_call {
    const hh_attention_call *c;
    piece_item *item;
} decode_call;

static int64_t piece_length(int64_t n_keys) {
    const int64_t n = (n_keys + MAX_PIECES - 1) / MAX_PIECES;
    return n <= PIECE ? PIECE : (n + TILE - 1) / TILE * TILE;
}

#if HH_VW == 8
/* The sums of eight vectors as one. */
static hh_vf sum_each(const hh_vf *a) {
    const __m256 s0 = _mm256_hadd_ps((__m256)a[0], (__m256)a[1]), s1 = _mm256_hadd_ps((__m256)a[2], (__m256)a[3]);
    const __m256 s2 = _mm256_hadd_ps((__m256)a[4], (__m256)a[5]), s3 = _mm256_hadd_ps((__m256)a[6], (__m256)a[7]);
    const __m256 t0 = _mm256_hadd_ps(s0, s1), t1 = _mm256_hadd_ps(s2, s3);
    return (hh_vf)_mm256_add_ps(_mm256_permute2f128_ps(t0, t1, 0x20), _mm256_permute2f128_ps(t0, t1, 0x31));
}
#endif

/* z[i] = q . k_i for n keys. */
static void logits(float *z, const float *q, hh_kv_rows k, int64_t n, int64_t D) {
    int64_t i = 0;
#if HH_VW == 8
    for (; D % HH_VW == 0 && i + 8 <= n; i += 8) {
        hh_vf acc[8] = {{0}};
        const float *p = k.at + i * k.stride;
        for (int64_t d = 0; d < D; d += HH_VW) {
            const hh_vf x = hh_vload(q + d);
#pragma GCC unroll 8
            for (int l = 0; l < 8; l++) acc[l] = hh_vfma(x, hh_vload(p + l * k.stride + d), acc[l]);
        }
        hh_vstore(z + i, sum_each(acc));
    }
#endif
    for (; i < n; i++) z[i] = hh_vdot(q, k.at + i * k.stride, D);
}

/* o [vectors * HH_VW] = keep o + sum_i w_i v_i */
static inline __attribute__((always_inline)) void add_columns(const int vectors, float *o, float keep, const float *w,
                                                              const float *v, int64_t stride, int64_t n) {
    hh_vf acc[8];
#pragma GCC unroll 8
    for (int l = 0; l < vectors; l++) acc[l] = keep * hh_vload(o + l * HH_VW);
    for (int64_t i = 0; i < n; i++) {
        const hh_vf x = hh_vset(w[i]);
#pragma GCC unroll 8
        for (int l = 0; l < vectors; l++) acc[l] = hh_vfma(x, hh_vload(v + i * stride + l * HH_VW), acc[l]);
    }
#pragma GCC unroll 8
    for (int l = 0; l < vectors; l++) hh_vstore(o + l * HH_VW, acc[l]);
}

static void add_values(float *o, float keep, const float *w, hh_kv_rows v, int64_t n, int64_t D) {
    int64_t d = 0;
    for (; d + 8 * HH_VW <= D; d += 8 * HH_VW) add_columns(8, o + d, keep, w, v.at + d, v.stride, n);
    for (; d + 4 * HH_VW <= D; d += 4 * HH_VW) add_columns(4, o + d, keep, w, v.at + d, v.stride, n);
    for (; d + HH_VW <= D; d += HH_VW) add_columns(1, o + d, keep, w, v.at + d, v.stride, n);
    for (; d < D; d++) {
        float sum = keep * o[d];
        for (int64_t i = 0; i < n; i++) sum += w[i] * v.at[i * v.stride + d];
        o[d] = sum;
    }
}

/* z [n] (a multiple of HH_VW, padded with -1e30) becomes 2^(z - top); returns the sum. */
static float weigh(float *z, int64_t n, float top) {
    hh_vf sum = {0};
    for (int64_t i = 0; i < n; i += HH_VW) {
        const hh_vf p = hh_vexp2_down(hh_vload(z + i) - top);
        hh_vstore(z + i, p);
        sum += p;
    }
    return hh_vsum(sum);
}

/* One more tile for one head: partial = {o [D], top, sum}. */
static void attend_tile(float *partial, const float *q, hh_kv_rows k, hh_kv_rows v, int64_t n, int64_t D) {
    float z[TILE], *top = partial + D, *sum = partial + D + 1;
    logits(z, q, k, n, D);
    float most = *top;
    for (int64_t i = 0; i < n; i++) most = z[i] > most ? z[i] : most;
    int64_t padded = n;
    for (; padded % HH_VW; padded++) z[padded] = -1e30f;
    const float shrink = exp2f(*top - most), total = weigh(z, padded, most);
    add_values(partial, shrink, z, v, n, D);
    *sum = *sum * shrink + total;
    *top = most;
}

static void run_piece(void *context, int64_t index, int thread) {
    const decode_call *call = context;
    const hh_attention_call *c = call->c;
    const piece_item *item = &call->item[index];
    const hh_span span = c->span[item->span];
    const int64_t D = c->q.dim[2], first = c->groups.first[item->g], heads = c->groups.first[item->g + 1] - first;
    hh_arena *a = &c->be->thread_scratch[thread];
    const size_t mark = a->used;
    float *K = hh_arena_alloc(a, sizeof(float) * (size_t)(TILE * D)),
          *V = hh_arena_alloc(a, sizeof(float) * (size_t)(TILE * D));
    float *q = hh_arena_alloc(a, sizeof(float) * (size_t)(heads * D));
    const float scale = (float)(hh_attention_scale(D, c->log_scale_base, span.pos) * HH_LOG2E);
    for (int64_t i = 0; i < heads; i++) {
        const float *from = hh_row(c->q, span.lo) + c->groups.head[first + i] * D;
        for (int64_t d = 0; d < D; d++) q[i * D + d] = scale * from[d];
        float *partial = item->partial + i * (D + 2);
        memset(partial, 0, sizeof(float) * (size_t)D);
        partial[D] = -1e30f, partial[D + 1] = 0;
    }
    for (int64_t j = item->lo; j < item->hi; j += TILE) {
        const int64_t n = item->hi - j < TILE ? item->hi - j : TILE;
        const hh_kv_rows k = hh_kv_tile(c->kv[item->span].k, j, n, item->g, K);
        const hh_kv_rows v = hh_kv_tile(c->kv[item->span].v, j, n, item->g, V);
        for (int64_t i = 0; i < heads; i++) attend_tile(item->partial + i * (D + 2), q + i * D, k, v, n, D);
    }
    hh_arena_reset(a, mark);
}

/* The pieces of one KV head of one span, in order, into o and lse. */
static void merge(const hh_attention_call *c, const piece_item *item, int64_t pieces) {
    const int64_t D = c->q.dim[2], first = c->groups.first[item->g], heads = c->groups.first[item->g + 1] - first;
    const int64_t t = c->span[item->span].lo;
    for (int64_t i = 0; i < heads; i++) {
        const int64_t h = c->groups.head[first + i], at = i * (D + 2);
        float *o = hh_row(c->o, t) + h * D, top = -1e30f, sum = 0;
        for (int64_t p = 0; p < pieces; p++) top = fmaxf(top, item[p].partial[at + D]);
        memset(o, 0, sizeof(float) * (size_t)D);
        for (int64_t p = 0; p < pieces; p++) {
            const float *partial = item[p].partial + at, factor = exp2f(partial[D] - top);
            for (int64_t d = 0; d < D; d++) o[d] += factor * partial[d];
            sum += factor * partial[D + 1];
        }
        for (int64_t d = 0; d < D; d++) o[d] /= sum;
        if (c->lse.data) hh_row(c->lse, t)[h] = (float)((top + log2((double)sum)) * HH_LN2);
    }
}

/* Spans [from, *to) are as many as scratch holds; the pieces of one KV head stand one behind another. */
static int64_t list_pieces(piece_item *item, hh_arena *a, const hh_attention_call *c, int64_t from, int64_t *to) {
    const int64_t D = c->q.dim[2];
    int64_t n = 0, used = 0, s = from;
    for (; s < c->n_spans && (used < MAX_PARTIAL || s == from); s++) {
        if (c->span[s].hi - c->span[s].lo != 1) continue;
        const int64_t n_keys = c->span[s].pos + 1, length = piece_length(n_keys);
        for (int64_t g = 0; g < c->groups.n_kv; g++) {
            const int64_t heads = c->groups.first[g + 1] - c->groups.first[g];
            for (int64_t j = 0; heads && j < n_keys; j += length, n++) {
                used += heads * (D + 2) + (int64_t)(sizeof *item / sizeof(float));
                if (!item) continue;
                item[n] = (piece_item){s, g, j, j + length < n_keys ? j + length : n_keys, NULL};
                item[n].partial = hh_arena_alloc(a, sizeof(float) * (size_t)(heads * (D + 2)));
            }
        }
    }
    *to = s;
    return n;
}

void HH_SIMD_NAME(attention_decode)(const hh_attention_call *c) {
    hh_arena *a = &c->be->scratch;
    for (int64_t from = 0, to = 0; from < c->n_spans; from = to) {
        const size_t mark = a->used;
        const int64_t n = list_pieces(NULL, a, c, from, &to);
        decode_call call = {c, hh_arena_alloc(a, sizeof(piece_item) * (size_t)n)};
        list_pieces(call.item, a, c, from, &to);
        int64_t work = 0;
        for (int64_t i = 0; i < n; i++) work += (call.item[i].hi - call.item[i].lo) * c->q.dim[2];
        hh_parallel_for(work < SMALL_WORK ? 1 : c->be->n_threads, n, run_piece, &call);
        for (int64_t i = 0, next; i < n; i = next) {
            for (next = i + 1;
                 next < n && call.item[next].span == call.item[i].span && call.item[next].g == call.item[i].g;)
                next++;
            merge(c, &call.item[i], next - i);
        }
        hh_arena_reset(a, mark);
    }
}
