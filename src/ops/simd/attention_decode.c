/* Softmax attention of single tokens against their caches. It is bound by reading K and V, so the context is split into
 * pieces that threads take apart, however few heads there are; the partial softmaxes are merged in the order of the
 * pieces. The split depends on the context's length alone: the same bits for any number of threads.
 *
 * A piece reads the rows of all KV heads as they lie in memory, tile by tile, and widens a number once for all queries that
 * share it. bf16 is widened two numbers a word, so that even ones stand before odd ones: queries are brought into
 * this order before, outputs out of it after. */
#include "ops/simd/attention.h"

#include "base/parallel.h"

#include <math.h>

#define PIECE       512 /* least keys in a piece, times KV heads */
#define MAX_PIECES  64
#define TILE        64 /* keys whose logits are taken at once */
#define SMALL_WORK  (1 << 16)
#define MAX_PARTIAL ((int64_t)8 << 20) /* floats of scratch */
#define AHEAD       4096 /* bytes by which rows are asked for: processors do not read ahead across pages */
#define MOST_HEADS  3    /* that share a load */
#define INLINE      static inline __attribute__((always_inline))

typedef struct piece_item {
    int64_t span, lo, hi; /* keys */
    float *partial;       /* for every query head, in groups: D weighted values, maximum, sum */
} piece_item;

typedef struct decode_call {
    const hh_attention_call *c;
    piece_item *item;
} decode_call;

static int64_t piece_length(int64_t n_keys, int64_t n_kv) {
    const int64_t n = (n_keys + MAX_PIECES - 1) / MAX_PIECES, least = PIECE / n_kv;
    return ((n > least ? n : least) + TILE - 1) / TILE * TILE;
}

#if HH_VW <= 8
/* The sums of HH_VW vectors as one. */
static hh_vf sum_each(const hh_vf *a) {
#if HH_VW == 8
    const __m256 s0 = _mm256_hadd_ps((__m256)a[0], (__m256)a[1]), s1 = _mm256_hadd_ps((__m256)a[2], (__m256)a[3]);
    const __m256 s2 = _mm256_hadd_ps((__m256)a[4], (__m256)a[5]), s3 = _mm256_hadd_ps((__m256)a[6], (__m256)a[7]);
    const __m256 t0 = _mm256_hadd_ps(s0, s1), t1 = _mm256_hadd_ps(s2, s3);
    return (hh_vf)_mm256_add_ps(_mm256_permute2f128_ps(t0, t1, 0x20), _mm256_permute2f128_ps(t0, t1, 0x31));
#else
    const float32x4_t s0 = vpaddq_f32((float32x4_t)a[0], (float32x4_t)a[1]);
    return (hh_vf)vpaddq_f32(s0, vpaddq_f32((float32x4_t)a[2], (float32x4_t)a[3]));
#endif
}
#endif

/* Numbers [2 HH_VW i, 2 HH_VW (i + 1)) of a row as two vectors, in the type's order. */
typedef void load_fn(hh_vf out[2], const char *row, int64_t i);

INLINE void load_f32(hh_vf out[2], const char *row, int64_t i) {
    const float *p = (const float *)(const void *)row + 2 * HH_VW * i;
    out[0] = hh_vload(p), out[1] = hh_vload(p + HH_VW);
}
INLINE void load_bf16(hh_vf out[2], const char *row, int64_t i) {
    hh_vu word;
    memcpy(&word, row + i * (int64_t)sizeof word, sizeof word);
    out[0] = (hh_vf)(word << 16), out[1] = (hh_vf)(word & 0xffff0000u);
}
INLINE void load_q8_0(hh_vf out[2], const char *row, int64_t i) {
    const int64_t at = 2 * HH_VW * i;
    const char *block = row + at / 32 * 34;
    uint16_t half;
    memcpy(&half, block, sizeof half);
    const hh_vf d = hh_vset(hh_half_to_float(half));
    const int8_t *q = (const int8_t *)block + 2 + at % 32;
    out[0] = d * hh_vload_i8(q), out[1] = d * hh_vload_i8(q + HH_VW);
}

/* Rows of one KV head: of a cache as they are, or widened. */
typedef struct row_list {
    const char *at;
    int64_t bytes; /* between rows */
    hh_dtype type;
} row_list;

static bool is_read_in_place(hh_dtype type, int64_t D) {
    return D % (2 * HH_VW) == 0 &&
           (type == HH_DTYPE_F32 || type == HH_DTYPE_BF16 || (type == HH_DTYPE_Q8_0 && D % 32 == 0));
}

