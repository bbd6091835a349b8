/* The scanners cut as their regular expressions do, character classes are PCRE2's, and patterns that PCRE2 would read
 * otherwise are refused. */
#include "support/support.h"

#include "text/split.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include <string.h>

typedef struct ends {
    size_t at[4096];
    size_t n;
    const char *text;
} ends;

static void note_end(void *context, const char *word, size_t n) {
    ends *e = context;
    assert_true(e->n < sizeof e->at / sizeof e->at[0]);
    e->at[e->n++] = (size_t)(word - e->text) + n;
}

static void cut(const hh_splitter *s, const char *text, size_t n, ends *out) {
    hh_error err = {0};
    hh_regex_scratch scratch = {0};
    out->n = 0;
    out->text = text;
    assert_ok(hh_split(s, &scratch, text, text, n, note_end, out, &err));
    hh_regex_scratch_release(&scratch);
}

/* Characters that PCRE2's version of Unicode has; utf8proc's may be newer. */
static bool assigned[0x110000];

static int find_assigned(void **state) {
    (void)state;
    hh_error err = {0};
    hh_regex_scratch scratch = {0};
    hh_regex *r;
    assert_ok(hh_regex_compile_native(&r, "\\P{Cn}", &err));
    for (int32_t cp = 0; cp <= 0x10ffff; cp++) {
        char text[4];
        int64_t lo, hi;
        if (cp >= 0xd800 && cp <= 0xdfff) continue;
        assert_ok(hh_regex_match(r, &scratch, text, (size_t)hh_utf8_put(text, cp), 0, &lo, &hi, &err));
        assigned[cp] = lo >= 0;
    }
    hh_regex_free(r);
    hh_regex_scratch_release(&scratch);
    return 0;
}

static uint32_t draw(uint32_t *x, uint32_t n) {
    *x = *x * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)(*x >> 8) * n >> 24);
}

/* Characters that the patterns tell apart, often next to each other. */
static size_t make_text(char *text, size_t room, uint32_t *x) {
    static const char *const pieces[] = {"'",
                                         "s",
                                         "S",
                                         "\xc5\xbf",
                                         "t",
                                         "re",
                                         "LL",
                                         "vE",
                                         "d",
                                         "m",
                                         " ",
                                         "  ",
                                         "\n",
                                         "\r",
                                         "\t",
                                         "\xc2\x85",
                                         "\xe1\xa0\x8e",
                                         "\xe3\x80\x80",
                                         "1",
                                         "\xc2\xbd",
                                         "\xcc\x81",
                                         "\xe0\xa4\xbe",
                                         "a",
                                         "\xc3\xa9",
                                         "\xe6\xbc\xa2",
                                         "!",
                                         ".",
                                         "\xf0\x9f\x99\x82",
                                         "\x1a",
                                         "/",
                                         "\xe2\x80\xa8"};
    size_t n = 0, want = 1 + draw(x, 40);
    while (n + 8 < room && want--) {
        if (draw(x, 8)) {
            const char *s = pieces[draw(x, sizeof pieces / sizeof pieces[0])];
            memcpy(text + n, s, strlen(s));
            n += strlen(s);
        } else {
            int32_t cp = (int32_t)draw(x, draw(x, 2) ? 0x3000 : 0x110000);
            if (!assigned[cp]) continue;
            n += (size_t)hh_utf8_put(text + n, cp);
        }
    }
    return n;
}

static void test_scanners(void **state) {
    (void)state;
    static const char *const patterns[] = {HH_PATTERN_GPT2, HH_PATTERN_LLAMA3, HH_PATTERN_QWEN2, HH_PATTERN_QWEN35};
    static ends fast, slow;
    for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++) {
        hh_error err = {0};
        hh_splitter scanner = {.stages = {{.scan = hh_scanner_find(patterns[p])}}, .n_stages = 1},
                    regex = {.n_stages = 1};
        assert_non_null(scanner.stages[0].scan);
        assert_ok(hh_regex_compile(&regex.stages[0].regex, "test", "pattern", patterns[p], &err));
        uint32_t x = 7;
        for (int round = 0; round < 30000; round++) {
            char text[256];
            size_t n = make_text(text, sizeof text, &x);
            cut(&scanner, text, n, &fast);
            cut(&regex, text, n, &slow);
            if (fast.n != slow.n || memcmp(fast.at, slow.at, fast.n * sizeof fast.at[0]) != 0)
                fail_msg("pattern %zu cuts '%.*s' otherwise", p, (int)n, text);
        }
        hh_splitter_release(&regex);
    }
}

