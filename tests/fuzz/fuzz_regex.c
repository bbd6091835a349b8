/* Any text up to a NUL as a tokenizer's regular expression, and what follows as text to match: refused with the field's
 * name, or matches that advance and lie within the text. */
#include "text/regex.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hh_error err = {0};
    hh_regex *r;
    char *pattern = hh_sprintf("%.*s", (int)(size < 512 ? size : 512), (const char *)data);
    const size_t used = strlen(pattern) + 1;
    const hh_code code = hh_regex_compile(&r, "fuzz.json", "Split.pattern", pattern, &err);
    hh_free(pattern);
    if (code != HH_OK) {
        HH_ASSERT(strncmp(err.text, "fuzz.json", 9) == 0);
        return 0;
    }
    hh_regex_scratch scratch = {0};
    char text[256];
    size_t n = 0;
    for (size_t i = used; i < size && n < sizeof text; i++) text[n++] = (char)(data[i] & 0x7f); /* valid UTF-8 */
    for (size_t at = 0; at <= n;) {
        int64_t lo, hi;
        if (hh_regex_match(r, &scratch, text, n, at, &lo, &hi, &err) != HH_OK || lo < 0) break;
        HH_ASSERT(lo >= (int64_t)at && hi >= lo && hi <= (int64_t)n);
        at = (size_t)hi + (hi == lo);
    }
    hh_regex_scratch_release(&scratch);
    hh_regex_free(r);
    return 0;
}
