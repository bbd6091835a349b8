/* The run's state as a file; see state.h. Layout, little endian: head, settings, then for each student its number of
 * trained values and three arrays of them (weights, m, v); at the end the XXH64 of all before, chained piece by piece.
 */
#include "train/state.h"

#include "base/filemap.h"

#include <inttypes.h>
#include <string.h>

typedef struct head {
    char magic[8];
    uint64_t version, real_bytes, step, n_students, settings_bytes;
} head;

#define MAGIC   "HHSTATE"
#define VERSION 1

/* A writer that keeps the checksum. */
typedef struct sink {
    hh_file_writer *w;
    uint64_t hash;
} sink;

static hh_code put(sink *s, const void *data, size_t size, hh_error *err) {
    s->hash = hh_hash64(data, size, s->hash);
    return hh_file_writer_add(s->w, data, size, err);
}

static hh_code put_student(sink *s, const hh_student *st, hh_error *err) {
    uint64_t n = (uint64_t)st->n_trained;
    HH_TRY(put(s, &n, sizeof n, err));
    for (int64_t i = 0; i < st->n_ranges; i++)
        HH_TRY(put(s, (const hh_real *)st->model->flat.data + st->range[i].at, (size_t)st->range[i].n * sizeof(hh_real),
                   err));
    HH_TRY(put(s, st->m.data, (size_t)n * sizeof(hh_real), err));
    return put(s, st->v.data, (size_t)n * sizeof(hh_real), err);
}

static hh_code put_state(sink *s, const hh_trainer *t, const char *settings, hh_error *err) {
    head h = {MAGIC, VERSION, sizeof(hh_real), (uint64_t)t->step, (uint64_t)t->n_students, strlen(settings)};
    HH_TRY(put(s, &h, sizeof h, err));
    HH_TRY(put(s, settings, strlen(settings), err));
    for (int64_t i = 0; i < t->n_students; i++) HH_TRY(put_student(s, &t->student[i], err));
    uint64_t hash = s->hash;
    return hh_file_writer_add(s->w, &hash, sizeof hash, err);
}

hh_code hh_state_write(const hh_trainer *t, const char *settings, const char *path, hh_error *err) {
    HH_ASSERT(t->be->host_memory);
    sink s = {0};
    HH_TRY(hh_file_writer_open(&s.w, path, err));
    hh_code code = put_state(&s, t, settings, err);
    if (code == HH_OK) return hh_file_writer_commit(s.w, err);
    hh_file_writer_abandon(s.w);
    return code;
}

/* A map being walked. */
typedef struct source {
    const char *path, *at;
    size_t left;
    uint64_t hash;
} source;

static hh_code take(source *s, const void **out, size_t size, hh_error *err) {
    if (size > s->left)
        return hh_fail(err, HH_EFORMAT, "%s: the file ends where %zu more bytes were expected", s->path,
                       size - s->left);
    *out = s->at;
    s->hash = hh_hash64(s->at, size, s->hash);
    s->at += size;
    s->left -= size;
    return HH_OK;
}

/* Names the first line in which the two texts differ. */
static hh_code refuse_settings(const char *path, const char *was, size_t was_len, const char *now, hh_error *err) {
    const char *a = was, *end = was + was_len, *b = now;
    for (;;) {
        size_t na = a < end ? strcspn(a, "\n") : 0, nb = strcspn(b, "\n");
        if (na != nb || memcmp(a, b, na) || a + na >= end || !b[nb])
            return hh_fail(err, HH_EINVAL,
                           "%s: the run that stands here was of '%.*s', this command asks for '%.*s'; repeat the old "
                           "command, or name "
                           "another directory",
                           path, (int)na, a < end ? a : "", (int)nb, b);
        a += na + 1;
        b += nb + 1;
    }
}

