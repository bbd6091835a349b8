/* Processes that train together. One process is the case of a group of one, in which every call returns at once; MPI
 * (comm_mpi.c) and NCCL (ops/cuda/) fill the same structure, so that callers never ask how many there are.
 *
 * All ranks make the same calls in the same order. A process that fails on its own must not leave that order: what may
 * fail on some ranks alone ends in hh_comm_agree, after which all of them have failed with one sentence.
 *
 * Sums are taken in the order of the ranks, ((x0 + x1) + x2) + ..., so that they repeat bit for bit. n numbers are cut
 * into one slice a rank (hh_comm_cut); reductions leave a slice to its owner, gathers bring all slices to all.
 */
#ifndef HH_TENSOR_COMM_H
#define HH_TENSOR_COMM_H

#include "base/status.h"
#include "tensor/tensor.h"

typedef struct hh_comm hh_comm;

/* all[r * bytes ...] on every rank becomes what rank r gave as `mine`. Host memory, at most HH_COMM_MESSAGE bytes. */
typedef hh_code hh_comm_exchange_fn(hh_comm *c, void *all, const void *mine, size_t bytes, hh_error *err);
/* On a dense tensor of hh_real where the backend computes; the slices are those of its element count. */
typedef hh_code hh_comm_slices_fn(hh_comm *c, hh_tensor t, hh_error *err);
/* `src` of rank `from` to `dst` of rank 0; the others pass. Host memory. */
typedef hh_code hh_comm_to_first_fn(hh_comm *c, int64_t from, void *dst, const void *src, size_t bytes, hh_error *err);
typedef void hh_comm_close_fn(hh_comm *c);

struct hh_comm {
    const char *name;            /* "single", "mpi", "nccl" */
    int64_t rank, size;          /* rank of [0, size) */
    int64_t local_rank, n_local; /* the same among the processes on this host */
    int n_threads;               /* this process's share of the processors it may run on; 0: all of them */
    bool bound;                  /* it may run on fewer processors than its share of the host */
    char *inbox;                 /* [size * HH_COMM_MESSAGE] */
    void *impl;
    hh_comm_exchange_fn *exchange;
    hh_comm_slices_fn *reduce_scatter; /* a rank's slice becomes its sum over all ranks; the others are undefined */
    hh_comm_slices_fn *all_gather;     /* slice r of every rank becomes that of rank r */
    hh_comm_to_first_fn *to_first;
    hh_comm_close_fn *close;
};

#define HH_COMM_MESSAGE 1024

/* One process: rank 0 of 1. Nothing to release, close may be called all the same. */
hh_comm hh_comm_single(void);
/* The group that a launcher (mpirun, srun) has started this process in, or hh_comm_single. HH_EUNSUPPORTED when there
 * is one and the build has no MPI. */
hh_code hh_comm_open(hh_comm *out, hh_error *err);
/* Waits for the others. NULL is accepted. */
void hh_comm_close(hh_comm *c);

/* First of n numbers that belongs to `rank`; for rank == size, n. Slices begin at multiples of 16 numbers. */
int64_t hh_comm_cut(int64_t n, int64_t rank, int64_t size);

hh_code hh_comm_reduce_scatter(hh_comm *c, hh_tensor t, hh_error *err);
hh_code hh_comm_all_gather(hh_comm *c, hh_tensor t, hh_error *err);
hh_code hh_comm_to_first(hh_comm *c, int64_t from, void *dst, const void *src, size_t bytes, hh_error *err);

/* Adds x[n] over the ranks, for a few numbers on the host. */
hh_code hh_comm_sum(hh_comm *c, double *x, int64_t n, hh_error *err);
/* x becomes rank 0's. */
hh_code hh_comm_take_first(hh_comm *c, void *x, size_t bytes, hh_error *err);
/* HH_OK when every rank came with it. Otherwise all return one failure and its sentence: the first rank's that is more
 * than a wish to stop (HH_ECANCELLED), else the first rank's. Also a barrier. */
hh_code hh_comm_agree(hh_comm *c, hh_code mine, hh_error *err);

#endif