static row_list rows_of(hh_tensor t, int64_t j, int64_t n, int64_t g, float *buffer) {
    const int64_t D = t.dim[2];
    if (is_read_in_place(t.dtype, D))
        return (row_list){(const char *)t.data + hh_dtype_bytes(t.dtype, j * t.stride + g * D),
                          (int64_t)hh_dtype_bytes(t.dtype, t.stride), t.dtype};
    const hh_kv_rows rows = hh_kv_tile(t, j, n, g, buffer);
    return (row_list){(const char *)rows.at, rows.stride * (int64_t)sizeof(float), HH_DTYPE_F32};
}

/* D numbers in the order in which rows of the type come, and back. */
static void reorder(float *to, const float *from, int64_t D, hh_dtype type, bool back) {
    if (type != HH_DTYPE_BF16) {
        memcpy(to, from, sizeof(float) * (size_t)D);
        return;
    }
    for (int64_t d = 0; d < D; d++) {
        const int64_t at = d / (2 * HH_VW) * (2 * HH_VW) + d % (2 * HH_VW) / 2 + d % 2 * HH_VW;
        to[back ? d : at] = from[back ? at : d];
    }
}

/* z[h * TILE + i] = q_h . k_i, of some keys at a time. */
INLINE void dot_keys(const int keys, const int heads, load_fn *load, float *z, const float *q, const char *k,
                     int64_t bytes, int64_t D) {
    hh_vf acc[16] = {{0}};
    for (int64_t d = 0; d < D / (2 * HH_VW); d++) {
#pragma GCC unroll 8
        for (int i = 0; i < keys; i++) {
            hh_vf x[2];
            load(x, k + i * bytes, d);
#pragma GCC unroll 4
            for (int h = 0; h < heads; h++) {
                const float *p = q + h * D + d * 2 * HH_VW;
                acc[h * keys + i] = hh_vfma(x[0], hh_vload(p), acc[h * keys + i]);
                acc[h * keys + i] = hh_vfma(x[1], hh_vload(p + HH_VW), acc[h * keys + i]);
            }
        }
    }
    for (int i = 0; i < keys; i++)
        for (int64_t b = 0; b < 64 * (D / (2 * HH_VW)) && b < 128; b += 64)
            __builtin_prefetch(k + i * bytes + b + AHEAD);
#if HH_VW <= 8
    if (keys * heads % 8 == 0 || keys * heads == 12 || keys * heads == 4) {
        float sums[16];
        for (int i = 0; i < keys * heads; i += HH_VW) hh_vstore(sums + i, sum_each(acc + i));
        for (int h = 0; h < heads; h++) memcpy(z + h * TILE, sums + h * keys, sizeof(float) * (size_t)keys);
        return;
    }
#endif
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < keys; i++) z[h * TILE + i] = hh_vsum(acc[h * keys + i]);
}

INLINE void logits_of(const int keys, const int heads, load_fn *load, float *z, const float *q, row_list k, int64_t n,
                      int64_t D) {
    int64_t i = 0;
    for (; i + keys <= n; i += keys) dot_keys(keys, heads, load, z + i, q, k.at + i * k.bytes, k.bytes, D);
    for (; i < n; i++) dot_keys(1, heads, load, z + i, q, k.at + i * k.bytes, k.bytes, D);
}

