/* Block formats of GGUF: a row is cut into blocks of 32 or 256 values that share scales. Layouts are ggml's. */
#ifndef HH_TENSOR_QUANT_H
#define HH_TENSOR_QUANT_H

#include "tensor/dtype.h"

/* n values (whole blocks) of a quantised type to float, bit for bit what ggml's reference gives. */
void hh_blocks_to_float(hh_dtype t, const uint8_t *src, int64_t n, float *dst);
/* One block of 32 floats to Q8_0, Q4_0 or Q4_1. */
void hh_block_from_float(hh_dtype t, const float *src, uint8_t *dst);

#endif
