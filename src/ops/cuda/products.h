/* Matrix products on the card: cuBLASLt behind one call, and the linear map built of it, for the ops that need products
 * inside (linear.cu, loss.cu).
 *
 * All matrices are row-major; a tensor of higher rank is the matrix of its rows. Operands have one type, BF16 or F32;
 * sums are float32, never TF32. Plans are chosen once a shape and without timing, and none adds in an order that may
 * change, so that two runs are bit-equal. No function here calls hh_cuda_scratch_begin: scratch is taken from where the
 * caller stands and given back.
 */
#ifndef HH_OPS_CUDA_PRODUCTS_H
#define HH_OPS_CUDA_PRODUCTS_H

#include "ops/cuda/cuda.h"

/* Room for plans; c->lt must be open. */
void hh_cuda_products_init(hh_cuda *c);
void hh_cuda_products_release(hh_cuda *c);

/* d [m,n] = a [m,k] b [k,n] + bias over n, added to d when `add`. `a_turned`: a is stored as [k,m]; `b_turned`: b as
 * [n,k]. d is of the operands' type or F32; bias is NULL or n dense numbers of d's type. */
void hh_cuda_product(hh_backend *be, const char *op, hh_tensor d, hh_tensor a, bool a_turned, hh_tensor b,
                     bool b_turned, const void *bias, bool add);

/* linear.h's F1, B1 and B2 with B3. */
void hh_cuda_linear_fwd(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w, bool accumulate);
void hh_cuda_linear_bwd_input(hh_backend *be, hh_tensor dx, hh_tensor dy, const hh_linear *w, bool accumulate);
void hh_cuda_linear_bwd_weight(hh_backend *be, const hh_linear *dw, hh_tensor dy, hh_tensor x);

/* w with its parts of other types converted to `dtype`, in scratch that the caller gives back; w as it is when they need
 * more than `room` bytes: then every product converts again, block by block. */
hh_linear hh_cuda_linear_as(hh_backend *be, const hh_linear *w, hh_dtype dtype, size_t room);

/* matvec.cu: F1 for a few tokens in one launch over all parts, reading every weight once. False, and nothing done, when
 * shapes or alignment are not for it. */
bool hh_cuda_matvec(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w, bool accumulate);

/* For tests: the plain kernel takes all products, also those that the library has a plan for. */
extern "C" bool hh_cuda_plain_products;

/* loss.cu: rows of a tile and of a part of it, at most. Benchmarks change them. */
extern int64_t hh_cuda_head_tile, hh_cuda_head_part;

#endif
