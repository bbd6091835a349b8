/* See gradcheck.h. */
#include "support/gradcheck.h"

#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <string.h>

#define MARGIN      128 /* bytes before and behind */
#define MAX_GUARDED 512

/* One block of memory and a copy of it in which only the elements may differ. */
typedef struct guarded {
    unsigned char *block;
    size_t size;
    hh_tensor t;
} guarded;

static guarded all[MAX_GUARDED];
static int n_all;

static size_t row_bytes(hh_tensor t) {
    return hh_dtype_bytes(t.dtype, hh_tensor_row_count(t));
}

static size_t stride_bytes(hh_tensor t) {
    return t.rank == 1 ? hh_dtype_bytes(t.dtype, hh_dtype_block(t.dtype)) : hh_dtype_bytes(t.dtype, t.stride);
}

static hh_tensor guard(hh_tensor t, int64_t gap) {
    assert_true(n_all < MAX_GUARDED);
    t.stride += gap;
    guarded *g = &all[n_all++];
    size_t rows = t.rank == 1 ? hh_dtype_bytes(t.dtype, t.dim[0]) : (size_t)t.dim[0] * stride_bytes(t);
    g->size = 2 * MARGIN + rows;
    g->block = hh_alloc(g->size);
    memset(g->block, 0xff, g->size);
    t.data = g->block + MARGIN;
    g->t = t;
    return t;
}

hh_tensor guarded_1d(hh_dtype t, int64_t n) {
    return guard(hh_tensor_1d(NULL, t, n), 0);
}

hh_tensor guarded_2d(hh_dtype t, int64_t rows, int64_t cols, int64_t gap) {
    return guard(hh_tensor_2d(NULL, t, rows, cols), gap);
}

hh_tensor guarded_3d(hh_dtype t, int64_t d0, int64_t d1, int64_t d2, int64_t gap) {
    return guard(hh_tensor_3d(NULL, t, d0, d1, d2), gap);
}

static void check_untouched(const unsigned char *p, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0xff) fail_msg("%s: byte %zu of a guard band was written", what, i);
}

static void check_bands(const guarded *g, const char *what) {
    check_untouched(g->block, MARGIN, what);
    check_untouched(g->block + g->size - MARGIN, MARGIN, what);
    if (g->t.rank == 1) return;
    for (int64_t r = 0; r < g->t.dim[0]; r++) {
        const unsigned char *row = g->block + MARGIN + (size_t)r * stride_bytes(g->t);
        check_untouched(row + row_bytes(g->t), stride_bytes(g->t) - row_bytes(g->t), what);
    }
}

void guarded_check(hh_tensor t, const char *what) {
    for (int i = 0; i < n_all; i++)
        if (all[i].t.data == t.data) {
            check_bands(&all[i], what);
            return;
        }
    fail_msg("%s is not a guarded tensor", what);
}

void guarded_release(void) {
    for (int i = 0; i < n_all; i++) check_bands(&all[i], "a guarded tensor");
    for (int i = 0; i < n_all; i++) hh_free(all[i].block);
    n_all = 0;
}

hh_real *tensor_at(hh_tensor t, int64_t i) {
    int64_t row = hh_tensor_row_count(t);
    if (t.rank == 1) return (hh_real *)t.data + i;
    return hh_row(t, i / row) + i % row;
}

