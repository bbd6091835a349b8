/* Text files, plain or gzip-compressed, and where the shipped excerpts are; see corpus.h. */
#include "base/env.h"
#include "base/filemap.h"
#include "data/corpus.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define MAX_TEXT                                                                                                       \
    ((size_t)8 << 30) /* what a file may unpack to: a compressed one of some megabytes can hold terabytes */

static hh_code read_all(gzFile f, const char *path, char **text, size_t *len, hh_error *err) {
    size_t used = 0, capacity = (size_t)1 << 20;
    char *data = hh_alloc(capacity);
    for (;;) {
        int n = gzread(f, data + used, 1 << 18);
        if (n < 0) {
            int kind;
            const char *why = gzerror(f, &kind);
            hh_free(data);
            if (kind == Z_ERRNO) return hh_fail(err, HH_EIO, "%s: cannot be read: %s", path, strerror(errno));
            return hh_fail(err, HH_EFORMAT, "%s: damaged gzip data after %zu bytes of text: %s", path, used, why);
        }
        if (n == 0) break;
        used += (size_t)n;
        if (used > MAX_TEXT) {
            hh_free(data);
            return hh_fail(err, HH_ENOMEM, "%s: more than %zu bytes of text; split the file", path, MAX_TEXT);
        }
        if (capacity - used <= (size_t)1 << 18) data = hh_realloc(data, capacity *= 2);
    }
    int kind;
    const char *why = gzerror(f, &kind);
    if (kind != Z_OK && kind != Z_STREAM_END) {
        hh_code code =
            hh_fail(err, HH_EFORMAT, "%s: gzip data ends too early, after %zu bytes of text: %s", path, used, why);
        hh_free(data);
        return code;
    }
    data[used] = 0;
    *text = data;
    *len = used;
    return HH_OK;
}

hh_code hh_text_read(const char *path, char **text, size_t *len, hh_error *err) {
    struct stat s;
    if (stat(path, &s)) return hh_fail(err, HH_EIO, "%s: cannot be opened: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode))
        return hh_fail(err, HH_EINVAL, "%s: not a regular file; give a text file, plain or .gz", path);
    gzFile f = gzopen(path, "rb");
    if (!f) return hh_fail(err, HH_EIO, "%s: cannot be opened: %s", path, strerror(errno));
    gzbuffer(f, 1 << 17);
    hh_code code = read_all(f, path, text, len, err);
    gzclose(f);
    return code;
}

/* dir/name if that is a file; dir is n bytes long and ends with '/'. */
static char *existing(const char *dir, size_t n, const char *name) {
    char *path = hh_sprintf("%.*s%s", (int)n, dir, name);
    if (hh_file_exists(path)) return path;
    hh_free(path);
    return NULL;
}

char *hh_text_shipped_path(bool valid) {
    const char *name = valid ? "nano/text_valid.txt.gz" : "nano/text_train.txt.gz", *models = hh_env_get()->models;
    static const char *const below[] = {"models/", "share/hydrahead/models/"};
    char *path = NULL, program[4096];
    if (models) {
        char *dir = hh_sprintf("%s/", models);
        path = existing(dir, strlen(dir), name);
        hh_free(dir);
    }
    if (!path) path = existing(below[0], strlen(below[0]), name);
    ssize_t n = path ? 0 : readlink("/proc/self/exe", program, sizeof program);
    for (int up = 0; n > 0 && up < 5 && !path; up++) {
        while (n > 0 && program[n - 1] != '/') n--;
        for (int i = 0; i < 2 && n > 0 && !path; i++) {
            char *dir = hh_sprintf("%.*s%s", (int)n, program, below[i]);
            path = existing(dir, strlen(dir), name);
            hh_free(dir);
        }
        n--;
    }
    return path ? path : hh_sprintf("%s%s", below[0], name);
}

hh_code hh_text_shipped(bool valid, char **text, size_t *len, hh_error *err) {
    char *path = hh_text_shipped_path(valid);
    hh_code code = hh_text_read(path, text, len, err);
    if (code != HH_OK) hh_fail_in(err, "the shipped book excerpt");
    hh_free(path);
    return code;
}
