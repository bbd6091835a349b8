/* How hydrahead fails.
 *
 * The outside world (files, words, memory, devices) fails with a code and one sentence, written where the fault was
 * noticed: it names the file, the tensor and the numbers, says what to do next, and is fit to print as it is.
 * A broken promise inside the program is a bug and stops it: HH_ASSERT, also in release builds.
 *
 * A function that can fail returns hh_code and takes `hh_error *err` as its last parameter (never NULL).
 */
#ifndef HH_BASE_STATUS_H
#define HH_BASE_STATUS_H

#include "hydrahead.h" /* hh_code and hh_error: they are what callers of the library see */

#define HH_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* Writes the sentence and the code, returns the code. An earlier sentence is overwritten. */
hh_code hh_fail(hh_error *err, hh_code code, const char *format, ...) HH_PRINTF(3, 4);

/* Puts "prefix: " before the sentence that err already holds, returns its code. */
hh_code hh_fail_in(hh_error *err, const char *format, ...) HH_PRINTF(2, 3);

/* The name of a code for machines: "invalid", "io", "format", "unsupported", "memory", "cancelled", "nonfinite". */
const char *hh_code_name(hh_code code);

void hh_assert_failed(const char *file, int line, const char *what) __attribute__((noreturn)); /* C and C++ */

/* Returns from the calling function when `call` failed. */
#define HH_TRY(call)                                                                                                   \
    do {                                                                                                               \
        hh_code hh_try_code = (call);                                                                                  \
        if (hh_try_code != HH_OK) return hh_try_code;                                                                  \
    } while (0)

/* Goes to `label` with `code` set when `call` failed; for functions that own something. */
#define HH_TRY_GOTO(code, call, label)                                                                                 \
    do {                                                                                                               \
        (code) = (call);                                                                                               \
        if ((code) != HH_OK) goto label;                                                                               \
    } while (0)

#define HH_ASSERT(condition)                                                                                           \
    do {                                                                                                               \
        if (!(condition)) hh_assert_failed(__FILE__, __LINE__, #condition);                                            \
    } while (0)

#endif
