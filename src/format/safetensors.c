/* safetensors, read and written: 8 bytes of little-endian header length, a JSON header, raw data.
 *
 * The format has no blocks of quantised numbers. A matrix of them is bytes here, U8 [rows, bytes of a row], and an entry
 * "blocks.NAME" of __metadata__ says of which type.
 *
 * Reading trusts nothing: the header is checked entry by entry, then all entries, sorted by offset, must tile the data
 * section without holes, overlaps or trailing bytes. A file that is shorter than its header says is damaged, not zeros.
 */
#include "format/safetensors.h"

#include "base/filemap.h"
#include "base/progress.h"
#include "format/json.h"
#include "format/quote.h"

#include <stdlib.h>
#include <string.h>

#define MAX_HEADER ((uint64_t)100 * 1000 * 1000)
#define METADATA   "__metadata__"
#define BLOCKS     "blocks."
#define BYTES      "U8"

static const struct {
    const char *name;
    hh_dtype dtype;
} stored_types[] = {{"F32", HH_DTYPE_F32},   {"F64", HH_DTYPE_F64}, {"F16", HH_DTYPE_F16},
                    {"BF16", HH_DTYPE_BF16}, {"I32", HH_DTYPE_I32}, {"I64", HH_DTYPE_I64}};
/* In the format's list, but nothing that a supported model stores. */
static const char *const other_types[] = {"BOOL", "U8",      "I8",      "U16",     "I16", "U32",     "U64",
                                          "C64",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "F4",  "F6_E2M3", "F6_E3M2"};

typedef struct entry {
    const char *name;
    uint64_t begin, end; /* in the data section */
    hh_tensor t;
} entry;

static int compare_entries(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* "PATH: tensor 'NAME': " is put before the sentence. */
static hh_code name_tensor(const char *path, const char *name, hh_error *err) {
    hh_quote q;
    return hh_fail_in(err, "%s: tensor %s", path, hh_quoted(&q, name, strlen(name)));
}

/* `blocks`: what the metadata says of the tensor, or NULL. */
static hh_code read_dtype(const json_t *v, const char *blocks, hh_dtype *out, hh_error *err) {
    hh_quote q;
    const char *name = json_string_value(v);
    if (!name) return hh_fail(err, HH_EFORMAT, "'dtype' is missing or not a string");
    if (blocks && strcmp(name, BYTES))
        return hh_fail(err, HH_EFORMAT, "dtype %s, but " METADATA " says that it holds blocks, which are " BYTES,
                       hh_quoted(&q, name, strlen(name)));
    for (int t = 0; blocks && t < HH_DTYPE_COUNT; t++) {
        if (!hh_dtype_is_quantised((hh_dtype)t) || strcmp(hh_dtype_name((hh_dtype)t), blocks)) continue;
        *out = (hh_dtype)t;
        return HH_OK;
    }
    if (blocks)
        return hh_fail(err, HH_EUNSUPPORTED, "blocks of type %s are not read", hh_quoted(&q, blocks, strlen(blocks)));
    for (size_t i = 0; i < sizeof stored_types / sizeof stored_types[0]; i++) {
        if (strcmp(stored_types[i].name, name) == 0) {
            *out = stored_types[i].dtype;
            return HH_OK;
        }
    }
    for (size_t i = 0; i < sizeof other_types / sizeof other_types[0]; i++)
        if (strcmp(other_types[i], name) == 0)
            return hh_fail(err, HH_EUNSUPPORTED, "dtype '%s' is not read; store the model as F32, F16 or BF16", name);
    return hh_fail(err, HH_EFORMAT, "dtype %s is unknown", hh_quoted(&q, name, strlen(name)));
}

/* An array of n non-negative integers. */
static hh_code read_sizes(const json_t *array, const char *what, size_t n, uint64_t *out, hh_error *err) {
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        if (!json_is_integer(v)) return hh_fail(err, HH_EFORMAT, "'%s' holds something that is not an integer", what);
        if (json_integer_value(v) < 0)
            return hh_fail(err, HH_EFORMAT, "'%s' holds the negative number %lld", what,
                           (long long)json_integer_value(v));
        out[i] = (uint64_t)json_integer_value(v);
    }
    return HH_OK;
}

/* A row of bytes as the row of numbers that its blocks hold. */
static hh_code read_block_rows(hh_tensor *t, hh_error *err) {
    const int64_t bytes = t->dim[1], block = (int64_t)hh_dtype_block_bytes(t->dtype);
    if (t->rank != 2) return hh_fail(err, HH_EFORMAT, "%d dimensions; blocks are rows of a matrix", t->rank);
    if (bytes % block)
        return hh_fail(err, HH_EFORMAT, "rows of %lld bytes are no whole blocks of %s, of %lld bytes each",
                       (long long)bytes, hh_dtype_name(t->dtype), (long long)block);
    if (bytes > INT64_MAX / hh_dtype_block(t->dtype))
        return hh_fail(err, HH_EFORMAT, "the product of its shape overflows 64 bits");
    t->dim[1] = t->stride = bytes / block * hh_dtype_block(t->dtype);
    return HH_OK;
}

