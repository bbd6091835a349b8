/* Files that carry checksums of themselves: a target that mends them after every mutation gets behind them. */
#ifndef HH_TESTS_FUZZ_MENDED_H
#define HH_TESTS_FUZZ_MENDED_H

#include "base/memory.h"
#include "base/filemap.h"
#include "base/rng.h"

#include <string.h>

static inline uint64_t fuzz_word(const uint8_t *file, size_t word) {
    uint64_t x;
    memcpy(&x, file + 8 * word, sizeof x);
    return x;
}

static inline void fuzz_set_word(uint8_t *file, size_t word, uint64_t x) {
    memcpy(file + 8 * word, &x, sizeof x);
}

/* The hash of `n` bytes from `at` on, as many of them as the file has. */
static inline uint64_t fuzz_hash(const uint8_t *file, size_t size, uint64_t at, uint64_t n, uint64_t seed) {
    if (at > size) at = size;
    if (n > size - at) n = size - at;
    return hh_hash64(file + at, (size_t)n, seed);
}

#endif
