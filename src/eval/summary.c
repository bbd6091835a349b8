/* Adding one run's figures to the summary; see summary.h. */
#include "eval/summary.h"

#include "base/filemap.h"
#include "format/json.h"
#include "train/history.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static hh_code read_summary(json_t **out, const char *path, hh_error *err) {
    if (!hh_file_exists(path)) {
        *out = json_pack("{s:{}}", "models");
        return HH_OK;
    }
    HH_TRY(hh_json_read(out, path, (size_t)1 << 28, err));
    if (json_is_object(json_object_get(*out, "models"))) return HH_OK;
    json_decref(*out);
    *out = NULL;
    return hh_fail(err, HH_EFORMAT, "%s: not a summary of eval (an object with \"models\"); name another file", path);
}

/* The object under a key, made when it is missing. Borrowed. */
static json_t *object_at(json_t *o, const char *key) {
    json_t *inner = json_object_get(o, key);
    if (json_is_object(inner)) return inner;
    json_object_set_new(o, key, json_object());
    return json_object_get(o, key);
}

static void add_ruler(json_t *entry, const json_t *tasks) {
    const char *task, *length;
    json_t *lengths, *accuracy, *ruler = object_at(entry, "ruler");
    json_object_foreach((json_t *)tasks, task, lengths) json_object_foreach(lengths, length, accuracy)
        json_object_set(object_at(ruler, task), length, accuracy);
}

static void add_choice(json_t *entry, const json_t *files) {
    const char *file;
    json_t *measures, *choice = object_at(entry, "choice");
    json_object_foreach((json_t *)files, file, measures) {
        json_t *norm = json_object_get(measures, "acc_norm");
        json_object_set(choice, file, norm ? norm : json_object_get(measures, "acc"));
    }
}

/* Runs side by side add one after another: the lock is the directory's, so that it leaves no file. -1: a directory that
 * cannot be opened or locked; adding then goes on, and fails by itself if the file cannot be written. */
static int lock_directory(const char *path) {
    const char *name;
    char *dir = hh_path_folder(path, &name);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    hh_free(dir);
    while (fd >= 0 && flock(fd, LOCK_EX) != 0 && errno == EINTR) {
    }
    return fd;
}

static hh_code add(const char *path, const char *measure, const json_t *results, const hh_subject *subject,
                   int64_t n_subjects, hh_error *err) {
    json_t *summary;
    HH_TRY(read_summary(&summary, path, err));
    for (int64_t i = 0; i < n_subjects; i++) {
        const json_t *figures = json_object_get(json_object_get(results, "models"), subject[i].name);
        json_t *entry = object_at(json_object_get(summary, "models"), subject[i].name);
        json_object_set_new(entry, "tokens", json_integer(hh_history_tokens(subject[i].model->path)));
        if (!strcmp(measure, "ruler")) add_ruler(entry, figures);
        if (!strcmp(measure, "choice")) add_choice(entry, figures);
        if (!strcmp(measure, "perplexity"))
            json_object_set(entry, "perplexity", json_object_get(figures, "perplexity"));
    }
    return hh_json_write(path, summary, 12, err);
}

hh_code hh_summary_add(const char *path, const char *measure, const json_t *results, const hh_subject *subject,
                       int64_t n_subjects, hh_error *err) {
    int lock = lock_directory(path);
    hh_code code = add(path, measure, results, subject, n_subjects, err);
    if (lock >= 0) close(lock);
    return code;
}
