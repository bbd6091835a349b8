/* A folder of a fuzz target's own, for parsers that read files which name others: made once, in the temporary folder. */
#ifndef HH_TESTS_FUZZ_FOLDER_H
#define HH_TESTS_FUZZ_FOLDER_H

#include "base/filemap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char fuzz_folder[] = "/tmp/hydrahead-fuzz-XXXXXX";

static char *fuzz_path(const char *name) {
    return hh_path_join(fuzz_folder, name);
}

static void fuzz_remove_folder(void) {
    char *command = hh_sprintf("rm -rf %s", fuzz_folder);
    if (system(command)) abort();
    hh_free(command);
}

/* True the first time, when the folder has just been made. */
static bool fuzz_make_folder(void) {
    static bool made;
    if (made) return false;
    made = true;
    if (!mkdtemp(fuzz_folder)) abort();
    atexit(fuzz_remove_folder);
    return true;
}

static void fuzz_write(const char *name, const void *data, size_t size) {
    hh_error err = {0};
    char *path = fuzz_path(name);
    if (hh_file_write(path, data, size, &err) != HH_OK) hh_assert_failed(name, 0, err.text);
    hh_free(path);
}

#endif