/* Shape and bytes of an entry whose dtype is set. */
static hh_code read_shape(const json_t *shape, hh_tensor *t, size_t *bytes, hh_error *err) {
    uint64_t dim[HH_MAX_RANK] = {0};
    if (!json_is_array(shape)) return hh_fail(err, HH_EFORMAT, "'shape' is missing or not an array");
    size_t rank = json_array_size(shape);
    if (rank > HH_MAX_RANK)
        return hh_fail(err, HH_EUNSUPPORTED, "%zu dimensions; at most %d are read", rank, HH_MAX_RANK);
    HH_TRY(read_sizes(shape, "shape", rank, dim, err));
    size_t count = 1;
    bool over = false, empty = false;
    *t = (hh_tensor){.dtype = t->dtype, .rank = (int)rank, .dim = {1, 1, 1, 1}, .stride = 1};
    for (size_t i = 0; i < rank; i++) {
        empty = empty || dim[i] == 0; /* a zero hides no overflow of the others: rows are counted too */
        over = over || hh_mul_overflows(count, dim[i] ? (size_t)dim[i] : 1, &count);
        t->dim[i] = (int64_t)dim[i];
    }
    const size_t unit = hh_dtype_is_quantised(t->dtype) ? 1 : hh_dtype_block_bytes(t->dtype);
    over = over || count > INT64_MAX || hh_mul_overflows(count, unit, bytes);
    if (over) return hh_fail(err, HH_EFORMAT, "the product of its shape overflows 64 bits");
    if (empty) *bytes = 0;
    t->stride = hh_tensor_row_count(*t);
    return hh_dtype_is_quantised(t->dtype) ? read_block_rows(t, err) : HH_OK;
}

static hh_code read_entry(const json_t *v, const char *blocks, const unsigned char *data, uint64_t data_size, entry *e,
                          hh_error *err) {
    uint64_t offsets[2];
    size_t bytes;
    if (!json_is_object(v)) return hh_fail(err, HH_EFORMAT, "its header entry is not an object");
    HH_TRY(read_dtype(json_object_get(v, "dtype"), blocks, &e->t.dtype, err));
    HH_TRY(read_shape(json_object_get(v, "shape"), &e->t, &bytes, err));
    const json_t *at = json_object_get(v, "data_offsets");
    if (!json_is_array(at) || json_array_size(at) != 2)
        return hh_fail(err, HH_EFORMAT, "'data_offsets' is missing or not an array of two numbers");
    HH_TRY(read_sizes(at, "data_offsets", 2, offsets, err));
    e->begin = offsets[0];
    e->end = offsets[1];
    if (e->begin > e->end)
        return hh_fail(err, HH_EFORMAT, "data_offsets [%llu, %llu] are reversed", (unsigned long long)e->begin,
                       (unsigned long long)e->end);
    if (e->end - e->begin != bytes)
        return hh_fail(err, HH_EFORMAT, "data_offsets [%llu, %llu] hold %llu bytes, its shape and dtype need %zu",
                       (unsigned long long)e->begin, (unsigned long long)e->end,
                       (unsigned long long)(e->end - e->begin), bytes);
    if (e->end > data_size)
        return hh_fail(
            err, HH_EFORMAT,
            "data ends at byte %llu, but the file has only %llu bytes of data; it is truncated: fetch it again",
            (unsigned long long)e->end, (unsigned long long)data_size);
    e->t.data = (void *)(uintptr_t)(data + e->begin); /* read only by the store's contract */
    return HH_OK;
}

/* What the metadata says of a tensor's blocks; NULL: nothing. */
static const char *blocks_of(const json_t *header, const char *name) {
    char *key = hh_sprintf(BLOCKS "%s", name);
    const char *type = json_string_value(json_object_get(json_object_get(header, METADATA), key));
    hh_free(key);
    return type;
}

static hh_code check_metadata(const char *path, const json_t *header, const json_t *v, hh_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(v)) return hh_fail(err, HH_EFORMAT, "%s: " METADATA " is not an object", path);
    json_object_foreach((json_t *)(uintptr_t)v, key, value) {
        hh_quote q;
        if (!json_is_string(value))
            return hh_fail(err, HH_EFORMAT, "%s: " METADATA " entry %s is not a string", path,
                           hh_quoted(&q, key, strlen(key)));
        if (!strncmp(key, BLOCKS, strlen(BLOCKS)) && !json_object_get(header, key + strlen(BLOCKS)))
            return hh_fail(err, HH_EFORMAT, "%s: " METADATA " entry %s speaks of a tensor that is not there", path,
                           hh_quoted(&q, key, strlen(key)));
    }
    return HH_OK;
}

