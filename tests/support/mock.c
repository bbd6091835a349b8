/* The unreadable backend; see mock.h. */
#include "support/mock.h"

#include <string.h>
#include <sys/mman.h>

enum { MAX_ARENAS = 512 };

typedef struct mock {
    hh_backend backend;
    hh_ops ops;
    hh_backend *cpu;
    struct {
        char *base;
        size_t size;
    } arena[MAX_ARENAS];
    int64_t recordings;
    bool recording, skipping; /* the calls of this pass have no effect */
} mock;

static mock *mock_of(hh_backend *be) {
    return be->impl;
}

static void protect(mock *m, int how) {
    for (int i = 0; i < MAX_ARENAS; i++)
        if (m->arena[i].base) HH_ASSERT(mprotect(m->arena[i].base, m->arena[i].size, how) == 0);
}

/* false: the call is left out. */
static bool enter(mock *m) {
    if (m->skipping) return false;
    protect(m, PROT_READ | PROT_WRITE);
    m->cpu->decoding = m->backend.decoding;
    m->cpu->layer = m->backend.layer;
    return true;
}

static void leave(mock *m) {
    protect(m, PROT_NONE);
}

#define HH_OP(name, arguments, names)                                                                                  \
    static void mock_##name(hh_backend *be, HH_BARE arguments) {                                                       \
        mock *owner = mock_of(be);                                                                                     \
        if (!enter(owner)) return;                                                                                     \
        owner->cpu->ops->name(owner->cpu, HH_BARE names);                                                              \
        leave(owner);                                                                                                  \
    }
#include "ops/ops.def"
#undef HH_OP

static void copy_bytes(hh_backend *be, void *dst, const void *src, size_t bytes) {
    mock *m = mock_of(be);
    HH_ASSERT(!m->recording);
    HH_ASSERT(enter(m));
    memcpy(dst, src, bytes);
    leave(m);
}

static hh_code init_arena(hh_backend *be, hh_arena *out, const char *name, size_t bytes, hh_error *err) {
    mock *m = mock_of(be);
    HH_TRY(hh_arena_init(out, name, bytes, err));
    out->elsewhere = true;
    for (int i = 0; i < MAX_ARENAS; i++) {
        if (m->arena[i].base) continue;
        m->arena[i].base = out->base;
        m->arena[i].size = out->size;
        leave(m);
        return HH_OK;
    }
    hh_arena_release(out);
    return hh_fail(err, HH_ENOMEM, "the mock keeps %d arenas, '%s' is one more", MAX_ARENAS, name);
}

static void release_arena(hh_backend *be, hh_arena *a) {
    mock *m = mock_of(be);
    int i = 0;
    while (i < MAX_ARENAS && m->arena[i].base != a->base) i++;
    HH_ASSERT(i < MAX_ARENAS);
    HH_ASSERT(mprotect(a->base, a->size, PROT_READ | PROT_WRITE) == 0);
    m->arena[i].base = NULL;
    hh_arena_release(a);
}

static hh_code sync_nothing(hh_backend *be, hh_error *err) {
    (void)err;
    HH_ASSERT(!mock_of(be)->recording);
    return HH_OK;
}

static void record_begin(hh_backend *be, const void *owner, uint64_t key) {
    mock *m = mock_of(be);
    (void)owner, (void)key;
    HH_ASSERT(!m->recording);
    m->recording = true;
    m->skipping = m->recordings++ % 2;
}

static bool record_end(hh_backend *be) {
    mock *m = mock_of(be);
    HH_ASSERT(m->recording);
    bool again = m->skipping;
    m->recording = m->skipping = false;
    return again;
}

static void record_drop(hh_backend *be, const void *owner) {
    (void)owner;
    HH_ASSERT(!mock_of(be)->recording);
}

static void close_mock(hh_backend *be) {
    mock *m = mock_of(be);
    for (int i = 0; i < MAX_ARENAS; i++) HH_ASSERT(!m->arena[i].base); /* all memory has been given back */
    hh_backend_close(m->cpu);
    hh_free(m);
}

hh_code mock_open(hh_backend **out, int n_threads, hh_precision precision, const char *isa, hh_error *err) {
    hh_backend *cpu;
    HH_TRY(hh_cpu_open(&cpu, n_threads, precision, isa, err));
    mock *m = hh_alloc(sizeof *m);
    m->cpu = cpu;
    m->backend = *cpu;
    m->backend.name = "mock";
    m->backend.ops = &m->ops;
    m->backend.host_memory = false;
    m->backend.impl = m;
    m->backend.scratch = (hh_arena){0};
    m->backend.thread_scratch = NULL;
    m->backend.to_device = m->backend.to_host = copy_bytes;
    m->backend.arena_init = init_arena;
    m->backend.arena_release = release_arena;
    m->backend.host_arena_init = cpu->arena_init;
    m->backend.host_arena_release = cpu->arena_release;
    m->backend.sync = sync_nothing;
    m->backend.record_begin = record_begin;
    m->backend.record_end = record_end;
    m->backend.record_drop = record_drop;
    m->backend.close = close_mock;
#define HH_OP(name, arguments, names) m->ops.name = mock_##name;
#include "ops/ops.def"
#undef HH_OP
    *out = &m->backend;
    return HH_OK;
}

int64_t mock_recordings(const hh_backend *be) {
    return ((const mock *)be->impl)->recordings;
}
