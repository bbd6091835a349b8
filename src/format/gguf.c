/* GGUF, read: magic, version, counts, typed metadata, tensor table, then data at multiples of an alignment.
 *
 * A cursor walks the mapped file and never moves past its end; memory is taken only for elements that have been seen,
 * so a count that lies costs nothing. Values stay in the map and are decoded when they are asked for; arrays of strings
 * get a table of their starts, so that any element is found at once. */
#include "format/gguf.h"

#include "base/filemap.h"
#include "format/quote.h"

#include <stdlib.h>
#include <string.h>

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, VALUE_TYPES };
static const size_t value_bytes[VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
static const char *const value_names[VALUE_TYPES] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                     "bool", "string", "array", "u64", "i64", "f64"};

/* ggml's numbers of tensor types. A name without a dtype is known and not read. */
static const struct {
    const char *name;
    int dtype; /* -1: not read */
} ggml_types[] = {
    [0] = {"F32", HH_DTYPE_F32},
    [1] = {"F16", HH_DTYPE_F16},
    [2] = {"Q4_0", HH_DTYPE_Q4_0},
    [3] = {"Q4_1", HH_DTYPE_Q4_1},
    [6] = {"Q5_0", HH_DTYPE_Q5_0},
    [7] = {"Q5_1", HH_DTYPE_Q5_1},
    [8] = {"Q8_0", HH_DTYPE_Q8_0},
    [9] = {"Q8_1", -1},
    [10] = {"Q2_K", -1},
    [11] = {"Q3_K", -1},
    [12] = {"Q4_K", HH_DTYPE_Q4_K},
    [13] = {"Q5_K", HH_DTYPE_Q5_K},
    [14] = {"Q6_K", HH_DTYPE_Q6_K},
    [15] = {"Q8_K", -1},
    [16] = {"IQ2_XXS", -1},
    [17] = {"IQ2_XS", -1},
    [18] = {"IQ3_XXS", -1},
    [19] = {"IQ1_S", -1},
    [20] = {"IQ4_NL", -1},
    [21] = {"IQ3_S", -1},
    [22] = {"IQ2_S", -1},
    [23] = {"IQ4_XS", -1},
    [24] = {"I8", -1},
    [25] = {"I16", -1},
    [26] = {"I32", HH_DTYPE_I32},
    [27] = {"I64", HH_DTYPE_I64},
    [28] = {"F64", HH_DTYPE_F64},
    [29] = {"IQ1_M", -1},
    [30] = {"BF16", HH_DTYPE_BF16},
    [34] = {"TQ1_0", -1},
    [35] = {"TQ2_0", -1},
    [39] = {"MXFP4", -1},
    [40] = {"NVFP4", -1},
};

typedef struct text {
    const char *s;
    size_t len;
} text;

typedef struct entry {
    text key;
    char *name;    /* the key, NUL-terminated */
    uint32_t type; /* for an array: of its elements */
    bool is_array;
    int64_t count;                /* 1 for a scalar */
    const unsigned char *at;      /* first value; a string begins with its length */
    const unsigned char **string; /* [count] of an array of strings */
} entry;

struct hh_gguf {
    const char *path; /* the caller's; valid while parsing */
    const unsigned char *at, *begin, *end;
    const unsigned char *metadata_end; /* behind the last key's value */
    uint64_t alignment;
    entry *entries;
    int64_t n_entries, entry_capacity;
    const entry **by_key; /* sorted */
    hh_named_tensor *tensors;
    uint64_t *offsets;
    int64_t n_tensors, tensor_capacity;
    char *file; /* copy of path */
};

static uint64_t load(const unsigned char *p, size_t n) {
    uint64_t v = 0;
    for (size_t i = n; i > 0; i--) v = v << 8 | p[i - 1];
    return v;
}

static size_t left(const hh_gguf *g) {
    return (size_t)(g->end - g->at);
}

static hh_code take(hh_gguf *g, size_t n, const char *what, uint64_t *out, hh_error *err) {
    *out = 0;
    if (left(g) < n)
        return hh_fail(err, HH_EFORMAT, "%s: the file ends at byte %zu, inside %s: truncated; fetch it again", g->path,
                       (size_t)(g->end - g->begin), what);
    *out = load(g->at, n);
    g->at += n;
    return HH_OK;
}