/* Sorted entries must tile [0, data_size). */
static hh_code check_tiling(const char *path, const entry *e, size_t n, uint64_t data_size, hh_error *err) {
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (e[i].begin != at) {
            hh_fail(err, HH_EFORMAT, "data begins at byte %llu, but the tensor before it ends at %llu: %s",
                    (unsigned long long)e[i].begin, (unsigned long long)at,
                    e[i].begin > at ? "a hole, which is not allowed" : "they overlap");
            return name_tensor(path, e[i].name, err);
        }
        at = e[i].end;
    }
    if (at != data_size)
        return hh_fail(err, HH_EFORMAT,
                       "%s: %llu bytes follow the last tensor's data; a file ends with its last tensor", path,
                       (unsigned long long)(data_size - at));
    return HH_OK;
}

static hh_code read_header(const char *path, json_t *header, const unsigned char *data, uint64_t data_size,
                           entry *entries, size_t *n, hh_error *err) {
    const char *name;
    json_t *v;
    json_object_foreach(header, name, v) {
        if (strcmp(name, METADATA) == 0) {
            HH_TRY(check_metadata(path, header, v, err));
            continue;
        }
        entries[*n].name = name;
        if (read_entry(v, blocks_of(header, name), data, data_size, &entries[*n], err) != HH_OK)
            return name_tensor(path, name, err);
        ++*n;
    }
    qsort(entries, *n, sizeof *entries, compare_entries);
    return check_tiling(path, entries, *n, data_size, err);
}

static hh_code locate_header(const char *path, const unsigned char *bytes, size_t size, uint64_t *length,
                             hh_error *err) {
    if (size < 8)
        return hh_fail(err, HH_EFORMAT, "%s: %zu bytes long; a safetensors file begins with 8 bytes of header length",
                       path, size);
    for (int i = 7; i >= 0; i--) *length = *length << 8 | bytes[i];
    if (*length == 0) return hh_fail(err, HH_EFORMAT, "%s: the header length is 0", path);
    if (*length > MAX_HEADER)
        return hh_fail(err, HH_EFORMAT, "%s: a header of %llu bytes; the format allows %llu: not a safetensors file?",
                       path, (unsigned long long)*length, (unsigned long long)MAX_HEADER);
    if (*length > size - 8)
        return hh_fail(err, HH_EFORMAT,
                       "%s: a header of %llu bytes, but the file has only %zu after its length: truncated", path,
                       (unsigned long long)*length, size - 8);
    return HH_OK;
}

hh_code hh_safetensors_parse(const char *path, const void *bytes, size_t size, hh_safetensors_visit *visit,
                             void *context, hh_error *err) {
    const unsigned char *from = bytes;
    uint64_t length = 0;
    json_t *header;
    HH_TRY(locate_header(path, from, size, &length, err));
    HH_TRY(hh_json_parse(&header, path, (const char *)from + 8, (size_t)length, err));
    size_t n = 0;
    entry *entries = hh_alloc((json_object_size(header) + 1) * sizeof *entries);
    hh_code code = read_header(path, header, from + 8 + length, size - 8 - length, entries, &n, err);
    for (size_t i = 0; i < n && code == HH_OK; i++) code = visit(context, entries[i].name, entries[i].t, err);
    hh_free(entries);
    json_decref(header);
    return code;
}

/* The type a tensor is written in; F64 becomes F32. */
static hh_dtype written_type(hh_dtype t) {
    return t == HH_DTYPE_F64 ? HH_DTYPE_F32 : t;
}

static const char *written_name(hh_dtype t) {
    if (hh_dtype_is_quantised(t)) return BYTES;
    for (size_t i = 0; i < sizeof stored_types / sizeof stored_types[0]; i++)
        if (stored_types[i].dtype == written_type(t)) return stored_types[i].name;
    hh_assert_failed(__FILE__, __LINE__, "a dtype without a name in the format");
}

/* A matrix of blocks into the metadata, its shape into that of its bytes. */
static void note_blocks(json_t *header, const char *name, hh_tensor *t) {
    HH_ASSERT(t->rank == 2);
    char *key = hh_sprintf(BLOCKS "%s", name);
    json_object_set_new(json_object_get(header, METADATA), key, json_string(hh_dtype_name(t->dtype)));
    hh_free(key);
    t->dim[1] = (int64_t)hh_dtype_bytes(t->dtype, t->dim[1]);
}

