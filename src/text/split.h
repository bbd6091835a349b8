/* Pre-tokenization: cuts text into the words that BPE works on, by a list of stages, each of which cuts the pieces of
 * the one before.
 *
 * The patterns of GPT-2, Llama-3 and Qwen are also written out as scanners, equal to the regular expressions on every
 * text (tests/text/test_split.c compares them); any other pattern is run by PCRE2.
 */
#ifndef HH_TEXT_SPLIT_H
#define HH_TEXT_SPLIT_H

#include "text/regex.h"

typedef enum hh_split_kind { HH_SPLIT_REGEX, HH_SPLIT_STRING, HH_SPLIT_DIGITS, HH_SPLIT_BYTE_LEVEL } hh_split_kind;

/* What becomes of a match of the pattern, as in Hugging Face tokenizers. */
typedef enum hh_split_behaviour {
    HH_SPLIT_ISOLATED,    /* a piece of its own */
    HH_SPLIT_REMOVED,     /* dropped */
    HH_SPLIT_MERGED_PREV, /* joins the piece before */
    HH_SPLIT_MERGED_NEXT, /* joins the piece after */
    HH_SPLIT_CONTIGUOUS,  /* neighbouring matches are one piece */
} hh_split_behaviour;

/* End of the word that begins at text[at]; the pattern matches everywhere. Valid UTF-8. */
typedef size_t hh_scanner(const char *text, size_t n, size_t at);

typedef struct hh_split_stage {
    hh_split_kind kind;
    hh_split_behaviour behaviour;
    bool invert;           /* what does not match is the match */
    bool add_prefix_space; /* BYTE_LEVEL: a piece without one gets a space in front */
    char *string;          /* STRING */
    hh_regex *regex;       /* REGEX; BYTE_LEVEL with use_regex; NULL: BYTE_LEVEL without */
    hh_scanner *scan;      /* the same pattern as a scanner; NULL: none */
} hh_split_stage;

enum { HH_SPLIT_MAX_STAGES = 16 };

typedef struct hh_splitter {
    hh_split_stage stages[HH_SPLIT_MAX_STAGES];
    int n_stages;
} hh_splitter;

#define HH_PATTERN_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define HH_PATTERN_LLAMA3                                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"           \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define HH_PATTERN_QWEN2                                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"                \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define HH_PATTERN_QWEN35                                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"  \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* The scanner of a pattern that has one; NULL otherwise. */
hh_scanner *hh_scanner_find(const char *pattern);

/* Appends a stage, which the splitter then owns (also on failure). HH_EUNSUPPORTED when there are too many. */
hh_code hh_splitter_add(hh_splitter *s, hh_split_stage stage, const char *path, hh_error *err);
void hh_splitter_release(hh_splitter *s);

/* Takes one word; its bytes are those of the text, also where the text is no valid UTF-8. */
typedef void hh_split_word(void *context, const char *word, size_t n);

/* Cuts text[0, n). `shadow` is the text with every invalid byte replaced by a control character (the same pointer when
 * all is valid). */
hh_code hh_split(const hh_splitter *s, hh_regex_scratch *scratch, const char *text, const char *shadow, size_t n,
                 hh_split_word *word, void *context, hh_error *err);

#endif
