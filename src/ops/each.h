/* For tables of wrappers made from ops.def: one macro over all names of an op's arguments. */
#ifndef HH_OPS_EACH_H
#define HH_OPS_EACH_H

#include "ops/ops.h"

/* EACH(f, a, b, ...) is f(a), f(b), ... of up to 16 arguments. */
/* clang-format off */
#define EACH_1(f, a) f(a)
#define EACH_2(f, a, ...) f(a), EACH_1(f, __VA_ARGS__)
#define EACH_3(f, a, ...) f(a), EACH_2(f, __VA_ARGS__)
#define EACH_4(f, a, ...) f(a), EACH_3(f, __VA_ARGS__)
#define EACH_5(f, a, ...) f(a), EACH_4(f, __VA_ARGS__)
#define EACH_6(f, a, ...) f(a), EACH_5(f, __VA_ARGS__)
#define EACH_7(f, a, ...) f(a), EACH_6(f, __VA_ARGS__)
#define EACH_8(f, a, ...) f(a), EACH_7(f, __VA_ARGS__)
#define EACH_9(f, a, ...) f(a), EACH_8(f, __VA_ARGS__)
#define EACH_10(f, a, ...) f(a), EACH_9(f, __VA_ARGS__)
#define EACH_11(f, a, ...) f(a), EACH_10(f, __VA_ARGS__)
#define EACH_12(f, a, ...) f(a), EACH_11(f, __VA_ARGS__)
#define EACH_13(f, a, ...) f(a), EACH_12(f, __VA_ARGS__)
#define EACH_14(f, a, ...) f(a), EACH_13(f, __VA_ARGS__)
#define EACH_15(f, a, ...) f(a), EACH_14(f, __VA_ARGS__)
#define EACH_16(f, a, ...) f(a), EACH_15(f, __VA_ARGS__)
#define HOW_MANY(...) PICK_17(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define PICK_17(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) count
#define JOIN(a, b) JOIN_(a, b)
#define JOIN_(a, b) a##b
#define EACH(f, ...) JOIN(EACH_, HOW_MANY(__VA_ARGS__))(f, __VA_ARGS__)
/* clang-format on */

#endif