/* Of every character: letters, numbers, marks and white space are what PCRE2's properties say. */
static void test_classes(void **state) {
    (void)state;
    static const struct {
        const char *pattern;
        int class;
    } classes[] = {{"\\p{L}", HH_LETTER},
                   {"\\p{N}", HH_NUMBER},
                   {"\\p{M}", HH_MARK},
                   {"\\s", HH_SPACE},
                   {"[^\\s\\p{L}\\p{N}\\p{M}]", HH_OTHER},
                   {"[^\\S\\p{L}]", HH_SPACE}};
    hh_error err = {0};
    hh_regex_scratch scratch = {0};
    for (size_t c = 0; c < sizeof classes / sizeof classes[0]; c++) {
        hh_regex *r;
        assert_ok(hh_regex_compile(&r, "test", "pattern", classes[c].pattern, &err));
        for (int32_t cp = 0; cp <= 0x10ffff; cp++) {
            if (!assigned[cp]) continue;
            char text[4];
            int64_t lo, hi;
            size_t n = (size_t)hh_utf8_put(text, cp);
            assert_ok(hh_regex_match(r, &scratch, text, n, 0, &lo, &hi, &err));
            if ((lo >= 0) != (hh_char_class(cp) == classes[c].class))
                fail_msg("U+%04X and %s", (unsigned)cp, classes[c].pattern);
        }
        hh_regex_free(r);
    }
    hh_regex_scratch_release(&scratch);
}

static void test_utf8(void **state) {
    (void)state;
    for (int32_t cp = 0; cp <= 0x10ffff; cp++) {
        if (cp >= 0xd800 && cp <= 0xdfff) continue;
        char text[4];
        int n = hh_utf8_put(text, cp);
        int32_t back;
        assert_int_equal(hh_utf8_next(text, (size_t)n, &back), n);
        assert_int_equal(back, cp);
        assert_int_equal(hh_utf8_back(text, (size_t)n, &back), 0);
        assert_int_equal(back, cp);
        if (n > 1) { /* cut short it is no character */
            hh_utf8_next(text, (size_t)n - 1, &back);
            assert_int_equal(back, -1);
        }
    }
    for (int b = 0; b < 256; b++) {
        int back = hh_letter_to_byte(hh_byte_to_letter((uint8_t)b));
        assert_int_equal(back, b);
    }
    assert_int_equal(hh_letter_to_byte(' '), -1);
    assert_int_equal(hh_letter_to_byte(0x144), -1);
}

static void refuse(const char *pattern, hh_code code, const char *word) {
    hh_error err = {0};
    hh_regex *r;
    assert_refused(hh_regex_compile(&r, "file.json", "pre_tokenizer", pattern, &err), code, "file.json",
                   "pre_tokenizer", word);
    assert_null(r);
}

static void test_patterns_refused(void **state) {
    (void)state;
    static const char *const unknown[] = {
        "\\w+",         "\\bx",          "\\h",          "(a)\\1", "[a&&b]", "[a[b]]",   "[[:alpha:]]", "[]a]",
        "(?<name>x)",   "(?m:x)",        "a(?i)b",       "x{2}+",  "x{,3}",  "\\p{Foo}", "\\p{^L}",     "\\pL",
        "(?i:straSSe)", "(?i:\xc3\x9f)", "(?i:\\p{Lu})", "a++?",   "\\xe9",  "[\\b]",    "x\\",         "[a"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        refuse(unknown[i], HH_EUNSUPPORTED, "not supported");
    refuse("x*", HH_EUNSUPPORTED, "nothing at all");
    refuse("(x", HH_EFORMAT, "wrong");
    refuse("x)", HH_EFORMAT, "wrong");
    refuse("+", HH_EFORMAT, "wrong");
}

static void normalise(hh_normal_form form, const char *text, const char *expected) {
    hh_buf out = {0};
    hh_unicode_normalise(form, text, strlen(text), &out);
    assert_string_equal(out.data, expected);
    hh_buf_release(&out);
}

static void test_normal_forms(void **state) {
    (void)state;
    normalise(HH_NFC, "e\xcc\x81", "\xc3\xa9");
    normalise(HH_NFD, "\xc3\xa9", "e\xcc\x81");
    normalise(HH_NFKC, "\xef\xac\x81", "fi");
    normalise(HH_NFKD, "\xc2\xbd",
              "1\xe2\x81\x84"
              "2");
    normalise(HH_NFC, "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81");
    normalise(HH_NFC,
              "a\xff"
              "e\xcc\x81\xff\xcc\x81",
              "a\xff\xc3\xa9\xff\xcc\x81"); /* invalid bytes stay and join nothing */
    normalise(HH_NFC, "\xcc\x81\xcc\x96", "\xcc\x96\xcc\x81");
    hh_buf marks = {0}, out = {0}; /* long runs are sorted too, equal classes in their order */
    for (int i = 0; i < 100; i++) hh_buf_puts(&marks, i % 2 ? "\xcc\x81" : i % 4 ? "\xcc\x96" : "\xcc\xa3");
    hh_unicode_normalise(HH_NFD, marks.data, marks.len, &out);
    for (size_t i = 0; i < 50; i++) assert_memory_equal(out.data + 2 * i, i % 2 ? "\xcc\x96" : "\xcc\xa3", 2);
    for (size_t i = 50; i < 100; i++) assert_memory_equal(out.data + 2 * i, "\xcc\x81", 2);
    hh_buf_release(&marks);
    hh_buf_release(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scanners),         cmocka_unit_test(test_classes),      cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_patterns_refused), cmocka_unit_test(test_normal_forms),
    };
    return cmocka_run_group_tests_name("cutting text into words", tests, find_assigned, NULL);
}
