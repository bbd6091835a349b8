/* Running one op on both backends of twin.h, in bf16 and in float32, and asking that it repeats bit for bit. */
#ifndef HH_TESTS_CUDA_BOTH_H
#define HH_TESTS_CUDA_BOTH_H

#include "cuda/twin.h"

/* The statement behind it runs twice: BE is the CPU and then the GPU, ON(b) that side's tensor. */
#define ON_BOTH for (int side = 0; side < 2; side++)
#define BE      (side ? tw.gpu : tw.cpu)
#define ON(b)   (side ? (b).gpu : (b).cpu)

static const both nothing = {{0}, {0}};

/* `body` with both types of activations; skips without a GPU. */
static inline void in_both_types(void (*body)(void)) {
    static const hh_precision precisions[] = {HH_PRECISION_F32, HH_PRECISION_AUTO};
    for (int i = 0; i < 2; i++) {
        if (!twin_open(precisions[i])) skip();
        body();
        twin_close();
    }
}

/* All bytes of the GPU's rows, one row behind another. */
static inline char *twin_bytes(both b, size_t *bytes) {
    hh_error err = {0};
    const size_t row = hh_dtype_bytes(b.gpu.dtype, hh_tensor_row_count(b.gpu));
    char *out = hh_arena_alloc(&tw.host, row * (size_t)b.gpu.dim[0] + 1);
    assert_ok(tw.gpu->sync(tw.gpu, &err));
    *bytes = row * (size_t)b.gpu.dim[0];
    const char *raw = twin_download(b);
    for (int64_t i = 0; i < b.gpu.dim[0]; i++) memcpy(out + (size_t)i * row, raw + (size_t)i * twin_apart(b), row);
    return out;
}

/* Runs `call` on the GPU twice, `b` filled with zeros before each, and compares b's bytes. */
#define assert_repeats(b, call)                                                                                        \
    do {                                                                                                               \
        size_t repeat_bytes[2];                                                                                        \
        char *repeat_data[2];                                                                                          \
        const int side = 1;                                                                                            \
        (void)side;                                                                                                    \
        for (int repeat = 0; repeat < 2; repeat++) {                                                                   \
            tw.gpu->ops->fill(tw.gpu, (b).gpu, 0);                                                                     \
            call;                                                                                                      \
            repeat_data[repeat] = twin_bytes(b, &repeat_bytes[repeat]);                                                \
        }                                                                                                              \
        assert_memory_equal(repeat_data[0], repeat_data[1], repeat_bytes[0]);                                          \
    } while (0)

#endif
