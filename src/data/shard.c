/* Token shards: a text file's tokens, made once and mapped afterwards; see corpus.h.
 *
 * A cache file is a header of 64 bytes and the ids. Its name holds the key, so that a changed text, tokenizer or format
 * is another file; its header holds key, count and checksum, so that a damaged one is noticed.
 */
#include "data/corpus.h"

#include "base/filemap.h"
#include "base/parallel.h"
#include "base/progress.h"

#include <errno.h>
#include <string.h>

typedef struct shard_header {
    char magic[8];
    uint64_t key, n, checksum;
    uint8_t unused[32];
} shard_header;

static const char magic[8] = {'H', 'H', 'S', 'H', 'A', 'R', 'D', '1'};

typedef struct shard_memory {
    hh_filemap map;
    hh_ids ids; /* when nothing is cached */
} shard_memory;

static const char document_mark[] = "<|endoftext|>";

/* Depends on all that a tokenizer does to a text that the vocabulary and one sentence can show. */
static uint64_t fingerprint(const hh_tokenizer *t, uint64_t h) {
    static const char probe[] = "It's 2024: the quick brown fox can't jump 12,345 times\n\n\tover \xC3\xA9t\xC3\xA9!  ";
    for (int64_t i = 0; i < hh_tokenizer_vocab_size(t); i++) {
        size_t len;
        const char *bytes = hh_tokenizer_token(t, (int32_t)i, &len);
        if (bytes) h = hh_hash64(bytes, len, h + 1);
    }
    hh_ids ids = {0};
    hh_error ignored;
    if (hh_tokenizer_encode(t, probe, sizeof probe - 1, HH_ENCODE_PLAIN, &ids, &ignored) == HH_OK)
        h = hh_hash64(ids.data, (size_t)ids.len * sizeof *ids.data, h);
    hh_ids_release(&ids);
    return hh_hash64((int32_t[]){hh_tokenizer_eos(t)}, sizeof(int32_t), h);
}

static hh_code make_key(const char *path, const hh_tokenizer *t, uint64_t *key, hh_error *err) {
    if (!hh_file_exists(path)) return hh_fail(err, HH_EIO, "%s: cannot be opened: %s", path, strerror(errno));
    *key = fingerprint(t, hh_file_stamp(path, hh_hash64(path, strlen(path), 1)));
    return HH_OK;
}

/* Documents of a text: parts between lines that hold the mark. */
typedef struct document {
    const char *text;
    size_t len;
    hh_ids ids;
    hh_code code;
    hh_error err;
} document;

static int64_t split_documents(const char *text, size_t len, document **out) {
    document *d = NULL;
    int64_t n = 0, capacity = 0;
    const char *end = text + len, *at = text, *scan = text;
    size_t mark = sizeof document_mark - 1;
    while (at < end) {
        const char *hit = memmem(scan, (size_t)(end - scan), document_mark, mark), *stop = hit ? hit : end;
        bool line =
            hit && (hit == text || hit[-1] == '\n') && (hit + mark == end || hit[mark] == '\n' || hit[mark] == '\r');
        if (hit && !line) { /* within a line it is text */
            scan = hit + mark;
            continue;
        }
        if (stop > at) {
            if (n == capacity) d = hh_realloc(d, (size_t)(capacity = 2 * capacity + 64) * sizeof *d);
            d[n++] = (document){.text = at, .len = (size_t)(stop - at)};
        }
        at = hit ? hit + mark : end;
        if (at < end && *at == '\r') at++;
        if (at < end && *at == '\n') at++;
        scan = at;
    }
    *out = d;
    return n;
}

typedef struct encoding {
    document *d;
    const hh_tokenizer *t;
} encoding;

static void encode_document(void *context, int64_t i, int thread) {
    encoding *e = context;
    document *d = &e->d[i];
    (void)thread;
    d->code = hh_tokenizer_encode(e->t, d->text, d->len, HH_ENCODE_PLAIN, &d->ids, &d->err);
    if (d->code == HH_OK && hh_tokenizer_eos(e->t) >= 0) hh_ids_push(&d->ids, hh_tokenizer_eos(e->t));
}

