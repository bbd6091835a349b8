/* The two heads on the card: tiles of tokens whose logits stand in scratch; equations in ops/loss.h.
 *
 * A tile is gathered from the tokens that take part. Its logits are made in parts of fewer rows, so that the teacher's,
 * which live no longer than the pass that turns the student's into their gradient, need less room; the two products
 * backward take the whole tile, for dW is read and written once a tile. With a gradient logits have the
 * activations' type; without, they are float32. */
#include "ops/cuda/loss_rows.h"
#include "ops/cuda/products.h"

enum { MAX_TILE = 8192 };

int64_t hh_cuda_head_tile = 4096, hh_cuda_head_part = 2048;

/* One call of either head. */
typedef struct head {
    hh_backend *be;
    hh_tensor nll, kl, dx, x, xt;
    hh_linear w, wt; /* in the activations' type, when scratch has room for that */
    const hh_linear *dw;
    const int32_t *target; /* host lists */
    const float *row_weight;
    const int32_t *card_target; /* the same on the card */
    const float *card_weight;
    int32_t *card_argmax;
    bool teacher, gradient;
    double scale, ce_weight;
    hh_dtype logits;
    int64_t stride;     /* elements between rows of logits: whole 16 bytes */
    int64_t tile, part; /* rows */
    int64_t n;          /* rows of the present tile, and which tokens they are */
    int32_t token[MAX_TILE];
} head;

/* -- tokens that take no part, and rows of a tile -- */

/* A block owns a token; those that take no part get zeros. */
template <typename T>
static __global__ void clear_inactive_kernel(float *nll, float *kl, int32_t *argmax, T *dx, int64_t stride,
                                             int64_t width, const int32_t *target, const float *weight, bool teacher) {
    int64_t t = blockIdx.x;
    bool active = (target && target[t] >= 0) || (teacher && (!weight || weight[t] != 0));
    if (active) return;
    if (!threadIdx.x) {
        if (nll) nll[t] = 0;
        if (kl) kl[t] = 0;
        if (argmax) argmax[t] = -1;
    }
    if (dx)
        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) hh_store(dx + t * stride + i, 0);
}

/* to[i] = from[token[i]], or to[token[i]] = from[i] when `scatter`. A block owns a row. */
template <typename T>
static __global__ void move_rows_kernel(T *to, int64_t to_stride, const T *from, int64_t from_stride, int64_t width,
                                        const int32_t *token, bool scatter) {
    int64_t i = blockIdx.x, t = token[i];
    to += (scatter ? t : i) * to_stride;
    from += (scatter ? i : t) * from_stride;
    for (int64_t k = threadIdx.x; k < width; k += blockDim.x) to[k] = from[k];
}

static void move_rows(head *h, hh_tensor to, hh_tensor from, const int32_t *token, bool scatter) {
    HH_CUDA_BY_TYPE(to.dtype, T,
                    hh_cuda_launch(h->be, "rows of a head's tile", move_rows_kernel<T>, dim3((unsigned)h->n), dim3(256),
                                   0, (T *)to.data, to.stride, (const T *)from.data, from.stride,
                                   hh_tensor_row_count(to), token, scatter));
}

static bool is_active(const head *h, int64_t t) {
    if (h->target && h->target[t] >= 0) return true;
    return h->teacher ? !h->row_weight || h->row_weight[t] != 0 : !h->target;
}

static void clear_inactive(head *h) {
    hh_tensor dx = h->gradient && h->dx.data ? h->dx : HH_NONE;
    dim3 grid((unsigned)h->x.dim[0]);
    HH_CUDA_BY_TYPE(h->x.dtype, T,
                    hh_cuda_launch(h->be, "a head's tokens without targets", clear_inactive_kernel<T>, grid, dim3(128),
                                   0, (float *)h->nll.data, (float *)h->kl.data, h->card_argmax, (T *)dx.data,
                                   dx.stride, h->w.k, h->card_target, h->card_weight, h->teacher));
}

/* -- tiles -- */

static hh_tensor place_rows(head *h, hh_dtype dtype, int64_t rows, int64_t cols, int64_t stride) {
    hh_tensor t = hh_tensor_2d(NULL, dtype, rows, cols);
    t.stride = stride;
    t.data = hh_cuda_scratch(h->be, hh_dtype_bytes(dtype, rows * stride));
    return t;
}

