/* Random weights for a model that is trained from nothing. */
#ifndef HH_TRAIN_INITIALISE_H
#define HH_TRAIN_INITIALISE_H

#include "model/model.h"

/* Matrices ~ N(0, 0.02), those that write into the residual stream (W_O, W_down) divided by sqrt(2 L); norms 1, biases
 * 0. Each parameter draws from a stream of its own. HH_EUNSUPPORTED for a hybrid: `convert` makes those from a teacher.
 */
hh_code hh_model_initialise(hh_model *m, uint64_t seed, hh_error *err);

#endif
