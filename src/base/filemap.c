/* Files; see filemap.h. The checksum is XXH64 (Yann Collet's specification), so that other tools can recompute it. */
#include "base/filemap.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens a regular file; O_NONBLOCK, because opening a FIFO would wait for its writer. */
static hh_code open_regular(const char *path, int *fd, struct stat *st, hh_error *err) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return hh_fail(err, HH_EIO, "%s: cannot be opened: %s", path, strerror(errno));
    const char *why = NULL;
    if (fstat(*fd, st) != 0)
        why = strerror(errno);
    else if (S_ISDIR(st->st_mode))
        why = "it is a directory, a file is needed";
    else if (!S_ISREG(st->st_mode))
        why = "it is not a regular file";
    if (!why) return HH_OK;
    close(*fd);
    return hh_fail(err, HH_EIO, "%s: cannot be read: %s", path, why);
}

hh_code hh_filemap_open(hh_filemap *m, const char *path, hh_error *err) {
    int fd;
    struct stat st;
    *m = (hh_filemap){0};
    HH_TRY(open_regular(path, &fd, &st, err));
    hh_code code = HH_OK;
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            code = hh_fail(err, HH_EIO, "%s: %lld bytes cannot be mapped: %s", path, (long long)st.st_size,
                           strerror(errno));
        else
            *m = (hh_filemap){.data = p, .size = (size_t)st.st_size};
    }
    close(fd);
    return code;
}

void hh_filemap_close(hh_filemap *m) {
    if (m->data) munmap((void *)(uintptr_t)m->data, m->size);
    *m = (hh_filemap){0};
}

void hh_filemap_forget(const hh_filemap *m, const void *data, size_t size) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), lo = (uintptr_t)data, hi = lo + size;
    HH_ASSERT(lo >= (uintptr_t)m->data && hi <= (uintptr_t)m->data + m->size);
    const uintptr_t first = (lo + page - 1) / page * page, end = hi / page * page;
    if (first < end) madvise((void *)first, end - first, MADV_DONTNEED); /* advice: a refusal changes nothing */
}

static hh_code read_all(int fd, const char *path, size_t size, hh_buf *out, hh_error *err) {
    void *block;
    HH_TRY(hh_alloc_checked(&block, size + 1, 1, path, err));
    hh_buf_release(out);
    *out = (hh_buf){.data = block, .capacity = size + 1};
    while (out->len < size) {
        ssize_t n = read(fd, out->data + out->len, size - out->len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return hh_fail(err, HH_EIO, "%s: reading failed after %zu bytes: %s", path, out->len, strerror(errno));
        if (n == 0) break; /* the file shrank meanwhile: what is there is what it holds now */
        out->len += (size_t)n;
    }
    out->data[out->len] = 0;
    return HH_OK;
}

hh_code hh_file_read(const char *path, size_t max_bytes, hh_buf *out, hh_error *err) {
    int fd;
    struct stat st;
    HH_TRY(open_regular(path, &fd, &st, err));
    hh_code code;
    if ((uintmax_t)st.st_size > max_bytes)
        code = hh_fail(err, HH_EFORMAT, "%s: %lld bytes are more than the %zu that such a file may have", path,
                       (long long)st.st_size, max_bytes);
    else
        code = read_all(fd, path, (size_t)st.st_size, out, err);
    close(fd);
    return code;
}

struct hh_file_writer {
    char *path;    /* where the file will be */
    char *written; /* where it is until the commit; NULL: path itself, a device or a pipe that cannot be renamed */
    int fd;
};

static void free_writer(hh_file_writer *w) {
    if (w->fd >= 0) close(w->fd);
    hh_free(w->path);
    hh_free(w->written);
    hh_free(w);
}

hh_code hh_file_writer_open(hh_file_writer **out, const char *path, hh_error *err) {
    struct stat st;
    bool there = stat(path, &st) == 0;
    *out = NULL;
    if (there && S_ISDIR(st.st_mode)) return hh_fail(err, HH_EIO, "%s: cannot be written: it is a directory", path);
    hh_file_writer *w = hh_alloc(sizeof *w);
    /* A symbolic link stays one: the file it points at is replaced. */
    char *target = there && S_ISREG(st.st_mode) ? realpath(path, NULL) : NULL;
    w->path = hh_strdup(target ? target : path);
    free(target);
    if (!there || S_ISREG(st.st_mode)) w->written = hh_sprintf("%s.tmp-%ld", w->path, (long)getpid());
    const char *name = w->written ? w->written : w->path;
    w->fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        hh_code code = hh_fail(err, HH_EIO, "%s: cannot be created: %s", w->path, strerror(errno));
        free_writer(w);
        return code;
    }
    *out = w;
    return HH_OK;
}

