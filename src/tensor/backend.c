/* What all backends share. */
#include "tensor/backend.h"

void hh_backend_close(hh_backend *be) {
    if (be) be->close(be);
}
