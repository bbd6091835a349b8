/* Oniguruma patterns on PCRE2; see regex.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

struct hh_regex {
    pcre2_code *code;
    char *field;
};

/* White_Space as the inside of a class, and its complement. PCRE2's own \s also takes U+180E. */
#define SPACES                                                                                                         \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define NO_SPACES                                                                                                      \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}" \
    "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"

typedef struct translator {
    const char *path, *field, *pattern, *at;
    hh_buf out;
    bool in_class;
    int depth, caseless_depth; /* groups open; the depth at which (?i: opened, 0: not */
    bool all_caseless;
} translator;

static hh_code refuse(const translator *t, const char *what, hh_error *err) {
    return hh_fail(err, HH_EUNSUPPORTED, "%s: %s: %s at character %td of the pattern '%.200s' is not supported",
                   t->path, t->field, what, t->at - t->pattern + 1, t->pattern);
}

static bool is_caseless(const translator *t) {
    return t->all_caseless || t->caseless_depth;
}

/* General categories, and scripts (Oniguruma means Script, PCRE2's plain name means Script_Extensions). */
static bool translate_property(translator *t, const char *name, size_t n) {
    static const char categories[] =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs "
        "Zl Zp C Cc Cf Co Cs ";
    static const char scripts[] = " Han Hiragana Katakana Hangul Latin Greek Cyrillic Arabic Hebrew Thai Devanagari ";
    char word[32];
    if (n == 0 || n + 3 > sizeof word || memchr(name, ' ', n)) return false;
    word[0] = ' ';
    memcpy(word + 1, name, n);
    memcpy(word + n + 1, " ", 2);
    if (strstr(categories, word)) {
        if (is_caseless(t) && n == 2 && name[0] == 'L' && strchr("ult", name[1])) return false;
        hh_buf_printf(&t->out, "{%.*s}", (int)n, name);
        return true;
    }
    if (!strstr(scripts, word)) return false;
    hh_buf_printf(&t->out, "{sc:%.*s}", (int)n, name);
    return true;
}

/* \x{...}, \xHH below 0x80, \uHHHH; t->at is at the letter. */
static bool translate_code(translator *t) {
    const char *digits = t->at + 1;
    bool braces = *t->at == 'x' && *digits == '{';
    if (braces) digits++;
    size_t n = strspn(digits, "0123456789abcdefABCDEF"), want = *t->at == 'u' ? 4 : 2;
    if (braces ? n == 0 || n > 6 || digits[n] != '}' : n < want) return false;
    if (!braces) n = want;
    char text[8] = {0};
    memcpy(text, digits, n);
    unsigned long cp = strtoul(text, NULL, 16);
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff) || (*t->at == 'x' && !braces && cp >= 0x80)) return false;
    if (is_caseless(t) && cp >= 0x80) return false;
    hh_buf_printf(&t->out, "\\x{%lx}", cp);
    t->at = digits + n + (braces ? 1 : 0);
    return true;
}

static hh_code translate_escape(translator *t, hh_error *err) {
    char c = *++t->at;
    switch (c) {
    case 's':
        hh_buf_puts(&t->out, t->in_class ? SPACES : "[" SPACES "]");
        break;
    case 'S':
        hh_buf_puts(&t->out, t->in_class ? NO_SPACES : "[" NO_SPACES "]");
        break;
    case 'd':
        hh_buf_puts(&t->out, "\\p{Nd}");
        break;
    case 'D':
        hh_buf_puts(&t->out, "\\P{Nd}");
        break;
    case 'v':
        hh_buf_puts(&t->out, "\\x{B}");
        break;
    case 'r':
    case 'n':
    case 't':
    case 'f':
        hh_buf_printf(&t->out, "\\%c", c);
        break;
    case 'A':
    case 'z':
        if (t->in_class) return refuse(t, "this escape in a class", err);
        hh_buf_printf(&t->out, "\\%c", c);
        break;
    case 'x':
    case 'u':
        return translate_code(t) ? HH_OK : refuse(t, "this character code", err);
    case 'p':
    case 'P': {
        const char *end = t->at[1] == '{' ? strchr(t->at, '}') : NULL;
        hh_buf_printf(&t->out, "\\%c", c);
        if (!end || !translate_property(t, t->at + 2, (size_t)(end - t->at - 2)))
            return refuse(t, "this Unicode property", err);
        t->at = end + 1;
        return HH_OK;
    }
    default:
        if (c <= ' ' || c > '~' || strchr("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz<>", c))
            return refuse(t, "this escape", err);
        hh_buf_printf(&t->out, "\\%c", c);
    }
    t->at++;
    return HH_OK;
}

