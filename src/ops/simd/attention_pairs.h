/* A tile of keys against a panel of queries in pairs of 16-bit integers (pairs.h). Keys, values and queries are rounded each by
 * itself, and a value's scale joins its weight before weights are rounded in groups of 32 keys that begin at key 0: what
 * a query gets depends on the keys it sees alone. */
#ifndef HH_OPS_SIMD_ATTENTION_PAIRS_H
#define HH_OPS_SIMD_ATTENTION_PAIRS_H

#include "ops/simd/attention.h"
#include "ops/simd/pairs.h"

#if HH_PAIRS

#define HH_PAIR_MOST_KEYS 192 /* in a tile */

/* Keys [n, D], values by pairs of keys [n / 2][D][2], each value with one scale. */
typedef struct hh_pair_tile {
    int16_t *k, *v;
    float *k_scale, *v_scale; /* [n][D / 32], [n] */
    int16_t *rows;            /* [2, D] */
} hh_pair_tile;

static inline hh_vi hh_vmax_int(hh_vi a, hh_vi b) {
#if HH_VW == 16
    return (hh_vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
    return (hh_vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#endif
}

/* Sixteen numbers to integers. */
static inline void hh_round_16(int16_t *q, const float *x, float inverse) {
    const __m256 by = _mm256_set1_ps(inverse);
    const __m256i lo = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), by));
    const __m256i hi = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), by));
    _mm256_storeu_si256((void *)q, _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8));
}

/* One value of D numbers with one scale. */
static inline void hh_pair_round_value(int16_t *q, float *scale, const float *x, int64_t D) {
    float top = 0;
    for (int64_t d = 0; d < D; d += HH_PAIR_GROUP) {
        const float t = hh_group_top(x + d);
        if (!(t <= top)) top = t; /* a NaN stays */
        if (t != t) break;
    }
    const float inverse = top >= 1e-30f ? HH_PAIR_TOP / top : 0;
    *scale = top * (1.0f / HH_PAIR_TOP);
    for (int64_t d = 0; d < D; d += 16) hh_round_16(q + d, x + d, inverse);
}

/* Two values [2, D] to pairs [D][2]. */
static inline void hh_pair_interleave(int16_t *to, const int16_t *a, const int16_t *b, int64_t D) {
    for (int64_t d = 0; d < D; d += 16) {
        const __m256i x = _mm256_loadu_si256((const void *)(a + d)), y = _mm256_loadu_si256((const void *)(b + d));
        const __m256i lo = _mm256_unpacklo_epi16(x, y), hi = _mm256_unpackhi_epi16(x, y);
        _mm256_storeu_si256((void *)(to + 2 * d), _mm256_permute2x128_si256(lo, hi, 0x20));
        _mm256_storeu_si256((void *)(to + 2 * d + 16), _mm256_permute2x128_si256(lo, hi, 0x31));
    }
}

/* n keys and values of D numbers; values of zero up to a whole group. */
static inline void hh_pair_tile_round(hh_pair_tile *t, hh_kv_rows k, hh_kv_rows v, int64_t n, int64_t D) {
    for (int64_t i = 0; i < n; i++)
        hh_pairs_round(t->k + i * D, t->k_scale + i * (D / HH_PAIR_GROUP), 1, k.at + i * k.stride, D / HH_PAIR_GROUP);
    for (int64_t i = 0; i < hh_pair_round(n); i++) {
        int16_t *row = t->rows + i % 2 * D;
        if (i < n) {
            hh_pair_round_value(row, t->v_scale + i, v.at + i * v.stride, D);
        } else {
            memset(row, 0, sizeof *row * (size_t)D);
            t->v_scale[i] = 0;
        }
        if (i % 2) hh_pair_interleave(t->v + (i - 1) * D, t->rows, row, D);
    }
}

/* Logits S [n, HH_VW of HH_PANEL] of keys j .. j + n, rows of zeros behind them up to a whole group, become weights times their
 * values' scales as integers P by pairs, with the scale of every group of 32; returns by how much earlier sums shrink. */
static inline hh_vf hh_pair_weigh(int32_t *P, float *scale, float *S, int64_t n, int64_t j, bool masked, float *top,
                                  float *sum, const int32_t *position, const float *v_scale, float lowest) {
    hh_vi last;
    memcpy(&last, position, sizeof last);
    const hh_vf before = hh_vload(top);
    const hh_vf most = hh_panel_peak(S, n, j, masked, last, before, lowest);
    hh_vf total = {0};
    for (int64_t g = 0; g < n; g += HH_PAIR_GROUP) {
        hh_vi peak = {0};
        const int64_t end = g + HH_PAIR_GROUP < n ? g + HH_PAIR_GROUP : n;
        for (int64_t i = g; i < end; i++) {
            hh_vf p = hh_vexp2_down(hh_vload(S + i * HH_PANEL) - most), w = p * hh_vset(v_scale[i]);
            if (masked) {
                const hh_vi seen = hh_vset_int((int32_t)(j + i)) <= last;
                p = hh_vselect(seen, p, (hh_vf){0}), w = hh_vselect(seen, w, (hh_vf){0});
            }
            hh_vstore(S + i * HH_PANEL, w);
            total += p;
            peak = hh_vmax_int(peak, (hh_vi)w & 0x7fffffff);
        }
        for (int64_t i = end; i < g + HH_PAIR_GROUP; i++) hh_vstore(S + i * HH_PANEL, (hh_vf){0});
        const hh_vf inverse = hh_vselect((hh_vf)peak >= 1e-30f, HH_PAIR_TOP / (hh_vf)peak, (hh_vf){0});
        hh_vstore(scale + g / HH_PAIR_GROUP * HH_PANEL, (hh_vf)peak * (1.0f / HH_PAIR_TOP));
        for (int64_t i = g; i < g + HH_PAIR_GROUP; i += 2) {
            const hh_vi a = hh_vround(hh_vload(S + i * HH_PANEL) * inverse);
            const hh_vi b = hh_vround(hh_vload(S + (i + 1) * HH_PANEL) * inverse);
            const hh_vi both = (a & 0xffff) | b << 16;
            memcpy(P + i / 2 * HH_PANEL, &both, sizeof both);
        }
    }
    const hh_vf shrink = hh_vexp2_down(before - most);
    hh_vstore(top, most);
    hh_vstore(sum, hh_vfma(hh_vload(sum), shrink, total));
    return shrink;
}

#endif
#endif
