/* Scores of one pair; equations in prober.h. Everything after the two base forwards works on stored streams: `clean`
 * and `corrupt` keep every head's output, `clean` also each block's input and attention output. */
#include "probe/prober.h"

#include "base/progress.h"
#include "tensor/mirror.h"

#include <math.h>
#include <string.h>

/* What the base forwards leave behind, [L] tensors each. */
typedef struct trace {
    hh_tensor *heads;     /* [T, H*D] what W_O reads */
    hh_tensor *input;     /* [T, C] residual stream before the block; clean only */
    hh_tensor *attention; /* [T, C] W_O's product; clean only */
} trace;

struct hh_prober {
    const hh_model *m;
    hh_backend *be;
    int64_t L, H, C, D, max_tokens, max_answer;
    hh_run *keep, *run; /* the clean forward with its activations; everything else */
    trace clean, corrupt;
    hh_tensor rows, final; /* [L*H*A, C], [max(T, rows of one push), C]: receivers' streams, and what the head reads */
    hh_tensor stream, mixed, product; /* [T, C], [T or H*A, H*D], [T or H*A, C] */
    hh_tensor patched;                /* [L*A, H*D]: known heads' new outputs at the answer's rows */
    hh_tensor right_row, wrong_row;   /* [A, C] rows of the head that the readout needs */
    hh_tensor nll;                    /* [rows of one push] */
    hh_tensor dfinal;                 /* [T, C] */
    hh_tensor gradient;               /* [L*H] sums of a backward */
    hh_arena arena;
    /* what the CPU reads and writes */
    int32_t *ids, *target, *repeat;   /* [T]; [rows of one push]; [H*A] 0, 1, .. A-1, 0, 1, .. */
    double *weight;                   /* [A] lambda^j / Z */
    hh_real *right, *wrong, *numbers; /* [A, C] twice; [rows of one push, C] or [L*H] */
    /* the loaded pair */
    int64_t T, row0, A; /* tokens; first row that predicts an answer token; answer tokens */
    bool has_wrong;
    double m_clean, m_corrupt;
    const bool *known; /* see recompute_known */
};

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Rows that one push may hold: hh_forward_mlp works on at most max_tokens rows. */
static int64_t push_rows(const hh_prober *p) {
    return p->max_tokens;
}

static hh_tensor matrix(const hh_prober *p, hh_arena *a, int64_t rows, int64_t columns) {
    return hh_tensor_place_2d(a, p->be->activation, rows, columns);
}

static void place_trace(trace *t, const hh_prober *p, hh_arena *a, bool streams) {
    for (int64_t l = 0; l < p->L; l++) {
        t->heads[l] = matrix(p, a, p->max_tokens, p->H * p->D);
        if (!streams) continue;
        t->input[l] = matrix(p, a, p->max_tokens, p->C);
        t->attention[l] = matrix(p, a, p->max_tokens, p->C);
    }
}

static void place(hh_prober *p, hh_arena *a) {
    const int64_t T = p->max_tokens, A = p->max_answer, HD = p->H * p->D, most = max64(T, p->H * A);
    place_trace(&p->clean, p, a, true);
    place_trace(&p->corrupt, p, a, false);
    p->rows = matrix(p, a, p->L * p->H * A, p->C);
    p->final = matrix(p, a, push_rows(p), p->C);
    p->stream = matrix(p, a, T, p->C);
    p->mixed = matrix(p, a, most, HD);
    p->product = matrix(p, a, most, p->C);
    p->patched = matrix(p, a, p->L * A, HD);
    p->right_row = matrix(p, a, A, p->C);
    p->wrong_row = matrix(p, a, A, p->C);
    p->nll = hh_tensor_place_1d(a, HH_DTYPE_REAL, push_rows(p));
    p->dfinal = matrix(p, a, T, p->C);
    p->gradient = hh_tensor_place_1d(a, HH_DTYPE_REAL, p->L * p->H);
}