static hh_code translate_class(translator *t, hh_error *err) {
    hh_buf_add(&t->out, t->at++, 1);
    if (*t->at == '^') hh_buf_add(&t->out, t->at++, 1);
    if (*t->at == ']') return refuse(t, "an empty class", err);
    t->in_class = true;
    while (*t->at != ']') {
        if (!*t->at) return refuse(t, "a class without end", err);
        if (*t->at == '[') return refuse(t, "a class in a class", err);
        if (t->at[0] == '&' && t->at[1] == '&') return refuse(t, "an intersection of classes", err);
        if (is_caseless(t) && (*t->at & 0x80)) return refuse(t, "(?i) over a character beyond ASCII", err);
        if (*t->at == '\\') {
            HH_TRY(translate_escape(t, err));
        } else {
            hh_buf_add(&t->out, t->at++, 1);
        }
    }
    t->in_class = false;
    hh_buf_add(&t->out, t->at++, 1);
    return HH_OK;
}

static hh_code translate_group(translator *t, hh_error *err) {
    static const char *const heads[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    t->depth++;
    if (t->at[1] != '?') {
        hh_buf_puts(&t->out, "(?:");
        t->at++;
        return HH_OK;
    }
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        size_t n = strlen(heads[i]);
        if (strncmp(t->at, heads[i], n) != 0) continue;
        if (heads[i][2] == 'i' && !t->caseless_depth) t->caseless_depth = t->depth;
        hh_buf_add(&t->out, heads[i], n);
        t->at += n;
        return HH_OK;
    }
    return refuse(t, "this kind of group", err);
}

/* {n}, {n,} or {n,m}; what may follow means something else to PCRE2. */
static hh_code translate_interval(translator *t, hh_error *err) {
    const char *p = t->at + 1;
    size_t low = strspn(p, "0123456789");
    p += low;
    if (*p == ',') p += 1 + strspn(p + 1, "0123456789");
    if (!low || *p != '}' || (p[1] && strchr("?+*{", p[1]))) return refuse(t, "this interval", err);
    hh_buf_add(&t->out, t->at, (size_t)(p + 1 - t->at));
    t->at = p + 1;
    return HH_OK;
}

/* Oniguruma folds ss, ff, fi, fl and st with single characters (ß, ligatures) and PCRE2 does not. */
static bool folds_with_next(const char *p) {
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if ((p[0] | 32) == pairs[i][0] && (p[1] | 32) == pairs[i][1]) return true;
    return false;
}

static hh_code translate(translator *t, hh_error *err) {
    if (strncmp(t->at, "(?i)", 4) == 0) {
        t->all_caseless = true;
        hh_buf_puts(&t->out, "(?i)");
        t->at += 4;
    }
    while (*t->at) {
        switch (*t->at) {
        case '\\':
            HH_TRY(translate_escape(t, err));
            break;
        case '[':
            HH_TRY(translate_class(t, err));
            break;
        case '(':
            HH_TRY(translate_group(t, err));
            break;
        case '{':
            HH_TRY(translate_interval(t, err));
            break;
        case ')':
            if (t->depth == t->caseless_depth) t->caseless_depth = 0;
            t->depth--;
            hh_buf_add(&t->out, t->at++, 1);
            break;
        case '?':
        case '*':
        case '+':
            if (t->at[1] && t->at[2] && strchr("?*+", t->at[1]) && strchr("?*+{", t->at[2]))
                return refuse(t, "a repeat of a repeat", err);
            hh_buf_add(&t->out, t->at++, 1);
            break;
        default:
            if (is_caseless(t) && (*t->at & 0x80 || folds_with_next(t->at)))
                return refuse(t, "(?i) over characters that fold to others", err);
            hh_buf_add(&t->out, t->at++, 1);
        }
    }
    return HH_OK;
}

