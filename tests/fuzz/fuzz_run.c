/* Any bytes as the files that a run which goes on finds of itself: a training log, the results of an evaluation that was
 * stopped, and a checkpoint's history. Refused with a sentence that names the file, or read. */
#include "eval/partial.h"
#include "fuzz/folder.h"
#include "train/history.h"
#include "train/trainlog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_partial(const char *path) {
    hh_error err = {0};
    hh_partial *p;
    double value[2];
    if (hh_partial_open(&p, path, &err) != HH_OK) {
        HH_ASSERT(strncmp(err.text, path, strlen(path)) == 0);
        return;
    }
    hh_partial_find(p, "a", 0, value, 2);
    if (hh_partial_add(p, "a", 0, (double[]){1, 2}, 2, &err) != HH_OK) hh_assert_failed(__FILE__, __LINE__, err.text);
    hh_partial_close(p);
    if (hh_partial_open(&p, path, &err) != HH_OK) hh_assert_failed(__FILE__, __LINE__, err.text);
    HH_ASSERT(hh_partial_find(p, "a", 0, value, 2) && value[0] == 1 && value[1] == 2);
    hh_partial_close(p);
}

static void check_log(const char *path) {
    hh_error err = {0};
    hh_trainlog *l;
    if (hh_trainlog_open(&l, path, 5, &err) != HH_OK) hh_assert_failed(__FILE__, __LINE__, err.text);
    hh_trainlog_close(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char *partial, *log;
    if (fuzz_make_folder()) {
        partial = fuzz_path("partial");
        log = fuzz_path("log.jsonl");
    }
    fuzz_write("partial", data, size);
    check_partial(partial);
    fuzz_write("log.jsonl", data, size);
    check_log(log);
    fuzz_write("training.json", data, size);
    hh_history_tokens(fuzz_folder);
    return 0;
}