static void alloc_trace(trace *t, int64_t n_layers) {
    t->heads = hh_alloc(sizeof(hh_tensor) * (size_t)n_layers);
    t->input = hh_alloc(sizeof(hh_tensor) * (size_t)n_layers);
    t->attention = hh_alloc(sizeof(hh_tensor) * (size_t)n_layers);
}

static void free_trace(trace *t) {
    hh_free(t->heads);
    hh_free(t->input);
    hh_free(t->attention);
}

/* The CPU's own arrays. */
static void alloc_lists(hh_prober *p) {
    const int64_t A = p->max_answer, C = p->C;
    alloc_trace(&p->clean, p->L);
    alloc_trace(&p->corrupt, p->L);
    p->ids = hh_alloc(sizeof(int32_t) * (size_t)p->max_tokens);
    p->target = hh_alloc(sizeof(int32_t) * (size_t)push_rows(p));
    p->repeat = hh_alloc(sizeof(int32_t) * (size_t)(p->H * A));
    p->weight = hh_alloc(sizeof(double) * (size_t)A);
    p->right = hh_alloc(sizeof(hh_real) * (size_t)(A * C));
    p->wrong = hh_alloc(sizeof(hh_real) * (size_t)(A * C));
    p->numbers = hh_alloc(sizeof(hh_real) * (size_t)max64(push_rows(p) * C, p->L * p->H));
}

static hh_code check_dense(const hh_model *m, hh_error *err) {
    for (int64_t l = 0; l < m->config.n_layers; l++)
        if (!m->w.layer[l].dense)
            return hh_fail(err, HH_EUNSUPPORTED,
                           "%s: layer %lld is already a hybrid layer; heads are probed in the teacher",
                           m->path ? m->path : "the model", (long long)l);
    return HH_OK;
}

hh_code hh_prober_new(hh_prober **out, const hh_model *m, int64_t max_tokens, int64_t max_answer, hh_error *err) {
    const hh_config *c = &m->config;
    *out = NULL;
    HH_TRY(check_dense(m, err));
    hh_prober *p = hh_alloc(sizeof *p);
    *p = (hh_prober){.m = m,
                     .be = m->be,
                     .L = c->n_layers,
                     .H = c->n_heads,
                     .C = c->width,
                     .D = c->head_dim,
                     .max_tokens = max64(max_tokens, max_answer),
                     .max_answer = max_answer};
    alloc_lists(p);
    hh_arena count;
    hh_arena_init_counting(&count, "probe");
    place(p, &count);
    hh_code code;
    HH_TRY_GOTO(code, m->be->arena_init(m->be, &p->arena, "probe", count.used, err), failed);
    place(p, &p->arena);
    HH_TRY_GOTO(code, hh_run_new(&p->keep, m, p->max_tokens, 1, HH_RUN_TRAINING, err), failed);
    HH_TRY_GOTO(code, hh_run_new(&p->run, m, p->max_tokens, 1, HH_RUN_INFERENCE, err), failed);
    *out = p;
    return HH_OK;
failed:
    hh_prober_free(p);
    return code;
}

void hh_prober_free(hh_prober *p) {
    if (!p) return;
    hh_run_free(p->keep);
    hh_run_free(p->run);
    if (p->arena.base) p->be->arena_release(p->be, &p->arena);
    free_trace(&p->clean);
    free_trace(&p->corrupt);
    hh_free(p->ids);
    hh_free(p->target);
    hh_free(p->repeat);
    hh_free(p->weight);
    hh_free(p->right);
    hh_free(p->wrong);
    hh_free(p->numbers);
    hh_free(p);
}

static hh_tensor answer_rows(const hh_prober *p, hh_tensor t) {
    return hh_tensor_rows(t, p->row0, p->row0 + p->A);
}

static const hh_tensor *head_matrix(const hh_model *m) {
    return m->w.lm_head.data ? &m->w.lm_head : &m->w.embedding;
}

