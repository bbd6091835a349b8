/* Extension: next-token cross-entropy at lengths the hybrid could not afford before, at a small constant rate. */
#include "train/stage.h"

const hh_stage hh_stage_extend = {.name = "extend",
                                  .lr = 1e-5,
                                  .final_share = 1,
                                  .warmup = 50,
                                  .run = hh_next_token_run,
                                  .add_losses = hh_next_token_losses};
