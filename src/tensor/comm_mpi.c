/* Groups over MPI; see comm.h. MPI only moves bytes here: its own reductions choose their order themselves, so numbers
 * are added by the owner of a slice, in the order of the ranks. Everybody sends every owner its slice, which moves as
 * much as a ring does: (size - 1) / size of the tensor in and out of each process. A failure of MPI itself ends all
 * processes, which is MPI's default. */
#include "tensor/comm_mpi.h"

#include "base/parallel.h"

#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

enum {
    STAGE = 1 << 22, /* numbers that all peers together send at once in a reduction */
    MOST = 1 << 27,  /* numbers in one message of a gather: MPI counts bytes in an int */
    TAG_REDUCE = 1,
    TAG_GATHER,
    TAG_FIRST
};

typedef struct group {
    int rank, size;
    int64_t piece;        /* numbers of a slice that are on their way at once */
    hh_real *stage;       /* [size, piece] */
    MPI_Request *request; /* [2 * size] */
    int n_requests;
} group;

static int64_t length_of(int64_t n, int64_t rank, int64_t size) {
    return hh_comm_cut(n, rank + 1, size) - hh_comm_cut(n, rank, size);
}

/* What is left of a slice of n numbers from `at` on, at most `most`. */
static int64_t clip(int64_t n, int64_t at, int64_t most) {
    return n <= at ? 0 : n - at < most ? n - at : most;
}

static void send(group *g, const hh_real *x, int64_t n, int to, int tag) {
    if (n) MPI_Isend(x, (int)((size_t)n * sizeof *x), MPI_BYTE, to, tag, MPI_COMM_WORLD, &g->request[g->n_requests++]);
}

static void receive(group *g, hh_real *x, int64_t n, int from, int tag) {
    if (n)
        MPI_Irecv(x, (int)((size_t)n * sizeof *x), MPI_BYTE, from, tag, MPI_COMM_WORLD, &g->request[g->n_requests++]);
}

static void wait(group *g) {
    MPI_Waitall(g->n_requests, g->request, MPI_STATUSES_IGNORE);
    g->n_requests = 0;
}

/* x = x0 + x1 + ..., where x is this rank's own and the others' stand in the stage. */
static void add_pieces(group *g, hh_real *x, int64_t n) {
    hh_real *sum = g->rank ? g->stage : x;
    for (int r = 1; r < g->size; r++) {
        const hh_real *more = r == g->rank ? x : g->stage + r * g->piece;
        for (int64_t i = 0; i < n; i++) sum[i] += more[i];
    }
    if (g->rank) memcpy(x, sum, (size_t)n * sizeof *x);
}

static hh_code reduce_scatter(hh_comm *c, hh_tensor t, hh_error *err) {
    group *g = c->impl;
    hh_real *x = t.data;
    int64_t n = hh_tensor_count(t), longest = 0;
    (void)err;
    for (int r = 0; r < g->size; r++)
        if (length_of(n, r, g->size) > longest) longest = length_of(n, r, g->size);
    for (int64_t at = 0; at < longest; at += g->piece) {
        int64_t own = clip(length_of(n, g->rank, g->size), at, g->piece);
        for (int i = 1; i < g->size; i++) { /* nobody is everybody's first */
            int from = (g->rank + g->size - i) % g->size, to = (g->rank + i) % g->size;
            receive(g, g->stage + from * g->piece, own, from, TAG_REDUCE);
            send(g, x + hh_comm_cut(n, to, g->size) + at, clip(length_of(n, to, g->size), at, g->piece), to,
                 TAG_REDUCE);
        }
        wait(g);
        if (own) add_pieces(g, x + hh_comm_cut(n, g->rank, g->size) + at, own);
    }
    return HH_OK;
}

static hh_code all_gather(hh_comm *c, hh_tensor t, hh_error *err) {
    group *g = c->impl;
    hh_real *x = t.data;
    int64_t n = hh_tensor_count(t);
    (void)err;
    for (int64_t at = 0; at < n; at += MOST) {
        for (int i = 1; i < g->size; i++) {
            int from = (g->rank + g->size - i) % g->size, to = (g->rank + i) % g->size;
            receive(g, x + hh_comm_cut(n, from, g->size) + at, clip(length_of(n, from, g->size), at, MOST), from,
                    TAG_GATHER);
            send(g, x + hh_comm_cut(n, g->rank, g->size) + at, clip(length_of(n, g->rank, g->size), at, MOST), to,
                 TAG_GATHER);
        }
        wait(g);
    }
    return HH_OK;
}

static hh_code exchange(hh_comm *c, void *all, const void *mine, size_t bytes, hh_error *err) {
    (void)c, (void)err;
    MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
    return HH_OK;
}

static hh_code to_first(hh_comm *c, int64_t from, void *dst, const void *src, size_t bytes, hh_error *err) {
    (void)err;
    HH_ASSERT(bytes <= INT_MAX);
    if (from == 0 && c->rank == 0)
        memcpy(dst, src, bytes);
    else if (c->rank == from)
        MPI_Send(src, (int)bytes, MPI_BYTE, 0, TAG_FIRST, MPI_COMM_WORLD);
    else if (c->rank == 0)
        MPI_Recv(dst, (int)bytes, MPI_BYTE, (int)from, TAG_FIRST, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return HH_OK;
}

static void close_group(hh_comm *c) {
    group *g = c->impl;
    MPI_Finalize();
    hh_free(g->stage);
    hh_free(g->request);
    hh_free(g);
    hh_free(c->inbox);
    *c = hh_comm_single();
}

/* Processes of this host that may run on the same processors share them equally. */
static void divide_processors(hh_comm *c) {
    MPI_Comm host;
    cpu_set_t own, *all;
    int rank, n, alike = 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &rank);
    MPI_Comm_size(host, &n);
    memset(&own, 0, sizeof own);
    sched_getaffinity(0, sizeof own, &own);
    all = hh_alloc((size_t)n * sizeof *all);
    MPI_Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, host);
    MPI_Comm_free(&host);
    for (int i = 0; i < n; i++) alike += memcmp(&all[i], &own, sizeof own) == 0;
    hh_free(all);
    c->local_rank = rank;
    c->n_local = n;
    c->n_threads = hh_cpu_count() / alike;
    if (c->n_threads < 1) c->n_threads = 1;
    c->bound = c->n_threads < sysconf(_SC_NPROCESSORS_ONLN) / n;
}

hh_code hh_comm_mpi_open(hh_comm *out, hh_error *err) {
    int level;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
        return hh_fail(err, HH_EUNSUPPORTED, "MPI cannot be started; was this program started by its own mpirun?");
    group *g = hh_alloc(sizeof *g);
    MPI_Comm_rank(MPI_COMM_WORLD, &g->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &g->size);
    g->piece = STAGE / g->size;
    g->stage = hh_alloc((size_t)(g->size * g->piece) * sizeof *g->stage);
    g->request = hh_alloc(2 * (size_t)g->size * sizeof(MPI_Request));
    *out = (hh_comm){.name = "mpi",
                     .rank = g->rank,
                     .size = g->size,
                     .inbox = hh_alloc((size_t)g->size * HH_COMM_MESSAGE),
                     .impl = g,
                     .exchange = exchange,
                     .reduce_scatter = reduce_scatter,
                     .all_gather = all_gather,
                     .to_first = to_first,
                     .close = close_group};
    divide_processors(out);
    return HH_OK;
}
