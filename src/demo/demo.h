/* The whole job on the shipped model, live: probe, select, convert, align, distil, and needles for the teacher and two
 * hybrids.
 *
 * The second hybrid is the control: it keeps as many heads as the first, drawn at random from the others, and trains on
 * the same batches with the same forward of the teacher. Everything shown was computed in this run.
 */
#ifndef HH_DEMO_DEMO_H
#define HH_DEMO_DEMO_H

#include "convert/plan.h"
#include "eval/ruler.h"
#include "probe/scores.h"

#define HH_DEMO_LENGTHS 3
enum { HH_DEMO_TEACHER, HH_DEMO_CAUSAL, HH_DEMO_RANDOM, HH_DEMO_MODELS };

typedef struct hh_demo_options {
    const char *out_dir;
    int64_t heads;                   /* kept of nano's 32 */
    int64_t samples;                 /* needles a length */
    int64_t length[HH_DEMO_LENGTHS]; /* tokens of the needle prompts */
    int64_t pairs;                   /* counterfactual pairs a capability */
    int64_t align_steps;
    int64_t distill_steps;
    /* At most: each doubles these steps, while the causal hybrid does not find what its teacher finds. */
    int64_t rounds;
    uint64_t seed;
    bool color; /* of the terminal's tables */
} hh_demo_options;

hh_demo_options hh_demo_defaults(void);

typedef struct hh_demo_curve { /* loss of both hybrids at every step of a stage */
    const char *stage;
    int64_t n;
    double *step, *loss[2];
} hh_demo_curve;

typedef struct hh_demo {
    hh_demo_options o;
    hh_backend *be; /* the caller's */
    hh_model *model[HH_DEMO_MODELS];
    hh_tokenizer *tokenizer;
    hh_scores *scores;
    hh_plan plan[HH_DEMO_MODELS]; /* of the hybrids */
    hh_demo_curve curve[2];       /* align, distill */
    hh_subject subject[HH_DEMO_MODELS];
    hh_needle_task task;
    hh_ruler_result needles;
    double cache_bytes[HH_DEMO_MODELS]; /* a token, in bf16 */
    double start, seconds;
    int64_t trained_tokens;
} hh_demo;

/* Runs everything and leaves the results in *d (release it also after a failure). Progress on stderr; what was found is
 * printed to `say` as it is found. HH_ECANCELLED when interrupted. */
typedef void hh_demo_say(const char *text);
hh_code hh_demo_run(hh_demo *d, hh_backend *be, const hh_demo_options *o, hh_demo_say *say, hh_error *err);
void hh_demo_release(hh_demo *d);

/* What was shown, in three sentences with their numbers, and as a table. */
void hh_demo_sentences(const hh_demo *d, hh_buf *out);
void hh_demo_table(const hh_demo *d, bool page, hh_buf *out);
/* DIR/summary.json and DIR/report.html. */
hh_code hh_demo_write(const hh_demo *d, hh_error *err);

#endif
