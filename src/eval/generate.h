/* Greedy answers to the prompts of a JSONL file: {"prompt": "...", "answers": ["..."]} a line; with answers, the share
 * that occurs in the text. */
#ifndef HH_EVAL_GENERATE_H
#define HH_EVAL_GENERATE_H
#include "eval/subject.h"

typedef struct hh_prompt {
    char *text;
    json_t *answers; /* array of strings; NULL: none */
} hh_prompt;
typedef struct hh_prompts {
    hh_prompt *prompt;
    int64_t n, capacity;
    const char *path;
} hh_prompts;
hh_code hh_prompts_read(hh_prompts *out, const char *path, int64_t limit, hh_error *err);
/* The same from bytes (the fuzz target's entry). */
hh_code hh_prompts_parse(hh_prompts *out, const char *path, const char *bytes, size_t size, int64_t limit,
                         hh_error *err);
void hh_prompts_release(hh_prompts *p);

/* {"outputs": [{"prompt", "text", "tokens", "finish": "end"|"length", "score"}], "score": mean, "score_stderr",
 * "truncated"}. New reference. The context is as long as the longest prompt and max_new. */
hh_code hh_eval_generate(json_t **out, const hh_subject *s, const hh_prompts *p, int64_t max_new, hh_error *err);
#endif
