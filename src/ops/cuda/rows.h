/* What the row-wise kernels share: packs of numbers (16-byte accesses, with a path for rows that do not allow them), the
 * loop over all numbers of equally shaped tensors, teams of threads that own a row together, and the second pass of sums
 * over tokens. */
#ifndef HH_OPS_CUDA_ROWS_H
#define HH_OPS_CUDA_ROWS_H

#include "ops/cuda/cuda.h"

#include <cuda_fp16.h>

#define HH_CUDA_BLOCK 256 /* threads of a block, unless a kernel says otherwise */

/* A tensor inside a kernel. */
template <typename T> struct hh_view {
    T *p;
    int64_t stride;
};
template <typename T> static inline hh_view<T> hh_view_of(hh_tensor t) {
    return {(T *)t.data, t.stride};
}

static __device__ __forceinline__ float hh_load(const __half *p) {
    return __half2float(*p);
}
static __device__ __forceinline__ void hh_store(__half *p, float v) {
    *p = __float2half_rn(v);
}

/* Right in both tails: expf gives infinity or 0. */
static __device__ __forceinline__ float hh_sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}
static __device__ __forceinline__ float hh_softplus(float x) {
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

/* -- packs: V numbers that one thread moves at once; V = 1 where rows are not aligned -- */

template <int V, typename T> struct hh_pack { uint32_t word[V * sizeof(T) / 4]; };
template <typename T> struct hh_pack<1, T> { T value; };

static __device__ __forceinline__ void hh_unpack_word(float *x, uint32_t w, const float *) {
    x[0] = __uint_as_float(w);
}
static __device__ __forceinline__ void hh_unpack_word(float *x, uint32_t w, const hh_bf16 *) {
    x[0] = __uint_as_float(w << 16);
    x[1] = __uint_as_float(w & 0xffff0000u);
}
static __device__ __forceinline__ void hh_unpack_word(float *x, uint32_t w, const __half *) {
    float2 f = __half22float2(*(const __half2 *)&w);
    x[0] = f.x;
    x[1] = f.y;
}
static __device__ __forceinline__ uint32_t hh_pack_word(const float *x, const float *) {
    return __float_as_uint(x[0]);
}
static __device__ __forceinline__ uint32_t hh_pack_word(const float *x, const hh_bf16 *) {
    __nv_bfloat162 b = __floats2bfloat162_rn(x[0], x[1]);
    return *(const uint32_t *)&b;
}
static __device__ __forceinline__ uint32_t hh_pack_word(const float *x, const __half *) {
    __half2 h = __floats2half2_rn(x[0], x[1]);
    return *(const uint32_t *)&h;
}

template <int V, typename T> static __device__ __forceinline__ void hh_unpack(float (&x)[V], const hh_pack<V, T> &p) {
    if constexpr (V == 1) {
        x[0] = hh_load(&p.value);
    } else {
        constexpr int A = 4 / sizeof(T); /* numbers of a word */
#pragma unroll
        for (int i = 0; i < V / A; i++) hh_unpack_word(x + i * A, p.word[i], (const T *)nullptr);
    }
}

template <typename T, int V> static __device__ __forceinline__ hh_pack<V, T> hh_make_pack(const float (&x)[V]) {
    hh_pack<V, T> out;
    if constexpr (V == 1) {
        hh_store(&out.value, x[0]);
    } else {
        constexpr int A = 4 / sizeof(T);
#pragma unroll
        for (int i = 0; i < V / A; i++) out.word[i] = hh_pack_word(x + i * A, (const T *)nullptr);
    }
    return out;
}

/* The first n <= V numbers at p, zeros behind them. */
template <int V, typename T> static __device__ __forceinline__ hh_pack<V, T> hh_read_pack(const T *p, int n) {
    hh_pack<V, T> out;
    if constexpr (V == 1) {
        if (n > 0) {
            out.value = *p;
        } else {
            hh_store(&out.value, 0.0f);
        }
    } else {
        constexpr int B = V * sizeof(T);
        if (n >= V) {
            if constexpr (B % 16 == 0) {
#pragma unroll
                for (int i = 0; i < B / 16; i++) {
                    uint4 u = ((const uint4 *)p)[i];
                    out.word[4 * i] = u.x;
                    out.word[4 * i + 1] = u.y;
                    out.word[4 * i + 2] = u.z;
                    out.word[4 * i + 3] = u.w;
                }
            } else {
                static_assert(B == 8, "packs are of 8 bytes or of multiples of 16");
                uint2 u = *(const uint2 *)p;
                out.word[0] = u.x;
                out.word[1] = u.y;
            }
        } else {
            float x[V];
#pragma unroll
            for (int i = 0; i < V; i++) x[i] = i < n ? hh_load(p + i) : 0.0f;
            out = hh_make_pack<T>(x);
        }
    }
    return out;
}

template <int V, typename T> static __device__ __forceinline__ void hh_load_pack(float (&x)[V], const T *p, int n) {
    hh_unpack(x, hh_read_pack<V>(p, n));
}

/* The first n <= V numbers. */
template <int V, typename T> static __device__ __forceinline__ void hh_store_pack(T *p, const float (&x)[V], int n) {
    if constexpr (V == 1) {
        if (n > 0) hh_store(p, x[0]);
    } else {
        constexpr int B = V * sizeof(T);
        if (n >= V) {
            const hh_pack<V, T> out = hh_make_pack<T>(x);
            const uint32_t *w = out.word;
            if constexpr (B % 16 == 0) {
#pragma unroll
                for (int i = 0; i < B / 16; i++)
                    ((uint4 *)p)[i] = make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
            } else {
                *(uint2 *)p = make_uint2(w[0], w[1]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < V; i++)
                if (i < n) hh_store(p + i, x[i]);
        }
    }
}

/* May every row (and, with `heads` groups of n numbers a row, every group) be read `bytes` at a time? Absent tensors may. */
static inline bool hh_is_packed(hh_tensor t, size_t bytes = 16) {
    if (!t.data) return true;
    size_t size = hh_dtype_bytes(t.dtype, 1);
    if (t.rank == 1) return (uintptr_t)t.data % bytes == 0 && (t.dim[0] <= 1 || t.stride == 1);
    if ((uintptr_t)t.data % bytes || (t.dim[0] > 1 && (size_t)t.stride * size % bytes)) return false;
    return t.rank < 3 || t.dim[1] <= 1 || (size_t)t.dim[2] * size % bytes == 0;
}

#define HH_CUDA_BY_PACK(packed, V, n, ...)                                                                             \
    do {                                                                                                               \
        if (packed) {                                                                                                  \
            constexpr int V = n;                                                                                       \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            constexpr int V = 1;                                                                                       \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

/* -- loops over all numbers of equally shaped tensors -- */

static inline bool hh_is_like(hh_tensor t, hh_tensor model) {
    return t.dim[0] == model.dim[0] && hh_tensor_row_count(t) == hh_tensor_row_count(model);
}

/* [rows, n]; one row where all are dense. `packed`: in packs of 8. */
typedef struct hh_loop {
    int64_t rows, n;
    bool packed;
} hh_loop;

static inline hh_loop hh_loop_over(const hh_tensor *t, int count) {
    hh_loop l = {t[0].dim[0], hh_tensor_row_count(t[0]), true};
    bool dense = true;
    for (int i = 0; i < count; i++) {
        HH_ASSERT(hh_is_like(t[i], t[0]));
        dense = dense && hh_tensor_is_dense(t[i]);
    }
    for (int i = 0; i < count; i++)
        l.packed = l.packed && (dense ? (uintptr_t)t[i].data % 16 == 0 : hh_is_packed(t[i]));
    if (dense) {
        l.n *= l.rows;
        l.rows = l.n ? 1 : 0;
    }
    return l;
}

static inline dim3 hh_loop_grid(int64_t rows, int64_t n, int v) {
    int64_t items = rows * hh_ceil_div(n, v);
    HH_ASSERT(hh_ceil_div(items, HH_CUDA_BLOCK) <= INT32_MAX && (rows <= 1 || items < UINT32_MAX - HH_CUDA_BLOCK));
    return dim3((unsigned)hh_ceil_div(items, HH_CUDA_BLOCK));
}

/* Where this thread works: `n` numbers (0: none) from a column of a row. */
struct hh_place {
    int64_t row, column;
    int n;
};
template <int V> static __device__ __forceinline__ hh_place hh_place_of(int64_t rows, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * HH_CUDA_BLOCK + threadIdx.x;
    hh_place at = {0, i * V, 0};
    if (rows > 1) {
        const uint32_t packs = (uint32_t)((n + V - 1) / V), row = (uint32_t)i / packs;
        at.row = row;
        at.column = (int64_t)((uint32_t)i - row * packs) * V;
    }
    const int64_t left = n - at.column;
    if (at.row < rows && left > 0) at.n = left < V ? (int)left : V;
    return at;
}

/* -- teams: `lanes` threads (a power of two up to a warp, or the whole block) own a group of n numbers -- */

/* Each thread holds `packs` packs of the group; 0: it reads the group again for every pass, number by number. */
typedef struct hh_teams {
    int lanes, packs;
} hh_teams;

/* A warp takes a group of up to `warp_packs` packs a lane. */
static inline hh_teams hh_teams_for(int64_t n, bool packed, int warp_packs) {
    const int64_t vectors = packed ? hh_ceil_div(n, 8) : n;
    hh_teams t = {1, 1};
    if (vectors > 32 * warp_packs) {
        t.lanes = HH_CUDA_BLOCK;
    } else {
        while (t.lanes < 32 && t.lanes < vectors) t.lanes *= 2;
    }
    while ((int64_t)t.lanes * t.packs < vectors) t.packs += t.packs < 4 ? 1 : 4;
    if (!packed || t.packs > 8) t.packs = 0;
    return t;
}

/* `Packed` (V = 8, K packs a thread) or number by number (V = 1, K = 0). */
#define HH_CUDA_BY_TEAM(teams, V, K, ...)                                                                              \
    do {                                                                                                               \
        if ((teams).packs == 1) {                                                                                      \
            constexpr int V = 8, K = 1;                                                                                \
            __VA_ARGS__;                                                                                               \
        } else if ((teams).packs == 2) {                                                                               \
            constexpr int V = 8, K = 2;                                                                                \
            __VA_ARGS__;                                                                                               \
        } else if ((teams).packs == 3) {                                                                               \
            constexpr int V = 8, K = 3;                                                                                \
            __VA_ARGS__;                                                                                               \
        } else if ((teams).packs == 4) {                                                                               \
            constexpr int V = 8, K = 4;                                                                                \
            __VA_ARGS__;                                                                                               \
        } else if ((teams).packs == 8) {                                                                               \
            constexpr int V = 8, K = 8;                                                                                \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            constexpr int V = 1, K = 0;                                                                                \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

static __device__ __forceinline__ int64_t hh_team_index(int lanes) {
    return (int64_t)blockIdx.x * (HH_CUDA_BLOCK / lanes) + threadIdx.x / lanes;
}

/* Sum over the team, the same bits in every thread. All threads of the block call it. */
static __device__ __forceinline__ float hh_team_sum(float v, int lanes) {
    if (lanes <= 32) {
        for (int o = lanes / 2; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
        return v;
    }
    __shared__ float part[HH_CUDA_BLOCK / 32];
    v = hh_warp_sum(v);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < HH_CUDA_BLOCK / 32; i++) sum += part[i];
    __syncthreads();
    return sum;
}

/* -- sums over tokens -- */

/* out[c] += sum over p of partial[p, c], in a fixed order; partial is dense [n_partials, n]. */
void hh_cuda_add_columns(hh_backend *be, const char *op, float *out, const float *partial, int64_t n_partials,
                         int64_t n);

/* -- checks -- */

static inline bool hh_is_act(hh_backend *be, hh_tensor t) {
    return t.dtype == be->activation;
}
static inline bool hh_is_f32(hh_tensor t) {
    return t.dtype == HH_DTYPE_F32;
}
static inline bool hh_is_f32_vector(hh_tensor t, int64_t n) {
    return t.dtype == HH_DTYPE_F32 && t.dim[0] == n && hh_tensor_row_count(t) == 1 && (n <= 1 || t.stride == 1);
}
/* One number for every group of x. */
static inline bool hh_is_f32_per_group(hh_tensor t, hh_tensor x) {
    return t.dtype == HH_DTYPE_F32 && t.dim[0] == x.dim[0] && hh_tensor_row_count(t) == hh_groups(x);
}

#endif
