/* The one way for errors; see status.h. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

hh_code hh_fail(hh_error *err, hh_code code, const char *format, ...) {
    HH_ASSERT(err && code != HH_OK);
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    err->code = code;
    return code;
}

hh_code hh_fail_in(hh_error *err, const char *format, ...) {
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->text - 3) snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", old);
    return err->code;
}

const char *hh_code_name(hh_code code) {
    static const char *const names[] = {"ok",          "invalid", "io",        "format",
                                        "unsupported", "memory",  "cancelled", "nonfinite"};
    HH_ASSERT((unsigned)code < sizeof names / sizeof names[0]);
    return names[code];
}

void hh_assert_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "hydrahead: bug: %s:%d: %s\n", file, line, what);
    abort();
}
