/* NumPy's .npy files (version 1.0), written as little-endian float32 in C order. */
#ifndef HH_FORMAT_NPY_H
#define HH_FORMAT_NPY_H

#include "base/filemap.h"
#include "tensor/tensor.h"

/* In pieces, for arrays that are never whole in memory: begin with the shape, add values row after row, commit with
 * hh_file_writer_commit (or abandon). Nothing stands at `path` before the commit. */
hh_code hh_npy_begin(hh_file_writer **out, const char *path, int rank, const int64_t *dim, hh_error *err);
hh_code hh_npy_add(hh_file_writer *w, const hh_real *x, int64_t n, hh_error *err);

#endif