static uint64_t mix(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double draw_normal(uint64_t *state) {
    double u = ((double)(mix(state) >> 11) + 0.5) * 0x1p-53, v = (double)(mix(state) >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(2.0 * 3.14159265358979323846 * v);
}

void fill_normal(hh_tensor t, uint64_t seed, double deviation) {
    uint64_t state = seed * 0x2545f4914f6cdd1du + 1;
    for (int64_t i = 0, n = hh_tensor_count(t); i < n; i++)
        *tensor_at(t, i) = (hh_real)(float)(deviation * draw_normal(&state));
}

void fill_value(hh_tensor t, double value) {
    for (int64_t i = 0, n = hh_tensor_count(t); i < n; i++) *tensor_at(t, i) = (hh_real)value;
}

/* K formats have no quantiser: random bits with small scales are as good a test. */
static void fill_blocks(hh_tensor t, uint64_t seed) {
    uint64_t state = seed;
    size_t block = hh_dtype_block_bytes(t.dtype), n = hh_tensor_bytes(t);
    unsigned char *p = t.data;
    for (size_t i = 0; i < n; i++) p[i] = (unsigned char)mix(&state);
    for (size_t b = 0; b < n; b += block) {
        uint16_t scale = hh_f16_from_float(0.01f), least = hh_f16_from_float(0.02f);
        size_t at = t.dtype == HH_DTYPE_Q6_K ? block - 2 : 0;
        memcpy(p + b + at, &scale, 2);
        if (t.dtype == HH_DTYPE_Q4_K || t.dtype == HH_DTYPE_Q5_K || t.dtype == HH_DTYPE_Q5_1)
            memcpy(p + b + 2, &least, 2);
    }
}

void fill_quantised(hh_tensor t, uint64_t seed, double deviation) {
    bool can = t.dtype == HH_DTYPE_F32 || t.dtype == HH_DTYPE_F64 || t.dtype == HH_DTYPE_F16 ||
               t.dtype == HH_DTYPE_BF16 || t.dtype == HH_DTYPE_Q8_0 || t.dtype == HH_DTYPE_Q4_0 ||
               t.dtype == HH_DTYPE_Q4_1;
    if (!can) {
        fill_blocks(t, seed);
        return;
    }
    hh_tensor row = guarded_1d(HH_DTYPE_REAL, hh_tensor_row_count(t));
    for (int64_t r = 0; r < t.dim[0]; r++) {
        fill_normal(row, seed * 7919 + (uint64_t)r, deviation);
        hh_quantise(t.dtype, row.data, row.dim[0], (char *)t.data + (size_t)r * stride_bytes(t));
    }
}

hh_tensor guarded_copy(hh_tensor t) {
    hh_tensor c = t;
    c.stride = t.rank == 1 ? t.stride : hh_tensor_row_count(t);
    c = guard(c, 0);
    for (int64_t i = 0, n = hh_tensor_count(t); i < n; i++) *tensor_at(c, i) = *tensor_at(t, i);
    return c;
}

void check_close(hh_tensor a, hh_tensor b, double tolerance, const char *what) {
    assert_int_equal(hh_tensor_count(a), hh_tensor_count(b));
    int64_t n = hh_tensor_count(a);
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)*tensor_at(b, i)));
    for (int64_t i = 0; i < n; i++) {
        double x = (double)*tensor_at(a, i), y = (double)*tensor_at(b, i);
        if (!(fabs(x - y) <= tolerance * largest))
            fail_msg("%s: element %lld is %.17g, expected %.17g (tolerance %g of %g)", what, (long long)i, x, y,
                     tolerance, largest);
    }
}

void gradcheck(const char *what, gradcheck_fn *f, void *context, hh_tensor x, hh_tensor grad, int64_t samples,
               double tolerance) {
    assert_int_equal(hh_tensor_count(x), hh_tensor_count(grad));
    int64_t n = hh_tensor_count(x), step = samples > 0 && samples < n ? n / samples : 1;
    double largest = 1e-30;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)*tensor_at(grad, i)));
    for (int64_t i = 0; i < n; i += step) {
        hh_real *p = tensor_at(x, i), kept = *p;
        double h = 2e-3 * fmax(1.0, fabs((double)kept)), v[7];
        for (int k = -3; k <= 3; k++) {
            *p = (hh_real)((double)kept + k * h);
            v[k + 3] = k ? f(context) : 0;
        }
        *p = kept;
        double slope = (45.0 * (v[4] - v[2]) - 9.0 * (v[5] - v[1]) + (v[6] - v[0])) / (60.0 * h);
        double given = (double)*tensor_at(grad, i);
        if (!(fabs(slope - given) <= tolerance * largest))
            fail_msg("%s: element %lld: the gradient is %.17g, differences say %.17g (%.3g of the largest, %g)", what,
                     (long long)i, given, slope, fabs(slope - given) / largest, largest);
    }
}

double tensor_dot(hh_tensor a, hh_tensor b) {
    double s = 0;
    for (int64_t i = 0, n = hh_tensor_count(a); i < n; i++) s += (double)*tensor_at(a, i) * (double)*tensor_at(b, i);
    return s;
}

hh_backend *open_backend(const char *isa, int n_threads) {
    hh_backend *be = NULL;
    hh_error err = {0};
    hh_code code = hh_cpu_open(&be, n_threads, HH_PRECISION_AUTO, isa, &err);
    if (code == HH_EUNSUPPORTED) return NULL;
    if (code != HH_OK) fail_msg("%s", err.text);
    return be;
}

bool quick(void) {
    return getenv("HH_TEST_QUICK") != NULL;
}

int run_every_isa(int (*run)(const char *isa, int n_threads, const char *name), const char *subject) {
    static const char *const isas[] = FAST_ISAS;
    int failed = 0;
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++)
        for (int n_threads = quick() ? 2 : 1; n_threads <= 3; n_threads += 2) {
            char name[128];
            snprintf(name, sizeof name, "%s, %s, %d thread%s", subject, isas[i], n_threads, n_threads > 1 ? "s" : "");
            failed += run(isas[i], n_threads, name);
        }
    return failed;
}
