/* What the files of the fast linear map share: linear_fwd.c (many tokens), matvec.c (few) and linear.c (backward). */
#ifndef HH_OPS_SIMD_LINEAR_PARTS_H
#define HH_OPS_SIMD_LINEAR_PARTS_H

#include "ops/gemm.h"
#include "ops/linear.h"
#include "ops/simd/pairs.h"
#include "ops/simd/simd.h"

/* While decoding, weights are multiplied as they are stored, and read once for this many tokens. All of them go this way,
 * few or many: a sequence's result must not depend on which others are decoded with it. */
#define HH_FEW_TOKENS 64

/* F1 for few tokens. */
void HH_SIMD_NAME(linear_few)(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w, bool accumulate);

/* Whether some part of w is to meet activations in bf16. */
static inline bool hh_linear_wants_half(const hh_backend *be, const hh_linear *w) {
    bool wanted = false;
    for (int p = 0; p < w->n_parts; p++) wanted = wanted || w->part[p].w.dtype == HH_DTYPE_BF16;
    return wanted && be->precision != HH_PRECISION_F32 && hh_gemm_has_bf16();
}

/* x in bf16, dense, with rows of zeros behind it up to a multiple of `rows`, in the shared scratch; NULL when it does not
 * fit. */
const uint16_t *HH_SIMD_NAME(linear_half)(hh_backend *be, hh_tensor x, int64_t rows);

#if HH_PAIRS
/* linear_pairs.c: x rounded for products of pairs, in the shared scratch, of which a token takes linear_pair_bytes(k); and the
 * tokens [t0, t1) of it against an item's rows, written to y or added to it. K is the map's. */
int64_t HH_SIMD_NAME(linear_pair_bytes)(int64_t k);
hh_pair_rows HH_SIMD_NAME(linear_pair_rows)(hh_backend *be, hh_tensor x);
void HH_SIMD_NAME(linear_pair_tile)(hh_arena *scratch, hh_tensor y, hh_pair_rows x, int64_t K, hh_linear_item it,
                                    int64_t t0, int64_t t1, bool add);
#endif

/* Whether weights of this type are multiplied in pairs of integers: those that were rounded when they were stored. */
static inline bool hh_linear_is_paired(const hh_backend *be, hh_dtype type) {
    if (!HH_PAIRS || be->precision == HH_PRECISION_F32 || type == HH_DTYPE_F32) return false;
    return type != HH_DTYPE_BF16 || !hh_gemm_has_bf16();
}

/* Tokens of a tile: halves them, then the tile's extent *across n (NULL: that is fixed), until every thread has several. */
static inline int64_t hh_linear_tile_tokens(const hh_backend *be, int64_t T, int64_t n, int64_t *across) {
    int64_t tokens = 512, want = be->n_threads == 1 ? 1 : 4 * be->n_threads, width = across ? *across : n;
    while (tokens > 64 && ((T + tokens - 1) / tokens) * ((n + width - 1) / width) < want)
        if (tokens > 128 && T > tokens / 2)
            tokens /= 2;
        else if (across && width > 32 && n > 32)
            width /= 2;
        else
            break;
    if (across) *across = width;
    return tokens;
}

#endif
