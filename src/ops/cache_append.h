/* The KV cache: new rows are written where attention will read them.
 *
 *   F1  K_s[pos + i] = k[lo + i],  V_s[pos + i] = v[lo + i]      for every row lo + i of span s, converted
 *
 * kv[s].k and .v are the whole cache of span s, [capacity,G,D] of HH_DTYPE_REAL, F32, F16, BF16 or Q8_0, pos + (hi - lo)
 * at most the capacity. Positions come from the spans alone, so that a decode step is the same call with every length.
 */
#ifndef HH_OPS_CACHE_APPEND_H
#define HH_OPS_CACHE_APPEND_H

#include "ops/ops.h"

#endif
