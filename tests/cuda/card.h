/* What the environment asks of the programs of this folder:
 *
 *   HH_TEST_LAUNCHES=FILE  the kernels that are launched are written there, each once, by their mangled names;
 *                          tools/sanitize_cuda.sh compares them with those that there are
 *   HH_TEST_GPU=80|86      the GPU is taken for one of that compute capability: kernels for older cards run on newer ones
 *   HH_TEST_PRODUCTS=plain products take the kernel for what the library has no plan for
 */
#ifndef HH_TESTS_CUDA_CARD_H
#define HH_TESTS_CUDA_CARD_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ops/cuda/cuda.h */
extern void (*hh_cuda_on_launch)(const char *kernel);
extern int hh_cuda_taken_for;
extern bool hh_cuda_plain_products; /* ops/cuda/products.h */

static FILE *launches;

static void note_launch(const char *kernel) {
    static const char *known[1024];
    static int n;
    for (int i = 0; i < n; i++)
        if (!strcmp(known[i], kernel)) return;
    if (n < 1024) known[n++] = kernel;
    fprintf(launches, "%s\n", kernel);
    fflush(launches); /* the program may be ended */
}

__attribute__((constructor)) static void prepare_card(void) {
    const char *path = getenv("HH_TEST_LAUNCHES"), *capability = getenv("HH_TEST_GPU");
    launches = path ? fopen(path, "a") : NULL;
    if (launches) hh_cuda_on_launch = note_launch;
    if (capability) hh_cuda_taken_for = atoi(capability);
    hh_cuda_plain_products = getenv("HH_TEST_PRODUCTS") != NULL;
}

#endif