static hh_code take_string(hh_gguf *g, const char *what, text *out, hh_error *err) {
    uint64_t len;
    HH_TRY(take(g, 8, what, &len, err));
    if (len > left(g))
        return hh_fail(err, HH_EFORMAT, "%s: %s at byte %zu claims %llu bytes, the file has %zu left", g->path, what,
                       (size_t)(g->at - g->begin) - 8, (unsigned long long)len, left(g));
    *out = (text){(const char *)g->at, (size_t)len};
    g->at += len;
    return HH_OK;
}

/* A key or tensor name: not empty, no NUL inside, of sane length. */
static hh_code take_name(hh_gguf *g, const char *what, text *out, hh_error *err) {
    *out = (text){0};
    HH_TRY(take_string(g, what, out, err));
    if (out->len == 0 || out->len > 65535 || memchr(out->s, 0, out->len))
        return hh_fail(err, HH_EFORMAT, "%s: %s of %zu bytes at byte %zu is not a name (empty, too long or with a NUL)",
                       g->path, what, out->len, (size_t)((const unsigned char *)out->s - g->begin));
    return HH_OK;
}

static char *copy_text(text t) {
    char *s = hh_alloc(t.len + 1);
    memcpy(s, t.s, t.len);
    return s;
}

static hh_code refuse_entry(const hh_gguf *g, const entry *e, hh_code code, const char *why, hh_error *err) {
    hh_quote q;
    return hh_fail(err, code, "%s: key %s %s", g->path, hh_quoted(&q, e->key.s, e->key.len), why);
}

static hh_code take_array(hh_gguf *g, entry *e, hh_error *err) {
    uint64_t type, count, skipped;
    HH_TRY(take(g, 4, "an array's type", &type, err));
    HH_TRY(take(g, 8, "an array's length", &count, err));
    if (type >= VALUE_TYPES) return refuse_entry(g, e, HH_EFORMAT, "is an array of an unknown type", err);
    if (type == ARRAY) return refuse_entry(g, e, HH_EUNSUPPORTED, "is an array of arrays, which is not read", err);
    size_t least = type == STRING ? 8 : value_bytes[type];
    if (count > left(g) / least) return refuse_entry(g, e, HH_EFORMAT, "is an array longer than the file", err);
    e->is_array = true;
    e->type = (uint32_t)type;
    e->count = (int64_t)count;
    e->at = g->at;
    if (type != STRING) {
        g->at += count * least;
        return HH_OK;
    }
    e->string = hh_alloc(((size_t)count + 1) * sizeof *e->string);
    for (uint64_t i = 0; i < count; i++) {
        text ignored;
        e->string[i] = g->at;
        if (left(g) < 8) return take(g, 8, "an array of strings", &skipped, err);
        HH_TRY(take_string(g, "a string of an array", &ignored, err));
    }
    return HH_OK;
}

static hh_code take_value(hh_gguf *g, entry *e, hh_error *err) {
    uint64_t type, v;
    text ignored;
    HH_TRY(take(g, 4, "a value's type", &type, err));
    if (type >= VALUE_TYPES) {
        hh_quote q;
        return hh_fail(err, HH_EFORMAT, "%s: key %s has the unknown type %llu", g->path,
                       hh_quoted(&q, e->key.s, e->key.len), (unsigned long long)type);
    }
    if (type == ARRAY) return take_array(g, e, err);
    e->type = (uint32_t)type;
    e->count = 1;
    e->at = g->at;
    if (type == STRING) return take_string(g, "a value", &ignored, err);
    HH_TRY(take(g, value_bytes[type], "a value", &v, err));
    if (type == BOOL && v > 1) return refuse_entry(g, e, HH_EFORMAT, "is a bool that is neither 0 nor 1", err);
    return HH_OK;
}

static hh_code take_entries(hh_gguf *g, uint64_t n, hh_error *err) {
    for (uint64_t i = 0; i < n; i++) {
        text key;
        HH_TRY(take_name(g, "a metadata key", &key, err));
        if (g->n_entries == g->entry_capacity) {
            g->entry_capacity = g->entry_capacity ? 2 * g->entry_capacity : 32;
            g->entries = hh_realloc(g->entries, (size_t)g->entry_capacity * sizeof *g->entries);
        }
        entry *e = &g->entries[g->n_entries++];
        *e = (entry){.key = key, .name = copy_text(key)};
        HH_TRY(take_value(g, e, err));
    }
    return HH_OK;
}

