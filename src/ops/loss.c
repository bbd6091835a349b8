/* The losses' tiles, and the reference row kernels; see loss.h. */
#include "ops/loss.h"

#include "base/parallel.h"

#include <math.h>
#include <string.h>

enum { MAX_TILE = 512 };

/* One call of either head. */
typedef struct head {
    hh_backend *be;
    const hh_loss_rows *rows;
    hh_tensor nll, kl, dx, x, xt;
    int32_t *argmax;
    const hh_linear *w, *wt, *dw;
    const int32_t *target;
    const float *row_weight;
    double scale, ce_weight;
    /* the present tile */
    int64_t n;
    int32_t token[MAX_TILE];
    hh_tensor z, zt;
} head;

static void put(hh_tensor t, int64_t i, hh_real value) {
    if (t.data) ((hh_real *)t.data)[i] = value;
}

static int32_t target_of(const head *h, int64_t t) {
    return h->target ? h->target[t] : -1;
}

static double weight_of(const head *h, int64_t t) {
    return h->row_weight ? (double)h->row_weight[t] : 1.0;
}

static bool is_active(const head *h, int64_t t) {
    if (h->wt) return weight_of(h, t) != 0 || target_of(h, t) >= 0;
    return !h->target || h->target[t] >= 0;
}

/* As many rows as half of the scratch holds; the products need some too. */
static int64_t choose_tile(const head *h) {
    size_t row = (size_t)(h->wt ? 2 : 1) * (size_t)(h->w->n + 2 * h->w->k) * sizeof(hh_real);
    size_t n = (h->be->scratch.size - h->be->scratch.used) / 2 / row;
    HH_ASSERT(n > 0);
    return n < MAX_TILE ? (int64_t)n : MAX_TILE;
}

static void run_row(void *context, int64_t i, int thread) {
    const head *h = context;
    (void)thread;
    int64_t t = h->token[i];
    int32_t target = target_of(h, t);
    HH_ASSERT(target < h->w->n);
    hh_real nll = 0, kl = 0;
    if (h->wt) {
        double w = weight_of(h, t);
        hh_real ce_scale = target >= 0 ? (hh_real)(h->scale * h->ce_weight) : 0;
        h->rows->kl(hh_row(h->z, i), hh_row(h->zt, i), h->w->n, target, (hh_real)(h->scale * w), ce_scale, &kl, &nll);
        /* A row that is there for its target alone has a gradient of 0 when ce_weight is 0. */
        if (h->scale != 0 && w == 0 && ce_scale == 0) memset(hh_row(h->z, i), 0, (size_t)h->w->n * sizeof(hh_real));
        put(h->kl, t, (hh_real)(w * (double)kl));
    } else {
        h->rows->ce(hh_row(h->z, i), h->w->n, target, (hh_real)h->scale, &nll, h->argmax ? &h->argmax[t] : NULL);
    }
    put(h->nll, t, nll);
}

/* The tile's rows of t: a view where they lie together, else gathered into scratch. */
static hh_tensor tile_of(head *h, hh_tensor t) {
    int64_t first = h->token[0];
    if (h->token[h->n - 1] - first == h->n - 1) return hh_tensor_rows(t, first, first + h->n);
    hh_tensor g = hh_tensor_place_2d(&h->be->scratch, HH_DTYPE_REAL, h->n, hh_tensor_row_count(t));
    h->be->ops->gather_rows(h->be, g, t, h->token);
    return g;
}

