/* The group of processes that mpirun or srun has started, over MPI; in builds with MPI=1. */
#ifndef HH_TENSOR_COMM_MPI_H
#define HH_TENSOR_COMM_MPI_H

#include "tensor/comm.h"

/* Without MPI in the build: HH_EUNSUPPORTED for a group of more than one. */
hh_code hh_comm_mpi_open(hh_comm *out, hh_error *err);

#endif
