/* A trace of op calls; see trace.h. */
#include "ops/trace.h"

#include "base/progress.h"
#include "ops/each.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What a backend gets; its op table comes first, so that be->ops leads here. */
typedef struct trace {
    hh_ops ops;
    const hh_ops *inner;
    FILE *file;
    double start;
    int64_t n_events;
    hh_backend_close_fn *close;
} trace;

static trace *trace_of(hh_backend *be) {
    return (trace *)(void *)(uintptr_t)be->ops;
}

/* -- arguments: what has a shape is told; nothing is allocated between hh_guard_begin and hh_guard_end -- */

typedef struct text {
    char at[1200]; /* more than 16 arguments need */
    size_t n;
} text;

static void add(text *b, const char *format, ...) HH_PRINTF(2, 3);
static void add(text *b, const char *format, ...) {
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(b->at + b->n, sizeof b->at - b->n, format, list);
    va_end(list);
    HH_ASSERT(n >= 0 && (size_t)n < sizeof b->at - b->n);
    b->n += (size_t)n;
}

static void tell_tensor(text *b, const char *name, hh_tensor t) {
    if (!t.data) return;
    add(b, "%s\"%s\": \"%s", b->n ? ", " : "", name, hh_dtype_name(t.dtype));
    for (int d = 0; d < t.rank; d++) add(b, "%c%lld", d ? 'x' : ' ', (long long)t.dim[d]);
    add(b, "\"");
}

static void tell_linear(text *b, const char *name, const hh_linear *w) {
    if (!w) return;
    add(b, "%s\"%s\": \"%s %lldx%lld\"", b->n ? ", " : "", name,
        w->n_parts && w->part[0].w.data ? hh_dtype_name(w->part[0].w.dtype) : "none", (long long)w->n, (long long)w->k);
}

static void tell_inputs(text *b, const char *name, const hh_mixer_inputs *in) {
    (void)name;
    for (int p = 0; p < in->n_paths; p++) {
        char which[16];
        snprintf(which, sizeof which, "path %d", p);
        tell_tensor(b, which, in->path[p].y);
    }
}

static void tell_count(text *b, const char *name, int64_t x) {
    add(b, "%s\"%s\": %lld", b->n ? ", " : "", name, (long long)x);
}

/* Everything else. */
static void tell_nothing(text *b, const char *name, ...) {
    (void)b, (void)name;
}

/* clang-format off */
#define TELL(x)                                                                                                        \
    _Generic((x), hh_tensor: tell_tensor, const hh_linear *: tell_linear, const hh_mixer_inputs *: tell_inputs,        \
        int64_t: tell_count, default: tell_nothing)(&told, #x, x)
/* clang-format on */

/* -- events -- */

static void finish(hh_backend *be, const char *op, double start, const text *told) {
    trace *t = trace_of(be);
    hh_error unsaid = {0}; /* the caller's own sync says it again */
    if (!be->host_memory) (void)be->sync(be, &unsaid);
    const double end = hh_now();
    fprintf(t->file,
            "%s{\"name\": \"%s\", \"ph\": \"X\", \"pid\": 1, \"tid\": 1, \"ts\": %.3f, \"dur\": %.3f, \"args\": {",
            t->n_events++ ? ",\n" : "", op, (start - t->start) * 1e6, (end - start) * 1e6);
    if (be->layer >= 0) fprintf(t->file, "\"layer\": %lld%s", (long long)be->layer, told->n ? ", " : "");
    fprintf(t->file, "%s}}", told->at);
}

#define HH_OP(name, arguments, names)                                                                                  \
    static void traced_##name(hh_backend *be, HH_BARE arguments) {                                                     \
        text told = {.n = 0};                                                                                          \
        const double start = hh_now();                                                                                 \
        trace_of(be)->inner->name(be, HH_BARE names);                                                                  \
        EACH(TELL, HH_BARE names);                                                                                     \
        finish(be, #name, start, &told);                                                                               \
    }
#include "ops/ops.def"
#undef HH_OP

static const hh_ops wrappers = {
#define HH_OP(name, arguments, names) .name = traced_##name,
#include "ops/ops.def"
#undef HH_OP
};

static void close_trace(hh_backend *be) {
    trace *t = trace_of(be);
    be->ops = t->inner;
    be->close = t->close;
    fputs("\n]\n", t->file);
    fclose(t->file);
    hh_free(t);
    hh_backend_close(be);
}

hh_code hh_trace_begin(hh_backend *be, const char *path, hh_error *err) {
    FILE *file = fopen(path, "w");
    if (!file) return hh_fail(err, HH_EIO, "HYDRAHEAD_TRACE=%s: %s", path, strerror(errno));
    fputs("[\n", file);
    trace *t = hh_alloc(sizeof *t);
    *t = (trace){.ops = wrappers, .inner = be->ops, .file = file, .start = hh_now(), .close = be->close};
    be->ops = &t->ops;
    be->close = close_trace;
    be->record_begin = NULL;
    be->record_end = NULL;
    return HH_OK;
}
