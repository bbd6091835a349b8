/* Memory by lifetime.
 *
 * Everything that lives as long as a model, a run, a step or a call is placed in an arena: one block with a position
 * that only moves forward and is set back as a whole. A structure is placed twice by the same function, once into a
 * counting arena (no memory behind it; only the size comes out) and once for real, so that a plan can be printed
 * before anything is loaded.
 *
 * hh_alloc and friends are the only callers of malloc in the program (libraries aside). They never return NULL:
 * what can be too large is checked with hh_arena_init first, which returns a status. Between hh_guard_begin and
 * hh_guard_end an allocation is a bug; prefill, decode and the training step run under that guard.
 */
#ifndef HH_BASE_MEMORY_H
#define HH_BASE_MEMORY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *hh_alloc(size_t bytes);                              /* zeroed; free with hh_free; bytes may be 0 */
void *hh_realloc(void *old, size_t bytes);                 /* new bytes are not set */
void hh_free(void *p);                                     /* NULL is accepted */
char *hh_strdup(const char *s);                            /* owned by the caller */
char *hh_sprintf(const char *format, ...) HH_PRINTF(1, 2); /* owned by the caller */

/* The same also under the guard: for what a backend remembers of shapes that it meets for the first time. */
void *hh_alloc_unguarded(size_t bytes);

/* To the system, what freed blocks have left in the C library's heaps, also between blocks in use. Takes milliseconds. */
void hh_memory_give_back(void);

/* For sizes that a file or a user controls: HH_ENOMEM instead of an abort. Zeroed. `what` names it in the sentence. */
hh_code hh_alloc_checked(void **out, size_t count, size_t size, const char *what, hh_error *err);

void hh_guard_begin(void);
void hh_guard_end(void);

/* a*b with overflow noticed. */
bool hh_mul_overflows(size_t a, size_t b, size_t *out);

typedef struct hh_arena {
    const char *name; /* "model", "run", "step", "scratch": for messages and plans */
    char *base;       /* NULL: counting */
    size_t used, size, peak;
    bool elsewhere; /* the CPU cannot reach it: a device's memory */
} hh_arena;

#define HH_ARENA_ALIGN 64

void hh_arena_init_counting(hh_arena *a, const char *name);
/* Reserves `size` bytes (page aligned, huge pages where the system allows). Nobody may rely on what is in it: zeros on
 * first touch, NaN in builds with HOSTILE=1. */
hh_code hh_arena_init(hh_arena *a, const char *name, size_t size, hh_error *err);
void hh_arena_release(hh_arena *a);
/* 64-byte aligned. A counting arena returns NULL and counts. A real one that is full is a bug: count first. */
void *hh_arena_alloc(hh_arena *a, size_t bytes);
/* Rolling back: mark = a->used; ...; hh_arena_reset(a, mark). */
void hh_arena_reset(hh_arena *a, size_t mark);

/* A growing byte buffer with a cap; used for text that is built up. Always ends with a NUL beyond `len`. */
typedef struct hh_buf {
    char *data;
    size_t len, capacity;
} hh_buf;

void hh_buf_add(hh_buf *b, const void *bytes, size_t n);
void hh_buf_puts(hh_buf *b, const char *s);
void hh_buf_printf(hh_buf *b, const char *format, ...) HH_PRINTF(2, 3);
void hh_buf_clear(hh_buf *b);   /* keeps the memory */
void hh_buf_release(hh_buf *b); /* a zeroed hh_buf is empty and valid */

#endif
