/* The two ops of softmax attention: host lists of spans, heads and groups; operands that tensor-core kernels cannot
 * read as they are (rows off 16-byte boundaries, caches of other types) are copied into scratch, as many KV heads at a
 * time as fit; and the choice of the kernel. */
#include "ops/cuda/attention.h"

#include <cstdint>

extern "C" {
#include "base/memory.h"
}

#define PACK_ROWS 32 /* keys of a span that one block copies */

/* One call's work: the spans of one kind, and their operands. */
typedef struct work {
    hh_backend *be;
    hh_attention_args a;
    hh_attention_span *span, *fit; /* as given; as the kernels read them */
    hh_attention_head *head;
    hh_attention_group *group;
    const int32_t *kv_of_q;
    int64_t n_rows, n_q, n_kv;
    bool pack_q, pack_kv;
} work;

/* -- copies -- */

/* Keys (blockIdx.y 0) or values of KV heads [kv0, kv0 + n) into dense rows. */
static __global__ void pack_kv(const hh_attention_args a, hh_bf16 *k, hh_bf16 *v, int kv0, int n) {
    const hh_attention_span s = *hh_attention_find(a, blockIdx.x);
    const int64_t row0 = (int64_t)((int)blockIdx.x - s.first) * PACK_ROWS, rows = s.pos + s.n - row0;
    const int width = n * a.head_dim, count = (int)(rows < PACK_ROWS ? rows : PACK_ROWS) * width;
    const char *from = blockIdx.y ? s.v : s.k;
    const int64_t stride = blockIdx.y ? s.v_stride : s.k_stride;
    hh_bf16 *to = (blockIdx.y ? v : k) + (int64_t)blockIdx.x * PACK_ROWS * width;
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        hh_store(to + i, hh_attention_load(from, a.kv_dtype,
                                           (row0 + i / width) * stride + (int64_t)kv0 * a.head_dim + i % width));
}

/* The columns of a's heads into dense rows; a block a row. */
static __global__ void pack_heads(const hh_attention_args a, hh_bf16 *to, const hh_bf16 *from, int64_t stride) {
    const int D = a.head_dim, width = a.n_heads * D;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        to[(int64_t)blockIdx.x * width + i] = from[blockIdx.x * stride + (int64_t)a.head[i / D].o * D + i % D];
}

static bool is_aligned(const void *p, int64_t stride) {
    return (uintptr_t)p % 16 == 0 && stride % 8 == 0;
}

static size_t pack_bytes_of_head(const work *w, int64_t g) {
    int64_t rows = 0;
    if (w->pack_kv)
        for (int64_t s = 0; s < w->a.n_spans; s++)
            rows += 2 * hh_ceil_div(w->span[s].pos + w->span[s].n, PACK_ROWS) * PACK_ROWS;
    if (w->pack_q)
        for (int64_t h = 0; h < w->n_q; h++)
            if (w->kv_of_q[h] == g) rows += (w->a.do_ ? 2 : 1) * w->n_rows;
    return (size_t)(rows * w->a.head_dim) * sizeof(hh_bf16);
}

static void fit_kv(work *w, int64_t g0, int64_t g1) {
    const hh_attention_args *a = &w->a;
    memcpy(w->fit, w->span, (size_t)a->n_spans * sizeof *w->fit);
    if (!w->pack_kv) return;
    int64_t tiles = 0;
    for (int64_t s = 0; s < a->n_spans; s++) {
        w->fit[s].first = (int32_t)tiles;
        tiles += hh_ceil_div(w->span[s].pos + w->span[s].n, PACK_ROWS);
    }
    hh_attention_args from = *a;
    from.span = hh_cuda_list(w->be, w->fit, a->n_spans);
    const int64_t width = (g1 - g0) * a->head_dim;
    hh_bf16 *k = (hh_bf16 *)hh_cuda_scratch(w->be, (size_t)(tiles * PACK_ROWS * width) * sizeof *k);
    hh_bf16 *v = (hh_bf16 *)hh_cuda_scratch(w->be, (size_t)(tiles * PACK_ROWS * width) * sizeof *v);
    hh_cuda_launch(w->be, "attention", pack_kv, dim3((unsigned)tiles, 2), 256, 0, from, k, v, (int)g0, (int)(g1 - g0));
    for (int64_t s = 0; s < a->n_spans; s++) {
        w->fit[s].k = (const char *)(k + w->fit[s].first * PACK_ROWS * width);
        w->fit[s].v = (const char *)(v + w->fit[s].first * PACK_ROWS * width);
        w->fit[s].k_stride = w->fit[s].v_stride = width;
    }
}