/* The header as text, padded so that data begins at a multiple of 8; *total is the size of the data. */
static hh_code make_header(const char *path, const hh_named_tensor *tensors, int64_t n, hh_buf *out, double *total,
                           hh_error *err) {
    hh_code code = HH_OK;
    json_int_t at = 0;
    json_t *header = json_pack("{s:{s:s}}", METADATA, "format", "pt");
    for (int64_t i = 0; i < n && code == HH_OK; i++) {
        hh_tensor t = tensors[i].t;
        HH_ASSERT(hh_tensor_is_dense(t));
        if (hh_dtype_is_quantised(t.dtype)) note_blocks(header, tensors[i].name, &t);
        json_t *shape = json_array();
        for (int d = 0; d < t.rank; d++) json_array_append_new(shape, json_integer(t.dim[d]));
        json_int_t end =
            at + (json_int_t)hh_dtype_bytes(written_type(tensors[i].t.dtype), hh_tensor_count(tensors[i].t));
        json_t *v =
            json_pack("{s:s, s:o, s:[I, I]}", "dtype", written_name(t.dtype), "shape", shape, "data_offsets", at, end);
        at = end;
        hh_quote q;
        if (json_object_get(header, tensors[i].name)) {
            json_decref(v);
            code = hh_fail(err, HH_EINVAL, "%s: two tensors are called %s", path,
                           hh_quoted(&q, tensors[i].name, strlen(tensors[i].name)));
        } else if (json_object_set_new(header, tensors[i].name, v) != 0) {
            code = hh_fail(err, HH_EINVAL, "%s: the tensor name %s is not UTF-8", path,
                           hh_quoted(&q, tensors[i].name, strlen(tensors[i].name)));
        }
    }
    char *text = code == HH_OK ? json_dumps(header, JSON_COMPACT) : NULL;
    if (text) {
        hh_buf_puts(out, text);
        while (out->len % 8) hh_buf_puts(out, " ");
    }
    hh_free(text);
    json_decref(header);
    *total = (double)at;
    return code;
}

static hh_code write_data(hh_file_writer *w, hh_tensor t, hh_error *err) {
    if (t.dtype != HH_DTYPE_F64) return hh_file_writer_add(w, t.data, hh_tensor_bytes(t), err);
    const double *from = t.data;
    float piece[1024];
    for (int64_t at = 0, n = hh_tensor_count(t); at < n; at += 1024) {
        int64_t m = n - at < 1024 ? n - at : 1024;
        for (int64_t i = 0; i < m; i++) piece[i] = (float)from[at + i];
        HH_TRY(hh_file_writer_add(w, piece, (size_t)m * sizeof *piece, err));
    }
    return HH_OK;
}

static hh_code write_all(hh_file_writer *w, const hh_buf *header, const hh_named_tensor *tensors, int64_t n,
                         double total, hh_safetensors_give *give, void *context, hh_error *err) {
    unsigned char length[8];
    hh_progress progress;
    double done = 0;
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)header->len >> (8 * i));
    HH_TRY(hh_file_writer_add(w, length, sizeof length, err));
    HH_TRY(hh_file_writer_add(w, header->data, header->len, err));
    hh_progress_begin(&progress, "write", "bytes", total);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < n && code == HH_OK; i++) {
        hh_tensor t = tensors[i].t;
        const void *data = t.data;
        if (give) code = give(context, i, &data, err);
        t.data = (void *)(uintptr_t)data; /* only read */
        if (code == HH_OK) code = write_data(w, t, err);
        done += (double)hh_tensor_bytes(tensors[i].t);
        hh_progress_update(&progress, done, NULL);
    }
    hh_progress_end(&progress);
    return code;
}

hh_code hh_safetensors_write_each(const char *path, const hh_named_tensor *tensors, int64_t n,
                                  hh_safetensors_give *give, void *context, hh_error *err) {
    hh_buf header = {0};
    hh_file_writer *w = NULL;
    double total = 0;
    hh_code code = make_header(path, tensors, n, &header, &total, err);
    if (code == HH_OK) code = hh_file_writer_open(&w, path, err);
    if (code == HH_OK) {
        code = write_all(w, &header, tensors, n, total, give, context, err);
        if (code == HH_OK) {
            code = hh_file_writer_commit(w, err);
        } else {
            hh_file_writer_abandon(w);
        }
    }
    hh_buf_release(&header);
    return code;
}

hh_code hh_safetensors_write(const char *path, const hh_named_tensor *tensors, int64_t n, hh_error *err) {
    return hh_safetensors_write_each(path, tensors, n, NULL, NULL, err);
}