/* All documents, some at a time so that progress shows and Ctrl-C is heard. */
static hh_code encode_text(const char *path, const hh_tokenizer *t, const char *text, size_t len, hh_ids *out,
                           hh_error *err) {
    document *d;
    int64_t n = split_documents(text, len, &d);
    hh_progress p;
    hh_progress_begin(&p, "tokenize", "bytes", (double)len);
    hh_code code = HH_OK;
    double done = 0;
    for (int64_t i = 0, wave; i < n && code == HH_OK; i += wave) {
        size_t bytes = 0;
        for (wave = 0; i + wave < n && bytes < (size_t)4 << 20; wave++) bytes += d[i + wave].len;
        hh_parallel_for(hh_cpu_count(), wave, encode_document, &(encoding){d + i, t});
        for (int64_t j = i; j < i + wave; j++) {
            if (d[j].code != HH_OK && code == HH_OK) code = hh_fail(err, d[j].code, "%s: %s", path, d[j].err.text);
            if (code == HH_OK) hh_ids_append(out, d[j].ids.data, d[j].ids.len);
            hh_ids_release(&d[j].ids);
        }
        if (code == HH_OK && hh_interrupted())
            code = hh_fail(err, HH_ECANCELLED, "%s: interrupted while its tokens were made", path);
        hh_progress_update(&p, done += (double)bytes, NULL);
    }
    hh_progress_end(&p);
    hh_free(d);
    return code;
}

static hh_code read_ids(const char *path, const hh_tokenizer *t, hh_ids *out, hh_error *err) {
    char *text;
    size_t len;
    HH_TRY(hh_text_read(path, &text, &len, err));
    hh_code code = encode_text(path, t, text, len, out, err);
    hh_free(text);
    return code;
}

static hh_code write_cache(const char *file, uint64_t key, const hh_ids *ids, hh_error *err) {
    size_t bytes = (size_t)ids->len * sizeof *ids->data;
    shard_header h = {.key = key, .n = (uint64_t)ids->len, .checksum = hh_hash64(ids->data, bytes, key)};
    memcpy(h.magic, magic, sizeof magic);
    hh_file_writer *w;
    HH_TRY(hh_file_writer_open(&w, file, err));
    hh_code code = hh_file_writer_add(w, &h, sizeof h, err);
    if (code == HH_OK && bytes) code = hh_file_writer_add(w, ids->data, bytes, err);
    if (code == HH_OK) return hh_file_writer_commit(w, err);
    hh_file_writer_abandon(w);
    return code;
}

static hh_code map_cache(hh_shard *s, shard_memory *m, const char *file, uint64_t key, int64_t vocab, hh_error *err) {
    const char *again = "delete it to have it made again";
    HH_TRY(hh_filemap_open(&m->map, file, err));
    const shard_header *h = m->map.data;
    if (m->map.size < sizeof *h || memcmp(h->magic, magic, sizeof magic) != 0 || h->key != key)
        return hh_fail(err, HH_EFORMAT, "%s: not a token shard of this text and tokenizer; %s", file, again);
    size_t bytes = m->map.size - sizeof *h;
    if (bytes % sizeof(int32_t) || bytes / sizeof(int32_t) != h->n)
        return hh_fail(err, HH_EFORMAT, "%s: %zu bytes of ids, but its header says %llu ids; %s", file, bytes,
                       (unsigned long long)h->n, again);
    s->ids = (const int32_t *)(h + 1);
    s->n = (int64_t)h->n;
    bool fits = true;
    for (int64_t i = 0; i < s->n; i++) fits = fits && s->ids[i] >= 0 && s->ids[i] < vocab;
    if (!fits || hh_hash64(s->ids, bytes, key) != h->checksum)
        return hh_fail(err, HH_EFORMAT, "%s: damaged, its checksum does not match; %s", file, again);
    return HH_OK;
}

static hh_code open_cached(hh_shard *s, const char *path, const hh_tokenizer *t, const char *dir, hh_error *err) {
    shard_memory *m = s->impl;
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    uint64_t key = 0;
    HH_TRY(make_key(path, t, &key, err));
    HH_TRY(hh_make_directory(dir, err));
    char *file = hh_sprintf("%s/%s.%016llx.ids", dir, name, (unsigned long long)key);
    hh_code code = HH_OK;
    if (!hh_file_exists(file)) {
        code = read_ids(path, t, &m->ids, err);
        if (code == HH_OK) code = write_cache(file, key, &m->ids, err);
        hh_ids_release(&m->ids);
    }
    if (code == HH_OK) code = map_cache(s, m, file, key, hh_tokenizer_vocab_size(t), err);
    hh_free(file);
    return code;
}

hh_code hh_shard_open(hh_shard *out, const char *text_path, const hh_tokenizer *t, const char *dir, hh_error *err) {
    shard_memory *m = hh_alloc(sizeof *m);
    *out = (hh_shard){.impl = m};
    hh_code code;
    if (dir) {
        code = open_cached(out, text_path, t, dir, err);
    } else {
        code = read_ids(text_path, t, &m->ids, err);
        out->ids = m->ids.data;
        out->n = m->ids.len;
    }
    if (code != HH_OK) hh_shard_close(out);
    return code;
}

void hh_shard_close(hh_shard *s) {
    shard_memory *m = s->impl;
    if (m) {
        hh_filemap_close(&m->map);
        hh_ids_release(&m->ids);
    }
    hh_free(m);
    *s = (hh_shard){0};
}
