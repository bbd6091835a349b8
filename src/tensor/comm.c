/* The communicator of one process. */
#include "tensor/comm.h"

static hh_code keep(hh_comm *c, hh_tensor t, hh_error *err) {
    (void)c, (void)t, (void)err;
    return HH_OK;
}

static void release_nothing(hh_comm *c) {
    (void)c;
}

hh_comm hh_comm_single(void) {
    return (hh_comm){.name = "single", .rank = 0, .size = 1, .allreduce = keep, .close = release_nothing};
}

hh_code hh_comm_allreduce(hh_comm *c, hh_tensor t, hh_error *err) {
    HH_ASSERT(t.dtype == HH_DTYPE_REAL && hh_tensor_is_dense(t));
    return c->allreduce(c, t, err);
}

void hh_comm_close(hh_comm *c) {
    if (c) c->close(c);
}
