/* log.jsonl: one line for each optimizer step, appended as it happens. */
#ifndef HH_TRAIN_TRAINLOG_H
#define HH_TRAIN_TRAINLOG_H

#include "train/trainer.h"

typedef struct hh_trainlog hh_trainlog;

/* Opens the log for a run that continues at `step`: lines of that step and later ones, and a half-written last line,
 * are cut off. HH_EIO also when another process writes it. */
hh_code hh_trainlog_open(hh_trainlog **out, const char *path, int64_t step, hh_error *err);
/* {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s"} */
hh_code hh_trainlog_add(hh_trainlog *l, const hh_step_report *r, const hh_student *s, hh_error *err);
void hh_trainlog_close(hh_trainlog *l); /* NULL is accepted */

#endif