static hh_code compile(hh_regex *r, const char *path, const char *field, const char *pattern, const hh_buf *translated,
                       hh_error *err) {
    pcre2_compile_context *c = pcre2_compile_context_create(NULL);
    HH_ASSERT(c);
    pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE at;
    r->code = pcre2_compile((PCRE2_SPTR)translated->data, translated->len,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at, c);
    pcre2_compile_context_free(c);
    if (!r->code) {
        PCRE2_UCHAR why[200];
        pcre2_get_error_message(code, why, sizeof why);
        return hh_fail(err, HH_EFORMAT, "%s: %s: the pattern '%.200s' is wrong: %s", path, field, pattern, (char *)why);
    }
    uint32_t empty = 0;
    pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty)
        return hh_fail(err, HH_EUNSUPPORTED,
                       "%s: %s: the pattern '%.200s' can match nothing at all; it is not supported", path, field,
                       pattern);
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* without it the interpreter runs */
    return HH_OK;
}

static hh_code finish(hh_regex **out, hh_regex *r, hh_code code) {
    if (code == HH_OK)
        *out = r;
    else
        hh_regex_free(r);
    return code;
}

hh_code hh_regex_compile(hh_regex **out, const char *path, const char *field, const char *pattern, hh_error *err) {
    *out = NULL;
    if (strlen(pattern) > 10000)
        return hh_fail(err, HH_EUNSUPPORTED, "%s: %s: a pattern of %zu bytes is too long (10000 are allowed)", path,
                       field, strlen(pattern));
    translator t = {.path = path, .field = field, .pattern = pattern, .at = pattern};
    hh_regex *r = hh_alloc(sizeof *r);
    r->field = hh_strdup(field);
    hh_buf_puts(&t.out, "");
    hh_code code = translate(&t, err);
    if (code == HH_OK) code = compile(r, path, field, pattern, &t.out, err);
    hh_buf_release(&t.out);
    return finish(out, r, code);
}

hh_code hh_regex_compile_native(hh_regex **out, const char *pattern, hh_error *err) {
    *out = NULL;
    hh_regex *r = hh_alloc(sizeof *r);
    r->field = hh_strdup("built-in");
    hh_buf text = {0};
    hh_buf_puts(&text, pattern);
    hh_code code = compile(r, "hydrahead", r->field, pattern, &text, err);
    hh_buf_release(&text);
    return finish(out, r, code);
}

void hh_regex_free(hh_regex *r) {
    if (!r) return;
    pcre2_code_free(r->code);
    hh_free(r->field);
    hh_free(r);
}

void hh_regex_scratch_release(hh_regex_scratch *s) {
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    *s = (hh_regex_scratch){0};
}

static void prepare(hh_regex_scratch *s) {
    if (s->data) return;
    s->data = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create((size_t)32 << 10, (size_t)16 << 20, NULL);
    HH_ASSERT(s->data && s->context);
    pcre2_set_match_limit(s->context, 50000000);
    if (s->stack) pcre2_jit_stack_assign(s->context, NULL, s->stack);
}

hh_code hh_regex_match(const hh_regex *r, hh_regex_scratch *s, const char *text, size_t n, size_t at, int64_t *lo,
                       int64_t *hi, hh_error *err) {
    prepare(s);
    *lo = *hi = -1;
    int found = pcre2_match(r->code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, s->data, s->context);
    if (found == PCRE2_ERROR_NOMATCH) return HH_OK;
    if (found < 0) {
        PCRE2_UCHAR why[200];
        pcre2_get_error_message(found, why, sizeof why);
        return hh_fail(err, HH_EUNSUPPORTED,
                       "%s: the pattern costs too much on this text at byte %zu (%s); split the text", r->field, at,
                       (char *)why);
    }
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(s->data);
    *lo = (int64_t)bounds[0];
    *hi = (int64_t)bounds[1];
    HH_ASSERT(*lo >= (int64_t)at && *lo < *hi && *hi <= (int64_t)n);
    return HH_OK;
}
