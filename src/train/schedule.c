/* Learning rates; see schedule.h. */
#include "train/schedule.h"

#include <math.h>

double hh_schedule_rate(const hh_schedule *s, int64_t step) {
    const double pi = 3.14159265358979323846;
    double warm = step + 1 < s->warmup ? (double)(step + 1) / (double)s->warmup : 1;
    if (!s->cosine) return warm * s->peak;
    return warm * (s->final + (s->peak - s->final) * 0.5 * (1 + cos(pi * (double)step / (double)s->steps)));
}
