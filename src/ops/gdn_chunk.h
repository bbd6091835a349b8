/* The chunked form of Gated DeltaNet for one head and at most 64 tokens, in plain matrix products: equations in gdn.h.
 */
#ifndef HH_OPS_GDN_CHUNK_H
#define HH_OPS_GDN_CHUNK_H

#include "ops/gdn.h"

/* F4-F8: o [n,D] (rows o_stride apart) and the state S [D,D] in place. Scratch is taken from `a` and given back. */
void hh_gdn_chunk_fwd(hh_arena *a, hh_real *o, int64_t o_stride, hh_real *S, const hh_gdn_piece *x);

/* B5-B12 with S0 the state at the chunk's start: gradients in d; dS [D,D] holds that of the chunk's final state and is
 * left with that of S0. */
void hh_gdn_chunk_bwd(hh_arena *a, const hh_gdn_piece_grad *d, hh_real *dS, const hh_real *S0, const hh_gdn_piece *x);

#endif