static const void *fit_heads(work *w, const hh_attention_args *a, const void *from, int64_t stride) {
    const size_t n = (size_t)w->n_rows * (size_t)a->n_heads * (size_t)a->head_dim;
    hh_bf16 *to = (hh_bf16 *)hh_cuda_scratch(w->be, n * sizeof *to);
    hh_cuda_launch(w->be, "attention", pack_heads, dim3((unsigned)w->n_rows), 256, 0, *a, to, (const hh_bf16 *)from,
                   stride);
    return to;
}

/* -- lists -- */

/* Heads and groups of KV heads [g0, g1) into w's lists and a; a group of more than `most` heads becomes several. One
 * without a reader counts backward alone, where its gradients are zero. */
static void list_heads(work *w, hh_attention_args *a, int64_t g0, int64_t g1, int most) {
    a->n_heads = a->n_groups = 0;
    for (int64_t g = g0; g < g1; g++) {
        const int32_t kv = (int32_t)(w->pack_kv ? g - g0 : g);
        hh_attention_group *group = NULL;
        for (int64_t h = 0; h < w->n_q; h++) {
            if (w->kv_of_q[h] != g) continue;
            if (!group || group->n == most) {
                group = w->group + a->n_groups++;
                *group = (hh_attention_group){kv, (int32_t)g, a->n_heads, 0};
            }
            group->n++;
            w->head[a->n_heads] = (hh_attention_head){w->pack_q ? a->n_heads : (int32_t)h, (int32_t)h, kv, 0};
            a->n_heads++;
        }
        if (!group && a->dk) w->group[a->n_groups++] = (hh_attention_group){kv, (int32_t)g, a->n_heads, 0};
    }
    a->head = hh_cuda_list(w->be, w->head, a->n_heads);
    a->group = hh_cuda_list(w->be, w->group, a->n_groups);
}

typedef void tiles_fn(hh_backend *be, hh_attention_args *a, hh_attention_span *span);

/* Runs `f` on all KV heads, those at a time whose copies fit into scratch. */
static void run_tiles(work *w, tiles_fn *f) {
    const size_t mark = w->be->scratch.used, spare = (size_t)4 << 20;
    for (int64_t g0 = 0, g1; g0 < w->n_kv; g0 = g1) {
        hh_arena_reset(&w->be->scratch, mark);
        size_t left = hh_cuda_scratch_left(w->be) - spare;
        for (g1 = g0; g1 < w->n_kv; g1++) {
            const size_t bytes = pack_bytes_of_head(w, g1);
            if (bytes > left) break;
            left -= bytes;
        }
        if (g1 == g0) {
            hh_cuda_fault(w->be, "attention",
                          "what it has to copy, a cache that is not bf16 or rows that are not aligned, does not fit "
                          "into scratch");
            break;
        }
        hh_attention_args a = w->a;
        list_heads(w, &a, g0, g1, INT32_MAX);
        fit_kv(w, g0, g1);
        if (w->pack_kv) a.kv_dtype = HH_DTYPE_BF16;
        if (w->pack_q && a.n_heads) {
            a.q = fit_heads(w, &a, a.q, a.q_stride);
            a.q_stride = (int64_t)a.n_heads * a.head_dim;
            if (a.do_) {
                a.do_ = fit_heads(w, &a, a.do_, a.do_stride);
                a.do_stride = a.q_stride;
            }
        }
        f(w->be, &a, w->fit);
    }
    hh_arena_reset(&w->be->scratch, mark);
}

static void run_plain(work *w, hh_dtype type, bool backward) {
    w->pack_q = w->pack_kv = false;
    list_heads(w, &w->a, 0, w->n_kv, INT32_MAX);
    (backward ? hh_attention_plain_bwd : hh_attention_plain_fwd)(w->be, &w->a, type, w->span);
}

