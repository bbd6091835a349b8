/* What every op's test needs: tensors inside guard bands, random fillings, comparison, gradients by finite differences.
 */
#ifndef HH_TESTS_SUPPORT_GRADCHECK_H
#define HH_TESTS_SUPPORT_GRADCHECK_H

#include "tensor/backend.h"
#include "tensor/tensor.h"

/* A tensor of hh_real or any other dense or strided type whose rows and ends stand between guard bands. Rows are
 * `gap` elements further apart than they are long (0 for block formats and dense tensors). All bytes start as 0xff:
 * NaN in every float type, so that reading what nobody wrote is seen. */
hh_tensor guarded_1d(hh_dtype t, int64_t n);
hh_tensor guarded_2d(hh_dtype t, int64_t rows, int64_t cols, int64_t gap);
hh_tensor guarded_3d(hh_dtype t, int64_t d0, int64_t d1, int64_t d2, int64_t gap);
/* Fails the test, naming `what`, when a byte outside the tensor's elements has changed. */
void guarded_check(hh_tensor t, const char *what);
/* Checks and frees all guarded tensors made so far; call it at the end of a test. */
void guarded_release(void);

/* Elements of an hh_real tensor, in row order, strides respected. */
hh_real *tensor_at(hh_tensor t, int64_t i);
/* Normal numbers of this standard deviation that depend on the seed alone; hh_real tensors. */
void fill_normal(hh_tensor t, uint64_t seed, double deviation);
void fill_value(hh_tensor t, double value);
/* Any float or quantised type that hh_quantise makes, filled from normal numbers. */
void fill_quantised(hh_tensor t, uint64_t seed, double deviation);
/* A dense guarded hh_real copy. */
hh_tensor guarded_copy(hh_tensor t);

/* |a - b| <= tolerance * max|b| for all elements; hh_real tensors of equal shape. NaN fails. */
void check_close(hh_tensor a, hh_tensor b, double tolerance, const char *what);

/* A scalar that is computed anew from the inputs. */
typedef double gradcheck_fn(void *context);
/* Compares the gradient `grad` of x with differences of order six of f, at all elements or at `samples` of them (0:
 * all). The largest deviation may be tolerance * max|grad|. Double build only. x is left as it was. */
void gradcheck(const char *what, gradcheck_fn *f, void *context, hh_tensor x, hh_tensor grad, int64_t samples,
               double tolerance);

/* sum_i a_i b_i: with b random a scalar loss whose gradient with respect to a is b. */
double tensor_dot(hh_tensor a, hh_tensor b);

/* The CPU backend with these kernels, or NULL when this processor or build lacks them. */
hh_backend *open_backend(const char *isa, int n_threads);

/* Whether fewer cases of each kind are to do: HH_TEST_QUICK is set where everything takes a hundred times longer, as under emulation. */
bool quick(void);

/* The instruction sets that have kernels of their own; a processor can open those of its kind. */
#define FAST_ISAS                                                                                                      \
    { "avx2", "avx512", "avx512_vnni", "neon", "neon_dotprod" }
/* The sum of what `run` returns for each of them, with one thread and with several (quick: with two). */
int run_every_isa(int (*run)(const char *isa, int n_threads, const char *name), const char *subject);

#endif