hh_code hh_file_writer_add(hh_file_writer *w, const void *data, size_t size, hh_error *err) {
    const char *p = data;
    while (size) {
        ssize_t n = write(w->fd, p, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return hh_fail(err, HH_EIO, "%s: writing failed: %s", w->path, strerror(errno));
        p += n;
        size -= (size_t)n;
    }
    return HH_OK;
}

/* After a rename the folder itself must reach the disk; a file system that cannot do that is not an error. */
static void sync_folder(const char *path) {
    char *folder = hh_strdup(path);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    int fd = open(slash ? folder : ".", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    hh_free(folder);
}

hh_code hh_file_writer_commit(hh_file_writer *w, hh_error *err) {
    hh_code code = HH_OK;
    if (w->written && fsync(w->fd) != 0)
        code = hh_fail(err, HH_EIO, "%s: writing to disk failed: %s", w->path, strerror(errno));
    int closed = close(w->fd);
    w->fd = -1;
    if (code == HH_OK && closed != 0) code = hh_fail(err, HH_EIO, "%s: closing failed: %s", w->path, strerror(errno));
    if (code == HH_OK && w->written && rename(w->written, w->path) != 0)
        code = hh_fail(err, HH_EIO, "%s: cannot be put in place: %s", w->path, strerror(errno));
    if (w->written) {
        if (code == HH_OK)
            sync_folder(w->path);
        else
            unlink(w->written);
    }
    free_writer(w);
    return code;
}

void hh_file_writer_abandon(hh_file_writer *w) {
    if (!w) return;
    if (w->written) unlink(w->written);
    free_writer(w);
}

hh_code hh_file_write(const char *path, const void *data, size_t size, hh_error *err) {
    hh_file_writer *w;
    HH_TRY(hh_file_writer_open(&w, path, err));
    hh_code code = hh_file_writer_add(w, data, size, err);
    if (code == HH_OK) return hh_file_writer_commit(w, err);
    hh_file_writer_abandon(w);
    return code;
}

hh_code hh_make_directory(const char *path, hh_error *err) {
    char *p = hh_strdup(path);
    size_t n = strlen(p);
    hh_code code = n ? HH_OK : hh_fail(err, HH_EINVAL, "the name of a directory is empty");
    for (size_t i = 1; code == HH_OK && i <= n; i++) {
        if (p[i] != '/' && p[i]) continue;
        char kept = p[i];
        p[i] = 0;
        const int why = mkdir(p, 0777) ? errno : 0;
        if (why && !hh_is_directory(p))
            code = hh_fail(err, HH_EIO, "%s: the directory cannot be made: %s", p,
                           why == EEXIST ? "a file of this name is there" : strerror(why));
        p[i] = kept;
    }
    hh_free(p);
    return code;
}

bool hh_file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool hh_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

char *hh_path_folder(const char *path, const char **name) {
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    if (!slash) return hh_strdup(".");
    return slash == path ? hh_strdup("/") : hh_sprintf("%.*s", (int)(slash - path), path);
}

hh_code hh_file_check_target(const char *path, hh_error *err) {
    const char *name;
    if (hh_is_directory(path)) return hh_fail(err, HH_EIO, "%s: cannot be written: it is a directory", path);
    char *folder = hh_path_folder(path, &name);
    const bool there = hh_file_exists(path);
    hh_code code = access(there ? path : folder, W_OK) == 0 ? HH_OK
                                                            : hh_fail(err, HH_EIO, "%s: cannot be %s: %s", path,
                                                                      there ? "written" : "created", strerror(errno));
    hh_free(folder);
    return code;
}

bool hh_same_target(const char *a, const char *b) {
    if (hh_same_file(a, b)) return true;
    if (hh_file_exists(a) || hh_file_exists(b)) return false;
    const char *name_a, *name_b;
    char *in_a = hh_path_folder(a, &name_a), *in_b = hh_path_folder(b, &name_b);
    const bool same = !strcmp(name_a, name_b) && (!strcmp(in_a, in_b) || hh_same_file(in_a, in_b));
    hh_free(in_a);
    hh_free(in_b);
    return same;
}

bool hh_is_directory(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *hh_path_join(const char *dir, const char *name) {
    size_t n = strlen(dir);
    return hh_sprintf("%s%s%s", dir, n && dir[n - 1] != '/' ? "/" : "", name);
}

const char *hh_path_split_name(char **name, const char *word) {
    const char *equals = strchr(word, '=');
    bool named = equals && equals > word && !hh_file_exists(word) && !hh_is_directory(word);
    *name = named ? hh_sprintf("%.*s", (int)(equals - word), word) : hh_strdup(word);
    return named ? equals + 1 : word;
}

#define PRIME1 UINT64_C(0x9E3779B185EBCA87)
#define PRIME2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PRIME3 UINT64_C(0x165667B19E3779F9)
#define PRIME4 UINT64_C(0x85EBCA77C2B2AE63)
#define PRIME5 UINT64_C(0x27D4EB2F165667C5)

static uint64_t rotate(uint64_t x, int n) {
    return x << n | x >> (64 - n);
}

static uint64_t load_le(const unsigned char *p, int bytes) {
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint64_t)p[i] << (8 * i);
    return x;
}

static uint64_t round64(uint64_t acc, uint64_t lane) {
    return rotate(acc + lane * PRIME2, 31) * PRIME1;
}

uint64_t hh_hash64(const void *data, size_t size, uint64_t seed) {
    const unsigned char *p = data;
    uint64_t h;
    size_t n = size;
    if (n >= 32) {
        uint64_t v[4] = {seed + PRIME1 + PRIME2, seed + PRIME2, seed, seed - PRIME1};
        for (; n >= 32; n -= 32, p += 32)
            for (int i = 0; i < 4; i++) v[i] = round64(v[i], load_le(p + 8 * i, 8));
        h = rotate(v[0], 1) + rotate(v[1], 7) + rotate(v[2], 12) + rotate(v[3], 18);
        for (int i = 0; i < 4; i++) h = (h ^ round64(0, v[i])) * PRIME1 + PRIME4;
    } else {
        h = seed + PRIME5;
    }
    h += (uint64_t)size;
    for (; n >= 8; n -= 8, p += 8) h = rotate(h ^ round64(0, load_le(p, 8)), 27) * PRIME1 + PRIME4;
    if (n >= 4) {
        h = rotate(h ^ load_le(p, 4) * PRIME1, 23) * PRIME2 + PRIME3;
        n -= 4;
        p += 4;
    }
    for (; n; n--, p++) h = rotate(h ^ *p * PRIME5, 11) * PRIME1;
    h = (h ^ h >> 33) * PRIME2;
    h = (h ^ h >> 29) * PRIME3;
    return h ^ h >> 32;
}

uint64_t hh_file_stamp(const char *path, uint64_t seed) {
    struct stat s;
    if (stat(path, &s)) return seed;
    int64_t facts[] = {(int64_t)s.st_size, (int64_t)s.st_mtim.tv_sec, (int64_t)s.st_mtim.tv_nsec};
    return hh_hash64(facts, sizeof facts, seed);
}
