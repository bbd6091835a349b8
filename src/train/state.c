/* The run's state as a file; see state.h. Layout, little endian: head, settings, then for each student its number of
 * trained values and three arrays of them (weights, m, v); at the end the XXH64 of all before, chained piece by piece:
 * the head, the settings, a student's number, and of the arrays at most PIECE numbers of one range at a time. Pieces
 * are what passes through host memory when the arrays are on a GPU or with another rank.
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
#define VERSION 2
enum { PIECE = 1 << 18 };

/* The arrays of a student. */
typedef enum part { WEIGHTS, MOMENT_M, MOMENT_V, N_PARTS } part;

/* A writer that keeps the checksum; on ranks other than the first, one that writes nothing. */
typedef struct sink {
    hh_file_writer *w; /* NULL: nothing is written */
    uint64_t hash;
    hh_real *piece; /* [PIECE] */
} sink;

static hh_code put(sink *s, const void *data, size_t size, hh_error *err) {
    if (!s->w) return HH_OK;
    s->hash = hh_hash64(data, size, s->hash);
    return hh_file_writer_add(s->w, data, size, err);
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Numbers [lo, hi) of a range, from wherever they are, to the first rank's s->piece. */
static hh_code collect(sink *s, const hh_trainer *t, const hh_student *st, part a, hh_trained_range r, int64_t lo,
                       int64_t hi, hh_error *err) {
    hh_comm *c = t->comm;
    if (a == WEIGHTS) {
        if (s->w)
            t->be->to_host(t->be, s->piece, (const hh_real *)st->model->flat.data + r.at + lo,
                           (size_t)(hi - lo) * sizeof(hh_real));
        return HH_OK;
    }
    const hh_real *own = (const hh_real *)(a == MOMENT_M ? st->m : st->v).data + r.moment;
    for (int64_t rank = 0; rank < c->size; rank++) {
        int64_t first = hh_comm_cut(r.n, rank, c->size), end = smaller(hh_comm_cut(r.n, rank + 1, c->size), hi);
        if (first < lo) first = lo;
        if (first >= end) continue;
        size_t bytes = (size_t)(end - first) * sizeof(hh_real);
        hh_real *here = s->piece + (first - lo);
        if (rank == c->rank) t->be->to_host(t->be, here, own + (first - r.own), bytes);
        if (rank) HH_TRY(hh_comm_to_first(c, rank, here, here, bytes, err));
    }
    return HH_OK;
}

/* Goes through all pieces also when writing fails, for the other ranks send them. */
static hh_code put_student(sink *s, const hh_trainer *t, const hh_student *st, hh_error *err) {
    uint64_t n = (uint64_t)st->n_trained;
    hh_code code = put(s, &n, sizeof n, err);
    for (part a = WEIGHTS; a < N_PARTS; a++)
        for (int64_t i = 0; i < st->n_ranges; i++)
            for (int64_t lo = 0, hi; lo < st->range[i].n; lo = hi) {
                hi = smaller(lo + PIECE, st->range[i].n);
                HH_TRY(collect(s, t, st, a, st->range[i], lo, hi, err));
                if (code == HH_OK) code = put(s, s->piece, (size_t)(hi - lo) * sizeof(hh_real), err);
            }
    return code == HH_OK ? t->be->sync(t->be, err) : code;
}

static hh_code put_state(sink *s, const hh_trainer *t, const char *settings, hh_error *err) {
    head h = {MAGIC, VERSION, sizeof(hh_real), (uint64_t)t->step, (uint64_t)t->n_students, strlen(settings)};
    hh_code code = put(s, &h, sizeof h, err);
    if (code == HH_OK) code = put(s, settings, strlen(settings), err);
    HH_TRY(hh_comm_agree(t->comm, code, err));
    for (int64_t i = 0; i < t->n_students; i++)
        HH_TRY(hh_comm_agree(t->comm, put_student(s, t, &t->student[i], err), err));
    uint64_t hash = s->hash;
    return s->w ? hh_file_writer_add(s->w, &hash, sizeof hash, err) : HH_OK;
}

static hh_code write_state(sink *s, const hh_trainer *t, const char *settings, hh_error *err) {
    hh_code code = put_state(s, t, settings, err);
    if (!s->w) return code;
    if (code == HH_OK) return hh_file_writer_commit(s->w, err);
    hh_file_writer_abandon(s->w);
    return code;
}

hh_code hh_state_write(const hh_trainer *t, const char *settings, const char *path, hh_error *err) {
    sink s = {0};
    hh_code code = t->comm->rank ? HH_OK : hh_file_writer_open(&s.w, path, err);
    HH_TRY(hh_comm_agree(t->comm, code, err));
    s.piece = hh_alloc(PIECE * sizeof *s.piece);
    code = write_state(&s, t, settings, err);
    hh_free(s.piece);
    return hh_comm_agree(t->comm, code, err);
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

/* Walks over a student; array[] gets where its weights and moments stand. */
static hh_code find_student(source *s, const hh_student *st, const char *array[N_PARTS], hh_error *err) {
    const void *p;
    uint64_t n;
    HH_TRY(take(s, &p, sizeof n, err));
    memcpy(&n, p, sizeof n);
    if (n != (uint64_t)st->n_trained)
        return hh_fail(err, HH_EINVAL, "%s: a student with %" PRIu64 " trained numbers, this one has %" PRId64, s->path,
                       n, st->n_trained);
    for (int a = WEIGHTS; a < N_PARTS; a++) {
        array[a] = s->at;
        for (int64_t i = 0; i < st->n_ranges; i++)
            for (int64_t lo = 0, left; (left = st->range[i].n - lo) > 0; lo += PIECE)
                HH_TRY(take(s, &p, (size_t)smaller(left, PIECE) * sizeof(hh_real), err));
    }
    return HH_OK;
}

static void fill_student(hh_backend *be, hh_student *st, const char *const array[N_PARTS]) {
    const size_t size = sizeof(hh_real);
    for (int64_t i = 0; i < st->n_ranges; i++) {
        hh_trained_range r = st->range[i];
        const size_t all = (size_t)r.n * size, own = (size_t)r.n_own * size, from = (size_t)(r.first + r.own) * size;
        be->to_device(be, (hh_real *)st->model->flat.data + r.at, array[WEIGHTS] + (size_t)r.first * size, all);
        be->to_device(be, (hh_real *)st->m.data + r.moment, array[MOMENT_M] + from, own);
        be->to_device(be, (hh_real *)st->v.data + r.moment, array[MOMENT_V] + from, own);
    }
}

static hh_code read_state(hh_trainer *t, const char *settings, source s, hh_error *err) {
    head h;
    const char *array[HH_MAX_STUDENTS][N_PARTS];
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
    for (int64_t i = 0; i < t->n_students; i++) fill_student(t->be, &t->student[i], (const char *const *)array[i]);
    t->step = (int64_t)h.step;
    return HH_OK;
}

hh_code hh_state_read(hh_trainer *t, const char *settings, const char *path, hh_error *err) {
    hh_filemap map;
    HH_TRY(hh_filemap_open(&map, path, err));
    hh_code code = read_state(t, settings, (source){.path = path, .at = map.data, .left = map.size}, err);
    hh_filemap_close(&map);
    return code == HH_OK ? t->be->sync(t->be, err) : code;
}
