/* A checkpoint's files as one table of named tensors; see store.h. */
#include "format/store.h"

#include "base/filemap.h"
#include "format/gguf.h"
#include "format/json.h"
#include "format/quote.h"
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>

#define SINGLE          "model.safetensors"
#define INDEX           "model.safetensors.index.json"
#define MAX_INDEX_BYTES ((size_t)64 << 20)

typedef struct shard {
    char *name, *path; /* name as the index has it */
    hh_filemap map;
} shard;

struct hh_store {
    hh_store_kind kind;
    char *path;
    shard *shards; /* files, in the order they are read */
    int64_t n_shards;
    hh_named_tensor *tensors;
    int64_t n, capacity;
    const hh_named_tensor **by_name; /* [n], sorted */
    void **copies;                   /* data that was not aligned for its type */
    int64_t n_copies;
    hh_gguf *gguf;
};

/* Tensors of one safetensors file go into the table. */
typedef struct filling {
    hh_store *s;
    const shard *file;
    const json_t *weight_map; /* NULL: every tensor is taken */
} filling;

static void add_tensor(hh_store *s, const char *name, const char *file, hh_tensor t) {
    if (s->n == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        s->tensors = hh_realloc(s->tensors, (size_t)s->capacity * sizeof *s->tensors);
    }
    /* The format aligns nothing; a type's own alignment is what readers may rely on. */
    size_t unit = hh_dtype_is_quantised(t.dtype) ? 1 : hh_dtype_block_bytes(t.dtype), bytes = hh_tensor_bytes(t);
    if ((uintptr_t)t.data % unit && bytes) {
        void *copy = memcpy(hh_alloc(bytes), t.data, bytes);
        s->copies = hh_realloc(s->copies, (size_t)(s->n_copies + 1) * sizeof *s->copies);
        s->copies[s->n_copies++] = copy;
        t.data = copy;
    }
    s->tensors[s->n++] = (hh_named_tensor){.name = hh_strdup(name), .file = file, .t = t};
}

/* An index decides which shard a name belongs to; what a shard holds beyond that is not the model's. */
static hh_code take_tensor(void *context, const char *name, hh_tensor t, hh_error *err) {
    (void)err;
    filling *f = context;
    if (f->weight_map) {
        const char *owner = json_string_value(json_object_get(f->weight_map, name));
        if (!owner || strcmp(owner, f->file->name) != 0) return HH_OK;
    }
    add_tensor(f->s, name, f->file->path, t);
    return HH_OK;
}

static shard *add_shard(hh_store *s, const char *name, char *path) {
    s->shards[s->n_shards] = (shard){.name = hh_strdup(name), .path = path};
    return &s->shards[s->n_shards++];
}

static hh_code read_shard(hh_store *s, shard *file, const json_t *weight_map, hh_error *err) {
    filling f = {.s = s, .file = file, .weight_map = weight_map};
    HH_TRY(hh_filemap_open(&file->map, file->path, err));
    return hh_safetensors_parse(file->path, file->map.data, file->map.size, take_tensor, &f, err);
}

static hh_code open_single(hh_store *s, const char *path, hh_error *err) {
    s->shards = hh_alloc(sizeof *s->shards);
    return read_shard(s, add_shard(s, path, hh_strdup(path)), NULL, err);
}

/* A shard is a file inside the checkpoint's directory. */
static bool is_inside(const char *name) {
    if (!*name || *name == '/') return false;
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || !part[2])) return false;
    }
    return true;
}

static int compare_strings(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The different file names of weight_map, sorted; the array is the caller's, the names are the index's. */
static hh_code list_shards(const char *index, const json_t *weight_map, const char ***out, size_t *n, hh_error *err) {
    const char *tensor;
    json_t *v;
    size_t m = 0;
    const char **names = hh_alloc((json_object_size(weight_map) + 1) * sizeof *names);
    *out = names;
    json_object_foreach((json_t *)(uintptr_t)weight_map, tensor, v) {
        const char *name = json_string_value(v);
        if (!name || !is_inside(name)) {
            hh_quote q, r;
            return hh_fail(err, HH_EFORMAT,
                           "%s: weight_map gives tensor %s the file %s; expected a file name inside the directory",
                           index, hh_quoted(&q, tensor, strlen(tensor)),
                           name ? hh_quoted(&r, name, strlen(name)) : "(none)");
        }
        names[m++] = name;
    }
    qsort(names, m, sizeof *names, compare_strings);
    *n = 0;
    for (size_t i = 0; i < m; i++)
        if (!*n || strcmp(names[*n - 1], names[i]) != 0) names[(*n)++] = names[i];
    return HH_OK;
}

static hh_code read_shards(hh_store *s, const char *dir, const char *index, const json_t *weight_map, hh_error *err) {
    const char **names = NULL;
    size_t n = 0;
    hh_code code = list_shards(index, weight_map, &names, &n, err);
    if (code == HH_OK) s->shards = hh_alloc((n + 1) * sizeof *s->shards);
    for (size_t i = 0; i < n && code == HH_OK; i++) {
        shard *file = add_shard(s, names[i], hh_path_join(dir, names[i]));
        if (hh_file_exists(file->path)) {
            code = read_shard(s, file, weight_map, err);
        } else {
            code =
                hh_fail(err, HH_EIO, "%s: the shard is missing, though %s lists it; fetch it again", file->path, index);
        }
    }
    hh_free(names);
    return code;
}

static int compare_tensors(const void *a, const void *b) {
    return strcmp((*(const hh_named_tensor *const *)a)->name, (*(const hh_named_tensor *const *)b)->name);
}

static void sort_names(hh_store *s) {
    s->by_name = hh_alloc((size_t)(s->n + 1) * sizeof *s->by_name);
    for (int64_t i = 0; i < s->n; i++) s->by_name[i] = &s->tensors[i];
    qsort(s->by_name, (size_t)s->n, sizeof *s->by_name, compare_tensors);
}

static hh_code check_complete(const hh_store *s, const char *index, const json_t *weight_map, hh_error *err) {
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)weight_map, name, v) {
        hh_quote q, r;
        const char *file = json_string_value(v);
        if (!hh_store_find(s, name))
            return hh_fail(err, HH_EFORMAT, "%s: tensor %s is not in %s, where the index puts it", index,
                           hh_quoted(&q, name, strlen(name)), hh_quoted(&r, file, strlen(file)));
    }
    return HH_OK;
}