static void run_tile(head *h) {
    hh_backend *be = h->be;
    const hh_ops *ops = be->ops;
    size_t mark = be->scratch.used;
    hh_tensor x = tile_of(h, h->x);
    h->z = hh_tensor_place_2d(&be->scratch, HH_DTYPE_REAL, h->n, h->w->n);
    ops->linear_fwd(be, h->z, x, h->w, false);
    if (h->wt) {
        hh_tensor xt = tile_of(h, h->xt);
        h->zt = hh_tensor_place_2d(&be->scratch, HH_DTYPE_REAL, h->n, h->wt->n);
        ops->linear_fwd(be, h->zt, xt, h->wt, false);
    }
    hh_parallel_for(be->n_threads, h->n, run_row, h);
    if (h->scale != 0 && h->dx.data) { /* B3 */
        hh_tensor dx = hh_tensor_place_2d(&be->scratch, HH_DTYPE_REAL, h->n, h->w->k);
        ops->linear_bwd_input(be, dx, h->z, h->w, false);
        for (int64_t i = 0; i < h->n; i++)
            memcpy(hh_row(h->dx, h->token[i]), hh_row(dx, i), (size_t)h->w->k * sizeof(hh_real));
    }
    if (h->scale != 0 && h->dw) ops->linear_bwd_weight(be, h->dw, h->z, x);
    hh_arena_reset(&be->scratch, mark);
    h->n = 0;
}

static void run_head(head *h) {
    HH_ASSERT(hh_tensor_row_count(h->x) == h->w->k);
    HH_ASSERT(!h->wt || (h->wt->n == h->w->n && h->xt.dim[0] == h->x.dim[0]));
    HH_ASSERT(!h->dw || (h->dw->n == h->w->n && h->dw->k == h->w->k));
    int64_t tile = choose_tile(h);
    for (int64_t t = 0; t < h->x.dim[0]; t++) {
        if (is_active(h, t)) {
            h->token[h->n++] = (int32_t)t;
            if (h->n == tile) run_tile(h);
            continue;
        }
        put(h->nll, t, 0);
        put(h->kl, t, 0);
        if (h->argmax) h->argmax[t] = -1;
        if (h->scale != 0 && h->dx.data) memset(hh_row(h->dx, t), 0, (size_t)h->w->k * sizeof(hh_real));
    }
    if (h->n) run_tile(h);
}

void hh_ce_head_by(hh_backend *be, hh_tensor nll, int32_t *argmax, hh_tensor dx, const hh_linear *dw, hh_tensor x,
                   const hh_linear *w, const int32_t *target, double scale, const hh_loss_rows *rows) {
    HH_ASSERT(target || scale == 0);
    head h = {.be = be, .rows = rows, .nll = nll, .dx = dx, .x = x, .argmax = argmax, .w = w, .dw = dw};
    h.target = target;
    h.scale = scale;
    run_head(&h);
}

void hh_kl_head_by(hh_backend *be, hh_tensor kl, hh_tensor nll, hh_tensor dx, const hh_linear *dw, hh_tensor x,
                   const hh_linear *w, hh_tensor xt, const hh_linear *wt, const int32_t *target,
                   const float *row_weight, double scale, double ce_weight, const hh_loss_rows *rows) {
    head h = {.be = be, .rows = rows, .nll = nll, .kl = kl, .dx = dx, .x = x, .xt = xt, .w = w, .wt = wt, .dw = dw};
    h.target = target;
    h.row_weight = row_weight;
    h.scale = scale;
    h.ce_weight = ce_weight;
    run_head(&h);
}

/* The reference row kernels keep their sums in double: they are the oracle of the float ones too. */
static double log_sum_exp(const hh_real *z, int64_t V, int32_t *argmax) {
    int64_t best = 0;
    for (int64_t v = 1; v < V; v++)
        if (z[v] > z[best]) best = v;
    double s = 0, top = (double)z[best];
    for (int64_t v = 0; v < V; v++) s += exp((double)z[v] - top);
    if (argmax) *argmax = (int32_t)best;
    return top + log(s);
}

static void ce_row(hh_real *z, int64_t V, int32_t target, hh_real scale, hh_real *nll, int32_t *argmax) {
    double lse = log_sum_exp(z, V, argmax);
    *nll = target >= 0 ? (hh_real)(lse - (double)z[target]) : 0; /* F1 */
    if (scale == 0) return;
    for (int64_t v = 0; v < V; v++) z[v] = scale * (hh_real)exp((double)z[v] - lse); /* B1 */
    z[target] -= scale;
}