static void keep_clean(void *context, hh_point point, int64_t layer, hh_tensor t) {
    hh_prober *p = context;
    hh_tensor *to = point == HH_POINT_HEAD_OUTPUT        ? p->clean.heads
                    : point == HH_POINT_BLOCK_INPUT      ? p->clean.input
                    : point == HH_POINT_ATTENTION_OUTPUT ? p->clean.attention
                                                         : NULL;
    if (to) p->be->ops->copy(p->be, hh_tensor_rows(to[layer], 0, p->T), t.rank == 3 ? hh_tensor_join(t) : t);
}

static void keep_corrupt(void *context, hh_point point, int64_t layer, hh_tensor t) {
    hh_prober *p = context;
    if (point == HH_POINT_HEAD_OUTPUT)
        p->be->ops->copy(p->be, hh_tensor_rows(p->corrupt.heads[layer], 0, p->T), hh_tensor_join(t));
}

static double dot(const hh_real *a, const hh_real *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* P1, P2 for groups of A rows of the final norm's output. */
static void readout(hh_prober *p, hh_tensor final, int64_t n_groups, double *m) {
    const int64_t n = n_groups * p->A;
    if (!p->has_wrong) {
        for (int64_t i = 0; i < n; i++) p->target[i] = p->target[i % p->A];
        p->be->ops->ce_head(p->be, hh_tensor_rows(p->nll, 0, n), NULL, HH_NONE, NULL, final, &p->m->w.head, p->target,
                            0);
    }
    hh_tensor_to_host(p->be, p->numbers, p->has_wrong ? final : hh_tensor_rows(p->nll, 0, n));
    for (int64_t g = 0; g < n_groups; g++) {
        m[g] = 0;
        for (int64_t j = 0; j < p->A; j++) {
            const int64_t row = g * p->A + j;
            const hh_real *y = p->numbers + row * p->C;
            double value = p->has_wrong ? dot(y, p->right + j * p->C, p->C) - dot(y, p->wrong + j * p->C, p->C)
                                        : -(double)p->numbers[row];
            m[g] += p->weight[j] * value;
        }
    }
}

static hh_batch batch_of(const hh_prober *p, const hh_span *span) {
    return (hh_batch){.n_tokens = p->T, .n_spans = 1, .ids = p->ids, .span = span};
}

static hh_code base_forward(hh_prober *p, hh_run *run, hh_tap_fn *tap, const int32_t *prompt, const hh_probe_pair *pair,
                            double *m, hh_error *err) {
    memcpy(p->ids, prompt, sizeof(int32_t) * (size_t)pair->n_prompt);
    memcpy(p->ids + pair->n_prompt, pair->right, sizeof(int32_t) * (size_t)(pair->n_answer - 1));
    const hh_span span = {0, p->T, 0};
    const hh_batch batch = batch_of(p, &span);
    hh_tensor final;
    hh_run_set_tap(run, (hh_tap){tap, p});
    hh_code code = hh_forward(run, &batch, &final, err);
    hh_run_set_tap(run, (hh_tap){0});
    HH_TRY(code);
    readout(p, answer_rows(p, final), 1, m);
    if (!isfinite(*m))
        return hh_fail(err, HH_ENONFINITE, "the readout of a pair of %lld tokens is %g", (long long)p->T, *m);
    return HH_OK;
}

/* Rows of the head's matrix, for both sides. */
static void read_head_rows(hh_prober *p, hh_tensor rows, const int32_t *ids, hh_real *host) {
    rows = hh_tensor_rows(rows, 0, p->A);
    p->be->ops->embedding_fwd(p->be, rows, *head_matrix(p->m), ids);
    hh_tensor_to_host(p->be, host, rows);
}

hh_code hh_prober_load(hh_prober *p, const hh_probe_pair *pair, double *clean, double *corrupt, hh_error *err) {
    HH_ASSERT(pair->n_prompt > 0 && pair->n_answer > 0 && pair->n_answer <= p->max_answer);
    p->T = pair->n_prompt + pair->n_answer - 1;
    HH_ASSERT(p->T <= p->max_tokens);
    p->row0 = pair->n_prompt - 1;
    p->A = pair->n_answer;
    p->has_wrong = pair->wrong != NULL;
    double z = 0;
    for (int64_t j = 0; j < p->A; j++) z += p->weight[j] = pow(HH_PROBE_LAMBDA, (double)j);
    for (int64_t j = 0; j < p->A; j++) p->weight[j] /= z;
    for (int64_t i = 0; i < p->H * p->A; i++) p->repeat[i] = (int32_t)(i % p->A);
    read_head_rows(p, p->right_row, pair->right, p->right);
    if (p->has_wrong) read_head_rows(p, p->wrong_row, pair->wrong, p->wrong);
    memcpy(p->target, pair->right, sizeof(int32_t) * (size_t)p->A);
    /* the clean forward is last: ids stay those of x */
    HH_TRY(base_forward(p, p->run, keep_corrupt, pair->corrupt, pair, &p->m_corrupt, err));
    HH_TRY(base_forward(p, p->keep, keep_clean, pair->prompt, pair, &p->m_clean, err));
    *clean = p->m_clean;
    *corrupt = p->m_corrupt;
    return p->be->sync(p->be, err);
}

/* x += MLP(norm(x)) for any number of rows, in pieces that a run can hold. */
static void push_mlp(hh_prober *p, int64_t layer, hh_tensor x) {
    for (int64_t lo = 0; lo < x.dim[0]; lo += push_rows(p)) {
        int64_t hi = lo + push_rows(p) < x.dim[0] ? lo + push_rows(p) : x.dim[0];
        hh_forward_mlp(p->run, layer, hh_tensor_rows(x, lo, hi));
    }
}

/* m of every group of A rows of the last stream. */
static void read_groups(hh_prober *p, hh_tensor x, double *m) {
    const int64_t per = push_rows(p) / p->A, n = x.dim[0] / p->A;
    for (int64_t lo = 0; lo < n; lo += per) {
        int64_t hi = lo + per < n ? lo + per : n;
        hh_tensor final = hh_tensor_rows(p->final, 0, (hi - lo) * p->A);
        hh_forward_final(p->run, hh_tensor_rows(x, lo * p->A, hi * p->A), final);
        readout(p, final, hi - lo, m + lo);
    }
}

static double effect(const hh_prober *p, double m) {
    return (p->m_clean - m) / (p->m_clean - p->m_corrupt);
}

/* The same head of all rows of t [n, H*D]. */
static hh_tensor head_columns(const hh_prober *p, hh_tensor t, int64_t head) {
    return hh_tensor_columns(t, head * p->D, (head + 1) * p->D);
}

/* product[h*A + j] = W_O[:,h] (O_h(x') - O_h(x)) at answer row j. */
static hh_tensor head_differences(hh_prober *p, int64_t layer) {
    const hh_ops *op = p->be->ops;
    hh_tensor mixed = hh_tensor_rows(p->mixed, 0, p->H * p->A), product = hh_tensor_rows(p->product, 0, p->H * p->A);
    hh_tensor clean = answer_rows(p, p->clean.heads[layer]), corrupt = answer_rows(p, p->corrupt.heads[layer]);
    op->fill(p->be, mixed, 0);
    for (int64_t h = 0; h < p->H; h++) {
        hh_tensor to = head_columns(p, hh_tensor_rows(mixed, h * p->A, (h + 1) * p->A), h);
        op->copy(p->be, to, head_columns(p, corrupt, h));
        op->axpy(p->be, to, -1, head_columns(p, clean, h));
    }
    op->linear_fwd(p->be, product, mixed, &p->m->w.layer[layer].out, false);
    return product;
}

/* Adds the clean attention output to the streams of all heads of the layers below. */
static void add_attention(hh_prober *p, int64_t n, hh_tensor attention) {
    for (int64_t lo = 0; lo < n; lo += p->H * p->A) {
        hh_tensor repeated = hh_tensor_rows(p->product, 0, p->H * p->A);
        p->be->ops->gather_rows(p->be, repeated, attention, p->repeat);
        p->be->ops->axpy(p->be, hh_tensor_rows(p->rows, lo, lo + p->H * p->A), 1, repeated);
    }
}

void hh_prober_receivers(hh_prober *p, double *ie) {
    const hh_ops *op = p->be->ops;
    const int64_t per_layer = p->H * p->A;
    for (int64_t l = 0; l < p->L && !hh_interrupted(); l++) {
        /* rows in flight: the heads of all layers so far */
        hh_tensor attention = answer_rows(p, p->clean.attention[l]), x = hh_tensor_rows(p->stream, 0, p->A);
        hh_tensor here = hh_tensor_rows(p->rows, l * per_layer, (l + 1) * per_layer);
        add_attention(p, l * per_layer, attention);
        op->copy(p->be, x, answer_rows(p, p->clean.input[l]));
        op->axpy(p->be, x, 1, attention);
        op->gather_rows(p->be, here, x, p->repeat);
        op->axpy(p->be, here, 1, head_differences(p, l));
        push_mlp(p, l, hh_tensor_rows(p->rows, 0, (l + 1) * per_layer));
    }
    read_groups(p, hh_tensor_rows(p->rows, 0, p->L * per_layer), ie);
    for (int64_t i = 0; i < p->L * p->H; i++) ie[i] = effect(p, ie[i]);
}

/* dm/dfinal of the clean run: zero but at the answer's rows. */
static hh_tensor readout_gradient(hh_prober *p) {
    const hh_ops *op = p->be->ops;
    hh_tensor dfinal = hh_tensor_rows(p->dfinal, 0, p->T), rows = answer_rows(p, p->dfinal);
    hh_tensor plus = hh_tensor_rows(p->right_row, 0, p->A), minus = hh_tensor_rows(p->wrong_row, 0, p->A);
    if (!p->has_wrong) {
        hh_tensor final = hh_tensor_rows(p->final, 0, p->A), x = hh_tensor_rows(p->stream, 0, p->A);
        const int64_t last = p->L - 1;
        op->copy(p->be, x, answer_rows(p, p->clean.input[last]));
        op->axpy(p->be, x, 1, answer_rows(p, p->clean.attention[last]));
        push_mlp(p, last, x);
        hh_forward_final(p->run, x, final);
        plus = hh_tensor_rows(p->product, 0, p->A);
        op->ce_head(p->be, hh_tensor_rows(p->nll, 0, p->A), NULL, plus, NULL, final, &p->m->w.head, p->target, -1);
    }
    op->fill(p->be, dfinal, 0);
    for (int64_t j = 0; j < p->A; j++) {
        hh_tensor row = hh_tensor_rows(rows, j, j + 1);
        op->axpy(p->be, row, p->weight[j], hh_tensor_rows(plus, j, j + 1));
        if (p->has_wrong) op->axpy(p->be, row, -p->weight[j], hh_tensor_rows(minus, j, j + 1));
    }
    return dfinal;
}

static void add_gradient(void *context, hh_point point, int64_t layer, hh_tensor dheads) {
    hh_prober *p = context;
    if (point != HH_POINT_HEAD_OUTPUT) return;
    p->be->ops->head_dot(p->be, hh_tensor_rows(p->gradient, layer * p->H, (layer + 1) * p->H), dheads,
                         hh_tensor_split(hh_tensor_rows(p->corrupt.heads[layer], 0, p->T), p->H),
                         hh_tensor_split(hh_tensor_rows(p->clean.heads[layer], 0, p->T), p->H));
}

void hh_prober_attribution(hh_prober *p, double *direct, double *total) {
    const hh_span span = {0, p->T, 0};
    const hh_batch batch = batch_of(p, &span);
    for (int pass = 0; pass < 2; pass++) {
        const hh_backward_options options = {.tap = {add_gradient, p}, .detach_attention = pass == 0};
        hh_backward(p->keep, &batch, readout_gradient(p), NULL, &options);
        double *ie = pass == 0 ? direct : total;
        hh_tensor_to_host(p->be, p->numbers, p->gradient);
        for (int64_t i = 0; i < p->L * p->H; i++) ie[i] = -(double)p->numbers[i] / (p->m_clean - p->m_corrupt);
    }
}

/* In a layer of known heads: they keep what they have just computed, and it is noted at the answer's rows; all others
 * are clean. */
static void recompute_known(void *context, hh_point point, int64_t layer, hh_tensor heads) {
    hh_prober *p = context;
    if (point != HH_POINT_HEAD_OUTPUT) return;
    const hh_ops *op = p->be->ops;
    hh_tensor here = hh_tensor_join(heads), clean = hh_tensor_rows(p->clean.heads[layer], 0, p->T);
    for (int64_t h = 0; h < p->H; h++)
        if (!p->known[layer * p->H + h]) op->copy(p->be, head_columns(p, here, h), head_columns(p, clean, h));
    op->copy(p->be, hh_tensor_rows(p->patched, layer * p->A, (layer + 1) * p->A),
             hh_tensor_rows(here, p->row0, p->row0 + p->A));
}

static bool any_known(const hh_prober *p, const bool *known, int64_t layer) {
    for (int64_t h = 0; h < p->H; h++)
        if (known[layer * p->H + h]) return true;
    return false;
}

/* The stream behind layer's attention when head `head` had its corrupt output at all positions. */
static hh_tensor stream_with_corrupt_head(hh_prober *p, int64_t layer, int64_t head) {
    const hh_ops *op = p->be->ops;
    hh_tensor x = hh_tensor_rows(p->stream, 0, p->T), mixed = hh_tensor_rows(p->mixed, 0, p->T);
    op->copy(p->be, mixed, hh_tensor_rows(p->clean.heads[layer], 0, p->T));
    op->copy(p->be, head_columns(p, mixed, head),
             head_columns(p, hh_tensor_rows(p->corrupt.heads[layer], 0, p->T), head));
    op->linear_fwd(p->be, x, mixed, &p->m->w.layer[layer].out, false);
    op->axpy(p->be, x, 1, hh_tensor_rows(p->clean.input[layer], 0, p->T));
    return x;
}

/* The readout when known heads above `layer` have their patched outputs and everything else is clean. */
static double read_patched(hh_prober *p, const bool *known, int64_t first) {
    const hh_ops *op = p->be->ops;
    hh_tensor x = hh_tensor_rows(p->stream, 0, p->A), product = hh_tensor_rows(p->product, 0, p->A);
    op->copy(p->be, x, answer_rows(p, p->clean.input[first]));
    for (int64_t k = first; k < p->L; k++) {
        if (any_known(p, known, k)) {
            op->linear_fwd(p->be, product, hh_tensor_rows(p->patched, k * p->A, (k + 1) * p->A), &p->m->w.layer[k].out,
                           false);
            op->axpy(p->be, x, 1, product);
        } else {
            op->axpy(p->be, x, 1, answer_rows(p, p->clean.attention[k]));
        }
        push_mlp(p, k, x);
    }
    double m;
    read_groups(p, x, &m);
    return m;
}

double hh_prober_sender(hh_prober *p, const bool *known, int64_t layer, int64_t head) {
    const hh_ops *op = p->be->ops;
    int64_t first = p->L, last = -1;
    for (int64_t k = layer + 1; k < p->L; k++)
        if (any_known(p, known, k)) {
            if (first == p->L) first = k;
            last = k;
        }
    if (last < 0) return 0;
    const hh_span span = {0, p->T, 0};
    const hh_batch batch = batch_of(p, &span);
    p->known = known;
    hh_tensor x = stream_with_corrupt_head(p, layer, head), product = hh_tensor_rows(p->product, 0, p->T);
    hh_run_set_tap(p->run, (hh_tap){recompute_known, p});
    for (int64_t k = layer; k <= last && !hh_interrupted(); k++) {
        if (k > layer && any_known(p, known, k)) {
            hh_forward_attention(p->run, &batch, k, x, product);
            op->axpy(p->be, x, 1, product);
        } else if (k > layer) {
            op->axpy(p->be, x, 1, hh_tensor_rows(p->clean.attention[k], 0, p->T));
        }
        if (k < last) push_mlp(p, k, x);
    }
    hh_run_set_tap(p->run, (hh_tap){0});
    return effect(p, read_patched(p, known, first));
}
