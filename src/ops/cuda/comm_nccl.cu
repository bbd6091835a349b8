/* Groups of processes with one GPU each: gradients and weights go from card to card over NCCL, in the order of the
 * stream; small messages stay with MPI. NCCL only sends and receives here, because its own reductions choose their
 * order by the machine: the owner of a slice adds it in the order of the ranks, as comm_mpi.c does. Everybody sends every
 * owner its slice, which moves as much as a ring does. */
#include "ops/cuda/cuda.h"

#include <cstdlib>
#include <nccl.h>

#define STAGE_BYTES ((size_t)128 << 20) /* what all peers together send at once in a reduction */

struct group {
    hh_comm host; /* that of MPI */
    hh_backend *be;
    ncclComm_t nccl;
    hh_arena stage; /* [size, piece] */
    int64_t piece;  /* numbers of a slice that are on their way at once */
};

static group *of(hh_comm *c) {
    return (group *)c->impl;
}

static float *piece_of(group *g, int64_t rank) {
    return (float *)g->stage.base + rank * g->piece;
}

/* The numbers [at, at + piece) of a rank's slice, clipped. */
static int64_t clip(const hh_comm *c, int64_t n, int64_t rank, int64_t at, int64_t piece) {
    int64_t left = hh_comm_cut(n, rank + 1, c->size) - hh_comm_cut(n, rank, c->size) - at;
    return left < 0 ? 0 : left < piece ? left : piece;
}

/* x = x0 + x1 + ... in the order of the ranks; x is rank `rank`'s own, the others' stand `piece` apart.
 * A thread takes numbers a grid apart; no shared memory; bound by memory: size + 1 passes over n numbers. */
static __global__ void add_ranks_kernel(float *x, const float *stage, int64_t piece, int rank, int size, int64_t n) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        float own = x[i], sum = rank ? stage[i] : own;
        for (int r = 1; r < size; r++) sum += r == rank ? own : stage[r * piece + i];
        x[i] = sum;
    }
}

/* Sends and receives between begin and end run at once. */
static bool begin(hh_comm *c, const char *what) {
    if (!hh_cuda_begin(of(c)->be, what, NULL, 0)) return false;
    ncclResult_t code = ncclGroupStart();
    if (code != ncclSuccess) hh_cuda_fault(of(c)->be, what, ncclGetErrorString(code));
    return code == ncclSuccess;
}

static void end(hh_comm *c, const char *what, ncclResult_t code) {
    ncclResult_t last = ncclGroupEnd();
    if (code == ncclSuccess) code = last;
    if (code != ncclSuccess) hh_cuda_fault(of(c)->be, what, ncclGetErrorString(code));
    hh_cuda_end(of(c)->be, cudaGetLastError());
}

static ncclResult_t send(hh_comm *c, const float *x, int64_t n, int64_t to) {
    group *g = of(c);
    return n ? ncclSend(x, (size_t)n, ncclFloat, (int)to, g->nccl, hh_cuda_of(g->be)->stream) : ncclSuccess;
}

static ncclResult_t receive(hh_comm *c, float *x, int64_t n, int64_t from) {
    group *g = of(c);
    return n ? ncclRecv(x, (size_t)n, ncclFloat, (int)from, g->nccl, hh_cuda_of(g->be)->stream) : ncclSuccess;
}

/* Everybody's pieces of my slice come to the stage, mine of theirs go out. */
static void exchange_pieces(hh_comm *c, float *x, int64_t n, int64_t at) {
    group *g = of(c);
    ncclResult_t code = ncclSuccess;
    if (!begin(c, "gradients between GPUs")) return;
    for (int64_t i = 1; i < c->size && code == ncclSuccess; i++) {
        int64_t from = (c->rank + c->size - i) % c->size, to = (c->rank + i) % c->size;
        code = receive(c, piece_of(g, from), clip(c, n, c->rank, at, g->piece), from);
        if (code == ncclSuccess) code = send(c, x + hh_comm_cut(n, to, c->size) + at, clip(c, n, to, at, g->piece), to);
    }
    end(c, "gradients between GPUs", code);
}

