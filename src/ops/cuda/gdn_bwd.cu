/* Gated DeltaNet's backward: asserts, the list of chunks, and the walk over tiles of scratch; see
 * gdn_bwd.cuh. */
#include "ops/cuda/gdn_bwd.cuh"

static bool is_like(hh_tensor t, hh_dtype dtype, hh_tensor model) {
    if (t.dtype != dtype || t.rank != model.rank) return false;
    for (int i = 0; i < t.rank; i++)
        if (t.dim[i] != model.dim[i]) return false;
    return true;
}

static gdn_rows rows_of(hh_tensor t) {
    gdn_rows r;
    memset(&r, 0, sizeof r);
    r.at = t.data;
    r.stride = t.stride;
    return r;
}

/* One block, a warp a span: where its chunks stand. */
static __global__ void list_chunks(gdn_bwd_chunk *chunk, int64_t *span_chunk, const hh_span *span, int64_t n_spans) {
    const int lane = threadIdx.x % 32;
    for (int64_t s = threadIdx.x / 32; s <= n_spans; s += blockDim.x / 32) {
        int64_t first = 0;
        for (int64_t e = lane; e < s; e += 32) first += (span[e].hi - span[e].lo + GDN_N - 1) / GDN_N;
        for (int o = 16; o; o >>= 1) first += __shfl_xor_sync(0xffffffffu, first, o);
        if (lane == 0) span_chunk[s] = first;
        if (s == n_spans) break;
        for (int64_t t = span[s].lo + lane * GDN_N, c = first + lane; t < span[s].hi; t += 32 * GDN_N, c += 32) {
            chunk[c].t = t;
            chunk[c].n = (int32_t)(span[s].hi - t < GDN_N ? span[s].hi - t : GDN_N);
            chunk[c].span = (int32_t)s;
        }
    }
}

static void run_tiles(hh_backend *be, gdn_bwd *x, bool fast, const hh_span *span, int64_t chunks) {
    x->scratch_bytes = fast ? gdn_bwd_scratch_fast(x->D) : gdn_bwd_scratch_plain(x->D);
    hh_cuda_scratch_begin(be);
    gdn_bwd_chunk *list = (gdn_bwd_chunk *)hh_cuda_scratch(be, (size_t)chunks * sizeof *list);
    int64_t *span_chunk = (int64_t *)hh_cuda_scratch(be, (size_t)(x->n_spans + 1) * sizeof *span_chunk);
    for (int i = 0; i < 2; i++)
        x->carry[i] = (float *)hh_cuda_scratch(be, (size_t)(x->heads * x->D * x->D) * sizeof(float));
    x->chunk = list;
    x->span_chunk = span_chunk;
    hh_cuda_launch(be, "gdn_bwd", list_chunks, dim3(1), dim3(1024), 0, list, span_chunk,
                   hh_cuda_list(be, span, x->n_spans), x->n_spans);
    if (fast) {
        x->window_chunks = gdn_bwd_choose_window(be, span, x->n_spans, x->heads, x->D);
        x->window_bytes = gdn_bwd_window_bytes(x->D);
        const int64_t windows = x->window_chunks ? hh_ceil_div(chunks, x->window_chunks) : 0;
        x->windows = (char *)hh_cuda_scratch(be, (size_t)(windows * x->heads * x->window_bytes));
    }
    const int64_t fit = (int64_t)hh_cuda_scratch_left(be) / 256 * 256 / (x->heads * x->scratch_bytes);
    HH_ASSERT(fit > 0);
    const int64_t most = fit < chunks ? fit : chunks;
    x->scratch = (char *)hh_cuda_scratch(be, (size_t)(most * x->heads * x->scratch_bytes));
    for (x->last = chunks; x->last > 0; x->last = x->first) {
        x->first = x->last > most ? x->last - most : 0;
        if (fast) {
            gdn_bwd_prepare(be, x);
            gdn_bwd_scan(be, x);
            gdn_bwd_finish(be, x);
        } else {
            gdn_bwd_tile_plain(be, x);
        }
        float *before = x->carry[1];
        x->carry[1] = x->carry[0];
        x->carry[0] = before;
    }
}

extern "C" void hh_gdn_bwd_cuda(hh_backend *be, hh_tensor dq, hh_tensor dk, hh_tensor dv, hh_tensor dg, hh_tensor dbeta,
                                hh_tensor do_, hh_tensor saved, hh_tensor q, hh_tensor k, hh_tensor v, hh_tensor g,
                                hh_tensor beta, const hh_tensor *dstate, const hh_span *span, int64_t n_spans,
                                hh_gdn_mode mode) {
    const int64_t heads = q.dim[1], D = q.dim[2];
    const hh_dtype T = be->activation;
    (void)mode; /* chunks of tokens and single tokens have one gradient */
    HH_ASSERT(q.rank == 3 && q.dtype == T && is_like(k, T, q) && is_like(v, T, q) && is_like(do_, T, q));
    HH_ASSERT(is_like(dq, T, q) && is_like(dk, T, q) && is_like(dv, T, q) && D <= HH_GDN_MAX_DIM);
    HH_ASSERT(g.rank == 2 && g.dtype == HH_DTYPE_F32 && g.dim[0] == q.dim[0] && g.dim[1] == heads);
    HH_ASSERT(is_like(beta, HH_DTYPE_F32, g) && is_like(dg, HH_DTYPE_F32, g) && is_like(dbeta, HH_DTYPE_F32, g));
    HH_ASSERT(hh_are_spans(span, n_spans, q.dim[0]));
    const int64_t chunks = hh_gdn_chunk_count(span, n_spans);
    for (int64_t s = 0; dstate && s < n_spans; s++)
        HH_ASSERT(dstate[s].dtype == HH_DTYPE_F32 && dstate[s].dim[0] == heads && dstate[s].dim[1] == D);
    if (!chunks || !heads) return;
    HH_ASSERT(saved.data && saved.dtype == T && saved.dim[0] >= chunks);
    gdn_bwd x;
    memset(&x, 0, sizeof x);
    x.dq = rows_of(dq), x.dk = rows_of(dk), x.dv = rows_of(dv), x.dg = rows_of(dg), x.dbeta = rows_of(dbeta);
    x.do_ = rows_of(do_), x.saved = rows_of(saved), x.q = rows_of(q), x.k = rows_of(k), x.v = rows_of(v);
    x.g = rows_of(g), x.beta = rows_of(beta);
    x.heads = heads;
    x.D = D;
    x.n_spans = n_spans;
    x.dstate = hh_cuda_list(be, dstate, n_spans);
    bool fast = T == HH_DTYPE_BF16 && (D == 64 || D == 128) && hh_cuda_of(be)->arch >= 90;
    const hh_tensor wide[] = {dq, dk, dv, do_, saved, q, k, v};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) fast = fast && hh_gdn_is_aligned(wide[i]);
    run_tiles(be, &x, fast, span, chunks);
}
