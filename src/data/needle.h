/* RULER's eight needle tasks, with RULER's own wording and random draws (Python's Mersenne Twister), at any length, for
 * any tokenizer.
 *
 * Tasks: niah_single_1..3, niah_multikey_1..3, niah_multivalue, niah_multiquery; settings of NVIDIA/RULER's
 * synthetic.yaml. Noise and needle haystacks are byte-equal to the generator of NVIDIA/RULER for the same seed; essays
 * are replaced by a haystack text that the caller gives. Where RULER's own generator finds no size that fits (it never
 * ends there: essays below about 700 tokens), haystacks grow by single units and only the answer's own tokens and a few
 * more are reserved for generation, so that short native lengths can be measured. niah_book is an addition:
 * niah_single_2 with keys of two held-out words of the haystack ("harbour-lantern") and held-out values, for models
 * whose world is book text and whose training saw needle documents (data/needle_docs.h).
 */
#ifndef HH_DATA_NEEDLE_H
#define HH_DATA_NEEDLE_H
#include "text/tokenizer.h"

typedef enum hh_needle_task {
    HH_NIAH_SINGLE_1,
    HH_NIAH_SINGLE_2,
    HH_NIAH_SINGLE_3,
    HH_NIAH_MULTIKEY_1,
    HH_NIAH_MULTIKEY_2,
    HH_NIAH_MULTIKEY_3,
    HH_NIAH_MULTIVALUE,
    HH_NIAH_MULTIQUERY,
    HH_NIAH_BOOK,
    HH_NEEDLE_TASKS
} hh_needle_task;
const char *hh_needle_task_name(hh_needle_task t);                                  /* "niah_single_1", ... */
hh_code hh_needle_task_parse(const char *name, hh_needle_task *out, hh_error *err); /* HH_EINVAL lists the names */
/* Of task names with commas between: has one a text around its needles? An unknown name may. */
bool hh_needle_tasks_read_text(const char *list);

typedef struct hh_needle_sample {
    char *prompt;    /* the text up to the place where the model answers (RULER's answer prefix included) */
    char *answer[8]; /* every value that counts; found when it occurs in the generated text */
    int n_answers;
    double depth;     /* of the first asked needle, 0..1 of the haystack */
    int64_t n_tokens; /* of the prompt */
    int64_t max_new;  /* tokens RULER lets the model generate: 128 (fewer at lengths that are too short for RULER) */
} hh_needle_sample;
void hh_needle_sample_release(hh_needle_sample *s);

typedef struct hh_needles hh_needles; /* a generator: one task, one tokenizer, one haystack, one seed */
typedef struct hh_needle_options {
    hh_needle_task task;
    int64_t length;       /* tokens of prompt and answer together, at most */
    const char *haystack; /* text for "essay" haystacks; NULL: the shipped excerpt */
    size_t haystack_len;
    uint32_t seed;
    bool anywhere; /* every prompt's essay begins at a word of the haystack drawn for it; RULER's begin at the first, so
                    * that all prompts of a length have the same text */
} hh_needle_options;
hh_code hh_needles_new(hh_needles **out, const hh_tokenizer *t, const hh_needle_options *o,
                       hh_error *err); /* HH_EINVAL: does not fit, with numbers */
hh_code hh_needles_next(hh_needles *n, hh_needle_sample *out, hh_error *err);
void hh_needles_free(hh_needles *n);

/* A counterfactual pair, tokenised: prompts and answers of equal token counts. */
typedef struct hh_pair {
    hh_ids prompt, corrupt, answer, wrong; /* wrong is empty under key corruption */
} hh_pair;
void hh_pair_release(hh_pair *p);
typedef enum hh_corruption { HH_CORRUPT_VALUE, HH_CORRUPT_KEY } hh_corruption;
/* Draws again until the token counts match. */
hh_code hh_pair_from_needles(hh_needles *n, hh_corruption c, hh_pair *out, hh_error *err);
/* A user's JSONL file: one object a line, "prompt", "corrupt", "answer", "wrong" (may be absent: scored by
 * log-probability). The error names file and line. */
hh_code hh_pairs_read(const char *path, const hh_tokenizer *t, hh_pair **out, int64_t *n, hh_error *err);
/* The same from bytes (the fuzz target's entry). */
hh_code hh_pairs_parse(const char *path, const char *bytes, size_t size, const hh_tokenizer *t, hh_pair **out,
                       int64_t *n, hh_error *err);
void hh_pairs_free(hh_pair *pairs, int64_t n);
#endif