static bool is_contiguous(const head *h) {
    return h->token[h->n - 1] - h->token[0] == h->n - 1;
}

/* The tile's rows of t: a view where they lie together, else gathered into scratch. */
static hh_tensor tile_of(head *h, hh_tensor t, const int32_t *token) {
    if (is_contiguous(h)) return hh_tensor_rows(t, h->token[0], h->token[0] + h->n);
    int64_t width = hh_tensor_row_count(t);
    hh_tensor g = place_rows(h, t.dtype, h->n, width, (width + 7) / 8 * 8);
    move_rows(h, g, t, token, false);
    return g;
}

/* Logits of rows [lo, hi) of the tile, and what becomes of them. */
static void run_part(head *h, hh_tensor z, hh_tensor zt, hh_tensor x, hh_tensor xt, const int32_t *token, int64_t lo) {
    hh_backend *be = h->be;
    hh_loss_row_job j;
    memset(&j, 0, sizeof j);
    j.token = token ? token + lo : NULL;
    j.first = h->token[0] + lo;
    j.stride = h->stride;
    j.V = h->w.n;
    j.nll = (float *)h->nll.data;
    j.kl = (float *)h->kl.data;
    j.argmax = h->card_argmax;
    j.target = h->card_target;
    j.weight = h->card_weight;
    j.scale = (float)h->scale;
    j.ce_scale = (float)(h->scale * h->ce_weight);
    j.gradient = h->gradient;
    hh_cuda_linear_fwd(be, z, x, &h->w, false);
    if (h->teacher) hh_cuda_linear_fwd(be, zt, xt, &h->wt, false);
    hh_cuda_loss_rows(be, z, zt, &j);
}

/* B3 of the tile. */
static void run_backward(head *h, hh_tensor z, hh_tensor x, const int32_t *token) {
    if (h->dx.data && is_contiguous(h)) {
        hh_cuda_linear_bwd_input(h->be, hh_tensor_rows(h->dx, h->token[0], h->token[0] + h->n), z, &h->w, false);
    } else if (h->dx.data) {
        hh_tensor dx = place_rows(h, h->dx.dtype, h->n, h->w.k, (h->w.k + 7) / 8 * 8);
        hh_cuda_linear_bwd_input(h->be, dx, z, &h->w, false);
        move_rows(h, h->dx, dx, token, true);
    }
    if (h->dw) hh_cuda_linear_bwd_weight(h->be, h->dw, z, x);
}

static void run_tile(head *h) {
    hh_backend *be = h->be;
    size_t mark = be->scratch.used;
    const int32_t *token = is_contiguous(h) ? NULL : hh_cuda_list(be, h->token, h->n);
    hh_tensor x = tile_of(h, h->x, token), xt = h->teacher ? tile_of(h, h->xt, token) : HH_NONE;
    hh_tensor z = place_rows(h, h->logits, h->gradient ? h->n : h->part, h->w.n, h->stride), zt = HH_NONE;
    if (h->teacher) zt = place_rows(h, h->logits, h->part, h->w.n, h->stride);
    for (int64_t lo = 0; lo < h->n; lo += h->part) {
        int64_t hi = lo + h->part < h->n ? lo + h->part : h->n, at = h->gradient ? lo : 0;
        run_part(h, hh_tensor_rows(z, at, at + hi - lo), h->teacher ? hh_tensor_rows(zt, 0, hi - lo) : HH_NONE,
                 hh_tensor_rows(x, lo, hi), h->teacher ? hh_tensor_rows(xt, lo, hi) : HH_NONE, token, lo);
    }
    if (h->gradient) run_backward(h, z, x, token);
    hh_arena_reset(&be->scratch, mark);
    h->n = 0;
}