static void run_decode(work *w) {
    w->pack_q = w->pack_kv = false;
    list_heads(w, &w->a, 0, w->n_kv, 16);
    hh_attention_decode(w->be, &w->a, w->span, w->group);
}

/* -- the ops -- */

static bool is_heads(hh_backend *be, hh_tensor t, int64_t rows, int64_t heads, int64_t width) {
    return t.dtype == be->activation && t.rank == 3 && t.dim[0] == rows && t.dim[1] == heads && t.dim[2] == width;
}

static void begin_work(work *w, hh_backend *be, hh_tensor q, int64_t n_spans, int64_t n_kv, const int32_t *kv_of_q,
                       double base) {
    memset(w, 0, sizeof *w);
    w->be = be;
    w->n_rows = q.dim[0];
    w->n_q = q.dim[1];
    w->n_kv = n_kv;
    w->kv_of_q = kv_of_q;
    for (int64_t h = 0; h < w->n_q; h++) HH_ASSERT(kv_of_q[h] >= 0 && kv_of_q[h] < n_kv);
    w->span = (hh_attention_span *)hh_alloc_unguarded((size_t)(2 * n_spans) * sizeof *w->span);
    w->fit = w->span + n_spans;
    w->head = (hh_attention_head *)hh_alloc_unguarded((size_t)w->n_q * sizeof *w->head);
    w->group = (hh_attention_group *)hh_alloc_unguarded((size_t)(n_kv + w->n_q) * sizeof *w->group);
    w->a.q = q.data;
    w->a.q_stride = q.stride;
    w->a.head_dim = (int32_t)q.dim[2];
    w->a.c = 1 / sqrt((double)q.dim[2]);
    w->a.base = base;
    w->a.inverse_log_base = base > 0 ? 1 / log(base) : 0;
    hh_cuda_scratch_begin(be);
}

static void end_work(work *w) {
    hh_free(w->group);
    hh_free(w->head);
    hh_free(w->span);
}

/* Tensor-core kernels take the scale out of the exponent's maximum, so it must be positive. */
static bool may_tile(const work *w, hh_dtype type) {
    return type == HH_DTYPE_BF16 && hh_attention_tiles_take(w->a.head_dim) && (w->a.base == 0 || w->a.base > 1);
}

static void add_span(work *w, hh_tensor k, hh_tensor v, hh_span span) {
    hh_attention_span *s = w->span + w->a.n_spans++;
    memset(s, 0, sizeof *s);
    s->k = (const char *)k.data;
    s->v = (const char *)v.data;
    s->k_stride = k.stride;
    s->v_stride = v.stride;
    s->lo = span.lo;
    s->pos = span.pos;
    s->n = (int32_t)(span.hi - span.lo);
}

/* All spans of one query, or all others: their own kernels. */
static void forward_kind(work *w, hh_tensor q, const hh_kv *kv, const hh_span *span, int64_t n_spans, bool single) {
    const hh_dtype type = w->be->activation;
    bool aligned = true;
    w->a.n_spans = 0;
    for (int64_t s = 0; s < n_spans; s++) {
        const int64_t n = span[s].hi - span[s].lo;
        if (!n || (n == 1) != single) continue;
        const hh_tensor k = kv[s].k, v = kv[s].v;
        HH_ASSERT(n < INT32_MAX / 2 && k.dim[0] >= span[s].pos + n && v.dim[0] >= span[s].pos + n);
        HH_ASSERT(k.dim[1] == w->n_kv && k.dim[2] == q.dim[2] && v.dim[1] == w->n_kv && v.dim[2] == q.dim[2]);
        HH_ASSERT(k.dtype == w->a.kv_dtype && v.dtype == k.dtype);
        aligned = aligned && is_aligned(k.data, k.stride) && is_aligned(v.data, v.stride);
        add_span(w, k, v, span[s]);
    }
    if (!w->a.n_spans) return;
    if (!may_tile(w, type) || (single && !aligned)) return run_plain(w, type, false);
    if (single) return run_decode(w);
    w->pack_kv = !aligned || w->a.kv_dtype != HH_DTYPE_BF16;
    w->pack_q = !is_aligned(q.data, q.stride);
    run_tiles(w, hh_attention_wgmma_takes(w->be, w->a.head_dim) ? hh_attention_wgmma_fwd : hh_attention_tiles_fwd);
}