static int compare_keys(const void *a, const void *b) {
    return strcmp((*(const entry *const *)a)->name, (*(const entry *const *)b)->name);
}

static hh_code sort_entries(hh_gguf *g, hh_error *err) {
    g->by_key = hh_alloc(((size_t)g->n_entries + 1) * sizeof *g->by_key);
    for (int64_t i = 0; i < g->n_entries; i++) g->by_key[i] = &g->entries[i];
    qsort(g->by_key, (size_t)g->n_entries, sizeof *g->by_key, compare_keys);
    for (int64_t i = 1; i < g->n_entries; i++)
        if (strcmp(g->by_key[i - 1]->name, g->by_key[i]->name) == 0)
            return refuse_entry(g, g->by_key[i], HH_EFORMAT, "occurs twice", err);
    return HH_OK;
}

static const entry *find(const hh_gguf *g, const char *key) {
    const entry wanted = {.name = (char *)(uintptr_t)key}, *p = &wanted;
    const entry **found = bsearch(&p, g->by_key, (size_t)g->n_entries, sizeof *g->by_key, compare_keys);
    return found ? *found : NULL;
}

static hh_code read_alignment(hh_gguf *g, hh_error *err) {
    const entry *e = find(g, "general.alignment");
    g->alignment = 32;
    if (!e) return HH_OK;
    if (e->is_array || e->type != U32) return refuse_entry(g, e, HH_EFORMAT, "is not a u32", err);
    g->alignment = load(e->at, 4);
    if (g->alignment < 8 || (g->alignment & (g->alignment - 1)))
        return refuse_entry(g, e, HH_EFORMAT, "is not a power of two of at least 8", err);
    return HH_OK;
}

static hh_code read_type(uint64_t type, hh_dtype *out, hh_error *err) {
    if (type >= sizeof ggml_types / sizeof ggml_types[0] || !ggml_types[type].name)
        return hh_fail(err, HH_EFORMAT, "has the unknown type %llu", (unsigned long long)type);
    if (ggml_types[type].dtype < 0)
        return hh_fail(err, HH_EUNSUPPORTED,
                       "is stored as %s, which is not read; use F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, "
                       "Q5_K or Q6_K",
                       ggml_types[type].name);
    *out = (hh_dtype)ggml_types[type].dtype;
    return HH_OK;
}

/* GGUF's first dimension is the innermost one. */
static hh_code make_tensor(hh_tensor *t, int rank, const uint64_t *dim, hh_error *err) {
    size_t count = 1;
    bool over = false;
    t->rank = rank;
    for (int d = 0; d < HH_MAX_RANK; d++) t->dim[d] = 1;
    for (int d = 0; d < rank; d++) {
        /* a zero hides no overflow of the others: rows are counted too */
        over = over || dim[d] > INT64_MAX || hh_mul_overflows(count, dim[d] ? (size_t)dim[d] : 1, &count);
        t->dim[rank - 1 - d] = (int64_t)dim[d];
    }
    /* No supported type takes more than 8 bytes an element. */
    if (over || count > INT64_MAX / 8) return hh_fail(err, HH_EFORMAT, "has a shape whose product overflows 64 bits");
    uint64_t row = rank ? dim[0] : 1;
    if (row % (uint64_t)hh_dtype_block(t->dtype))
        return hh_fail(err, HH_EFORMAT, "has rows of %llu values, not a multiple of the %lld in a block of %s",
                       (unsigned long long)row, (long long)hh_dtype_block(t->dtype), hh_dtype_name(t->dtype));
    t->stride = hh_tensor_row_count(*t);
    return HH_OK;
}

static hh_code name_tensor(const hh_gguf *g, text name, hh_error *err) {
    hh_quote q;
    char sentence[sizeof err->text];
    memcpy(sentence, err->text, sizeof sentence);
    return hh_fail(err, err->code, "%s: tensor %s %s", g->path, hh_quoted(&q, name.s, name.len), sentence);
}