/* Rows of a tile and of a part, as scratch allows. */
static void choose_tiles(head *h) {
    size_t left = hh_cuda_scratch_left(h->be), kept = left / 32;
    size_t logits = hh_dtype_bytes(h->logits, h->stride), moved = hh_dtype_bytes(h->x.dtype, 2 * h->w.k + h->wt.k + 24);
    bool as_they_are = true; /* else every product converts weights in what is kept free */
    for (int p = 0; p < h->w.n_parts; p++) as_they_are = as_they_are && h->w.part[p].w.dtype == h->x.dtype;
    for (int p = 0; p < h->wt.n_parts; p++) as_they_are = as_they_are && h->wt.part[p].w.dtype == h->x.dtype;
    if (!as_they_are) kept = left / 4;
    int64_t rows = (int64_t)((left - kept) / (logits + moved)), of_teacher = h->teacher && h->gradient;
    if (!h->gradient && h->teacher) rows /= 2;
    h->part = of_teacher ? rows / 4 : rows;
    if (h->part > hh_cuda_head_part) h->part = hh_cuda_head_part;
    HH_ASSERT(h->part > 0);
    h->tile = h->gradient ? rows - of_teacher * h->part : h->part;
    if (h->tile >= h->part) h->tile -= h->tile % h->part;
    if (h->tile > hh_cuda_head_tile) h->tile = hh_cuda_head_tile;
    HH_ASSERT(h->tile > 0 && h->tile <= MAX_TILE);
}

static void run_head(head *h) {
    hh_backend *be = h->be;
    int64_t n = h->x.dim[0], active = 0;
    HH_ASSERT(h->x.dtype == be->activation && hh_tensor_row_count(h->x) == h->w.k);
    HH_ASSERT(!h->teacher || (h->wt.n == h->w.n && h->xt.dim[0] == n && h->xt.dtype == h->x.dtype));
    HH_ASSERT(!h->dw || (h->dw->n == h->w.n && h->dw->k == h->w.k));
    HH_ASSERT(!h->dx.data || (h->dx.dtype == h->x.dtype && h->dx.dim[0] == n));
    if (!n) return;
    h->gradient = h->scale != 0 && (h->dx.data || h->dw);
    h->logits = h->gradient ? h->x.dtype : HH_DTYPE_F32;
    h->stride = (h->w.n + 7) / 8 * 8;
    h->card_target = hh_cuda_list(be, h->target, n);
    h->card_weight = hh_cuda_list(be, h->row_weight, n);
    for (int64_t t = 0; t < n; t++) active += is_active(h, t);
    if (active < n) clear_inactive(h);
    if (!active) return;
    size_t room = hh_cuda_scratch_left(be) / 8 * 5;
    h->w = hh_cuda_linear_as(be, &h->w, h->x.dtype, room);
    if (h->teacher)
        h->wt = hh_cuda_linear_as(be, &h->wt, h->x.dtype, room > be->scratch.used ? room - be->scratch.used : 0);
    choose_tiles(h);
    for (int64_t t = 0; t < n; t++) {
        if (!is_active(h, t)) continue;
        h->token[h->n++] = (int32_t)t;
        if (h->n == h->tile) run_tile(h);
    }
    if (h->n) run_tile(h);
}

extern "C" void hh_ce_head_cuda(hh_backend *be, hh_tensor nll, int32_t *argmax, hh_tensor dx, const hh_linear *dw,
                                hh_tensor x, const hh_linear *w, const int32_t *target, double scale) {
    HH_ASSERT(target || scale == 0);
    hh_cuda_scratch_begin(be);
    head h;
    memset(&h, 0, sizeof h);
    h.be = be;
    h.nll = nll, h.dx = dx, h.x = x;
    h.w = *w;
    h.dw = dw;
    h.target = target;
    h.scale = scale;
    size_t bytes = (size_t)x.dim[0] * sizeof *argmax;
    if (argmax) h.card_argmax = (int32_t *)hh_cuda_scratch(be, bytes);
    run_head(&h);
    if (argmax) be->to_host(be, argmax, h.card_argmax, bytes);
}

extern "C" void hh_kl_head_cuda(hh_backend *be, hh_tensor kl, hh_tensor nll, hh_tensor dx, const hh_linear *dw,
                                hh_tensor x, const hh_linear *w, hh_tensor xt, const hh_linear *wt,
                                const int32_t *target, const float *row_weight, double scale, double ce_weight) {
    hh_cuda_scratch_begin(be);
    head h;
    memset(&h, 0, sizeof h);
    h.be = be;
    h.nll = nll, h.kl = kl, h.dx = dx, h.x = x, h.xt = xt;
    h.teacher = true;
    h.w = *w;
    h.wt = *wt;
    h.dw = dw;
    h.target = target;
    h.row_weight = row_weight;
    h.scale = scale;
    h.ce_weight = ce_weight;
    run_head(&h);
}
