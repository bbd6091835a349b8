/* Every op twice; see twice.h. */
#include "ops/twice.h"

#include "ops/each.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Relative distances (of a tensor's norm) that rounding explains. */
#define ALLOWED_F32  1e-3
#define ALLOWED_BF16 4e-2

/* What a backend gets; its op table comes first, so that be->ops leads here. */
typedef struct twice {
    hh_ops ops;
    const hh_ops *inner;
    hh_backend *cpu;
    hh_error fault;
    hh_backend_arena_fn *arena_init;
    hh_backend_sync_fn *sync;
    hh_backend_close_fn *close;
} twice;

/* A tensor that the call was given, and the CPU's. */
typedef struct copied {
    struct copied *next;
    const char *name; /* of the argument */
    hh_tensor theirs, ours;
} copied;

/* Something behind a pointer that was copied: the CPU's, by the caller's. */
typedef struct pointed {
    struct pointed *next;
    const void *theirs;
    void *ours;
} pointed;

typedef struct call {
    hh_backend *be;
    const char *op;
    int64_t n_spans; /* of arrays that have one entry a span */
    copied *tensors;
    pointed *pointers;
} call;

static twice *twice_of(hh_backend *be) {
    return (twice *)(void *)(uintptr_t)be->ops;
}

/* -- copies -- */

/* The rows of t, one behind another, as they are stored. */
static void read_rows(hh_backend *be, char *out, hh_tensor t) {
    const int64_t row = hh_tensor_row_count(t), rows = t.dim[0];
    const size_t bytes = hh_dtype_bytes(t.dtype, row), step = hh_dtype_bytes(t.dtype, t.stride);
    if (hh_tensor_is_dense(t)) {
        be->to_host(be, out, t.data, hh_tensor_bytes(t));
        return;
    }
    const size_t all = (size_t)(rows - 1) * step + bytes; /* one transfer, with what lies between */
    char *raw = hh_alloc_unguarded(all);
    be->to_host(be, raw, t.data, all);
    for (int64_t r = 0; r < rows; r++) memcpy(out + (size_t)r * bytes, raw + (size_t)r * step, bytes);
    hh_free(raw);
}

/* A dense tensor of the host: hh_real for float types, else as it is. */
static hh_tensor copy_tensor(hh_backend *be, hh_tensor t) {
    const int64_t n = hh_tensor_count(t);
    char *raw = hh_alloc_unguarded(hh_tensor_bytes(t));
    read_rows(be, raw, t);
    hh_tensor out = t;
    out.stride = t.rank == 1 ? 1 : hh_tensor_row_count(t);
    out.data = raw;
    if (!hh_dtype_is_float(t.dtype) || t.dtype == HH_DTYPE_REAL) return out;
    out.dtype = HH_DTYPE_REAL;
    out.data = hh_alloc_unguarded((size_t)n * sizeof(hh_real));
    hh_dequantise(t.dtype, raw, n, out.data);
    hh_free(raw);
    return out;
}

static bool same_view(hh_tensor a, hh_tensor b) {
    return a.data == b.data && a.dtype == b.dtype && a.stride == b.stride && !memcmp(a.dim, b.dim, sizeof a.dim);
}

/* The CPU's tensor for t: arguments that are one tensor stay one. */
static hh_tensor our_tensor(call *c, const char *name, hh_tensor t) {
    if (!t.data || !hh_tensor_count(t)) return t;
    for (copied *k = c->tensors; k; k = k->next)
        if (same_view(k->theirs, t)) {
            hh_tensor ours = k->ours;
            ours.rank = t.rank;
            return ours;
        }
    copied *k = hh_alloc_unguarded(sizeof *k);
    *k = (copied){c->tensors, name, t, copy_tensor(c->be, t)};
    c->tensors = k;
    return k->ours;
}

static void *find_pointed(const call *c, const void *theirs) {
    for (pointed *p = c->pointers; p; p = p->next)
        if (p->theirs == theirs) return p->ours;
    return NULL;
}

static void *add_pointed(call *c, const void *theirs, size_t bytes) {
    pointed *p = hh_alloc_unguarded(sizeof *p);
    *p = (pointed){c->pointers, theirs, hh_alloc_unguarded(bytes)};
    memcpy(p->ours, theirs, bytes);
    c->pointers = p;
    return p->ours;
}

static const hh_linear *our_linear(call *c, const char *name, const hh_linear *w) {
    hh_linear *ours = w ? find_pointed(c, w) : NULL;
    if (!w || ours) return ours;
    ours = add_pointed(c, w, sizeof *w);
    for (int p = 0; p < w->n_parts; p++) {
        ours->part[p].w = our_tensor(c, name, w->part[p].w);
        ours->part[p].bias = our_tensor(c, name, w->part[p].bias);
    }
    return ours;
}

static const hh_kv *our_kv(call *c, const char *name, const hh_kv *kv) {
    hh_kv *ours = kv ? find_pointed(c, kv) : NULL;
    if (!kv || ours) return ours;
    ours = add_pointed(c, kv, (size_t)c->n_spans * sizeof *kv);
    for (int64_t s = 0; s < c->n_spans; s++) {
        ours[s].k = our_tensor(c, name, kv[s].k);
        ours[s].v = our_tensor(c, name, kv[s].v);
    }
    return ours;
}

