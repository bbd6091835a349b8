/* Scalar functions that the references share, in hh_real and safe in both tails. */
#ifndef HH_OPS_SCALAR_H
#define HH_OPS_SCALAR_H

#include "tensor/dtype.h"

#include <tgmath.h>

static inline hh_real hh_sigmoid(hh_real x) {
    const hh_real e = exp(-fabs(x));
    return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

static inline hh_real hh_softplus(hh_real x) {
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

#endif