/* o_h [2 pairs HH_VW of D] = keep_h o_h + sum_i w_hi v_i */
INLINE void add_columns(const int pairs, const int heads, load_fn *load, float *o, int64_t ldo, const float *keep,
                        const float *w, row_list v, int64_t first, int64_t n) {
    hh_vf acc[4][8];
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 8
        for (int l = 0; l < 2 * pairs; l++) acc[h][l] = keep[h] * hh_vload(o + h * ldo + l * HH_VW);
    for (int64_t i = 0; i < n; i++) {
        const char *row = v.at + i * v.bytes;
        if (first == 0) __builtin_prefetch(row + AHEAD), __builtin_prefetch(row + AHEAD + 64);
#pragma GCC unroll 4
        for (int l = 0; l < pairs; l++) {
            hh_vf x[2];
            __asm__ volatile("" ::: "memory"); /* weights are read again, or sums would not fit the registers */
            load(x, row, first + l);
#pragma GCC unroll 4
            for (int h = 0; h < heads; h++) {
                const hh_vf by = hh_vset(w[h * TILE + i]);
                acc[h][2 * l] = hh_vfma(by, x[0], acc[h][2 * l]);
                acc[h][2 * l + 1] = hh_vfma(by, x[1], acc[h][2 * l + 1]);
            }
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 8
        for (int l = 0; l < 2 * pairs; l++) hh_vstore(o + h * ldo + l * HH_VW, acc[h][l]);
}

INLINE void values_of(const int pairs, const int heads, load_fn *load, float *o, int64_t ldo, const float *keep,
                      const float *w, row_list v, int64_t n, int64_t D) {
    int64_t d = 0;
    for (; d + pairs <= D / (2 * HH_VW); d += pairs)
        add_columns(pairs, heads, load, o + 2 * HH_VW * d, ldo, keep, w, v, d, n);
    for (; d < D / (2 * HH_VW); d++) add_columns(1, heads, load, o + 2 * HH_VW * d, ldo, keep, w, v, d, n);
}

/* Up to three heads at a time, in each type. */
#define BY_TYPE(name)                                                                                                  \
    static void logits_##name(int heads, float *z, const float *q, row_list k, int64_t n, int64_t D) {                 \
        if (heads == 1)                                                                                                \
            logits_of(8, 1, load_##name, z, q, k, n, D);                                                               \
        else if (heads == 2)                                                                                           \
            logits_of(4, 2, load_##name, z, q, k, n, D);                                                               \
        else                                                                                                           \
            logits_of(4, 3, load_##name, z, q, k, n, D);                                                               \
    }                                                                                                                  \
    static void values_##name(int heads, float *o, int64_t ldo, const float *keep, const float *w, row_list v,         \
                              int64_t n, int64_t D) {                                                                  \
        if (heads == 1)                                                                                                \
            values_of(4, 1, load_##name, o, ldo, keep, w, v, n, D);                                                    \
        else if (heads == 2)                                                                                           \
            values_of(2, 2, load_##name, o, ldo, keep, w, v, n, D);                                                    \
        else                                                                                                           \
            values_of(2, 3, load_##name, o, ldo, keep, w, v, n, D);                                                    \
    }
BY_TYPE(f32)
BY_TYPE(bf16)
BY_TYPE(q8_0)

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

/* What does not fill two vectors, in float. */
static void attend_narrow(float *z, const float *q, row_list k, int64_t n, int64_t D) {
    for (int64_t i = 0; i < n; i++) z[i] = hh_vdot(q, (const float *)(const void *)(k.at + i * k.bytes), D);
}
static void add_narrow(float *o, float keep, const float *w, row_list v, int64_t n, int64_t D) {
    for (int64_t d = 0; d < D; d++) o[d] *= keep;
    for (int64_t i = 0; i < n; i++) {
        const float *row = (const float *)(const void *)(v.at + i * v.bytes);
        for (int64_t d = 0; d < D; d++) o[d] += w[i] * row[d];
    }
}

/* One more tile for up to three heads of a group: partial = {o [D], top, sum} each. */
static void attend_tile(int heads, float *partial, const float *q, row_list k, row_list v, int64_t n, int64_t D) {
    float z[MOST_HEADS * TILE], keep[MOST_HEADS];
    const bool narrow = D % (2 * HH_VW) != 0;
    if (narrow)
        for (int h = 0; h < heads; h++) attend_narrow(z + h * TILE, q + h * D, k, n, D);
    else if (k.type == HH_DTYPE_BF16)
        logits_bf16(heads, z, q, k, n, D);
    else if (k.type == HH_DTYPE_Q8_0)
        logits_q8_0(heads, z, q, k, n, D);
    else
        logits_f32(heads, z, q, k, n, D);
    for (int h = 0; h < heads; h++) {
        float *zh = z + h * TILE, *top = partial + h * (D + 2) + D, *sum = top + 1, most = *top;
        for (int64_t i = 0; i < n; i++) most = zh[i] > most ? zh[i] : most;
        int64_t padded = n;
        for (; padded % HH_VW; padded++) zh[padded] = -1e30f;
        keep[h] = exp2f(*top - most);
        *sum = *sum * keep[h] + weigh(zh, padded, most);
        *top = most;
    }
    if (narrow)
        for (int h = 0; h < heads; h++) add_narrow(partial + h * (D + 2), keep[h], z + h * TILE, v, n, D);
    else if (v.type == HH_DTYPE_BF16)
        values_bf16(heads, partial, D + 2, keep, z, v, n, D);
    else if (v.type == HH_DTYPE_Q8_0)
        values_q8_0(heads, partial, D + 2, keep, z, v, n, D);
    else
        values_f32(heads, partial, D + 2, keep, z, v, n, D);
}

/* The type in whose order a cache's rows come. */
static hh_dtype order_of(hh_tensor t) {
    return is_read_in_place(t.dtype, t.dim[2]) ? t.dtype : HH_DTYPE_F32;
}

static void run_piece(void *context, int64_t index, int thread) {
    const decode_call *call = context;
    const hh_attention_call *c = call->c;
    const piece_item *item = &call->item[index];
    const hh_span span = c->span[item->span];
    const hh_kv kv = c->kv[item->span];
    const int64_t D = c->q.dim[2], Hq = c->q.dim[1];
    hh_arena *a = &c->be->thread_scratch[thread];
    const size_t mark = a->used;
    float *K = hh_arena_alloc(a, sizeof(float) * (size_t)(TILE * D)),
          *V = hh_arena_alloc(a, sizeof(float) * (size_t)(TILE * D));
    float *q = hh_arena_alloc(a, sizeof(float) * (size_t)(Hq * D)), *row = hh_arena_alloc(a, sizeof(float) * (size_t)D);
    const float scale = (float)(hh_attention_scale(D, c->log_scale_base, span.pos) * HH_LOG2E);
    for (int64_t i = 0; i < Hq; i++) {
        const float *from = hh_row(c->q, span.lo) + c->groups.head[i] * D;
        for (int64_t d = 0; d < D; d++) row[d] = scale * from[d];
        reorder(q + i * D, row, D, order_of(kv.k), false);
        float *partial = item->partial + i * (D + 2);
        memset(partial, 0, sizeof(float) * (size_t)D);
        partial[D] = -1e30f, partial[D + 1] = 0;
    }
    for (int64_t j = item->lo; j < item->hi; j += TILE) {
        const int64_t n = item->hi - j < TILE ? item->hi - j : TILE;
        for (int64_t g = 0; g < c->groups.n_kv; g++) {
            const int64_t end = c->groups.first[g + 1];
            if (c->groups.first[g] == end) continue;
            const row_list k = rows_of(kv.k, j, n, g, K), v = rows_of(kv.v, j, n, g, V);
            for (int64_t i = c->groups.first[g]; i < end; i += MOST_HEADS)
                attend_tile(end - i < MOST_HEADS ? (int)(end - i) : MOST_HEADS, item->partial + i * (D + 2), q + i * D,
                            k, v, n, D);
        }
    }
    for (int64_t i = 0; i < Hq; i++) {
        float *o = item->partial + i * (D + 2);
        memcpy(row, o, sizeof(float) * (size_t)D);
        reorder(o, row, D, order_of(kv.v), true);
    }
    hh_arena_reset(a, mark);
}

/* The pieces of one span, in order, into o and lse. */
static void merge(const hh_attention_call *c, const piece_item *item, int64_t pieces) {
    const int64_t D = c->q.dim[2], Hq = c->q.dim[1], t = c->span[item->span].lo;
    for (int64_t i = 0; i < Hq; i++) {
        const int64_t h = c->groups.head[i], at = i * (D + 2);
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

/* Spans [from, *to) are as many as scratch holds; the pieces of one stand one behind another. */
static int64_t list_pieces(piece_item *item, hh_arena *a, const hh_attention_call *c, int64_t from, int64_t *to) {
    const int64_t partial = c->q.dim[1] * (c->q.dim[2] + 2);
    int64_t n = 0, used = 0, s = from;
    for (; s < c->n_spans && (used < MAX_PARTIAL || s == from); s++) {
        if (c->span[s].hi - c->span[s].lo != 1) continue;
        const int64_t n_keys = c->span[s].pos + 1, length = piece_length(n_keys, c->groups.n_kv);
        for (int64_t j = 0; j < n_keys; j += length, n++) {
            used += partial + (int64_t)(sizeof *item / sizeof(float));
            if (!item) continue;
            item[n] = (piece_item){s, j, j + length < n_keys ? j + length : n_keys, NULL};
            item[n].partial = hh_arena_alloc(a, sizeof(float) * (size_t)partial);
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
        for (int64_t i = 0; i < n; i++) work += (call.item[i].hi - call.item[i].lo) * c->q.dim[1] * c->q.dim[2];
        hh_parallel_for(work < SMALL_WORK ? 1 : c->be->n_threads, n, run_piece, &call);
        for (int64_t i = 0, next; i < n; i = next) {
            for (next = i + 1; next < n && call.item[next].span == call.item[i].span;) next++;
            merge(c, &call.item[i], next - i);
        }
        hh_arena_reset(a, mark);
    }
}
