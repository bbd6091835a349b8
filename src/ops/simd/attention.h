/* What the attention kernels share: tiles of keys and values as float, e^x in base 2, and which query heads read which
 * KV head. */
#ifndef HH_OPS_SIMD_ATTENTION_H
#define HH_OPS_SIMD_ATTENTION_H

#include "ops/attention.h"
#include "ops/simd/panel.h"
#include "ops/simd/simd.h"
#include "ops/simd/widen.h"

#define HH_LOG2E 1.4426950408889634
#define HH_LN2   0.6931471805599453

/* 2^x for x <= 0, to 1 unit in the last place; 2^-126 below -126; NaN stays NaN. */
static inline hh_vf hh_vexp2_down(hh_vf x) {
    const hh_vf magic = hh_vset(12582912.0f);
    x = hh_vmax(hh_vset(-126.0f), x);
    const hh_vf shifted = x + magic, r = x - (shifted - magic);
    hh_vf p = hh_vset(1.5403530e-4f);
    p = hh_vfma(p, r, hh_vset(1.3333558e-3f));
    p = hh_vfma(p, r, hh_vset(9.6181291e-3f));
    p = hh_vfma(p, r, hh_vset(5.5504109e-2f));
    p = hh_vfma(p, r, hh_vset(0.24022651f));
    p = hh_vfma(p, r, hh_vset(0.69314718f));
    p = hh_vfma(p, r, hh_vset(1.0f));
    return (hh_vf)((hh_vi)p + ((hh_vi)shifted << 23));
}

/* The largest of `before` and of logits S [n, HH_VW of HH_PANEL] of keys j .. j + n, column by column; where `masked`, keys
 * behind a column's position `last` become `lowest` first. */
static inline hh_vf hh_panel_peak(float *S, int64_t n, int64_t j, bool masked, hh_vi last, hh_vf before, float lowest) {
    hh_vf most = before;
    for (int64_t i = 0; i < n; i++) {
        hh_vf z = hh_vload(S + i * HH_PANEL);
        if (masked) {
            z = hh_vselect(hh_vset_int((int32_t)(j + i)) <= last, z, hh_vset(lowest));
            hh_vstore(S + i * HH_PANEL, z);
        }
        most = hh_vmax(most, z);
    }
    return most;
}

/* Rows [j, j + n) of KV head g as float rows: in place when they are float, else converted into buffer [n, D]. */
typedef struct hh_kv_rows {
    const float *at;
    int64_t stride;
} hh_kv_rows;

static inline hh_kv_rows hh_kv_tile(hh_tensor t, int64_t j, int64_t n, int64_t g, float *buffer) {
    const int64_t D = t.dim[2];
    if (t.dtype == HH_DTYPE_F32) return (hh_kv_rows){hh_row(t, j) + g * D, t.stride};
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = (j + i) * t.stride + g * D;
        widen(t.dtype, buffer + i * D, (const char *)t.data + hh_dtype_bytes(t.dtype, at), D);
    }
    return (hh_kv_rows){buffer, D};
}

/* Query heads sorted by the KV head they read: those of KV head g are head[first[g]] .. head[first[g + 1]]. */
typedef struct hh_head_groups {
    int64_t n_kv;
    int32_t *head;  /* [Hq] */
    int64_t *first; /* [n_kv + 1] */
} hh_head_groups;

static inline hh_head_groups hh_group_heads(hh_arena *a, const int32_t *kv_of_q, int64_t n_q, int64_t n_kv) {
    hh_head_groups groups = {.n_kv = n_kv,
                             .head = hh_arena_alloc(a, sizeof(int32_t) * (size_t)(n_q + 1)),
                             .first = hh_arena_alloc(a, sizeof(int64_t) * (size_t)(n_kv + 1))};
    int64_t n = 0;
    for (int64_t g = 0; g < n_kv; g++) {
        groups.first[g] = n;
        for (int64_t h = 0; h < n_q; h++)
            if (kv_of_q[h] == g) groups.head[n++] = (int32_t)h;
    }
    groups.first[n_kv] = n;
    HH_ASSERT(n == n_q);
    return groups;
}

/* KV heads that queries name; a backward may have more, without a reader. */
static inline int64_t hh_kv_heads_read(const int32_t *kv_of_q, int64_t n_q) {
    int64_t n = 0;
    for (int64_t h = 0; h < n_q; h++) n = kv_of_q[h] >= n ? kv_of_q[h] + 1 : n;
    return n;
}

/* One token of a span against a long context, in attention_decode.c: spans of length 1. */
typedef struct hh_attention_call {
    hh_backend *be;
    hh_tensor o, lse, q;
    const hh_kv *kv;
    const hh_span *span;
    int64_t n_spans;
    hh_head_groups groups;
    double log_scale_base;
} hh_attention_call;

void HH_SIMD_NAME(attention_decode)(const hh_attention_call *c);

#endif
