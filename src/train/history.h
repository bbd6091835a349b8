/* What a checkpoint was trained on: DIR/training.json, a line of stages from the conversion on.
 *
 *   {"tokens": n, "stages": [{"stage": "align", "steps": n, "tokens": n, "teacher": PATH, "seed": n}, ...]}
 */
#ifndef HH_TRAIN_HISTORY_H
#define HH_TRAIN_HISTORY_H
#include "base/memory.h"

typedef struct hh_history_stage {
    const char *stage, *teacher; /* teacher "": none */
    int64_t steps, seed;
} hh_history_stage;

/* Writes dir's history: that of the student it was trained from (none is fine) and this stage, whose tokens are those of
 * dir/log.jsonl. */
hh_code hh_history_write(const char *dir, const char *student, const hh_history_stage *stage, hh_error *err);
/* Tokens of all stages of a checkpoint; 0 when it has no history. */
int64_t hh_history_tokens(const char *path);
#endif