static void kl_row(hh_real *z, const hh_real *zt, int64_t V, int32_t target, hh_real kl_scale, hh_real ce_scale,
                   hh_real *kl, hh_real *nll) {
    double lse = log_sum_exp(z, V, NULL), lse_t = log_sum_exp(zt, V, NULL), sum = 0;
    *nll = target >= 0 ? (hh_real)(lse - (double)z[target]) : 0; /* F1 */
    bool gradient = kl_scale != 0 || ce_scale != 0;
    for (int64_t v = 0; v < V; v++) {
        double log_p = (double)z[v] - lse, log_pt = (double)zt[v] - lse_t, pt = exp(log_pt);
        sum += pt * (log_pt - log_p); /* F2 */
        if (gradient) {
            double p = exp(log_p);
            z[v] = (hh_real)((double)kl_scale * (p - pt) + (double)ce_scale * p); /* B2 */
        }
    }
    if (gradient && target >= 0) z[target] -= ce_scale;
    *kl = (hh_real)sum;
}

static const hh_loss_rows reference_rows = {.ce = ce_row, .kl = kl_row};

void hh_ce_head_reference(hh_backend *be, hh_tensor nll, int32_t *argmax, hh_tensor dx, const hh_linear *dw,
                          hh_tensor x, const hh_linear *w, const int32_t *target, double scale) {
    hh_ce_head_by(be, nll, argmax, dx, dw, x, w, target, scale, &reference_rows);
}

void hh_kl_head_reference(hh_backend *be, hh_tensor kl, hh_tensor nll, hh_tensor dx, const hh_linear *dw, hh_tensor x,
                          const hh_linear *w, hh_tensor xt, const hh_linear *wt, const int32_t *target,
                          const float *row_weight, double scale, double ce_weight) {
    hh_kl_head_by(be, kl, nll, dx, dw, x, w, xt, wt, target, row_weight, scale, ce_weight, &reference_rows);
}

typedef struct mse_job {
    hh_tensor dy, y, target;
    double scale;
    int64_t step; /* rows of an item */
    double *sum;  /* of each item */
} mse_job;

static double mse_row(const mse_job *j, int64_t t) {
    const hh_real *y = hh_row(j->y, t), *target = hh_row(j->target, t);
    int64_t n = hh_tensor_row_count(j->y);
    double s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < n; i++) s += (double)(y[i] - target[i]) * (double)(y[i] - target[i]);
    if (j->dy.data) {
        hh_real *dy = hh_row(j->dy, t), twice = (hh_real)(2 * j->scale);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) dy[i] = twice * (y[i] - target[i]); /* B4 */
    }
    return s;
}

static void mse_rows(void *context, int64_t item, int thread) {
    const mse_job *j = context;
    (void)thread;
    int64_t lo = item * j->step, hi = lo + j->step < j->y.dim[0] ? lo + j->step : j->y.dim[0];
    j->sum[item] = 0;
    for (int64_t t = lo; t < hi; t++) j->sum[item] += mse_row(j, t);
}

void hh_mse_reference(hh_backend *be, hh_tensor loss, hh_tensor dy, hh_tensor y, hh_tensor target, double scale) {
    HH_ASSERT(y.dtype == HH_DTYPE_REAL && target.dtype == HH_DTYPE_REAL && loss.dtype == HH_DTYPE_REAL);
    HH_ASSERT(y.dim[0] == target.dim[0] && hh_tensor_row_count(y) == hh_tensor_row_count(target));
    HH_ASSERT(!dy.data || (dy.dim[0] == y.dim[0] && hh_tensor_row_count(dy) == hh_tensor_row_count(y)));
    size_t mark = be->scratch.used;
    int64_t row = hh_tensor_row_count(y);
    mse_job j = {.dy = dy, .y = y, .target = target, .scale = scale, .step = row && row < 16384 ? 16384 / row : 1};
    int64_t items = (y.dim[0] + j.step - 1) / j.step;
    j.sum = hh_arena_alloc(&be->scratch, (size_t)items * sizeof(double));
    hh_parallel_for(be->n_threads, items, mse_rows, &j);
    double s = 0;
    for (int64_t i = 0; i < items; i++) s += j.sum[i];
    *(hh_real *)loss.data = (hh_real)((double)*(hh_real *)loss.data + scale * s); /* F4 */
    hh_arena_reset(&be->scratch, mark);
}
