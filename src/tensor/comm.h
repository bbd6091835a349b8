/* Processes that train or probe together. With one process every call returns at once; MPI and NCCL fill the same
 * structure, so that callers never ask how many there are.
 *
 * A reduction adds in the order of the ranks, so that its result repeats bit for bit. */
#ifndef HH_TENSOR_COMM_H
#define HH_TENSOR_COMM_H

#include "base/status.h"
#include "tensor/tensor.h"

typedef struct hh_comm hh_comm;

/* Adds t (dense hh_real) over all ranks, into t on every rank. All ranks call in the same order. */
typedef hh_code hh_comm_allreduce_fn(hh_comm *c, hh_tensor t, hh_error *err);
typedef void hh_comm_close_fn(hh_comm *c);

struct hh_comm {
    const char *name;   /* "single" */
    int64_t rank, size; /* rank of [0, size) */
    void *impl;
    hh_comm_allreduce_fn *allreduce;
    hh_comm_close_fn *close;
};

/* One process: rank 0 of 1. Nothing to release, close may be called all the same. */
hh_comm hh_comm_single(void);
hh_code hh_comm_allreduce(hh_comm *c, hh_tensor t, hh_error *err);
void hh_comm_close(hh_comm *c); /* NULL is accepted */

#endif
