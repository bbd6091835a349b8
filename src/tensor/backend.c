/* What all backends share. */
#include "tensor/backend.h"

void hh_backend_close(hh_backend *be) {
    if (be) be->close(be);
}

void hh_backend_record_begin(hh_backend *be, const void *owner, uint64_t key) {
    if (be->record_begin) be->record_begin(be, owner, key);
}

bool hh_backend_record_end(hh_backend *be) {
    return be->record_end && be->record_end(be);
}

void hh_backend_record_drop(hh_backend *be, const void *owner) {
    if (be->record_drop) be->record_drop(be, owner);
}

void hh_backend_branch(hh_backend *be, hh_branch b) {
    if (be->branch) be->branch(be, b);
}
