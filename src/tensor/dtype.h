/* Element types: what a checkpoint stores and what the program computes in.
 *
 * hh_real is the type of every activation on the CPU: float, or double in the verification build (make REAL=double),
 * in which the same sources are compiled once more and gradients are checked to 1e-9 and better.
 * Block formats (Q8_0 ... Q6_K) are those of GGUF: a row is a whole number of blocks.
 */
#ifndef HH_TENSOR_DTYPE_H
#define HH_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum hh_dtype {
    HH_DTYPE_F32 = 0,
    HH_DTYPE_F64,
    HH_DTYPE_F16,
    HH_DTYPE_BF16,
    HH_DTYPE_I32,
    HH_DTYPE_I64,
    HH_DTYPE_Q8_0,
    HH_DTYPE_Q4_0,
    HH_DTYPE_Q4_1,
    HH_DTYPE_Q5_0,
    HH_DTYPE_Q5_1,
    HH_DTYPE_Q4_K,
    HH_DTYPE_Q5_K,
    HH_DTYPE_Q6_K,
    HH_DTYPE_COUNT
} hh_dtype;

#ifdef HH_REAL_DOUBLE
typedef double hh_real;
#define HH_DTYPE_REAL HH_DTYPE_F64
#else
typedef float hh_real;
#define HH_DTYPE_REAL HH_DTYPE_F32
#endif

const char *hh_dtype_name(hh_dtype t);   /* "f32", "bf16", "q4_k", ... */
int64_t hh_dtype_block(hh_dtype t);      /* elements a block: 1, 32 or 256 */
size_t hh_dtype_block_bytes(hh_dtype t); /* bytes a block */
bool hh_dtype_is_quantised(hh_dtype t);
bool hh_dtype_is_float(hh_dtype t); /* F32, F64, F16, BF16 */
/* Bytes of n elements; n is a multiple of the block. */
size_t hh_dtype_bytes(hh_dtype t, int64_t n);

float hh_bf16_to_float(uint16_t x);   /* exact, NaN payloads and subnormals kept */
uint16_t hh_bf16_from_float(float x); /* round to nearest even; NaN stays NaN */
float hh_f16_to_float(uint16_t x);
uint16_t hh_f16_from_float(float x);

/* n elements (a multiple of the source's block) of any type to float, and to hh_real. */
void hh_dequantise_float(hh_dtype t, const void *src, int64_t n, float *dst);
void hh_dequantise(hh_dtype t, const void *src, int64_t n, hh_real *dst);
/* hh_real to F32, F64, F16, BF16, Q8_0, Q4_0, Q4_1 (round to nearest; the same blocks as ggml's reference). */
void hh_quantise(hh_dtype t, const hh_real *src, int64_t n, void *dst);

#endif
