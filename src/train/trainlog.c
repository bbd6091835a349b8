/* The log of steps; see trainlog.h. It is the one file that is appended to, so it uses descriptors directly. */
#include "train/trainlog.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_LINE 512

struct hh_trainlog {
    char *path;
    int fd;
};

/* The step of a line, -1 when it is none of ours. */
static int64_t step_of(const char *line, size_t len) {
    json_t *j = json_loadb(line, len, 0, NULL);
    const json_t *step = json_object_get(j, "step");
    int64_t n = json_is_integer(step) ? json_integer_value(step) : -1;
    json_decref(j);
    return n;
}

/* Bytes of whole lines of steps below `step`. */
static hh_code kept_bytes(int fd, const char *path, int64_t step, off_t *out, hh_error *err) {
    char line[MAX_LINE];
    *out = 0;
    for (;;) {
        ssize_t n = pread(fd, line, sizeof line, *out);
        if (n < 0) return hh_fail(err, HH_EIO, "%s: reading failed: %s", path, strerror(errno));
        const char *end = n ? memchr(line, '\n', (size_t)n) : NULL;
        if (!end) return HH_OK;
        int64_t at = step_of(line, (size_t)(end - line));
        if (at < 0 || at >= step) return HH_OK;
        *out += end - line + 1;
    }
}

static hh_code prepare(hh_trainlog *l, int64_t step, hh_error *err) {
    off_t keep;
    if (flock(l->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return hh_fail(err, HH_EIO, "%s: another run is writing here; wait for it or name another directory", l->path);
    HH_TRY(kept_bytes(l->fd, l->path, step, &keep, err));
    if (ftruncate(l->fd, keep) != 0 || lseek(l->fd, keep, SEEK_SET) < 0)
        return hh_fail(err, HH_EIO, "%s: cannot be cut to the state's step: %s", l->path, strerror(errno));
    return HH_OK;
}

hh_code hh_trainlog_open(hh_trainlog **out, const char *path, int64_t step, hh_error *err) {
    *out = NULL;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return hh_fail(err, HH_EIO, "%s: cannot be opened: %s", path, strerror(errno));
    hh_trainlog *l = hh_alloc(sizeof *l);
    l->path = hh_strdup(path);
    l->fd = fd;
    hh_code code = prepare(l, step, err);
    if (code != HH_OK) {
        hh_trainlog_close(l);
        return code;
    }
    *out = l;
    return HH_OK;
}

hh_code hh_trainlog_add(hh_trainlog *l, const hh_step_report *r, const hh_student *s, hh_error *err) {
    char line[MAX_LINE];
    int n = snprintf(line, sizeof line,
                     "{\"step\": %" PRId64 ", \"loss\": %.9g, \"grad_norm\": %.6g, \"lr\": %.9g, \"tokens\": %" PRId64
                     ", \"tokens_per_s\": %.1f}\n",
                     r->step, s->loss, s->grad_norm, r->lr, r->n_tokens,
                     (double)r->n_tokens / (r->seconds > 0 ? r->seconds : 1e-9));
    HH_ASSERT(n > 0 && n < MAX_LINE);
    if (write(l->fd, line, (size_t)n) != n)
        return hh_fail(err, HH_EIO, "%s: writing failed: %s", l->path, strerror(errno));
    return HH_OK;
}

void hh_trainlog_close(hh_trainlog *l) {
    if (!l) return;
    close(l->fd);
    hh_free(l->path);
    hh_free(l);
}
