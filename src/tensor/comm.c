/* Groups of processes: the group of one, and what all kinds share. */
#include "tensor/comm.h"

#include "base/env.h"
#include "tensor/comm_mpi.h"

#include <inttypes.h>
#include <string.h>

static hh_code exchange_alone(hh_comm *c, void *all, const void *mine, size_t bytes, hh_error *err) {
    (void)c, (void)err;
    memcpy(all, mine, bytes);
    return HH_OK;
}

static hh_code keep(hh_comm *c, hh_tensor t, hh_error *err) {
    (void)c, (void)t, (void)err;
    return HH_OK;
}

static hh_code copy_to_first(hh_comm *c, int64_t from, void *dst, const void *src, size_t bytes, hh_error *err) {
    (void)c, (void)from, (void)err;
    memcpy(dst, src, bytes);
    return HH_OK;
}

static void release_nothing(hh_comm *c) {
    (void)c;
}

hh_comm hh_comm_single(void) {
    return (hh_comm){.name = "single",
                     .size = 1,
                     .n_local = 1,
                     .exchange = exchange_alone,
                     .reduce_scatter = keep,
                     .all_gather = keep,
                     .to_first = copy_to_first,
                     .close = release_nothing};
}

hh_code hh_comm_open(hh_comm *out, hh_error *err) {
    *out = hh_comm_single();
    return hh_env_get()->processes ? hh_comm_mpi_open(out, err) : HH_OK;
}

#ifndef HH_HAVE_MPI
hh_code hh_comm_mpi_open(hh_comm *out, hh_error *err) {
    int64_t n = hh_env_get()->processes;
    (void)out;
    if (n == 1) return HH_OK;
    return hh_fail(err, HH_EUNSUPPORTED,
                   "a launcher has started %" PRId64
                   " processes, and this build is for one; build with `make MPI=1`, or start it without the launcher",
                   n);
}
#endif

void hh_comm_close(hh_comm *c) {
    if (c && c->close) c->close(c);
}

int64_t hh_comm_cut(int64_t n, int64_t rank, int64_t size) {
    HH_ASSERT(rank >= 0 && rank <= size && n >= 0);
    if (rank == size) return n;
    return (n / size * rank + n % size * rank / size) / 16 * 16;
}

static void check(hh_tensor t) {
    HH_ASSERT(t.dtype == HH_DTYPE_REAL && hh_tensor_is_dense(t));
}

hh_code hh_comm_reduce_scatter(hh_comm *c, hh_tensor t, hh_error *err) {
    check(t);
    return c->reduce_scatter(c, t, err);
}

hh_code hh_comm_all_gather(hh_comm *c, hh_tensor t, hh_error *err) {
    check(t);
    return c->all_gather(c, t, err);
}

hh_code hh_comm_to_first(hh_comm *c, int64_t from, void *dst, const void *src, size_t bytes, hh_error *err) {
    HH_ASSERT(from >= 0 && from < c->size);
    return c->to_first(c, from, dst, src, bytes, err);
}

/* The ranks' messages, in the inbox. */
static hh_code exchange(hh_comm *c, const void *mine, size_t bytes, hh_error *err) {
    HH_ASSERT(bytes <= HH_COMM_MESSAGE);
    return c->exchange(c, c->inbox, mine, bytes, err);
}

hh_code hh_comm_sum(hh_comm *c, double *x, int64_t n, hh_error *err) {
    if (c->size == 1) return HH_OK;
    HH_TRY(exchange(c, x, (size_t)n * sizeof *x, err));
    memcpy(x, c->inbox, (size_t)n * sizeof *x);
    for (int64_t r = 1; r < c->size; r++)
        for (int64_t i = 0; i < n; i++) {
            double y;
            memcpy(&y, c->inbox + (size_t)(r * n + i) * sizeof y, sizeof y);
            x[i] += y;
        }
    return HH_OK;
}

hh_code hh_comm_take_first(hh_comm *c, void *x, size_t bytes, hh_error *err) {
    if (c->size == 1) return HH_OK;
    HH_TRY(exchange(c, x, bytes, err));
    memcpy(x, c->inbox, bytes);
    return HH_OK;
}

hh_code hh_comm_agree(hh_comm *c, hh_code mine, hh_error *err) {
    if (c->size == 1) return mine;
    int32_t code = (int32_t)mine, agreed = HH_OK;
    int64_t who = 0;
    HH_TRY(exchange(c, &code, sizeof code, err));
    for (int64_t r = 0; r < c->size; r++) {
        memcpy(&code, c->inbox + (size_t)r * sizeof code, sizeof code);
        if (code == HH_OK || (agreed != HH_OK && (agreed != HH_ECANCELLED || code == HH_ECANCELLED))) continue;
        agreed = code;
        who = r;
    }
    if (agreed == HH_OK) return HH_OK;
    _Static_assert(sizeof err->text <= HH_COMM_MESSAGE, "a sentence is a message");
    HH_TRY(exchange(c, err->text, sizeof err->text, err));
    memcpy(err->text, c->inbox + (size_t)who * sizeof err->text, sizeof err->text);
    err->code = (hh_code)agreed;
    return err->code;
}