static const hh_tensor *our_tensors(call *c, const char *name, const hh_tensor *t) {
    hh_tensor *ours = t ? find_pointed(c, t) : NULL;
    if (!t || ours) return ours;
    ours = add_pointed(c, t, (size_t)c->n_spans * sizeof *t);
    for (int64_t s = 0; s < c->n_spans; s++) ours[s] = our_tensor(c, name, t[s]);
    return ours;
}

static const hh_mixer_inputs *our_inputs(call *c, const char *name, const hh_mixer_inputs *in) {
    hh_mixer_inputs *ours = in ? find_pointed(c, in) : NULL;
    (void)name;
    if (!in || ours) return ours;
    ours = add_pointed(c, in, sizeof *in);
    for (int i = 0; i < in->n_paths; i++) {
        const hh_mixer_path *p = &in->path[i];
        ours->path[i].x = our_tensor(c, "x", p->x);
        ours->path[i].y = our_tensor(c, "y", p->y);
        ours->path[i].conv = our_tensor(c, "conv", p->conv);
        ours->path[i].taps = our_tensor(c, "taps", p->taps);
        ours->path[i].norm = our_tensor(c, "norm", p->norm);
        ours->path[i].rstd = our_tensor(c, "rstd", p->rstd);
        ours->path[i].r = our_tensor(c, "r", p->r);
        ours->path[i].tail = our_tensors(c, "tail", p->tail);
    }
    ours->cos = our_tensor(c, "cos", in->cos);
    ours->sin = our_tensor(c, "sin", in->sin);
    ours->g = our_tensor(c, "g", in->g);
    ours->beta = our_tensor(c, "beta", in->beta);
    ours->a = our_tensor(c, "a", in->a);
    ours->b = our_tensor(c, "b", in->b);
    ours->A_log = our_tensor(c, "A_log", in->A_log);
    ours->dt_bias = our_tensor(c, "dt_bias", in->dt_bias);
    return ours;
}

/* Results on the host: one number each, but argmax, which has one a row and is not compared. */
static double *our_double(call *c, const char *name, double *x) {
    double *ours = x ? find_pointed(c, x) : NULL;
    (void)name;
    return !x || ours ? ours : add_pointed(c, x, sizeof *x);
}

static int64_t *our_index(call *c, const char *name, int64_t *x) {
    int64_t *ours = x ? find_pointed(c, x) : NULL;
    (void)name;
    return !x || ours ? ours : add_pointed(c, x, sizeof *x);
}

static int32_t *no_list(call *c, const char *name, int32_t *x) {
    (void)c, (void)name, (void)x;
    return NULL;
}

/* Everything else is the same for both. */
#define SAME(type, name)                                                                                               \
    static type name(call *c, const char *argument, type x) {                                                          \
        (void)c, (void)argument;                                                                                       \
        return x;                                                                                                      \
    }
SAME(bool, same_bool)
SAME(double, same_double)
SAME(int64_t, same_int64)
SAME(hh_gdn_mode, same_mode)
SAME(const double *, same_doubles)
SAME(const float *, same_floats)
SAME(const int32_t *, same_int32s)
SAME(const hh_span *, same_spans)

/* clang-format off */
#define OURS(x)                                                                                                        \
    _Generic((x),                                                                                                      \
        hh_tensor: our_tensor, const hh_tensor *: our_tensors, const hh_linear *: our_linear, const hh_kv *: our_kv,   \
        const hh_mixer_inputs *: our_inputs, double *: our_double, int64_t *: our_index, int32_t *: no_list,                                                \
        bool: same_bool, double: same_double, int64_t: same_int64, hh_gdn_mode: same_mode,                             \
        const double *: same_doubles, const float *: same_floats, const int32_t *: same_int32s,                        \
        const hh_span *: same_spans)(&here, #x, x)
/* clang-format on */

/* The only whole number of an op that has arrays is how many spans there are. */
#define COUNT(x) _Generic((x), int64_t : (x), default : 0)

/* -- comparison -- */

/* a - b, where garbage that nobody wrote is equal to itself, infinite or not a number as it may be. */
static double difference(hh_real a, hh_real b) {
    return a == b || (isnan(a) && isnan(b)) ? 0 : (double)a - (double)b;
}

static void report(call *c, const copied *k, const hh_real *now, double error, double allowed) {
    const hh_real *ours = k->ours.data;
    const int64_t n = hh_tensor_count(k->ours), row = hh_tensor_row_count(k->ours);
    int64_t worst = 0;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(difference(now[i], ours[i])) <= fabs(difference(now[worst], ours[worst])))) worst = i;
    char where[48] = "";
    if (c->be->layer >= 0) snprintf(where, sizeof where, " of layer %lld", (long long)c->be->layer);
    hh_fail(&twice_of(c->be)->fault, HH_EUNSUPPORTED,
            "%s%s: its '%s' is %.3g away from the CPU's, %.3g of it is explained by rounding; the farthest is number "
            "%lld of row %lld, %.9g where the CPU has %.9g",
            c->op, where, k->name, error, allowed, (long long)(worst % row), (long long)(worst / row),
            (double)now[worst], (double)ours[worst]);
}

