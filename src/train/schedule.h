/* Learning rates over a run: a linear warm-up, then a constant or a cosine. */
#ifndef HH_TRAIN_SCHEDULE_H
#define HH_TRAIN_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct hh_schedule {
    bool cosine;        /* false: constant after the warm-up */
    double peak, final; /* the cosine falls from peak to final over all steps */
    int64_t warmup;     /* steps; step i of them is scaled by (i + 1) / warmup; 0: none */
    int64_t steps;      /* of the whole run */
} hh_schedule;

/* The rate of step i of [0, steps): min(1, (i+1)/warmup) * (final + (peak - final)/2 * (1 + cos(pi i / steps))). */
double hh_schedule_rate(const hh_schedule *s, int64_t step);

#endif
