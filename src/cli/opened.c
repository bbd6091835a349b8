/* Opening a model for a verb; see opened.h. */
#include "cli/opened.h"

#include "base/filemap.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

hh_code hh_cli_tokenizer(hh_tokenizer **out, const char *path, hh_error *err) {
    char *where;
    *out = NULL;
    HH_TRY(hh_model_locate(&where, path, err));
    hh_code code = hh_tokenizer_open(out, where, err);
    hh_free(where);
    return code;
}

hh_code hh_cli_opened_open(hh_cli_opened *out, const hh_cli_common *common, const char *path, bool tokenizer,
                           hh_error *err) {
    *out = (hh_cli_opened){0};
    HH_TRY(hh_cli_backend(common, &out->be, err));
    HH_TRY(hh_model_open(&out->m, out->be, path, HH_LOAD_STORED, err));
    if (tokenizer) HH_TRY(hh_cli_tokenizer(&out->t, path, err));
    return HH_OK;
}

void hh_cli_opened_close(hh_cli_opened *o) {
    hh_tokenizer_close(o->t);
    hh_model_close(o->m);
    hh_backend_close(o->be);
    *o = (hh_cli_opened){0};
}

int64_t hh_cli_end_ids(const hh_cli_opened *o, int32_t out[HH_CLI_MAX_END_IDS]) {
    int64_t n = 0, more = 0;
    const int32_t *ids = o->t ? hh_tokenizer_end_ids(o->t, &more) : NULL;
    for (int32_t i = 0; i < o->m->config.n_end_ids; i++) out[n++] = o->m->config.end_ids[i];
    for (int64_t i = 0; i < more && n < HH_CLI_MAX_END_IDS; i++) out[n++] = ids[i];
    return n;
}

hh_code hh_cli_read_stdin(hh_buf *out, hh_error *err) {
    char block[1 << 14];
    size_t n;
    if (isatty(STDIN_FILENO)) fputs("hydrahead: the text is read from standard input; Ctrl-D ends it\n", stderr);
    do {
        n = fread(block, 1, sizeof block, stdin);
        hh_buf_add(out, block, n);
    } while (n == sizeof block); /* a terminal's end is said once */
    return ferror(stdin) ? hh_fail(err, HH_EIO, "standard input: %s", strerror(errno)) : HH_OK;
}

size_t hh_cli_resident_bytes(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long long whole, resident = 0;
    if (!f) return 0;
    if (fscanf(f, "%llu %llu", &whole, &resident) != 2) resident = 0;
    fclose(f);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

size_t hh_cli_machine_bytes(void) {
    const long pages = sysconf(_SC_PHYS_PAGES);
    return pages > 0 ? (size_t)pages * (size_t)sysconf(_SC_PAGESIZE) : 0;
}

size_t hh_cli_peak_bytes(void) {
    struct rusage use;
    return getrusage(RUSAGE_SELF, &use) ? 0 : (size_t)use.ru_maxrss * 1024;
}

void hh_cli_bytes_text(double bytes, char out[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++) bytes /= 1024;
    snprintf(out, 32, bytes < 10 && u ? "%.2f %s" : bytes < 100 && u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
}

hh_code hh_cli_check_out(const char *model_path, const char *out_dir, bool force, hh_error *err) {
    char *model;
    HH_TRY(hh_cli_check_name(out_dir, err));
    HH_TRY(hh_model_locate(&model, model_path, err));
    char *log = hh_path_join(out_dir, "log.jsonl"), *config = hh_path_join(out_dir, "config.json");
    hh_code code = HH_OK;
    if (hh_file_exists(out_dir) && !hh_is_directory(out_dir))
        code = hh_fail(err, HH_EINVAL, "--out %s is a file; name a directory", out_dir);
    else if (hh_file_exists(log))
        code = hh_fail(err, HH_EINVAL, "--out %s holds a training run; name another directory", out_dir);
    else if (hh_same_file(model, out_dir))
        code = hh_fail(err, HH_EINVAL, "--out %s is the model itself; name another directory", out_dir);
    else if (hh_file_exists(config) && !force)
        code = hh_fail(err, HH_EINVAL, "--out %s holds a checkpoint; name another directory, or --force to replace it",
                       out_dir);
    hh_free(config);
    hh_free(log);
    hh_free(model);
    return code;
}