static hh_code open_sharded(hh_store *s, const char *dir, const char *index, hh_error *err) {
    json_t *json = NULL;
    HH_TRY(hh_json_read(&json, index, MAX_INDEX_BYTES, err));
    hh_json_object top = {.json = json, .path = index, .within = ""}, map;
    hh_code code = hh_json_need(top, "weight_map", err);
    if (code == HH_OK) code = hh_json_sub(&map, top, "weight_map", "weight_map.", err);
    if (code == HH_OK) code = read_shards(s, dir, index, map.json, err);
    if (code == HH_OK) {
        sort_names(s);
        code = check_complete(s, index, map.json, err);
    }
    json_decref(json);
    return code;
}

static hh_code open_directory(hh_store *s, const char *dir, hh_error *err) {
    hh_code code;
    char *single = hh_path_join(dir, SINGLE), *index = hh_path_join(dir, INDEX);
    if (hh_file_exists(single)) {
        code = open_single(s, single, err);
    } else if (hh_file_exists(index)) {
        code = open_sharded(s, dir, index, err);
    } else {
        code = hh_fail(err, HH_EIO,
                       "%s: neither " SINGLE " nor " INDEX " is in this directory; "
                       "a checkpoint is a Hugging Face directory with safetensors, or a .gguf file",
                       dir);
    }
    hh_free(single);
    hh_free(index);
    return code;
}

static hh_code open_file(hh_store *s, const char *path, hh_error *err) {
    s->shards = hh_alloc(sizeof *s->shards);
    shard *file = add_shard(s, path, hh_strdup(path));
    HH_TRY(hh_filemap_open(&file->map, path, err));
    if (file->map.size < 4 || memcmp(file->map.data, "GGUF", 4) != 0) {
        size_t n = strlen(path);
        if (n > 5 && !strcmp(path + n - 5, ".gguf"))
            return hh_fail(err, HH_EFORMAT, "%s: %zu bytes that do not begin with GGUF", path, file->map.size);
        filling f = {.s = s, .file = file};
        return hh_safetensors_parse(path, file->map.data, file->map.size, take_tensor, &f, err);
    }
    s->kind = HH_STORE_GGUF;
    HH_TRY(hh_gguf_parse(&s->gguf, path, file->map.data, file->map.size, err));
    for (int64_t i = 0; i < hh_gguf_tensor_count(s->gguf); i++) {
        const hh_named_tensor *t = hh_gguf_tensor(s->gguf, i);
        add_tensor(s, t->name, file->path, t->t);
    }
    return HH_OK;
}

hh_code hh_store_open(hh_store **out, const char *path, hh_error *err) {
    hh_store *s = hh_alloc(sizeof *s);
    *out = NULL;
    s->kind = HH_STORE_SAFETENSORS;
    s->path = hh_strdup(path);
    hh_code code = hh_is_directory(path) ? open_directory(s, path, err) : open_file(s, path, err);
    if (code != HH_OK) {
        hh_store_close(s);
        return code;
    }
    if (!s->by_name) sort_names(s);
    *out = s;
    return HH_OK;
}

void hh_store_forget(const hh_store *s, const hh_tensor *t) {
    const uintptr_t at = (uintptr_t)t->data;
    for (int64_t i = 0; i < s->n_shards; i++) {
        const hh_filemap *m = &s->shards[i].map;
        const uintptr_t begin = (uintptr_t)m->data;
        if (begin && at >= begin && at < begin + m->size) hh_filemap_forget(m, t->data, hh_tensor_bytes(*t));
    }
}

void hh_store_close(hh_store *s) {
    if (!s) return;
    hh_gguf_free(s->gguf);
    for (int64_t i = 0; i < s->n; i++) hh_free((void *)(uintptr_t)s->tensors[i].name);
    for (int64_t i = 0; i < s->n_copies; i++) hh_free(s->copies[i]);
    for (int64_t i = 0; i < s->n_shards; i++) {
        hh_filemap_close(&s->shards[i].map);
        hh_free(s->shards[i].name);
        hh_free(s->shards[i].path);
    }
    hh_free(s->copies);
    hh_free(s->shards);
    hh_free(s->tensors);
    hh_free(s->by_name);
    hh_free(s->path);
    hh_free(s);
}

hh_store_kind hh_store_get_kind(const hh_store *s) {
    return s->kind;
}

const char *hh_store_path(const hh_store *s) {
    return s->path;
}

int64_t hh_store_count(const hh_store *s) {
    return s->n;
}

const hh_named_tensor *hh_store_at(const hh_store *s, int64_t i) {
    HH_ASSERT(i >= 0 && i < s->n);
    return &s->tensors[i];
}

const hh_named_tensor *hh_store_find(const hh_store *s, const char *name) {
    const hh_named_tensor key = {.name = name}, *p = &key;
    const hh_named_tensor **found = bsearch(&p, s->by_name, (size_t)s->n, sizeof *s->by_name, compare_tensors);
    return found ? *found : NULL;
}

const hh_gguf *hh_store_gguf(const hh_store *s) {
    return s->gguf;
}