static hh_code check_head(source *s, const hh_trainer *t, const char *settings, head *h, hh_error *err) {
    const void *p;
    HH_TRY(take(s, &p, sizeof *h, err));
    memcpy(h, p, sizeof *h);
    if (memcmp(h->magic, MAGIC, sizeof h->magic) || h->version != VERSION)
        return hh_fail(err, HH_EFORMAT, "%s: this is not a training state of version %d", s->path, VERSION);
    if (h->real_bytes != sizeof(hh_real))
        return hh_fail(err, HH_EFORMAT, "%s: numbers of %" PRIu64 " bytes, this build's have %zu", s->path,
                       h->real_bytes, sizeof(hh_real));
    if (h->settings_bytes > s->left)
        return hh_fail(err, HH_EFORMAT, "%s: settings of %" PRIu64 " bytes in a file that has %zu more", s->path,
                       h->settings_bytes, s->left);
    HH_TRY(take(s, &p, (size_t)h->settings_bytes, err));
    if (h->settings_bytes != strlen(settings) || memcmp(p, settings, (size_t)h->settings_bytes)) {
        char *was = hh_alloc((size_t)h->settings_bytes + 1);
        memcpy(was, p, (size_t)h->settings_bytes);
        hh_code code = refuse_settings(s->path, was, (size_t)h->settings_bytes, settings, err);
        hh_free(was);
        return code;
    }
    if (h->n_students != (uint64_t)t->n_students)
        return hh_fail(err, HH_EINVAL, "%s: a run of %" PRIu64 " students, this one has %" PRId64, s->path,
                       h->n_students, t->n_students);
    return HH_OK;
}

/* Walks over a student; array[] gets where its weights and moments stand. The checksum is chained over the pieces as
 * they were written. */
static hh_code find_student(source *s, const hh_student *st, const char *array[3], hh_error *err) {
    const void *p;
    uint64_t n;
    HH_TRY(take(s, &p, sizeof n, err));
    memcpy(&n, p, sizeof n);
    if (n != (uint64_t)st->n_trained)
        return hh_fail(err, HH_EINVAL, "%s: a student with %" PRIu64 " trained numbers, this one has %" PRId64, s->path,
                       n, st->n_trained);
    array[0] = s->at;
    for (int64_t i = 0; i < st->n_ranges; i++) HH_TRY(take(s, &p, (size_t)st->range[i].n * sizeof(hh_real), err));
    for (int i = 1; i < 3; i++) {
        array[i] = s->at;
        HH_TRY(take(s, &p, (size_t)n * sizeof(hh_real), err));
    }
    return HH_OK;
}

static void fill_student(hh_student *st, const char *const array[3]) {
    for (int64_t i = 0; i < st->n_ranges; i++) {
        hh_trained_range r = st->range[i];
        memcpy((hh_real *)st->model->flat.data + r.at, array[0] + (size_t)r.moment * sizeof(hh_real),
               (size_t)r.n * sizeof(hh_real));
    }
    memcpy(st->m.data, array[1], (size_t)st->n_trained * sizeof(hh_real));
    memcpy(st->v.data, array[2], (size_t)st->n_trained * sizeof(hh_real));
}

static hh_code read_state(hh_trainer *t, const char *settings, source s, hh_error *err) {
    head h;
    const char *array[HH_MAX_STUDENTS][3];
    HH_TRY(check_head(&s, t, settings, &h, err));
    for (int64_t i = 0; i < t->n_students; i++) HH_TRY(find_student(&s, &t->student[i], array[i], err));
    uint64_t stored;
    if (s.left != sizeof stored)
        return hh_fail(err, HH_EFORMAT, "%s: %zu bytes behind the students where a checksum of %zu was expected",
                       s.path, s.left, sizeof stored);
    memcpy(&stored, s.at, sizeof stored);
    if (stored != s.hash || h.step > (uint64_t)t->o.schedule.steps)
        return hh_fail(err, HH_EFORMAT,
                       "%s: damaged: its checksum is %016" PRIx64 ", it says %016" PRIx64 "; remove it to start again",
                       s.path, s.hash, stored);
    for (int64_t i = 0; i < t->n_students; i++) fill_student(&t->student[i], (const char *const *)array[i]);
    t->step = (int64_t)h.step;
    return HH_OK;
}

hh_code hh_state_read(hh_trainer *t, const char *settings, const char *path, hh_error *err) {
    HH_ASSERT(t->be->host_memory);
    hh_filemap map;
    HH_TRY(hh_filemap_open(&map, path, err));
    hh_code code = read_state(t, settings, (source){.path = path, .at = map.data, .left = map.size}, err);
    hh_filemap_close(&map);
    return code;
}