extern "C" void hh_attention_fwd_cuda(hh_backend *be, hh_tensor o, hh_tensor lse, hh_tensor q, const hh_kv *kv,
                                      const hh_span *span, int64_t n_spans, const int32_t *kv_of_q,
                                      double log_scale_base) {
    const int64_t T = q.dim[0], Hq = q.dim[1], D = q.dim[2];
    HH_ASSERT(is_heads(be, q, T, Hq, D) && is_heads(be, o, T, Hq, D) && D <= HH_MAX_HEAD_DIM);
    HH_ASSERT(hh_is_absent(lse) || hh_is_real_matrix(lse, T, Hq));
    HH_ASSERT(hh_are_spans(span, n_spans, T));
    if (!n_spans || !Hq) return;
    work w;
    begin_work(&w, be, q, n_spans, kv[0].k.dim[1], kv_of_q, log_scale_base);
    w.a.o = o.data;
    w.a.o_stride = o.stride;
    w.a.lse = (float *)lse.data;
    w.a.lse_stride = lse.stride;
    w.a.kv_dtype = kv[0].k.dtype;
    forward_kind(&w, q, kv, span, n_spans, true);
    forward_kind(&w, q, kv, span, n_spans, false);
    end_work(&w);
}

extern "C" void hh_attention_bwd_cuda(hh_backend *be, hh_tensor dq, hh_tensor dk, hh_tensor dv, hh_tensor do_,
                                      hh_tensor q, hh_tensor k, hh_tensor v, hh_tensor o, hh_tensor lse,
                                      const hh_span *span, int64_t n_spans, const int32_t *kv_of_q,
                                      double log_scale_base) {
    const int64_t T = q.dim[0], Hq = q.dim[1], D = q.dim[2], G = k.dim[1];
    HH_ASSERT(is_heads(be, q, T, Hq, D) && is_heads(be, o, T, Hq, D) && is_heads(be, do_, T, Hq, D) &&
              is_heads(be, dq, T, Hq, D) && D <= HH_MAX_HEAD_DIM);
    HH_ASSERT(is_heads(be, k, T, G, D) && is_heads(be, v, T, G, D) && is_heads(be, dk, T, G, D) &&
              is_heads(be, dv, T, G, D));
    HH_ASSERT(hh_is_real_matrix(lse, T, Hq) && hh_are_spans(span, n_spans, T));
    if (!n_spans) return;
    work w;
    begin_work(&w, be, q, n_spans, G, kv_of_q, log_scale_base);
    hh_attention_args *a = &w.a;
    a->lse = (float *)lse.data;
    a->lse_stride = lse.stride;
    a->kv_dtype = k.dtype;
    a->do_ = do_.data;
    a->do_stride = do_.stride;
    a->dq = dq.data;
    a->dk = dk.data;
    a->dv = dv.data;
    a->dq_stride = dq.stride;
    a->dk_stride = dk.stride;
    a->dv_stride = dv.stride;
    for (int64_t s = 0; s < n_spans; s++) {
        HH_ASSERT(span[s].pos == 0 && span[s].hi - span[s].lo < INT32_MAX / 2);
        if (span[s].hi > span[s].lo)
            add_span(&w, hh_tensor_rows(k, span[s].lo, span[s].hi), hh_tensor_rows(v, span[s].lo, span[s].hi), span[s]);
    }
    if (a->n_spans) {
        float *delta = (float *)hh_cuda_scratch(be, (size_t)(T * Hq) * sizeof *delta);
        hh_attention_delta(be, delta, do_, o);
        a->delta = delta;
        a->delta_stride = Hq;
        w.pack_q = !is_aligned(q.data, q.stride) || !is_aligned(do_.data, do_.stride);
        w.pack_kv = !is_aligned(k.data, k.stride) || !is_aligned(v.data, v.stride);
        for (int64_t s = 0; s < a->n_spans; s++)
            w.pack_kv = w.pack_kv || !is_aligned(w.span[s].k, 0) || !is_aligned(w.span[s].v, 0);
        if (may_tile(&w, be->activation))
            run_tiles(&w, hh_attention_wgmma_takes(be, D) ? hh_attention_wgmma_bwd : hh_attention_tiles_bwd);
        else
            run_plain(&w, be->activation, true);
    }
    end_work(&w);
}
