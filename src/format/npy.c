/* NumPy's .npy files, written. */
#include "format/npy.h"

hh_code hh_npy_begin(hh_file_writer **out, const char *path, int rank, const int64_t *dim, hh_error *err) {
    hh_buf b = {0};
    hh_buf_puts(&b, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    for (int d = 0; d < rank; d++)
        hh_buf_printf(&b, "%lld%s", (long long)dim[d], d + 1 < rank ? ", " : rank == 1 ? "," : "");
    hh_buf_puts(&b, "), }");
    while ((10 + b.len + 1) % 64) hh_buf_puts(&b, " "); /* data begins at a multiple of 64 */
    hh_buf_puts(&b, "\n");
    unsigned char head[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)b.len, (unsigned char)(b.len >> 8)};
    hh_code code = hh_file_writer_open(out, path, err);
    if (code == HH_OK) {
        code = hh_file_writer_add(*out, head, sizeof head, err);
        if (code == HH_OK) code = hh_file_writer_add(*out, b.data, b.len, err);
        if (code != HH_OK) hh_file_writer_abandon(*out);
    }
    if (code != HH_OK) *out = NULL;
    hh_buf_release(&b);
    return code;
}

hh_code hh_npy_add(hh_file_writer *w, const hh_real *x, int64_t n, hh_error *err) {
    float piece[1024];
    for (int64_t at = 0; at < n; at += 1024) {
        int64_t m = n - at < 1024 ? n - at : 1024;
        for (int64_t i = 0; i < m; i++) piece[i] = (float)x[at + i];
        HH_TRY(hh_file_writer_add(w, piece, (size_t)m * sizeof *piece, err));
    }
    return HH_OK;
}