static void compare_tensor(call *c, const copied *k) {
    if (k->ours.dtype != HH_DTYPE_REAL) return;
    hh_tensor now = copy_tensor(c->be, k->theirs);
    const hh_real *a = now.data, *b = k->ours.data;
    double apart = 0, size = 0;
    for (int64_t i = 0; i < hh_tensor_count(now); i++) {
        double d = difference(a[i], b[i]);
        apart += d * d;
        if (isfinite(b[i])) size += (double)b[i] * (double)b[i];
    }
    const bool exact =
        c->be->activation == HH_DTYPE_REAL && c->be->precision == HH_PRECISION_F32 && k->theirs.dtype == HH_DTYPE_REAL;
    const double error = sqrt(apart / (size > 0 ? size : 1)), allowed = exact ? ALLOWED_F32 : ALLOWED_BF16;
    if (!(error <= allowed)) report(c, k, a, error, allowed);
    hh_free(now.data);
}

static void compare(call *c) {
    hh_error *fault = &twice_of(c->be)->fault;
    for (copied *k = c->tensors; k && fault->code == HH_OK; k = k->next) compare_tensor(c, k);
}

static void release(call *c) {
    for (copied *k = c->tensors, *next; k; k = next) {
        next = k->next;
        hh_free(k->ours.data);
        hh_free(k);
    }
    for (pointed *p = c->pointers, *next; p; p = next) {
        next = p->next;
        hh_free(p->ours);
        hh_free(p);
    }
}

/* -- the wrappers -- */

/* Copies are taken by the first EACH and found again by the second. */
#define HH_OP(name, arguments, names)                                                                                  \
    static void twice_##name(hh_backend *be, HH_BARE arguments) {                                                      \
        twice *owner = twice_of(be);                                                                                   \
        if (owner->fault.code != HH_OK) {                                                                              \
            owner->inner->name(be, HH_BARE names);                                                                     \
            return;                                                                                                    \
        }                                                                                                              \
        const int64_t counts[] = {EACH(COUNT, HH_BARE names)};                                                         \
        call here = {.be = be, .op = #name};                                                                           \
        for (size_t entry = 0; entry < sizeof counts / sizeof *counts; entry++) here.n_spans += counts[entry];         \
        (void)(EACH((void)OURS, HH_BARE names));                                                                       \
        owner->inner->name(be, HH_BARE names);                                                                         \
        owner->cpu->decoding = be->decoding;                                                                           \
        owner->cpu->ops->name(owner->cpu, EACH(OURS, HH_BARE names));                                                  \
        compare(&here);                                                                                                \
        release(&here);                                                                                                \
    }
#include "ops/ops.def"
#undef HH_OP

static const hh_ops wrappers = {
#define HH_OP(name, arguments, names) .name = twice_##name,
#include "ops/ops.def"
#undef HH_OP
};

/* A device's memory starts as NaN, every byte 0xff: results are read before anything has written them. */
static hh_code init_arena(hh_backend *be, hh_arena *out, const char *name, size_t bytes, hh_error *err) {
    const twice *t = twice_of(be);
    double none;
    HH_TRY(t->arena_init(be, out, name, bytes, err));
    if (be->host_memory || !out->size) return HH_OK;
    memset(&none, 0xff, sizeof none);
    t->inner->fill(be, hh_tensor_1d(out->base, HH_DTYPE_REAL, (int64_t)(out->size / sizeof(hh_real))), none);
    return HH_OK;
}

static hh_code sync_twice(hh_backend *be, hh_error *err) {
    twice *t = twice_of(be);
    HH_TRY(t->sync(be, err));
    if (t->fault.code == HH_OK) return HH_OK;
    *err = t->fault;
    return err->code;
}

static void close_twice(hh_backend *be) {
    twice *t = twice_of(be);
    be->ops = t->inner;
    be->arena_init = t->arena_init;
    be->close = t->close;
    hh_backend_close(t->cpu);
    hh_free(t);
    hh_backend_close(be);
}

hh_code hh_check_twice(hh_backend *be, hh_error *err) {
    hh_backend *cpu;
    HH_TRY(hh_cpu_open(&cpu, 0, HH_PRECISION_F32, be->host_memory ? "reference" : NULL, err));
    twice *t = hh_alloc(sizeof *t);
    *t = (twice){.ops = wrappers,
                 .inner = be->ops,
                 .cpu = cpu,
                 .arena_init = be->arena_init,
                 .sync = be->sync,
                 .close = be->close};
    be->ops = &t->ops;
    be->arena_init = init_arena;
    be->sync = sync_twice;
    be->close = close_twice;
    be->record_begin = NULL;
    be->record_end = NULL;
    return HH_OK;
}