static hh_code take_tensor(hh_gguf *g, hh_named_tensor *out, uint64_t *offset, hh_error *err) {
    text name;
    uint64_t rank, type, dim[HH_MAX_RANK] = {0};
    HH_TRY(take_name(g, "a tensor's name", &name, err));
    HH_TRY(take(g, 4, "a tensor's rank", &rank, err));
    if (rank > HH_MAX_RANK) {
        hh_fail(err, HH_EFORMAT, "has %llu dimensions; at most %d are allowed", (unsigned long long)rank, HH_MAX_RANK);
        return name_tensor(g, name, err);
    }
    for (uint64_t d = 0; d < rank; d++) HH_TRY(take(g, 8, "a tensor's shape", &dim[d], err));
    HH_TRY(take(g, 4, "a tensor's type", &type, err));
    HH_TRY(take(g, 8, "a tensor's offset", offset, err));
    hh_code code = read_type(type, &out->t.dtype, err);
    if (code == HH_OK) code = make_tensor(&out->t, (int)rank, dim, err);
    if (code != HH_OK) return name_tensor(g, name, err);
    out->name = copy_text(name);
    return HH_OK;
}

static hh_code take_tensors(hh_gguf *g, uint64_t n, hh_error *err) {
    for (uint64_t i = 0; i < n; i++) {
        hh_named_tensor t = {.file = g->file};
        uint64_t offset = 0;
        HH_TRY(take_tensor(g, &t, &offset, err));
        if (g->n_tensors == g->tensor_capacity) {
            g->tensor_capacity = g->tensor_capacity ? 2 * g->tensor_capacity : 64;
            g->tensors = hh_realloc(g->tensors, (size_t)g->tensor_capacity * sizeof *g->tensors);
            g->offsets = hh_realloc(g->offsets, (size_t)g->tensor_capacity * sizeof *g->offsets);
        }
        g->tensors[g->n_tensors] = t;
        g->offsets[g->n_tensors++] = offset;
    }
    return HH_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static hh_code check_names(const hh_gguf *g, hh_error *err) {
    const char **names = hh_alloc(((size_t)g->n_tensors + 1) * sizeof *names);
    hh_code code = HH_OK;
    for (int64_t i = 0; i < g->n_tensors; i++) names[i] = g->tensors[i].name;
    qsort(names, (size_t)g->n_tensors, sizeof *names, compare_names);
    for (int64_t i = 1; i < g->n_tensors && code == HH_OK; i++) {
        hh_quote q;
        if (strcmp(names[i - 1], names[i]) == 0)
            code = hh_fail(err, HH_EFORMAT, "%s: tensor %s occurs twice", g->path,
                           hh_quoted(&q, names[i], strlen(names[i])));
    }
    hh_free(names);
    return code;
}

/* Tensors stand one behind another in the order of the table, each at a multiple of the alignment. */
static hh_code place_tensors(hh_gguf *g, hh_error *err) {
    uint64_t size = (uint64_t)(g->end - g->begin), start = (uint64_t)(g->at - g->begin), expected = 0;
    start = (start + g->alignment - 1) & ~(g->alignment - 1);
    uint64_t data_size = start < size ? size - start : 0;
    for (int64_t i = 0; i < g->n_tensors; i++) {
        hh_named_tensor *t = &g->tensors[i];
        uint64_t bytes = hh_tensor_bytes(t->t), offset = g->offsets[i];
        text name = {t->name, strlen(t->name)};
        if (offset != expected) {
            hh_fail(err, HH_EFORMAT,
                    "has its data at offset %llu; %llu was expected behind the tensor before it, at a "
                    "multiple of %llu",
                    (unsigned long long)offset, (unsigned long long)expected, (unsigned long long)g->alignment);
            return name_tensor(g, name, err);
        }
        if (offset > data_size || bytes > data_size - offset) {
            hh_fail(err, HH_EFORMAT,
                    "needs bytes [%llu, %llu) of the data, the file has %llu: truncated; fetch it again",
                    (unsigned long long)offset, (unsigned long long)(offset + bytes), (unsigned long long)data_size);
            return name_tensor(g, name, err);
        }
        t->t.data = (void *)(uintptr_t)(g->begin + start + offset);
        expected = (offset + bytes + g->alignment - 1) & ~(g->alignment - 1);
    }
    return HH_OK;
}

static hh_code parse(hh_gguf *g, hh_error *err) {
    uint64_t magic, version, n_tensors, n_entries;
    HH_TRY(take(g, 4, "the magic", &magic, err));
    if (memcmp(g->begin, "GGUF", 4) != 0) return hh_fail(err, HH_EFORMAT, "%s: does not begin with GGUF", g->path);
    HH_TRY(take(g, 4, "the version", &version, err));
    if (version != 2 && version != 3)
        return hh_fail(err, HH_EUNSUPPORTED, "%s: GGUF version %llu%s; versions 2 and 3 (little-endian) are read",
                       g->path, (unsigned long long)version, version & 0xffff ? "" : " or big-endian data");
    HH_TRY(take(g, 8, "the number of tensors", &n_tensors, err));
    HH_TRY(take(g, 8, "the number of keys", &n_entries, err));
    /* A key takes at least 13 bytes, a tensor 24. */
    if (n_entries > left(g) / 13 || n_tensors > left(g) / 24)
        return hh_fail(err, HH_EFORMAT, "%s: claims %llu keys and %llu tensors, more than its %zu bytes can hold",
                       g->path, (unsigned long long)n_entries, (unsigned long long)n_tensors, left(g));
    HH_TRY(take_entries(g, n_entries, err));
    g->metadata_end = g->at;
    HH_TRY(sort_entries(g, err));
    HH_TRY(read_alignment(g, err));
    HH_TRY(take_tensors(g, n_tensors, err));
    HH_TRY(check_names(g, err));
    return place_tensors(g, err);
}

hh_code hh_gguf_parse(hh_gguf **out, const char *path, const void *bytes, size_t size, hh_error *err) {
    hh_gguf *g = hh_alloc(sizeof *g);
    *out = NULL;
    g->file = hh_strdup(path);
    g->path = g->file;
    g->begin = g->at = bytes;
    g->end = g->begin + size;
    hh_code code = parse(g, err);
    if (code != HH_OK) {
        hh_gguf_free(g);
        return code;
    }
    *out = g;
    return HH_OK;
}

void hh_gguf_free(hh_gguf *g) {
    if (!g) return;
    for (int64_t i = 0; i < g->n_entries; i++) {
        hh_free(g->entries[i].name);
        hh_free(g->entries[i].string);
    }
    for (int64_t i = 0; i < g->n_tensors; i++) hh_free((void *)(uintptr_t)g->tensors[i].name);
    hh_free(g->entries);
    hh_free(g->by_key);
    hh_free(g->tensors);
    hh_free(g->offsets);
    hh_free(g->file);
    hh_free(g);
}

int64_t hh_gguf_tensor_count(const hh_gguf *g) {
    return g->n_tensors;
}

const hh_named_tensor *hh_gguf_tensor(const hh_gguf *g, int64_t i) {
    HH_ASSERT(i >= 0 && i < g->n_tensors);
    return &g->tensors[i];
}

bool hh_gguf_has(const hh_gguf *g, const char *key) {
    return find(g, key) != NULL;
}

/* Element i as an integer; a u64 beyond INT64_MAX is none. */
static bool decode_int(const entry *e, int64_t i, int64_t *out) {
    size_t n = value_bytes[e->type];
    if (e->type == F32 || e->type == F64 || e->type == STRING) return false;
    uint64_t v = load(e->at + (size_t)i * n, n);
    switch (e->type) {
    case I8:
        *out = (int8_t)v;
        return true;
    case I16:
        *out = (int16_t)v;
        return true;
    case I32:
        *out = (int32_t)v;
        return true;
    case I64:
        *out = (int64_t)v;
        return true;
    default:
        *out = (int64_t)v;
        return v <= INT64_MAX;
    }
}

static bool decode_float(const entry *e, int64_t i, double *out) {
    const unsigned char *p = e->at + (size_t)i * value_bytes[e->type];
    int64_t whole;
    float f;
    if (e->type == F32) {
        memcpy(&f, p, sizeof f);
        *out = f;
        return true;
    }
    if (e->type == F64) {
        memcpy(out, p, sizeof *out);
        return true;
    }
    if (!decode_int(e, i, &whole)) return false;
    *out = (double)whole;
    return true;
}

static const entry *find_scalar(const hh_gguf *g, const char *key) {
    const entry *e = find(g, key);
    return e && !e->is_array ? e : NULL;
}

static const entry *find_element(const hh_gguf *g, const char *key, int64_t i) {
    const entry *e = find(g, key);
    return e && e->is_array && i >= 0 && i < e->count ? e : NULL;
}

bool hh_gguf_int(const hh_gguf *g, const char *key, int64_t *out) {
    const entry *e = find_scalar(g, key);
    return e && decode_int(e, 0, out);
}

bool hh_gguf_float(const hh_gguf *g, const char *key, double *out) {
    const entry *e = find_scalar(g, key);
    return e && decode_float(e, 0, out);
}

bool hh_gguf_bool(const hh_gguf *g, const char *key, bool *out) {
    const entry *e = find_scalar(g, key);
    if (!e || e->type != BOOL) return false;
    *out = *e->at != 0;
    return true;
}

static void decode_string(const unsigned char *p, const char **s, size_t *len) {
    *len = (size_t)load(p, 8);
    *s = (const char *)p + 8;
}

bool hh_gguf_string(const hh_gguf *g, const char *key, const char **s, size_t *len) {
    const entry *e = find_scalar(g, key);
    if (!e || e->type != STRING) return false;
    decode_string(e->at, s, len);
    return true;
}

bool hh_gguf_array_count(const hh_gguf *g, const char *key, int64_t *n) {
    const entry *e = find(g, key);
    if (!e || !e->is_array) return false;
    *n = e->count;
    return true;
}

bool hh_gguf_array_string(const hh_gguf *g, const char *key, int64_t i, const char **s, size_t *len) {
    const entry *e = find_element(g, key, i);
    if (!e || e->type != STRING) return false;
    decode_string(e->string[i], s, len);
    return true;
}

bool hh_gguf_array_int(const hh_gguf *g, const char *key, int64_t i, int64_t *out) {
    const entry *e = find_element(g, key, i);
    return e && decode_int(e, i, out);
}

int64_t hh_gguf_key_count(const hh_gguf *g) {
    return g->n_entries;
}

const char *hh_gguf_key(const hh_gguf *g, int64_t i) {
    HH_ASSERT(i >= 0 && i < g->n_entries);
    return g->entries[i].name;
}

static void render_element(const entry *e, int64_t i, hh_buf *out) {
    const char *s;
    size_t len;
    int64_t whole;
    double x;
    hh_quote q;
    if (e->type == STRING) {
        decode_string(e->is_array ? e->string[i] : e->at, &s, &len);
        hh_buf_puts(out, hh_quoted(&q, s, len));
    } else if (e->type == BOOL) {
        hh_buf_puts(out, e->at[i] ? "true" : "false");
    } else if (decode_int(e, i, &whole)) {
        hh_buf_printf(out, "%lld", (long long)whole);
    } else if (decode_float(e, i, &x)) {
        hh_buf_printf(out, "%.9g", x);
    } else {
        hh_buf_printf(out, "%llu", (unsigned long long)load(e->at + (size_t)i * 8, 8));
    }
}

void hh_gguf_render(const hh_gguf *g, int64_t i, hh_buf *out) {
    HH_ASSERT(i >= 0 && i < g->n_entries);
    const entry *e = &g->entries[i];
    if (!e->is_array) {
        hh_buf_printf(out, "%s ", value_names[e->type]);
        render_element(e, 0, out);
        return;
    }
    hh_buf_printf(out, "%s[%lld]", value_names[e->type], (long long)e->count);
    for (int64_t k = 0; k < e->count && k < 4; k++) {
        hh_buf_puts(out, k ? ", " : " ");
        render_element(e, k, out);
    }
    if (e->count > 4) hh_buf_puts(out, ", ...");
}

hh_code hh_gguf_write_metadata(const hh_gguf *g, const char *path, hh_error *err) {
    static const unsigned char no_tensors[8], padding[4096];
    const size_t size = (size_t)(g->metadata_end - g->begin), over = size % g->alignment;
    hh_file_writer *w;
    HH_TRY(hh_file_writer_open(&w, path, err));
    hh_code code = hh_file_writer_add(w, g->begin, 8, err); /* magic and version, then the two counts */
    if (code == HH_OK) code = hh_file_writer_add(w, no_tensors, sizeof no_tensors, err);
    if (code == HH_OK) code = hh_file_writer_add(w, g->begin + 16, size - 16, err);
    for (size_t left = over ? g->alignment - over : 0; left && code == HH_OK;) {
        size_t n = left < sizeof padding ? left : sizeof padding;
        code = hh_file_writer_add(w, padding, n, err);
        left -= n;
    }
    if (code == HH_OK) return hh_file_writer_commit(w, err);
    hh_file_writer_abandon(w);
    return code;
}
