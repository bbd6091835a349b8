/* Groups of 32 weights out of GGUF's blocks: the bit layouts, shared by the products and by dequantisation.
 *
 * A group is 32 signed bytes q and says x_i = d q_i + m. bytes_<type>(block, j) takes the bytes of group j of a block;
 * j is a constant wherever speed matters. Blocks of one group have pair_<type>: d and m in the low lanes of a vector.
 * Blocks of eight have scales_<type>: d of every 16 values and m of every 32. Layouts: tensor/quant.c.
 */
#ifndef HH_OPS_SIMD_GROUPS_H
#define HH_OPS_SIMD_GROUPS_H

#include "ops/simd/bytes.h"

GROUP_INLINE bytes32 bytes_q8_0(const uint8_t *b, int j) {
    (void)j;
    return load_bytes(b + 2);
}
GROUP_INLINE bytes32 bytes_q4_0(const uint8_t *b, int j) {
    (void)j;
    return subtract(load_nibbles(b + 2), 8);
}
GROUP_INLINE bytes32 bytes_q4_1(const uint8_t *b, int j) {
    (void)j;
    return load_nibbles(b + 4);
}
GROUP_INLINE bytes32 bytes_q5_0(const uint8_t *b, int j) {
    (void)j;
    return subtract(join_bits(load_nibbles(b + 6), load_fifth_bits(b + 2)), 16);
}
GROUP_INLINE bytes32 bytes_q5_1(const uint8_t *b, int j) {
    (void)j;
    return join_bits(load_nibbles(b + 8), load_fifth_bits(b + 4));
}
#define pair_q8_0 load_one_half
#define pair_q4_0 load_one_half
#define pair_q4_1 load_two_halves
#define pair_q5_0 load_one_half
#define pair_q5_1 load_two_halves

/* Nibbles of row j: of bytes 32 (j/2) ..., low for even j. */
GROUP_INLINE row32 load_nibble_row(const uint8_t *q, int j) {
    return load_row(q + j / 2 * 32, j % 2 * 4, 15);
}

GROUP_INLINE bytes32 bytes_q4_k(const uint8_t *b, int j) {
    return split(load_nibble_row(b + 16, j));
}
GROUP_INLINE bytes32 bytes_q5_k(const uint8_t *b, int j) {
    return split(join_rows(load_nibble_row(b + 48, j), load_row(b + 16, j - 4, 16)));
}
GROUP_INLINE bytes32 bytes_q6_k(const uint8_t *b, int j) {
    const int half = j / 4, row = j % 4;
    const row32 low = load_row(b + half * 64 + row % 2 * 32, row / 2 * 4, 15);
    return subtract(split(join_rows(low, load_row(b + 128 + half * 32, row * 2 - 4, 48))), 32);
}

/* Of a block of 256: d of values 16 i ... in d[i], m of values 32 i ... in m[i]. */
typedef struct scales256 {
    float d[16], m[8];
} scales256;

/* Eight 6-bit scales and minima, see tensor/quant.c, each in its own byte. */
GROUP_INLINE void load_six_bits(const uint8_t *b, uint64_t *scale, uint64_t *min) {
    uint32_t s[3];
    memcpy(s, b, 12);
    const uint32_t low = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x03030303;
    *scale = (uint64_t)(((s[2] & four) | ((s[0] >> 6 & two) << 4))) << 32 | (s[0] & low);
    *min = (uint64_t)(((s[2] >> 4 & four) | ((s[1] >> 6 & two) << 4))) << 32 | (s[1] & low);
}

GROUP_INLINE scales256 scales_q4_k(const uint8_t *b) {
    scales256 s;
    uint64_t scale, min;
    load_six_bits(b + 4, &scale, &min);
    const floats2 dm = load_two_halves(b);
    store_doubled(s.d, scale_unsigned(scale, dm[0]));
    store_eight(s.m, scale_unsigned(min, -dm[1]));
    return s;
}
#define scales_q5_k scales_q4_k
GROUP_INLINE scales256 scales_q6_k(const uint8_t *b) {
    scales256 s = {{0}, {0}};
    const float d = load_one_half(b + 208)[0];
    for (int i = 0; i < 16; i += 8) {
        uint64_t scale;
        memcpy(&scale, b + 192 + i, 8);
        store_eight(s.d + i, scale_signed(scale, d));
    }
    return s;
}

/* X(type, TYPE, whether m can differ from 0) */
#define HH_GROUP_TYPES_32(X)                                                                                           \
    X(q8_0, Q8_0, 0)                                                                                                   \
    X(q4_0, Q4_0, 0)                                                                                                   \
    X(q4_1, Q4_1, 1)                                                                                                   \
    X(q5_0, Q5_0, 0)                                                                                                   \
    X(q5_1, Q5_1, 1)
#define HH_GROUP_TYPES_256(X)                                                                                          \
    X(q4_k, Q4_K, 1)                                                                                                   \
    X(q5_k, Q5_K, 1)                                                                                                   \
    X(q6_k, Q6_K, 0)

#endif
