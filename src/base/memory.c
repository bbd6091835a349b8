/* Allocation, arenas and buffers; see memory.h. */
#include "base/env.h"
#include "base/memory.h"

#include <limits.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Thread_local int guard_depth; /* another thread may be doing something else */

void hh_guard_begin(void) {
    guard_depth++;
}

void hh_guard_end(void) {
    HH_ASSERT(guard_depth-- > 0);
}

static void check_guard(void) {
    HH_ASSERT(guard_depth == 0 && "allocation in a guarded section");
}

static void *or_die(void *p, size_t bytes) {
    if (p) return p;
    fprintf(stderr, "hydrahead: out of memory: %zu bytes refused by the system\n", bytes);
    abort();
}

void *hh_alloc_unguarded(size_t bytes) {
    return or_die(calloc(1, bytes ? bytes : 1), bytes);
}

void *hh_alloc(size_t bytes) {
    check_guard();
    return hh_alloc_unguarded(bytes);
}

void *hh_realloc(void *old, size_t bytes) {
    check_guard();
    return or_die(realloc(old, bytes ? bytes : 1), bytes);
}

void hh_free(void *p) {
    free(p);
}

void hh_memory_give_back(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

char *hh_strdup(const char *s) {
    size_t n = strlen(s) + 1;
    return memcpy(hh_alloc(n), s, n);
}

char *hh_sprintf(const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    HH_ASSERT(n >= 0);
    char *s = hh_alloc((size_t)n + 1);
    va_start(args, format);
    vsnprintf(s, (size_t)n + 1, format, args);
    va_end(args);
    return s;
}

/* The failing allocator of hostile builds: HYDRAHEAD_FAIL_ALLOC says which allocation is the first to fail. */
static bool refused(void) {
#ifdef HH_HOSTILE
    static atomic_long count;
    long fail = (long)hh_env_get()->fail_alloc;
    return fail && atomic_fetch_add(&count, 1) + 1 >= fail;
#else
    return false;
#endif
}

bool hh_mul_overflows(size_t a, size_t b, size_t *out) {
    return __builtin_mul_overflow(a, b, out);
}

hh_code hh_alloc_checked(void **out, size_t count, size_t size, const char *what, hh_error *err) {
    check_guard();
    size_t bytes;
    *out = NULL;
    if (hh_mul_overflows(count, size, &bytes))
        return hh_fail(err, HH_ENOMEM, "%s: %zu items of %zu bytes are more than can be addressed", what, count, size);
    *out = refused() ? NULL : calloc(1, bytes ? bytes : 1);
    if (!*out) return hh_fail(err, HH_ENOMEM, "%s: the system refused %zu bytes", what, bytes);
    return HH_OK;
}

void hh_arena_init_counting(hh_arena *a, const char *name) {
    *a = (hh_arena){.name = name};
}

hh_code hh_arena_init(hh_arena *a, const char *name, size_t size, hh_error *err) {
    check_guard();
    size_t wanted = size;
    size = (size + 4095) & ~(size_t)4095;
    if (size < wanted) size = wanted; /* beyond the address space: left for the system to refuse */
    if (!size) size = 4096;
    void *p = refused() ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return hh_fail(err, HH_ENOMEM,
                       "memory for '%s': the system refused %zu bytes (%.2f GiB); a shorter context "
                       "or a smaller batch needs less, see `hydrahead plan`",
                       name, size, (double)size / (1 << 30));
#ifdef MADV_HUGEPAGE
    if (size >= (size_t)4 << 20) madvise(p, size, MADV_HUGEPAGE);
#endif
    *a = (hh_arena){.name = name, .base = p, .size = size};
    return HH_OK;
}

void hh_arena_release(hh_arena *a) {
    if (a->base) munmap(a->base, a->size);
    *a = (hh_arena){.name = a->name};
}

void *hh_arena_alloc(hh_arena *a, size_t bytes) {
    size_t at = a->used;
    size_t end = (at + bytes + HH_ARENA_ALIGN - 1) & ~(size_t)(HH_ARENA_ALIGN - 1);
    HH_ASSERT(end >= at);
    HH_ASSERT(!a->base || end <= a->size);
    a->used = end;
    if (end > a->peak) a->peak = end;
    if (!a->base) return NULL;
#ifdef HH_HOSTILE
    if (!a->elsewhere) memset(a->base + at, 0xff, bytes); /* every float is NaN until somebody writes it */
#endif
    return a->base + at;
}

void hh_arena_reset(hh_arena *a, size_t mark) {
    HH_ASSERT(mark <= a->used);
    a->used = mark;
}

static void reserve(hh_buf *b, size_t extra) {
    size_t need = b->len + extra + 1;
    HH_ASSERT(need > b->len);
    if (need <= b->capacity) return;
    size_t capacity = b->capacity ? b->capacity : 64;
    while (capacity < need) capacity *= 2;
    b->data = hh_realloc(b->data, capacity);
    b->capacity = capacity;
}

void hh_buf_add(hh_buf *b, const void *bytes, size_t n) {
    reserve(b, n);
    if (n) memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
}

void hh_buf_puts(hh_buf *b, const char *s) {
    hh_buf_add(b, s, strlen(s));
}

void hh_buf_printf(hh_buf *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    HH_ASSERT(n >= 0);
    reserve(b, (size_t)n);
    va_start(args, format);
    vsnprintf(b->data + b->len, (size_t)n + 1, format, args);
    va_end(args);
    b->len += (size_t)n;
}

void hh_buf_clear(hh_buf *b) {
    b->len = 0;
    if (b->data) b->data[0] = 0;
}

void hh_buf_release(hh_buf *b) {
    hh_free(b->data);
    *b = (hh_buf){0};
}
