/* Copies between a backend's tensors and the CPU; see mirror.h. */
#include "tensor/mirror.h"

#include <string.h>

hh_mirror hh_mirror_of(hh_backend *be) {
    return (hh_mirror){.be = be};
}

void hh_mirror_release(hh_mirror *m) {
    hh_free(m->buffer);
    *m = (hh_mirror){.be = m->be};
}

static void *reserve(hh_mirror *m, size_t bytes) {
    if (bytes > m->size) {
        hh_free(m->buffer); /* what is in it need not be moved */
        m->buffer = hh_alloc(bytes);
        m->size = bytes;
    }
    return m->buffer;
}

const void *hh_mirror_read(hh_mirror *m, hh_tensor t) {
    HH_ASSERT(hh_tensor_is_dense(t));
    if (m->be->host_memory) return t.data;
    void *buffer = reserve(m, hh_tensor_bytes(t));
    m->be->to_host(m->be, buffer, t.data, hh_tensor_bytes(t));
    return buffer;
}

hh_real *hh_mirror_write(hh_mirror *m, hh_tensor t) {
    HH_ASSERT(hh_tensor_is_dense(t) && t.dtype == HH_DTYPE_REAL);
    return m->be->host_memory ? t.data : reserve(m, hh_tensor_bytes(t));
}

void hh_mirror_flush(hh_mirror *m, hh_tensor t) {
    if (!m->be->host_memory) m->be->to_device(m->be, t.data, m->buffer, hh_tensor_bytes(t));
}

/* n numbers that lie together. A smaller type is put at the end of `out` and spread from there: no number is overwritten
 * before it has been read. */
static void read_run(hh_backend *be, hh_real *out, hh_dtype type, const void *data, int64_t n) {
    size_t bytes = hh_dtype_bytes(type, n);
    if (be->host_memory) {
        hh_dequantise(type, data, n, out);
        return;
    }
    HH_ASSERT(bytes <= (size_t)n * sizeof *out);
    char *raw = (char *)out + (size_t)n * sizeof *out - bytes, part[256 * sizeof(hh_real)];
    be->to_host(be, raw, data, bytes);
    if (type == HH_DTYPE_REAL) return;
    for (int64_t i = 0; i < n; i += 256) {
        int64_t k = n - i < 256 ? n - i : 256;
        memcpy(part, raw + hh_dtype_bytes(type, i), hh_dtype_bytes(type, k));
        hh_dequantise(type, part, k, out + i);
    }
}

void hh_tensor_to_host(hh_backend *be, hh_real *out, hh_tensor t) {
    const int64_t n = hh_tensor_row_count(t);
    if (hh_tensor_is_dense(t)) {
        read_run(be, out, t.dtype, t.data, hh_tensor_count(t));
        return;
    }
    for (int64_t r = 0; r < t.dim[0]; r++)
        read_run(be, out + r * n, t.dtype, (const char *)t.data + hh_dtype_bytes(t.dtype, r * t.stride), n);
}
