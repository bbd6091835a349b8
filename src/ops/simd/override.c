/* The kernels of one instruction set in place of the reference's; cpu.c calls the set that it has chosen. */
#include "ops/simd/simd.h"

void HH_SIMD_NAME(override)(hh_ops *ops) {
#define HH_SIMD(name) ops->name = HH_SIMD_NAME(name);
#include "ops/simd/table.def"
#undef HH_SIMD
}
