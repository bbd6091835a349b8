/* The state of a training run on disk: weights, moments and step of every student, with what the run was asked to do.
 *
 * One file, written aside and renamed, with a checksum at its end: a run that is killed at any moment finds the old
 * state or the new one. It holds what a checkpoint directory beside it does not: float32 moments, and the exact weights
 * they belong to. Tokens are a function of (seed, step), so no random state is needed.
 */
#ifndef HH_TRAIN_STATE_H
#define HH_TRAIN_STATE_H

#include "train/trainer.h"

/* `settings` is a text of "name value" lines that decide what a step does. All ranks call; rank 0 writes, and the file
 * does not tell how many there were. */
hh_code hh_state_write(const hh_trainer *t, const char *settings, const char *path, hh_error *err);
/* Fills weights, moments and t->step; every rank reads the file and keeps the moments that it owns. HH_EFORMAT when the file is damaged, HH_EINVAL when it is of other settings or
 * other students; the trainer is then as it was. */
hh_code hh_state_read(hh_trainer *t, const char *settings, const char *path, hh_error *err);

#endif
