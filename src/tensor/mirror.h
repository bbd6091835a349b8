/* The CPU's view of tensors that may live elsewhere: in place where the backend's memory is the host's, else a copy.
 *
 * For what is done once and by the CPU: filling and reading weights, writing files. A mirror is one buffer that grows to
 * the largest tensor it is asked for, and holds one tensor at a time. */
#ifndef HH_TENSOR_MIRROR_H
#define HH_TENSOR_MIRROR_H

#include "tensor/backend.h"

typedef struct hh_mirror {
    hh_backend *be;
    void *buffer;
    size_t size;
} hh_mirror;

hh_mirror hh_mirror_of(hh_backend *be);
void hh_mirror_release(hh_mirror *m);

/* The bytes of a dense tensor, good until the mirror's next use. */
const void *hh_mirror_read(hh_mirror *m, hh_tensor t);
/* Where the numbers of a dense hh_real tensor are to be written; what is there before is not said. Hand it to
 * hh_mirror_flush before the mirror's next use. */
hh_real *hh_mirror_write(hh_mirror *m, hh_tensor t);
void hh_mirror_flush(hh_mirror *m, hh_tensor t);

/* A tensor of any type as hh_real numbers of the host, row behind row. Allocates nothing. */
void hh_tensor_to_host(hh_backend *be, hh_real *out, hh_tensor t);

#endif
