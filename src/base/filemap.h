/* Files: mapped for reading, written aside and renamed, checksummed. Errors name the path and the system's reason. */
#ifndef HH_BASE_FILEMAP_H
#define HH_BASE_FILEMAP_H

#include "base/memory.h"

typedef struct hh_filemap {
    const void *data; /* NULL for an empty file */
    size_t size;
} hh_filemap;

/* Maps a regular file read-only (a directory, a FIFO or a device is refused). */
hh_code hh_filemap_open(hh_filemap *m, const char *path, hh_error *err);
void hh_filemap_close(hh_filemap *m);
/* Gives back the memory of the pages that lie wholly in [data, data + size), a part of the map: what is looked at again
 * comes from the file again. */
void hh_filemap_forget(const hh_filemap *m, const void *data, size_t size);

/* Reads a whole file of at most max_bytes into out (replaced). */
hh_code hh_file_read(const char *path, size_t max_bytes, hh_buf *out, hh_error *err);
/* Writes path.tmp-<pid>, flushes it to disk, renames it: readers see the old file or the new one, never half of one. */
hh_code hh_file_write(const char *path, const void *data, size_t size, hh_error *err);
/* The same in pieces. */
typedef struct hh_file_writer hh_file_writer;
hh_code hh_file_writer_open(hh_file_writer **out, const char *path, hh_error *err);
hh_code hh_file_writer_add(hh_file_writer *w, const void *data, size_t size, hh_error *err);
hh_code hh_file_writer_commit(hh_file_writer *w, hh_error *err); /* flush, fsync, rename; frees w also on failure */
void hh_file_writer_abandon(hh_file_writer *w);                  /* removes what was written; NULL is accepted */

/* Says at the beginning of long work what writing `path` would say at its end: a folder is missing, or may not be written. */
hh_code hh_file_check_target(const char *path, hh_error *err);
hh_code hh_make_directory(const char *path, hh_error *err); /* with its parents; an existing one is fine */
bool hh_file_exists(const char *path);
bool hh_is_directory(const char *path);
bool hh_same_target(const char *a, const char *b); /* writing both would write one file, which need not be there yet */
bool hh_same_file(const char *a, const char *b);   /* both are there, and are one file or directory, under any names */
char *hh_path_join(const char *dir, const char *name);     /* owned by the caller */
char *hh_path_folder(const char *path, const char **name); /* "." when it names none; *name is what follows it */
/* PATH, or NAME=PATH when there is nothing called "NAME=PATH". Returns the path, inside word; *name (the caller's) is NAME
 * or the word itself. */
const char *hh_path_split_name(char **name, const char *word);

/* A file's size and date mixed into `seed`: changes when the file does. `seed` itself when there is no such file. */
uint64_t hh_file_stamp(const char *path, uint64_t seed);
uint64_t hh_hash64(const void *data, size_t size,
                   uint64_t seed); /* a fast checksum, not cryptographic (FNV-like on 8 bytes, xxhash64) */

#endif
