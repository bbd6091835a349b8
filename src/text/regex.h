/* Regular expressions of tokenizer files: written for Oniguruma, run by PCRE2.
 *
 * A pattern is rewritten so that both mean the same (\s is White_Space, case folding, anchors); constructs on which the
 * two differ or that no published tokenizer uses are refused with their place in the pattern.
 */
#ifndef HH_TEXT_REGEX_H
#define HH_TEXT_REGEX_H

#include "base/memory.h"

typedef struct hh_regex hh_regex;

/* `field` names the place in the file for the sentence. */
hh_code hh_regex_compile(hh_regex **out, const char *path, const char *field, const char *pattern, hh_error *err);
/* A pattern of hydrahead's own, in PCRE2's words. */
hh_code hh_regex_compile_native(hh_regex **out, const char *pattern, hh_error *err);
void hh_regex_free(hh_regex *r); /* NULL is accepted */

/* What matching needs besides the pattern; one for each call of encode. Zeroed is valid. */
typedef struct hh_regex_scratch {
    void *data, *context, *stack;
} hh_regex_scratch;
void hh_regex_scratch_release(hh_regex_scratch *s);

/* The first match in text[at, n) of valid UTF-8: *lo < 0: none. Text before `at` is seen by look-behind. */
hh_code hh_regex_match(const hh_regex *r, hh_regex_scratch *s, const char *text, size_t n, size_t at, int64_t *lo,
                       int64_t *hi, hh_error *err);

#endif
