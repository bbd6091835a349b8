/* Opening a model for a verb; see opened.h. */
#include "cli/opened.h"

#include <stdio.h>
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

size_t hh_cli_resident_bytes(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long long whole, resident = 0;
    if (!f) return 0;
    if (fscanf(f, "%llu %llu", &whole, &resident) != 2) resident = 0;
    fclose(f);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
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