static hh_code reduce_scatter(hh_comm *c, hh_tensor t, hh_error *err) {
    group *g = of(c);
    float *x = (float *)t.data;
    int64_t n = hh_tensor_count(t), longest = 0;
    (void)err;
    for (int64_t r = 0; r < c->size; r++) {
        int64_t length = clip(c, n, r, 0, n);
        if (length > longest) longest = length;
    }
    for (int64_t at = 0; at < longest; at += g->piece) {
        int64_t own = clip(c, n, c->rank, at, g->piece), blocks = hh_ceil_div(own, 1024);
        if (blocks > 8 * hh_cuda_of(g->be)->n_sms) blocks = 8 * hh_cuda_of(g->be)->n_sms;
        exchange_pieces(c, x, n, at);
        hh_cuda_launch(g->be, "add_ranks", add_ranks_kernel, dim3((unsigned)blocks), dim3(256), 0,
                       x + hh_comm_cut(n, c->rank, c->size) + at, (const float *)g->stage.base, g->piece, (int)c->rank,
                       (int)c->size, own);
    }
    return HH_OK;
}

static hh_code all_gather(hh_comm *c, hh_tensor t, hh_error *err) {
    float *x = (float *)t.data;
    int64_t n = hh_tensor_count(t);
    ncclResult_t code = ncclSuccess;
    (void)err;
    if (!begin(c, "weights between GPUs")) return HH_OK;
    for (int64_t i = 1; i < c->size && code == ncclSuccess; i++) {
        int64_t from = (c->rank + c->size - i) % c->size, to = (c->rank + i) % c->size;
        code = receive(c, x + hh_comm_cut(n, from, c->size), clip(c, n, from, 0, n), from);
        if (code == ncclSuccess) code = send(c, x + hh_comm_cut(n, c->rank, c->size), clip(c, n, c->rank, 0, n), to);
    }
    end(c, "weights between GPUs", code);
    return HH_OK;
}

static hh_code exchange(hh_comm *c, void *all, const void *mine, size_t bytes, hh_error *err) {
    return of(c)->host.exchange(&of(c)->host, all, mine, bytes, err);
}

static hh_code to_first(hh_comm *c, int64_t from, void *dst, const void *src, size_t bytes, hh_error *err) {
    return of(c)->host.to_first(&of(c)->host, from, dst, src, bytes, err);
}

/* Gives back what is the card's; the processes remain a group over MPI. */
static void leave(group *g) {
    if (g->nccl) ncclCommDestroy(g->nccl);
    if (g->stage.base) g->be->arena_release(g->be, &g->stage);
    hh_free(g);
}

static void close_group(hh_comm *c) {
    hh_comm host = of(c)->host;
    leave(of(c));
    *c = host;
    c->close(c);
}

static hh_code fail_nccl(hh_error *err, const char *what, ncclResult_t code) {
    return hh_fail(err, HH_EUNSUPPORTED,
                   "NCCL: %s: %s; NCCL_DEBUG=INFO says more, and every process needs a GPU of its own", what,
                   ncclGetErrorString(code));
}

static hh_code connect(group *g, hh_comm *c, hh_error *err) {
    ncclUniqueId id;
    ncclResult_t code = ncclSuccess;
    memset(&id, 0, sizeof id);
    g->piece = (int64_t)(STAGE_BYTES / sizeof(float)) / c->size / 16 * 16;
    hh_code made = g->be->arena_init(g->be, &g->stage, "stage of other processes' gradients", STAGE_BYTES, err);
    if (made == HH_OK && c->rank == 0) code = ncclGetUniqueId(&id);
    if (code != ncclSuccess) made = fail_nccl(err, "the group cannot be named", code);
    HH_TRY(hh_comm_agree(c, made, err));
    HH_TRY(hh_comm_take_first(c, &id, sizeof id, err));
    code = ncclCommInitRank(&g->nccl, (int)c->size, id, (int)c->rank);
    return code == ncclSuccess ? HH_OK : fail_nccl(err, "the GPUs cannot be connected", code);
}

extern "C" hh_code hh_cuda_comm(hh_comm *c, hh_backend *be, hh_error *err) {
    if (c->size == 1) return HH_OK;
    setenv("NCCL_NVLS_ENABLE", "0", 0); /* only reductions would use the switches' multicast */
    group *g = (group *)hh_alloc(sizeof *g);
    g->host = *c;
    g->be = be;
    hh_code code = hh_comm_agree(c, connect(g, c, err), err);
    if (code != HH_OK) {
        leave(g);
        return code;
    }
    c->name = "nccl";
    c->impl = g;
    c->exchange = exchange;
    c->reduce_scatter = reduce_scatter;
    c->all_gather = all_gather;
    c->to_first = to_first;
    c->close = close_group;
    return HH_OK;
}
