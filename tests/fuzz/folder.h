/* A folder of a fuzz target's own, for parsers that read files: made once, in memory where the system has such a place. */
#ifndef HH_TESTS_FUZZ_FOLDER_H
#define HH_TESTS_FUZZ_FOLDER_H

#include "base/filemap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char fuzz_folder[64];

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
    snprintf(fuzz_folder, sizeof fuzz_folder, "%s/hydrahead-fuzz-XXXXXX",
             hh_is_directory("/dev/shm") ? "/dev/shm" : "/tmp");
    if (!mkdtemp(fuzz_folder)) abort();
    atexit(fuzz_remove_folder);
    return true;
}

/* Without the care for power cuts that hh_file_write takes. */
static void fuzz_write(const char *name, const void *data, size_t size) {
    char *path = fuzz_path(name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f)) hh_assert_failed(name, 0, "cannot be written");
    hh_free(path);
}

#endif
